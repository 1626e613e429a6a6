"""/checks: settings to verify, live. What is so, since when, what changed, and verdicts on texts before a start."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from app.api.deps import Operator, PageQuery, ServicesDep, Viewer, parse_id
from app.api.responses import BODY, NOT_FOUND, READ
from app.checks.schemas import (
    ChangesView,
    CheckPairView,
    CheckRunInput,
    CheckRunView,
    ChecksPage,
    CheckTextsInput,
    CheckView,
    RuleView,
    VerdictName,
)
from app.checks.service import ChecksService
from app.clock import parse_iso
from app.errors import InvalidInput
from app.shapes import Page

router = APIRouter(prefix="/checks", tags=["checks"])

ServerQuery = Annotated[str | None, Query(max_length=40, description="only those of this server")]
EngineQuery = Annotated[str | None, Query(max_length=40, description="only those of this engine")]


def _checks(services: ServicesDep) -> ChecksService:
    return services.checks


Checks = Annotated[ChecksService, Depends(_checks)]


@router.get("", responses=NOT_FOUND)
def list_checks(
    checks: Checks,
    principal: Viewer,
    paging: PageQuery,
    server_id: ServerQuery = None,
    engine_id: EngineQuery = None,
    verdict: Annotated[VerdictName | None, Query(description="only this verdict")] = None,
) -> ChecksPage:
    """What the last runs found, worst first."""
    return checks.list_checks(
        server_id=_id("server", server_id),
        engine_id=_id("engine", engine_id),
        verdict=verdict,
        page_size=paging.page_size,
        page_token=paging.page_token,
    )


@router.get("/pairs", responses=NOT_FOUND)
def list_pairs(
    checks: Checks, principal: Viewer, server_id: ServerQuery = None, engine_id: EngineQuery = None
) -> list[CheckPairView]:
    """Every server-engine pair with its counts and its worst finding, the worst pair first."""
    return checks.list_pairs(server_id=_id("server", server_id), engine_id=_id("engine", engine_id))


@router.get("/rules", responses=READ)
def list_rules(checks: Checks, principal: Viewer) -> list[RuleView]:
    """Every rule: what it looks at, why it matters, where it comes from."""
    return checks.rules()


@router.get("/changes", responses=NOT_FOUND)
def list_changes(
    checks: Checks,
    principal: Viewer,
    server_id: ServerQuery = None,
    engine_id: EngineQuery = None,
    since: Annotated[str | None, Query(max_length=40, description="RFC 3339; default: when it last worked")] = None,
) -> ChangesView:
    """What changed since it worked: verdicts and settings, newest first."""
    at = None
    if since is not None:
        try:
            at = parse_iso(since.replace(" ", "+"))
        except ValueError as error:
            raise InvalidInput.field("since", str(error)) from None
    return checks.changes(server_id=_id("server", server_id), engine_id=_id("engine", engine_id), since=at)


@router.get("/history", responses=NOT_FOUND)
def list_history(
    checks: Checks,
    principal: Viewer,
    paging: PageQuery,
    server_id: ServerQuery = None,
    engine_id: EngineQuery = None,
    check_id: Annotated[str | None, Query(max_length=60, description="only this rule")] = None,
) -> Page[CheckView]:
    """Every finding that ever held, newest first."""
    return checks.history(
        server_id=_id("server", server_id),
        engine_id=_id("engine", engine_id),
        check_id=check_id,
        page_size=paging.page_size,
        page_token=paging.page_token,
    )


@router.post("/texts", responses=BODY)
def check_texts(body: CheckTextsInput, checks: Checks, principal: Operator) -> list[CheckView]:
    """Verdicts on command lines, a compose file, an environment or logs. Nothing is contacted, nothing is kept."""
    return checks.check_texts(body)


@router.post("/runs", status_code=202, responses=BODY)
def start_run(body: CheckRunInput, response: Response, checks: Checks, principal: Operator) -> CheckRunView:
    """Looks at one pair, at all of one target, or at everything."""
    view = checks.start_run(body, actor=principal.actor, may_read_files=principal.may("admin"))
    response.headers["Location"] = f"/api/v1/checks/runs/{view.id}"
    return view


@router.get("/runs", responses=READ)
def list_runs(checks: Checks, principal: Viewer, paging: PageQuery) -> Page[CheckRunView]:
    """Runs of the checks, newest first."""
    return checks.list_runs(page_size=paging.page_size, page_token=paging.page_token)


@router.get("/runs/{run_id}", responses=NOT_FOUND)
def get_run(run_id: str, checks: Checks, principal: Viewer) -> CheckRunView:
    """One run of the checks, and how far it is."""
    return checks.get_run(parse_id("check run", run_id))


@router.post("/runs/{run_id}/cancel", responses=BODY)
def cancel_run(run_id: str, checks: Checks, principal: Operator) -> CheckRunView:
    """Stops a run of the checks."""
    return checks.cancel_run(parse_id("check run", run_id), actor=principal.actor)


def _id(kind: str, text: str | None) -> int | None:
    return None if text is None else parse_id(kind, text)
