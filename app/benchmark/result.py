"""From phases to the result that is stored and shown. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from app.benchmark import schemas as s
from app.benchmark.measures import Measured, Times, busy_seconds, peak_concurrency, sums, times
from app.benchmark.numbers import (
    NoiseFloor,
    SpeedUp,
    Spread,
    across,
    noise_floor,
    paired_speed_up,
    reduction,
    speed_up,
    spread,
)
from app.benchmark.tokens import TierTokens
from app.benchmark.verdict import NOTHING, Seen, conclude

#: Which phase of each form is the one that answers its question.
MEASURED: Final[dict[str, str]] = {
    "two_pass": "second",
    "request_rate": "second",
    "restart": "with_records",
    "accumulation": "first",
    "lookup": "first",
}
PHASE_TITLES: Final[dict[str, str]] = {
    "first": "pass 1",
    "second": "pass 2",
    "cold_start": "cold start",
    "with_records": "after a restart, with records",
    "empty_store": "after a restart, with nothing stored",
}
METRICS: Final[tuple[Literal["ttft", "tpot", "itl"], ...]] = ("ttft", "tpot", "itl")
STATISTICS: Final[tuple[Literal["mean", "median", "p99"], ...]] = ("mean", "median", "p99")


@dataclass(frozen=True)
class Stored:
    """Whether what a phase computed had reached the tiers when the next one began. Counts are chunks."""

    drained: bool | None
    waited_seconds: float
    chunks_expected: int | None
    chunks_in_l2: int | None
    text: str


@dataclass
class PhaseData:
    """One phase of one run of one scenario, with what was done before the next phase began."""

    scenario: str
    repeat: int
    phase: str
    requests: list[Measured] = field(default_factory=list)
    tokens: TierTokens = field(default_factory=TierTokens)
    stored: Stored | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SideInfo:
    """A scenario as it is named in the result."""

    name: str
    title: str
    cache: Literal["lmcache", "none", "new_salts"]
    engine_names: tuple[str, ...]
    server_name: str | None


@dataclass
class RunData:
    """Everything a run saw. `repeats_measured_from`: 1 where run 0 stands beside the others, else 0."""

    form: s.Form
    shape: str
    sides: list[SideInfo]
    measured_from: int = 1
    phases: list[PhaseData] = field(default_factory=list)
    differences: list[dict[str, Any]] = field(default_factory=list)
    only_the_connector: bool | None = None
    files: dict[str, Any] | None = None
    lookups: list[dict[str, Any]] = field(default_factory=list)

    def of(self, scenario: str, phase: str, *, measured: bool = True) -> list[PhaseData]:
        """The phases of that name, of the measured runs unless said otherwise."""
        return [
            p
            for p in self.phases
            if p.scenario == scenario and p.phase == phase and (not measured or p.repeat >= self.measured_from)
        ]


def phase_title(phase: str) -> str:
    """A phase in words; the request-rate form calls its passes runs, which the pages say themselves."""
    return PHASE_TITLES.get(phase) or phase.replace("_", " ")


def build(run: RunData, *, valid: bool) -> s.ResultView:
    """The result of a run; of one that is not valid the numbers stay, without any conclusion or speed-up."""
    phase = MEASURED[run.form]
    medians = {side.name: _medians(run.of(side.name, phase)) for side in run.sides}
    noise, noise_of = _noise(run, phase)
    ratio = speed_up(medians.get("a", []), medians.get("b", [])) if valid else None
    paired = _paired(run, phase) if valid and ratio is not None else None
    b = next((side for side in run.sides if side.name == "b"), None)
    tokens = _tokens(run.of("b", phase)) if b is not None else None
    told = _conclusion(run, phase, ratio, noise, tokens) if valid else s.ConclusionView(**asdict(NOTHING))
    return s.ResultView(
        ttft_ms=None if b is None else _across(run.of("b", phase)),
        tokens=None if tokens is None else s.TokensView(**tokens.to_json()),
        scenarios=[_scenario(run, side, phase) for side in run.sides],
        speed_up=None if ratio is None else s.SpeedUpView(**asdict(ratio)),
        paired_speed_up=paired,
        noise_floor=None
        if noise is None
        else s.NoiseView(
            scenario=noise_of,
            relative=noise.relative,
            absolute_ms=noise.absolute,
            runs=noise.runs,
            repeated=noise.repeated,
        ),
        reductions=_reductions(run) if run.form == "request_rate" else [],
        first_run_cost=_first_run_cost(run) if valid and run.form == "request_rate" else None,
        differences=[s.DifferenceView(**d) for d in run.differences],
        only_the_connector=run.only_the_connector,
        conclusion=told,
        files=None if run.files is None else s.FilesView(**run.files),
        lookups=[s.LookupPointView(**point) for point in run.lookups],
    )


def _medians(phases: Iterable[PhaseData]) -> list[float]:
    found = [times(p.requests).ttft_ms.median for p in phases]
    return [m for m in found if m is not None]


def _noise(run: RunData, phase: str) -> tuple[NoiseFloor | None, str]:
    """Of scenario A where there is one (an A/A repeat), else of B."""
    name = "a" if any(side.name == "a" for side in run.sides) else "b"
    return noise_floor(_medians(run.of(name, phase)), _medians(run.of(f"{name}2", phase, measured=False))), name


def _paired(run: RunData, phase: str) -> s.IntervalView | None:
    def by_key(scenario: str) -> dict[Hashable, float]:
        return {(p.repeat, r.position): r.ttft for p in run.of(scenario, phase) for r in p.requests if r.ok and r.ttft}

    found = paired_speed_up(by_key("a"), by_key("b"))
    return None if found is None else s.IntervalView(**asdict(found))


def _conclusion(
    run: RunData, phase: str, ratio: SpeedUp | None, noise: NoiseFloor | None, tokens: TierTokens | None
) -> s.ConclusionView:
    if run.form == "lookup":
        return s.ConclusionView(kind="none", text=_lookup_text(run))
    if run.form == "accumulation":
        return s.ConclusionView(kind="none", text=_files_text(run))
    if run.form == "restart":
        return _restart_conclusion(run)
    of_a, of_b = across(_medians(run.of("a", phase))), across(_medians(run.of("b", phase)))
    first = across(_medians(run.of("b", "first")))
    found = conclude(
        Seen(
            shape=run.shape,
            median_b=of_b.median if of_b else None,
            first_b=first.median if first else None,
            median_a=of_a.median if of_a else None,
            speed_up=ratio,
            noise=noise,
            tokens=tokens,
        )
    )
    return s.ConclusionView(kind=found.kind, text=found.text)


def _restart_conclusion(run: RunData) -> s.ConclusionView:
    medians = {name: across(_medians(run.of("b", name))) for name in ("cold_start", "with_records", "empty_store")}
    cold, records, empty = medians["cold_start"], medians["with_records"], medians["empty_store"]
    if records is None or empty is None:
        return s.ConclusionView(kind="undecided", text="A phase is missing: nothing can be compared.")
    told = f"After a restart: {records.median:,.1f} ms with records, {empty.median:,.1f} ms with nothing stored"
    told += f", {cold.median:,.1f} ms at the cold start." if cold is not None else "."
    kind: Literal["gain", "no_gain", "within_noise"]
    if min(records.runs, empty.runs) < 2:
        told += " One run each: no range."
    elif records.low <= empty.high and empty.low <= records.high:
        text = f"No difference beyond the noise: the ranges of both restarts overlap. {told}"
        return s.ConclusionView(kind="within_noise", text=text)
    if records.median < empty.median:
        kind = "gain"
        text = f"The records are worth {empty.median / records.median:.2f} times after a restart. {told}"
    else:
        kind, text = (
            "no_gain",
            f"The records bring nothing after a restart: the restart alone explains the change. {told}",
        )
    return s.ConclusionView(kind=kind, text=text)


def _files_text(run: RunData) -> str:
    found = run.files or {}
    if found.get("files_per_request") is None:
        return str(found.get("expectation") or "The record files could not be counted.")
    expected = found.get("expected_per_request")
    than = "" if expected is None else f"; {expected} are expected ({found['expectation']})"
    each = f"{found['files_per_request']:.2f} each{than}."
    return f"{found['files']:,} record files for {found['requests']:,} requests: {each}"


def _lookup_text(run: RunData) -> str:
    known = [p for p in run.lookups if p["mean_ms"] is not None]
    if len(known) < 2:
        return "Lookups were timed at too few sizes to compare."
    low, high = known[0], known[-1]
    return (
        f"A lookup takes {low['mean_ms']:.2f} ms with {low['records']:,} records and {high['mean_ms']:.2f} ms with "
        f"{high['records']:,}."
    )


def _first_run_cost(run: RunData) -> float | None:
    """By which part the first run of B is slower than A's (mean TTFT): what filling the cache costs."""
    means = [_all_times(run.of(name, "first")).ttft_ms.mean for name in ("a", "b")]
    lost = reduction(means[0], means[1])
    return None if lost is None else -lost


