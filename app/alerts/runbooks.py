"""Which runbook helps with which alarm: anchors of docs/RUNBOOKS.md. A test holds both sides to each other."""

from __future__ import annotations

from collections.abc import Mapping

PAGE = "RUNBOOKS.md"

_RULES: Mapping[str, tuple[str, ...]] = {
    "the-panel-itself": ("polling_stopped", "panel_blind"),
    "a-cache-server-gives-no-answer": (
        "server_unreachable",
        "server_unhealthy",
        "server_degraded",
        "nobody_registered",
    ),
    "an-engine-gives-no-answer": ("engine_unreachable", "engine_unhealthy", "engine_degraded"),
    "values-are-old": ("server_values_stale", "engine_values_stale"),
    "server-restarted-and-nothing-is-registered": (
        "restart_unnoticed",
        "engine_silent",
        "engine_not_registered",
        "cache_bypassed",
    ),
    "requests-hang": ("requests_hang", "retrieves_stuck"),
    "counters-are-too-low": ("event_bus_dropping",),
    "hit-rate-fell": ("hit_rate_low", "hit_rate_disagrees", "in_process_hit_rate_low"),
    "lmcache-inside-an-engine": ("in_process_unhealthy",),
    "l1-evicts-all-the-time": ("l1_thrash",),
    "the-host-is-at-its-limit": ("server_saturated", "disk_slow", "host_memory_pressure"),
    "stores-to-l2-fail": ("stores_failing",),
    "l2-gives-nothing-back": ("l2_impossible", "writes_never_read"),
    "mixed-layouts": ("mixed_layouts", "mixed_layouts_in_store"),
    "after-an-upgrade": ("layout_changed", "layout_unproven"),
    "answers-look-wrong": ("acceptance_failed", "canary_wrong", "wrong_records", "derived_records"),
    "canaries-are-lost": ("canary_lost",),
    "canaries-have-drifted": ("canary_drift",),
    "a-store-cannot-be-used": ("store_unusable", "store_look_stale"),
    "disk-is-full": ("store_full", "free_space_low", "store_filling"),
    "unfinished-writes": ("temporary_pile_up",),
    "several-servers-in-one-directory": ("shared_directory", "split_engine"),
    "damaged-records": ("dead_records",),
    "a-cleanup-was-not-enough": ("cleanup_insufficient",),
    "a-schedule-did-not-run": ("schedule_missed",),
    "messages-do-not-get-out": ("notifier_failing",),
}
RUNBOOKS: Mapping[str, str] = {rule: f"{PAGE}#{anchor}" for anchor, rules in _RULES.items() for rule in rules}


def runbook_of(rule: str) -> str:
    """The page and anchor for a rule; of one that this version does not know, the page."""
    return RUNBOOKS.get(rule, PAGE)


def runbook_address(rule: str) -> str:
    """The same as an address of the panel, without the prefix."""
    return "/help/runbooks" + runbook_of(rule).removeprefix(PAGE)
