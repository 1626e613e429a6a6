"""The way from nothing to a first result, step by step: what is done and what is next. Pure functions of views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.fleet.sandbox import SANDBOX_LABEL
from app.fleet.schemas import EngineView, ServerView
from app.web import formats
from app.web.models import EngineVerdict, StoreCard


@dataclass(frozen=True)
class FirstStep:
    """One step. `next` marks the one to do now; `path` is empty where it cannot be done yet."""

    title: str
    text: str
    done: bool
    action: str = ""
    path: str = ""
    next: bool = False


def first_steps(
    servers: Sequence[ServerView],
    engines: Sequence[EngineView],
    stores: Sequence[StoreCard],
    verdicts: Sequence[EngineVerdict],
) -> tuple[FirstStep, ...]:
    """All steps, or nothing once there was a first scan and a first acceptance run with a result."""
    scanned = any(card.summary.state == "scanned" for card in stores)
    tested = any(v.latest.last_verdict is not None for v in verdicts)
    if scanned and tested:
        return ()
    steps = [
        FirstStep(
            "A cache server" if not servers else f"Cache server {formats.printable(servers[0].name)}",
            "its HTTP address, such as http://127.0.0.1:8080",
            bool(servers),
            "Add it",
            "/welcome",
        ),
        _store(servers, stores),
        FirstStep(
            "The first scan",
            "what lies there, and whether it is still right",
            scanned,
            "Scan it",
            f"/stores/{stores[0].store.id}" if stores else "",
        ),
        *_before(stores),
        FirstStep(
            "An engine" if not engines else f"Engine {formats.printable(engines[0].name)}",
            "the vLLM in front of it, such as http://127.0.0.1:8000",
            bool(engines),
            "Add it",
            "/welcome",
        ),
        _first_test(engines, verdicts, tested=tested),
    ]
    now = next((i for i, step in enumerate(steps) if not step.done and step.path), None)
    return tuple(FirstStep(s.title, s.text, s.done, s.action, s.path, next=i == now) for i, s in enumerate(steps))


def _first_test(engines: Sequence[EngineView], verdicts: Sequence[EngineVerdict], *, tested: bool) -> FirstStep:
    title, text = "The first acceptance run", "proof that what the cache gives back is right; takes seconds"
    runs = [v.latest.last_run for v in verdicts if v.latest.last_run is not None]
    active = next((run for run in runs if run.state in ("queued", "running")), None)
    if active is not None and not tested:
        return FirstStep(title, f"under way: run {active.id}", False, "Watch it", f"/acceptance/runs/{active.id}")
    if not runs and any(SANDBOX_LABEL.items() <= engine.labels.items() for engine in engines):
        text = "the sandbox starts one by itself after its first scan and cleanup, within a minute"
        return FirstStep(title, text, tested, "Watch for it", "/acceptance")
    return FirstStep(title, text, tested, "Test it", f"/acceptance/new?engine_id={engines[0].id}" if engines else "")


def _store(servers: Sequence[ServerView], stores: Sequence[StoreCard]) -> FirstStep:
    named = [(s, l2) for s in servers for l2 in s.l2 if l2.base_path and not l2.store_id]
    title = f"Store {formats.printable(stores[0].store.name)}" if stores else "Its store"
    if named and not stores:
        server, l2 = named[0]
        return FirstStep(
            title,
            f"{formats.printable(server.name)} names {formats.printable(l2.base_path or '')}",
            False,
            "Accept it",
            f"/settings/stores/new?server_id={server.id}",
        )
    text = "the directory behind its L2 adapter, as this host sees it"
    return FirstStep(title, text, bool(stores), "Add it", "/settings/stores/new" if servers else "")


def _before(stores: Sequence[StoreCard]) -> list[FirstStep]:
    """Whether to adopt what lay there before the panel; only where something did."""
    for card in stores:
        count = card.summary.by_reason.get("before_first_seen")
        if count is not None and count.records:
            records = formats.plural(count.records, "record")
            text = f"{records} from before the panel: adopt them if you know they are right"
            return [FirstStep("What lay there before", text, True, "Decide", f"/stores/{card.store.id}#say")]
    return []
