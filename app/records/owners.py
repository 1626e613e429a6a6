"""From names to owners and cohorts: the inner loop of a scan, where every microsecond is a second a million records."""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from app.lmcache.object_keys import ParsedName, folder_kind, parse_name
from app.records.classify import Context, OwnerJudge
from app.records.facts import Judgement
from app.records.inventory_file import Cohort, Identity, Inventory, Owner, make_owner

# A file name of the usual form ends with 64 hex digits and ".data"; what stands before them names the owner.
HASH_AT, SUFFIX_AT = -69, -5
#: Distinct sizes of one owner that get cohorts of their own; the rest share cohorts of mixed sizes.
_SIZES = 64


class KnownOwner:
    """An owner, its judge, and its cohorts by (segment, size)."""

    __slots__ = ("cohort_ids", "cohorts", "cuts", "judge", "mixed", "owner", "sizes")

    def __init__(self, owner: Owner, context: Context) -> None:
        self.owner = owner
        self.judge = OwnerJudge(owner.judged, context)
        self.cuts = self.judge.cuts
        self.cohorts: dict[tuple[int, int], int] = {}
        self.mixed: dict[int, int] = {}
        self.cohort_ids: set[int] = set()  # all of them; two may share a segment and a size
        self.sizes: set[int] = set()


class Place(NamedTuple):
    """A directory that may hold records: temporary directory or "", lengths of hash sub-directories, the prefix they
    are, and the owners known by the part of a file name before the hash."""

    folder: str
    temp_folder: str
    levels: str
    prefix: str
    heads: dict[str, KnownOwner]


class OwnerBook:
    """The owners, salts and cohorts of an inventory while a scan runs; new ones are written as they are met."""

    def __init__(self, inventory: Inventory, context: Context, temp_dirs: tuple[str, ...]) -> None:
        self._db: sqlite3.Connection = inventory.db
        self._context = context
        self._temp_dirs = temp_dirs
        self._known: dict[int, KnownOwner] = {}
        self._by_identity: dict[Identity, KnownOwner] = {}
        self._heads: dict[tuple[str, str], dict[str, KnownOwner]] = {}
        self.salts = {text: ident for ident, text in inventory.salts().items() if ident}
        self.cohorts = inventory.cohorts()
        for owner in inventory.owners().values():
            self._add(owner)
        for cohort in self.cohorts.values():
            known = self._known[cohort.owner]
            segment = bisect_right(known.cuts, cohort.min_mtime)
            known.cohort_ids.add(cohort.id)
            if cohort.size is None:
                known.mixed.setdefault(segment, cohort.id)
            else:
                known.cohorts.setdefault((segment, cohort.size), cohort.id)
                known.sizes.add(cohort.size)

    def owner(self, ident: int) -> KnownOwner:
        return self._known[ident]

    def place(self, folder: str) -> Place | None:
        """What a directory is to records; None when nothing in it can be one."""
        found = split_folder(folder, self._temp_dirs)
        if found is None:
            return None
        temp_folder, levels, prefix = found
        return Place(folder, temp_folder, levels, prefix, self._heads.setdefault((temp_folder, levels), {}))

    def parse(self, place: Place, base: str) -> tuple[KnownOwner, int, bytes] | None:
        """The slow way from a name: (owner, salt id, hash), or None when it is no record. Learns its head."""
        parsed = parse_name(f"{place.folder}/{base}" if place.folder else base, self._temp_dirs)
        if parsed is None:
            return None
        identity = (
            place.temp_folder,
            place.levels,
            parsed.model,
            parsed.kv_rank,
            parsed.object_group_id,
            parsed.suffix,
        )
        known = self._by_identity.get(identity) or self._insert_owner(identity)
        if not parsed.cache_salt and parsed.suffix == "data" and len(parsed.chunk_hash) == 32:
            place.heads[base[:HASH_AT]] = known
        return known, self._salt(parsed), parsed.chunk_hash

    def cohort(self, known: KnownOwner, mtime: int, size: int) -> int:
        """The cohort of a record, made when missing."""
        segment = bisect_right(known.cuts, mtime)
        found = known.cohorts.get((segment, size))
        if found is not None:
            return found
        if size in known.sizes or len(known.sizes) < _SIZES:
            known.sizes.add(size)
            cohort = self._new_cohort(known, size, known.judge.judge(segment, size), mtime, size)
            known.cohorts[segment, size] = cohort.id
            return cohort.id
        mixed = known.mixed.get(segment)
        if mixed is None:
            mixed = known.mixed[segment] = self._new_cohort(known, None, Judgement("unverified"), mtime, size).id
        cohort = self.cohorts[mixed]
        cohort.min_size, cohort.max_size = min(cohort.min_size, size), max(cohort.max_size, size)
        return mixed

    def _add(self, owner: Owner) -> KnownOwner:
        known = self._known[owner.id] = KnownOwner(owner, self._context)
        self._by_identity[owner.identity] = known
        return known

    def _begin(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN IMMEDIATE")

    def _insert_owner(self, identity: Identity) -> KnownOwner:
        self._begin()
        cursor = self._db.execute(
            "INSERT INTO owner (folder, levels, model, kv_rank, object_group, suffix) VALUES (?, ?, ?, ?, ?, ?)",
            identity,
        )
        return self._add(make_owner(int(cursor.lastrowid or 0), *identity))

    def _salt(self, parsed: ParsedName) -> int:
        if not parsed.cache_salt:
            return 0
        found = self.salts.get(parsed.cache_salt)
        if found is None:
            self._begin()
            cursor = self._db.execute("INSERT INTO salt (text) VALUES (?)", (parsed.cache_salt,))
            found = self.salts[parsed.cache_salt] = int(cursor.lastrowid or 0)
        return found

    def _new_cohort(self, known: KnownOwner, size: int | None, verdict: Judgement, mtime: int, actual: int) -> Cohort:
        ident = new_cohort_id(self.cohorts, mixed=size is None)
        cohort = Cohort(
            ident,
            known.owner.id,
            size,
            verdict.cls,
            verdict.reason,
            verdict.epoch,
            0,
            0,
            mtime,
            mtime,
            actual,
            actual,
        )
        self.cohorts[ident] = cohort
        known.cohort_ids.add(ident)
        return cohort


def split_folder(folder: str, temp_dirs: tuple[str, ...]) -> tuple[str, str, str] | None:
    """(temporary directory or "", lengths of hash sub-directories, the prefix they are); None: no record lies there."""
    if not folder:
        return "", "", ""
    kind = folder_kind(folder, temp_dirs)
    if kind is None:
        return None
    parts = folder.split("/")
    cut = len(parts)
    length = 0
    while length < len(kind.hash_prefix):
        cut -= 1
        length += len(parts[cut])
    return "/".join(parts[:cut]), ",".join(str(len(part)) for part in parts[cut:]), kind.hash_prefix


def new_cohort_id(used: Iterable[int], *, mixed: bool) -> int:
    """A free id: negative for cohorts of mixed sizes (they alone are indexed by size)."""
    ids = list(used)
    return min([0, *ids]) - 1 if mixed else max([0, *ids]) + 1
