"""What the parts of CleanupService share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import Session

from app.audit.service import AuditService
from app.cleanup.chunks import Chunk, chunks_holding, read_chunk, read_chunks
from app.cleanup.plan import counted_under
from app.cleanup.ports import Inventory
from app.cleanup.schemas import ItemView
from app.cleanup.selection import item_seq
from app.cleanup.views import item_view
from app.clock import Clock
from app.database import Database
from app.errors import NotFound
from app.fleet.service import FleetService
from app.fleet.tables import Store
from app.paging import decode_cursor, encode_cursor
from app.scheduling.runner import WorkRunner
from app.scheduling.schemas import Page
from app.scheduling.service import SchedulingService

Row = TypeVar("Row")
View = TypeVar("View")


class ServiceBase:
    """Dependencies and small helpers."""

    _db: Database
    _clock: Clock
    _runner: WorkRunner
    _audit: AuditService
    _fleet: FleetService
    _scheduling: SchedulingService
    _inventory: Inventory

    def _store_name(self, session: Session, store_id: int) -> str:
        store = session.get(Store, store_id)
        return "" if store is None else store.name

    def _require_store(self, session: Session, store_id: int) -> Store:
        store = session.get(Store, store_id)
        if store is None:
            raise NotFound.of("store", store_id)
        return store

    def _page(
        self,
        session: Session,
        query: Select[Any],
        key: Any,
        *,
        list_name: str,
        page_size: int,
        page_token: str | None,
        newest_first: bool,
        view: Callable[[Any], View],
        key_of: Callable[[Any], int] = lambda row: int(row.id),
    ) -> Page[View]:
        """One page of rows with an integer key, oldest or newest first."""
        if page_token:
            after = decode_cursor(list_name, page_token)[0]
            query = query.where(key < after if newest_first else key > after)
        rows: Sequence[Any] = session.scalars(
            query.order_by(key.desc() if newest_first else key).limit(page_size + 1)
        ).all()
        shown = rows[:page_size]
        token = encode_cursor(list_name, [key_of(shown[-1])]) if len(rows) > page_size else None
        return Page(items=[view(row) for row in shown], next_page_token=token)

    def _item_page(
        self,
        plan_id: int | None,
        *,
        list_name: str,
        page_size: int,
        page_token: str | None,
        state: str | None = None,
        reason: str | None = None,
        errno: int | None = None,
        planned_only: bool = False,
    ) -> Page[ItemView]:
        """One page of a plan's records, in their order. Raises BadToken."""
        after = int(decode_cursor(list_name, page_token)[0] or 0) if page_token else 0
        items = self._items(plan_id, after, state=state, reason=reason, errno=errno, planned_only=planned_only)
        found = list(islice(items, page_size + 1))
        if len(found) <= page_size:
            return Page(items=found, next_page_token=None)
        return Page(items=found[:-1], next_page_token=encode_cursor(list_name, [item_seq(found[-2].id)]))

    def _items(
        self,
        plan_id: int | None,
        after: int,
        *,
        state: str | None = None,
        reason: str | None = None,
        errno: int | None = None,
        planned_only: bool = False,
    ) -> Iterator[ItemView]:
        """The records of a plan after a number that all conditions leave, in their order."""
        for chunk in self._chunks(plan_id, after, state, reason):
            if planned_only and chunk.round != 1:
                return
            for row in chunk.rows if state is None else chunk.in_state(state):
                kept = reason is None or counted_under(reason, row.why, row.cls, row.reason)
                if row.seq > after and kept and (errno is None or chunk.errno_of(row.seq) == errno):
                    yield item_view(chunk, row)

    def _chunks(self, plan_id: int | None, after: int, state: str | None, reason: str | None) -> Iterator[Chunk]:
        if plan_id is None:
            return
        if state is None and reason is None:
            yield from read_chunks(self._db, plan_id, from_seq=after + 1)
            return
        firsts = chunks_holding(self._db, plan_id, state=state, reason=reason)
        # The chunk that holds `after` itself may hold more after it.
        start = max((n for n, first in enumerate(firsts) if first <= after), default=0)
        for first_seq in firsts[start:]:
            chunk = read_chunk(self._db, plan_id, first_seq)
            if chunk is not None:
                yield chunk
