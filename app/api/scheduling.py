"""/schedules: when scans, policies and acceptance runs happen."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.api.deps import Admin, Operator, PageQuery, ServicesDep, Viewer, parse_id
from app.api.responses import BODY, NOT_FOUND, READ
from app.scheduling.schemas import FiringView, Page, ScheduleInput, SchedulePatch, ScheduleView

router = APIRouter(prefix="/schedules", tags=["schedules"])


@router.get("", responses=READ)
def list_schedules(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    kind: Annotated[str | None, Query(max_length=32)] = None,
) -> Page[ScheduleView]:
    """All schedules (scan, policy, acceptance), each with its next three firings."""
    return services.scheduling.list_schedules(page_size=paging.page_size, page_token=paging.page_token, kind=kind)


@router.post("", status_code=201, responses=BODY)
def create_schedule(body: ScheduleInput, response: Response, services: ServicesDep, principal: Admin) -> ScheduleView:
    """Adds a schedule. A time zone or cron text that makes no sense is refused with its field."""
    view = services.scheduling.create(body, actor=principal.actor)
    response.headers["Location"] = f"/api/v1/schedules/{view.id}"
    return view


@router.get("/{schedule_id}", responses=NOT_FOUND)
def get_schedule(schedule_id: str, services: ServicesDep, principal: Viewer) -> ScheduleView:
    """One schedule with its next three firings."""
    return services.scheduling.get(parse_id("schedule", schedule_id))


@router.patch("/{schedule_id}", responses=BODY)
def patch_schedule(schedule_id: str, body: SchedulePatch, services: ServicesDep, principal: Admin) -> ScheduleView:
    """Changes only what is sent."""
    return services.scheduling.patch(parse_id("schedule", schedule_id), body, actor=principal.actor)


@router.delete("/{schedule_id}", status_code=204, responses=BODY)
def delete_schedule(schedule_id: str, services: ServicesDep, principal: Admin) -> None:
    """Forgets the schedule; what it started goes on. That of a policy stays as long as the policy has it (409)."""
    services.scheduling.delete(parse_id("schedule", schedule_id), actor=principal.actor)


@router.get("/{schedule_id}/firings", responses=NOT_FOUND)
def list_firings(schedule_id: str, services: ServicesDep, principal: Viewer, paging: PageQuery) -> Page[FiringView]:
    """Firings of this schedule and what came of each: started, refused, missed; newest first."""
    return services.scheduling.firings(
        parse_id("schedule", schedule_id), page_size=paging.page_size, page_token=paging.page_token
    )


@router.post("/{schedule_id}/pause", responses=BODY)
def pause(schedule_id: str, services: ServicesDep, principal: Operator) -> ScheduleView:
    """Starts nothing from now on, until it is resumed."""
    return _set_paused(services, schedule_id, principal, True)


@router.post("/{schedule_id}/resume", responses=BODY)
def resume(schedule_id: str, services: ServicesDep, principal: Operator) -> ScheduleView:
    """Goes on with the next firing after now."""
    return _set_paused(services, schedule_id, principal, False)


@router.post("/{schedule_id}/run-now", status_code=202, responses=BODY)
def run_now(schedule_id: str, services: ServicesDep, principal: Operator) -> FiringView:
    """Fires once now, paused or not; the answer says what came of it."""
    return services.scheduling.run_now(parse_id("schedule", schedule_id), actor=principal.actor)


def _set_paused(services: ServicesDep, schedule_id: str, principal: Operator, paused: bool) -> ScheduleView:
    return services.scheduling.patch(
        parse_id("schedule", schedule_id), SchedulePatch(paused=paused), actor=principal.actor
    )
