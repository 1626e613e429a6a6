"""A fleet of targets that mean harm beside one that is well: the panel stays up, and the good one is polled on time."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import httpx
import pytest

from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate
from app.sandbox import SandboxThread
from tests.support.panel import Panel, running_panel
from tests.unit.api.test_every_route import ENDLESS, routes
from tests.unit.hostile.stage import wait_for
from tests.unit.hostile.targets import LIVE, MISBEHAVIOURS, SCRIPT, HostileHost

ACTOR = "test"


@dataclass(frozen=True)
class Scene:
    panel: Panel
    hosts: HostileHost
    good: int


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    base = tmp_path_factory.mktemp("hostile")
    with (
        HostileHost() as hosts,
        SandboxThread(base / "sandbox") as sandbox,
        running_panel(base / "var", POLL_SECONDS="1") as panel,
    ):
        fleet = panel.services.fleet
        good = fleet.create_server(ServerCreate(url=sandbox.server_url, name="good"), actor=ACTOR)
        for name in ("redirecting", "script", *MISBEHAVIOURS):
            server = fleet.create_server(ServerCreate(url=hosts.urls[name], name=name), actor=ACTOR)
            engine = hosts.urls.get(f"{name}-engine")
            if engine is not None:
                body = EngineCreate(url=engine, name=f"{name} engine", server_id=server.id)
                fleet.create_engine(body, actor=ACTOR)
        fleet.create_store(StoreCreate(path=str(sandbox.store_path), name="l2", server_ids=[good.id]), actor=ACTOR)
        yield Scene(panel, hosts, int(good.id))


def times_polled(scene: Scene) -> int:
    client = scene.panel.client("viewer")
    points = client.get(f"/api/v1/servers/{scene.good}/samples", params={"metric": "up"}).json()["points"]
    return sum(value is not None for _, value in points)


def test_each_is_asked_and_told_as_what_it_is_while_the_good_one_is_polled_on(scene: Scene) -> None:
    fleet = scene.panel.services.fleet

    def seen() -> set[str]:
        servers = fleet.list_servers(page_size=500, page_token=None).items
        return {server.name for server in servers if server.health.state != "unknown"}

    wait_for("a state of every server", lambda: seen() >= {"good", "redirecting", "script", *MISBEHAVIOURS})
    states = {s.name: s.health for s in fleet.list_servers(page_size=500, page_token=None).items}
    assert states["good"].http_up is True
    # Nobody is called healthy for answers nobody can read, and each has a sentence for people.
    ill = ("unreachable", "degraded", "unhealthy")
    assert {n: states[n].state for n in (*MISBEHAVIOURS, "redirecting") if states[n].state not in ill} == {}
    assert [n for n, health in states.items() if n != "good" and not health.reason] == []

    asked = {name: len(paths) for name, paths in scene.hosts.asked.items()}
    before = fleet.get_server(scene.good).scraped_at
    changes: list[str | None] = [before]

    def five_more() -> bool:
        now = fleet.get_server(scene.good).scraped_at
        if now != changes[-1]:
            changes.append(now)
        return len(changes) > 5

    wait_for("five more polls of the good server", five_more)
    # A target that hangs is polled at most once in its own deadline: the good one did not wait for its turn.
    more = len(scene.hosts.asked["silent"]) - asked["silent"]
    assert more < 5 * 12, "the hanging one is not asked over and over"
    assert scene.hosts.asked["honeypot"] == [], "no redirect was followed"


def test_the_panel_answers_and_keeps_its_memory(scene: Scene) -> None:
    with httpx.Client(base_url=scene.panel.url, timeout=60) as client:
        assert client.get("/livez").status_code == 200
        assert client.get("/readyz").json()["checks"]["database"] == "ok"
    # Twenty endless answers of at most 16 MiB each could lie in memory at once; more would be a leak.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1_500_000, "KiB"


def test_what_they_say_is_escaped_on_every_page(scene: Scene) -> None:
    fleet = scene.panel.services.fleet
    wait_for(
        "a reading of the server that says scripts",
        lambda: any(s.name == "script" and s.layouts for s in fleet.list_servers(page_size=500, page_token=None).items),
    )
    browser = scene.panel.browser()
    scene.panel.services.alerts.evaluate()
    shown = ""
    for path in _pages(scene):
        answer = browser.get(path)
        assert answer.status_code < 500, path
        assert [mark for mark in LIVE if mark in answer.text] == [], path
        shown += answer.text
    # It was there to be shown, in its harmless form.
    assert escape(SCRIPT)[:20] in shown or "&lt;script&gt;alert(1)" in shown


def test_nor_does_the_api_pass_on_more_than_text(scene: Scene) -> None:
    client = scene.panel.client("viewer")
    for family in ("servers", "engines", "checks", "alerts", "facts", "health-changes"):
        answer = client.get(f"/api/v1/{family}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"


def _pages(scene: Scene) -> list[str]:
    """Every page that can be looked at, for every target."""
    fleet = scene.panel.services.fleet
    servers = [
        s.id for s in fleet.list_servers(page_size=500, page_token=None).items if s.name in ("script", "dripping")
    ]
    engines = [
        e.id for e in fleet.list_engines(page_size=500, page_token=None).items if e.name.startswith(("script", "deep"))
    ]
    ids = {"server_id": servers, "engine_id": engines, "store_id": ["1"]}
    found = []
    for route in routes():
        if (
            "GET" not in (route.methods or ())
            or route.path.startswith("/api/v1")
            or route.path in {"/metrics", *ENDLESS}
        ):
            continue
        names = [part.partition("}")[0] for part in route.path.split("{")[1:]]
        if any(name not in ids for name in names):
            continue
        paths = [route.path]
        for name in names:
            paths = [path.replace(f"{{{name}}}", ident) for path in paths for ident in ids[name]]
        found += paths
    return found
