"""One evaluation written down: rows of alarms, a row for every change, and the messages of both, in one transaction."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.alerts import outbox
from app.alerts.catalogue import RULES
from app.alerts.causes import CauseKey
from app.alerts.inputs import Moment
from app.alerts.matching import AlarmFacts, Matcher, Quiet, silenced_by
from app.alerts.messages import AlertFacts, write
from app.alerts.model import Severity, Subject
from app.alerts.plan import AlertKey, Condition, Known, Outcome
from app.alerts.states import ACTIVE, Standing
from app.alerts.tables import Alert, AlertChange, AlertOverride, AlertRuleSetting, MaintenanceWindow, Silence
from app.alerts.tuning import Change, Tuning
from app.database import Database

#: An alarm in which nothing changes is written this seldom (its sentence has numbers that move all the time).
TOUCH_SECONDS = 60.0
_NUMBERS = re.compile(r"[\d.,:]+( [smhd]| [kMGT]?B)?")


@dataclass(frozen=True)
class Stood:
    """What was there before an evaluation, read in one session."""

    known: Mapping[AlertKey, Known]
    rows: Mapping[AlertKey, Alert]
    tuning: Tuning
    quiets: Sequence[Quiet]  # those in force now


def read(session: Session, now: float) -> Stood:
    """Everything an evaluation needs besides the moment itself."""
    rows = {
        (row.rule, row.subject_kind, row.subject_id, row.part): row
        for row in session.scalars(select(Alert).where(Alert.state.in_(sorted(ACTIVE))))
    }
    known = {
        key: Known(row.id, Standing(row.state, row.holds_since, row.clear_since), row.checked_at)  # type: ignore[arg-type]
        for key, row in rows.items()
    }
    return Stood(known, rows, read_tuning(session), [q for q in read_quiets(session, now) if q.in_force(now)])


def read_tuning(session: Session) -> Tuning:
    """What operators set about rules."""
    return Tuning(
        {
            r.rule: Change(r.enabled, r.severity, r.for_seconds, r.thresholds)
            for r in session.scalars(select(AlertRuleSetting))
        },
        {
            (r.rule, r.target_kind, r.target_id): Change(r.enabled, r.severity, r.for_seconds, r.thresholds)
            for r in session.scalars(select(AlertOverride))
        },
    )


def read_quiets(session: Session, now: float) -> list[Quiet]:
    """Silences that are not over, and maintenance windows that are switched on."""
    silences = session.scalars(select(Silence).where(Silence.ends_at > now).order_by(Silence.id))
    windows = session.scalars(select(MaintenanceWindow).where(MaintenanceWindow.enabled).order_by(MaintenanceWindow.id))
    return [quiet_of_silence(row) for row in silences] + [quiet_of_window(row) for row in windows]


def quiet_of_silence(row: Silence) -> Quiet:
    return Quiet(f"silence {row.id}", Matcher.from_json(row.matcher), row.starts_at, row.ends_at)


def quiet_of_window(row: MaintenanceWindow) -> Quiet:
    return Quiet(
        f"maintenance window {row.name}",
        Matcher.from_json(row.matcher),
        row.starts_at,
        row.ends_at,
        row.cron,
        row.timezone,
        row.duration_seconds or 0.0,
    )


class Writer:
    """Writes outcomes. Nothing is opened for writing when nothing changed."""

    def __init__(self, db: Database, base_url: str | None) -> None:
        self._db = db
        self._base_url = base_url

    def write(self, moment: Moment, stood: Stood, outcomes: Sequence[Outcome]) -> int:
        """Writes one evaluation; returns how many alarms changed their state."""
        todo = [outcome for outcome in outcomes if self._matters(moment, stood, outcome)]
        if not todo:
            return 0
        ids: dict[CauseKey, int] = {
            (key[0], (key[1], key[2])): known.id for key, known in sorted(stood.known.items(), key=lambda i: -i[1].id)
        }
        changed = 0
        with self._db.write() as session:
            for outcome in todo:
                row = self._row(session, moment, outcome)
                if row is None:
                    continue
                ids[outcome.key[0], (outcome.key[1], outcome.key[2])] = row.id
                changed += self._apply(session, moment, stood, outcome, row, ids)
        return changed

    def _matters(self, moment: Moment, stood: Stood, outcome: Outcome) -> bool:
        row = stood.rows.get(outcome.key)
        if row is None or outcome.before is None or outcome.condition is None:
            return True
        before, after = outcome.before.standing, outcome.after
        if (before.state, before.holds_since, before.clear_since) != (
            after.state,
            after.holds_since,
            after.clear_since,
        ):
            return True
        verdict = outcome.condition.verdict
        quiet = silenced_by(alarm_facts(moment, outcome.condition), stood.quiets)
        due = row.state == "firing" and row.notified_at is None and quiet is None and outcome.explained_by is None
        return (
            due
            or quiet != row.silenced_by
            or (outcome.explained_by is None) != (row.explained_by is None)
            or row.severity != outcome.condition.effective.severity
            or (verdict.holds is True and _words(row.sentence) != _words(verdict.sentence))
            or (verdict.holds is True and outcome.condition.rule.exact and row.value != verdict.value)
            or moment.now - row.checked_at >= TOUCH_SECONDS
        )

    def _row(self, session: Session, moment: Moment, outcome: Outcome) -> Alert | None:
        """The alarm's row; a new one begins without a state. None where somebody ended it meanwhile."""
        if outcome.before is not None:
            row = session.get(Alert, outcome.before.id)
            return row if row is not None and row.state in ACTIVE else None
        condition = outcome.condition
        if condition is None:
            return None
        rule, kind, ident, part = outcome.key
        row = Alert(
            rule=rule,
            subject_kind=kind,
            subject_id=ident,
            subject_name=condition.fact.subject.name,
            part=part,
            severity=condition.effective.severity,
            state="",
            sentence=condition.verdict.sentence,
            started_at=moment.now,
            holds_since=outcome.after.holds_since,
            checked_at=moment.now,
        )
        session.add(row)
        return row

    def _apply(
        self,
        session: Session,
        moment: Moment,
        stood: Stood,
        outcome: Outcome,
        row: Alert,
        ids: dict[CauseKey, int],
    ) -> bool:
        after, condition, now = outcome.after, outcome.condition, moment.now
        old = row.state
        new = after.state
        if old == "acknowledged" and new == "firing":
            new = "acknowledged"  # somebody acknowledged it while this was evaluated
        row.checked_at, row.holds_since, row.clear_since = now, after.holds_since, after.clear_since
        row.explained_by = ids.get(outcome.explained_by) if outcome.explained_by is not None else None
        if condition is not None:
            self._describe(moment, stood, condition, row)
        if new != old:
            row.state = new
            if new == "firing":
                row.fired_at = now
            if new == "resolved":
                row.resolved_at, row.explained_by = now, None
        session.flush()
        if new != old:
            session.add(AlertChange(alert_id=row.id, old_state=old or None, new_state=new, reason=after.reason, at=now))
        self._tell(session, moment, condition, row, after.reason)
        return new != old

    def _describe(self, moment: Moment, stood: Stood, condition: Condition, row: Alert) -> None:
        """What is known of it now. A condition that is gone, or not known, leaves the last sentence that was true."""
        row.severity = condition.effective.severity
        row.subject_name = condition.fact.subject.name
        row.silenced_by = silenced_by(alarm_facts(moment, condition), stood.quiets)
        if condition.verdict.holds:
            row.sentence = condition.verdict.sentence[:2000]
            row.value, row.limit_value = condition.verdict.value, condition.verdict.limit
            evidence: dict[str, Any] = {**condition.fact.numbers, **condition.fact.words}
            row.evidence = evidence

    def _tell(self, session: Session, moment: Moment, condition: Condition | None, row: Alert, reason: str) -> None:
        now = moment.now
        if row.rule not in RULES:
            return  # a rule of another version of the panel: its alarm only ends
        if row.state == "resolved" and row.notified_at is not None:
            outbox.enqueue_resolved(session, row.id, write("resolved", _facts(row, reason), self._base_url), now)
        elif (
            row.state == "firing"
            and row.notified_at is None
            and row.silenced_by is None
            and row.explained_by is None
            and condition is not None
        ):
            row.notified_at = now
            message = write("firing", _facts(row, reason), self._base_url)
            outbox.enqueue_firing(session, row.id, alarm_facts(moment, condition), message, now)


