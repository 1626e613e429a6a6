"""/policies, /plans, /cleanup-runs, quarantine: what goes from a store, why, and what became of it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Body, Query, Response
from fastapi.responses import StreamingResponse

from app.api.deps import Admin, Operator, PageQuery, ServicesDep, Viewer, parse_id
from app.api.responses import BODY, NOT_FOUND, READ
from app.cleanup.schemas import (
    EpisodeView,
    FilterPlanInput,
    ItemView,
    PlanView,
    PolicyInput,
    PolicyPatch,
    PolicyView,
    PresetView,
    QuarantineJobView,
    QuarantineView,
    RunView,
    SelectionInput,
)
from app.scheduling.schemas import Page

router = APIRouter(tags=["cleanup"])

StoreQuery = Annotated[str | None, Query(max_length=40, description="only those of this store")]
PolicyQuery = Annotated[str | None, Query(max_length=40, description="only those of this policy")]
StateQuery = Annotated[str | None, Query(max_length=40, description="only records in this state, for instance used")]
ErrnoQuery = Annotated[int | None, Query(ge=0, le=99999, description="only records that failed with this errno")]
Chosen = Annotated[SelectionInput | None, Body(description="which records; all without it")]


# ---- policies ----


@router.get("/policies", responses=READ)
def list_policies(
    services: ServicesDep, principal: Viewer, paging: PageQuery, store_id: StoreQuery = None
) -> Page[PolicyView]:
    """Cleanup policies, of all stores or of one."""
    return services.cleanup.list_policies(
        page_size=paging.page_size, page_token=paging.page_token, store_id=_id("store", store_id)
    )


@router.get("/policy-presets", responses=READ)
def list_presets(services: ServicesDep, principal: Viewer) -> list[PresetView]:
    """Ready policies: fill in `store_id` and post `policy` to /policies."""
    return services.cleanup.presets()


@router.post("/policies", status_code=201, responses=BODY)
def create_policy(body: PolicyInput, response: Response, services: ServicesDep, principal: Admin) -> PolicyView:
    """Keeps a policy. Nothing is removed before a plan of it is run or its schedule fires."""
    view = services.cleanup.create_policy(body, actor=principal.actor)
    response.headers["Location"] = f"/api/v1/policies/{view.id}"
    return view


@router.get("/policies/{policy_id}", responses=NOT_FOUND)
def get_policy(policy_id: str, services: ServicesDep, principal: Viewer) -> PolicyView:
    """One policy with its next three firings."""
    return services.cleanup.get_policy(parse_id("policy", policy_id))


@router.patch("/policies/{policy_id}", responses=BODY)
def patch_policy(policy_id: str, body: PolicyPatch, services: ServicesDep, principal: Admin) -> PolicyView:
    """Changes only what is sent; a contradiction names both fields and changes nothing."""
    return services.cleanup.patch_policy(parse_id("policy", policy_id), body, actor=principal.actor)


@router.delete("/policies/{policy_id}", status_code=204, responses=BODY)
def delete_policy(policy_id: str, services: ServicesDep, principal: Admin) -> None:
    """Forgets the policy and its schedule. Its plans, runs and quarantine stay."""
    services.cleanup.delete_policy(parse_id("policy", policy_id), actor=principal.actor)


@router.post("/policies/{policy_id}/plans", status_code=202, responses=BODY)
def plan_policy(policy_id: str, response: Response, services: ServicesDep, principal: Operator) -> PlanView:
    """A dry run: what the policy would take now."""
    return _plan(response, services.cleanup.start_policy_plan(parse_id("policy", policy_id), actor=principal.actor))


@router.post("/policies/{policy_id}/runs", status_code=202, responses=BODY)
def run_policy(policy_id: str, response: Response, services: ServicesDep, principal: Operator) -> RunView:
    """Plans and runs in one go, enabled or not."""
    return _run(response, services.cleanup.start_policy_run(parse_id("policy", policy_id), actor=principal.actor))


# ---- plans ----


@router.post("/stores/{store_id}/plans", status_code=202, responses=BODY)
def plan_filter(
    store_id: str, body: FilterPlanInput, response: Response, services: ServicesDep, principal: Operator
) -> PlanView:
    """A dry run over everything that matches a filter of the records list."""
    view = services.cleanup.start_filter_plan(parse_id("store", store_id), body, actor=principal.actor)
    return _plan(response, view)


@router.get("/plans", responses=READ)
def list_plans(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    store_id: StoreQuery = None,
    policy_id: PolicyQuery = None,
) -> Page[PlanView]:
    """Plans (dry runs), newest first."""
    return services.cleanup.list_plans(
        page_size=paging.page_size,
        page_token=paging.page_token,
        store_id=_id("store", store_id),
        policy_id=_id("policy", policy_id),
    )


@router.get("/plans/{plan_id}", responses=NOT_FOUND)
def get_plan(plan_id: str, services: ServicesDep, principal: Viewer) -> PlanView:
    """One plan: records and bytes by reason, what would be left, warnings, and when it expires."""
    return services.cleanup.get_plan(parse_id("plan", plan_id))


@router.get("/plans/{plan_id}/records", responses=NOT_FOUND)
def plan_records(
    plan_id: str,
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    reason: Annotated[str | None, Query(max_length=40, description="only this reason (or select kind)")] = None,
) -> Page[ItemView]:
    """The records in the order in which they would go."""
    return services.cleanup.plan_records(
        parse_id("plan", plan_id), page_size=paging.page_size, page_token=paging.page_token, reason=reason
    )


@router.post("/plans/{plan_id}/cancel", responses=BODY)
def cancel_plan(plan_id: str, services: ServicesDep, principal: Operator) -> PlanView:
    """Stops a plan that is still being made."""
    return services.cleanup.cancel_plan(parse_id("plan", plan_id), actor=principal.actor)


@router.post("/plans/{plan_id}/runs", status_code=202, responses=BODY)
def run_plan(plan_id: str, response: Response, services: ServicesDep, principal: Operator) -> RunView:
    """Runs exactly this plan; 409 when it has expired or was run."""
    return _run(response, services.cleanup.start_run(parse_id("plan", plan_id), actor=principal.actor))


# ---- runs ----


@router.get("/cleanup-runs", responses=READ)
def list_runs(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    store_id: StoreQuery = None,
    policy_id: PolicyQuery = None,
) -> Page[RunView]:
    """Cleanup runs, newest first."""
    return services.cleanup.list_runs(
        page_size=paging.page_size,
        page_token=paging.page_token,
        store_id=_id("store", store_id),
        policy_id=_id("policy", policy_id),
    )


@router.get("/cleanup-runs/{run_id}", responses=NOT_FOUND)
def get_run(run_id: str, services: ServicesDep, principal: Viewer) -> RunView:
    """One run: its steps, what was removed, skipped or failed, and the measured free space."""
    return services.cleanup.get_run(parse_id("cleanup run", run_id))


@router.post("/cleanup-runs/{run_id}/cancel", responses=BODY)
def cancel_run(run_id: str, services: ServicesDep, principal: Operator) -> RunView:
    """Stops a run after the batch at hand. What it removed until then stays removed and can be restored."""
    return services.cleanup.cancel_run(parse_id("cleanup run", run_id), actor=principal.actor)


@router.get("/cleanup-runs/{run_id}/records", responses=NOT_FOUND)
def run_records(
    run_id: str,
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    state: StateQuery = None,
    errno: ErrnoQuery = None,
) -> Page[ItemView]:
    """What became of each record."""
    return services.cleanup.run_records(
        parse_id("cleanup run", run_id),
        page_size=paging.page_size,
        page_token=paging.page_token,
        state=state,
        errno=errno,
    )


@router.get("/cleanup-runs/{run_id}/records.jsonl", responses=NOT_FOUND, response_class=StreamingResponse)
def run_records_jsonl(
    run_id: str, services: ServicesDep, principal: Viewer, state: StateQuery = None, errno: ErrnoQuery = None
) -> StreamingResponse:
    """All records of a run, or those of one outcome, one JSON object a line, streamed."""
    items = services.cleanup.export_run_records(parse_id("cleanup run", run_id), state=state, errno=errno)
    lines = (json.dumps(item.model_dump(by_alias=True)) + "\n" for item in items)
    return _download(lines, "application/x-ndjson", f"cleanup-run-{run_id}.jsonl")


@router.get("/cleanup-runs/{run_id}/records.csv", responses=NOT_FOUND, response_class=StreamingResponse)
def run_records_csv(
    run_id: str, services: ServicesDep, principal: Viewer, state: StateQuery = None, errno: ErrnoQuery = None
) -> StreamingResponse:
    """All records of a run, or those of one outcome, as CSV, streamed."""
    items = services.cleanup.export_run_records(parse_id("cleanup run", run_id), state=state, errno=errno)
    return _download(_csv(items), "text/csv; charset=utf-8", f"cleanup-run-{run_id}.csv")


@router.post("/cleanup-runs/{run_id}/restore", status_code=202, responses=BODY)
def restore(
    run_id: str, response: Response, services: ServicesDep, principal: Operator, body: Chosen = None
) -> QuarantineJobView:
    """Puts quarantined records back, never over an existing name."""
    view = services.cleanup.restore(parse_id("cleanup run", run_id), body, actor=principal.actor)
    return _job(response, view)


@router.post("/cleanup-runs/{run_id}/purge", status_code=202, responses=BODY)
def purge(
    run_id: str, response: Response, services: ServicesDep, principal: Operator, body: Chosen = None
) -> QuarantineJobView:
    """Deletes quarantined records for good."""
    view = services.cleanup.purge(parse_id("cleanup run", run_id), body, actor=principal.actor)
    return _job(response, view)


# ---- quarantine ----


@router.get("/quarantine-jobs", responses=READ)
def list_quarantine_jobs(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    run_id: Annotated[str | None, Query(max_length=40, description="only those of this run")] = None,
) -> Page[QuarantineJobView]:
    """Restores and purges."""
    return services.cleanup.list_quarantine_jobs(
        page_size=paging.page_size, page_token=paging.page_token, run_id=_id("cleanup run", run_id)
    )


@router.get("/quarantine-jobs/{job_id}", responses=NOT_FOUND)
def get_quarantine_job(job_id: str, services: ServicesDep, principal: Viewer) -> QuarantineJobView:
    """One restore or purge: how far it is, and what became of each record."""
    return services.cleanup.get_quarantine_job(parse_id("quarantine job", job_id))


@router.post("/quarantine-jobs/{job_id}/cancel", responses=BODY)
def cancel_quarantine_job(job_id: str, services: ServicesDep, principal: Operator) -> QuarantineJobView:
    """Stops a restore or purge after the batch at hand."""
    return services.cleanup.cancel_quarantine_job(parse_id("quarantine job", job_id), actor=principal.actor)


@router.get("/stores/{store_id}/quarantine", responses={**NOT_FOUND, 409: BODY[409]})
def store_quarantine(store_id: str, services: ServicesDep, principal: Viewer, paging: PageQuery) -> QuarantineView:
    """What waits in quarantine, run by run, as measured on the disk now."""
    return services.cleanup.quarantine(
        parse_id("store", store_id), page_size=paging.page_size, page_token=paging.page_token
    )


@router.post("/stores/{store_id}/quarantine/{folder}/adopt", status_code=201, responses=BODY)
def adopt_quarantine(
    store_id: str, folder: str, response: Response, services: ServicesDep, principal: Operator
) -> RunView:
    """Takes over a folder that another panel left, so that it can be restored or purged here."""
    view = services.cleanup.adopt_quarantine(parse_id("store", store_id), folder, actor=principal.actor)
    response.headers["Location"] = f"/api/v1/cleanup-runs/{view.id}"
    return view


@router.get("/cleanup-episodes", responses=READ)
def list_episodes(
    services: ServicesDep,
    principal: Viewer,
    store_id: StoreQuery = None,
    all: Annotated[bool, Query(description="closed ones, too")] = False,
) -> list[EpisodeView]:
    """Caches that may still hold wrong records, and what they wait for."""
    return services.cleanup.episodes(_id("store", store_id), open_only=not all)


# ---- inside ----


def _id(kind: str, text: str | None) -> int | None:
    return None if text is None else parse_id(kind, text)


def _plan(response: Response, view: PlanView) -> PlanView:
    response.headers["Location"] = f"/api/v1/plans/{view.id}"
    return view


def _run(response: Response, view: RunView) -> RunView:
    response.headers["Location"] = f"/api/v1/cleanup-runs/{view.id}"
    return view


def _job(response: Response, view: QuarantineJobView) -> QuarantineJobView:
    response.headers["Location"] = f"/api/v1/quarantine-jobs/{view.id}"
    return view


def _download(parts: Iterator[str], kind: str, name: str) -> StreamingResponse:
    return StreamingResponse(parts, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


_COLUMNS = (
    "id",
    "name",
    "class",
    "reason",
    "why",
    "action",
    "state",
    "errno",
    "detail",
    "size_bytes",
    "modified_at",
    "accessed_at",
    "changed_at",
    "model_name",
    "kv_rank",
    "object_group_id",
    "chunk_hash",
    "cache_salt",
    "round",
)


def _csv(items: Iterator[ItemView]) -> Iterator[str]:
    yield _line(list(_COLUMNS))
    for item in items:
        values = item.model_dump(by_alias=True)
        yield _line([_cell(values[column]) for column in _COLUMNS])


def _line(cells: list[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow(cells)
    return buffer.getvalue()


def _cell(value: object) -> str:
    """Names come from a disk that others write: a spreadsheet must not take one for a formula."""
    text = "" if value is None else str(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") and not isinstance(value, int | float) else text
