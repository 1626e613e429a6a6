"""Records that are proven wrong or dead, as their classes are known now or were known last."""

from __future__ import annotations

from app.alerts.inputs import Moment, StoreInput
from app.alerts.model import Fact
from app.clock import iso


def record_classes(moment: Moment, store: StoreInput) -> Fact:
    """Rule: records of the inventory that are incompatible with a layout that is served (``other_layout``,
    ``other_size``, ``declared``), and corrupt ones. While a server of the store does not answer, classes cannot be
    decided: the numbers are then those that were decided last (nothing has been removed since), with their time."""
    if store.records is None or store.scanned_at is None:
        return Fact("record_classes", store.subject, unknown="never scanned")
    numbers: dict[str, float | None] = {
        "incompatible": float(store.wrong),
        "corrupt": float(store.corrupt),
        "age": max(0.0, moment.now - store.scanned_at),
        "known_at": store.known_at,
    }
    words = {}
    if store.blind is not None:
        if store.known_at is None and not (store.wrong or store.corrupt):
            return Fact("record_classes", store.subject, unknown=f"{store.blind}, so classes cannot be decided")
        known = f" when last known {iso(store.known_at)}" if store.known_at is not None else ""
        words["last_known"] = f"{known}; since then {store.blind}" if known else f"; {store.blind}"
        if store.known_at is None:
            # What can be decided without the server is not all: a number of nothing proves nothing.
            numbers |= {name: numbers[name] or None for name in ("incompatible", "corrupt")}
    return Fact("record_classes", store.subject, numbers, words)