def _words(sentence: str) -> str:
    """A sentence without its numbers, which move all the time."""
    return _NUMBERS.sub("", sentence[:2000])


def _place(standing: Standing) -> tuple[object, ...]:
    """All of a standing but its words."""
    return standing.state, standing.holds_since, standing.clear_since


def alarm_facts(moment: Moment, condition: Condition) -> AlarmFacts:
    """What silences, windows and notifiers look at."""
    subject = condition.fact.subject
    return AlarmFacts(
        rule=condition.rule.id,
        severity=condition.effective.severity,
        targets=frozenset(_above(moment, subject)),
        labels=_labels(moment, subject),
    )


def _above(moment: Moment, subject: Subject) -> list[tuple[str, int]]:
    """The subject and the servers it stands below."""
    found = [subject.key]
    if subject.kind == "engine" and (engine := moment.engines.get(subject.id)) is not None:
        found += [("server", engine.server_id)] if engine.server_id is not None else []
    if subject.kind == "store" and (store := moment.stores.get(subject.id)) is not None:
        found += [("server", ident) for ident in store.server_ids]
    return found


def _labels(moment: Moment, subject: Subject) -> Mapping[str, str]:
    targets: Mapping[str, Mapping[int, Any]] = {
        "server": moment.servers,
        "engine": moment.engines,
        "store": moment.stores,
    }
    found = targets.get(subject.kind, {}).get(subject.id)
    return found.labels if found is not None else {}


def _facts(row: Alert, reason: str) -> AlertFacts:
    rule = RULES[row.rule]
    severity: Severity = row.severity  # type: ignore[assignment]
    subject = Subject(row.subject_kind, row.subject_id, row.subject_name)  # type: ignore[arg-type]
    return AlertFacts(
        id=row.id,
        rule=rule,
        severity=severity,
        subject_kind=row.subject_kind,
        subject_id=row.subject_id,
        subject_name=row.subject_name,
        part=row.part,
        sentence=row.sentence,
        value=row.value,
        limit=row.limit_value,
        started_at=row.started_at,
        fired_at=row.fired_at,
        resolved_at=row.resolved_at,
        reason=reason,
        page=rule.page_of(subject),
    )
