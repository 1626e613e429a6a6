"""When a store is full, and whether one may say so."""

from __future__ import annotations

import pytest

from app.clock import iso
from app.records.schemas import Count, GrowthPointView
from app.web.growth import Outlook, class_layers, outlook
from tests.unit.web import records_samples as k
from tests.unit.web import samples as s

GB = 10**9


def points(*sizes: float) -> list[GrowthPointView]:
    return [
        GrowthPointView(
            at=iso(s.NOW - 3600 * (len(sizes) - n)) or "",
            scan_id=str(n),
            by_class={"total": Count(records=1, bytes=round(size * GB))},
        )
        for n, size in enumerate(sizes)
    ]


def of(*sizes: float, growth: float | None = 10.0, hours: float | None = 20.0) -> Outlook:
    per_hour = None if growth is None else growth * GB
    summary = k.summary(clean=True).model_copy(update={"growth_bytes_per_hour": per_hour, "full_in_hours": hours})
    return outlook(summary, points(*sizes))


def test_a_line_is_steady() -> None:
    found = of(10, 20, 30, 41, 50)
    assert (found.hours, found.steady) == (20.0, True)


def test_a_cleanup_between_two_scans_is_no_jump() -> None:
    assert of(10, 20, 30, 30.5, 40, 5, 15, 25).steady


def test_jumps_are_told_with_their_bounds() -> None:
    found = of(10, 11, 12, 80, 81)
    assert not found.steady
    assert found.soonest is not None
    assert found.soonest < 20
    assert found.latest is None or found.latest > 20


@pytest.mark.parametrize("sizes", [(), (10,), (10, 20, 30)])
def test_too_few_scans_are_not_called_steady(sizes: tuple[float, ...]) -> None:
    assert not of(*sizes).steady


def test_what_does_not_grow_is_not_foreseen() -> None:
    assert of(10, 10, 10, 10, growth=0.0, hours=None).hours is None
    assert of(growth=None, hours=None).hours is None


def test_the_chart_of_classes_stands_on_the_largest_sum() -> None:
    shown = class_layers(k.growth())
    assert shown.high == 13 * 10**11
    tops = [sum(values[n] for _, values in shown.layers) for n in range(8)]
    assert max(tops) == pytest.approx(1.0)
    assert {key for key, _ in shown.layers} == {"current", "unverified", "incompatible"}
    assert class_layers(k.growth()[:1]).layers == ()
