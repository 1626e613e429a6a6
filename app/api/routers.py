"""Every JSON router, listed by hand: what is not here is not served."""

from __future__ import annotations

from fastapi import APIRouter

from app.api import (
    acceptance,
    alerts,
    auth,
    benchmark,
    checks,
    cleanup,
    fleet,
    launch,
    readiness,
    records,
    scheduling,
    sizing,
    telemetry,
)


def api_routers() -> list[APIRouter]:
    """Routers under /api/v1, in the order of the documentation."""
    return [
        fleet.router,
        telemetry.router,
        records.router,
        cleanup.router,
        acceptance.router,
        benchmark.router,
        checks.router,
        sizing.router,
        launch.router,
        readiness.router,
        alerts.router,
        scheduling.router,
        auth.router,
    ]
