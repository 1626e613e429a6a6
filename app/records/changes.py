"""Small changes to an inventory between scans: what a run of ours took out, and what it put back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.lmcache.object_keys import parse_name
from app.records.classify import Context
from app.records.facts import FileFact
from app.records.inventory_file import HARD_LINKS, Inventory
from app.records.owners import OwnerBook, split_folder
from app.records.scanner import COHORT, ID, INSERT_ROW, MTIME, SIZE, Stored, find_rows

_BATCH = 500


def remove_names(inventory: Inventory, names: Iterable[bytes], temp_dirs: tuple[str, ...]) -> tuple[int, int]:
    """Takes records out by name; (records, bytes) that were there. Safe beside a scan."""
    places = _Places(inventory, temp_dirs)
    records = size = 0
    batch: list[bytes] = []
    for name in names:
        batch.append(name)
        if len(batch) >= _BATCH:
            gone, bytes_gone = _remove(inventory, places, batch)
            records, size, batch = records + gone, size + bytes_gone, []
    gone, bytes_gone = _remove(inventory, places, batch)
    return records + gone, size + bytes_gone


def _remove(inventory: Inventory, places: _Places, names: Sequence[bytes]) -> tuple[int, int]:
    records = size = 0
    with inventory.write() as db:
        for name in names:
            found = places.find(name)
            if found is None:
                continue
            owner, salt, chunk_hash = found
            cohorts = [row[0] for row in db.execute("SELECT id FROM cohort WHERE owner=?", (owner,))]
            for stored in find_rows(db, cohorts, (owner, salt, chunk_hash)):
                _take_out(inventory, stored)
                records += 1
                size += stored[SIZE]
    return records, size


def add_facts(inventory: Inventory, facts: Sequence[FileFact], context: Context, temp_dirs: tuple[str, ...]) -> int:
    """Puts records in (or brings their facts up to date); returns how many. Needs the inventory's lock."""
    book = OwnerBook(inventory, context, temp_dirs)
    known = set(book.cohorts)
    added = 0
    with inventory.write() as db:
        for fact in facts:
            folder, _, base = fact.name.decode("utf-8", "surrogateescape").rpartition("/")
            place = book.place(folder)
            parsed = book.parse(place, base) if place is not None else None
            if parsed is None or not fact.regular:
                continue
            owner, salt, chunk_hash = parsed
            for stored in find_rows(db, owner.cohort_ids & known, (owner.owner.id, salt, chunk_hash)):
                _take_out(inventory, stored)
            cohort = book.cohort(owner, fact.mtime_ns, fact.size)
            if cohort not in known:
                inventory.insert_cohort(book.cohorts[cohort])
                known.add(cohort)
            inode = fact.inode if fact.inode < 2**63 else fact.inode - 2**64
            flags = 0 if fact.nlink == 1 else HARD_LINKS
            times = (fact.mtime_ns, fact.ctime_ns, fact.atime_ns)
            db.execute(INSERT_ROW, (cohort, owner.owner.id, salt, chunk_hash, fact.size, *times, inode, flags))
            inventory.move_cohort_counts([(1, fact.size, fact.mtime_ns, fact.mtime_ns, fact.size, fact.size, cohort)])
            added += 1
    return added


def _take_out(inventory: Inventory, stored: Stored) -> None:
    inventory.db.execute("DELETE FROM record WHERE id=?", (stored[ID],))
    bounds = (stored[MTIME], stored[MTIME], stored[SIZE], stored[SIZE])
    inventory.move_cohort_counts([(-1, -stored[SIZE], *bounds, stored[COHORT])])


class _Places:
    """Owner and salt ids of names, without making new ones."""

    def __init__(self, inventory: Inventory, temp_dirs: tuple[str, ...]) -> None:
        self._db = inventory.db
        self._temp_dirs = temp_dirs
        self._owners = {owner.identity: owner.id for owner in inventory.owners().values()}

    def find(self, name: bytes) -> tuple[int, int, bytes] | None:
        """(owner id, salt id, hash); None for a name the inventory cannot hold."""
        parsed = parse_name(name, self._temp_dirs)
        place = split_folder(parsed.folder, self._temp_dirs) if parsed is not None else None
        if parsed is None or place is None:
            return None
        identity = (*place[:2], parsed.model, parsed.kv_rank, parsed.object_group_id, parsed.suffix)
        owner = self._owners.get(identity)
        if owner is None:
            return None
        if not parsed.cache_salt:
            return owner, 0, parsed.chunk_hash
        salt = self._db.execute("SELECT id FROM salt WHERE text=?", (parsed.cache_salt,)).fetchone()
        return (owner, salt[0], parsed.chunk_hash) if salt is not None else None
