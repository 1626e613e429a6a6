"""Policies, dry runs, runs, putting back and purging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import PageQuery, parse_id
from app.cleanup.schemas import (
    SELECTION_FILTERS,
    PolicyInput,
    PolicyPatch,
    PolicyView,
    QuarantineJobView,
    SelectionInput,
)
from app.errors import Conflict, InvalidInput, NotFound, StoreError, TierkeeperError
from app.records.facts import REASONS, RECORD_CLASSES
from app.web import overview, policy_form
from app.web.contexts import CleanupPage, Crumb, PlanPage, PolicyFormPage, PolicyPage, RunPage
from app.web.formats import count, plural, words
from app.web.forms import FormState
from app.web.frame import AdminFrame, FormValues, Frame, OperatorFrame, ViewerFrame, one
from app.web.outcomes import NAMES, checked, outcomes
from app.web.pages.charts import around_run
from app.web.table_state import TableState
from app.web.words import harm_of

router = APIRouter(prefix="/cleanup")

#: Fields of the form for some of a run's records.
_SOME = ("class", "reason", "model", "salt", "q", "confirm", "harm")
_HELD = "It deletes, so its schedule is off:"
_CALLED = {"harm": "tick that records which were wrong or damaged shall go back"}


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
    form = policy_form.posted_form(values)
    paths: dict[str, str] = {}
    try:
        body, paths = policy_form.body_of(values)
        # A schedule may fire within seconds: what deletes waits for somebody who has seen its dry run.
        held = bool(body["schedule"]) and policy_form.deletes(body)
        body["enabled"] = body["enabled"] and not held
        policy = frame.services.cleanup.create_policy(policy_form.checked(PolicyInput, body), actor=frame.actor)
    except (InvalidInput, Conflict) as error:
        return _policy_form(frame, policy_form.refused(form, error, paths), status=error.status)
    told = f"{_HELD} see a dry run first, then turn it on." if held else "A dry run shows what it takes."
    return frame.done(f"/cleanup/policies/{policy.id}", f"{policy.name} was created. {told}")


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
        paused=None if policy.enabled else _paused(frame, policy),
    )


def _paused(frame: Frame, policy: PolicyView) -> tuple[str, str] | None:
    """(when, by whom) its schedule was paused last; None where it has been off since the policy was made."""
    events = frame.services.audit.list_events(
        page_size=1, page_token=None, target_kind="policy", target_id=policy.id, action="policy.pause"
    ).items
    # A number may have been another policy's before.
    return (events[0].at, events[0].actor) if events and events[0].at >= policy.created_at else None


@router.post("/policies/{policy_id}/pause")
def pause_policy(frame: AdminFrame, policy_id: str) -> Response:
    return _set_enabled(frame, policy_id, False)


@router.post("/policies/{policy_id}/resume")
def resume_policy(frame: AdminFrame, policy_id: str) -> Response:
    return _set_enabled(frame, policy_id, True)


def _set_enabled(frame: Frame, policy_id: str, enabled: bool) -> Response:
    cleanup, ident = frame.services.cleanup, parse_id("policy", policy_id)
    policy = cleanup.patch_policy(ident, PolicyPatch(enabled=enabled), actor=frame.actor)
    said = {True: f"The schedule of {policy.name} is on.", False: f"The schedule of {policy.name} is paused."}
    return frame.done(
        f"/cleanup/policies/{policy.id}",
        said[enabled],
        undo=(
            lambda actor: cleanup.patch_policy(ident, PolicyPatch(enabled=not enabled), actor=actor),
            said[not enabled],
        ),
    )


@router.get("/policies/{policy_id}/edit")
def edit_policy_page(frame: AdminFrame, policy_id: str) -> Response:
    policy = frame.services.cleanup.get_policy(parse_id("policy", policy_id))
    return _policy_form(frame, policy_form.form_of_view(policy), policy_id=policy_id)


@router.post("/policies/{policy_id}/edit")
def edit_policy(frame: AdminFrame, policy_id: str, values: FormValues) -> Response:
    form = policy_form.posted_form(values)
    ident = parse_id("policy", policy_id)
    paths: dict[str, str] = {}
    try:
        body, paths = policy_form.body_of(values)
        body.pop("store_id")
        before = frame.services.cleanup.get_policy(ident)
        held = before.enabled and body["enabled"] and policy_form.needs_a_new_look(before, body)
        body["enabled"] = body["enabled"] and not held
        policy = frame.services.cleanup.patch_policy(ident, policy_form.checked(PolicyPatch, body), actor=frame.actor)
    except (InvalidInput, Conflict) as error:
        return _policy_form(
            frame,
            policy_form.refused(form, error, paths),
            policy_id=policy_id,
            status=error.status,
        )
    return frame.done(
        f"/cleanup/policies/{policy.id}",
        _saved(policy, before, held),
        undo=(
            lambda actor: frame.services.cleanup.patch_policy(
                ident, PolicyPatch(**policy_form.body_of_view(before)), actor=actor
            ),
            f"{before.name} is as it was before.",
        ),
    )


def _saved(policy: PolicyView, before: PolicyView, held: bool) -> str:
    if held:
        return f"{policy.name} was saved. {_HELD} see a dry run of the change first, then turn it on."
    if policy.enabled == before.enabled or not policy.schedule:
        return f"{policy.name} was saved."
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
        takes_derived=_takes_derived(frame, plan.policy_id),
    )


def _takes_derived(frame: Frame, policy_id: str | None) -> bool:
    """Whether a run of the plan's policy adds what engines compute behind wrong records while it runs."""
    try:
        policy = frame.services.cleanup.get_policy(int(policy_id)) if policy_id else None
    except NotFound:
        return False
    return policy is not None and any(item["kind"] == "derived" for item in policy.select)


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


