"""Repeating published experiments: exact, or scaled to the operator's own servers; and standing beside them. Pure but
for reading the fleet's last poll.

Nothing here is ever a pass or a fail: a published number of other hardware says nothing about whether mine is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.benchmark.measures import PHASES
from app.benchmark.numbers import reduction
from app.benchmark.ports import Fleet
from app.benchmark.references import (
    AB_CHUNK,
    AB_EVICTION_RATIO,
    AB_TOKENS,
    AB_WATERMARK,
    RATE,
    RATE_PROMPTS,
    SCALED_WORKING_SET,
    VARIANTS,
    Metric,
    Variant,
)
from app.benchmark.schemas import BenchmarkInput, ReductionView, ResultView, ScenarioView
from app.errors import InvalidInput
from app.fleet.targets import EngineTarget


@dataclass(frozen=True)
class Mine:
    """What is known of the operator's own stack; None is "not known"."""

    chunk_size: int | None = None
    l0_tokens: int | None = None
    l1_bytes: int | None = None
    bytes_per_token: int | None = None
    max_model_len: int | None = None
    trigger_watermark: float | None = None
    eviction_ratio: float | None = None


@dataclass(frozen=True)
class Kept:
    """One ratio of the published set-up and what it is here; None where it is not known."""

    name: str
    published: float | None
    mine: float | None
    kept: bool
    note: str = ""


@dataclass(frozen=True)
class Sized:
    """The fields of a request for one variant in one mode, and what is kept and what is not."""

    fields: dict[str, Any]
    kept: tuple[Kept, ...]
    warnings: tuple[str, ...]


def size(variant: Variant, mode: str, mine: Mine) -> Sized:
    """Exact: the printed sizes. Scaled: the same ratios on my servers, as far as they are published."""
    fields = dict(variant.fields)
    warnings: list[str] = []
    if mode == "scaled":
        _scale(variant, fields, mine, warnings)
    tokens, contexts = fields.get("tokens"), fields.get("contexts")
    kept: list[Kept] = []
    if tokens is not None:
        here = tokens / mine.chunk_size if mine.chunk_size else None
        kept.append(Kept("tokens ÷ chunk", AB_TOKENS / AB_CHUNK, here, _near(AB_TOKENS / AB_CHUNK, here)))
        if mine.max_model_len is not None and tokens >= mine.max_model_len:
            warnings.append(f"the engine takes {mine.max_model_len:,} tokens at most: these prompts do not fit")
    if tokens is not None and contexts is not None and fields["form"] == "two_pass":
        working_set = tokens * contexts
        of_l0 = working_set / mine.l0_tokens if mine.l0_tokens else None
        needed = working_set * mine.bytes_per_token if mine.bytes_per_token else None
        of_l1 = mine.l1_bytes / needed if mine.l1_bytes and needed else None
        unknown = "the published sizes of L0 and L1 are not known"
        kept.append(Kept("working set ÷ L0", None, of_l0, False, unknown))
        kept.append(Kept("L1 ÷ working set", None, of_l1, False, unknown))
        if of_l0 is not None and of_l0 <= 1:
            warnings.append(f"the working set is only {of_l0:.2g} × L0: the engine's own cache will serve pass 2")
        if of_l1 is not None and of_l1 < 1:
            warnings.append(f"L1 holds only {of_l1:.2g} of the working set: pass 2 will read from L2")
    if variant.scaling == "two_pass":
        kept += _server_settings(mine)
    if fields["form"] == "request_rate":
        kept.append(Kept("duration of a run, s", RATE_PROMPTS / RATE, fields["prompts"] / fields["rate"], True))
    return Sized(fields, tuple(kept), tuple(warnings))


