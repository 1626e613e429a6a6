"""Which items of a run a restore or a purge takes. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.cleanup.dirty import model_of
from app.cleanup.items import ItemRow
from app.cleanup.schemas import SELECTION_FILTERS
from app.errors import FieldError, InvalidInput
from app.lmcache.object_keys import encode_model, parse_name
from app.records.facts import display_name

#: Item ids are `i` and the number within the run; record ids are those of the inventory.
_OWN_MARK = "i"


@dataclass(frozen=True)
class ItemFilter:
    """Conditions that all hold; empty is everything."""

    seqs: frozenset[int] | None = None
    record_ids: frozenset[int] = frozenset()
    filters: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, selection: Mapping[str, Any]) -> ItemFilter:
        """From the JSON kept with a job."""
        seqs = selection.get("seqs")
        return cls(
            None if seqs is None else frozenset(seqs),
            frozenset(selection.get("record_ids") or ()),
            dict(selection.get("filter") or {}),
        )

    def takes(self, item: ItemRow) -> bool:
        """Whether an item is chosen."""
        if self.seqs is not None and item.seq not in self.seqs and item.record_id not in self.record_ids:
            return False
        wanted = self.filters
        if not wanted:
            return True
        if wanted.get("class", item.cls) != item.cls or wanted.get("why", item.why) != item.why:
            return False
        if "reason" in wanted and wanted["reason"] != item.reason:
            return False
        if "model" in wanted and model_of(item.name) != encode_model(wanted["model"]):
            return False
        if "salt" in wanted:
            parsed = parse_name(item.name)
            if parsed is None or parsed.cache_salt != wanted["salt"]:
                return False
        return "q" not in wanted or wanted["q"] in display_name(item.name)


def selection_of(record_ids: Sequence[str] | None, filters: Mapping[str, str] | None) -> dict[str, Any]:
    """The JSON to keep with a job. Raises InvalidInput naming the field."""
    problems: list[FieldError] = []
    found: dict[str, Any] = {}
    if record_ids is not None:
        seqs: list[int] = []
        records: list[int] = []
        for index, text in enumerate(record_ids):
            own = text.startswith(_OWN_MARK)
            digits = text[1:] if own else text
            if not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
                problems.append(FieldError(f"record_ids[{index}]", f"{text[:80]!r} is not an id of this run's records"))
                continue
            (seqs if own else records).append(int(digits))
        found |= {"seqs": seqs, "record_ids": records}
    if filters is not None:
        for name in filters:
            if name not in SELECTION_FILTERS:
                near = difflib.get_close_matches(name, SELECTION_FILTERS, n=1, cutoff=0.0)[0]
                problems.append(
                    FieldError(f"filter.{name}", f"is not one of {', '.join(SELECTION_FILTERS)}; the nearest is {near}")
                )
        found["filter"] = dict(filters)
    if problems:
        raise InvalidInput("; ".join(f"{p.field}: {p.message}" for p in problems), errors=tuple(problems))
    return found


def item_id(seq: int) -> str:
    """The outside id of an item within its run."""
    return f"{_OWN_MARK}{seq}"


def item_seq(ident: str) -> int:
    """The number behind an `item_id`."""
    return int(ident.removeprefix(_OWN_MARK))
