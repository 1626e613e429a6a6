"""Epochs as people see them: what no known field sets apart is one epoch, however often more became known of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from app.clock import iso, iso_ns
from app.lmcache.layouts import FieldKind, KVLayout, ObjectGroup, Verdict, compare_layouts, expected_object_bytes
from app.records.epoch_counts import EpochCount, EpochKey
from app.records.schemas import EpochView
from app.records.tables import LayoutEpoch

_MEANING = {
    FieldKind.HARD: "decides bytes",
    FieldKind.LABEL: "LMCache's name for the layout; decides only under one LMCache version",
    FieldKind.SOFT: "test again",
}


class Fold(NamedTuple):
    """Rows of one owner that differ by no known field, oldest first. `known`: what they tell together; `shown`: the one
    that stands for all, which tells the most."""

    rows: tuple[Any, ...]
    known: KVLayout
    shown: Any

    @property
    def spans(self) -> list[dict[str, Any]]:
        """When it was possible, oldest first."""
        return sorted((span for row in self.rows for span in row.spans), key=lambda span: float(span["from"]))

    @property
    def start(self) -> float:
        """When it first was, epoch seconds."""
        return min(started(row) for row in self.rows)


def folds(rows: Iterable[Any]) -> list[Fold]:
    """The observed ones among rows (of `LayoutEpoch`, or of columns of it) as epochs, oldest first.

    A poll may know less of a layout than another: of an engine that was not read yet, by a panel that just started.
    Each row joins the last epoch of its model and world size from which no known field sets it apart.
    """
    found: list[tuple[list[Any], KVLayout]] = []
    for row in sorted((row for row in rows if row.kind == "observed"), key=lambda row: (started(row), row.id or 0)):
        layout = KVLayout.from_json(row.layout)
        at = next((n for n in reversed(range(len(found))) if _continues(found[n], row, layout)), None)
        if at is None:
            found.append(([row], layout))
            continue
        members, known = found.pop(at)
        found.append(([*members, row], more_known(known, layout)))
    return sorted(
        (Fold(tuple(members), known, _best(members)) for members, known in found), key=lambda fold: fold.start
    )


def _continues(fold: tuple[list[Any], KVLayout], row: Any, layout: KVLayout) -> bool:
    first = fold[0][0]
    return (first.model_name, first.world_size) == (row.model_name, row.world_size) and not differ(fold[1], layout)


def differ(a: KVLayout, b: KVLayout) -> bool:
    """Whether any field, also one that decides no bytes, is known of both and not equal."""
    return bool(compare_layouts(a, b).differences)


def more_known(layout: KVLayout, other: KVLayout) -> KVLayout:
    """The first with what only the second tells; for two that do not differ."""
    told = {
        name: theirs
        for name, mine in vars(layout).items()
        if name in KVLayout.__dataclass_fields__ and mine in (None, ()) and (theirs := getattr(other, name)) is not None
    }
    if layout.groups and other.groups:
        by_index = {group.index: group for group in other.groups}
        told["groups"] = tuple(_more_of_group(group, by_index.get(group.index)) for group in layout.groups)
    return replace(layout, **told)


def _more_of_group(group: ObjectGroup, other: ObjectGroup | None) -> ObjectGroup:
    if other is None:
        return group
    told = {
        name: getattr(other, name)
        for name in ObjectGroup.__dataclass_fields__
        if getattr(group, name) is None and getattr(other, name) is not None
    }
    return replace(group, **told)


def _best(members: list[Any]) -> Any:
    return members[0] if len(members) == 1 else max(members, key=_tells)


def _tells(row: Any) -> tuple[int, float, int]:
    layout = KVLayout.from_json(row.layout)
    known = sum(value not in (None, ()) for value in layout.to_dict().values())
    known += sum(value is not None for group in layout.groups for value in (group.layers, group.dtype, group.is_mla))
    return known, started(row), row.id or 0


def epoch_views(rows: Sequence[LayoutEpoch], counts: Mapping[EpochKey, EpochCount] | None) -> list[EpochView]:
    """Newest first. `counts`: records by (model, world size, fingerprint); None before the first scan."""
    found = folds(rows)
    holder = _holders(found)
    views = [
        _view(fold.shown, fold, _changes(_before(fold, found), fold), _counted(number, fold, holder, counts), counts)
        for number, fold in enumerate(found)
    ]
    views += [_view(row, None, [], None, counts) for row in rows if row.kind != "observed"]
    return sorted(views, key=lambda view: view.possible_from or view.effective_at or view.created_at, reverse=True)


def _holders(found: Sequence[Fold]) -> dict[EpochKey, int]:
    """Whose the records of each fingerprint are, as the number of an epoch. Two that differ only in what decides no
    bytes write the same: the newest stands for both."""
    return {_key(row): number for number, fold in enumerate(found) for row in fold.rows if row.fingerprint}


def _key(row: Any) -> EpochKey:
    return row.model_name, row.world_size or 0, row.fingerprint or ""


def _counted(
    number: int, fold: Fold, holder: Mapping[EpochKey, int], counts: Mapping[EpochKey, EpochCount] | None
) -> EpochCount | None:
    keys = {_key(row) for row in fold.rows if holder.get(_key(row)) == number}
    parts = [part for key in keys if (part := (counts or {}).get(key)) is not None]
    if not parts:
        return None
    return EpochCount(
        sum(part.records for part in parts),
        sum(part.bytes for part in parts),
        min(part.first_written for part in parts),
        max(part.last_written for part in parts),
    )


def started(row: Any) -> float:
    """When a row's layout first was possible, epoch seconds."""
    return min((float(span["from"]) for span in row.spans), default=float(row.created_at))


