"""Alarms, their rules, what is quiet, who is told, and the derived facts behind all that."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from app.alerts.fact_schemas import FactState, FactsView, HitRatesView
from app.alerts.model import Severity, SubjectKind
from app.alerts.schemas import (
    AcknowledgeInput,
    AlertCounts,
    AlertDetail,
    AlertState,
    AlertView,
    NotificationView,
    NotifierInput,
    NotifierPatch,
    NotifierView,
    OverrideInput,
    OverrideView,
    RulePatch,
    RuleView,
    SilenceInput,
    SilenceView,
    TestResult,
    WindowInput,
    WindowPatch,
    WindowView,
)
from app.api.deps import Admin, Operator, PageQuery, ServicesDep, Viewer, parse_id
from app.api.responses import BODY, NOT_FOUND, READ
from app.shapes import Page

router = APIRouter(tags=["alarms"])

IdQuery = Annotated[str | None, Query(max_length=32)]


# ---- alarms ----


@router.get("/alerts", responses=NOT_FOUND)
def list_alerts(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    state: Annotated[list[AlertState] | None, Query(max_length=4, description="any of these states")] = None,
    severity: Severity | None = None,
    rule: Annotated[str | None, Query(max_length=80)] = None,
    target_kind: SubjectKind | None = None,
    target_id: IdQuery = None,
    fired: Annotated[bool | None, Query(description="only alarms that fired; or only that did not")] = None,
) -> Page[AlertView]:
    """Newest first. Without filters also what is pending, and what is over."""
    return services.alerts.list_alerts(
        page_size=paging.page_size,
        page_token=paging.page_token,
        state=state or (),
        severity=severity,
        rule=rule,
        target_kind=target_kind,
        target_id=_filter("target", target_id),
        fired=fired,
    )


@router.get("/alerts/counts", responses=READ)
def count_alerts(services: ServicesDep, principal: Viewer) -> AlertCounts:
    """How many fire now, by severity; those explained by another alarm count as held back."""
    return services.alerts.counts()


@router.get("/alerts/{alert_id}", responses=NOT_FOUND)
def get_alert(alert_id: str, services: ServicesDep, principal: Viewer) -> AlertDetail:
    """One alarm: what it saw, what it means, what to do, and whom it told."""
    return services.alerts.get_alert(parse_id("alert", alert_id))


@router.post("/alerts/{alert_id}/acknowledge", responses=BODY)
def acknowledge(
    alert_id: str, services: ServicesDep, principal: Operator, body: AcknowledgeInput | None = None
) -> AlertDetail:
    """Somebody has seen it. 409 for an alarm that does not fire."""
    return services.alerts.acknowledge(parse_id("alert", alert_id), body or AcknowledgeInput(), actor=principal.actor)


# ---- rules ----


@router.get("/alert-rules", responses=READ)
def list_rules(services: ServicesDep, principal: Viewer) -> Page[RuleView]:
    """Every rule with its thresholds, on one page."""
    return services.alerts.rules.list_rules()


@router.get("/alert-rules/{rule_id}", responses=NOT_FOUND)
def get_rule(rule_id: str, services: ServicesDep, principal: Viewer) -> RuleView:
    """One rule: its thresholds, for how long they must hold, and its overrides."""
    return services.alerts.rules.get_rule(rule_id)


@router.patch("/alert-rules/{rule_id}", responses=BODY)
def patch_rule(rule_id: str, body: RulePatch, services: ServicesDep, principal: Admin) -> RuleView:
    """Only what is sent changes; null goes back to what is shipped."""
    return services.alerts.rules.patch_rule(rule_id, body, actor=principal.actor)


@router.post("/alert-rules/{rule_id}/overrides", responses=BODY)
def set_override(rule_id: str, body: OverrideInput, services: ServicesDep, principal: Admin) -> OverrideView:
    """What is different for one target; replaces what was different for it before."""
    return services.alerts.rules.set_override(rule_id, body, actor=principal.actor)


@router.delete("/alert-rules/{rule_id}/overrides/{override_id}", status_code=204, responses=NOT_FOUND)
def delete_override(rule_id: str, override_id: str, services: ServicesDep, principal: Admin) -> None:
    """Takes an override back: the rule's own values hold again for that target."""
    services.alerts.rules.delete_override(rule_id, parse_id("override", override_id), actor=principal.actor)


# ---- quiet ----


@router.get("/silences", responses=READ)
def list_silences(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    state: Literal["waiting", "active", "over"] | None = None,
) -> Page[SilenceView]:
    """Silences, newest first."""
    return services.alerts.quiet.list_silences(page_size=paging.page_size, page_token=paging.page_token, state=state)


@router.post("/silences", status_code=201, responses=BODY)
def create_silence(body: SilenceInput, response: Response, services: ServicesDep, principal: Operator) -> SilenceView:
    """Keeps matching alarms from telling anybody until it ends. They go on being evaluated and shown."""
    view = services.alerts.quiet.create_silence(body, actor=principal.actor)
    response.headers["Location"] = f"/api/v1/silences/{view.id}"
    return view


@router.get("/silences/{silence_id}", responses=NOT_FOUND)
def get_silence(silence_id: str, services: ServicesDep, principal: Viewer) -> SilenceView:
    """One silence: what it matches, until when, by whom and why."""
    return services.alerts.quiet.get_silence(parse_id("silence", silence_id))