def _reductions(run: RunData) -> list[s.ReductionView]:
    found: list[s.ReductionView] = []
    for side in run.sides:
        if side.name.endswith("2"):
            continue
        first, second = (_all_times(run.of(side.name, phase)) for phase in ("first", "second"))
        for metric in METRICS:
            one: Spread = getattr(first, f"{metric}_ms")
            two: Spread = getattr(second, f"{metric}_ms")
            for statistic in STATISTICS:
                x, y = getattr(one, statistic), getattr(two, statistic)
                found.append(
                    s.ReductionView(
                        scenario=side.name,
                        metric=metric,
                        statistic=statistic,
                        first=x,
                        second=y,
                        reduction=reduction(x, y),
                    )
                )
    return found


def _all_times(phases: Sequence[PhaseData]) -> Times:
    return times(r for p in phases for r in p.requests)


def _tokens(phases: Sequence[PhaseData]) -> TierTokens:
    """Sums over the runs; a number that one run lacks is unknown in the sum."""
    if not phases:
        return TierTokens(note="this phase was not reached")
    found: dict[str, int | None] = {}
    for name in ("prompt", "l0", "l1", "l2", "external", "recomputed", "reachable"):
        values = [getattr(p.tokens, name) for p in phases]
        found[name] = None if any(v is None for v in values) else sum(values)
    back = None if found["l0"] is None or found["external"] is None else found["l0"] + found["external"]
    could = found["reachable"]
    return TierTokens(
        **found,
        share=min(1.0, back / could) if back is not None and could else None,
        source=", ".join(dict.fromkeys(p.tokens.source for p in phases)),
        note=next((p.tokens.note for p in phases if p.tokens.note), None),
    )


