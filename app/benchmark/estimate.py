"""What a run would take and disturb, before it is started. Pure."""

from __future__ import annotations

from app.benchmark.run import planned_requests
from app.benchmark.schemas import BenchmarkInput, EstimateView, ResultView
from app.benchmark.shapes import Plan, reachable
from app.fleet.schemas import EngineView, ServerView


def estimate(
    request: BenchmarkInput,
    plan: Plan,
    engine: EngineView,
    server: ServerView | None,
    baseline: EngineView | None,
    past: ResultView | None,
) -> EstimateView:
    """Requests, tokens, ratios against L0 and L1, bytes written, and seconds by the last run's times per token."""
    sides = 1 if baseline is None else 2
    requests = planned_requests(request, plan, sides)
    pass_tokens = sum(p.tokens for p in (*plan.first, *plan.second))
    per_request = pass_tokens / max(1, len(plan.first) + len(plan.second))
    chunk = server.chunk_size if server is not None else None
    could = None
    if chunk is not None and plan.second and request.texts is None:
        could = sum(reachable(p.tokens, p.reusable, chunk) for p in plan.second) / max(
            1, sum(p.tokens for p in plan.second)
        )
    live = [x for x in server.layouts if x.live and x.model_name in engine.model_roots] if server is not None else []
    per_token = live[0].bytes_per_token if live else None
    needed = plan.working_set * per_token if per_token and plan.working_set else None
    l0 = engine.l0.capacity_tokens
    l1 = server.l1.capacity_bytes if server is not None else None
    runs_with_cache = requests / max(1, len(plan.first) + len(plan.second)) / sides
    return EstimateView(
        requests=requests,
        prompt_tokens=round(requests * per_request),
        working_set_tokens=plan.working_set,
        working_set_of_l0=plan.working_set / l0 if l0 and plan.working_set else None,
        l1_of_working_set=l1 / needed if l1 and needed else None,
        reachable_share=could,
        bytes_written=round(needed * runs_with_cache) if needed else None,
        seconds=_seconds(requests, per_request, past),
        disturbs=_disturbs(request, sides),
        warnings=_warnings(request, plan, engine, server, l0, could),
    )


def _seconds(requests: int, per_request: float, past: ResultView | None) -> float | None:
    """By the last run: its seconds per prompt token. None before there is one."""
    phases = [] if past is None else [p for x in past.scenarios for r in x.runs for p in r.phases]
    tokens = sum(p.input_tokens for p in phases)
    if not tokens or not per_request:
        return None
    return sum(p.seconds for p in phases) / tokens * per_request * requests + 10.0


def _disturbs(request: BenchmarkInput, sides: int) -> list[str]:
    found = ["the engines are kept busy: other users' requests wait, and make the run invalid"]
    if request.prefix_cache in ("auto", "reset"):
        found.append("the engines' GPU prefix caches are emptied before each second pass, for everybody")
    if request.form == "restart" and request.restart is not None:
        found.append(f"the {request.restart.target} is restarted before each phase")
    if request.form == "lookup" and request.lookup is not None and request.lookup.allow_fill:
        found.append(f"{max(request.lookup.records):,} empty files are written into the store, and removed again")
    if request.remove_records:
        found.append("its records are removed from the store afterwards, by a cleanup of the run's own salts")
    return found


def _warnings(
    request: BenchmarkInput,
    plan: Plan,
    engine: EngineView,
    server: ServerView | None,
    l0: int | None,
    could: float | None,
) -> list[str]:
    found: list[str] = []
    if server is None and request.baseline_engine_id is None:
        found.append("the engine is linked to no cache server: only its own prefix cache is measured")
    if request.baseline_engine_id is None and request.form in ("two_pass", "request_rate"):
        found.append("without a scenario A nothing says what the engine alone would take")
    if engine.reset_available is False and request.prefix_cache in ("auto", "reset"):
        found.append("the engine's dev mode is off: its GPU cache cannot be emptied between the passes")
    if request.prefix_cache == "left" and l0 and plan.working_set and plan.working_set <= l0:
        found.append("the working set fits the GPU cache, which will serve the second pass before the cache server can")
    if could == 0 and request.shape != "use_once":
        found.append("no whole chunk recurs: nothing can come back")
    if engine.running or engine.waiting:
        found.append(f"the engine serves {engine.running or 0} requests just now")
    return found
