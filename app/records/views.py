"""Inventory rows as the outside sees them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

from app.clock import iso_ns
from app.errors import NotFound
from app.lmcache.object_keys import decode_model
from app.paging import parse_id
from app.records.epoch_counts import EpochKey
from app.records.inventory_file import HARD_LINKS
from app.records.query import RecordRow
from app.records.schemas import RecordClass, RecordView

# One number outside: the store above, the row below. Ids have at most 18 digits.
_ROW_BITS = 40


def record_id(store_id: int, row_id: int) -> int:
    """The outside id of a record, as a number."""
    return store_id << _ROW_BITS | row_id


def row_of(ident: int) -> int:
    """The row behind an id that `record_id` made."""
    return ident & ((1 << _ROW_BITS) - 1)


def split_record_id(text: str) -> tuple[int, int]:
    """(store id, row id). Raises NotFound for anything else."""
    number = parse_id("record", text)
    store_id, row_id = number >> _ROW_BITS, number & ((1 << _ROW_BITS) - 1)
    if not store_id or not row_id:
        raise NotFound.of("record", text)
    return store_id, row_id


def record_view(
    store_id: int, row: RecordRow, epochs: Mapping[EpochKey, int], names: Mapping[str, str], held: Collection[str]
) -> RecordView:
    """One row. `names`: model names as servers use them, by how record names spell them."""
    owner, cohort = row.owner, row.cohort
    rank = owner.kv_rank
    epoch = epochs.get((owner.model, owner.judged.world_size, cohort.epoch)) if cohort.epoch else None
    name = row.name
    return RecordView.model_construct(
        id=str(record_id(store_id, row.id)),
        store_id=str(store_id),
        name=name,
        class_=cast(RecordClass, cohort.cls),
        reason=cohort.reason,
        model_name=names.get(owner.model) or decode_model(owner.model),
        kv_rank=rank,
        world_size=rank >> 24 & 0xFF,
        rank=rank >> 16 & 0xFF,
        object_group_id=owner.group,
        chunk_hash=row.chunk_hash.hex(),
        cache_salt=row.salt,
        size_bytes=row.size,
        modified_at=iso_ns(row.mtime) or "",
        accessed_at=iso_ns(row.atime) or "",
        epoch_id=str(epoch) if epoch is not None else None,
        hard_links=bool(row.flags & HARD_LINKS),
        held=name in held,
    )
