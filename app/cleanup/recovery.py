"""After a crash: open intents are settled from the disk, under the store's lock, before anything else moves there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import structlog
from sqlalchemy import select

from app.cleanup.disk import StoreRoot, check_still_that_store, hold_quarantine, store_root
from app.cleanup.episodes import Episodes
from app.cleanup.footing import FootingLost
from app.cleanup.journal import settle_open, tell_removed
from app.cleanup.lock import StoreLock, StoreLocked
from app.cleanup.passes import folder_of_round
from app.cleanup.ports import Inventory
from app.cleanup.quarantine import folder_path
from app.cleanup.tables import CleanupIntent, CleanupRun, Plan
from app.clock import Clock
from app.database import Database
from app.errors import NotFound, StoreError
from app.fleet.service import FleetService
from app.records.facts import FileFact

log = structlog.get_logger()


class Recovery:
    """Settles journals. Holding the store's lock means that no run is under way there."""

    def __init__(self, *, db: Database, clock: Clock, fleet: FleetService, inventory: Inventory, owner: str) -> None:
        self._db = db
        self._clock = clock
        self._inventory = inventory
        self._fleet = fleet
        self._owner = owner

    def settle_store(self, root: StoreRoot, store_id: int, *, but: int | None = None) -> int:
        """Settles all open intents of a store, whose lock the caller holds. Raises OSError or StoreError."""
        query = (
            select(CleanupRun.id, CleanupRun.folder, Plan.root_device, Plan.root_inode)
            .join(CleanupIntent, CleanupIntent.run_id == CleanupRun.id)
            .outerjoin(Plan, Plan.id == CleanupRun.plan_id)
            .where(CleanupRun.store_id == store_id, CleanupIntent.settled_at.is_(None), CleanupRun.id != (but or 0))
            .distinct()
        )
        with self._db.read() as session:
            rows = session.execute(query).all()
        settled = 0
        for run_id, folder, device, inode in rows:
            try:
                check_still_that_store(root, folder_path(folder), device, inode)
                hold_quarantine(root, folder_path(folder))
            except FootingLost:
                raise
            except StoreError as error:  # its intents stay open until that directory is back
                log.warning("cleanup.not_settled", run=run_id, why=error.detail)
                continue
            settled += settle_open(
                self._db,
                self._clock,
                root,
                run_id=run_id,
                folder_of_round=folders_of(folder),
                restored=partial(self._hold, store_id, run_id),
            )
            log.info("cleanup.settled", run=run_id, store=store_id)
        return settled

    def _hold(self, store_id: int, run_id: int, facts: list[FileFact]) -> None:
        self._inventory.restored(store_id, facts, run_id, "recovery")

    def recover_run(self, run_id: int) -> None:
        """For the work runner: a run (or a restore of it) whose process is gone. Never raises.

        A store that cannot be reached now leaves the intents open; the next run there, or the next start, settles them.
        """
        with self._db.read() as session:
            run = session.get(CleanupRun, run_id)
        if run is None:
            return
        Episodes(self._db, self._clock).cut_off(run_id)
        try:
            store = self._fleet.store_target(run.store_id)
            with (
                store_root(self._inventory, store) as root,
                StoreLock(root, owner=self._owner, work=f"settling of cleanup run {run_id}", clock=self._clock),
            ):
                self.settle_store(root, run.store_id)
            tell_removed(self._db, self._inventory, run_id)
        except (StoreLocked, StoreError, NotFound, OSError) as error:
            log.warning("cleanup.not_settled", run=run_id, why=str(error))


def folders_of(folder: str) -> Callable[[int], bytes]:
    """Names the quarantine folder of each round of a run, relative to the store."""
    return lambda round_no: folder_path(folder_of_round(folder, round_no))
