"""Rules as operators see and set them."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from app.alerts.catalogue import RULES
from app.alerts.matcher_input import TARGETS, target_name
from app.alerts.model import Subject
from app.alerts.rules.base import Rule
from app.alerts.runbooks import runbook_of
from app.alerts.schemas import OverrideInput, OverrideView, RulePatch, RuleView, ThresholdView
from app.alerts.tables import AlertOverride, AlertRuleSetting
from app.alerts.tuning import Change, Tuning, check_thresholds
from app.audit.service import AuditService
from app.clock import Clock, iso
from app.database import Database
from app.errors import InvalidInput, NotFound
from app.paging import parse_id
from app.shapes import Page

_NOBODY = Subject("panel", 0, "")


class RuleSettings:
    """Thresholds, durations and severities of rules, for all targets and for one."""

    def __init__(self, *, db: Database, clock: Clock, audit: AuditService) -> None:
        self._db = db
        self._clock = clock
        self._audit = audit

    def list_rules(self) -> Page[RuleView]:
        """Every rule, in the order of the catalogue; there are few, so one page holds them all."""
        with self._db.read() as session:
            settings = {row.rule: row for row in session.scalars(select(AlertRuleSetting))}
            overrides = self._overrides(session)
            items = [self._view(session, rule, settings.get(rule.id), overrides) for rule in RULES.values()]
        return Page(items=items, next_page_token=None)

    def get_rule(self, rule_id: str) -> RuleView:
        """Raises NotFound."""
        rule = _rule(rule_id)
        with self._db.read() as session:
            return self._view(session, rule, session.get(AlertRuleSetting, rule_id), self._overrides(session))

    def patch_rule(self, rule_id: str, body: RulePatch, *, actor: str) -> RuleView:
        """Changes what is sent; null goes back to what is shipped. Raises NotFound, InvalidInput."""
        rule = _rule(rule_id)
        if body.thresholds is not None:
            check_thresholds(rule, body.thresholds)
        with self._db.write() as session:
            row = session.get(AlertRuleSetting, rule_id)
            if row is None:
                row = AlertRuleSetting(rule=rule_id, thresholds={}, updated_at=self._clock())
                session.add(row)
            for name in ("enabled", "severity", "for_seconds"):
                if name in body.model_fields_set:
                    setattr(row, name, getattr(body, name))
            if "thresholds" in body.model_fields_set:
                row.thresholds = _merged(row.thresholds, body.thresholds)
            row.updated_at = self._clock()
            self._audit.record(
                session,
                actor=actor,
                action="alert_rule.update",
                target_kind="alert_rule",
                target_id=rule_id,
                detail=body.model_dump(exclude_unset=True),
            )
        return self.get_rule(rule_id)

    def set_override(self, rule_id: str, body: OverrideInput, *, actor: str) -> OverrideView:
        """Makes a rule different for one target, or replaces what was different. Raises NotFound, InvalidInput."""
        rule = _rule(rule_id)
        if rule.subject not in TARGETS:
            raise InvalidInput.field(
                "target_kind", f"rule {rule_id} is about the {rule.subject}, which has no overrides"
            )
        if body.target_kind != rule.subject:
            raise InvalidInput.field("target_kind", f"rule {rule_id} is about targets of the kind {rule.subject}")
        check_thresholds(rule, body.thresholds)
        with self._db.write() as session:
            try:
                target_id = parse_id(body.target_kind, body.target_id)
            except NotFound:
                target_id = -1
            if target_name(session, body.target_kind, target_id) is None:
                raise InvalidInput.field("target_id", f"no {body.target_kind} has the id {body.target_id[:80]!r}")
            row = session.scalar(
                select(AlertOverride).where(
                    AlertOverride.rule == rule_id,
                    AlertOverride.target_kind == body.target_kind,
                    AlertOverride.target_id == target_id,
                )
            )
            if row is None:
                row = AlertOverride(
                    rule=rule_id, target_kind=body.target_kind, target_id=target_id, created_at=self._clock()
                )
                session.add(row)
            row.enabled, row.severity, row.for_seconds = body.enabled, body.severity, body.for_seconds
            row.thresholds = dict(body.thresholds)
            session.flush()
            self._audit.record(
                session,
                actor=actor,
                action="alert_rule.override",
                target_kind="alert_rule",
                target_id=rule_id,
                detail=body.model_dump(exclude_none=True),
            )
            return _override_view(session, row)

    def delete_override(self, rule_id: str, override_id: int, *, actor: str) -> None:
        """The target goes by the rule again. Raises NotFound."""
        _rule(rule_id)
        with self._db.write() as session:
            row = session.get(AlertOverride, override_id)
            if row is None or row.rule != rule_id:
                raise NotFound.of("override", override_id)
            self._audit.record(
                session,
                actor=actor,
                action="alert_rule.override_delete",
                target_kind="alert_rule",
                target_id=rule_id,
                detail={"target_kind": row.target_kind, "target_id": row.target_id},
            )
            session.delete(row)

    def forget(self, session: Session, kind: str, target_id: int) -> None:
        """A target is forgotten: its overrides go with it."""
        session.execute(
            delete(AlertOverride).where(AlertOverride.target_kind == kind, AlertOverride.target_id == target_id)
        )

    def _overrides(self, session: Session) -> dict[str, list[OverrideView]]:
        found: dict[str, list[OverrideView]] = {}
        for row in session.scalars(select(AlertOverride).order_by(AlertOverride.id)):
            found.setdefault(row.rule, []).append(_override_view(session, row))
        return found

    def _view(
        self,
        session: Session,
        rule: Rule,
        row: AlertRuleSetting | None,
        overrides: Mapping[str, list[OverrideView]],
    ) -> RuleView:
        change = Change() if row is None else Change(row.enabled, row.severity, row.for_seconds, row.thresholds)
        effective = Tuning({rule.id: change}).of(rule, _NOBODY)
        return RuleView(
            id=rule.id,
            title=rule.title,
            fact=rule.fact,
            target_kind=rule.subject,
            severity=effective.severity,
            default_severity=rule.severity,
            enabled=effective.enabled,
            for_seconds=effective.for_seconds,
            default_for_seconds=rule.for_seconds,
            clear_seconds=rule.clear_seconds,
            thresholds=[
                ThresholdView(
                    name=name,
                    value=effective.limits[name],
                    default=limit.default,
                    unit=limit.unit,
                    means=limit.means,
                    lowest=limit.lowest,
                    highest=limit.highest,
                )
                for name, limit in rule.limits.items()
            ],
            causes=[cause.rule for cause in rule.causes],
            means=rule.means,
            action=rule.action,
            docs=rule.docs,
            runbook=runbook_of(rule.id),
            overrides=list(overrides.get(rule.id, ())),
        )


def _rule(rule_id: str) -> Rule:
    rule = RULES.get(rule_id)
    if rule is None:
        raise NotFound.of("alert rule", rule_id[:80])
    return rule


def _merged(stored: Mapping[str, float], changes: Mapping[str, float | None] | None) -> dict[str, float]:
    """Stored thresholds after a change; null takes one back, null for all takes all back."""
    if changes is None:
        return {}
    merged = {**stored, **{name: value for name, value in changes.items() if value is not None}}
    return {name: value for name, value in merged.items() if changes.get(name, value) is not None}


def _override_view(session: Session, row: AlertOverride) -> OverrideView:
    return OverrideView(
        id=str(row.id),
        target_kind=row.target_kind,
        target_id=str(row.target_id),
        target_name=target_name(session, row.target_kind, row.target_id),
        enabled=row.enabled,
        severity=row.severity,
        for_seconds=row.for_seconds,
        thresholds=dict(row.thresholds),
        created_at=iso(row.created_at) or "",
    )
