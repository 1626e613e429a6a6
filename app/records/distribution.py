"""How the records of a store are distributed: by age, by last use, and by cache salt. Reads indexes, walks nothing."""

from __future__ import annotations

from collections.abc import Sequence

from app.clock import iso
from app.records.inventory_file import Cohort, Inventory
from app.records.schemas import BucketView, Count, DistributionView, SaltCount
from app.records.timeline import NS

_HOUR, _DAY = 3600, 86_400
#: Upper ends of the buckets, seconds before the scan; what is older has a bucket of its own.
EDGES = (_HOUR, 6 * _HOUR, _DAY, 3 * _DAY, 7 * _DAY, 14 * _DAY, 30 * _DAY, 90 * _DAY)
#: A read this soon after the write is taken for the write itself (both set the access time).
_READ_AFTER_NS = 2 * NS
_SALTS_SHOWN = 20


def distribution(store_id: str, inventory: Inventory, access_times: str) -> DistributionView:
    """As of the last scan. `access_times`: of the mount; where it keeps none, what rests on them is null."""
    scanned_at = float(inventory.meta().get("scanned_at") or 0.0)
    now_ns = round(scanned_at * NS)
    cohorts = [cohort for cohort in inventory.cohorts().values() if cohort.records > 0]
    knows_use = access_times != "noatime"
    unsalted, salts, more = _salts(inventory, cohorts)
    return DistributionView(
        store_id=store_id,
        scanned_at=iso(scanned_at) if scanned_at else None,
        age=_buckets(inventory, cohorts, now_ns, "mtime"),
        last_use=_buckets(inventory, cohorts, now_ns, "used") if knows_use else None,
        never_read=_never_read(inventory, cohorts) if knows_use else None,
        use_reason=_use_reason(access_times),
        unsalted=unsalted,
        by_salt=salts,
        more_salts=more,
    )


def _use_reason(access_times: str) -> str | None:
    return {
        "noatime": "this mount records no access times",
        "relatime": "relatime: an access time moves at most once a day, so reads within a day of the last are not seen",
        "unknown": "whether access times move on this mount is not known",
    }.get(access_times)


def _buckets(inventory: Inventory, cohorts: Sequence[Cohort], now_ns: int, column: str) -> list[BucketView]:
    ends = [0, *EDGES]
    found: list[BucketView] = []
    for number, least in enumerate(ends):
        most = ends[number + 1] if number + 1 < len(ends) else None
        # What lies in the future is younger than an hour, too.
        newest = None if number == 0 else now_ns - least * NS
        oldest = None if most is None else now_ns - most * NS
        records = size = 0
        for cohort in cohorts:
            if column == "mtime" and not _overlaps(cohort, oldest, newest):
                continue
            part = _count(inventory, cohort, column, oldest, newest)
            records, size = records + part[0], size + part[1]
        found.append(BucketView(from_seconds=float(least), to_seconds=most, records=records, bytes=size))
    return found


def _overlaps(cohort: Cohort, oldest: int | None, newest: int | None) -> bool:
    return (newest is None or cohort.min_mtime <= newest) and (oldest is None or cohort.max_mtime > oldest)


def _count(
    inventory: Inventory, cohort: Cohort, column: str, oldest: int | None, newest: int | None
) -> tuple[int, int]:
    """(records, bytes) of a cohort with the column in (oldest, newest]; an index alone answers for one size."""
    where, bound = f"cohort=? AND {column}>? AND {column}<=?", (cohort.id, oldest or -(2**62), newest or 2**62)
    total = "sum(size)" if cohort.size is None else "NULL"
    records, size = inventory.db.execute(
        f"SELECT count(*), {total} FROM record WHERE {where}",  # noqa: S608
        bound,
    ).fetchone()
    return records, size or 0 if cohort.size is None else records * cohort.size


def _never_read(inventory: Inventory, cohorts: Sequence[Cohort]) -> Count:
    records = size = 0
    for cohort in cohorts:
        total = "sum(size)" if cohort.size is None else "NULL"
        count, summed = inventory.db.execute(
            f"SELECT count(*), {total} FROM record WHERE cohort=? AND used-mtime<=?",  # noqa: S608
            (cohort.id, _READ_AFTER_NS),
        ).fetchone()
        records += count
        size += (summed or 0) if cohort.size is None else count * cohort.size
    return Count(records=records, bytes=size)


def _salts(inventory: Inventory, cohorts: Sequence[Cohort]) -> tuple[Count, list[SaltCount], int]:
    """(without a salt, the largest, how many more there are)."""
    rows = inventory.db.execute(
        "SELECT salt.text, count(*), sum(record.size) FROM record JOIN salt ON salt.id=record.salt"
        " WHERE record.salt>0 GROUP BY record.salt ORDER BY 3 DESC, 1"
    ).fetchall()
    salted, salted_bytes = sum(row[1] for row in rows), sum(row[2] for row in rows)
    rest = Count(records=sum(c.records for c in cohorts) - salted, bytes=sum(c.bytes for c in cohorts) - salted_bytes)
    shown = [SaltCount(salt=text, records=count, bytes=size) for text, count, size in rows[:_SALTS_SHOWN]]
    return rest, shown, max(len(rows) - _SALTS_SHOWN, 0)
