"""What of a store's records belongs to which layout: how many, how large, when written. Reads indexes only."""

from __future__ import annotations

from typing import NamedTuple

from app.records.inventory_file import Inventory

#: (model as in record names, world size, fingerprint): what an epoch is of.
EpochKey = tuple[str, int, str]


class EpochCount(NamedTuple):
    """Records whose window allows one layout only; times are of the file system, ns."""

    records: int
    bytes: int
    first_written: int
    last_written: int


def epoch_counts(inventory: Inventory) -> dict[EpochKey, EpochCount]:
    """By (model, world size, fingerprint); ``""`` for records that more than one layout can have written."""
    owners = inventory.owners()
    found: dict[EpochKey, EpochCount] = {}
    for cohort in inventory.cohorts().values():
        # The bounds a cohort keeps may be wider than its records after some went.
        first, last = inventory.db.execute(
            "SELECT (SELECT min(mtime) FROM record WHERE cohort=?1), (SELECT max(mtime) FROM record WHERE cohort=?1)",
            (cohort.id,),
        ).fetchone()
        if first is None or cohort.records <= 0:
            continue
        owner = owners[cohort.owner]
        key = (owner.model, owner.judged.world_size, cohort.epoch or "")
        before = found.get(key)
        found[key] = (
            EpochCount(cohort.records, cohort.bytes, first, last)
            if before is None
            else EpochCount(
                before.records + cohort.records,
                before.bytes + cohort.bytes,
                min(before.first_written, first),
                max(before.last_written, last),
            )
        )
    return found
