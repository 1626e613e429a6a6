"""Whether the panel sees anything at all: when nothing answers, the panel's own network is the likely cause."""

from __future__ import annotations

from app.alerts.inputs import Moment
from app.alerts.model import PANEL, Fact


def panel_sight(moment: Moment) -> Fact:
    """Rule: servers and engines that are unreachable / those whose state is known, on how many hosts; and how long ago
    the last poll of any of them ended, good or not."""
    targets = [*moment.servers.values(), *moment.engines.values()]
    known = [t for t in targets if t.health_state != "unknown"]
    if not known:
        return Fact("panel_sight", PANEL, unknown="no server or engine has been polled yet")
    polled = [t.polled_at for t in targets if t.polled_at is not None]
    lost = [t for t in known if t.health_state == "unreachable"]
    return Fact(
        "panel_sight",
        PANEL,
        {
            "targets": float(len(known)),
            "unreachable": float(len(lost)),
            "hosts": float(len({t.host for t in known})),
            "last_poll": max(0.0, moment.now - max(polled)) if polled else None,
            "interval": moment.interval,
        },
    )
