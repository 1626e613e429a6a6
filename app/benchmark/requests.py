"""From a request's body to what a run is to do: checked against the fleet, published sizes filled in, planned."""

from __future__ import annotations

from typing import Any

from app.benchmark.experiments import fill_in
from app.benchmark.ports import Fleet
from app.benchmark.preflight import NEED_SERVER
from app.benchmark.schemas import BenchmarkInput
from app.benchmark.shapes import Plan, own_prompts, plan
from app.errors import InvalidInput, NotFound
from app.fleet.targets import EngineTarget
from app.paging import parse_id

MAX_REQUESTS = 1_000_000


def engine_of(fleet: Fleet, field: str, text: str) -> EngineTarget:
    """The engine an id in a body names. Raises InvalidInput."""
    try:
        return fleet.engine_target(parse_id("engine", text))
    except NotFound:
        raise InvalidInput.field(field, f"no engine has the id {text[:80]!r}") from None


def check(request: BenchmarkInput, fleet: Fleet) -> tuple[BenchmarkInput, EngineTarget, EngineTarget | None]:
    """The request with its experiment's sizes filled in, and its targets. Raises InvalidInput naming the field."""
    engine = engine_of(fleet, "engine_id", request.engine_id)
    baseline = None
    if request.baseline_engine_id is not None:
        baseline = engine_of(fleet, "baseline_engine_id", request.baseline_engine_id)
    request = fill_in(request, fleet, engine)
    _check_readers(request, fleet, engine)
    _check_form(request, engine)
    _check_prefix_cache(request, fleet, [e for e in (engine, baseline) if e is not None])
    return request, engine, baseline


def _check_readers(request: BenchmarkInput, fleet: Fleet, engine: EngineTarget) -> None:
    for number, text in enumerate(request.reader_engine_ids):
        reader = engine_of(fleet, f"reader_engine_ids[{number}]", text)
        if engine.server_id is None or reader.server_id != engine.server_id:
            raise InvalidInput.field(
                f"reader_engine_ids[{number}]",
                f"{reader.name!r} is not linked to the cache server of {engine.name!r}, so nothing can cross over",
            )
    if request.reader_engine_ids and request.form not in ("two_pass", "request_rate"):
        raise InvalidInput.field("reader_engine_ids", f"has no meaning in the form {request.form}; leave it out")


def _check_form(request: BenchmarkInput, engine: EngineTarget) -> None:
    if request.form in NEED_SERVER and engine.server_id is None:
        raise InvalidInput.field(
            "engine_id", f"engine {engine.name!r} is linked to no cache server, which {request.form} needs"
        )
    if request.form == "restart" and request.restart is None:
        raise InvalidInput.field(
            "restart", 'say what is restarted before each phase, such as {"target": "both"} to do it by hand'
        )
    if request.form == "lookup" and request.lookup is None:
        raise InvalidInput.field(
            "lookup", 'give the numbers of records, such as {"records": [1000], "allow_fill": true}'
        )
    if request.baseline_engine_id is not None and request.form in NEED_SERVER:
        raise InvalidInput.field("baseline_engine_id", f"has no meaning in the form {request.form}; leave it out")
    if request.texts is not None and request.form not in ("two_pass", "request_rate"):
        raise InvalidInput.field("texts", f"has no meaning in the form {request.form}; leave it out")
    if request.texts is not None and request.shape != "repeat":
        raise InvalidInput.field("shape", "prompts of one's own are asked twice as they are; leave the shape out")
    planned = plan_size(request)
    if planned > MAX_REQUESTS:
        raise InvalidInput.field("contexts", f"makes {planned:,} requests; at most {MAX_REQUESTS:,} are kept")


def plan_size(request: BenchmarkInput) -> int:
    """About how many requests the whole run makes, without planning them."""
    count = len(request.texts) if request.texts else request.prompts if rate_form(request) else request.contexts
    factor = {"one_document": 1 + request.users, "code_base": 1 + request.users, "multi_turn": request.turns}
    both = count * factor.get(request.shape, 2)
    runs = (request.repeats or 3) + 1
    return both * runs * (2 if request.baseline_engine_id is not None else 1)


def rate_form(request: BenchmarkInput) -> bool:
    return request.form == "request_rate"


def _check_prefix_cache(request: BenchmarkInput, fleet: Fleet, engines: list[EngineTarget]) -> None:
    """What the last poll knows already is refused now, not after minutes."""
    if request.prefix_cache != "off":
        return
    for engine in engines:
        if fleet.get_engine(engine.id).facts.prefix_caching:
            raise InvalidInput.field(
                "prefix_cache",
                f"engine {engine.name!r} runs with its prefix cache on: restart it with --no-enable-prefix-caching, "
                "or choose reset or left (hybrid models need it on)",
            )


def plan_of(request: BenchmarkInput) -> Plan:
    """The prompts of a request."""
    if request.texts is not None:
        return own_prompts(request.texts)
    contexts = request.prompts if rate_form(request) else request.contexts
    return plan(request.shape, contexts=contexts, tokens=request.tokens, users=request.users, turns=request.turns)


def frozen(request: BenchmarkInput) -> dict[str, Any]:
    """The body as it is kept in the row: every default filled in."""
    return request.model_dump(mode="json")
