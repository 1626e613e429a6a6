"""Acceptance runs: how engines stand, starting one, watching it, its result, two side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.acceptance.own_prompts import prompts_in
from app.acceptance.schemas import AcceptanceRequest, AcceptanceRunView, EstimateView, ToleranceInput
from app.acceptance.told import evidence_lines, load_lines
from app.api.deps import PageQuery, parse_id
from app.errors import Conflict, InvalidInput, NotFound, TierkeeperError
from app.fleet.schemas import EngineView
from app.web import formats
from app.web.acceptance_contexts import (
    AcceptanceComparePage,
    AcceptancePage,
    AcceptanceRunPage,
    AcceptanceStartPage,
    ArmTrend,
)
from app.web.contexts import Crumb
from app.web.forms import FormState
from app.web.frame import FormValues, Frame, OperatorFrame, Values, ViewerFrame, build_input, one
from app.web.pages.overview import engine_verdicts
from app.web.table_state import TableState

router = APIRouter(prefix="/acceptance")

PASSED = ("pass", "pass_with_near_ties")
TREND_ARMS = ("cold", "external_l1", "external_l2")
TOLERANCES = tuple(f"tolerance.{name}" for name in ToleranceInput.model_fields)
FIELDS = (
    "engine_id",
    "second_engine_id",
    "restart_hook_id",
    "profile",
    "arms",
    "mode",
    "api",
    "concurrency",
    "lengths",
    "deadline_seconds",
    "request_timeout_seconds",
    "prompts",
    *TOLERANCES,
    "remove_records",
    "allow_clear_l1",
)


@router.get("")
def acceptance_page(frame: ViewerFrame, paging: PageQuery) -> Response:
    services = frame.services
    state = TableState.parse(frame.request.query_params, names=("verdict", "engine_id"))
    engine = state.get("engine_id")
    page = services.acceptance.list_runs(
        page_size=state.page_size,
        page_token=paging.page_token,
        engine_id=parse_id("engine", engine) if engine else None,
        verdict=state.get("verdict") or None,
    )
    engines = services.fleet.list_engines(page_size=200, page_token=None).items
    return frame.page(
        "acceptance.html",
        AcceptancePage,
        "acceptance",
        verdicts=engine_verdicts(services, engines),
        runs=page.items,
        trends=trends(page.items),
        state=state,
        next_page_token=page.next_page_token,
    )


def trends(runs: Sequence[AcceptanceRunView]) -> list[ArmTrend]:
    """Of the runs shown (newest first): how the times of every engine's conditions moved. Two runs make a trend."""
    found: list[ArmTrend] = []
    passed = [r for r in reversed(runs) if r.engine_id is not None and r.verdict in PASSED]
    for engine_id in dict.fromkeys(r.engine_id for r in passed):
        mine = [r for r in passed if r.engine_id == engine_id]
        for arm in TREND_ARMS:
            points = [next((a.ttft_ms.median for a in r.arms if a.name == arm), None) for r in mine]
            known = [p for p in points if p is not None]
            if len(known) >= 2:
                found.append(ArmTrend(mine[-1].engine_name, arm, points, known[0], known[-1]))
    return found


def second_engines(chosen: EngineView | None, engines: Sequence[EngineView]) -> tuple[list[EngineView], str]:
    """The engines that can be the second one of a run on `chosen`, and why there is none.

    It must serve the same model, at the same cache server or (for `without_cache`) at none. One whose model or
    connector is not known is offered: the run looks again.
    """
    if chosen is None:
        return [], "choose an engine first"
    found = [e for e in engines if e.id != chosen.id and _same_model(chosen, e) and _beside(chosen, e)]
    model = formats.printable(", ".join(chosen.model_names) or "this engine's model")
    return found, "" if found else f"no other engine serves {model} at the same cache server or without one"


def _same_model(a: EngineView, b: EngineView) -> bool:
    """By name or by what the weights are loaded from."""
    known = {*a.model_names, *a.model_roots}, {*b.model_names, *b.model_roots}
    return not known[0] or not known[1] or bool(known[0] & known[1])


def _beside(a: EngineView, b: EngineView) -> bool:
    return b.server_id in (None, a.server_id) or b.connector is False


def _start_page(frame: Frame, form: FormState, estimate: EstimateView | None = None, status: int = 200) -> Response:
    engines = frame.services.fleet.list_engines(page_size=500, page_token=None).items
    chosen = next((e for e in engines if e.id == form.value("engine_id")), None)
    seconds, none_because = second_engines(chosen, engines)
    return frame.page(
        "acceptance_start.html",
        AcceptanceStartPage,
        "acceptance",
        Crumb("Start a run"),
        status=status,
        engines=engines,
        second_engines=seconds,
        no_second_engine=none_because,
        hooks=frame.services.acceptance.hooks.list_hooks(page_size=500, page_token=None).items,
        form=form,
        estimate=estimate,
    )


