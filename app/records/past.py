"""What is known of one record's past, oldest first: from its times, the scans, the layouts since, and what people said.

The inventory keeps a record as it is now; its past is put together from what else the panel keeps. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.clock import iso, parse_iso
from app.records.schemas import EpochView, PastView, RecordView
from app.records.tables import RecordHold
from app.records.timeline import NS

#: Times that are nearer to each other are one event: a write sets all three times of a file.
_ONE_EVENT = 2.0
_MOVES = {"relatime": "at most once a day: it may have been read since", "strict": "every read moves it"}


def past_of(
    view: RecordView,
    *,
    mtime_ns: int,
    ctime_ns: int,
    atime_ns: int,
    scans: Sequence[tuple[int, float]],
    epochs: Sequence[EpochView],
    hold: RecordHold | None,
    access_times: str,
) -> list[PastView]:
    """`scans`: (id, end) of the succeeded ones that are kept, oldest first."""
    written, changed, read = mtime_ns / NS, ctime_ns / NS, atime_ns / NS
    mine = [epoch for epoch in epochs if epoch.model_name == view.model_name]
    own = next((epoch for epoch in mine if epoch.id == view.epoch_id), None)
    found: list[tuple[float, str, str, str, str | None]] = [
        (written, "written", _layout(own), "its time of writing", own.id if own else None)
    ]
    if changed > written + _ONE_EVENT:
        found.append(
            (
                changed,
                "moved or changed",
                "put back, renamed, linked or given other rights; not written",
                "its inode",
                None,
            )
        )
    seen = next(((ident, at) for ident, at in scans if at >= max(written, changed)), None)
    if seen is not None:
        found.append((seen[1], "found", f"the first scan after that, scan {seen[0]}", "the scans that are kept", None))
    if read > written + _ONE_EVENT and access_times != "noatime":
        how = _MOVES.get(access_times, "whether every read moves it is not known here")
        found.append((read, "read", f"the last access time on the disk ({how})", f"the mount ({access_times})", None))
    for epoch in mine:
        at = _seconds(epoch.possible_from if epoch.kind == "observed" else epoch.created_at)
        if at is None or epoch.id == view.epoch_id or at < written:
            continue
        if epoch.kind == "observed":
            if epoch.world_size == view.world_size:
                found.append((at, "another layout began", _changes(epoch), "the servers' polls", epoch.id))
        else:
            word = {"declare": "a generation was declared", "adopt": "what was there before was adopted"}[epoch.kind]
            found.append((at, word, epoch.reason or "no reason given", epoch.actor or "unknown", epoch.id))
    if hold is not None:
        found.append((hold.at, "held", hold.reason, hold.actor, None))
    return [
        PastView(
            at=iso(at) or "",
            what=what,
            detail=detail,
            source=source,
            ref_kind=None if ref is None else "epoch",
            ref_id=ref,
        )
        for at, what, detail, source, ref in sorted(found, key=lambda event: event[0])
    ]


def _layout(epoch: EpochView | None) -> str:
    if epoch is None or not epoch.layout:
        return "which layout wrote it is not known"
    return f"by {epoch.layout.get('dtype') or 'dtype unknown'}, chunk {epoch.layout.get('chunk_size') or 'unknown'}"


def _changes(epoch: EpochView) -> str:
    parts = [f"{c['field']} {_told(c['old'])} → {_told(c['new'])} ({c['meaning']})" for c in epoch.changes]
    return "; ".join(parts) or "with no field that differs from the one before"


def _told(value: object) -> object:
    return "unknown" if value is None else value


def _seconds(at: str | None) -> float | None:
    return None if at is None else parse_iso(at)
