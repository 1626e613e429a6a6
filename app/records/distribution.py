"""How the records of a store are distributed: by age, last use, cache salt and rank. Reads indexes, walks nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from app.clock import iso
from app.lmcache.object_keys import decode_model
from app.records.inventory_file import Cohort, Inventory
from app.records.schemas import BucketView, Count, DistributionView, RankCount, SaltCount
from app.records.timeline import NS

_HOUR, _DAY = 3600, 86_400
#: Upper ends of the buckets, seconds before the scan; what is older has a bucket of its own.
EDGES = (_HOUR, 6 * _HOUR, _DAY, 3 * _DAY, 7 * _DAY, 14 * _DAY, 30 * _DAY, 90 * _DAY)
#: A read this soon after the write is taken for the write itself (both set the access time).
_READ_AFTER_NS = 2 * NS
_SALTS_SHOWN = 20
#: Records of a store that are counted while somebody waits for the page.
COUNTED_AT_ONCE = 50_000
_META = "distribution"


def distribution(
    store_id: str, inventory: Inventory, access_times: str, names: Mapping[str, str] | None = None
) -> DistributionView:
    """As of the last scan. `access_times`: of the mount; where it keeps none, what rests on them is null.

    The counts kept in the inventory serve as long as they are of what is in it. Where they are not, because runs took
    records out since, a small store is counted at once; a large one shows those kept until `keep_counts` comes by.
    """
    cohorts = [cohort for cohort in inventory.cohorts().values() if cohort.records > 0]
    kept = _kept(inventory)
    found = kept[1] if kept is not None else None
    few = sum(cohort.records for cohort in cohorts) <= COUNTED_AT_ONCE
    if kept is None or (few and kept[0] != _state(inventory, cohorts)):
        found = _counted(inventory, cohorts)
    assert found is not None
    knows_use = access_times != "noatime"
    return found.model_copy(
        update={
            "store_id": store_id,
            "last_use": found.last_use if knows_use else None,
            "never_read": found.never_read if knows_use else None,
            "use_reason": _use_reason(access_times),
            "by_rank": [
                rank.model_copy(
                    update={"model_name": (names or {}).get(rank.model_name) or decode_model(rank.model_name)}
                )
                for rank in found.by_rank
            ],
        }
    )


def keep_counts(inventory: Inventory) -> bool:
    """Counts and keeps the counts in the inventory, unless those kept are of what is in it; whether it counted.

    Reads every index once: half a second and more for a million records, which is too long for a page.
    """
    inventory.db.execute("BEGIN")  # one snapshot: runs and scans may be at work on it
    try:
        cohorts = [cohort for cohort in inventory.cohorts().values() if cohort.records > 0]
        state, kept = _state(inventory, cohorts), _kept(inventory)
        if kept is not None and kept[0] == state:
            return False
        counts = _counted(inventory, cohorts).model_dump(mode="json")
    finally:
        inventory.db.execute("COMMIT")
    inventory.set_meta(**{_META: json.dumps({"state": state, "counts": counts})})
    return True


def _kept(inventory: Inventory) -> tuple[str, DistributionView] | None:
    """(of what, counts) as they were kept; None where there are none, or of another form."""
    try:
        stored = json.loads(inventory.meta()[_META])
        return stored["state"], DistributionView.model_validate(stored["counts"])
    except (KeyError, TypeError, ValueError):
        return None


def _state(inventory: Inventory, cohorts: Sequence[Cohort]) -> str:
    """Changes whenever records come or go, and with every scan; not when they are judged anew."""
    sums: dict[tuple[int, int], tuple[int, int]] = {}
    for cohort in cohorts:
        key = (cohort.owner, -1 if cohort.size is None else cohort.size)
        before = sums.get(key, (0, 0))
        sums[key] = (before[0] + cohort.records, before[1] + cohort.bytes)
    text = repr((inventory.meta().get("scanned_at"), EDGES, sorted(sums.items())))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _counted(inventory: Inventory, cohorts: Sequence[Cohort]) -> DistributionView:
    scanned_at = float(inventory.meta().get("scanned_at") or 0.0)
    now_ns = round(scanned_at * NS)
    unsalted, salts, more = _salts(inventory, cohorts)
    return DistributionView(
        store_id="",
        scanned_at=iso(scanned_at) if scanned_at else None,
        age=_buckets(inventory, cohorts, now_ns, "mtime"),
        last_use=_buckets(inventory, cohorts, now_ns, "used"),
        never_read=_never_read(inventory, cohorts),
        use_reason=None,
        unsalted=unsalted,
        by_salt=salts,
        more_salts=more,
        by_rank=_ranks(inventory, cohorts),
    )


def _ranks(inventory: Inventory, cohorts: Sequence[Cohort]) -> list[RankCount]:
    """A rank that wrote less than its neighbours is a worker that does not store. Models as record names spell them."""
    owners = inventory.owners()
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for cohort in cohorts:
        owner = owners[cohort.owner]
        before = found.get((owner.model, owner.kv_rank), (0, 0))
        found[owner.model, owner.kv_rank] = before[0] + cohort.records, before[1] + cohort.bytes
    return [
        RankCount(
            model_name=model,
            world_size=kv_rank >> 24 & 0xFF,
            rank=kv_rank >> 16 & 0xFF,
            kv_rank=kv_rank,
            records=records,
            bytes=size,
        )
        for (model, kv_rank), (records, size) in sorted(found.items())
    ]


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
