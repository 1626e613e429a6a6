"""Ready policies, and the sentences that say what any policy does. Pure."""

from __future__ import annotations

from typing import Any

from app.cleanup.policy import DEFAULT_REASONS, LAYOUT_CHANGE, SPACE_KINDS, PolicySpec, Select
from app.cleanup.schemas import PresetView

_SAFE_SELECT: list[dict[str, Any]] = [
    {"kind": "incompatible"},
    {"kind": "corrupt"},
    {"kind": "unreachable"},
    {"kind": "derived"},
    {"kind": "temporary", "older_than": "24h"},
]


def presets() -> list[PresetView]:
    """The ready policies, safest first. Each `policy` needs only a `store_id`."""
    return [
        PresetView(
            id="keep_it_safe",
            title="Keep it safe",
            description="Takes what is proven wrong or of no use, and nothing else: records of another layout or "
            "another size, declared out of date, derived from wrong ones, damaged, unreachable, old unfinished writes. "
            "Every night at 02:30, and whenever a layout changes. Everything waits seven days in quarantine.",
            policy={
                "name": "Keep it safe",
                "schedule": f"30 2 * * * {LAYOUT_CHANGE}",
                "timezone": "UTC",
                "enabled": True,
                "select": _SAFE_SELECT,
                "removal": "quarantine",
                "quarantine_for": "7d",
            },
        ),
        PresetView(
            id="keep_under_85",
            title="Keep it under 85 %",
            description="Every 15 minutes. Wrong, damaged and unreachable records go at every run, however empty the "
            "file system is; when it is more than 85 % full, the least recently used go too, until it is 70 % full. "
            "Deletes for good; only records of another size wait in quarantine. Leaves alone what was written in the "
            "last hour and, unless it is wrong, what was read in the last 24 hours.",
            policy={
                "name": "Keep it under 85 %",
                "schedule": "*/15 * * * *",
                "timezone": "UTC",
                "enabled": True,
                "select": [
                    {"kind": "corrupt"},
                    {"kind": "unreachable"},
                    {"kind": "incompatible"},
                    {"kind": "capacity", "high": "85%", "low": "70%"},
                ],
                "protect": {"accessed_within": "24h", "written_within": "1h"},
                "removal": "delete",
            },
        ),
        PresetView(
            id="two_weeks_unused",
            title="Two weeks unused",
            description="Every night at 03:00, moves records that nobody has read or written for fourteen days into "
            "quarantine, where they wait three days.",
            policy={
                "name": "Two weeks unused",
                "schedule": "0 3 * * *",
                "timezone": "UTC",
                "enabled": True,
                "select": [{"kind": "unused", "for": "14d", "age_only": False}],
                "limits": {"max_fraction": 0.5},
                "removal": "quarantine",
                "quarantine_for": "3d",
            },
        ),
    ]


def describe(spec: PolicySpec) -> list[str]:
    """One sentence for each thing a policy takes, protects and is limited by."""
    # Beside a goal of space the classes read as if they, too, waited for the disk to fill.
    fills = any(s.kind in SPACE_KINDS for s in spec.select)
    always = " at every run, however full the file system is" if fills else ""
    found = [_describe_select(s, always) for s in spec.select]
    if spec.protect.accessed_within:
        found.append(f"Leaves records alone that were read in the last {spec.protect.accessed_within} (wrong ones go).")
    if spec.protect.written_within:
        found.append(f"Leaves records alone that were written in the last {spec.protect.written_within}.")
    if spec.protect.models:
        found.append(f"Never touches records of {', '.join(spec.protect.models)}.")
    limits = [
        f"{spec.limits.max_records} records" if spec.limits.max_records else "",
        f"{spec.limits.max_bytes}" if spec.limits.max_bytes else "",
        f"{spec.limits.max_fraction:.0%} of the store" if spec.limits.max_fraction else "",
    ]
    if any(limits):
        found.append(f"Stops after {' or '.join(part for part in limits if part)}.")
    if spec.removal == "delete":
        waits = "other_size" in spec.reasons_of("incompatible")
        size = "; only records of another size wait in quarantine" if waits else ""
        found.append(f"Deletes at once, which cannot be undone{size}.")
    else:
        wait = f"for {spec.quarantine_for}" if spec.quarantine_for else "until somebody purges it"
        found.append(f"What is taken waits in quarantine {wait}.")
    return found


def _describe_select(item: Select, always: str = "") -> str:
    """`always` follows what is taken for what it is, not for its use."""
    if item.kind in DEFAULT_REASONS:
        return f"Takes {item.kind} records ({', '.join(sorted(item.reasons))}){always}."
    if item.kind == "derived":
        return f"Takes records that were computed behind wrong ones (derived){always}."
    if item.kind == "temporary":
        return f"Takes unfinished writes older than {item.age} that nobody holds open."
    if item.kind == "unused":
        if item.age_only:
            return f"Takes records written {item.age} or longer ago, read since or not."
        return f"Takes records that nobody used for {item.age}."
    if item.kind == "capacity":
        whole = "the file system is" if item.high and item.high.bytes is None else "the store holds"
        return f"Above {item.high} ({whole} that full), deletes the least recently used records down to {item.low}."
    return f"Deletes the least recently used records until {item.floor} of the file system is free."
