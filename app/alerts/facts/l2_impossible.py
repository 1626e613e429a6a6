"""L2 that is looked up and cannot hit."""

from __future__ import annotations

from app.alerts.inputs import Moment, ServerInput
from app.alerts.model import Fact

WINDOW_SECONDS = 900.0


def l2_impossible(moment: Moment, server: ServerInput) -> Fact:
    """Rule: chunks looked up in L2, loads begun and loads completed in fifteen minutes. Loads that all fail (short,
    empty or unreadable records; no room in L1) mean that no hit is possible though records are found. With a hash that
    is another one after each start (`builtin`) records from before the start cannot even be found."""
    window = moment.window(server, WINDOW_SECONDS)
    looked, begun = window.grown("l2_looked_up"), window.grown("l2_load_submitted")
    done, failed = window.grown("l2_load_completed"), window.grown("l2_load_failures")
    if looked is None or begun is None or done is None:
        return Fact("l2_impossible", server.subject, unknown=window.reason or "this version does not count L2 lookups")
    return Fact(
        "l2_impossible",
        server.subject,
        {
            "looked_up": looked,
            "loads": begun,
            "loaded": done,
            "failures": failed,
            "builtin_hash": float(server.hash_algorithm == "builtin"),
            "window": window.seconds,
        },
        quiet="nothing was looked up in L2 in the window" if looked == 0 else None,
    )
