"""Every part of readiness judged: what shows it, what is known to be wrong, and what nobody knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.acceptance.canary_schemas import CanaryView
from app.acceptance.schemas import LatestView
from app.checks.schemas import CheckCounts, ChecksPage, CheckView
from app.clock import iso
from app.readiness import parts
from app.readiness.facts import DiskFacts, Point, SoakFacts, slope_per_hour
from tests.unit.web import acceptance_samples as a

NOW = 1_796_047_500.0
HOUR = 3600.0
MIB = 2**20


def latest(state: str, *, verdict: str = "pass", passed: bool = True) -> LatestView:
    run = a.acceptance("9", verdict=verdict)
    return LatestView.model_validate(
        {
            "engine_id": "1",
            "state": state,
            "reason": "dtype changed",
            "last_run": run,
            "last_pass": a.acceptance("8") if passed else None,
            "changed": [],
        }
    )


class TestCorrectness:
    def test_a_fresh_pass_is_ready_and_says_what_it_covered(self) -> None:
        part = parts.correctness(latest("fresh"))
        assert part.state == "ready"
        assert part.at is not None
        assert "run 8 passed" in part.text
        assert "requests" in part.text

    def test_a_stale_pass_is_unknown_not_ready(self) -> None:
        part = parts.correctness(latest("stale"))
        assert (part.state, part.action != "") == ("unknown", True)

    def test_the_last_run_failed(self) -> None:
        assert parts.correctness(latest("stale", verdict="fail")).state == "not_ready"

    @pytest.mark.parametrize("passed", [True, False])
    def test_a_later_run_that_proved_nothing_takes_no_failure_back(self, passed: bool) -> None:
        found = latest("stale", verdict="invalid", passed=passed)
        part = parts.correctness(found.model_copy(update={"last_verdict": a.acceptance("7", verdict="fail")}))
        assert part.state == "not_ready"
        assert part.text.startswith("run 7 failed")

    def test_never_tested_is_unknown(self) -> None:
        part = parts.correctness(latest("never", verdict="invalid", passed=False))
        assert (part.state, part.at) == ("unknown", None)


def canary(ident: str, outcome: str, checked: float | None) -> CanaryView:
    return CanaryView.model_validate(
        {
            "id": ident,
            "engine_id": "1",
            "name": f"c{ident}",
            "salt": "tk-x-p01",
            "layout_fingerprint": None,
            "records": 3,
            "created_at": iso(NOW - 90_000),
            "created_by": "admin",
            "run_id": None,
            "last_outcome": outcome,
            "last_checked_at": iso(checked),
            "history": [],
        }
    )


class TestCanaries:
    def test_none_is_unknown(self) -> None:
        assert parts.canaries([], started=None).state == "unknown"

    def test_all_right_since_the_restart(self) -> None:
        kept = [canary("1", "ok", NOW - 60), canary("2", "ok", NOW - 30)]
        part = parts.canaries(kept, started=NOW - 3600)
        assert (part.state, part.at) == ("ready", NOW - 60)

    def test_right_but_before_the_restart_is_unknown(self) -> None:
        assert parts.canaries([canary("1", "ok", NOW - 60)], started=NOW - 30).state == "unknown"

    @pytest.mark.parametrize("outcome", ["lost", "wrong", "drift"])
    def test_one_bad_is_enough(self, outcome: str) -> None:
        part = parts.canaries([canary("1", "ok", NOW), canary("2", outcome, NOW)], started=None)
        assert part.state == "not_ready"
        assert f"c2: {outcome}" in part.text

    @pytest.mark.parametrize("outcome", ["never", "invalid", "error"])
    def test_one_unread_is_unknown(self, outcome: str) -> None:
        kept = [canary("1", "ok", NOW), canary("2", outcome, None if outcome == "never" else NOW)]
        part = parts.canaries(kept, started=None)
        assert part.state == "unknown"
        assert "1 of 2" in part.text


def line(value: float, per_hour: float = 0.0, *, hours: float = 30.0) -> list[Point]:
    """Every five minutes up to now."""
    count = int(hours * 12)
    return [(NOW - (count - i) * 300, value + per_hour * i / 12) for i in range(count)]


GOOD = SoakFacts(
    window=7 * 86_400,
    step=300,
    up_server=line(1),
    up_engine=line(1),
    started=NOW - 40 * HOUR,
    restarts=1,
    failures=0.0,
    memory_server=line(900 * MIB),
    memory_engine=line(700 * MIB),
)


class TestSoak:
    def test_a_day_without_anything_is_ready(self) -> None:
        part = parts.soak(GOOD, NOW)
        assert part.state == "ready", part.text
        assert "30.0 h without" in part.text
        assert "1 restarts" in part.text

    def test_a_young_process_is_unknown(self) -> None:
        part = parts.soak(replace(GOOD, started=NOW - 2 * HOUR), NOW)
        assert part.state == "unknown"
        assert "2.0 h" in part.text

    def test_hours_nobody_looked_are_not_counted(self) -> None:
        gap: list[Point] = [(at, None if at > NOW - 20 * HOUR else v) for at, v in line(1)]
        assert parts.soak(replace(GOOD, up_engine=gap), NOW).state == "unknown"

    def test_an_outage_today_is_not_ready_and_one_last_week_is(self) -> None:
        assert parts.soak(replace(GOOD, outages=[(NOW - HOUR, "engine unreachable: x")]), NOW).state == "not_ready"
        assert parts.soak(replace(GOOD, outages=[(NOW - 28 * HOUR, "engine unreachable: x")]), NOW).state == "ready"

    def test_memory_that_grows_is_not_ready(self) -> None:
        part = parts.soak(replace(GOOD, memory_server=line(900 * MIB, 8 * MIB)), NOW)
        assert part.state == "not_ready"
        assert "+8.00 MiB an hour" in part.text

    def test_failed_loads_are_not_ready_and_unknown_ones_are_said(self) -> None:
        assert parts.soak(replace(GOOD, failures=3.0), NOW).state == "not_ready"
        assert "unknown loads" in parts.soak(replace(GOOD, failures=None), NOW).text

    def test_never_polled(self) -> None:
        part = parts.soak(SoakFacts(7 * 86_400, 300), NOW)
        assert (part.state, part.at) == ("unknown", None)

    def test_the_slope_is_that_of_the_line(self) -> None:
        found = slope_per_hour(line(100, 7), NOW - 10 * HOUR)
        assert found is not None
        assert found[0] == pytest.approx(7)
        assert slope_per_hour(line(100, 7), NOW - 0.5 * HOUR) is None


STORE = DiskFacts("1", "kv", NOW - 60, 2e9, 100.0)


class TestDisk:
    def test_no_store_and_never_scanned_are_unknown(self) -> None:
        assert parts.disk([]).state == "unknown"
        assert parts.disk([replace(STORE, scanned_at=None)]).state == "unknown"

    def test_full_soon_without_a_bound(self) -> None:
        part = parts.disk([STORE])
        assert part.state == "not_ready"
        assert "4.2 days" in part.text

    @pytest.mark.parametrize("bound", [{"bounded_by": ("keep it small",)}, {"evicts": True}])
    def test_a_bound_makes_it_ready(self, bound: dict[str, object]) -> None:
        assert parts.disk([replace(STORE, **bound)]).state == "ready"  # type: ignore[arg-type]

    def test_a_disk_that_lasts_is_not_ready_while_nothing_bounds_it(self) -> None:
        for lasts in ({"full_in_hours": 2000.0}, {"growth_per_hour": 0.0, "full_in_hours": None}):
            part = parts.disk([replace(STORE, **lasts)])  # type: ignore[arg-type]
            assert part.state == "unknown"
            assert "nothing bounds it" in part.text
            assert "policy" in part.action

    def test_growth_not_known(self) -> None:
        assert parts.disk([replace(STORE, growth_per_hour=None, full_in_hours=None)]).state == "unknown"

    def test_the_worst_store_speaks(self) -> None:
        fine = replace(STORE, name="fine", bounded_by=("p",))
        assert "kv" in parts.disk([fine, STORE]).text


def finding(ident: str, verdict: str) -> CheckView:
    return CheckView.model_validate(
        {
            "id": ident,
            "verdict": verdict,
            "subject": "s",
            "title": f"{ident} title",
            "evidence": f"{ident} evidence",
            "fix": "f",
            "source": "x",
        }
    )


def page(*found: CheckView, checked: float | None = NOW) -> ChecksPage:
    counts = {name: sum(item.verdict == name for item in found) for name in ("ok", "warn", "fail", "unknown")}
    return ChecksPage(items=list(found), next_page_token=None, checked_at=iso(checked), counts=CheckCounts(**counts))


class TestSettingsAndScope:
    def test_a_fail_is_named(self) -> None:
        part = parts.settings(page(finding("chunk_size_multiple", "fail"), finding("x", "ok")))
        assert part.state == "not_ready"
        assert "chunk_size_multiple title" in part.text

    def test_warnings_leave_it_ready_and_nothing_looked_at_is_unknown(self) -> None:
        assert parts.settings(page(finding("a", "warn"))).state == "ready"
        assert parts.settings(page(checked=None)).state == "unknown"

    @pytest.mark.parametrize(
        ("found", "scope", "state"),
        [
            ([("version_pair", "ok"), ("unverified_territory", "ok")], "verified", "ready"),
            ([("version_pair", "ok"), ("mamba_cache_mode", "ok")], "by_recipe", "ready"),
            ([("version_pair", "warn")], "unverified", "unknown"),
            ([("unverified_territory", "warn"), ("version_pair", "ok")], "unverified", "unknown"),
            ([("version_pair", "fail")], "known_bad", "not_ready"),
            ([("version_pair", "unknown")], "unknown", "unknown"),
            ([], "unknown", "unknown"),
        ],
    )
    def test_scope(self, found: list[tuple[str, str]], scope: str, state: str) -> None:
        items = [finding(*item) for item in found]
        untested = parts.Part("correctness", "unknown", "", None)
        assert parts.scope_of(items) == scope
        assert parts.scope(items, NOW, untested).state == state

    def test_unverified_territory_with_a_fresh_pass_is_ready(self) -> None:
        tested = parts.Part("correctness", "ready", "", NOW)
        assert parts.scope([finding("version_pair", "warn")], NOW, tested).state == "ready"


def test_what_is_wrong_outweighs_what_is_unknown() -> None:
    def part(state: str) -> parts.Part:
        return parts.Part("disk", state, "", None)  # type: ignore[arg-type]

    assert parts.overall([part("ready"), part("unknown"), part("not_ready")])[0] == "not_ready"
    assert parts.overall([part("ready"), part("unknown")])[0] == "unknown"
    assert parts.overall([part("ready")])[0] == "ready"
