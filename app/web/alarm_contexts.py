"""What the pages of alarms show: one frozen dataclass a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.alerts.fact_schemas import FactsView
from app.alerts.schemas import (
    AlertCounts,
    AlertDetail,
    AlertView,
    NotificationView,
    NotifierView,
    RuleView,
    SilenceView,
    WindowView,
)
from app.web.contexts import PageContext
from app.web.forms import FormState
from app.web.table_state import TableState
from app.web.words import Word

#: How the outcome of a derived fact is shown.
FACT_WORDS: Mapping[str, Word] = {
    "bad": Word("bad", "octagon-alert", "bad", "A rule holds."),
    "unknown": Word("none", "circle-question-mark", "unknown", "Cannot be said now; the reason is beside it."),
    "quiet": Word("none", "minus", "nothing to judge", "Known, and without a meaning now."),
    "ok": Word("ok", "circle-check", "ok", "Looked at, and as it should be."),
}
#: What became of a message.
MESSAGE_WORDS: Mapping[str, Word] = {
    "waiting": Word("warn", "hourglass", "waiting", "Is tried again."),
    "sending": Word("info", "loader-circle", "sending"),
    "sent": Word("ok", "circle-check", "sent"),
    "dropped": Word("none", "ban", "given up", "Is not tried again."),
}
QUIET_WORDS: Mapping[str, Word] = {
    "active": Word("info", "bell-off", "active"),
    "waiting": Word("none", "clock", "begins later"),
    "over": Word("none", "check", "over"),
    "off": Word("none", "ban", "switched off"),
}


@dataclass(frozen=True)
class AlarmsPage(PageContext):
    """What is wrong now: alarms that fire, those held back by them, those that wait."""

    counts: AlertCounts
    active: Sequence[Sequence[AlertView]]  # those of one rule, in one state, together
    held_back: Sequence[AlertView]
    pending: Sequence[AlertView]


@dataclass(frozen=True)
class AlarmHistoryPage(PageContext):
    """Alarms that fired, newest first."""

    alerts: Sequence[AlertView]
    next_page_token: str | None
    state: TableState
    rules: Sequence[RuleView]


@dataclass(frozen=True)
class AlarmPage(PageContext):
    """One alarm: what it means, what to do, what it rests on, what became of it."""

    alert: AlertDetail
    cause: AlertView | None
    form: FormState
    message_words: Mapping[str, Word] = field(default_factory=lambda: MESSAGE_WORDS)


@dataclass(frozen=True)
class AlarmRulesPage(PageContext):
    """Every rule and what is set about it."""

    rules: Sequence[RuleView]


@dataclass(frozen=True)
class AlarmRulePage(PageContext):
    """One rule: its thresholds, and what is different for single targets."""

    rule: RuleView
    form: FormState
    override_form: FormState
    targets: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class AlarmQuietPage(PageContext):
    """Silences and maintenance windows."""

    silences: Sequence[SilenceView]
    windows: Sequence[WindowView]
    silence_form: FormState
    window_form: FormState
    rules: Sequence[tuple[str, str]]
    targets: Sequence[tuple[str, str]]
    words: Mapping[str, Word] = field(default_factory=lambda: QUIET_WORDS)


@dataclass(frozen=True)
class AlarmNotifiersPage(PageContext):
    """Who is told, and what waits to be told."""

    notifiers: Sequence[NotifierView]
    messages: Sequence[NotificationView]
    form: FormState
    words: Mapping[str, Word] = field(default_factory=lambda: MESSAGE_WORDS)


@dataclass(frozen=True)
class AlarmFactsPage(PageContext):
    """Derived facts of one target (or what is bad or unknown of all), with the numbers they rest on."""

    facts: FactsView
    target: str
    targets: Sequence[tuple[str, str]]
    words: Mapping[str, Word] = field(default_factory=lambda: FACT_WORDS)
