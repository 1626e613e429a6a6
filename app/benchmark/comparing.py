"""Two ended runs side by side: numbers with their ratio, and everything in which their stacks differ. Pure."""

from __future__ import annotations

from dataclasses import asdict

from app.benchmark import snapshot
from app.benchmark.numbers import speed_up
from app.benchmark.result import MEASURED
from app.benchmark.schemas import (
    BenchmarkRunView,
    ComparedView,
    DifferenceView,
    RunComparisonView,
    ScenarioView,
    SpeedUpView,
)

#: Fields of the request that decide what a number means; when one differs, a ratio compares two questions.
_QUESTION = (
    "form",
    "shape",
    "contexts",
    "tokens",
    "users",
    "turns",
    "prompts",
    "rate",
    "output_tokens",
    "concurrency",
    "prefix_cache",
    "empty_l1",
    "wait_seconds",
)


def compare(a: BenchmarkRunView, b: BenchmarkRunView) -> RunComparisonView:
    """Scenario B of both: one with the cache and one without make an A/B where both engines cannot run at once."""
    warnings = [
        f"run {run.id} is {run.verdict or run.state}: its numbers prove nothing"
        for run in (a, b)
        if run.verdict != "valid"
    ]
    asked = [name for name in _QUESTION if a.request.get(name) != b.request.get(name)]
    if asked:
        warnings.append(f"the runs asked different things: {', '.join(asked)} differ")
    ratio = None
    if a.verdict == b.verdict == "valid" and a.form == b.form:
        found = speed_up(_medians(a), _medians(b))
        ratio = None if found is None else SpeedUpView(**asdict(found))
    before = [((run.snapshots.get("b") or {}).get("before")) for run in (a, b)]
    differences: list[DifferenceView] = []
    if before[0] and before[1]:
        differences = [DifferenceView(**d) for d in snapshot.differences(before[0], before[1])]
    else:
        warnings.append("what was in force is not known of both runs")
    return RunComparisonView(a=a, b=b, speed_up=ratio, rows=_rows(a, b), differences=differences, warnings=warnings)


def _scenario(run: BenchmarkRunView) -> ScenarioView | None:
    return next((s for s in run.result.scenarios if s.name == "b"), None) if run.result is not None else None


def _medians(run: BenchmarkRunView) -> list[float]:
    found = _scenario(run)
    phase = MEASURED[run.form]
    values = (
        []
        if found is None
        else [p.ttft_ms.median for r in found.runs if r.measured for p in r.phases if p.name == phase]
    )
    return [v for v in values if v is not None]


def _rows(a: BenchmarkRunView, b: BenchmarkRunView) -> list[ComparedView]:
    def number(run: BenchmarkRunView, name: str) -> float | None:
        found = _scenario(run)
        if found is None:
            return None
        if name.startswith("ttft_"):
            value = getattr(found.ttft_ms, name.removeprefix("ttft_"))
        elif name == "first_run":
            value = found.first_run_ttft_ms
        else:
            value = getattr(found.tokens, name)
        return None if value is None else float(value)

    rows: list[ComparedView] = []
    for name, title, unit in (
        ("ttft_median", "TTFT of the measured pass, median", "ms"),
        ("ttft_mean", "TTFT of the measured pass, mean", "ms"),
        ("ttft_p99", "TTFT of the measured pass, p99", "ms"),
        ("ttft_low", "lowest run", "ms"),
        ("ttft_high", "highest run", "ms"),
        ("first_run", "first run", "ms"),
        ("l0", "tokens from L0", "tokens"),
        ("l1", "tokens from L1", "tokens"),
        ("l2", "tokens from L2", "tokens"),
        ("recomputed", "tokens recomputed", "tokens"),
        ("share", "share of what can come back", "ratio"),
    ):
        x, y = number(a, name), number(b, name)
        rows.append(ComparedView(name=title, unit=unit, a=x, b=y, ratio=x / y if x is not None and y else None))
    return rows