@router.delete("/silences/{silence_id}", status_code=204, responses=NOT_FOUND)
def end_silence(silence_id: str, services: ServicesDep, principal: Operator) -> None:
    """Ends it now; it stays in the list as history."""
    services.alerts.quiet.end_silence(parse_id("silence", silence_id), actor=principal.actor)


@router.get("/maintenance-windows", responses=READ)
def list_windows(services: ServicesDep, principal: Viewer, paging: PageQuery) -> Page[WindowView]:
    """Maintenance windows, with when each opens next."""
    return services.alerts.quiet.list_windows(page_size=paging.page_size, page_token=paging.page_token)


@router.post("/maintenance-windows", status_code=201, responses=BODY)
def create_window(body: WindowInput, response: Response, services: ServicesDep, principal: Admin) -> WindowView:
    """A repeated silence: a cron text says when it opens, a duration for how long."""
    view = services.alerts.quiet.create_window(body, actor=principal.actor)
    response.headers["Location"] = f"/api/v1/maintenance-windows/{view.id}"
    return view


@router.get("/maintenance-windows/{window_id}", responses=NOT_FOUND)
def get_window(window_id: str, services: ServicesDep, principal: Viewer) -> WindowView:
    """One maintenance window."""
    return services.alerts.quiet.get_window(parse_id("maintenance window", window_id))


@router.patch("/maintenance-windows/{window_id}", responses=BODY)
def patch_window(window_id: str, body: WindowPatch, services: ServicesDep, principal: Admin) -> WindowView:
    """Changes only what is sent."""
    return services.alerts.quiet.patch_window(parse_id("maintenance window", window_id), body, actor=principal.actor)


@router.delete("/maintenance-windows/{window_id}", status_code=204, responses=NOT_FOUND)
def delete_window(window_id: str, services: ServicesDep, principal: Admin) -> None:
    """Ends the window for good."""
    services.alerts.quiet.delete_window(parse_id("maintenance window", window_id), actor=principal.actor)


# ---- messages ----


@router.get("/notifiers", responses=READ)
def list_notifiers(services: ServicesDep, principal: Viewer, paging: PageQuery) -> Page[NotifierView]:
    """Addresses and header values are never shown."""
    return services.alerts.notifiers.list_notifiers(page_size=paging.page_size, page_token=paging.page_token)


@router.post("/notifiers", status_code=201, responses=BODY)
def create_notifier(body: NotifierInput, response: Response, services: ServicesDep, principal: Admin) -> NotifierView:
    """Adds somebody to tell. The address is write-only."""
    view = services.alerts.notifiers.create(body, actor=principal.actor)
    response.headers["Location"] = f"/api/v1/notifiers/{view.id}"
    return view


@router.get("/notifiers/{notifier_id}", responses=NOT_FOUND)
def get_notifier(notifier_id: str, services: ServicesDep, principal: Viewer) -> NotifierView:
    """One notifier, without its address's secrets."""
    return services.alerts.notifiers.get(parse_id("notifier", notifier_id))


@router.patch("/notifiers/{notifier_id}", responses=BODY)
def patch_notifier(notifier_id: str, body: NotifierPatch, services: ServicesDep, principal: Admin) -> NotifierView:
    """Changes only what is sent."""
    return services.alerts.notifiers.patch(parse_id("notifier", notifier_id), body, actor=principal.actor)


@router.delete("/notifiers/{notifier_id}", status_code=204, responses=NOT_FOUND)
def delete_notifier(notifier_id: str, services: ServicesDep, principal: Admin) -> None:
    """Forgets the notifier: nobody is told by it any more."""
    services.alerts.notifiers.delete(parse_id("notifier", notifier_id), actor=principal.actor)


@router.post("/notifiers/{notifier_id}/test", responses=BODY)
def test_notifier(notifier_id: str, services: ServicesDep, principal: Admin) -> TestResult:
    """Sends one message at once and says what came of it."""
    return services.alerts.notifiers.test(parse_id("notifier", notifier_id), actor=principal.actor)


@router.get("/notifications", responses=NOT_FOUND)
def list_notifications(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    notifier_id: IdQuery = None,
    alert_id: IdQuery = None,
    state: Literal["waiting", "sending", "sent", "dropped"] | None = None,
) -> Page[NotificationView]:
    """The outbox, newest first."""
    return services.alerts.notifiers.list_messages(
        page_size=paging.page_size,
        page_token=paging.page_token,
        notifier_id=_filter("notifier", notifier_id),
        alert_id=_filter("alert", alert_id),
        state=state,
    )


# ---- derived facts ----


@router.get("/facts", responses=NOT_FOUND)
def list_facts(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    target_kind: SubjectKind | None = None,
    target_id: IdQuery = None,
    state: Annotated[list[FactState] | None, Query(max_length=4, description="any of these states")] = None,
) -> FactsView:
    """What was derived at the last evaluation, with the numbers it rests on."""
    return services.alerts.facts(
        target_kind=target_kind,
        target_id=_filter("target", target_id),
        state=state or (),
        page_size=paging.page_size,
        page_token=paging.page_token,
    )


@router.get("/servers/{server_id}/hit-rates", responses=NOT_FOUND)
def hit_rates(server_id: str, services: ServicesDep, principal: Viewer) -> HitRatesView:
    """The hit rate by model, salt and engine over the last quarter of an hour."""
    return services.alerts.hit_rates(parse_id("server", server_id))


def _filter(kind: str, text: str | None) -> int | None:
    """An id to filter by; one that names nothing, however formed, is 404 as everywhere."""
    return None if text is None else parse_id(kind, text)
