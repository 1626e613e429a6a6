"""Shapes of alarms towards the outside. Ids are strings, times RFC 3339 UTC, durations seconds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from app.alerts.model import Severity, SubjectKind
from app.shapes import ApiModel, InputModel

AlertState = Literal["pending", "firing", "acknowledged", "resolved"]
TargetKind = Literal["server", "engine", "store"]
NotifierKind = Literal["apprise", "webhook"]

Name = Annotated[str, StringConstraints(min_length=1, max_length=120, strip_whitespace=True)]
Comment = Annotated[str, StringConstraints(max_length=1000)]
Time = Annotated[str, StringConstraints(min_length=1, max_length=40)]
Labels = Annotated[dict[str, str], Field(max_length=32)]
Thresholds = Annotated[dict[str, float], Field(max_length=20)]


# ---- alarms ----


class AlertChangeView(ApiModel):
    """One change of state."""

    old_state: str | None
    new_state: str
    reason: str
    at: str
    by: str


#: Reasons of incompatible records whose model is served: hits on them are wrong answers, not just dead weight.
WRONG_REASONS = ("other_layout", "other_size", "declared")


class AlertView(ApiModel):
    """One alarm. `means` and `action` say what it is and what to do, `page` where to look, `docs` where it is told,
    `runbook` where its way out is told (pages of docs/).

    `explained_by` is the alarm that is the cause (this one is held back then), `silenced_by` what keeps it quiet.
    `value` is the number that decided and `limit` what it was compared with, both in `unit`.
    """

    id: str
    rule: str
    title: str
    severity: Severity
    state: AlertState
    target_kind: SubjectKind
    target_id: str | None
    target_name: str
    part: str
    sentence: str
    value: float | None
    limit: float | None
    unit: str
    evidence: dict[str, float | str | None]
    since: str
    fired_at: str | None
    acknowledged_at: str | None
    acknowledged_by: str | None
    note: str | None
    resolved_at: str | None
    checked_at: str
    explained_by: str | None
    silenced_by: str | None
    means: str
    action: str
    page: str
    docs: str
    runbook: str


class AlertDetail(AlertView):
    """One alarm with all its changes and messages."""

    changes: list[AlertChangeView]
    notifications: list[NotificationView]


class AcknowledgeInput(InputModel):
    """POST /alerts/{id}/acknowledge: somebody has seen it and works on it."""

    note: Comment | None = None


class AlertCounts(ApiModel):
    """Alarms that fire and are neither explained by another one nor silenced, by severity; and those held back."""

    critical: int
    warning: int
    info: int
    acknowledged: int
    pending: int
    held_back: int
    silenced: int


# ---- rules ----


class ThresholdView(ApiModel):
    """One threshold of a rule, as it is in force and as shipped."""

    name: str
    value: float
    default: float
    unit: str
    means: str
    lowest: float
    highest: float


class OverrideView(ApiModel):
    """What is different for one target; a field that is null is as the rule says."""

    id: str
    target_kind: TargetKind
    target_id: str
    target_name: str | None
    enabled: bool | None
    severity: Severity | None
    for_seconds: float | None
    thresholds: dict[str, float]
    created_at: str


class RuleView(ApiModel):
    """One rule. `causes`: rules whose alarms explain one of this rule."""

    id: str
    title: str
    fact: str
    target_kind: SubjectKind
    severity: Severity
    default_severity: Severity
    enabled: bool
    for_seconds: float
    default_for_seconds: float
    clear_seconds: float
    thresholds: list[ThresholdView]
    causes: list[str]
    means: str
    action: str
    docs: str
    runbook: str
    overrides: list[OverrideView]


class RulePatch(InputModel):
    """PATCH /alert-rules/{id}: only what is sent changes; null goes back to what is shipped."""

    enabled: bool | None = None
    severity: Severity | None = None
    for_seconds: Annotated[float, Field(ge=0, le=30 * 86400)] | None = None
    thresholds: dict[str, float | None] | None = Field(None, max_length=20)


class OverrideInput(InputModel):
    """POST /alert-rules/{id}/overrides: for one target; an override that is there already is replaced."""

    target_kind: TargetKind
    target_id: str
    enabled: bool | None = None
    severity: Severity | None = None
    for_seconds: Annotated[float, Field(ge=0, le=30 * 86400)] | None = None
    thresholds: Thresholds = Field(default_factory=dict)


# ---- quiet ----


class TargetRef(InputModel):
    """A target by kind and id."""

    kind: TargetKind
    id: str


class TargetRefView(ApiModel):
    """A target a matcher names; `name` is null when it is gone."""

    kind: str
    id: str
    name: str | None


class MatcherInput(InputModel):
    """Which alarms are meant: conditions that all hold; an empty one means "any". A server stands for its engines and
    stores too; `labels` are those of the target."""

    rules: list[str] = Field(default_factory=list, max_length=100)
    severities: list[Severity] = Field(default_factory=list, max_length=3)
    targets: list[TargetRef] = Field(default_factory=list, max_length=500)
    labels: Labels = Field(default_factory=dict)


class MatcherView(ApiModel):
    """The same, shown."""

    rules: list[str]
    severities: list[str]
    targets: list[TargetRefView]
    labels: dict[str, str]


class SilenceView(ApiModel):
    """One silence. state: waiting, active or over."""

    id: str
    state: Literal["waiting", "active", "over"]
    matcher: MatcherView
    comment: str
    starts_at: str
    ends_at: str
    created_at: str
    created_by: str


class SilenceInput(InputModel):
    """POST /silences. Without `starts_at` it begins now; `ends_at`, or `seconds` from its start."""

    matcher: MatcherInput
    comment: Annotated[str, StringConstraints(min_length=1, max_length=1000)]
    starts_at: Time | None = None
    ends_at: Time | None = None
    seconds: Annotated[float, Field(gt=0, le=366 * 86400)] | None = None


class WindowView(ApiModel):
    """One maintenance window. `next_starts` are its next three beginnings (by cron)."""

    id: str
    name: str
    enabled: bool
    active: bool
    matcher: MatcherView
    comment: str
    starts_at: str | None
    ends_at: str | None
    cron: str | None
    timezone: str
    duration_seconds: float | None
    next_starts: list[str]
    created_at: str
    created_by: str


class WindowInput(InputModel):
    """POST /maintenance-windows: once (`starts_at` and `ends_at`), or by `cron` for `duration_seconds` each time."""

    name: Name
    matcher: MatcherInput = Field(default_factory=lambda: MatcherInput())
    comment: Comment = ""
    enabled: bool = True
    starts_at: Time | None = None
    ends_at: Time | None = None
    cron: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    timezone: Annotated[str, StringConstraints(min_length=1, max_length=64)] = "UTC"
    duration_seconds: Annotated[float, Field(gt=0, le=7 * 86400)] | None = None


class WindowPatch(InputModel):
    """PATCH /maintenance-windows/{id}: only what is sent changes."""

    name: Name | None = None
    enabled: bool | None = None
    matcher: MatcherInput | None = None
    comment: Comment | None = None
    starts_at: Time | None = None
    ends_at: Time | None = None
    cron: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    timezone: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    duration_seconds: Annotated[float, Field(gt=0, le=7 * 86400)] | None = None


# ---- messages ----


class NotifierView(ApiModel):
    """One notifier without its secrets. `waiting` messages are in the outbox; `last_error` is of the last attempt that
    failed, null once one got out after it."""

    id: str
    name: str
    kind: NotifierKind
    service: str
    header_names: list[str]
    enabled: bool
    min_severity: Severity
    matcher: MatcherView
    send_resolved: bool
    revision: int
    created_at: str
    last_sent_at: str | None
    last_error: str | None
    last_error_at: str | None
    waiting: int


Secret = Annotated[str, StringConstraints(min_length=1, max_length=4000, strip_whitespace=True)]
Headers = Annotated[dict[str, str], Field(max_length=16)]


class NotifierInput(InputModel):
    """POST /notifiers. kind `apprise`: an Apprise address (mailto://, slack://, …); `webhook`: an http(s) address that
    gets the alarm as JSON. The address and the headers are never shown again."""

    name: Name
    kind: NotifierKind
    url: Secret
    headers: Headers = Field(default_factory=dict)
    enabled: bool = True
    min_severity: Severity = "warning"
    matcher: MatcherInput = Field(default_factory=lambda: MatcherInput())
    send_resolved: bool = True


class NotifierPatch(InputModel):
    """PATCH /notifiers/{id}: only what is sent changes."""

    name: Name | None = None
    url: Secret | None = None
    headers: Headers | None = None
    enabled: bool | None = None
    min_severity: Severity | None = None
    matcher: MatcherInput | None = None
    send_resolved: bool | None = None


class TestResult(ApiModel):
    """POST /notifiers/{id}/test: what became of one message sent at once."""

    __test__ = False

    delivered: bool
    detail: str
    seconds: float


class NotificationView(ApiModel):
    """One message. state: waiting, sending, sent or dropped."""

    id: str
    notifier_id: str
    notifier_name: str | None
    alert_id: str | None
    event: Literal["firing", "resolved"]
    title: str
    state: str
    attempts: int
    next_attempt_at: str | None
    last_error: str | None
    created_at: str
    finished_at: str | None


AlertDetail.model_rebuild()
