"""Records that no policy takes: those somebody put back (RULES.md R5), and canaries that acceptance reads (E7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import delete, select

from app.audit.service import AuditService
from app.clock import Clock, iso
from app.database import Database
from app.errors import Conflict
from app.paging import decode_cursor, encode_cursor
from app.records.facts import FileFact, display_name
from app.records.schemas import HoldView
from app.records.tables import RecordHold
from app.shapes import Page

#: How the reason of a canary's hold begins: only deleting the canary ends it.
CANARY_REASON = "canary"
_BATCH = 500


class Holds:
    """Rows of `record_hold`."""

    def __init__(self, *, db: Database, clock: Clock, audit: AuditService) -> None:
        self._db = db
        self._clock = clock
        self._audit = audit

    def names(self, store_id: int) -> frozenset[bytes]:
        """Names that no schedule takes."""
        with self._db.read() as session:
            return frozenset(session.scalars(select(RecordHold.name).where(RecordHold.store_id == store_id)))

    def page(self, store_id: int, *, page_size: int, page_token: str | None) -> Page[HoldView]:
        """By name. Raises BadToken."""
        list_name = f"holds|{store_id}"
        query = select(RecordHold).where(RecordHold.store_id == store_id).order_by(RecordHold.name)
        if page_token:
            after = str(decode_cursor(list_name, page_token)[0]).encode("utf-8", "surrogateescape")
            query = query.where(RecordHold.name > after)
        with self._db.read() as session:
            rows = list(session.scalars(query.limit(page_size + 1)))
        shown = rows[:page_size]
        more = len(rows) > page_size
        last = shown[-1].name.decode("utf-8", "surrogateescape") if more else ""
        return Page(
            items=[_view(row) for row in shown], next_page_token=encode_cursor(list_name, [last]) if more else None
        )

    def hold(self, store_id: int, facts: Sequence[FileFact], *, reason: str, actor: str) -> None:
        """Holds files that are back."""
        now = self._clock()
        with self._db.write() as session:
            for fact in facts:
                session.merge(RecordHold(store_id=store_id, name=fact.name, reason=reason, actor=actor, at=now))

    def release(self, store_id: int, names: Iterable[bytes] | None, *, actor: str) -> int:
        """Ends holds (without `names` all of a store but canaries'); returns how many.

        Raises Conflict for a canary's record; nothing is released then.
        """
        released = 0
        chosen = None if names is None else list(names)
        mine = RecordHold.store_id == store_id
        canary = RecordHold.reason.like(f"{CANARY_REASON}%")
        with self._db.write() as session:
            if chosen is None:
                released = int(session.execute(delete(RecordHold).where(mine, ~canary)).rowcount)  # type: ignore[attr-defined]
            else:
                for at in range(0, len(chosen), _BATCH):
                    part = RecordHold.name.in_(chosen[at : at + _BATCH])
                    kept = session.scalars(select(RecordHold).where(mine, part, canary).limit(1)).first()
                    if kept is not None:
                        raise Conflict(f"{display_name(kept.name)} is held by {kept.reason}; delete the canary instead")
                    released += int(session.execute(delete(RecordHold).where(mine, part)).rowcount)  # type: ignore[attr-defined]
            self._audit.record(
                session,
                actor=actor,
                action="hold.release",
                target_kind="store",
                target_id=store_id,
                detail={"records": released, "all": chosen is None},
            )
        return released


def of_canary(reason: str) -> bool:
    """Whether a hold is a canary's."""
    return reason.lower().startswith(CANARY_REASON)


def _view(row: RecordHold) -> HoldView:
    return HoldView(
        name=display_name(row.name),
        reason=row.reason,
        canary=of_canary(row.reason),
        held_by=row.actor,
        held_at=iso(row.at) or "",
    )
