"""When a store is full, and whether one may say so."""

from __future__ import annotations

import pytest

from app.clock import iso
from app.records.schemas import Count, GrowthPointView
from app.records.summary import growth_error, growth_per_hour
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


def of(*sizes: float, free: float = 200.0) -> Outlook:
    """The outlook of a store with these sizes (GB, an hour apart) and so much free (GB)."""
    written = [(3600.0 * n, size * GB) for n, size in enumerate(sizes)]
    growth, why = growth_per_hour(written)
    error = growth_error(written) if growth is not None else None
    steps = {"full_in_hours": growth, "full_in_hours_soonest": error and (growth or 0) + error}
    steps["full_in_hours_latest"] = (growth or 0) - error if error is not None else None
    hours = {name: free * GB / step if step and step > 0 else None for name, step in steps.items()}
    known = {"growth_bytes_per_hour": growth, "growth_reason": why, "growth_error_bytes_per_hour": error}
    return outlook(k.summary(clean=True).model_copy(update=known | hours | {"growth_scans": len(written)}))


def said(found: Outlook) -> str:
    return found.text.replace("\u00a0", " ")


def test_a_line_is_steady_and_told_as_one_span() -> None:
    found = of(10, 20, 30, 41, 50)
    assert found.steady
    assert said(found) == "19 h 48 m"
    assert "by 5 scans" in found.reason


def test_jumps_are_told_with_their_bounds() -> None:
    found = of(10, 11, 12, 80, 81)
    assert not found.steady
    assert found.soonest is not None
    assert found.hours is not None
    assert found.soonest < found.hours
    assert said(found).endswith(" or longer") if found.latest is None else " to " in said(found)
    assert "give or take" in found.reason
    assert said(of(10, 22, 26, 44, 48, 62)).count(" to ") == 1 or of(10, 22, 26, 44, 48, 62).steady


@pytest.mark.parametrize("sizes", [(10, 20), (10, 20, 30)])
def test_too_few_scans_are_not_called_steady(sizes: tuple[float, ...]) -> None:
    found = of(*sizes)
    assert not found.steady
    assert found.hours == pytest.approx(20)
    assert said(of(10, 20)) == "about 20 h"
    assert "two scans cannot tell" in of(10, 20).reason


def test_what_does_not_grow_is_not_foreseen_and_says_why() -> None:
    assert (of(10, 10, 10, 10).text, of(10, 10, 10, 10).reason) == ("not foreseen", "it does not grow")
    assert (of(10).hours, of(10).reason) == (None, "needs two scans")


def test_the_chart_of_classes_stands_on_the_largest_sum() -> None:
    shown = class_layers(k.growth())
    assert shown.high == 13 * 10**11
    tops = [sum(values[n] for _, values in shown.layers) for n in range(8)]
    assert max(tops) == pytest.approx(1.0)
    assert {key for key, _ in shown.layers} == {"current", "unverified", "incompatible"}
    assert class_layers(k.growth()[:1]).layers == ()
