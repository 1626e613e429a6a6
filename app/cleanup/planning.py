"""Making a plan: the store's facts are gathered, the pure planner streams, records are frozen in chunks.

Records are read and chunks written in turns; no session is open across them longer than one batch, and memory does
not grow with the number of records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Table, delete, insert, select, update

from app.cleanup.advice import check_use_is_visible, in_the_way, warnings_for
from app.cleanup.chunks import CHUNK, ChunkWriter
from app.cleanup.disk import store_root
from app.cleanup.episodes import Episodes
from app.cleanup.goals import Need
from app.cleanup.plan import Planner, StoreFacts, Summary
from app.cleanup.policy import PolicySpec
from app.cleanup.policy_parsing import parse_filter_spec, parse_spec
from app.cleanup.ports import Inventory
from app.cleanup.quarantine import quarantined_bytes
from app.cleanup.tables import CleanupRun, Plan, PlanChunk, PlanNames
from app.clock import Clock
from app.database import Database
from app.errors import NotFound
from app.fleet.service import FleetService
from app.scheduling.work import ACTIVE_STATES

#: A plan can be run for this long.
EXPIRES_SECONDS = 3600.0
_CHUNKS_AT_ONCE = 8
#: A dry run looks at the disk itself when that costs a moment only.
SMALL_STORE_RECORDS = 20_000
FRESH_SECONDS = 60.0
_CHUNK = cast(Table, PlanChunk.__table__)


@dataclass(frozen=True)
class Serving:
    """What telemetry knows of the servers of a store. `now` is None when none of them could be read."""

    now: frozenset[str] | None
    last: Mapping[str, float]
    adapter_evicts: bool | None
    engines: tuple[tuple[str, bool | None], ...] = ()  # (name, whether its GPU cache can be reset)


class PlanMaker:
    """Fills plan rows. `serving(store_id)` asks telemetry."""

    def __init__(
        self,
        *,
        db: Database,
        clock: Clock,
        inventory: Inventory,
        fleet: FleetService,
        serving: Callable[[int], Serving],
        chunk: int = CHUNK,
    ) -> None:
        self._chunk = chunk
        self._db = db
        self._clock = clock
        self._inventory = inventory
        self._fleet = fleet
        self._serving = serving

    def make(
        self,
        plan_id: int,
        *,
        check_cancel: Callable[[], None],
        progress: Callable[[int], None],
        always_fresh: bool = False,
    ) -> None:
        """Makes the plan of a row. Raises InvalidInput (`unused` on a noatime mount), StoreError, NotFound."""
        with self._db.read() as session:
            row = session.get(Plan, plan_id)
            if row is None:
                raise NotFound.of("plan", plan_id)
            store_id, spec = row.store_id, spec_of(row.body)
        with self._db.write() as session:
            # A plan that was cut off half way is made again from the start.
            session.execute(delete(PlanChunk).where(PlanChunk.plan_id == plan_id))
            session.execute(delete(PlanNames).where(PlanNames.plan_id == plan_id))
            session.execute(update(Plan).where(Plan.id == plan_id).values(indexed_before=1))
        self._freshen(store_id, check_cancel, always_fresh)
        facts, root_inode = self._facts(store_id)
        check_use_is_visible(spec, facts.atime)
        now = self._clock()
        planner = Planner(spec, facts, now, self._inventory.held(store_id))
        writer = ChunkWriter(plan_id, size=self._chunk)
        written = 0

        def flush(rows: list[dict[str, Any]]) -> None:
            with self._db.write() as session:
                session.execute(insert(_CHUNK), rows)

        pending: list[dict[str, Any]] = []
        for group in planner.groups(lambda selection: self._inventory.select(store_id, selection)):
            pending.extend(writer.add(group))
            written += len(group.rows)
            if len(pending) >= _CHUNKS_AT_ONCE:
                flush(pending)
                pending = []
                check_cancel()
            progress(written)
        pending.extend(writer.rest())
        if pending:
            flush(pending)
        summary = planner.summary()
        with self._db.write() as session:
            session.execute(
                update(Plan)
                .where(Plan.id == plan_id)
                .values(
                    **_values(summary, in_the_way(facts, summary)),
                    warnings=warnings_for(spec, facts, summary, now),
                    expires_at=now + EXPIRES_SECONDS,
                    scanned_at=facts.scanned_at,
                    root_device=facts.device,
                    root_inode=root_inode,
                )
            )

    def _freshen(self, store_id: int, check_cancel: Callable[[], None], always: bool) -> None:
        totals = self._inventory.totals(store_id)
        if totals.scanned_at is not None:
            old = self._clock() - totals.scanned_at > FRESH_SECONDS
            if not old or not (always or totals.records <= SMALL_STORE_RECORDS):
                return
        self._inventory.refresh(store_id, check_cancel)

    def _facts(self, store_id: int) -> tuple[StoreFacts, int]:
        store = self._fleet.store_target(store_id)
        totals = self._inventory.totals(store_id)
        serving = self._serving(store_id)
        with store_root(self._inventory, store) as root:
            try:
                space = root.space()
            except OSError:
                space = None
            facts = StoreFacts(
                records=totals.records,
                bytes=totals.bytes,
                quarantine_bytes=quarantined_bytes(root, known_quarantine(self._db, store_id)),
                fs_total=space.total if space else None,
                fs_used=space.used if space else None,
                fs_free=space.free if space else None,
                block_size=space.block_size if space else 4096,
                atime=root.access_times(),
                scanned_at=totals.scanned_at,
                device=root.device,
                served_now=serving.now,
                last_served=serving.last,
                adapter_evicts=serving.adapter_evicts,
                derived=totals.derived,
                engines=serving.engines,
                open_episodes=frozenset(e.model_name for e in Episodes(self._db, self._clock).open_of(store_id)),
            )
            return facts, root.inode


def known_quarantine(db: Database, store_id: int) -> dict[str, int]:
    """Bytes that wait of each run of this panel, by folder; runs that re-created records came into have no entry.

    Those have a second folder, and how their bytes lie in the two is not kept: they are measured.
    """
    several = select(CleanupRun.id).join(PlanChunk, PlanChunk.plan_id == CleanupRun.plan_id).where(PlanChunk.round > 1)
    query = select(CleanupRun.folder, CleanupRun.waiting_bytes).where(
        CleanupRun.store_id == store_id,
        CleanupRun.state.not_in(ACTIVE_STATES),
        CleanupRun.id.not_in(several),
    )
    with db.read() as session:
        return {str(folder): int(size) for folder, size in session.execute(query)}


def spec_of(body: Mapping[str, Any]) -> PolicySpec:
    """The spec behind a plan's or policy's stored JSON."""
    return parse_filter_spec(body) if "filter" in body else parse_spec(body)


def _values(summary: Summary, obstacles: list[str]) -> dict[str, Any]:
    return {
        "records": summary.records,
        "bytes": summary.bytes,
        "by_reason": summary.by_reason,
        "held_back": summary.held_back,
        "leaves": {
            "records": summary.leaves_records,
            "bytes": summary.leaves_bytes,
            "free_bytes": summary.leaves_free_bytes,
        },
        "recent_use": {
            "last_day": summary.used_last_day,
            "last_week": summary.used_last_week,
            "reason": summary.use_reason,
        },
        "goal": None if summary.need is None else _goal(summary.need, summary.freed_bytes, obstacles),
        "limited": summary.limited,
    }


def _goal(need: Need, freed: int, obstacles: list[str]) -> dict[str, Any]:
    return {
        "kind": need.kind,
        "needed_bytes": need.bytes,
        "must_bytes": need.must,
        "planned_bytes": freed,
        "shortfall_bytes": max(need.bytes - freed, 0),
        "sentences": list(need.sentences),
        "in_the_way": obstacles,
    }
