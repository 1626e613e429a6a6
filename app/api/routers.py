"""Every JSON router, listed by hand: what is not here is not served."""

from __future__ import annotations

from fastapi import APIRouter

from app.api import acceptance, auth, cleanup, fleet, records, scheduling, telemetry


def api_routers() -> list[APIRouter]:
    """Routers under /api/v1, in the order of the documentation."""
    return [
        fleet.router,
        telemetry.router,
        records.router,
        cleanup.router,
        acceptance.router,
        scheduling.router,
        auth.router,
    ]
