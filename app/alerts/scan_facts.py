"""What the last scan of each store left for alarms: read once a scan, and never waited for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.errors import TierkeeperError
from app.records.filters import RecordFilter
from app.records.service import RecordsService
from app.records.tables import Scan
from app.scheduling.work import SUCCEEDED

log = structlog.get_logger()

STALE_SECONDS = 3600.0
#: Reading a summary measures the file system too; one that hangs must not hold up all alarms.
PATIENCE_SECONDS = 5.0
_MOST_FILES = 20_000


@dataclass(frozen=True)
class ScanFacts:
    """Counts by class; temporary files that were older than an hour at the scan; bytes an hour. None: not known."""

    scanned_at: float | None = None
    records: Mapping[str, int] | None = None
    stale_temporaries: int | None = None
    growth_per_hour: float | None = None
    growth_reason: str | None = "never scanned"


#: (id, end) of the last complete scan.
NewestScan = tuple[int, float]


def newest_scans(session: Session) -> dict[int, NewestScan]:
    """{store id: its last complete scan}."""
    last = select(func.max(Scan.id)).where(Scan.state == SUCCEEDED).group_by(Scan.store_id)
    query = select(Scan.store_id, Scan.id, Scan.finished_at).where(Scan.id.in_(last), Scan.finished_at.is_not(None))
    return {row.store_id: (row.id, row.finished_at) for row in session.execute(query)}


class ScanFactsCache:
    """The facts by store and scan. A new scan is read in a thread of its own; until that is done the old facts stay."""

    def __init__(self, records: RecordsService, *, patience: float = PATIENCE_SECONDS) -> None:
        self._records = records
        self._patience = patience
        self._known: dict[int, tuple[int, ScanFacts]] = {}
        self._reading: set[int] = set()

    def of(self, store_id: int, newest: NewestScan | None, *, look: bool) -> ScanFacts | None:
        """What is known of a store. `look`: its directory answered the poller last, so that reading is safe enough."""
        if newest is None:
            self._known.pop(store_id, None)
            return None
        scan_id, scanned_at = newest
        known = self._known.get(store_id)
        if (known is None or known[0] != scan_id) and look and store_id not in self._reading:
            self._reading.add(store_id)
            thread = threading.Thread(
                target=self._read, args=(store_id, scan_id, scanned_at), name=f"scan-facts-{store_id}", daemon=True
            )
            thread.start()
            thread.join(self._patience)
        known = self._known.get(store_id)
        return None if known is None else known[1]

    def _read(self, store_id: int, scan_id: int, scanned_at: float) -> None:
        try:
            summary = self._records.summary(store_id)
            stale, _, _ = self._records.count_records(
                store_id,
                RecordFilter(classes=frozenset({"temporary"}), older_than=STALE_SECONDS),
                limit=_MOST_FILES,
            )
            facts = ScanFacts(
                scanned_at=scanned_at,
                records={name: count.records for name, count in summary.by_class.items()},
                stale_temporaries=stale,
                growth_per_hour=summary.growth_bytes_per_hour,
                growth_reason=summary.growth_reason,
            )
            self._known[store_id] = (scan_id, facts)
        except TierkeeperError as error:
            log.info("alerts.scan_facts_unreadable", store=store_id, reason=error.detail)
        except Exception:
            log.exception("alerts.scan_facts_failed", store=store_id)
        finally:
            self._reading.discard(store_id)
