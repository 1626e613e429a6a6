"""Alarms for routes, pages and the scheduler: evaluation, delivery, lists, acknowledgement; facts and hit rates.

`rules`, `quiet` and `notifiers` are the services of their parts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import structlog
from sqlalchemy import delete, func, or_, select

from app.alerts import evaluation
from app.alerts.delivery import Sender
from app.alerts.fact_schemas import FactsView, HitRatesView, PartRateView
from app.alerts.facts.derive import derive
from app.alerts.facts.hit_rate import hit_rate, part_rates
from app.alerts.gather import Gatherer
from app.alerts.inputs import Moment
from app.alerts.model import SEVERITIES, Fact
from app.alerts.outbox import Outbox
from app.alerts.plan import Condition, judge, plan
from app.alerts.schemas import (
    AcknowledgeInput,
    AlertCounts,
    AlertDetail,
    AlertView,
)
from app.alerts.service_notifiers import Notifiers, message_view
from app.alerts.service_quiet import Quietness
from app.alerts.service_rules import RuleSettings
from app.alerts.states import ACTIVE
from app.alerts.tables import Alert, AlertChange, Notification, Silence
from app.alerts.tuning import Tuning
from app.alerts.views import alert_view, change_view, fact_state, fact_view
from app.audit.service import AuditService
from app.clock import Clock, iso
from app.database import Database
from app.errors import Conflict, NotFound
from app.fleet.service import FleetService
from app.paging import decode_cursor, encode_cursor
from app.records.service import RecordsService
from app.settings import Settings
from app.shapes import Page
from app.telemetry.service import TelemetryService

log = structlog.get_logger()

#: What never fired is history of no interest after a day; what did is kept for more than a year.
NEVER_FIRED_KEPT_SECONDS = 86400.0
KEPT_SECONDS = 400 * 86400.0
MESSAGES_KEPT_SECONDS = 30 * 86400.0
_BATCH = 1000


class AlertsService:
    """Alarms. Every method is sync and called in threads. `base_url`: where people reach the panel (the setting)."""

    def __init__(
        self,
        *,
        db: Database,
        clock: Clock,
        settings: Settings,
        audit: AuditService,
        fleet: FleetService,
        telemetry: TelemetryService,
        records: RecordsService,
        sender: Sender | None = None,
        base_url: str | None = None,
    ) -> None:
        self._db = db
        self._clock = clock
        self._audit = audit
        self._fleet = fleet
        self._lock = threading.Lock()
        self._gatherer = Gatherer(
            db=db, clock=clock, interval=settings.poll_seconds, telemetry=telemetry, records=records
        )
        base_url = base_url or settings.public_url
        sender = sender or Sender(allow_link_local=settings.allow_link_local)
        self._writer = evaluation.Writer(db, base_url)
        self._outbox = Outbox(db=db, clock=clock, sender=sender)
        self._moment: Moment | None = None
        self._facts: list[Fact] = []
        self._conditions: list[Condition] = []
        self.rules = RuleSettings(db=db, clock=clock, audit=audit)
        self.quiet = Quietness(db=db, clock=clock, audit=audit)
        self.notifiers = Notifiers(db=db, clock=clock, audit=audit, sender=sender, base_url=base_url)
        fleet.on_forget(self.rules.forget)

    # jobs

    def evaluate(self) -> int:
        """One evaluation of every rule; returns how many alarms changed their state. Called every poll interval."""
        with self._lock:
            moment = self._gatherer.moment()
            failures = _Failures()
            facts = derive(moment, failures)
            with self._db.read() as session:
                stood = evaluation.read(session, moment.now)
            conditions = judge(facts, stood.tuning, failures)
            outcomes = plan(moment, conditions, stood.known, complete=not failures.count)
            changed = self._writer.write(moment, stood, outcomes)
            self._moment, self._facts, self._conditions = moment, facts, conditions
        return changed

    def deliver(self) -> int:
        """Sends what is due in the outbox; returns how many messages got out. Network, no session held."""
        return self._outbox.deliver()

    def retire(self) -> int:
        """Drops what is too old, in batches; returns how many rows went."""
        now = self._clock()
        gone = 0
        old_alert = (
            Alert.state == "resolved",
            or_(
                Alert.fired_at.is_(None) & (Alert.resolved_at < now - NEVER_FIRED_KEPT_SECONDS),
                Alert.resolved_at < now - KEPT_SECONDS,
            ),
        )
        old_message = (
            Notification.state.in_(("sent", "dropped")),
            Notification.finished_at < now - MESSAGES_KEPT_SECONDS,
        )
        for table, conditions in (
            (Notification, old_message),
            (Alert, old_alert),
            (Silence, (Silence.ends_at < now - KEPT_SECONDS,)),
        ):
            with self._db.write() as session:
                ids = list(session.scalars(select(table.id).where(*conditions).limit(_BATCH)))
                for start in range(0, len(ids), 400):
                    session.execute(delete(table).where(table.id.in_(ids[start : start + 400])))
                gone += len(ids)
        return gone

    # alarms

    def list_alerts(
        self,
        *,
        page_size: int,
        page_token: str | None,
        state: Sequence[str] = (),
        severity: str | None = None,
        rule: str | None = None,
        target_kind: str | None = None,
        target_id: int | None = None,
        fired: bool | None = None,
    ) -> Page[AlertView]:
        """Newest first. `state`: any of these (none: all); `fired`: only alarms that fired, or only that did not."""
        states = sorted(set(state))
        name = f"alerts|{states}|{severity}|{rule}|{target_kind}|{target_id}|{fired}"
        query = select(Alert).order_by(Alert.id.desc()).limit(page_size + 1)
        if page_token:
            query = query.where(Alert.id < decode_cursor(name, page_token)[0])
        if states:
            query = query.where(Alert.state.in_(states))
        if fired is not None:
            query = query.where(Alert.fired_at.is_not(None) if fired else Alert.fired_at.is_(None))
        for column, value in (
            (Alert.severity, severity),
            (Alert.rule, rule),
            (Alert.subject_kind, target_kind),
            (Alert.subject_id, target_id),
        ):
            if value is not None:
                query = query.where(column == value)
        with self._db.read() as session:
            rows = list(session.scalars(query))
        more = len(rows) > page_size
        rows = rows[:page_size]
        return Page(
            items=[alert_view(row) for row in rows],
            next_page_token=encode_cursor(name, [rows[-1].id]) if more else None,
        )

    def active(self) -> list[AlertView]:
        """What an operator should look at: alarms that fire or are acknowledged, the worst first; not those that
        another one explains."""
        with self._db.read() as session:
            rows = list(
                session.scalars(
                    select(Alert)
                    .where(Alert.state.in_(("firing", "acknowledged")), Alert.explained_by.is_(None))
                    .limit(1000)
                )
            )
        order = list(SEVERITIES)
        rows.sort(
            key=lambda r: (
                r.state != "firing",
                r.silenced_by is not None,
                order.index(r.severity) if r.severity in order else len(order),
                -(r.fired_at or 0.0),
            )
        )
        return [alert_view(row) for row in rows]

    def get_alert(self, alert_id: int) -> AlertDetail:
        """Raises NotFound."""
        with self._db.read() as session:
            row = session.get(Alert, alert_id)
            if row is None:
                raise NotFound.of("alert", alert_id)
            changes = session.scalars(
                select(AlertChange).where(AlertChange.alert_id == alert_id).order_by(AlertChange.id)
            )
            messages = session.scalars(
                select(Notification).where(Notification.alert_id == alert_id).order_by(Notification.id)
            )
            return AlertDetail(
                **alert_view(row).model_dump(),
                changes=[change_view(change) for change in changes],
                notifications=[message_view(session, message) for message in messages],
            )

    def acknowledge(self, alert_id: int, body: AcknowledgeInput, *, actor: str) -> AlertDetail:
        """Somebody has seen it: it stays until its condition is gone. A later one replaces name and note. Raises
        NotFound; Conflict for an alarm that does not fire."""
        now = self._clock()
        with self._db.write() as session:
            row = session.get(Alert, alert_id)
            if row is None:
                raise NotFound.of("alert", alert_id)
            if row.state not in ("firing", "acknowledged"):
                raise Conflict(f"alert {alert_id} is {row.state}; only one that fires can be acknowledged")
            if row.state == "firing":
                session.add(
                    AlertChange(
                        alert_id=alert_id,
                        old_state="firing",
                        new_state="acknowledged",
                        reason=body.note or "seen",
                        at=now,
                        by=actor,
                    )
                )
            row.state, row.acknowledged_at, row.acknowledged_by, row.note = "acknowledged", now, actor, body.note
            self._audit.record(
                session,
                actor=actor,
                action="alert.acknowledge",
                target_kind="alert",
                target_id=alert_id,
                detail={"rule": row.rule, "target": row.subject_name, "note": body.note},
            )
        return self.get_alert(alert_id)

    @property
    def evaluated_at(self) -> float | None:
        """When the last evaluation was, epoch seconds; None before the first one of this process."""
        moment = self._moment
        return None if moment is None else moment.now

    def counts(self) -> AlertCounts:
        """For badges and metrics."""
        found: dict[str, int] = {}
        with self._db.read() as session:
            rows = session.execute(
                select(
                    Alert.state,
                    Alert.severity,
                    Alert.explained_by.is_not(None),
                    Alert.silenced_by.is_not(None),
                    func.count(),
                )
                .where(Alert.state.in_(sorted(ACTIVE)))
                .group_by(Alert.state, Alert.severity, Alert.explained_by.is_not(None), Alert.silenced_by.is_not(None))
            ).all()
        for state, severity, explained, silenced, count in rows:
            if explained:
                name = "held_back"
            elif state in ("pending", "acknowledged"):
                name = state
            else:
                name = "silenced" if silenced else severity
            found[name] = found.get(name, 0) + count
        return AlertCounts(**{name: found.get(name, 0) for name in AlertCounts.model_fields})

    # derived facts

    def facts(
        self,
        *,
        target_kind: str | None = None,
        target_id: int | None = None,
        state: Sequence[str] = (),
        page_size: int = 500,
        page_token: str | None = None,
    ) -> FactsView:
        """Facts as of the last evaluation (made now if there was none), in a fixed order; `state`: any of these."""
        name = f"facts|{target_kind}|{target_id}|{sorted(set(state))}"
        start = int(decode_cursor(name, page_token)[0] or 0) if page_token else 0
        moment, facts, conditions = self._latest()
        judged: dict[int, list[Condition]] = {}
        for condition in conditions:
            judged.setdefault(id(condition.fact), []).append(condition)
        chosen = [
            fact
            for fact in facts
            if (target_kind is None or fact.subject.kind == target_kind)
            and (target_id is None or fact.subject.id == target_id)
            and (not state or fact_state(fact, judged.get(id(fact), ())) in state)
        ]
        more = len(chosen) > start + page_size
        return FactsView(
            evaluated_at=iso(moment.now),
            items=[fact_view(fact, judged.get(id(fact), ())) for fact in chosen[start : start + page_size]],
            next_page_token=encode_cursor(name, [start + page_size]) if more else None,
        )

    def hit_rates(self, server_id: int) -> HitRatesView:
        """The hit rate of a server's lookups over the last quarter of an hour, and of each model, salt and engine.
        Raises NotFound."""
        self._fleet.server_target(server_id)
        moment, _, _ = self._latest()
        server = moment.servers.get(server_id)
        if server is None:  # added since the last evaluation
            return HitRatesView(
                server_id=str(server_id),
                window_seconds=None,
                reason="not evaluated yet",
                value=None,
                requested_tokens=None,
                parts=[],
            )
        whole = hit_rate(moment, server)
        return HitRatesView(
            server_id=str(server_id),
            window_seconds=whole.numbers.get("window"),
            reason=whole.unknown or whole.quiet,
            value=whole.numbers.get("rate"),
            requested_tokens=_whole(whole.numbers.get("requested")),
            parts=[
                PartRateView(
                    by=part.by,
                    name=part.name,
                    value=part.value,
                    requested_tokens=_whole(part.requested_tokens),
                    hit_tokens=_whole(part.hit_tokens),
                    l1_tokens=_whole(part.l1_tokens),
                    l2_tokens=_whole(part.l2_tokens),
                )
                for part in part_rates(moment, server)
            ],
        )

    def _latest(self) -> tuple[Moment, list[Fact], list[Condition]]:
        """The last evaluation's; without one (a command, a panel that only just started) facts are derived, and no
        alarm is touched."""
        with self._lock:
            if self._moment is None:
                moment = self._gatherer.moment()
                facts = derive(moment, _Failures())
                with self._db.read() as session:
                    tuning: Tuning = evaluation.read_tuning(session)
                return moment, facts, judge(facts, tuning, _Failures())
            return self._moment, self._facts, self._conditions


class _Failures:
    """Logs what could not be derived or judged, and counts it."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, what: str, error: Exception) -> None:
        self.count += 1
        log.error("alerts.not_derived", what=what, error=f"{type(error).__name__}: {error}")


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
