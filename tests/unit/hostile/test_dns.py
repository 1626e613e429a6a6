"""Names that cannot be looked up, and a resolver that does not answer: said of the target, and nobody else waits."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.fleet.schemas import ServerCreate
from app.sandbox import SandboxThread
from tests.support.panel import Panel, running_panel
from tests.unit.hostile.stage import wait_for

ACTOR = "test"
SLOW, HANGS_SECONDS = 40, 6.0
REAL = socket.getaddrinfo


class Resolver:
    """Knows `good.test`; does not know `unknown.test`; is long about `slow-N.test` once told so. The rest is the
    system's.
    """

    def __init__(self) -> None:
        self.knows, self.hangs = True, False
        self.asked: list[str] = []
        self.over = threading.Event()

    def __call__(self, host: Any, *rest: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host)
        if not name.endswith(".test"):
            return REAL(host, *rest, **options)
        self.asked.append(name)
        if name.startswith("slow-"):
            if self.hangs:
                self.over.wait(HANGS_SECONDS)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if name == "unknown.test" or not self.knows:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return REAL("127.0.0.1", *rest, **options)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    yield made
    made.over.set()


@pytest.fixture
def scene(tmp_path: Path, resolver: Resolver) -> Iterator[tuple[Panel, int, int]]:
    """A panel, and the ids of a server whose name is found and one whose name is not."""
    with SandboxThread(tmp_path / "sandbox") as sandbox, running_panel(tmp_path / "var", POLL_SECONDS="1") as panel:
        fleet = panel.services.fleet
        port = urlsplit(sandbox.server_url).port
        good = fleet.create_server(ServerCreate(url=f"http://good.test:{port}", name="good"), actor=ACTOR)
        unknown = fleet.create_server(ServerCreate(url=f"http://unknown.test:{port}", name="unknown"), actor=ACTOR)
        yield panel, int(good.id), int(unknown.id)
        resolver.over.set()


def test_a_name_nobody_knows_is_said_as_that(scene: tuple[Panel, int, int]) -> None:
    panel, good, unknown = scene
    fleet = panel.services.fleet
    wait_for("a poll of both", lambda: fleet.get_server(unknown).health.state == "unreachable")
    wait_for("the good one", lambda: fleet.get_server(good).health.http_up is True)
    assert "http://unknown.test" in fleet.get_server(unknown).health.reason
    assert "the host name is not known" in fleet.get_server(unknown).health.reason


def test_a_resolver_that_fails_for_a_while_is_got_over(scene: tuple[Panel, int, int], resolver: Resolver) -> None:
    panel, good, _ = scene
    fleet = panel.services.fleet
    wait_for("a first poll", lambda: fleet.get_server(good).health.http_up is True)
    seen = fleet.get_server(good).scraped_at
    resolver.knows = False
    wait_for("that it is said", lambda: "the host name is not known" in fleet.get_server(good).health.reason)
    resolver.knows = True
    wait_for("a later poll", lambda: fleet.get_server(good).scraped_at != seen)


def test_a_resolver_that_hangs_for_many_names_delays_nobody_else(
    scene: tuple[Panel, int, int], resolver: Resolver
) -> None:
    panel, _, unknown = scene
    fleet = panel.services.fleet
    for number in range(SLOW):
        fleet.create_server(ServerCreate(url=f"http://slow-{number}.test:1", name=f"slow {number}"), actor=ACTOR)
    resolver.hangs = True
    resolver.asked.clear()
    wait_for("all names asked", lambda: len({n for n in resolver.asked if n.startswith("slow-")}) == SLOW, 30)
    # One that is looked up anew at each poll is looked up on time although all those lookups hang.
    began, before = time.monotonic(), resolver.asked.count("unknown.test")
    wait_for("five more lookups", lambda: resolver.asked.count("unknown.test") >= before + 5, 60)
    assert time.monotonic() - began < 20
    assert fleet.get_server(unknown).health.state == "unreachable"
