"""Settings to verify: every verdict, worst first, and what changed since it worked."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import parse_id
from app.checks.schemas import CheckPairView, CheckRunInput, CheckTextsInput, CheckView
from app.checks.service import ChecksService
from app.errors import Forbidden, InvalidInput, NotFound
from app.services import Services
from app.web.contexts import Crumb
from app.web.forms import FormState
from app.web.frame import FormValues, Frame, OperatorFrame, ViewerFrame, build_input, one
from app.web.setup_contexts import CheckRulesPage, ChecksListPage, PairVerdicts

router = APIRouter(prefix="/checks")

FIELDS = (
    "engine_id", "server_id", "engine_log", "server_log", "environment", "commands", "engine_log_path",
    "server_log_path",
)  # fmt: skip
_VERDICTS = ("fail", "warn", "unknown", "ok")
_MOST = 500
#: More pairs than these are only counted; choosing one shows its verdicts.
_SHOWN_PAIRS = 8

Filter = Annotated[str, Query(max_length=40)]


def _checks(services: Services) -> ChecksService:
    found: ChecksService = services.checks
    return found


def _page(
    frame: Frame,
    *,
    server_id: str = "",
    engine_id: str = "",
    verdict: str = "",
    form: FormState | None = None,
    judged: list[CheckView] | None = None,
    status: int = 200,
) -> Response:
    services, checks = frame.services, _checks(frame.services)
    server = parse_id("server", server_id) if server_id else None
    engine = parse_id("engine", engine_id) if engine_id else None
    pairs = checks.list_pairs(server_id=server, engine_id=engine)
    wanted = verdict if verdict in _VERDICTS else None
    runs = checks.list_runs(page_size=1, page_token=None).items
    return frame.page(
        "checks.html",
        ChecksListPage,
        "checks",
        status=status,
        pairs=pairs,
        shown=[_verdicts(checks, pair, wanted) for pair in pairs[:_SHOWN_PAIRS]],
        changes=checks.changes(server_id=server, engine_id=engine),
        servers=services.fleet.list_servers(page_size=_MOST, page_token=None).items,
        engines=services.fleet.list_engines(page_size=_MOST, page_token=None).items,
        server_id=server_id,
        engine_id=engine_id,
        verdict=verdict,
        running=bool(runs) and runs[0].state in ("queued", "running"),
        form=form or FormState.of({"engine_id": engine_id, "server_id": server_id}, fields=FIELDS),
        judged=judged,
    )


def _verdicts(checks: ChecksService, pair: CheckPairView, verdict: str | None) -> PairVerdicts:
    found = checks.list_checks(
        server_id=None if pair.server_id is None else int(pair.server_id),
        engine_id=None if pair.engine_id is None else int(pair.engine_id),
        verdict=verdict,
        page_size=_MOST,
    ).items
    own = [item for item in found if (item.server_id, item.engine_id) == (pair.server_id, pair.engine_id)]
    return PairVerdicts(pair, own)


@router.get("")
def checks_page(frame: ViewerFrame, server_id: Filter = "", engine_id: Filter = "", verdict: Filter = "") -> Response:
    return _page(frame, server_id=server_id, engine_id=engine_id, verdict=verdict)


@router.get("/rules")
def rules_page(frame: ViewerFrame) -> Response:
    return frame.page(
        "check_rules.html",
        CheckRulesPage,
        "checks",
        Crumb("What is checked"),
        rules=_checks(frame.services).rules(),
    )


@router.post("/runs")
def start(frame: OperatorFrame, values: FormValues) -> Response:
    """Looks again at one pair or at everything; pasted texts are kept for their target."""
    form = FormState(values=values, fields=frozenset(FIELDS))
    body: dict[str, Any] = {name: one(values, name) for name in ("server_id", "engine_id")}
    for name in ("engine_log", "server_log", "environment", "commands", "engine_log_path", "server_log_path"):
        if one(values, name) is not None:
            body[name] = one(values, name) if name.endswith("_path") else values[name][0]
    try:
        run = _checks(frame.services).start_run(
            build_input(CheckRunInput, body), actor=frame.actor, may_read_files=frame.principal.may("admin")
        )
    except (InvalidInput, NotFound, Forbidden) as error:
        return _page(frame, form=form.failed(error), status=error.status)
    where = "/checks"
    if body["engine_id"] or body["server_id"]:
        chosen = {name: value for name, value in body.items() if name.endswith("_id") and value}
        where += "?" + "&".join(f"{name}={value}" for name, value in chosen.items())
    return frame.done(where, f"Check run {run.id} was started.")


@router.post("/texts")
def judge(frame: OperatorFrame, values: FormValues) -> Response:
    """Verdicts on pasted texts alone; nothing is kept."""
    form = FormState(values=values, fields=frozenset(FIELDS))
    body = {name: (values.get(name) or [""])[0] for name in ("commands", "environment", "engine_log", "server_log")}
    try:
        found = _checks(frame.services).check_texts(build_input(CheckTextsInput, body))
    except InvalidInput as error:
        return _page(frame, form=form.failed(error), status=error.status)
    return _page(frame, form=form, judged=found)
