"""The directory of a store: can it be used, how much room is left, when will it be full."""

from __future__ import annotations

from app import disk_room
from app.alerts.inputs import Moment, StoreInput
from app.alerts.model import Fact


def store_usable(moment: Moment, store: StoreInput) -> Fact:
    """Rule: the last look at the directory; a file system that does not answer in time is not usable either."""
    if store.checked_at is None:
        return Fact("store_usable", store.subject, unknown="not looked at yet")
    return Fact(
        "store_usable",
        store.subject,
        {"usable": float(store.usable is True), "answered": float(store.usable is not None)},
        {"reason": store.usable_reason or "", "path": store.path},
    )


def store_room(moment: Moment, store: StoreInput) -> Fact:
    """Rule: free bytes (for a plain user) and inodes of the file system at the last look, and the free share of what
    can be used, as ``df`` counts it: what the file system keeps back for root is neither used nor free."""
    room = disk_room.room(store)
    if room is None or not room.whole or not store.usable:
        return Fact("store_room", store.subject, unknown=store.usable_reason or "not looked at yet")
    return Fact(
        "store_room",
        store.subject,
        {
            "free": room.free,
            "whole": room.whole,
            "share": room.free / room.whole,
            "inodes": store.inodes_free,
        },
    )


def time_to_full(moment: Moment, store: StoreInput) -> Fact:
    """Rule: free bytes / growth an hour, where growth is the slope of the bytes ever written over the scans of the last
    week (what cleanup took away is counted in: cleaning is not shrinking)."""
    if store.free_bytes is None:
        return Fact("time_to_full", store.subject, unknown=store.usable_reason or "not looked at yet")
    if store.growth_per_hour is None:
        return Fact("time_to_full", store.subject, unknown=store.growth_reason or "never scanned")
    if store.growth_per_hour <= 0:
        return Fact("time_to_full", store.subject, {"growth": store.growth_per_hour}, quiet="it does not grow")
    return Fact(
        "time_to_full",
        store.subject,
        {"hours": store.free_bytes / store.growth_per_hour, "growth": store.growth_per_hour, "free": store.free_bytes},
    )
