"""Policies, dry runs, runs, putting back and purging."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import PageQuery, parse_id
from app.cleanup.schemas import PolicyInput, PolicyPatch, PolicyView
from app.errors import Conflict, InvalidInput, StoreError, TierkeeperError
from app.web import overview, policy_form
from app.web.contexts import CleanupPage, Crumb, PlanPage, PolicyFormPage, PolicyPage, RunPage
from app.web.forms import FormState
from app.web.frame import AdminFrame, FormValues, Frame, OperatorFrame, ViewerFrame, build_input, one
from app.web.pages.charts import around_run
from app.web.table_state import TableState

router = APIRouter(prefix="/cleanup")


@router.get("")
def cleanup_page(frame: ViewerFrame) -> Response:
    cleanup = frame.services.cleanup
    return frame.page(
        "cleanup.html",
        CleanupPage,
        "cleanup",
        policies=cleanup.list_policies(page_size=200, page_token=None).items,
        presets=cleanup.presets(),
        runs=cleanup.list_runs(page_size=20, page_token=None).items,
        plans=cleanup.list_plans(page_size=10, page_token=None).items,
        stores=[],
    )


# ---- policies ----


def _policy_form(
    frame: Frame, form: FormState, *, policy_id: str | None = None, preset: str = "", status: int = 200
) -> Response:
    services = frame.services
    policy = services.cleanup.get_policy(parse_id("policy", policy_id)) if policy_id else None
    crumbs = (Crumb(policy.name, f"/cleanup/policies/{policy.id}"), Crumb("Edit")) if policy else (Crumb("New policy"),)
    return frame.page(
        "policy_form.html",
        PolicyFormPage,
        "cleanup",
        *crumbs,
        status=status,
        policy=policy,
        form=form,
        stores=services.fleet.list_stores(page_size=500, page_token=None).items,
        presets=services.cleanup.presets(),
        preset=preset,
    )


@router.get("/policies/new")
def new_policy_page(
    frame: AdminFrame,
    preset: Annotated[str, Query(max_length=60)] = "",
    store_id: Annotated[str, Query(max_length=40)] = "",
) -> Response:
    chosen = next((p for p in frame.services.cleanup.presets() if p.id == preset), None)
    form = policy_form.form_of_preset(chosen.policy, store_id) if chosen else policy_form.empty_form(store_id)
    return _policy_form(frame, form, preset=preset)


@router.post("/policies/new")
def create_policy(frame: AdminFrame, values: FormValues) -> Response:
    form = FormState(values=values, fields=frozenset(policy_form.FIELDS))
    paths: dict[str, str] = {}
    try:
        body, paths = policy_form.body_of(values)
        policy = frame.services.cleanup.create_policy(build_input(PolicyInput, body), actor=frame.actor)
    except (InvalidInput, Conflict) as error:
        return _policy_form(frame, form.failed(error, paths), status=error.status)
    return frame.done(f"/cleanup/policies/{policy.id}", f"{policy.name} was created. A dry run shows what it takes.")


@router.get("/policies/{policy_id}")
def policy_page(frame: ViewerFrame, policy_id: str) -> Response:
    cleanup = frame.services.cleanup
    ident = parse_id("policy", policy_id)
    policy = cleanup.get_policy(ident)
    return frame.page(
        "policy.html",
        PolicyPage,
        "cleanup",
        Crumb(policy.name),
        policy=policy,
        plans=cleanup.list_plans(page_size=10, page_token=None, policy_id=ident).items,
        runs=cleanup.list_runs(page_size=20, page_token=None, policy_id=ident).items,
    )


@router.get("/policies/{policy_id}/edit")
def edit_policy_page(frame: AdminFrame, policy_id: str) -> Response:
    policy = frame.services.cleanup.get_policy(parse_id("policy", policy_id))
    return _policy_form(frame, policy_form.form_of_view(policy), policy_id=policy_id)


@router.post("/policies/{policy_id}/edit")
def edit_policy(frame: AdminFrame, policy_id: str, values: FormValues) -> Response:
    form = FormState(values=values, fields=frozenset(policy_form.FIELDS))
    ident = parse_id("policy", policy_id)
    paths: dict[str, str] = {}
    try:
        body, paths = policy_form.body_of(values)
        body.pop("store_id")
        before = frame.services.cleanup.get_policy(ident)
        policy = frame.services.cleanup.patch_policy(ident, build_input(PolicyPatch, body), actor=frame.actor)
    except (InvalidInput, Conflict) as error:
        return _policy_form(frame, form.failed(error, paths), policy_id=policy_id, status=error.status)
    return frame.done(
        f"/cleanup/policies/{policy.id}",
        f"{policy.name} was saved." if policy.enabled == before.enabled else _switched(policy),
        undo=(
            lambda actor: frame.services.cleanup.patch_policy(
                ident, PolicyPatch(**policy_form.body_of_view(before)), actor=actor
            ),
            f"{before.name} is as it was before.",
        ),
    )


def _switched(policy: PolicyView) -> str:
    return f"{policy.name} was saved: it runs {'by its schedule' if policy.enabled else 'only by hand'} now."


@router.post("/policies/{policy_id}/delete")
def delete_policy(frame: AdminFrame, policy_id: str) -> Response:
    policy = frame.services.cleanup.get_policy(parse_id("policy", policy_id))
    try:
        frame.services.cleanup.delete_policy(int(policy.id), actor=frame.actor)
    except Conflict as error:
        return frame.refused(f"/cleanup/policies/{policy_id}", error)
    body = {**policy_form.body_of_view(policy), "store_id": policy.store_id}
    return frame.done(
        "/cleanup",
        f"{policy.name} was deleted.",
        undo=(
            lambda actor: frame.services.cleanup.create_policy(PolicyInput(**body), actor=actor),
            f"{policy.name} is there again.",
        ),
    )


@router.post("/policies/{policy_id}/plans")
def plan_policy(frame: OperatorFrame, policy_id: str) -> Response:
    try:
        plan = frame.services.cleanup.start_policy_plan(parse_id("policy", policy_id), actor=frame.actor)
    except (Conflict, StoreError) as error:
        return frame.refused(f"/cleanup/policies/{policy_id}", error)
    return frame.done(f"/cleanup/plans/{plan.id}")


@router.post("/policies/{policy_id}/runs")
def run_policy(frame: OperatorFrame, policy_id: str) -> Response:
    try:
        run = frame.services.cleanup.start_policy_run(parse_id("policy", policy_id), actor=frame.actor)
    except (Conflict, StoreError) as error:
        return frame.refused(f"/cleanup/policies/{policy_id}", error)
    return frame.done(f"/cleanup/runs/{run.id}")


# ---- plans ----


@router.get("/plans/{plan_id}")
def plan_page(frame: ViewerFrame, plan_id: str, paging: PageQuery) -> Response:
    cleanup = frame.services.cleanup
    ident = parse_id("plan", plan_id)
    plan = cleanup.get_plan(ident)
    state = TableState.parse(frame.request.query_params, names=("reason",))
    records = cleanup.plan_records(
        ident, page_size=state.page_size, page_token=paging.page_token, reason=state.get("reason") or None
    )
    return frame.page(
        "plan.html",
        PlanPage,
        "cleanup",
        Crumb(f"Plan #{plan.id}"),
        plan=plan,
        records=records.items,
        state=state,
        next_page_token=records.next_page_token,
    )


@router.post("/plans/{plan_id}/cancel")
def cancel_plan(frame: OperatorFrame, plan_id: str) -> Response:
    frame.services.cleanup.cancel_plan(parse_id("plan", plan_id), actor=frame.actor)
    return frame.done(f"/cleanup/plans/{plan_id}", "Planning is stopping.")


@router.post("/plans/{plan_id}/runs")
def run_plan(frame: OperatorFrame, plan_id: str, values: FormValues) -> Response:
    """Carries a plan out. What deletes for good needs the store's name typed."""
    here = f"/cleanup/plans/{plan_id}"
    ident = parse_id("plan", plan_id)
    try:
        plan = frame.services.cleanup.get_plan(ident)
        if plan.removal == "delete" and one(values, "confirm") != plan.store_name.strip():
            return frame.refused(here, _unconfirmed(plan.store_name))
        run = frame.services.cleanup.start_run(ident, actor=frame.actor)
    except (Conflict, StoreError) as error:
        return frame.refused(here, error)
    return frame.done(f"/cleanup/runs/{run.id}")


