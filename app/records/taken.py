"""What runs of ours took out of a store: it leaves the inventory, and is never counted as vanished by itself."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.database import Database
from app.records.bulk import remove_rows
from app.records.changes import remove_names
from app.records.inventory_file import Inventory
from app.records.tables import RemovedByRuns, Scan
from app.records.timeline import NS
from app.scheduling.work import SUCCEEDED

#: (name, size in bytes, row id in the inventory where known).
Taken = tuple[bytes, int, int | None]


def take_out(
    db: Database,
    store_id: int,
    inventory: Inventory | None,
    taken: Sequence[Taken],
    *,
    since: float,
    temp_dirs: tuple[str, ...],
) -> None:
    """Records that a run removed, which began at `since` (epoch seconds), leave the inventory.

    Those whose row is gone already were found gone by a scan meanwhile, which counted them as vanished: that is put
    right. Without an inventory there is nothing to do.
    """
    if inventory is None:
        return
    if float(inventory.meta().get("made_at") or 0.0) / NS > since:
        taken = [(name, size, None) for name, size, _ in taken]  # made anew since: its rows have other ids
    known = [(ident, size) for _, size, ident in taken if ident is not None]
    records, size = remove_rows(inventory, [ident for ident, _ in known])
    missed, missed_bytes = len(known) - records, sum(size for _, size in known) - size
    more = remove_names(inventory, (name for name, _, ident in taken if ident is None), temp_dirs)
    with db.write() as session:
        if missed > 0:
            _not_vanished(session, store_id, missed, missed_bytes, since)
        row = session.get(RemovedByRuns, store_id)
        if row is None:
            row = RemovedByRuns(store_id=store_id, records=0, bytes=0)
            session.add(row)
        row.records += records + more[0]
        row.bytes += size + more[1]


def _not_vanished(session: Session, store_id: int, records: int, size: int, since: float) -> None:
    """Moves records from "vanished" to "removed by runs" in the scans since then, the latest first."""
    query = (
        select(Scan)
        .where(Scan.store_id == store_id, Scan.state == SUCCEEDED, Scan.finished_at >= since, Scan.vanished > 0)
        .order_by(Scan.id.desc())
    )
    for scan in session.scalars(query):
        part = min(records, scan.vanished)
        part_bytes = min(size, scan.vanished_bytes) if part == records else scan.vanished_bytes
        scan.vanished -= part
        scan.vanished_bytes -= part_bytes
        scan.removed_by_runs += part
        scan.removed_by_runs_bytes += part_bytes
        records, size = records - part, size - part_bytes
        if records <= 0:
            return
