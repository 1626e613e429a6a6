"""Records that are proven wrong or dead, at the last scan."""

from __future__ import annotations

from app.alerts.inputs import Moment, StoreInput
from app.alerts.model import Fact


def record_classes(moment: Moment, store: StoreInput) -> Fact:
    """Rule: records of the classes *incompatible* and *corrupt* in the inventory."""
    if store.records is None or store.scanned_at is None:
        return Fact("record_classes", store.subject, unknown="never scanned")
    return Fact(
        "record_classes",
        store.subject,
        {
            "incompatible": float(store.records.get("incompatible", 0)),
            "corrupt": float(store.records.get("corrupt", 0)),
            "age": max(0.0, moment.now - store.scanned_at),
        },
    )