def _server_settings(mine: Mine) -> list[Kept]:
    """What no request can set: the server has it, or the experiment is another one."""
    note = "a flag of the cache server; for the experiment only"
    return [
        Kept(name, published, here, _near(published, here), note)
        for name, published, here in (
            ("L1 trigger watermark", AB_WATERMARK, mine.trigger_watermark),
            ("L1 eviction ratio", AB_EVICTION_RATIO, mine.eviction_ratio),
        )
    ]


def _scale(variant: Variant, fields: dict[str, Any], mine: Mine, warnings: list[str]) -> None:
    if variant.scaling in ("two_pass", "tokens"):
        if mine.chunk_size is None:
            warnings.append("the server's chunk size is not known: the printed number of tokens is kept")
        else:
            fields["tokens"] = max(8, round(AB_TOKENS / AB_CHUNK * mine.chunk_size))
    if variant.scaling == "two_pass":
        if mine.l0_tokens is None:
            warnings.append("the size of L0 is not known: the printed number of contexts is kept")
        else:
            wanted = math.ceil(SCALED_WORKING_SET * mine.l0_tokens / fields["tokens"])
            fields["contexts"] = max(2, min(wanted, 100_000))
    if variant.scaling == "rate":
        # The same duration at the operator's own rate; `fill_in` puts the rate in.
        fields["rate"] = 1.0
        fields["prompts"] = round(RATE_PROMPTS / RATE)


def _near(a: float, b: float | None) -> bool:
    return b is not None and abs(b / a - 1) < 0.02


def mine_of(fleet: Fleet, engine: EngineTarget) -> Mine:
    """From the last polls of an engine and its server."""
    view = fleet.get_engine(engine.id)
    server = None if engine.server_id is None else fleet.get_server(engine.server_id)
    layouts = [] if server is None else [x for x in server.layouts if x.live and x.model_name in view.model_roots]
    return Mine(
        chunk_size=server.chunk_size if server is not None else None,
        l0_tokens=view.l0.capacity_tokens,
        l1_bytes=server.l1.capacity_bytes if server is not None else None,
        bytes_per_token=layouts[0].bytes_per_token if layouts else None,
        max_model_len=view.max_model_len,
        trigger_watermark=server.l1.trigger_watermark if server is not None else None,
        eviction_ratio=server.l1.eviction_ratio if server is not None else None,
    )


def fill_in(request: BenchmarkInput, fleet: Fleet, engine: EngineTarget) -> BenchmarkInput:
    """The request with the sizes of its experiment. Raises InvalidInput for what the report does not tell and the
    caller did not give, and for an experiment that does not exist."""
    if request.experiment is None:
        if request.experiment_mode is not None:
            raise InvalidInput.field("experiment_mode", "belongs to an experiment; name one, or leave it out")
        return request
    variant = VARIANTS.get(request.experiment)
    if variant is None:
        raise InvalidInput.field("experiment", f"{request.experiment!r} is none of {', '.join(VARIANTS)}")
    mode = request.experiment_mode or "scaled"
    given = request.model_fields_set
    for name, why in variant.needs.items():
        if name not in given and not (name == "tokens" and request.texts is not None):
            raise InvalidInput.field(name, why)
    sized = size(variant, mode, mine_of(fleet, engine))
    fields = {name: value for name, value in sized.fields.items() if name not in variant.needs}
    if variant.scaling == "rate" and mode == "scaled" and "rate" in given:
        fields["rate"] = request.rate
        fields["prompts"] = max(1, round(RATE_PROMPTS / RATE * request.rate))
    if request.texts is not None:
        fields.pop("prompts", None)
    return request.model_copy(update={**fields, "experiment_mode": mode})


# standing beside the published numbers


def _scenario(result: ResultView, name: str) -> ScenarioView | None:
    return next((s for s in result.scenarios if s.name == name), None)


def _across(name: str, field: str) -> Callable[[ResultView, str], float | None]:
    def read(result: ResultView, _: str) -> float | None:
        found = _scenario(result, name)
        return None if found is None else getattr(found.ttft_ms, field)

    return read


