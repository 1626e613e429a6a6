"""What needs somebody: everything that is wrong, worst first, one cause one sentence. Pure functions of views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.cleanup.schemas import EpisodeView
from app.fleet.schemas import EngineView, ServerView
from app.web import formats
from app.web.models import Attention, EngineVerdict, StoreCard

_RANK = {"bad": 0, "warn": 1, "info": 2, "ok": 3}
#: Reasons of incompatible records whose model is served: hits on them are wrong answers, not just dead weight.
WRONG_REASONS = ("other_layout", "other_size", "declared")
FULL_SOON_HOURS = 7 * 24.0


def attention(
    servers: Sequence[ServerView],
    engines: Sequence[EngineView],
    stores: Sequence[StoreCard],
    verdicts: Sequence[EngineVerdict],
    episodes: Sequence[EpisodeView] = (),
) -> tuple[Attention, ...]:
    """Everything that is wrong, worst first; one cause one line. The last resort is a sentence that all is well."""
    found = [
        *(item for card in stores for item in _store_troubles(card)),
        *(_episode(e) for e in episodes),
        *(item for s in servers for item in _server_troubles(s)),
        *(item for e in engines for item in _engine_troubles(e)),
        *(item for v in verdicts if (item := _verdict_trouble(v)) is not None),
    ]
    found.sort(key=lambda a: _RANK[a.kind])
    return tuple(found) or (_all_well(servers, engines, verdicts),)


def _store_troubles(card: StoreCard) -> Iterable[Attention]:
    store, summary = card.store, card.summary
    name = formats.printable(store.name)
    if store.usable is False:
        yield Attention(
            "bad",
            "hard-drive",
            f"The directory of {name} cannot be used",
            store.usable_reason or "it cannot be read",
            "Look at the store",
            f"/stores/{store.id}",
            store.checked_at,
        )
    if summary.state == "never_scanned":
        if store.usable is not False:
            yield Attention(
                "info",
                "radar",
                f"{name} has not been scanned yet",
                "What is on this disk, and whether it is still right, is known after the first scan.",
                "Scan it",
                f"/stores/{store.id}",
            )
        return
    wrong = [summary.by_reason[reason] for reason in WRONG_REASONS if reason in summary.by_reason]
    records = sum(count.records for count in wrong)
    if records:
        yield Attention(
            "bad",
            "octagon-alert",
            f"{formats.plural(records, 'record')} on {name} would be served as wrong answers",
            f"{formats.disk(sum(count.bytes for count in wrong))} written under another layout of a model that is "
            "served; a hit on one of them is answered with HTTP 200 and the wrong tokens.",
            "Review what would go",
            f"/stores/{store.id}/records?class=incompatible",
            summary.scanned_at,
        )
    corrupt = summary.by_class.get("corrupt")
    if corrupt is not None and corrupt.records:
        yield Attention(
            "warn",
            "file-warning",
            f"{formats.plural(corrupt.records, 'damaged record')} on {name}",
            "Hits end at these records, and their keys stay dead until the files are removed.",
            "See them",
            f"/stores/{store.id}/records?class=corrupt",
            summary.scanned_at,
        )
    hours = summary.full_in_hours
    if hours is not None and hours <= FULL_SOON_HOURS:
        yield Attention(
            "bad" if hours < 24 else "warn",
            "hard-drive",
            f"{name} is full in {formats.duration(hours * 3600)}",
            f"It grows by {formats.disk(summary.growth_bytes_per_hour)} an hour and does not evict; "
            "stores then fail without any metric moving.",
            "Make room",
            "/cleanup",
            summary.scanned_at,
        )


def _episode(episode: EpisodeView) -> Attention:
    waits = "; ".join(episode.waiting_for) or "the next run"
    return Attention(
        "bad",
        "cpu",
        f"Caches of {formats.printable(episode.model_name)} may still hold wrong data",
        f"The disk is clean. Still waiting for: {waits}.",
        "See the run" if episode.run_ids else "Cleanup",
        f"/cleanup/runs/{episode.run_ids[-1]}" if episode.run_ids else "/cleanup",
        episode.opened_at,
    )


def _server_troubles(server: ServerView) -> Iterable[Attention]:
    name = formats.printable(server.name)
    if server.health.state in ("unhealthy", "unreachable", "degraded"):
        yield Attention(
            "warn" if server.health.state == "degraded" else "bad",
            "server",
            f"Cache server {name} is {server.health.state}",
            formats.printable(server.health.reason),
            "Look at it",
            f"/servers/{server.id}",
            server.health.since,
        )
    for warning in server.warnings:
        yield Attention("warn", "server", name, formats.printable(warning), "Look at it", f"/servers/{server.id}")


def _engine_troubles(engine: EngineView) -> Iterable[Attention]:
    name = formats.printable(engine.name)
    if engine.health.state in ("unhealthy", "unreachable", "degraded"):
        yield Attention(
            "warn" if engine.health.state == "degraded" else "bad",
            "cpu",
            f"Engine {name} is {engine.health.state}",
            formats.printable(engine.health.reason),
            "Look at it",
            f"/engines/{engine.id}",
            engine.health.since,
        )
    for warning in engine.warnings:
        yield Attention("warn", "cpu", name, formats.printable(warning), "Look at it", f"/engines/{engine.id}")


def _verdict_trouble(verdict: EngineVerdict) -> Attention | None:
    latest, name = verdict.latest, formats.printable(verdict.engine.name)
    run = latest.last_run
    if run is not None and run.verdict == "fail":
        return Attention(
            "bad",
            "badge-check",
            f"{name} failed its acceptance test",
            run.headline or "; ".join(run.reasons) or "What came from the cache differs from what the engine computes.",
            "Read why",
            f"/acceptance/runs/{run.id}",
            run.finished_at,
        )
    if latest.state == "stale":
        return Attention(
            "warn",
            "badge-check",
            f"{name} changed since its last pass",
            latest.reason,
            "Test it again",
            f"/acceptance/new?engine_id={verdict.engine.id}",
        )
    return None


def _all_well(
    servers: Sequence[ServerView], engines: Sequence[EngineView], verdicts: Sequence[EngineVerdict]
) -> Attention:
    parts = [
        formats.plural(len(servers), "cache server"),
        formats.plural(len(engines), "engine"),
    ]
    passes = sum(1 for v in verdicts if v.latest.state == "fresh")
    parts.append(f"acceptance passed on {passes} of {len(verdicts)}" if verdicts else "no acceptance run yet")
    return Attention("ok", "circle-check", "Nothing needs you now", ", ".join(parts) + ".")
