"""The outbox: messages are rows written with the change they tell of, and stay until they are out or given up.

A notifier that is down costs nothing but time: attempts lie further and further apart, for three days. Nothing is told
twice (the dedupe key), and what is over before it could be told is told once, with its end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table, and_, or_, select, update
from sqlalchemy.orm import Session

from app.alerts.delivery import Destination, Sender
from app.alerts.matching import AlarmFacts, Matcher, at_least
from app.alerts.messages import DIGEST_FROM, DIGEST_MOST, Message
from app.alerts.tables import Notification, Notifier
from app.clock import Clock
from app.database import Database, insert_ignore

FIRST_RETRY_SECONDS = 30.0
LONGEST_RETRY_SECONDS = 3600.0
GIVE_UP_SECONDS = 3 * 86400.0
#: A message that is being sent belongs to the sender for this long; after that it is anybody's again.
LEASE_SECONDS = 180.0


def retry_after(attempts: int) -> float:
    """Seconds until the next attempt after so many that failed."""
    return min(FIRST_RETRY_SECONDS * 2.0 ** min(attempts - 1, 20), LONGEST_RETRY_SECONDS)


def enqueue_firing(session: Session, alert_id: int, alarm: AlarmFacts, message: Message, now: float) -> int:
    """One message for each notifier that wants it; returns how many."""
    wanted = [
        notifier
        for notifier in session.scalars(select(Notifier).where(Notifier.enabled))
        if at_least(alarm.severity, notifier.min_severity) and Matcher.from_json(notifier.matcher).matches(alarm)
    ]
    return _insert(session, [n.id for n in wanted], alert_id, message, now)


def enqueue_resolved(session: Session, alert_id: int, message: Message, now: float) -> int:
    """One message for each notifier that was told of the firing; where that is not out yet, this one replaces it."""
    told = session.execute(
        select(Notification.id, Notification.notifier_id, Notification.state)
        .join(Notifier, Notifier.id == Notification.notifier_id)
        .where(
            Notification.alert_id == alert_id,
            Notification.event == "firing",
            Notification.state != "dropped",
            Notifier.enabled,
            Notifier.send_resolved,
        )
    ).all()
    unsent = [row.id for row in told if row.state == "waiting"]
    if unsent:
        session.execute(
            update(Notification)
            .where(Notification.id.in_(unsent), Notification.state == "waiting")
            .values(state="dropped", finished_at=now, last_error="over before it could be sent; its end tells it")
        )
    return _insert(session, [row.notifier_id for row in told], alert_id, message, now)


def drop_waiting(session: Session, notifier_id: int, now: float, reason: str) -> None:
    """Nothing more goes to this notifier."""
    session.execute(
        update(Notification)
        .where(Notification.notifier_id == notifier_id, Notification.state.in_(("waiting", "sending")))
        .values(state="dropped", finished_at=now, last_error=reason, lease_until=None)
    )


def _insert(session: Session, notifier_ids: Sequence[int], alert_id: int, message: Message, now: float) -> int:
    rows: list[dict[str, Any]] = [
        {
            "notifier_id": notifier_id,
            "alert_id": alert_id,
            "event": message.event,
            "dedupe_key": f"{notifier_id}:{alert_id}:{message.event}",
            "message": message.to_json(),
            "state": "waiting",
            "attempts": 0,
            "next_attempt_at": now,
            "created_at": now,
        }
        for notifier_id in notifier_ids
    ]
    table: Table = Notification.__table__  # type: ignore[assignment]
    return insert_ignore(session, table, rows) if rows else 0


@dataclass(frozen=True)
class _Claimed:
    id: int
    attempts: int
    created_at: float
    message: Message


class Outbox:
    """Sends what is due. `deliver` is called about once a poll interval, by one thread at a time or several."""

    def __init__(self, *, db: Database, clock: Clock, sender: Sender) -> None:
        self._db = db
        self._clock = clock
        self._sender = sender

    def deliver(self) -> int:
        """Sends everything that is due; returns how many messages got out. Never raises for what receivers do."""
        sent = 0
        for notifier_id, (destination, claimed) in self._claim().items():
            sent += self._send(notifier_id, destination, claimed)
        return sent

    def _claim(self) -> dict[int, tuple[Destination, list[_Claimed]]]:
        """Takes what is due, oldest first. Nobody else takes it while the lease runs."""
        now = self._clock()
        due = or_(
            and_(Notification.state == "waiting", Notification.next_attempt_at <= now),
            and_(Notification.state == "sending", Notification.lease_until <= now),
        )
        with self._db.read() as session:
            anything = session.scalar(select(Notification.id).where(due).limit(1))
        if anything is None:
            return {}
        found: dict[int, list[_Claimed]] = defaultdict(list)
        destinations: dict[int, Destination] = {}
        with self._db.write() as session:
            for row in session.scalars(select(Notification).where(due).order_by(Notification.id).limit(500)):
                claimed = found[row.notifier_id]
                if len(claimed) >= DIGEST_MOST:
                    continue
                row.state, row.lease_until = "sending", now + LEASE_SECONDS
                claimed.append(_Claimed(row.id, row.attempts, row.created_at, Message.from_json(row.message)))
            for notifier in session.scalars(select(Notifier).where(Notifier.id.in_(list(found)))):
                destinations[notifier.id] = Destination(notifier.kind, notifier.url, dict(notifier.headers))
        return {ident: (destinations[ident], claimed) for ident, claimed in found.items() if ident in destinations}

    def _send(self, notifier_id: int, destination: Destination, claimed: Sequence[_Claimed]) -> int:
        """One notifier's messages: one by one, or many as one. The first failure is the failure of all that follow."""
        groups = [list(claimed)] if len(claimed) >= DIGEST_FROM else [[item] for item in claimed]
        out = 0
        error: str | None = None
        for group in groups:
            if error is None:
                result = self._sender.send(destination, [item.message for item in group])
                error = None if result.ok else result.detail
            self._settle(notifier_id, group, error)
            out += len(group) if error is None else 0
        return out

    def _settle(self, notifier_id: int, group: Sequence[_Claimed], error: str | None) -> None:
        now = self._clock()
        with self._db.write() as session:
            for item in group:
                row = session.get(Notification, item.id)
                if row is None or row.state != "sending":
                    continue  # dropped meanwhile: the notifier was switched off or forgotten
                row.attempts, row.lease_until, row.last_error = item.attempts + 1, None, error
                if error is None:
                    row.state, row.finished_at = "sent", now
                elif now - item.created_at >= GIVE_UP_SECONDS:
                    row.state, row.finished_at = "dropped", now
                else:
                    row.state, row.next_attempt_at = "waiting", now + retry_after(row.attempts)
            notifier = session.get(Notifier, notifier_id)
            if notifier is not None and error is None:
                notifier.last_sent_at, notifier.last_error, notifier.last_error_at = now, None, None
            elif notifier is not None:
                notifier.last_error, notifier.last_error_at = error, now
