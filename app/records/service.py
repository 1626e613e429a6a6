"""The records service: what routes, pages, commands, cleanup and the scheduler call.

All methods are synchronous. The inventory of a store is a file of its own; the main database holds scans, epochs, holds
and growth. No session is open while a directory is walked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from app.audit.service import AuditService
from app.clock import Clock
from app.database import Database
from app.fleet.service import FleetService
from app.records.facts import FileFact, Judgement, SelectedRecord
from app.records.filters import Order, RecordFilter
from app.records.schemas import (
    EpochInput,
    EpochsView,
    EpochView,
    GrowthPointView,
    RecordDetail,
    RecordView,
    ScanView,
    SummaryView,
)
from app.scheduling.runner import WorkRunner
from app.scheduling.schemas import Page
from app.scheduling.service import StartedWork
from app.settings import Settings
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
    ) -> None:
        self._db = db
        self._clock = clock
        self._settings = settings
        self._runner = runner
        self._fleet = fleet
        self._telemetry = telemetry
        self._audit = audit

    # scans

    def start_scan(self, store_id: int, *, actor: str, gentle: bool = False) -> ScanView:
        """Queues a scan and submits it. Raises NotFound; Conflict while another scan of the store is active."""
        raise NotImplementedError

    def get_scan(self, scan_id: int) -> ScanView:
        """Raises NotFound."""
        raise NotImplementedError

    def list_scans(self, *, page_size: int, page_token: str | None, store_id: int | None = None) -> Page[ScanView]:
        """Newest first. Raises NotFound for an unknown store."""
        raise NotImplementedError

    def cancel_scan(self, scan_id: int, *, actor: str) -> ScanView:
        """Asks a scan to stop; a first scan that is stopped leaves no inventory, a re-scan leaves the one before."""
        raise NotImplementedError

    # the inventory

    def list_records(
        self, store_id: int, where: RecordFilter, *, order: Order, page_size: int, page_token: str | None
    ) -> Page[RecordView]:
        """One page. With a free text that is rare, a page may be short (or empty) and still have a next one."""
        raise NotImplementedError

    def count_records(self, store_id: int, where: RecordFilter, *, limit: int = 100_000) -> tuple[int, int, bool]:
        """(records, bytes, exact): exact is False when counting stopped at `limit` (show "≥ n")."""
        raise NotImplementedError

    def get_record(self, record_id: str) -> RecordDetail:
        """By the outside id. Raises NotFound for anything that names nothing."""
        raise NotImplementedError

    def export_records(self, store_id: int, where: RecordFilter) -> Iterator[RecordView]:
        """All matching records, streamed. Raises NotFound at once."""
        raise NotImplementedError

    def summary(self, store_id: int) -> SummaryView:
        """Raises NotFound. A store that was never scanned has state `never_scanned` and nulls, not zeros."""
        raise NotImplementedError

    def growth(self, store_id: int, *, points: int = 200) -> list[GrowthPointView]:
        """Bytes by class at the end of each scan, oldest first."""
        raise NotImplementedError

    # epochs

    def epochs(self, store_id: int) -> EpochsView:
        """Observed layouts and what operators said, newest first. Raises NotFound."""
        raise NotImplementedError

    def add_epoch(self, store_id: int, body: EpochInput, *, actor: str) -> EpochView:
        """Declares a generation or adopts what was there before. Raises NotFound, InvalidInput, Conflict."""
        raise NotImplementedError

    def undo_epoch(self, store_id: int, epoch_id: int, *, actor: str) -> None:
        """Takes a declaration or adoption back. Raises NotFound; Conflict for an observed epoch."""
        raise NotImplementedError

    # for cleanup

    def select_records(self, store_id: int, where: RecordFilter, *, lru: bool = False) -> Iterator[SelectedRecord]:
        """Matching records with the facts of the last scan, judged by the layouts known now. Never foreign files.

        `lru`: least recently used first (by access time, or by modification where that is later), else by inventory.
        Streams; memory stays flat at a million records. Raises NotFound.
        """
        raise NotImplementedError

    def classify_now(self, store_id: int, facts: Sequence[FileFact]) -> list[Judgement]:
        """Judges files by the layouts known at this moment, in the given order (RULES.md R1: the class *now*).

        A name that does not parse is `foreign`; so is anything that is not a regular file.
        """
        raise NotImplementedError

    def records_removed(self, store_id: int, names: Iterable[bytes]) -> None:
        """Cleanup says: these left the directory by a run of ours. They leave the inventory and are not "vanished"."""
        raise NotImplementedError

    def records_restored(self, store_id: int, facts: Sequence[FileFact], *, reason: str, actor: str) -> None:
        """Cleanup says: these are back. They enter the inventory and are held."""
        raise NotImplementedError

    def held_names(self, store_id: int) -> frozenset[bytes]:
        """Names that no schedule takes."""
        raise NotImplementedError

    def release_holds(self, store_id: int, names: Iterable[bytes] | None = None, *, actor: str) -> int:
        """Ends holds (all of a store without `names`); returns how many."""
        raise NotImplementedError

    def mark_cleared(self, store_id: int, model_name: str, world_size: int | None, at: float) -> None:
        """Cleanup says: L2, L1 and L0 were cleared of wrong records of this model at this time (RULES.md C8, R4)."""
        raise NotImplementedError

    def scanned_at(self, store_id: int) -> float | None:
        """When the inventory was last compared with the disk; None = never."""
        raise NotImplementedError

    # hooks

    def on_layout_change(self, store_id: int) -> None:
        """Judges the inventory anew after polls showed another layout; touches no file of the store."""
        raise NotImplementedError

    def fire(self, store_id: int, options: object, actor: str) -> StartedWork | None:
        """One firing of a scan schedule."""
        raise NotImplementedError

    def check_schedule(self, store_id: int, options: object) -> None:
        """Raises NotFound when there is no such store, InvalidInput for unknown options."""
        raise NotImplementedError
