"""From a request's body to what a run is to do: checked, every default filled in, frozen as JSON in the run's row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from app.acceptance.plan import RunPlan
from app.acceptance.ports import Fleet
from app.acceptance.preparation import RunInput
from app.acceptance.profiles import PROFILES, default_arms, in_order
from app.acceptance.restarts import Hook
from app.acceptance.schemas import AcceptanceRequest
from app.acceptance.scoring import check_scoring
from app.errors import FieldError, InvalidInput, NotFound
from app.fleet.targets import EngineTarget, ServerTarget
from app.paging import parse_id

RESTART_ARMS = ("restarted_server", "restarted_engine")
SECOND_ENGINE_ARMS = ("cross_engine", "without_cache")
DEFAULT_REQUEST_TIMEOUT = 120.0


def check(request: AcceptanceRequest, fleet: Fleet) -> tuple[EngineTarget, ServerTarget, dict[str, Any]]:
    """The targets and the frozen request. Raises InvalidInput naming the field."""
    engine = engine_of(fleet, "engine_id", request.engine_id)
    if engine.server_id is None:
        raise InvalidInput.field(
            "engine_id", f"engine {engine.name!r} is linked to no cache server; set its server_id, then test it"
        )
    server = fleet.server_target(engine.server_id)
    second = _second(request, fleet, engine)
    arms = _arms(request, engine, second)
    _check_prompts(request)
    numbers = PROFILES[request.profile]
    tolerance = request.tolerance.model_dump() if request.tolerance is not None else {}
    frozen = {
        "profile": request.profile,
        "arms": list(arms),
        "api": request.api,
        "mode": request.mode,
        "concurrency": request.concurrency,
        "lengths": list(request.lengths),
        "prompts": [p.model_dump() for p in request.prompts or ()],
        "tolerance": tolerance,
        "deadline_seconds": request.deadline_seconds or numbers.deadline_seconds,
        "request_timeout_seconds": request.request_timeout_seconds or DEFAULT_REQUEST_TIMEOUT,
        "remove_records": request.remove_records,
        "allow_clear_l1": request.allow_clear_l1,
        "restart_hook_id": request.restart_hook_id,
    }
    return engine, server, frozen


def engine_of(fleet: Fleet, field: str, text: str) -> EngineTarget:
    """The engine an id in a body names. Raises InvalidInput."""
    try:
        return fleet.engine_target(parse_id("engine", text))
    except NotFound:
        raise InvalidInput.field(field, f"no engine has the id {text[:80]!r}") from None


def _second(request: AcceptanceRequest, fleet: Fleet, engine: EngineTarget) -> EngineTarget | None:
    if request.second_engine_id is None:
        return None
    second = engine_of(fleet, "second_engine_id", request.second_engine_id)
    if second.id == engine.id:
        raise InvalidInput.field("second_engine_id", "is the engine under test itself; choose another one")
    return second


def _arms(request: AcceptanceRequest, engine: EngineTarget, second: EngineTarget | None) -> tuple[str, ...]:
    if request.arms is None:
        kind = (
            "none" if second is None else ("same_server" if second.server_id == engine.server_id else "without_cache")
        )
        return default_arms(
            request.profile,
            second_engine=cast("Any", kind),
            restart_hook=request.restart_hook_id is not None,
            chat=request.api == "chat",
        )
    if request.api == "chat" and "mixed" in request.arms:
        raise InvalidInput.field("arms", "mixed needs the completions API: a chat message cannot be cut in two")
    for arm in request.arms:
        if arm in SECOND_ENGINE_ARMS and second is None:
            raise InvalidInput.field("second_engine_id", f"arm {arm} needs a second engine")
        if arm == "cross_engine" and second is not None and second.server_id != engine.server_id:
            raise InvalidInput.field(
                "second_engine_id", f"{second.name!r} uses another cache server, so nothing stored can cross over"
            )
        if arm in RESTART_ARMS and request.restart_hook_id is None:
            raise InvalidInput.field(
                "restart_hook_id", f"arm {arm} needs a restart hook; set one up on the page /acceptance/hooks"
            )
    return in_order(request.arms)


def _check_prompts(request: AcceptanceRequest) -> None:
    problems = [
        FieldError(f"prompts[{i}].score", found)
        for i, p in enumerate(request.prompts or ())
        if (found := check_scoring(p.expected, p.score)) is not None
    ]
    if request.prompts and request.lengths:
        problems.append(FieldError("lengths", "sizes built-in prompts; leave it out with prompts of your own"))
    if request.mode == "score" and request.prompts and not any(p.expected for p in request.prompts):
        problems.append(FieldError("prompts", "mode score needs prompts with an expected answer"))
    if problems:
        raise InvalidInput("; ".join(f"{p.field}: {p.message}" for p in problems), errors=tuple(problems))


def run_input(
    frozen: Mapping[str, Any],
    fleet: Fleet,
    *,
    run_key: str,
    engine_id: int,
    server_id: int,
    second_engine_id: int | None,
    hook: Hook | None,
) -> RunInput:
    """What the worker needs, from a run's row. Raises NotFound when a target was forgotten meanwhile."""
    numbers = PROFILES[frozen["profile"]]
    if frozen["lengths"] or frozen["prompts"]:
        # The floor needs a few repeats whatever is asked, and never more prompts than there are.
        count = len(frozen["lengths"]) or len(frozen["prompts"])
        numbers = replace(numbers, repeated_prompts=min(numbers.repeated_prompts, count))
    plan = RunPlan(
        run_key=run_key,
        arms=tuple(frozen["arms"]),
        numbers=numbers,
        mode=frozen["mode"],
        concurrency=frozen["concurrency"],
        tolerance=frozen["tolerance"],
        allow_clear_l1=frozen["allow_clear_l1"],
    )
    return RunInput(
        plan=plan,
        profile=frozen["profile"],
        engine=fleet.engine_target(engine_id),
        server=fleet.server_target(server_id),
        stores=tuple(s for s in fleet.store_targets(server_id) if s.kind == "lmcache_fs"),
        second=None if second_engine_id is None else fleet.engine_target(second_engine_id),
        own=tuple(frozen["prompts"]),
        api=frozen["api"],
        lengths=tuple(frozen["lengths"]),
        hook=hook,
        deadline=frozen["deadline_seconds"],
        request_timeout=frozen["request_timeout_seconds"],
    )