def _run_page(
    frame: Frame, run_id: str, *, page_token: str | None = None, form: FormState | None = None, status: int = 200
) -> Response:
    cleanup = frame.services.cleanup
    ident = parse_id("run", run_id)
    run = cleanup.get_run(ident)
    state = TableState.parse(frame.request.query_params, names=NAMES)
    wanted, number = checked(state)
    records = cleanup.run_records(ident, page_size=state.page_size, page_token=page_token, state=wanted, errno=number)
    return frame.page(
        "cleanup_run.html",
        RunPage,
        "cleanup",
        Crumb(f"Run #{run.id}"),
        status=status,
        run=run,
        records=records.items,
        state=state,
        outcomes=outcomes(run, state),
        next_page_token=records.next_page_token,
        jobs=cleanup.list_quarantine_jobs(page_size=5, page_token=None, run_id=ident).items,
        form=form or FormState(fields=frozenset(_SOME)),
        around=around_run(frame.services, run),
        marks=(overview.cleanup_event(run),),
        some_classes=[(name, words(name)) for name in RECORD_CLASSES],
        some_reasons=[(name, words(name)) for names in REASONS.values() for name in names],
    )


@router.get("/runs/{run_id}")
def run_page(frame: ViewerFrame, run_id: str, paging: PageQuery) -> Response:
    return _run_page(frame, run_id, page_token=paging.page_token)


@router.post("/runs/{run_id}/cancel")
def cancel_run(frame: OperatorFrame, run_id: str) -> Response:
    frame.services.cleanup.cancel_run(parse_id("run", run_id), actor=frame.actor)
    return frame.done(f"/cleanup/runs/{run_id}", "The run stops between two records.")


def _some(values: Mapping[str, list[str]]) -> SelectionInput | None:
    """Which records a form means: None is all of the run. Raises InvalidInput where a form for some names none."""
    if one(values, "some") is None:
        return None
    filters = {name: text for name in SELECTION_FILTERS if (text := one(values, name)) is not None}
    records = list(values.get("record", ()))
    if not filters and not records:
        # About the form as a whole: no single box of it is wrong.
        raise InvalidInput("tick records in the table or describe them; nothing was changed")
    return SelectionInput(record_ids=records or None, filter=filters or None)


@router.post("/runs/{run_id}/restore")
def restore(frame: OperatorFrame, run_id: str, values: FormValues) -> Response:
    """Puts back all that waits of a run, or what a form describes."""
    here = f"/cleanup/runs/{run_id}"
    ident = parse_id("run", run_id)
    try:
        chosen = _some(values)
        harm = harm_of(frame.services.cleanup.waiting(ident, chosen))
        if harm.records and one(values, "harm") is None:
            error = InvalidInput.field(
                "harm",
                f"{plural(harm.records, 'record')} of these {'was' if harm.records == 1 else 'were'} wrong or damaged "
                f"when taken ({harm.kinds}): tick the box to put them back all the same; nothing was changed",
            )
            if chosen is None:
                return frame.refused(here, error)
            raise error
        job = frame.services.cleanup.restore(ident, chosen, actor=frame.actor)
    except InvalidInput as error:
        return _run_page(
            frame, run_id, form=FormState(values, fields=frozenset(_SOME), labels=_CALLED).failed(error), status=422
        )
    except TierkeeperError as error:
        return frame.refused(here, error)
    return frame.done(here, _told(job, "put back"))


@router.post("/runs/{run_id}/purge")
def purge(frame: OperatorFrame, run_id: str, values: FormValues) -> Response:
    """Deletes what waits in quarantine, or what a form describes of it, for good; needs the store's name typed."""
    here = f"/cleanup/runs/{run_id}"
    ident = parse_id("run", run_id)
    run = frame.services.cleanup.get_run(ident)
    try:
        chosen = _some(values)
        if one(values, "confirm") != run.store_name.strip():
            if chosen is None:
                return frame.refused(here, _unconfirmed(run.store_name))
            raise _unconfirmed(run.store_name)
        job = frame.services.cleanup.purge(ident, chosen, actor=frame.actor)
    except InvalidInput as error:
        return _run_page(frame, run_id, form=FormState(values, fields=frozenset(_SOME)).failed(error), status=422)
    except TierkeeperError as error:
        return frame.refused(here, error)
    return frame.done(here, _told(job, "purged"))


def _told(job: QuarantineJobView, done: str) -> str:
    """What came of a restore or purge, or that it goes on."""
    if job.state in ("queued", "running"):
        return f"Records are being {done}."
    left = sum(job.skipped.values()) + job.failed_total
    return f"{plural(job.records, 'record')} {'was' if job.records == 1 else 'were'} {done}" + (
        f"; {count(left)} could not be: see their states below." if left else "."
    )
