"""What alarms know of each store's records, and whether their classes can be decided now. Hardly waited for.

Classes rest on what the store's servers list now: while one of them does not answer, records that were proven wrong
read as unverified. They are still wrong, so what was last decided stays until it can be decided again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.alerts.schemas import WRONG_REASONS
from app.errors import TierkeeperError
from app.records.filters import RecordFilter
from app.records.service import RecordsService
from app.records.tables import Scan
from app.scheduling.work import SUCCEEDED
from app.telemetry.tables import Observation

log = structlog.get_logger()

STALE_SECONDS = 3600.0
#: Reading a summary measures the file system too, and of a large store it takes seconds: all stores together hold up an
#: evaluation by this part of its interval at most (and never longer than these seconds). What is read later is told by
#: the next one.
PATIENCE_PART = 0.25
PATIENCE_SECONDS = 5.0
_MOST_FILES = 20_000
#: Classes follow the layouts that servers list, also between scans: they are looked at again this often.
LOOK_SECONDS = 30.0


@dataclass(frozen=True)
class ScanFacts:
    """Counts by class; temporary files that were older than an hour at the scan; bytes an hour. None: not known.

    `wrong`: records that would be served as wrong answers; `derived`: that may have been computed behind such ones.
    `blind`: why classes cannot be decided now; `known_at` is then when these and `corrupt` were last decided, None
    where this process never saw that.
    """

    scanned_at: float | None = None
    records: Mapping[str, int] | None = None
    wrong: int = 0
    derived: int = 0
    corrupt: int = 0
    blind: str | None = None
    known_at: float | None = None
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


def blind_stores(
    session: Session, joined: Mapping[int, Sequence[int]], names: Mapping[int, str], now: float, limit: float
) -> dict[int, str]:
    """{store id: why its records cannot be judged by their layout now}: a server of it did not answer its last poll,
    or not within `limit` seconds. A store without servers is not among them: nothing will ever be told of it."""
    servers = sorted({ident for idents in joined.values() for ident in idents})
    last: dict[int, tuple[bool, float]] = {}
    for ident in servers:
        row = session.execute(
            select(Observation.ok, Observation.last_at)
            .where(Observation.server_id == ident)
            .order_by(Observation.id.desc())
            .limit(1)
        ).one_or_none()
        if row is not None:
            last[ident] = (row.ok, row.last_at)
    found: dict[int, str] = {}
    for store_id, idents in joined.items():
        for ident in idents:
            ok, at = last.get(ident, (False, 0.0))
            if not ok or now - at > limit:
                found[store_id] = f"server {names.get(ident, ident)} does not answer"
                break
    return found


@dataclass(frozen=True)
class Look:
    """What one look at a store rested on. A look that rests on something else is made anew."""

    scan_id: int
    cleaned_at: float  # when the last cleanup run of the store ended; 0: never
    blind: str | None


class ScanFactsCache:
    """The facts by store. They are read in a thread of its own; until that is done the old facts stay.

    `interval`: seconds from one evaluation to the next.
    """

    def __init__(self, records: RecordsService, interval: float) -> None:
        self._records = records
        self._patience = min(PATIENCE_SECONDS, PATIENCE_PART * interval)
        self._left = 0.0
        self._known: dict[int, tuple[Look, float, ScanFacts]] = {}
        self._reading: set[int] = set()

    def begin(self) -> None:
        """An evaluation begins: it may wait anew."""
        self._left = self._patience

    def of(
        self,
        store_id: int,
        newest: NewestScan | None,
        *,
        look: bool,
        now: float,
        blind: str | None = None,
        cleaned_at: float = 0.0,
    ) -> ScanFacts | None:
        """What is known of a store. `look`: its directory answered the poller last, so that reading is safe enough;
        `blind`: see `blind_stores`."""
        if newest is None:
            self._known.pop(store_id, None)
            return None
        scan_id, scanned_at = newest
        wanted = Look(scan_id, cleaned_at, blind)
        known = self._known.get(store_id)
        stale = known is None or known[0] != wanted or not 0 <= now - known[1] < LOOK_SECONDS
        if stale and look and store_id not in self._reading:
            self._reading.add(store_id)
            thread = threading.Thread(
                target=self._read,
                args=(store_id, wanted, scanned_at, now),
                name=f"scan-facts-{store_id}",
                daemon=True,
            )
            thread.start()
            began = time.monotonic()
            thread.join(max(0.0, self._left))
            self._left -= time.monotonic() - began
        known = self._known.get(store_id)
        if known is None:
            return None
        # A server that went away since: what was read before still holds, and is old.
        return known[2] if known[0].blind == blind else _last_decided(known[2], known[2], blind or known[0].blind)

    def _read(self, store_id: int, look: Look, scanned_at: float, now: float) -> None:
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
                wrong=sum(summary.by_reason[r].records for r in WRONG_REASONS if r in summary.by_reason),
                derived=summary.by_reason["derived"].records if "derived" in summary.by_reason else 0,
                corrupt=summary.by_class["corrupt"].records if "corrupt" in summary.by_class else 0,
                known_at=None if look.blind else now,
                stale_temporaries=stale,
                growth_per_hour=summary.growth_bytes_per_hour,
                growth_reason=summary.growth_reason,
            )
            if look.blind is not None:
                before = self._known.get(store_id)
                facts = _last_decided(facts, before[2] if before else None, look.blind)
            self._known[store_id] = (look, now, facts)
        except TierkeeperError as error:
            log.info("alerts.scan_facts_unreadable", store=store_id, reason=error.detail)
        except Exception:
            log.exception("alerts.scan_facts_failed", store=store_id)
        finally:
            self._reading.discard(store_id)


def _last_decided(seen: ScanFacts, before: ScanFacts | None, blind: str | None) -> ScanFacts:
    """`seen` while classes cannot be decided: what was decided before stays, at most what is still there undecided."""
    if before is None or before.known_at is None:
        return replace(seen, blind=blind, known_at=None)
    open_now = (seen.records or {}).get("unverified", 0)
    wrong_or_open = (seen.records or {}).get("incompatible", 0) + open_now
    return replace(
        seen,
        wrong=max(seen.wrong, min(before.wrong, wrong_or_open)),
        derived=max(seen.derived, min(before.derived, open_now)),
        corrupt=max(seen.corrupt, min(before.corrupt, seen.corrupt + open_now)),
        blind=blind,
        known_at=before.known_at,
    )
