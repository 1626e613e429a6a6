"""Does the device below a store keep up?"""

from __future__ import annotations

from app.alerts.inputs import Moment, StoreInput
from app.alerts.model import Fact


def disk_load(moment: Moment, store: StoreInput) -> Fact:
    """Rule: mean time of a read and of a write of the block device below the store between the last two looks, and the
    share of that time in which it was busy, beside the engines attached to its servers."""
    disk = store.disk
    if disk is None or disk.get("seconds") is None:
        reason = (disk or {}).get("reason") or store.usable_reason or "not looked at yet"
        return Fact("disk_load", store.subject, unknown=str(reason))
    if not disk.get("requests"):
        return Fact("disk_load", store.subject, {"busy": 0.0, "requests": 0.0}, quiet="its device had nothing to do")
    read, write = disk.get("read_latency_seconds"), disk.get("write_latency_seconds")
    engines = [moment.servers[i].engines_registered for i in store.server_ids if i in moment.servers]
    return Fact(
        "disk_load",
        store.subject,
        {
            "read": read,
            "write": write,
            "slowest": max(value for value in (read, write, 0.0) if value is not None),
            "busy": disk.get("busy_ratio"),
            "requests": disk["requests"],
            "engines": None if None in engines else float(sum(count or 0 for count in engines)),
        },
        {"device": str(disk.get("device") or "")},
    )
