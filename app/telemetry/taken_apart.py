"""Snapshots as live values, taken apart once a poll: pages, lists and the panel's own metrics ask for the same ones."""

from __future__ import annotations

from collections.abc import Callable, Collection
from threading import Lock
from typing import Generic, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.telemetry.live import snapshots
from app.telemetry.tables import Snapshot

Live = TypeVar("Live")
_CHUNK = 400


class TakenApart(Generic[Live]):
    """Of one kind of target. Holds one value a target, of its last poll; what is handed out must not be changed."""

    def __init__(self, kind: str, take: Callable[[Snapshot], Live]) -> None:
        self._kind = kind
        self._take = take
        self._lock = Lock()
        self._known: dict[int, tuple[float, Live]] = {}

    def of(self, session: Session, ids: Collection[int]) -> dict[int, Live]:
        """The live values of these targets, by id; a target that was never polled is missing."""
        polled = self._polled_at(session, list(ids))
        with self._lock:
            known = {ident: self._known[ident] for ident in polled if ident in self._known}
        stale = [ident for ident, at in polled.items() if ident not in known or known[ident][0] != at]
        fresh = {
            ident: (row.polled_at, self._take(row)) for ident, row in snapshots(session, self._kind, stale).items()
        }
        with self._lock:
            self._known.update(fresh)
            for ident in ids:  # a target that is gone, or has moved, has no snapshot
                if ident not in polled:
                    self._known.pop(ident, None)
        known.update(fresh)
        return {ident: known[ident][1] for ident in polled if ident in known}

    def _polled_at(self, session: Session, ids: list[int]) -> dict[int, float]:
        found: dict[int, float] = {}
        for start in range(0, len(ids), _CHUNK):
            query = select(Snapshot.target_id, Snapshot.polled_at).where(
                Snapshot.target_kind == self._kind, Snapshot.target_id.in_(ids[start : start + _CHUNK])
            )
            found.update((ident, at) for ident, at in session.execute(query))
        return found
