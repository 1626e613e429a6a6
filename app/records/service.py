"""The records service: what routes, pages, commands, cleanup and the scheduler call.

All methods are synchronous. The inventory of a store is a file of its own; the main database holds scans, epochs, holds
and growth. No session is open while a directory is walked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from sqlalchemy.orm import Session

from app.audit.service import AuditService
from app.clock import Clock
from app.database import Database
from app.errors import BadToken, Conflict, NotFound
from app.fleet.service import FleetService
from app.fleet.targets import StoreTarget
from app.lmcache.object_keys import encode_model
from app.paging import decode_cursor, encode_cursor
from app.records import epochs as epoch_rows
from app.records.bulk import BulkBatch, Sorting, batches
from app.records.changes import add_facts
from app.records.classify import classify_facts
from app.records.current import CurrentInventories, PastTeller
from app.records.distribution import keep_counts
from app.records.facts import FileFact, Judgement
from app.records.filters import Order, RecordFilter
from app.records.holds import Holds
from app.records.inventory_file import Inventory, remove_inventory
from app.records.judging import judge_inventory
from app.records.knowledge import KnowledgeSource
from app.records.scan_work import alignments, inventory_lock
from app.records.scans import ScanDesk
from app.records.schemas import (
    DistributionView,
    EpochInput,
    EpochsView,
    EpochView,
    GrowthPointView,
    HoldView,
    RecordDetail,
    RecordView,
    ScanView,
    SummaryView,
)
from app.records.store_directories import StoreDirectories
from app.records.store_look import Looker, StoreLook
from app.records.store_summary import growth_points
from app.records.tables import ClearedEpisode, LayoutEpoch
from app.records.taken import Taken, take_out
from app.records.timeline import NS
from app.records.traffic_views import TrafficDesk
from app.records.views import record_view, row_of, split_record_id
from app.scheduling.runner import WorkRunner
from app.settings import Settings
from app.shapes import Page
from app.telemetry.service import TelemetryService


class RecordsService:
    """Scans, inventory, epochs, summaries. Registers the work kind ``scan`` with the runner."""

    def __init__(
        self,
        *,
        db: Database,
        clock: Clock,
        settings: Settings,
        runner: WorkRunner,
        fleet: FleetService,
        telemetry: TelemetryService,
        audit: AuditService,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._db = db
        self._clock = clock
        self._fleet = fleet
        self._telemetry = telemetry
        self._audit = audit
        self._knowledge = KnowledgeSource(db=db, clock=clock, settings=settings, fleet=fleet, telemetry=telemetry)
        self._current = CurrentInventories(
            db=db, clock=clock, directory=settings.data_dir / "inventory", knowledge=self._knowledge
        )
        #: Which directory each store is: asked by whoever opens one (`store_dir.open_store`).
        self.directories = StoreDirectories(db, clock, audit, fleet, self._current.path)
        fleet.on_open_store(self.directories.check)
        self._scans = ScanDesk(
            db=db,
            clock=clock,
            runner=runner,
            fleet=fleet,
            audit=audit,
            knowledge=self._knowledge,
            directories=self.directories,
            path_of=self._current.path,
            poll_seconds=settings.poll_seconds,
            rest=rest,
        )
        #: What no policy takes.
        self.holds = Holds(db=db, clock=clock, audit=audit)
        #: What its servers and engines count of a store.
        self.traffic = TrafficDesk(clock, fleet, telemetry, self._knowledge, self._current.as_found)
        self._looker = Looker(db, fleet, telemetry, self._knowledge, self._current, self.traffic)
        self._pasts: list[PastTeller] = []
        fleet.on_forget(self._forget)

    def on_past(self, tell: PastTeller) -> None:
        """Rooms above say what they did to a record: `tell(store id, name)` is asked for each record's page."""
        self._pasts.append(tell)

    # scans

    def start_scan(self, store_id: int, *, actor: str, gentle: bool = False) -> ScanView:
        """Queues a scan and submits it. Raises NotFound; Conflict while another scan of the store is active."""
        return self._scans.start(store_id, actor=actor, gentle=gentle)

    def get_scan(self, scan_id: int) -> ScanView:
        """Raises NotFound."""
        return self._scans.get(scan_id)

    def list_scans(self, *, page_size: int, page_token: str | None, store_id: int | None = None) -> Page[ScanView]:
        """Newest first. Raises NotFound for an unknown store."""
        return self._scans.page(page_size=page_size, page_token=page_token, store_id=store_id)

    def cancel_scan(self, scan_id: int, *, actor: str) -> ScanView:
        """Asks a scan to stop; a first scan that is stopped leaves no inventory, a re-scan leaves what it had done."""
        return self._scans.cancel(scan_id, actor=actor)

    def scanned_at(self, store_id: int) -> float | None:
        """When the inventory was last compared with the disk; None = never."""
        self._fleet.store_target(store_id)
        inventory = self._current.as_found(store_id)
        if inventory is None:
            return None
        with inventory:
            at = inventory.meta().get("scanned_at")
        return None if at is None else float(at)

    # the inventory

    def list_records(
        self, store_id: int, where: RecordFilter, *, order: Order, page_size: int, page_token: str | None
    ) -> Page[RecordView]:
        """One page. With a free text that is rare, a page may be short (or empty) and still have a next one."""
        store = self._fleet.store_target(store_id)
        name = f"records|{store_id}|{order}|{where.text()}"
        after = decode_cursor(name, page_token) if page_token else None
        inventory = self._current.judged(store)
        if inventory is None:
            return Page(items=[], next_page_token=None)
        labels = self._current.labels(store_id)
        with inventory:
            try:
                page = self._current.reader(store_id, inventory, labels).page(where, order, page_size, after)
            except ValueError as error:
                raise BadToken("page_token is damaged; start again without it") from error
        held = self._current.held_of(store_id, [row.name for row in page.rows])
        return Page(
            items=[record_view(store_id, row, labels.epoch_ids, labels.names, held) for row in page.rows],
            next_page_token=encode_cursor(name, page.position) if page.position is not None else None,
        )

    def count_records(self, store_id: int, where: RecordFilter, *, limit: int = 20_000) -> tuple[int, int, bool]:
        """(records, bytes, exact): exact is False when counting stopped after looking at `limit` rows (show "≥ n")."""
        store = self._fleet.store_target(store_id)
        inventory = self._current.judged(store)
        if inventory is None:
            return 0, 0, True
        with inventory:
            return self._current.reader(store_id, inventory).count(where, limit)

    def get_record(self, record_id: str) -> RecordDetail:
        """By the outside id. Raises NotFound for anything that names nothing."""
        store_id, row_id = split_record_id(record_id)
        try:
            store = self._fleet.store_target(store_id)
        except NotFound:
            raise NotFound.of("record", record_id[:80]) from None
        found = self._current.record(store, row_id, self._pasts)
        if found is None:
            raise NotFound.of("record", record_id[:80])
        return found

    def export_records(self, store_id: int, where: RecordFilter) -> Iterator[RecordView]:
        """All matching records, streamed. Raises NotFound at once."""
        store = self._fleet.store_target(store_id)
        return self._export(store, where)

    def _export(self, store: StoreTarget, where: RecordFilter) -> Iterator[RecordView]:
        inventory = self._current.judged(store)
        if inventory is None:
            return
        labels = self._current.labels(store.id)
        held = frozenset(name.decode("utf-8", "surrogateescape") for name in self.holds.names(store.id))
        with inventory:
            for row in self._current.reader(store.id, inventory, labels).stream(where):
                yield record_view(store.id, row, labels.epoch_ids, labels.names, held)

    def summary(self, store_id: int) -> SummaryView:
        """Raises NotFound. A store that was never scanned has state `never_scanned` and nulls, not zeros."""
        return self._looker.summary(store_id)

    def look(self, store_id: int, *, points: int = 60) -> StoreLook:
        """All that the page of a store shows, of one moment. Raises NotFound."""
        return self._looker.look(store_id, points=points)

    def growth(self, store_id: int, *, points: int = 200) -> list[GrowthPointView]:
        """Bytes by class at the end of each scan, oldest first. Raises NotFound."""
        self._fleet.store_target(store_id)
        return growth_points(self._db, store_id, points)

    def distribution(self, store_id: int) -> DistributionView | None:
        """By age, last use, salt and rank as of the last scan; None before the first. Raises NotFound."""
        return self._looker.distribution(store_id)

    def count_anew(self) -> None:
        """Counts the distribution of stores whose records came or went since: called by the scheduler."""
        for store in self._fleet.store_targets():
            inventory = self._current.as_found(store.id)
            if inventory is not None:
                with inventory:
                    keep_counts(inventory)
        self.traffic.count_anew()

    # epochs

    def epochs(self, store_id: int) -> EpochsView:
        """Observed layouts and what operators said, newest first. Raises NotFound."""
        return self._looker.epochs(store_id)

    def add_epoch(self, store_id: int, body: EpochInput, *, actor: str) -> EpochView:
        """Declares a generation or adopts what was there before. Raises NotFound, InvalidInput, Conflict."""
        store = self._fleet.store_target(store_id)
        timeline = self._knowledge.load(store).timeline
        row = epoch_rows.new_act(
            body, store_id, timeline, self._current.models(store_id), actor=actor, now=self._clock()
        )
        with self._db.write() as session:
            session.add(row)
            session.flush()
            self._audit.record(
                session,
                actor=actor,
                action=f"epoch.{body.kind}",
                target_kind="store",
                target_id=store_id,
                detail={"epoch": row.id, "model": row.display_model, "reason": body.reason},
            )
        self.on_layout_change(store_id)
        return next(view for view in self.epochs(store_id).items if view.id == str(row.id))

    def undo_epoch(self, store_id: int, epoch_id: int, *, actor: str) -> None:
        """Takes a declaration or adoption back. Raises NotFound; Conflict for an observed epoch."""
        self._fleet.store_target(store_id)
        with self._db.write() as session:
            row = session.get(LayoutEpoch, epoch_id)
            if row is None or row.store_id != store_id:
                raise NotFound.of("epoch", epoch_id)
            if row.kind == "observed":
                raise Conflict("an observed layout cannot be undone; only what was declared or adopted can")
            self._audit.record(
                session,
                actor=actor,
                action=f"epoch.undo_{row.kind}",
                target_kind="store",
                target_id=store_id,
                detail={"epoch": epoch_id, "model": row.display_model},
            )
            session.delete(row)
        self.on_layout_change(store_id)

    # for cleanup

    def select_batches(
        self,
        store_id: int,
        where: RecordFilter,
        *,
        oldest_first: Sorting | None = None,
        hard_links: bool = False,
    ) -> Iterator[BulkBatch]:
        """Matching records with the facts of the last scan, judged by the layouts known now. Never foreign files.

        In batches of plain rows: what a plan over a whole store reads; memory stays flat. `oldest_first`: by last use
        or by last write, across all classes. Raises NotFound.
        """
        return self._batches(self._fleet.store_target(store_id), where, oldest_first, hard_links)

    def _batches(
        self, store: StoreTarget, where: RecordFilter, oldest_first: Sorting | None, hard_links: bool
    ) -> Iterator[BulkBatch]:
        inventory = self._current.judged(store)
        if inventory is None:
            return
        now = round(self._clock() * NS)
        with inventory:
            labels = self._current.labels(store.id)
            reader, names = self._current.reader(store.id, inventory, labels), labels.names
            yield from batches(
                inventory,
                reader,
                where,
                store_id=store.id,
                now_ns=now,
                names=names,
                oldest_first=oldest_first,
                hard_links=hard_links,
            )

    def classify_now(self, store_id: int, facts: Sequence[FileFact]) -> list[Judgement]:
        """Judges files by the layouts known at this moment, in the given order (RULES.md R1: the class *now*).

        A name that does not parse is `foreign`; so is anything that is not a regular file.
        """
        store = self._fleet.store_target(store_id)
        known = self._knowledge.load(store)
        context = known.context
        inventory = self._current.as_found(store_id)
        if inventory is not None:
            with inventory:
                context = self._current.with_sizes(inventory, context)
        return classify_facts(facts, known.temp_dirs, context)

    def polled_in_time(self, store_id: int) -> bool:
        """Whether every server of the store answered its last poll, and lately (true of a store without servers):
        without that `classify_now` calls no layout another one than the live."""
        store = self._fleet.store_target(store_id)
        return not store.server_ids or self._knowledge.load(store).context.fresh

    def removed_by_run(self, store_id: int, taken: Sequence[Taken], *, since: float) -> None:
        """Cleanup says: a run that began at `since` took these out (ids as `select_batches` gave them, where known).

        They leave the inventory and are not "vanished", whether or not a scan has found them gone already.
        """
        store = self._fleet.store_target(store_id)
        mine = [(name, size, None if ident is None else row_of(ident)) for name, size, ident in taken]
        inventory = self._current.as_found(store_id)
        if inventory is None:
            return
        with inventory:
            temp_dirs = self._knowledge.temp_dirs(store)
            take_out(self._db, store_id, inventory, mine, since=since, temp_dirs=temp_dirs)

    def records_restored(self, store_id: int, facts: Sequence[FileFact], *, reason: str, actor: str) -> None:
        """Cleanup says: these are back. They enter the inventory and are held."""
        store = self._fleet.store_target(store_id)
        self.holds.hold(store_id, facts, reason=reason, actor=actor)
        path = self._current.path(store_id)
        with inventory_lock(path) as mine:
            # While a scan is under way the scan finds them, or the next one does.
            inventory = Inventory.open(path) if mine else None
            if inventory is not None:
                known = self._knowledge.load(store)
                with inventory:
                    context = judge_inventory(inventory, known.context, alignments(inventory))
                    add_facts(inventory, facts, context, known.temp_dirs)

    def list_holds(self, store_id: int, *, page_size: int, page_token: str | None) -> Page[HoldView]:
        """What no policy takes, by name. Raises NotFound, BadToken."""
        self._fleet.store_target(store_id)
        return self.holds.page(store_id, page_size=page_size, page_token=page_token)

    def release_holds(self, store_id: int, names: Sequence[str] | None, *, actor: str) -> int:
        """Ends holds (without `names` all of a store but canaries'); returns how many.

        Raises NotFound; Conflict for a canary's record.
        """
        self._fleet.store_target(store_id)
        chosen = None if names is None else [name.encode("utf-8", "surrogateescape") for name in names]
        return self.holds.release(store_id, chosen, actor=actor)

    def mark_cleared(self, store_id: int, model_name: str, world_size: int | None, at: float) -> None:
        """Cleanup says: L2, L1 and L0 were cleared of wrong records of this model at this time (RULES.md C8, R4)."""
        self._say_cleared(store_id, ClearedEpisode(model_name=encode_model(model_name), world_size=world_size, at=at))

    def mark_reopened(self, store_id: int, model_name: str, at: float) -> None:
        """Cleanup says: wrong records of this model went back to where engines read them (RULES.md C8)."""
        self._say_cleared(store_id, ClearedEpisode(model_name=encode_model(model_name), at=at, reopened=True))

    def _say_cleared(self, store_id: int, row: ClearedEpisode) -> None:
        self._fleet.store_target(store_id)
        row.store_id = store_id
        with self._db.write() as session:
            session.add(row)
        self.on_layout_change(store_id)

    # hooks

    def on_layout_change(self, store_id: int) -> None:
        """Judges the inventory anew after polls showed another layout; touches no file of the store."""
        store = self._fleet.store_target(store_id)
        self._current.sync_epochs(
            store_id, self._current.judge_if_stale(store, force=True) or self._knowledge.load(store)
        )

    def _forget(self, session: Session, kind: str, target_id: int) -> None:
        if kind == "server":
            self._knowledge.forget_server(session, target_id)
        elif kind == "store":
            remove_inventory(self._current.path(target_id))
