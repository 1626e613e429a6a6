"""What the overview says: the token picture, the tightest tiers, what happened. Pure functions of views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from app.acceptance.canary_schemas import CanaryStanding
from app.acceptance.schemas import AcceptanceRunView, LatestView
from app.alerts.schemas import AlertView
from app.cleanup.schemas import RunView
from app.clock import parse_iso
from app.disk_room import room, together
from app.fleet.schemas import EngineView, ServerView
from app.telemetry.schemas import HealthChangeView, TokenFlowView
from app.web import formats, svg, words
from app.web.contexts import Event, FlowPicture, Hop, Lane, Pin, StoreCard, Trend

Target = TypeVar("Target", ServerView, EngineView)
_LEVEL_TIER = {"l0": "l0", "l1": "l1", "l2": "l2", "recomputed": "rc"}


def flow_picture(
    flow: TokenFlowView,
    servers: Sequence[ServerView],
    engines: Sequence[EngineView],
    stores: Sequence[StoreCard],
    hops: tuple[Hop, ...] = (),
) -> FlowPicture:
    """The token picture of one server or of all; each lane also says how full its tier is."""
    levels = {_LEVEL_TIER[level.level]: level for level in flow.levels}
    fills = {"l0": _fill_l0(engines), "l1": _fill_l1(servers), "l2": _fill_l2(stores)}
    lanes = []
    shares: dict[str, float] = {}
    for tier in svg.TIERS:
        level = levels.get(tier)
        share = level.share if level else None
        between = ""
        if share is not None:
            shares[tier] = share
        elif level and level.least_tokens is not None and level.most_tokens is not None and flow.total_tokens:
            least, most = level.least_tokens / flow.total_tokens, level.most_tokens / flow.total_tokens
            between = f"{formats.percent(least, 0).removesuffix(formats.NBSP + '%')}–{formats.percent(most, 0)}"
            shares[tier] = (least + most) / 2  # drawn in the middle of what is possible; the text says the bounds
        fill, mark, text = fills.get(tier, (None, None, "what no tier held"))
        per_second = level.tokens_per_second if level else None
        lanes.append(
            Lane(
                tier=tier,
                note=f"{formats.compact(per_second)} tokens/s" if per_second is not None else "",
                share=share,
                tokens=level.tokens if level else None,
                reason=(level.reason if level else None) or flow.reason or "",
                fill=fill,
                mark=mark,
                fill_text=text,
                between=between,
            )
        )
    return FlowPicture(
        state=flow.state,
        total_tokens=flow.total_tokens,
        # A window that is covered but for a poll or two is called by its whole length.
        seconds=flow.window_seconds
        if flow.covered_seconds is None or flow.covered_seconds > 0.95 * flow.window_seconds
        else flow.covered_seconds,
        reason=flow.reason or "",
        sentence=_sentence(flow, shares),
        shares=shares,
        lanes=tuple(lanes),
        hops=hops,
    )


def _sentence(flow: TokenFlowView, shares: dict[str, float]) -> str:
    if flow.state == "no_traffic":
        return "No prompt tokens in this window."
    if flow.state == "unknown" or flow.total_tokens is None:
        return f"Where prompt tokens came from is not known: {flow.reason or 'nothing has been read yet'}."
    exact = {_LEVEL_TIER[level.level] for level in flow.levels if level.share is not None}
    names = {"l0": "the GPU", "l1": "memory", "l2": "disk", "rc": "computing again"}
    parts = ", ".join(f"{formats.percent(shares[t], 0)} from {names[t]}" for t in svg.TIERS if t in exact)
    if flow.external_tokens and "l2" not in exact:
        both = formats.percent(flow.external_tokens / flow.total_tokens, 0)
        parts += f", {both} from memory or disk (which of the two cannot be told for all)"
    return f"Of {formats.compact(flow.total_tokens)} prompt tokens: {parts}."


def _fill_l0(engines: Sequence[EngineView]) -> tuple[float | None, float | None, str]:
    known = [e.l0 for e in engines if e.l0.usage_ratio is not None]
    if not known:
        return None, None, "use unknown" if engines else "no engine registered"
    capacity = [v.capacity_tokens for v in known]
    total = sum(c or 0 for c in capacity)
    if total and None not in capacity:
        used = sum((v.usage_ratio or 0) * (v.capacity_tokens or 0) for v in known)
        return used / total, None, f"{formats.percent(used / total, 0)} of {formats.compact(total)} tokens in use"
    mean = sum(v.usage_ratio or 0 for v in known) / len(known)
    return mean, None, f"{formats.percent(mean, 0)} in use"


def _fill_l1(servers: Sequence[ServerView]) -> tuple[float | None, float | None, str]:
    known = [s.l1 for s in servers if s.l1.used_bytes is not None and s.l1.capacity_bytes]
    if not known:
        return None, None, "use unknown" if servers else "no server registered"
    used = sum(v.used_bytes or 0 for v in known)
    capacity = sum(v.capacity_bytes or 0 for v in known)
    marks = {v.trigger_watermark for v in known}
    mark = marks.pop() if len(marks) == 1 else None
    suffix = f", evicts at {formats.percent(mark, 0)}" if mark is not None else ""
    return used / capacity, mark, f"{_of(used, capacity, formats.memory)}{suffix}"


def _fill_l2(stores: Sequence[StoreCard]) -> tuple[float | None, float | None, str]:
    # Stores on one file system share its room: it is counted once.
    known = {
        f.device if f.device is not None else f"store {c.store.id}": found
        for c in stores
        if (found := room(f := c.store.filesystem)) is not None
    }
    whole = together(known.values())
    if whole is None:
        return None, None, "use unknown" if stores else "no store registered"
    return whole.ratio, None, _of(whole.used, whole.whole, formats.disk)


def _of(used: float, whole: float, unit: object) -> str:
    printer = formats.memory if unit is formats.memory else formats.disk
    a, b = printer(used), printer(whole)
    number, _, name = a.rpartition(formats.NBSP)
    same = name == b.rpartition(formats.NBSP)[2]
    return f"{number if same else a} of {b}"


def fullest_l1(servers: Sequence[ServerView]) -> ServerView | None:
    """The server whose L1 is nearest to its watermark; any server when none is known."""
    known = [s for s in servers if s.l1.usage_ratio is not None]
    return (
        max(known, key=lambda s: (s.l1.usage_ratio or 0) / (s.l1.trigger_watermark or 1))
        if known
        else next(iter(servers), None)
    )


def tightest_store(stores: Sequence[StoreCard]) -> StoreCard | None:
    """The store that is full first; else the fullest one; any when nothing is known."""

    def pressure(card: StoreCard) -> tuple[float, float]:
        hours = card.summary.full_in_hours
        found = room(card.store.filesystem)
        used = found.ratio if found is not None else None
        return (hours if hours is not None else 1e9, 1 - used if used is not None else 2.0)

    return min(stores, key=pressure, default=None)


def most_recomputed(engines: Sequence[EngineView]) -> str:
    """The id of the engine that computes most of its prompt tokens itself; "" where none stands out by 5 points."""
    known = sorted(
        ((share, e.id) for e in engines if (share := e.prefix_cache.recomputed_share) is not None), reverse=True
    )
    if len(known) < 2 or known[0][0] - known[1][0] < 0.05:
        return ""
    return known[0][1]


# ---- groups ----


def group_keys(targets: Sequence[ServerView | EngineView]) -> tuple[str, ...]:
    """Labels that tell targets apart: one that all have with one value groups nothing."""
    values: dict[str, set[str | None]] = {}
    for key in {key for target in targets for key in target.labels}:
        values[key] = {target.labels.get(key) for target in targets}
    return tuple(sorted(key for key, found in values.items() if len(found) > 1))


def groups(targets: Sequence[Target], key: str) -> tuple[tuple[str, Sequence[Target]], ...]:
    """Targets by their value of one label, in its order; those without it come last. No key: no groups."""
    if not key:
        return ()
    found: dict[str | None, list[Target]] = {}
    for target in targets:
        found.setdefault(target.labels.get(key), []).append(target)
    named: list[tuple[str, Sequence[Target]]] = [
        (f"{key}={value}", found[value]) for value in sorted(v for v in found if v is not None)
    ]
    if None in found:
        named.append((f"without {key}", found[None]))
    return tuple(named)


def group_line(members: Sequence[ServerView | EngineView], what: str) -> str:
    """How many there are, and how many of them are not well: ``3 servers, 1 unreachable``."""
    states: dict[str, int] = {}
    for member in members:
        states[member.health.state] = states.get(member.health.state, 0) + 1
    wrong = [f"{count} {state}" for state, count in sorted(states.items()) if state != "healthy"]
    return ", ".join([formats.plural(len(members), what), *(wrong or ["all healthy"])])


# ---- what happened ----


def health_event(change: HealthChangeView) -> Event:
    """One change of a health state as an event."""
    name = formats.printable(change.target_name or f"{change.target_kind} {change.target_id}")
    return Event(
        change.at,
        "health",
        words.word(words.HEALTH, change.new_state).kind,
        f"{name} {'is' if change.old_state is None else 'became'} {change.new_state}",
        formats.printable(change.reason),
        f"/{change.target_kind}s/{change.target_id}",
    )


def cleanup_event(run: RunView) -> Event:
    """One cleanup run as an event, at its end (or its start while it runs)."""
    verdict = words.word(words.VERDICT, run.verdict) if run.verdict else words.word(words.WORK, run.state)
    removed = f"{formats.plural(run.removed.records, 'record')}, {formats.disk(run.removed.bytes)}"
    return Event(
        run.finished_at or run.started_at or run.created_at,
        "cleanup",
        verdict.kind,
        f"Cleanup of {formats.printable(run.store_name)}: {verdict.text}",
        f"{formats.printable(words.run_name(run.policy_name, run.trigger))} · removed {removed}",
        f"/cleanup/runs/{run.id}",
    )


def acceptance_event(run: AcceptanceRunView) -> Event:
    """One acceptance run as an event."""
    verdict = words.word(words.VERDICT, run.verdict) if run.verdict else words.word(words.WORK, run.state)
    return Event(
        run.finished_at or run.started_at or run.created_at,
        "acceptance",
        verdict.kind,
        f"Acceptance of {formats.printable(run.engine_name)}: {verdict.text}",
        formats.printable(run.headline or ""),
        f"/acceptance/runs/{run.id}",
    )


def alarm_events(alarm: AlertView) -> list[Event]:
    """When an alarm fired and when it was over. One that another explains is told by that one."""
    if alarm.fired_at is None or alarm.explained_by is not None:
        return []
    title = f"{formats.printable(alarm.target_name)}: {alarm.title}" if alarm.target_name else alarm.title
    path, kind = f"/alarms/{alarm.id}", words.word(words.ALARM, alarm.severity).kind
    events = [Event(alarm.fired_at, "alarm", kind, title, formats.printable(alarm.sentence), path)]
    if alarm.resolved_at is not None:
        events.append(Event(alarm.resolved_at, "alarm", "ok", f"{title}: over", "", path))
    return events


def restart_events(servers: Sequence[ServerView]) -> list[Event]:
    """The last restart of each server that the panel saw."""
    return [
        Event(s.restarted_at, "restart", "info", f"{formats.printable(s.name)} restarted", "", f"/servers/{s.id}")
        for s in servers
        if s.restarted_at
    ]


def layout_events(servers: Sequence[ServerView]) -> list[Event]:
    """When each layout was first seen."""
    return [
        Event(
            layout.first_seen,
            "layout",
            "info",
            f"{formats.printable(s.name)} serves {formats.printable(layout.model_name)}",
            f"{layout.dtype or 'dtype unknown'} · chunk {layout.chunk_size or 'unknown'} · "
            f"fingerprint {layout.fingerprint[:8]}",
            f"/servers/{s.id}",
        )
        for s in servers
        for layout in s.layouts
        if layout.first_seen
    ]


def newest(events: Iterable[Event], limit: int) -> tuple[Event, ...]:
    """The newest events first."""
    return tuple(sorted(events, key=lambda e: parse_iso(e.at), reverse=True)[:limit])


def trend(
    points: Sequence[float | None],
    seconds: float,
    events: Sequence[Event] = (),
    now: float = 0.0,
    layers: Sequence[tuple[str, Sequence[float | None]]] = (),
) -> Trend:
    """A sparkline with the events of its span as pins; `layers` (tier, points) are drawn on top of each other."""
    start = now - seconds
    pins = [
        Pin(svg.position(at, start, now), f"{formats.clock_time(e.at)} {e.text}", e.kind, e.what)
        for e in events
        if start <= (at := parse_iso(e.at)) <= now
    ]
    return Trend(tuple(points), seconds, gathered(pins), tuple((key, tuple(values)) for key, values in layers))


#: Pins closer than this part of the line (percent) would cover each other.
_NEAR = 4.5
_WORST = ("bad", "warn", "info", "ok", "none")


def gathered(pins: Iterable[Pin]) -> tuple[Pin, ...]:
    """Pins from left to right, those too close to be told apart as one that says them all and looks like the worst."""
    groups: list[list[Pin]] = []
    for pin in sorted(pins, key=lambda p: p.x):
        if groups and pin.x - groups[-1][0].x < _NEAR:
            groups[-1].append(pin)
        else:
            groups.append([pin])
    return tuple(_one_pin(group) for group in groups)


def _one_pin(group: Sequence[Pin]) -> Pin:
    worst = min(group, key=lambda p: _WORST.index(p.kind))
    middle = round((group[0].x + group[-1].x) / 2, 3)
    return Pin(middle, "\n".join(p.text for p in group), worst.kind, worst.what, sum(p.events for p in group))


def run_line(run: AcceptanceRunView) -> str:
    """What a run showed in one line: how much came back, from where, and how much faster."""
    external = [a for a in run.arms if a.name.startswith("external") and a.external_share is not None]
    if not external:
        return f"{formats.plural(len(run.arms), 'arm')}, {run.profile}" if run.arms else f"{run.profile} profile"
    deepest = external[-1]
    tier = "disk" if deepest.name == "external_l2" else "memory"
    text = f"{formats.percent(deepest.external_share, 0)} back from {tier}"
    if deepest.speedup is not None and deepest.speedup.median is not None:
        text += f", first token {formats.significant(deepest.speedup.median)}× as fast as cold"
    return text


def canary_line(standing: CanaryStanding) -> tuple[words.Word, str]:
    """How an engine's canaries stand, the worst first: its word, and a line."""
    many = formats.plural(standing.kept, "canary", "canaries")
    bad = {name: n for name, n in standing.outcomes.items() if name in ("wrong", "lost", "drift")}
    if bad:
        told = ", ".join(f"{n} {name}" for name, n in sorted(bad.items()))
        return words.Word("bad", "octagon-alert", "canaries"), f"{told} of {many}"
    unread = standing.kept - standing.outcomes.get("ok", 0)
    if unread:
        return words.Word("none", "circle-dashed", "canaries"), f"{unread} of {many} not read back yet"
    return words.Word("ok", "circle-check", "canaries"), f"{many} came back right"


def stale_word(latest: LatestView) -> words.Word:
    """How an engine's acceptance stands, in one word with its colour: by the last run that passed or failed."""
    run = latest.last_run
    if run is not None and run.state in ("queued", "running"):
        return words.word(words.WORK, run.state)
    run = latest.last_verdict or run
    if run is None:
        return words.Word("none", "circle-dashed", "never tested", "No acceptance run yet.")
    base = words.word(words.VERDICT, run.verdict) if run.verdict else words.word(words.WORK, run.state)
    if latest.state == "stale" and base.kind == "ok":
        return words.Word("warn", "history", "stale", latest.reason)
    return base