def _across(phases: Sequence[PhaseData]) -> s.AcrossView:
    found = across(_medians(phases))
    whole = spread([r.ttft * 1000 for p in phases for r in p.requests if r.ok and r.ttft is not None])
    return s.AcrossView(
        median=found.median if found else None,
        low=found.low if found else None,
        high=found.high if found else None,
        mean=whole.mean,
        p99=whole.p99,
        runs=found.runs if found else 0,
        requests=whole.count,
    )


def _scenario(run: RunData, side: SideInfo, phase: str) -> s.ScenarioView:
    own = [p for p in run.phases if p.scenario == side.name]
    first_run = _medians([p for p in own if p.repeat == 0 and p.phase == phase]) if run.measured_from else []
    return s.ScenarioView(
        name=side.name,
        title=side.title,
        cache=side.cache,
        engine_names=list(side.engine_names),
        server_name=side.server_name,
        runs=[
            s.RepeatView(
                repeat=repeat,
                measured=repeat >= run.measured_from,
                phases=[_phase(p) for p in own if p.repeat == repeat],
            )
            for repeat in sorted({p.repeat for p in own})
        ],
        ttft_ms=_across(run.of(side.name, phase)),
        first_run_ttft_ms=first_run[0] if first_run else None,
        tokens=s.TokensView(**_tokens(run.of(side.name, phase)).to_json()),
    )


def _phase(data: PhaseData) -> s.PhaseView:
    measured = times(data.requests)
    seconds = busy_seconds(data.requests)
    given, produced = sums(data.requests)
    answered = sum(r.ok for r in data.requests)
    return s.PhaseView(
        name=data.phase,
        title=phase_title(data.phase),
        requests=len(data.requests),
        answered=answered,
        failed=len(data.requests) - answered,
        seconds=seconds,
        input_tokens=given,
        output_tokens=produced,
        requests_per_second=answered / seconds if seconds > 0 else None,
        output_tokens_per_second=produced / seconds if seconds > 0 else None,
        peak_concurrency=peak_concurrency(data.requests),
        ttft_ms=s.SpreadView(**measured.ttft_ms.to_json()),
        tpot_ms=s.SpreadView(**measured.tpot_ms.to_json()),
        itl_ms=s.SpreadView(**measured.itl_ms.to_json()),
        e2el_ms=s.SpreadView(**measured.e2el_ms.to_json()),
        tokens=s.TokensView(**data.tokens.to_json()),
        stored=None if data.stored is None else s.StoredView(**asdict(data.stored)),
        notes=list(data.notes),
    )
