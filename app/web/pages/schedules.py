"""What runs by itself."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from app.api.deps import parse_id
from app.cleanup.policy import LAYOUT_CHANGE, on_layout_change
from app.errors import Conflict, InvalidInput, NotFound, TierkeeperError
from app.scheduling.schemas import FiringView, ScheduleInput, SchedulePatch, ScheduleView
from app.services import Services
from app.web.contexts import FiringRow, ScheduleRow, SchedulesPage
from app.web.forms import FormState
from app.web.frame import AdminFrame, FormValues, Frame, OperatorFrame, ViewerFrame, build_input, one

router = APIRouter(prefix="/schedules")

FIRINGS_SHOWN = 20
FIELDS = ("name", "target", "cron", "timezone")
_PATHS = {"scan": "/stores", "policy": "/cleanup/policies", "acceptance": "/engines", "canary": "/engines"}


def _row(services: Services, schedule: ScheduleView) -> ScheduleRow:
    """The schedule with its target's name, which may be gone."""
    ident = int(schedule.target_id) if schedule.target_id.isdecimal() else 0
    on_change = False
    try:
        if schedule.kind == "scan":
            name = services.fleet.get_store(ident).name
        elif schedule.kind == "policy":
            policy = services.cleanup.get_policy(ident)
            name, on_change = policy.name, on_layout_change(policy.schedule)
        else:
            name = services.fleet.get_engine(ident).name
    except NotFound:
        return ScheduleRow(schedule, "something that is gone", "")
    return ScheduleRow(schedule, name, f"{_PATHS.get(schedule.kind, '/schedules')}/{schedule.target_id}", on_change)


def _targets(services: Services) -> list[tuple[str, str]]:
    stores = services.fleet.list_stores(page_size=500, page_token=None).items
    engines = services.fleet.list_engines(page_size=500, page_token=None).items
    return [
        *((f"scan:{s.id}", f"scan of {s.name}") for s in stores),
        *((f"acceptance:{e.id}", f"acceptance of {e.name}") for e in engines),
        *((f"canary:{e.id}", f"canaries of {e.name}") for e in engines),
    ]


def _page(frame: Frame, form: FormState | None = None, status: int = 200) -> Response:
    services = frame.services
    schedules = services.scheduling.list_schedules(page_size=200, page_token=None).items
    policies = services.cleanup.list_policies(page_size=500, page_token=None).items
    names = {schedule.id: schedule.name for schedule in schedules}
    recent = services.scheduling.recent_firings(FIRINGS_SHOWN)
    return frame.page(
        "schedules.html",
        SchedulesPage,
        "schedules",
        status=status,
        schedules=[_row(services, s) for s in schedules],
        on_change=[p for p in policies if p.schedule == LAYOUT_CHANGE],
        firings=[FiringRow(f, names.get(f.schedule_id, f"#{f.schedule_id}")) for f in recent],
        form=form or FormState.of({"timezone": "UTC"}, fields=FIELDS),
        targets=_targets(services),
    )


@router.get("")
def schedules_page(frame: ViewerFrame) -> Response:
    return _page(frame)


@router.post("")
def create(frame: AdminFrame, values: FormValues) -> Response:
    form = FormState(values=values, fields=frozenset(FIELDS))
    kind, _, target = (one(values, "target") or "").partition(":")
    body = {
        "name": one(values, "name") or "",
        "kind": kind,
        "target_id": target,
        "cron": one(values, "cron") or "",
        "timezone": one(values, "timezone") or "UTC",
    }
    try:
        schedule = frame.services.scheduling.create(build_input(ScheduleInput, body), actor=frame.actor)
    except (InvalidInput, Conflict, NotFound) as error:
        return _page(frame, form.failed(error, {"kind": "target", "target_id": "target"}), error.status)
    return frame.done("/schedules", f"{schedule.name} was created.")


@router.post("/{schedule_id}/run")
def run_now(frame: OperatorFrame, schedule_id: str) -> Response:
    try:
        firing = frame.services.scheduling.run_now(parse_id("schedule", schedule_id), actor=frame.actor)
    except TierkeeperError as error:
        return frame.refused("/schedules", error)
    good = firing.outcome in ("started", "manual")
    text = firing.detail or ("Started." if good else f"It did not start: {firing.outcome}.")
    return frame.done("/schedules", text, kind="ok" if good else "warn", link=_link(firing))


#: Where work of each kind is looked at.
_WORK_PAGES = {"acceptance": "/acceptance/runs/", "cleanup": "/cleanup/runs/", "cleanup_run": "/cleanup/runs/"}


def _link(firing: FiringView) -> tuple[str, str] | None:
    """The page of the work that a firing started."""
    if firing.work_kind is None or firing.work_id is None:
        return None
    page = _WORK_PAGES.get(firing.work_kind)
    return (page + firing.work_id, "See the run") if page else ("/activity", "See it at work")


@router.post("/{schedule_id}/pause")
def pause(frame: AdminFrame, schedule_id: str) -> Response:
    return _set_paused(frame, schedule_id, True)


@router.post("/{schedule_id}/resume")
def resume(frame: AdminFrame, schedule_id: str) -> Response:
    return _set_paused(frame, schedule_id, False)


def _set_paused(frame: Frame, schedule_id: str, paused: bool) -> Response:
    scheduling, ident = frame.services.scheduling, parse_id("schedule", schedule_id)
    schedule = scheduling.patch(ident, SchedulePatch(paused=paused), actor=frame.actor)
    said = {True: f"{schedule.name} is paused.", False: f"{schedule.name} goes on."}
    return frame.done(
        "/schedules",
        said[paused],
        undo=(lambda actor: scheduling.patch(ident, SchedulePatch(paused=not paused), actor=actor), said[not paused]),
    )


@router.post("/{schedule_id}/delete")
def delete(frame: AdminFrame, schedule_id: str) -> Response:
    scheduling, ident = frame.services.scheduling, parse_id("schedule", schedule_id)
    schedule = scheduling.get(ident)
    try:
        scheduling.delete(ident, actor=frame.actor)
    except Conflict as error:
        return frame.refused("/schedules", error)
    body = ScheduleInput(**{name: getattr(schedule, name) for name in ScheduleInput.model_fields})
    return frame.done(
        "/schedules",
        f"{schedule.name} was deleted.",
        undo=(lambda actor: scheduling.create(body, actor=actor), f"{schedule.name} is there again."),
    )
