"""Alarms with every change of them, what operators set about rules, what is quiet, and the outbox of messages."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base
from app.vault import SecretJson, SecretText

_ACTIVE = text("state != 'resolved'")


class Alert(Base):
    """One alarm: one span in which one rule's condition held about one subject. Its target may be forgotten later."""

    __tablename__ = "alert"
    __table_args__ = (
        # At most one active alarm for each condition, whoever evaluates.
        Index(
            "uq_alert_active",
            "rule",
            "subject_kind",
            "subject_id",
            "part",
            unique=True,
            sqlite_where=_ACTIVE,
            postgresql_where=_ACTIVE,
        ),
        Index("ix_alert_state_id", "state", "id"),
        Index("ix_alert_subject", "subject_kind", "subject_id", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    rule: Mapped[str]
    subject_kind: Mapped[str]  # panel | server | engine | store | schedule
    subject_id: Mapped[int]
    subject_name: Mapped[str]
    part: Mapped[str] = mapped_column(default="")
    severity: Mapped[str]
    state: Mapped[str]  # pending | firing | acknowledged | resolved
    sentence: Mapped[str]
    value: Mapped[float | None] = mapped_column(default=None)
    limit_value: Mapped[float | None] = mapped_column(default=None)
    evidence: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)  # the fact's numbers and words
    started_at: Mapped[float]  # when the condition was first seen to hold
    holds_since: Mapped[float]  # since when its wait counts
    clear_since: Mapped[float | None] = mapped_column(default=None)
    fired_at: Mapped[float | None] = mapped_column(default=None)
    resolved_at: Mapped[float | None] = mapped_column(default=None)
    checked_at: Mapped[float]  # of the last evaluation that was written
    # The alarm that explains this one, and the silence or window that keeps it quiet; null: neither.
    explained_by: Mapped[int | None] = mapped_column(default=None)
    silenced_by: Mapped[str | None] = mapped_column(default=None)
    notified_at: Mapped[float | None] = mapped_column(default=None)  # messages for its firing were put in the outbox
    acknowledged_at: Mapped[float | None] = mapped_column(default=None)
    acknowledged_by: Mapped[str | None] = mapped_column(default=None)
    note: Mapped[str | None] = mapped_column(default=None)


class AlertChange(Base):
    """One change of state of one alarm."""

    __tablename__ = "alert_change"

    id: Mapped[int] = mapped_column(primary_key=True)
    alert_id: Mapped[int] = mapped_column(ForeignKey("alert.id", ondelete="CASCADE"), index=True)
    old_state: Mapped[str | None]
    new_state: Mapped[str]
    reason: Mapped[str]
    at: Mapped[float] = mapped_column(index=True)
    by: Mapped[str] = mapped_column(default="evaluation")


class AlertRuleSetting(Base):
    """What an operator changed about one rule, for all targets; null: as shipped."""

    __tablename__ = "alert_rule_setting"

    rule: Mapped[str] = mapped_column(primary_key=True)
    enabled: Mapped[bool | None] = mapped_column(default=None)
    severity: Mapped[str | None] = mapped_column(default=None)
    for_seconds: Mapped[float | None] = mapped_column(default=None)
    thresholds: Mapped[dict[str, float]] = mapped_column(JSON, default=dict)
    updated_at: Mapped[float]


class AlertOverride(Base):
    """The same for one target."""

    __tablename__ = "alert_override"
    __table_args__ = (UniqueConstraint("rule", "target_kind", "target_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    rule: Mapped[str]
    target_kind: Mapped[str]
    target_id: Mapped[int]
    enabled: Mapped[bool | None] = mapped_column(default=None)
    severity: Mapped[str | None] = mapped_column(default=None)
    for_seconds: Mapped[float | None] = mapped_column(default=None)
    thresholds: Mapped[dict[str, float]] = mapped_column(JSON, default=dict)
    created_at: Mapped[float]


class Silence(Base):
    """Alarms that match send nothing from `starts_at` to `ends_at`."""

    __tablename__ = "silence"

    id: Mapped[int] = mapped_column(primary_key=True)
    matcher: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)  # `app.alerts.matching.Matcher`
    comment: Mapped[str]
    starts_at: Mapped[float]
    ends_at: Mapped[float] = mapped_column(index=True)
    created_at: Mapped[float]
    created_by: Mapped[str]


class MaintenanceWindow(Base):
    """The same by calendar: once (`starts_at` to `ends_at`), or by cron for `duration_seconds` each time."""

    __tablename__ = "maintenance_window"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    enabled: Mapped[bool] = mapped_column(default=True)
    matcher: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    comment: Mapped[str] = mapped_column(default="")
    starts_at: Mapped[float | None] = mapped_column(default=None)
    ends_at: Mapped[float | None] = mapped_column(default=None)
    cron: Mapped[str | None] = mapped_column(default=None)
    timezone: Mapped[str] = mapped_column(default="UTC")
    duration_seconds: Mapped[float | None] = mapped_column(default=None)
    created_at: Mapped[float]
    created_by: Mapped[str]


class Notifier(Base):
    """Somewhere that messages go. `url` is a secret as a whole: it goes in and never comes out."""

    __tablename__ = "notifier"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str]  # apprise | webhook
    url: Mapped[str] = mapped_column(SecretText)
    service: Mapped[str]  # what the address is of, for people: "Slack", "webhook at alerts.example"
    headers: Mapped[dict[str, str]] = mapped_column(SecretJson, default=dict)  # of a webhook; secret too
    enabled: Mapped[bool] = mapped_column(default=True)
    min_severity: Mapped[str] = mapped_column(default="warning")
    matcher: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    send_resolved: Mapped[bool] = mapped_column(default=True)
    revision: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[float]
    last_sent_at: Mapped[float | None] = mapped_column(default=None)
    last_error: Mapped[str | None] = mapped_column(default=None)
    last_error_at: Mapped[float | None] = mapped_column(default=None)


class Notification(Base):
    """One message for one notifier. It is written with the change it tells of, and stays until it is out or given up.

    state: waiting, sending (claimed until `lease_until`), sent, dropped (`last_error` says why).
    """

    __tablename__ = "notification"
    __table_args__ = (Index("ix_notification_due", "state", "next_attempt_at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    notifier_id: Mapped[int] = mapped_column(ForeignKey("notifier.id", ondelete="CASCADE"), index=True)
    alert_id: Mapped[int | None] = mapped_column(ForeignKey("alert.id", ondelete="SET NULL"), default=None, index=True)
    event: Mapped[str]  # firing | resolved
    dedupe_key: Mapped[str] = mapped_column(unique=True)  # nothing is told twice
    message: Mapped[dict[str, Any]] = mapped_column(JSON)  # as it is sent (`app.alerts.messages.Message`)
    state: Mapped[str] = mapped_column(default="waiting")
    attempts: Mapped[int] = mapped_column(default=0)
    next_attempt_at: Mapped[float]
    lease_until: Mapped[float | None] = mapped_column(default=None)
    last_error: Mapped[str | None] = mapped_column(default=None)
    created_at: Mapped[float]
    finished_at: Mapped[float | None] = mapped_column(default=None)
