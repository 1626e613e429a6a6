"""What the pages of checks, sizing and launch commands show: one frozen dataclass a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.checks.schemas import ChangesView, CheckPairView, CheckView, RuleView
from app.fleet.schemas import EngineView, ServerView
from app.launch.schemas import LaunchView
from app.sizing.schemas import PrefixView, SizingView
from app.web.contexts import PageContext
from app.web.forms import FormState
from app.web.words import Word

#: How a verdict of a check is shown.
CHECK_WORDS: Mapping[str, Word] = {
    "fail": Word("bad", "octagon-alert", "fail", "This setting breaks something; the fix says how to set it."),
    "warn": Word("warn", "triangle-alert", "warning", "This works, and costs or risks something."),
    "unknown": Word("none", "circle-question-mark", "unknown", "Not known; the fix says how to let the panel see it."),
    "ok": Word("ok", "circle-check", "ok", "Looked at, and as it should be."),
}


@dataclass(frozen=True)
class PairVerdicts:
    """One pair and its verdicts, worst first."""

    pair: CheckPairView
    checks: Sequence[CheckView]


@dataclass(frozen=True)
class ChecksListPage(PageContext):
    """All verdicts, worst first, pair by pair; what changed since it worked; texts to judge.

    `pairs` are all of the filter, `shown` the worst of them with their verdicts.
    """

    pairs: Sequence[CheckPairView]
    shown: Sequence[PairVerdicts]
    changes: ChangesView
    servers: Sequence[ServerView]
    engines: Sequence[EngineView]
    server_id: str
    engine_id: str
    verdict: str
    running: bool
    form: FormState
    judged: Sequence[CheckView] | None = None
    words: Mapping[str, Word] = field(default_factory=lambda: CHECK_WORDS)


@dataclass(frozen=True)
class CheckRulesPage(PageContext):
    """The catalogue: what each rule looks at and why."""

    rules: Sequence[RuleView]


@dataclass(frozen=True)
class SizingPage(PageContext):
    """The sizing form and its result; the prefix checker below it."""

    form: FormState
    prefix_form: FormState
    servers: Sequence[ServerView]
    engines: Sequence[EngineView]
    result: SizingView | None = None
    prefix: PrefixView | None = None


@dataclass(frozen=True)
class LaunchPage(PageContext):
    """The launch form and what was generated from it."""

    form: FormState
    servers: Sequence[ServerView]
    engines: Sequence[EngineView]
    result: LaunchView | None = None
    words: Mapping[str, Word] = field(default_factory=lambda: CHECK_WORDS)
