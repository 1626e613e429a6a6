"""What is wrong with the layouts of a store right now, in sentences (RULES.md C2, C5). Pure."""

from __future__ import annotations

from app.records.history import FOREVER
from app.records.polls import Owner
from app.records.timeline import NS, ModelTimeline, StoreTimeline

# How long a server keeps the context of an engine that is gone, where it does not say.
_REAP_SECONDS = 120.0
_LATELY_SECONDS = 300.0


def layout_alarms(timeline: StoreTimeline, *, now: float, poll_seconds: float) -> tuple[str, ...]:
    """Mixed layouts and split engines, one sentence each. Times are epoch seconds of the panel."""
    found: list[str] = []
    for owner, line in sorted(timeline.models.items()):
        name = line.layouts[0].model_name if line.layouts else owner[0]
        who = f"{name} (world size {owner[1]})"
        if _split_lately(line, now, poll_seconds):
            found.append(
                f"critical: the workers of one engine of {who} use two servers on this directory; they write different "
                "bytes under one name. Give each engine's workers one server."
            )
        mixed = _mixed(timeline, owner, line, now, poll_seconds)
        if mixed:
            found.append(
                f"mixed layouts: {mixed} different KV layouts of {who} write into this directory under the same names; "
                "give each layout a directory of its own."
            )
    return tuple(found)


def _mixed(timeline: StoreTimeline, owner: Owner, line: ModelTimeline, now: float, poll_seconds: float) -> int:
    """How many layouts are live at once, for longer than an engine's restart explains; else 0."""
    if not line.listed_now or len(line.live) < 2:
        return 0
    since: dict[int, float] = {}
    timeouts: list[float] = []
    for history in timeline.servers.values():
        latest = history.latest
        if latest is None:
            continue
        timeouts.append(_REAP_SECONDS if latest.reap_timeout is None else latest.reap_timeout)
        for presence in history.presences:
            if presence.owner == owner and presence.last_listed == latest.last_at:
                number = line.layouts.index(presence.layout)
                since[number] = min(since.get(number, FOREVER), presence.first_listed)
    starts = sorted(since[number] for number in line.live if number in since)
    # Old and new stand side by side until the server reaps the old one: only after that are they really mixed.
    return len(starts) if len(starts) > 1 and now - starts[1] > max(timeouts) + 2 * poll_seconds else 0


def _split_lately(line: ModelTimeline, now: float, poll_seconds: float) -> bool:
    """Whether workers were split for longer than an engine takes to start, and until just now."""
    ends = [*line.starts[1:], round(now * NS)]
    return any(
        segment.split
        and end >= (now - _LATELY_SECONDS) * NS
        and end - segment.start > (_REAP_SECONDS + 2 * poll_seconds) * NS
        for segment, end in zip(line.segments, ends, strict=True)
    )
