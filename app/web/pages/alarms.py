"""What is wrong, what it rests on, and how rules are set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.alerts.schemas import (
    AcknowledgeInput,
    AlertView,
    OverrideInput,
    RulePatch,
    RuleView,
)
from app.api.deps import PageQuery, parse_id
from app.errors import Conflict, InvalidInput, NotFound, TierkeeperError
from app.web.alarm_contexts import (
    AlarmFactsPage,
    AlarmHistoryPage,
    AlarmPage,
    AlarmRulePage,
    AlarmRulesPage,
    AlarmsPage,
)
from app.web.contexts import Crumb
from app.web.forms import FormState
from app.web.frame import AdminFrame, FormValues, Frame, OperatorFrame, ViewerFrame, build_input, one
from app.web.pages import alarm_settings
from app.web.pages.alarm_settings import number_of, targets_of
from app.web.table_state import TableState

router = APIRouter(prefix="/alarms")
router.include_router(alarm_settings.router)

_MOST = 500


# ---- now ----


@router.get("")
def alarms_page(frame: ViewerFrame) -> Response:
    alerts = frame.services.alerts
    waiting = alerts.list_alerts(page_size=_MOST, page_token=None, state=["pending", "firing", "acknowledged"]).items
    return frame.page(
        "alarms.html",
        AlarmsPage,
        "alarms",
        counts=alerts.counts(),
        active=together(alerts.active()),
        held_back=[a for a in waiting if a.explained_by is not None],
        pending=[a for a in waiting if a.explained_by is None and a.state == "pending"],
    )


def together(active: Sequence[AlertView]) -> list[list[AlertView]]:
    """Alarms of one rule in one state as one: what it means and what to do is the same for twenty servers."""
    found: dict[tuple[str, str, str, bool], list[AlertView]] = {}
    for alert in active:
        key = (alert.rule, alert.severity, alert.state, alert.silenced_by is not None)
        found.setdefault(key, []).append(alert)
    return list(found.values())


@router.get("/history")
def history_page(frame: ViewerFrame, paging: PageQuery) -> Response:
    names = ("severity", "rule", "target")
    state = TableState.parse(frame.request.query_params, names=names, page_size=50)
    kind, _, ident = state.get("target").partition(":")
    severity = state.get("severity")
    page = frame.services.alerts.list_alerts(
        page_size=state.page_size,
        page_token=paging.page_token,
        severity=severity if severity in ("critical", "warning", "info") else None,
        rule=state.get("rule") or None,
        target_kind=kind or None,
        target_id=parse_id(kind, ident) if ident else None,
        fired=True,
    )
    return frame.page(
        "alarms_history.html",
        AlarmHistoryPage,
        "alarms",
        Crumb("History"),
        alerts=page.items,
        next_page_token=page.next_page_token,
        state=state,
        rules=frame.services.alerts.rules.list_rules().items,
    )


@router.get("/facts")
def facts_page(frame: ViewerFrame, target: Annotated[str, Query(max_length=60)] = "") -> Response:
    kind, _, ident = target.partition(":")
    alerts = frame.services.alerts
    if ident:
        facts = alerts.facts(target_kind=kind, target_id=parse_id(kind, ident))
    else:
        bad = alerts.facts(state=["bad"])
        facts = bad.model_copy(update={"items": [*bad.items, *alerts.facts(state=["unknown"]).items]})
    return frame.page(
        "alarms_facts.html",
        AlarmFactsPage,
        "alarms",
        Crumb("Derived facts"),
        facts=facts,
        target=target,
        targets=targets_of(frame.services),
    )


# ---- rules ----


@router.get("/rules")
def rules_page(frame: ViewerFrame) -> Response:
    rules = frame.services.alerts.rules.list_rules().items
    return frame.page("alarms_rules.html", AlarmRulesPage, "alarms", Crumb("Rules"), rules=rules)


def _rule_form(rule: RuleView) -> FormState:
    values: dict[str, object] = {
        "enabled": rule.enabled,
        "severity": rule.severity,
        "for_seconds": f"{rule.for_seconds:g}",
        **{f"t_{t.name}": f"{t.value:g}" for t in rule.thresholds},
    }
    return FormState.of(values)


def _override_form(rule: RuleView) -> FormState:
    names = ("target", "o_enabled", "o_severity", "o_for_seconds", *(f"o_t_{t.name}" for t in rule.thresholds))
    return FormState(fields=frozenset(names))


def _rule_page(
    frame: Frame, rule_id: str, form: FormState | None = None, override: FormState | None = None, status: int = 200
) -> Response:
    rule = frame.services.alerts.rules.get_rule(rule_id)
    return frame.page(
        "alarms_rule.html",
        AlarmRulePage,
        "alarms",
        Crumb("Rules", "/alarms/rules"),
        Crumb(rule.title),
        status=status,
        rule=rule,
        form=form or _rule_form(rule),
        override_form=override or _override_form(rule),
        targets=[t for t in targets_of(frame.services) if t[0].startswith(f"{rule.target_kind}:")],
    )


@router.get("/rules/{rule_id}")
def rule_page(frame: ViewerFrame, rule_id: str) -> Response:
    return _rule_page(frame, rule_id)


@router.post("/rules/{rule_id}")
def set_rule(frame: AdminFrame, rule_id: str, values: FormValues) -> Response:
    rules = frame.services.alerts.rules
    rule = rules.get_rule(rule_id)
    form = FormState(values=values, fields=_rule_form(rule).fields)
    try:
        if one(values, "reset"):
            body = RulePatch(enabled=None, severity=None, for_seconds=None, thresholds=None)
        else:
            shipped = {t.name: t.default for t in rule.thresholds}
            typed = {name: number_of(values, f"t_{name}") for name in shipped}
            body = build_input(
                RulePatch,
                {
                    "enabled": bool(values.get("enabled")),
                    "severity": one(values, "severity"),
                    "for_seconds": number_of(values, "for_seconds"),
                    # What is as shipped is not kept: a later version may ship something better.
                    "thresholds": {n: None if v is None or v == shipped[n] else v for n, v in typed.items()},
                },
            )
        rules.patch_rule(rule_id, body, actor=frame.actor)
    except InvalidInput as error:
        aliases = {f"thresholds.{t.name}": f"t_{t.name}" for t in rule.thresholds}
        return _rule_page(frame, rule_id, form=form.failed(error, aliases), status=error.status)
    return frame.done(
        f"/alarms/rules/{rule_id}",
        "The rule was changed.",
        undo=(lambda actor: rules.patch_rule(rule_id, _as_it_is(rule), actor=actor), "The rule is as it was before."),
    )


def _as_it_is(rule: RuleView) -> RulePatch:
    """What sets a rule to what it is now; what is as shipped stays so (null)."""
    return RulePatch(
        enabled=None if rule.enabled else False,
        severity=None if rule.severity == rule.default_severity else rule.severity,
        for_seconds=None if rule.for_seconds == rule.default_for_seconds else rule.for_seconds,
        thresholds={t.name: None if t.value == t.default else t.value for t in rule.thresholds},
    )


@router.post("/rules/{rule_id}/overrides")
def add_override(frame: AdminFrame, rule_id: str, values: FormValues) -> Response:
    rules = frame.services.alerts.rules
    rule = rules.get_rule(rule_id)
    form = FormState(values=values, fields=_override_form(rule).fields)
    kind, _, ident = (one(values, "target") or "").partition(":")
    try:
        typed = {t.name: number_of(values, f"o_t_{t.name}") for t in rule.thresholds}
        body = build_input(
            OverrideInput,
            {
                "target_kind": kind,
                "target_id": ident,
                "enabled": {"yes": True, "no": False}.get(one(values, "o_enabled") or ""),
                "severity": one(values, "o_severity"),
                "for_seconds": number_of(values, "o_for_seconds"),
                "thresholds": {name: value for name, value in typed.items() if value is not None},
            },
        )
        rules.set_override(rule_id, body, actor=frame.actor)
    except InvalidInput as error:
        aliases = {"target_kind": "target", "target_id": "target", "for_seconds": "o_for_seconds"}
        aliases |= {f"thresholds.{t.name}": f"o_t_{t.name}" for t in rule.thresholds}
        return _rule_page(frame, rule_id, override=form.failed(error, aliases), status=error.status)
    return frame.done(f"/alarms/rules/{rule_id}", "The override was set.")


@router.post("/rules/{rule_id}/overrides/{override_id}/delete")
def drop_override(frame: AdminFrame, rule_id: str, override_id: str) -> Response:
    rules = frame.services.alerts.rules
    before = next((o for o in rules.get_rule(rule_id).overrides if o.id == override_id), None)
    rules.delete_override(rule_id, parse_id("override", override_id), actor=frame.actor)
    undo = None
    if before is not None:
        body = OverrideInput(**{name: getattr(before, name) for name in OverrideInput.model_fields})
        undo = (lambda actor: rules.set_override(rule_id, body, actor=actor), "The override is there again.")
    return frame.done(f"/alarms/rules/{rule_id}", "The override was taken back.", undo=undo)


# ---- one alarm (last: its address is a pattern) ----


def _alarm_page(frame: Frame, alert_id: str, form: FormState | None = None, status: int = 200) -> Response:
    alerts = frame.services.alerts
    alert = alerts.get_alert(parse_id("alert", alert_id))
    cause = None
    if alert.explained_by is not None:
        try:
            cause = alerts.get_alert(int(alert.explained_by))
        except NotFound:
            cause = None
    return frame.page(
        "alarms_one.html",
        AlarmPage,
        "alarms",
        Crumb(alert.title),
        status=status,
        alert=alert,
        cause=cause,
        form=form or FormState(fields=frozenset({"note"})),
    )


@router.get("/{alert_id}")
def alarm_page(frame: ViewerFrame, alert_id: str) -> Response:
    return _alarm_page(frame, alert_id)


@router.post("/{alert_id}/acknowledge")
def acknowledge(frame: OperatorFrame, alert_id: str, values: FormValues) -> Response:
    try:
        body = build_input(AcknowledgeInput, {"note": one(values, "note")})
        frame.services.alerts.acknowledge(parse_id("alert", alert_id), body, actor=frame.actor)
    except InvalidInput as error:
        form = FormState(values=values, fields=frozenset({"note"}))
        return _alarm_page(frame, alert_id, form.failed(error), error.status)
    except Conflict as error:
        return _refused(frame, alert_id, error)
    return frame.done(f"/alarms/{alert_id}", "Acknowledged: it stays here until its condition is gone.")


def _refused(frame: Frame, alert_id: str, error: TierkeeperError) -> Response:
    return frame.refused(f"/alarms/{alert_id}", error)
