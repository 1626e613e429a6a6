"""Records that are proven wrong or dead, or derived from wrong ones, as known now or last."""

from __future__ import annotations

from dataclasses import replace

from app.alerts.inputs import Moment, StoreInput
from app.alerts.model import Fact
from app.clock import iso


def record_classes(moment: Moment, store: StoreInput) -> Fact:
    """Rule: records of the inventory that are incompatible with a layout that is served (``other_layout``,
    ``other_size``, ``declared``), and corrupt ones. While a server of the store does not answer, classes cannot be
    decided: the numbers are then those that were decided last (nothing has been removed since), with their time."""
    fact = _counted("record_classes", moment, store, incompatible=store.wrong, corrupt=store.corrupt)
    if fact.unknown is not None or store.blind is not None:
        return fact
    # What pages count as the class, so that the alarm can say of how many it tells.
    return replace(fact, numbers={**fact.numbers, "every": float((store.records or {}).get("incompatible", 0))})


def derived_records(moment: Moment, store: StoreInput) -> Fact:
    """Rule: records of the inventory that are ``unverified/derived``: written by the live layout while wrong records
    could be read, and not taken by a run since. While a server of the store does not answer, the number is the one that
    was decided last, with its time."""
    return _counted("derived_records", moment, store, derived=store.derived)


def _counted(name: str, moment: Moment, store: StoreInput, **counts: int) -> Fact:
    if store.records is None or store.scanned_at is None:
        return Fact(name, store.subject, unknown="never scanned")
    numbers: dict[str, float | None] = {
        **{what: float(count) for what, count in counts.items()},
        "age": max(0.0, moment.now - store.scanned_at),
        "known_at": store.known_at,
    }
    words = {}
    if store.blind is not None:
        if store.known_at is None and not any(counts.values()):
            return Fact(name, store.subject, unknown=f"{store.blind}, so classes cannot be decided")
        known = f" when last known {iso(store.known_at)}" if store.known_at is not None else ""
        words["last_known"] = f"{known}; since then {store.blind}" if known else f"; {store.blind}"
        if store.known_at is None:
            # What can be decided without the server is not all: a number of nothing proves nothing.
            numbers |= {what: numbers[what] or None for what in counts}
    return Fact(name, store.subject, numbers, words)
