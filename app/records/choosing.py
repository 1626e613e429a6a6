"""Which records of an inventory a filter means: whole cohorts first, then single rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from app.lmcache.object_keys import encode_model
from app.records.epoch_counts import EpochKey
from app.records.filters import RecordFilter
from app.records.inventory_file import Cohort, Inventory, Owner
from app.records.timeline import NS

#: What is read of a row.
COLUMNS = "id, cohort, salt, hash, size, mtime, ctime, atime, inode, flags"
# The start of a hash inside a text somebody looks for: alone, or after the "@" that stands before it in a name.
_HASH_START = re.compile(r"(?:^|@)([0-9a-f]{8,64})(?:$|@|\.)")
#: What can stand in a name after its head when there is no salt.
_TAIL = frozenset("0123456789abcdef@.dtmp")
#: Rows of one salt, or of one hash, that are simply read and sorted.
_FEW = 20_000


class RecordRow(NamedTuple):
    """One record as stored, with the owner, the cohort and the salt its numbers stand for."""

    id: int
    owner: Owner
    cohort: Cohort
    salt: str
    chunk_hash: bytes
    size: int
    mtime: int
    ctime: int
    atime: int
    inode: int
    flags: int

    @property
    def used(self) -> int:
        """The later of the last access and the last write, ns."""
        return max(self.atime, self.mtime)

    @property
    def name(self) -> str:
        return self.owner.name(self.chunk_hash, self.salt)


class Chooser:
    """Filters over one open inventory at one time. `now_ns`: where ages count from; `epochs`: what each is of."""

    def __init__(self, inventory: Inventory, now_ns: int, epochs: Mapping[int, frozenset[EpochKey]]) -> None:
        self.db = inventory.db
        # One snapshot for cohorts and rows: judging beside us may split a cohort. Closing the inventory ends it.
        if not self.db.in_transaction:
            self.db.execute("BEGIN")
        self.now = now_ns
        self.owners = inventory.owners()
        self.cohorts = {ident: cohort for ident, cohort in inventory.cohorts().items() if cohort.records > 0}
        self._salts: dict[int, str] = {0: ""}
        self._epochs = epochs
        self._salted = self.db.execute("SELECT 1 FROM salt LIMIT 1").fetchone() is not None

    def matching(self, where: RecordFilter) -> list[Cohort]:
        """The cohorts that can hold matching records."""
        return [cohort for cohort in self.cohorts.values() if self._cohort_matches(cohort, where)]

    def _cohort_matches(self, cohort: Cohort, where: RecordFilter) -> bool:
        owner = self.owners[cohort.owner]
        oldest = self.oldest(where)
        return (
            (not where.classes or cohort.cls in where.classes)
            and (not where.reasons or cohort.reason in where.reasons)
            and (not where.models or owner.model in {encode_model(model) for model in where.models})
            and (where.kv_rank is None or owner.kv_rank == where.kv_rank)
            and (where.min_size is None or cohort.max_size >= where.min_size)
            and (oldest is None or cohort.min_mtime < oldest)
            and (where.epoch_id is None or self._of_epoch(cohort, owner, where.epoch_id))
            and (where.q is None or self._may_hold(owner, where.q))
        )

    def _of_epoch(self, cohort: Cohort, owner: Owner, epoch_id: int) -> bool:
        return (owner.model, owner.judged.world_size, cohort.epoch) in self._epochs.get(epoch_id, ())

    def _may_hold(self, owner: Owner, text: str) -> bool:
        """Whether a name can contain the text: in its head, across the head's end, or in a hash; else it can tell."""
        if self._salted or owner.folder or owner.levels or text in owner.head:
            return True
        return any(owner.head.endswith(text[:cut]) and _TAIL.issuperset(text[cut:]) for cut in range(len(text) + 1))

    def oldest(self, where: RecordFilter) -> int | None:
        """Records must have been written before this time, for either age that was asked for."""
        ages = [age for age in (where.older_than, where.unused_for) if age is not None]
        return self.now - round(max(ages) * NS) if ages else None

    def holds_all(self, cohort: Cohort, where: RecordFilter) -> bool:
        """Whether every record of a matching cohort matches, so that its counters tell."""
        oldest = self.oldest(where)
        return (
            (where.min_size is None or cohort.min_size >= where.min_size)
            and (oldest is None or (where.unused_for is None and cohort.max_mtime < oldest))
            and where.salt is None
            and (where.q is None or where.q in self.owners[cohort.owner].head)
        )

    def row_matches(self, stored: tuple[Any, ...], cohort: Cohort, where: RecordFilter) -> bool:
        _, _, salt, chunk_hash, size, mtime, _, atime, _, _ = stored
        if where.min_size is not None and size < where.min_size:
            return False
        if where.older_than is not None and mtime >= self.now - round(where.older_than * NS):
            return False
        if where.unused_for is not None and max(atime, mtime) >= self.now - round(where.unused_for * NS):
            return False
        if where.salt is not None and self._salt(salt) != where.salt:
            return False
        if where.q is not None:
            owner = self.owners[cohort.owner]
            return where.q in owner.head or where.q in owner.name(chunk_hash, self._salt(salt))
        return True

    def few(self, where: RecordFilter) -> list[RecordRow] | None:
        """All matching rows where one salt or the start of a hash leaves only a few; None where it does not."""
        conditions: list[tuple[str, list[Any]]] = []
        cohorts = {cohort.id: cohort for cohort in self.matching(where)}
        start = _HASH_START.search(where.q) if where.q is not None else None
        if where.salt:
            ident = self.db.execute("SELECT id FROM salt WHERE text=?", (where.salt,)).fetchone()
            if ident is None:
                return []
            conditions.append(("salt=? AND salt>0", [ident[0]]))
        elif start is not None:
            low = bytes.fromhex(start[1][:16] + "0" * (len(start[1][:16]) % 2)).ljust(8, b"\0")
            high = bytes.fromhex(start[1][:16] + "f" * (len(start[1][:16]) % 2)).ljust(8, b"\xff")
            conditions += [("cohort=? AND substr(hash, 1, 8) BETWEEN ? AND ?", [ident, low, high]) for ident in cohorts]
        else:
            return None
        rows: list[RecordRow] = []
        left = _FEW
        for condition, values in conditions:
            found = self.db.execute(
                f"SELECT {COLUMNS} FROM record WHERE {condition} LIMIT ?",  # noqa: S608
                (*values, left + 1),
            )
            for stored in found:
                left -= 1
                if left < 0:
                    return None  # many after all
                if stored[1] in cohorts and self.row_matches(stored, cohorts[stored[1]], where):
                    rows.append(self.row(stored))
        # No record's hash begins like that: the text may still stand somewhere inside one, which only looking tells.
        return rows if rows or where.salt or (start is not None and len(start[1]) == 64) else None

    def row(self, stored: tuple[Any, ...]) -> RecordRow:
        ident, cohort_id, salt, chunk_hash, *facts = stored
        cohort = self.cohorts[cohort_id]
        return RecordRow(ident, self.owners[cohort.owner], cohort, self._salt(salt), chunk_hash, *facts)

    def _salt(self, ident: int) -> str:
        found = self._salts.get(ident)
        if found is None:
            text = self.db.execute("SELECT text FROM salt WHERE id=?", (ident,)).fetchone()
            found = self._salts[ident] = text[0] if text else ""
            if len(self._salts) > 50_000:
                self._salts = {0: "", ident: found}
        return found