def _before(fold: Fold, found: Sequence[Fold]) -> Fold | None:
    """What came last before this one first did, of the same owner; after A → B → A → C that is A, not B."""
    owner = fold.shown.model_name, fold.shown.world_size
    earlier = [
        (max(starts), other)
        for other in found
        if other is not fold
        and (other.shown.model_name, other.shown.world_size) == owner
        and (starts := [float(span["from"]) for span in other.spans if float(span["from"]) < fold.start])
    ]
    return max(earlier, key=lambda item: item[0])[1] if earlier else None


def _changes(old: Fold | None, new: Fold) -> list[dict[str, Any]]:
    if old is None:
        return []
    found = compare_layouts(old.known, new.known)
    return [
        {
            "field": item.field,
            "old": item.old,
            "new": item.new,
            "kind": str(item.kind),
            "meaning": _MEANING[item.kind]
            if item.kind is not FieldKind.LABEL or found.verdict is not Verdict.DIFFERENT
            else "decides bytes",
        }
        for item in found.differences
    ]


def _record_bytes(row: LayoutEpoch) -> list[int] | None:
    """What the layout says one record holds, by object group in ascending order; None where it does not say."""
    if not row.layout:
        return None
    layout = KVLayout.from_json(row.layout)
    sizes = [expected_object_bytes(layout, group.index) for group in layout.groups]
    known = [size for size in sizes if size is not None]
    return known if known and len(known) == len(sizes) else None


def _view(
    row: LayoutEpoch,
    fold: Fold | None,
    changes: list[dict[str, Any]],
    count: EpochCount | None,
    counts: Mapping[EpochKey, EpochCount] | None,
) -> EpochView:
    spans = fold.spans if fold is not None else []
    ended = [span["until"] for span in spans]
    scanned = counts is not None
    return EpochView(
        id=str(row.id),
        kind=row.kind,
        model_name=row.display_model,
        world_size=row.world_size,
        fingerprint=row.fingerprint,
        layout=row.layout or None,
        live=any(member.live for member in fold.rows) if fold is not None else row.live,
        possible_from=iso(min(span["from"] for span in spans)) if spans else None,
        certain_from=iso(min(span["first_listed"] for span in spans)) if spans else None,
        ended_at=iso(max(ended)) if spans and None not in ended else None,
        spans=[{name: iso(value) for name, value in span.items()} for span in spans],
        changes=changes,
        records=count.records if count else 0 if scanned else None,
        bytes=count.bytes if count else 0 if scanned else None,
        mean_record_bytes=round(count.bytes / count.records) if count else None,
        layout_record_bytes=_record_bytes(row),
        first_written_at=iso_ns(count.first_written) if count else None,
        last_written_at=iso_ns(count.last_written) if count else None,
        effective_at=iso(row.effective_at),
        reason=row.reason,
        actor=row.actor,
        created_at=iso(row.created_at) or "",
    )


def epoch_ids(found: Sequence[Fold]) -> dict[EpochKey, int]:
    """The epoch shown for the records of each model, world size and fingerprint; two models may well have layouts of
    one fingerprint."""
    return {key: found[number].shown.id for key, number in _holders(found).items()}


def keys_of(found: Sequence[Fold]) -> dict[int, frozenset[EpochKey]]:
    """What the records of each epoch are filed under, by the id of any of its rows: an older link still holds."""
    return {row.id: frozenset(_key(member) for member in fold.rows) for fold in found for row in fold.rows}