@router.get("/new")
def start_page(
    frame: ViewerFrame,
    engine_id: Annotated[str, Query(max_length=40)] = "",
    profile: Annotated[str, Query(max_length=20)] = "quick",
) -> Response:
    engines = frame.services.fleet.list_engines(page_size=1, page_token=None).items
    chosen = engine_id or (engines[0].id if engines else "")
    values = {"engine_id": chosen, "profile": profile, "api": "completions", "concurrency": "1", "remove_records": True}
    estimate = None
    if chosen:
        try:
            request = build_input(AcceptanceRequest, {"engine_id": chosen, "profile": profile})
            estimate = frame.services.acceptance.estimate(request)
        except (InvalidInput, NotFound, Conflict):
            # A damaged address only means a form without an estimate.
            estimate = None
    return _start_page(frame, FormState.of(values, fields=FIELDS), estimate)


@router.post("/new")
def start(frame: OperatorFrame, values: FormValues, estimate: Annotated[bool, Query()] = False) -> Response:
    """Starts a run, or (``?estimate=1``) says what it would take."""
    form = FormState(values=values, fields=frozenset(FIELDS))
    try:
        request = build_input(AcceptanceRequest, _body(values))
        if estimate:
            return _start_page(frame, form, frame.services.acceptance.estimate(request))
        run = frame.services.acceptance.start(request, actor=frame.actor)
    except TierkeeperError as error:
        return _start_page(frame, form.failed(error), status=error.status)
    return frame.done(f"/acceptance/runs/{run.id}")


def _body(values: Values) -> dict[str, Any]:
    body: dict[str, Any] = {
        "engine_id": one(values, "engine_id") or "",
        "second_engine_id": one(values, "second_engine_id"),
        "restart_hook_id": one(values, "restart_hook_id"),
        "profile": one(values, "profile") or "quick",
        "arms": list(values.get("arms", [])) or None,
        "mode": one(values, "mode"),
        "api": one(values, "api") or "completions",
        "remove_records": "remove_records" in values,
        "allow_clear_l1": "allow_clear_l1" in values,
    }
    for field in ("concurrency", "deadline_seconds", "request_timeout_seconds", *TOLERANCES):
        text = one(values, field)
        if not text:
            continue
        try:
            number = int(text) if field == "concurrency" else float(text)
        except ValueError:
            raise InvalidInput.field(field, f"{text[:80]!r} is not a number") from None
        room, _, name = field.rpartition(".")
        (body.setdefault(room, {}) if room else body)[name] = number
    if typed := one(values, "prompts"):
        body["prompts"] = prompts_in(typed, field="prompts")
    lengths = (one(values, "lengths") or "").replace(",", " ").split()
    try:
        body["lengths"] = [int(text) for text in lengths]
    except ValueError:
        raise InvalidInput.field("lengths", f"{' '.join(lengths)[:80]!r} is not a list of token counts") from None
    return body


@router.get("/compare")
def compare_page(
    frame: ViewerFrame, a: Annotated[str, Query(max_length=40)] = "", b: Annotated[str, Query(max_length=40)] = ""
) -> Response:
    first, second = parse_id("acceptance run", a), parse_id("acceptance run", b)
    return frame.page(
        "acceptance_compare.html",
        AcceptanceComparePage,
        "acceptance",
        Crumb(f"Runs #{first} and #{second}"),
        comparison=frame.services.acceptance.compare(first, second),
    )


@router.get("/runs/{run_id}")
def run_page(frame: ViewerFrame, run_id: str) -> Response:
    run = frame.services.acceptance.get(parse_id("acceptance run", run_id))
    return frame.page(
        "acceptance_run.html",
        AcceptanceRunPage,
        "acceptance",
        Crumb(f"Run #{run.id}"),
        run=run,
        ttft=_ttft(frame, run),
        told=evidence_lines(run),
        load=load_lines(run),
    )


def _ttft(frame: Frame, run: AcceptanceRunView) -> list[tuple[str, list[float]]]:
    """Times to first token of every request, in the order of the arms; empty while the run goes on."""
    if run.state in ("queued", "running"):
        return []
    samples = frame.services.acceptance.ttft_samples(int(run.id))
    return [(name, list(values)) for name, values in samples if values]


@router.post("/runs/{run_id}/continue")
def go_on(frame: OperatorFrame, run_id: str) -> Response:
    """A person says: I restarted it."""
    here = f"/acceptance/runs/{run_id}"
    try:
        frame.services.acceptance.go_on(parse_id("acceptance run", run_id), actor=frame.actor)
    except Conflict as error:
        return frame.refused(here, error)
    return frame.done(here, "The run goes on.")


@router.post("/runs/{run_id}/cancel")
def cancel(frame: OperatorFrame, run_id: str) -> Response:
    frame.services.acceptance.cancel(parse_id("acceptance run", run_id), actor=frame.actor)
    return frame.done(f"/acceptance/runs/{run_id}", "The run is stopping.")