def _first_run(name: str) -> Callable[[ResultView, str], float | None]:
    def read(result: ResultView, _: str) -> float | None:
        found = _scenario(result, name)
        return None if found is None else found.first_run_ttft_ms

    return read


def _ttft(result: ResultView, scenario: str, statistic: str) -> ReductionView | None:
    wanted = (scenario, "ttft", statistic or "mean")
    return next((x for x in result.reductions if (x.scenario, x.metric, x.statistic) == wanted), None)


def _reduction(field: str) -> Callable[[ResultView, str], float | None]:
    def read(result: ResultView, statistic: str) -> float | None:
        line = _ttft(result, "b", statistic)
        value = None if line is None else getattr(line, field)
        return None if value is None else value * 100 if field == "reduction" else value

    return read


def _total(phase: str) -> Callable[[ResultView, str], float | None]:
    def read(result: ResultView, _: str) -> float | None:
        found = _scenario(result, "b")
        phases = [] if found is None else [p for r in found.runs if r.measured for p in r.phases if p.name == phase]
        return phases[0].seconds if phases else None

    return read


def _reachable_share(result: ResultView, _: str) -> float | None:
    tokens = result.tokens
    return None if tokens is None or not tokens.prompt or tokens.reachable is None else tokens.reachable / tokens.prompt


def _speed_up(result: ResultView, _: str) -> float | None:
    return None if result.speed_up is None else result.speed_up.value


def _cost(result: ResultView, statistic: str) -> float | None:
    """Against scenario A of the same run."""
    alone, cached = _ttft(result, "a", statistic), _ttft(result, "b", statistic)
    return _more(None if alone is None else alone.first, None if cached is None else cached.first)


def cost_against(none: ResultView, result: ResultView, statistic: str) -> float | None:
    """First-run cost in percent against a run without a cache that is one of its own."""
    alone, cached = _ttft(none, "b", statistic), _ttft(result, "b", statistic)
    return _more(None if alone is None else alone.first, None if cached is None else cached.first)


def _more(alone: float | None, cached: float | None) -> float | None:
    lost = reduction(alone, cached)
    return None if lost is None else -lost * 100


_READINGS: dict[str, Callable[[ResultView, str], float | None]] = {
    "a_median": _across("a", "median"),
    "b_median": _across("b", "median"),
    "a_low": _across("a", "low"),
    "a_high": _across("a", "high"),
    "b_low": _across("b", "low"),
    "b_high": _across("b", "high"),
    "a_first": _first_run("a"),
    "b_first": _first_run("b"),
    "speed_up": _speed_up,
    "reachable_share": _reachable_share,
    "cold_total": _total("cold_start"),
    "records_total": _total("with_records"),
    "empty_total": _total("empty_store"),
    "files_per_request": lambda r, _: None if r.files is None else r.files.files_per_request,
    "expected_files": lambda r, _: (
        None if r.files is None or r.files.expected_per_request is None else float(r.files.expected_per_request)
    ),
    "b_first_run": _reduction(PHASES[0]),
    "b_second_run": _reduction(PHASES[1]),
    "b_reduction": _reduction("reduction"),
    "first_run_cost": _cost,
}


def read(
    metric: Metric, result: ResultView | None, statistic: str = "", none: ResultView | None = None
) -> tuple[float | None, float | None]:
    """(mine, mine ÷ published) for one metric; None where there is no run, or nothing was published as a number.

    `none`: a run of the same prompts without a cache, for a run that had no scenario A.
    """
    mine = None if result is None else _READINGS[metric.reading](result, statistic or metric.statistic)
    if mine is None and result is not None and none is not None and metric.reading == "first_run_cost":
        mine = cost_against(none, result, statistic or metric.statistic)
    same = not statistic or statistic == (metric.statistic or statistic)
    if mine is None or not metric.published or not same:
        return mine, None
    return mine, mine / metric.published