def _unconfirmed(name: str) -> InvalidInput:
    return InvalidInput.field("confirm", f"type {name} to confirm; nothing was changed")


# ---- runs ----


@router.get("/runs/{run_id}")
def run_page(frame: ViewerFrame, run_id: str, paging: PageQuery) -> Response:
    cleanup = frame.services.cleanup
    ident = parse_id("run", run_id)
    run = cleanup.get_run(ident)
    state = TableState.parse(frame.request.query_params, names=("state",))
    records = cleanup.run_records(
        ident, page_size=state.page_size, page_token=paging.page_token, state=state.get("state") or None
    )
    return frame.page(
        "cleanup_run.html",
        RunPage,
        "cleanup",
        Crumb(f"Run #{run.id}"),
        run=run,
        records=records.items,
        state=state,
        next_page_token=records.next_page_token,
        jobs=cleanup.list_quarantine_jobs(page_size=5, page_token=None, run_id=ident).items,
        form=FormState(),
        around=around_run(frame.services, run),
        marks=(overview.cleanup_event(run),),
    )


@router.post("/runs/{run_id}/cancel")
def cancel_run(frame: OperatorFrame, run_id: str) -> Response:
    frame.services.cleanup.cancel_run(parse_id("run", run_id), actor=frame.actor)
    return frame.done(f"/cleanup/runs/{run_id}", "The run stops between two records.")


@router.post("/runs/{run_id}/restore")
def restore(frame: OperatorFrame, run_id: str) -> Response:
    here = f"/cleanup/runs/{run_id}"
    try:
        job = frame.services.cleanup.restore(parse_id("run", run_id), None, actor=frame.actor)
    except TierkeeperError as error:
        return frame.refused(here, error)
    return frame.done(here, "Records are put back." if job.state in ("queued", "running") else "Records were put back.")


@router.post("/runs/{run_id}/purge")
def purge(frame: OperatorFrame, run_id: str, values: FormValues) -> Response:
    """Deletes what waits in quarantine, for good; needs the store's name typed."""
    here = f"/cleanup/runs/{run_id}"
    ident = parse_id("run", run_id)
    run = frame.services.cleanup.get_run(ident)
    if one(values, "confirm") != run.store_name.strip():
        return frame.refused(here, _unconfirmed(run.store_name))
    try:
        frame.services.cleanup.purge(ident, None, actor=frame.actor)
    except TierkeeperError as error:
        return frame.refused(here, error)
    return frame.done(here, "The quarantine of this run is purged.")
