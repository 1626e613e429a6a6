"""The records of runs whose bytes an engine may have read wrongly (R4), streamed: their names, keys and models."""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterator, Sequence

from app.cleanup.chunks import chunks_of_reasons, read_chunk
from app.cleanup.disk import StoreRoot, signed
from app.cleanup.items import ItemRow
from app.cleanup.policy import DIRTY_REASONS
from app.cleanup.ports import CANARY, NAME, Inventory, Selection
from app.cleanup.removal import look
from app.database import Database
from app.lmcache.object_keys import ObjectKey, decode_model, parse_name
from app.records.facts import FileFact


class DirtyItems:
    """Records with a reason of R4 in some plans, and what a run itself found re-created (rounds above 1)."""

    def __init__(self, db: Database, plan_ids: Sequence[int]) -> None:
        self._db = db
        self._plan_ids = tuple(plan_ids)

    def batches(self, states: Collection[str] | None = None) -> Iterator[list[ItemRow]]:
        """In the order of plans and records; only those in some states, where given."""
        for plan_id in self._plan_ids:
            for first_seq in chunks_of_reasons(self._db, plan_id, DIRTY_REASONS):
                chunk = read_chunk(self._db, plan_id, first_seq)
                if chunk is None:
                    continue
                rows = chunk.rows if states is None else chunk.in_state(*states)
                if chunk.round == 1:
                    rows = [row for row in rows if row.reason in DIRTY_REASONS]
                if rows:
                    yield rows

    def models(self, *, states: Collection[str] | None = None) -> frozenset[str]:
        """Models of the records, encoded as in record names."""
        found: set[str] = set()
        for batch in self.batches(states):
            found.update(model for model in (model_of(item.name) for item in batch) if model is not None)
        return frozenset(found)

    def has_other_than_derived(self, states: Collection[str]) -> bool:
        """Whether any record in these states is wrong by itself, not only by what it was computed behind."""
        wrong = DIRTY_REASONS - {"derived"}
        return any(item.reason in wrong for batch in self.batches(states) for item in batch)

    def keys(self, models: frozenset[str], names: dict[str, str]) -> Iterator[list[ObjectKey]]:
        """Keys of the records of these (encoded) models; `names` gives the servers' own spelling of a model."""
        for batch in self.batches():
            found: dict[ObjectKey, None] = {}
            for item in batch:
                parsed = parse_name(item.name)
                if parsed is not None and parsed.model in models and not parsed.temporary:
                    model = names.get(parsed.model, decode_model(parsed.model))
                    key = parsed.key
                    found[ObjectKey(model, key.kv_rank, key.object_group_id, key.chunk_hash, key.cache_salt)] = None
            if found:
                yield list(found)

    def recreated(self, root: StoreRoot, models: frozenset[str], until_ns: int) -> Iterator[tuple[ItemRow, FileFact]]:
        """Files that have the name of an item of these models again, written up to `until_ns` (file system time).

        The very file that was planned (it could not be removed, or is not wrong any more) is none of them. Raises
        OSError.
        """
        seen: set[tuple[bytes, int]] = set()
        for batch in self.batches():
            for item in batch:
                if model_of(item.name) not in models:
                    continue
                found = look(root, item.name)
                if found is None or not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                    continue
                same = (signed(found.st_ino), found.st_mtime_ns) == (item.inode, item.mtime_ns)
                if same or found.st_mtime_ns > until_ns or (item.name, found.st_ino) in seen:
                    continue
                seen.add((item.name, found.st_ino))
                yield item, FileFact.of(item.name, found)


def model_of(name: bytes) -> str | None:
    """The model of a record's name, encoded as it stands there."""
    parsed = parse_name(name)
    return None if parsed is None else parsed.model


def derived_left(inventory: Inventory, store_id: int) -> list[str]:
    """That records which may have been computed behind wrong ones are left, in a sentence, by the last scan.

    What a canary keeps has a salt of its own: nobody else reads it.
    """
    kept = {name for name, why in inventory.held(store_id).items() if why == CANARY}
    derived = Selection(classes={"unverified": frozenset({"derived"})}, hard_links=True)
    left = sum(row[NAME] not in kept for batch in inventory.select(store_id, derived) for row in batch.rows)
    if not left:
        return []
    one = left == 1
    return [
        f"{left:,} record{'' if one else 's'} of this store may be wrong (derived: computed behind wrong ones) and "
        f"{'is' if one else 'are'} served; this run left {'it' if one else 'them'}. A policy such as Keep it safe "
        f"takes {'it' if one else 'them'}."
    ]
