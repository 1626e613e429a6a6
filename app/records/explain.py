"""Classes and reasons in sentences, with the rule they rest on (docs: the rules of classification)."""

from __future__ import annotations

_RULES: dict[tuple[str, str | None], tuple[str, str]] = {
    ("current", None): ("C4", "Every layout that can have been written then is the one live layout."),
    ("incompatible", "other_layout"): (
        "C4",
        "Only layouts that decide other bytes than the live one can have been written then; a hit on it gives wrong "
        "answers.",
    ),
    ("incompatible", "other_size"): (
        "C6",
        "What wrote it is not known, but no record of the live layout has this size.",
    ),
    ("incompatible", "declared"): ("C4", "It is older than a declared generation of its model."),
    ("incompatible", "model_not_served"): ("C5", "No server of the store has served its model for a long time."),
    ("incompatible", "other_world_size"): (
        "C5",
        "Its model is served with another world size, and nobody has used this one for a long time.",
    ),
    ("incompatible", "unknown_object_group"): (
        "C5",
        "The live layout has no such object group, and none has had it for a long time.",
    ),
    ("corrupt", "empty"): (
        "C6",
        "It has no bytes and is no fresh write: every load of it fails, and stores skip a name that exists.",
    ),
    ("corrupt", "short"): (
        "C6",
        "It is shorter than every record of its layout: every load of it fails and never heals.",
    ),
    ("corrupt", "long"): ("C6", "It is longer than every record of its layout."),
    ("unreachable", "legacy_name"): (
        "C7",
        "Its name has no object group; every server of the store runs a version that never looks such names up.",
    ),
    ("temporary", None): ("C7", "An unfinished write: it has a record's name in a temporary place."),
    ("unverified", "before_first_seen"): (
        "C4",
        "It was written before the panel knew what was written here. Adopting what was there before is up to you.",
    ),
    ("unverified", "observation_gap"): (
        "C4",
        "It was written while the panel did not see every server of the store: the panel was stopped, a poll came late "
        "on a busy host, or none has come since. Nothing speaks against it: it stays and is served. The newest are "
        "judged at the next scan; adopt the rest if you know that no engine was restarted with other settings then.",
    ),
    ("unverified", "mixed_layouts"): (
        "C4",
        "More than one layout can have been written then, or more than one is live: which wrote it cannot be told.",
    ),
    ("unverified", "layout_unknown"): (
        "C4",
        "Its layout, or the live one, is not known well enough to compare them.",
    ),
    ("unverified", "derived"): (
        "C8",
        "The live layout wrote it, but while wrong records could still be read: it may have been computed behind one.",
    ),
    ("unverified", "future_mtime"): ("C4", "Its modification time lies in the future, so its age says nothing."),
    ("foreign", None): ("C7", "Not a record of this adapter; never touched."),
}


def explain(cls: str, reason: str | None) -> tuple[str, str]:
    """(rule, sentence) of a class and reason."""
    return _RULES.get((cls, reason), ("", ""))
