"""What the soak part is told: outages by when they ended, restarts by the process starts that were seen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.clock import iso
from app.readiness.service import SOAK_WINDOW, ReadinessService

NOW = 1_796_047_500.0
HOUR = 3600.0


def service(changes: list[tuple[float, str]] = (), seen: list[Any] = ()) -> ReadinessService:  # type: ignore[assignment]
    """Over health changes (hours ago, new state), newest first, and observations."""
    items = [SimpleNamespace(at=iso(NOW - ago * HOUR), new_state=state, reason="why") for ago, state in changes]
    telemetry = SimpleNamespace(
        health_changes=lambda **_: SimpleNamespace(items=items), observations=lambda *_, **__: list(seen)
    )
    return ReadinessService(
        clock=lambda: NOW,
        fleet=None,  # type: ignore[arg-type]
        telemetry=telemetry,  # type: ignore[arg-type]
        records=None,  # type: ignore[arg-type]
        acceptance=None,  # type: ignore[arg-type]
        checks=None,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("changes", "ended_hours_ago"),
    [
        ([], []),
        ([(50, "healthy")], []),
        ([(2, "healthy"), (3, "unreachable"), (50, "healthy")], [2.0]),
        ([(1, "unhealthy"), (50, "healthy")], [0.0]),  # it lasts: it ends now
        ([(2, "degraded"), (3, "healthy")], []),  # it serves
        ([(SOAK_WINDOW / HOUR + 1, "healthy"), (SOAK_WINDOW / HOUR + 2, "unreachable")], []),  # long ago
    ],
)
def test_outages(changes: list[tuple[float, str]], ended_hours_ago: list[float]) -> None:
    found = service(changes)._outages("engine", 1, NOW)
    assert [(NOW - at) / HOUR for at, _ in found] == pytest.approx(ended_hours_ago)


def test_restarts_of_both_are_counted_and_unknown_starts_are_unknown() -> None:
    def seen(server: float | None, engine: float | None) -> Any:
        return SimpleNamespace(process_start=server, engine_starts={"7": engine})

    server, engine = SimpleNamespace(id="1"), SimpleNamespace(id="7")
    rows = [seen(10.0, 20.0), seen(10.0, None), seen(30.0, 40.0), seen(30.0, 50.0)]
    assert service(seen=rows)._restarts(server, engine, NOW) == 1 + 2  # type: ignore[arg-type]
    assert service(seen=[seen(None, None)])._restarts(server, engine, NOW) is None  # type: ignore[arg-type]
    assert service(seen=[seen(10.0, 20.0)])._restarts(server, engine, NOW) == 0  # type: ignore[arg-type]
