"""What needs somebody: everything that is wrong, worst first, one cause one sentence. Pure functions of views.

One story with the alarms: every alarm that fires is told here, and what is wrong now is told at once, also before its
alarm has waited long enough. Where both know of one thing (same topic) it is told once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from app.acceptance.schemas import LatestView
from app.alerts.runbooks import runbook_address
from app.alerts.schemas import WRONG_REASONS, AlertView
from app.cleanup.policy import SAFE_FILTER
from app.cleanup.schemas import EpisodeView
from app.clock import iso
from app.fleet.schemas import EngineView, ServerView
from app.records.schemas import SummaryView
from app.web import formats
from app.web.models import Attention, EngineVerdict, StoreCard
from app.web.wrong_records import incompatible_line

_RANK = {"bad": 0, "warn": 1, "info": 2, "ok": 3}
FULL_SOON_HOURS = 7 * 24.0
_SEVERITY = {"critical": "bad", "warning": "warn", "info": "info"}
_ICONS = {"server": "server", "engine": "cpu", "store": "hard-drive", "schedule": "calendar-clock", "panel": "bell"}
#: Rules that are about what this page tells of a server's, an engine's and a store's state by itself.
_STATES = ("unreachable", "unhealthy", "degraded")
_FULL = ("store_filling", "store_full", "free_space_low")

#: (rule, kind of the subject, its id): what an item is about, so that one thing is told once.
Topic = tuple[str, str, str]


@dataclass(frozen=True)
class _Item:
    attention: Attention
    topics: frozenset[Topic] = frozenset()
    records: int = 0  # of the topics wrong_records and dead_records: how many the live summary shows


def _topics(kind: str, ident: str, *rules: str) -> frozenset[Topic]:
    return frozenset((rule, kind, ident) for rule in rules)


def attention(
    servers: Sequence[ServerView],
    engines: Sequence[EngineView],
    stores: Sequence[StoreCard],
    verdicts: Sequence[EngineVerdict],
    episodes: Sequence[EpisodeView] = (),
    alerts: Sequence[AlertView] = (),
) -> tuple[Attention, ...]:
    """Everything that is wrong, worst first; one cause one line. The last resort is a sentence that all is well.

    `alerts`: those that fire or are acknowledged and that no other one explains (`AlertsService.active`).
    """
    left = {card.store.id: _left_on_disk(card.summary) for card in stores}
    found = [
        *(item for card in stores for item in _store_troubles(card)),
        *(_Item(_episode(e, left.get(e.store_id))) for e in episodes),
        *(item for s in servers for item in _server_troubles(s)),
        *(item for e in engines for item in _engine_troubles(e)),
        *(item for v in verdicts if (item := _verdict_trouble(v)) is not None),
    ]
    for alert in alerts:
        if alert.silenced_by is not None:
            continue
        topic = (alert.rule, alert.target_kind, alert.target_id or "")
        same = next((item for item in found if topic in item.topics), None)
        if same is not None and not (alert.rule in _RECORDS and same.records < (alert.value or 0)):
            continue
        if same is not None:  # more was known than can be told now
            found.remove(same)
        found.append(_Item(_alarm(alert), frozenset({topic})))
    shown = sorted((_with_runbook(item) for item in found), key=lambda a: _RANK[a.kind])
    return tuple(shown) or (_all_well(servers, engines, verdicts),)


def _with_runbook(item: _Item) -> Attention:
    rules = sorted(rule for rule, _, _ in item.topics)
    return replace(item.attention, runbook=runbook_address(rules[0])) if rules else item.attention


_RECORDS = ("wrong_records", "derived_records", "dead_records")


def _alarm(alert: AlertView) -> Attention:
    """An alarm that fires as something that needs somebody."""
    name = formats.printable(alert.target_name)
    seen = f" {formats.printable(alert.acknowledged_by)} has seen it." if alert.acknowledged_by else ""
    kind = _SEVERITY.get(alert.severity, "warn")
    if alert.rule in _RECORDS and alert.value is not None:
        known_at = alert.evidence.get("known_at")
        at = iso(known_at) if isinstance(known_at, int | float) else None
        when = f"When last known, {formats.exact(at)}." if at else "When last known."
        why = str(alert.evidence.get("last_known") or "").rpartition("; ")[2].removeprefix("since then ")
        now = f"Since then {formats.printable(why)}, so classes cannot be decided." if why else ""
        item = {"wrong_records": _wrong, "derived_records": _derived}.get(alert.rule, _dead)
        return item(
            name, alert.target_id or "", round(alert.value), f"{when} {now}{seen}".replace("  ", " ").strip(), at
        )
    return Attention(
        kind,
        _ICONS.get(alert.target_kind, "bell"),
        f"{alert.title}: {name}" if alert.target_kind != "panel" else alert.title,
        formats.printable(alert.sentence) + seen,
        "See the alarm",
        f"/alarms/{alert.id}",
        alert.fired_at or alert.since,
    )


def _wrong(name: str, store_id: str, records: int, detail: str, since: str | None) -> Attention:
    return Attention(
        "bad",
        "octagon-alert",
        f"{formats.plural(records, 'record')} on {name} would be served as wrong answers",
        detail,
        "See them and plan",
        f"/stores/{store_id}/records?{'&'.join(f'{name}={value}' for name, value in SAFE_FILTER.items())}",
        since,
    )


def _derived(name: str, store_id: str, records: int, detail: str, since: str | None) -> Attention:
    return Attention(
        "warn",
        "octagon-alert",
        f"{formats.plural(records, 'record')} on {name} may be wrong (derived)",
        detail,
        "See them and plan",
        f"/stores/{store_id}/records?class=unverified&reason=derived",
        since,
    )


def _dead(name: str, store_id: str, records: int, detail: str, since: str | None) -> Attention:
    return Attention(
        "warn",
        "file-warning",
        f"{formats.plural(records, 'damaged record')} on {name}",
        detail,
        "See them",
        f"/stores/{store_id}/records?class=corrupt",
        since,
    )


def _store_troubles(card: StoreCard) -> Iterable[_Item]:
    store, summary = card.store, card.summary
    name = formats.printable(store.name)
    if store.usable is False:
        found = Attention(
            "bad",
            "hard-drive",
            f"The directory of {name} cannot be used",
            store.usable_reason or "it cannot be read",
            "Look at the store",
            f"/stores/{store.id}",
            store.checked_at,
        )
        yield _Item(found, _topics("store", store.id, "store_unusable"))
    if summary.state == "never_scanned":
        if store.usable is not False:
            yield _Item(
                Attention(
                    "info",
                    "radar",
                    f"{name} has not been scanned yet",
                    "What is on this disk, and whether it is still right, is known after the first scan.",
                    "Scan it",
                    f"/stores/{store.id}",
                )
            )
        return
    derived = summary.by_reason.get("derived")
    wrong = [summary.by_reason[reason] for reason in WRONG_REASONS if reason in summary.by_reason]
    records = sum(count.records for count in wrong)
    if records:
        detail = (
            f"{formats.disk(sum(count.bytes for count in wrong))} written under another layout of a model that is "
            "served; a hit on one of them is answered with HTTP 200 and the wrong tokens."
        )
        if line := incompatible_line(summary):
            detail += f" {line}."
        if derived is not None and derived.records:
            count = formats.plural(derived.records, "more record")
            detail += f" {count} may be wrong, too: computed behind wrong ones (derived). Plan them together."
        found = _wrong(name, store.id, records, detail, summary.scanned_at)
        yield _Item(found, _topics("store", store.id, "wrong_records"), records)
    elif derived is not None and derived.records:
        detail = (
            f"{formats.disk(derived.bytes)} that engines may have computed behind wrong records, before all caches "
            "were clean of those; they are served. Keep it safe takes those that nobody has put back; this list's plan "
            "takes all."
        )
        found = _derived(name, store.id, derived.records, detail, summary.scanned_at)
        yield _Item(found, _topics("store", store.id, "derived_records"), derived.records)
    corrupt = summary.by_class.get("corrupt")
    if corrupt is not None and corrupt.records:
        detail = "Hits end at these records (the class corrupt), and their keys stay dead until the files are removed."
        found = _dead(name, store.id, corrupt.records, detail, summary.scanned_at)
        yield _Item(found, _topics("store", store.id, "dead_records"), corrupt.records)
    hours = card.outlook.hours if card.outlook.steady else None  # what jumps from scan to scan is no forecast
    if hours is not None and hours <= FULL_SOON_HOURS:
        found = Attention(
            "bad" if hours < 24 else "warn",
            "hard-drive",
            f"{name} is full in {formats.duration(hours * 3600)}",
            f"It grows by {formats.disk(summary.growth_bytes_per_hour)} an hour and does not evict; "
            "stores then fail without any metric moving.",
            "Make room",
            "/cleanup",
            summary.scanned_at,
        )
        yield _Item(found, _topics("store", store.id, "store_filling"))


def _left_on_disk(summary: SummaryView) -> int | None:
    """Wrong records and those derived from them that still lie there; None where the store was never scanned."""
    if summary.state != "scanned":
        return None
    codes = (*WRONG_REASONS, "derived")
    return sum(summary.by_reason[code].records for code in codes if code in summary.by_reason)


def _episode(episode: EpisodeView, left: int | None) -> Attention:
    """`left`: wrong and derived records on the disk. It is called clean only when that is known."""
    waits = "; ".join(episode.waiting_for) or "the next run"
    if episode.running_run_id is not None:
        detail = f"Cleanup run #{episode.running_run_id} is at it; what is left is known when it has ended."
    elif left is None:
        detail = f"Whether the disk is clean is not known: the store is not scanned. Still waiting for: {waits}."
    elif left:
        detail = (
            f"{formats.plural(left, 'wrong or derived record')} still on the disk, too. Still waiting for: {waits}."
        )
    else:
        detail = f"The disk is clean. Still waiting for: {waits}."
    run = episode.running_run_id or (episode.run_ids[-1] if episode.run_ids else None)
    return Attention(
        "bad",
        "cpu",
        f"Caches of {formats.printable(episode.model_name)} may still hold wrong data",
        detail,
        "See the run" if run else "Cleanup",
        f"/cleanup/runs/{run}" if run else "/cleanup",
        episode.opened_at,
    )


def _server_troubles(server: ServerView) -> Iterable[_Item]:
    name = formats.printable(server.name)
    if server.health.state in ("unhealthy", "unreachable", "degraded"):
        found = Attention(
            "warn" if server.health.state == "degraded" else "bad",
            "server",
            f"Cache server {name} is {server.health.state}",
            formats.printable(server.health.reason),
            "Look at it",
            f"/servers/{server.id}",
            server.health.since,
        )
        yield _Item(found, _topics("server", server.id, *(f"server_{state}" for state in _STATES)))
    for warning in server.warnings:
        yield _Item(
            Attention("warn", "server", name, formats.printable(warning), "Look at it", f"/servers/{server.id}")
        )


def _engine_troubles(engine: EngineView) -> Iterable[_Item]:
    name = formats.printable(engine.name)
    if engine.health.state in ("unhealthy", "unreachable", "degraded"):
        found = Attention(
            "warn" if engine.health.state == "degraded" else "bad",
            "cpu",
            f"Engine {name} is {engine.health.state}",
            formats.printable(engine.health.reason),
            "Look at it",
            f"/engines/{engine.id}",
            engine.health.since,
        )
        yield _Item(found, _topics("engine", engine.id, *(f"engine_{state}" for state in _STATES)))
    for warning in engine.warnings:
        yield _Item(Attention("warn", "cpu", name, formats.printable(warning), "Look at it", f"/engines/{engine.id}"))


def _verdict_trouble(verdict: EngineVerdict) -> _Item | None:
    """Correctness is what the last run says that passed or failed; runs that proved nothing take nothing back."""
    latest, name = verdict.latest, formats.printable(verdict.engine.name)
    run, since_then = latest.last_verdict, proved_nothing(latest)
    topics = _topics("engine", verdict.engine.id, "acceptance_failed")
    if run is not None and run.verdict == "fail":
        why = (
            run.headline or "; ".join(run.reasons) or "What came from the cache differs from what the engine computes."
        )
        return _Item(
            Attention(
                "bad",
                "badge-check",
                f"{name} failed its acceptance test",
                f"{why} {since_then}".strip(),
                "Read why",
                f"/acceptance/runs/{run.id}",
                run.finished_at,
            ),
            topics,
        )
    if latest.state == "stale":
        return _Item(
            Attention(
                "warn",
                "badge-check",
                f"{name} changed since its last pass" if latest.changed else f"{name} has no pass that still counts",
                f"{latest.reason} {since_then}".strip(),
                "Test it again",
                f"/acceptance/new?engine_id={verdict.engine.id}",
            )
        )
    if latest.without_verdict and latest.last_run is not None:
        return _Item(
            Attention(
                "warn" if run is None else "info",
                "badge-check",
                f"The last acceptance test of {name} proved nothing",
                latest.last_run.headline or "; ".join(latest.last_run.reasons) or since_then,
                "Read why",
                f"/acceptance/runs/{latest.last_run.id}",
                latest.last_run.finished_at,
            )
        )
    return None


def proved_nothing(latest: LatestView) -> str:
    """``Since then 2 runs proved nothing.``, or nothing."""
    if not latest.without_verdict:
        return ""
    runs = formats.plural(latest.without_verdict, "run")
    return f"Since then {runs} proved nothing." if latest.last_verdict else f"{runs} proved nothing."


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
