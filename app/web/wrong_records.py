"""What is wrong in a store, in a line, and why two counts of wrong records differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from app.alerts.schemas import WRONG_REASONS
from app.records.schemas import Count, SummaryView
from app.web import formats

#: Reasons of incompatible records that no request reads: what they are of, which nothing serves.
_UNREAD = {
    "model_not_served": "a model",
    "other_world_size": "a number of ranks",
    "unknown_object_group": "an object group",
}


#: Worst first; what is current needs nobody.
_WORST = ("incompatible", "corrupt", "unreachable", "unverified", "temporary")


def class_line(by_class: Mapping[str, Count]) -> str:
    """What is not current in a store, every class by its name."""
    found = [f"{formats.count(by_class[k].records)} {k}" for k in _WORST if k in by_class and by_class[k].records]
    return ", ".join(found) or "all current"


def incompatible_line(summary: SummaryView) -> str:
    """Why fewer incompatible records are called wrong answers than there are: some are of what nothing serves now.

    Empty where all are, or none.
    """
    unread = {code: count for code in _UNREAD if (count := summary.by_reason.get(code)) is not None and count.records}
    wrong = sum(summary.by_reason[code].records for code in WRONG_REASONS if code in summary.by_reason)
    if not unread:
        return ""
    every = summary.by_class["incompatible"].records if "incompatible" in summary.by_class else wrong
    parts = [f"{formats.count(count.records)} of {_UNREAD[code]}" for code, count in unread.items()]
    listed = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    return (
        f"{formats.count(wrong)} of the {formats.count(every)} incompatible would be served as wrong answers; {listed} "
        "that nothing serves now are read by no request"
    )
