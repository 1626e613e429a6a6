"""What the pages of acceptance show: runs, readiness, canaries, restart hooks; one frozen dataclass a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.acceptance.canary_schemas import CanaryRunView, CanaryView
from app.acceptance.hook_schemas import HookView
from app.acceptance.profiles import PROFILES
from app.acceptance.schemas import AcceptanceRunView, EstimateView, RunComparisonView
from app.acceptance.told import LoadLine
from app.fleet.schemas import EngineView
from app.readiness.schemas import ReadinessView
from app.web.contexts import EngineVerdict, PageContext
from app.web.forms import FormState
from app.web.table_state import TableState
from app.web.words import Word

#: How a part of readiness is shown, and the whole.
READINESS_WORDS: Mapping[str, Word] = {
    "ready": Word("ok", "badge-check", "ready", "Shown, and still true of what runs now."),
    "not_ready": Word("bad", "octagon-alert", "not ready", "Something is known to be wrong."),
    "unknown": Word("none", "circle-question-mark", "unknown", "Not shown yet: nothing is known either way."),
}

#: What a canary gave when it was read back.
CANARY_WORDS: Mapping[str, Word] = {
    "ok": Word("ok", "circle-check", "right", "Read back from its old records, and the same answer."),
    "lost": Word("bad", "file-x", "lost", "Its records are gone, or do not come back."),
    "wrong": Word("bad", "octagon-alert", "wrong", "Its records give another answer than the engine computes today."),
    "drift": Word("warn", "git-compare", "drift", "Its records are right; the engine itself changed."),
    "invalid": Word("none", "circle-slash", "not shown", "It could not be shown that the records were read."),
    "error": Word("none", "circle-x", "trouble", "A target was in trouble."),
    "never": Word("none", "circle-dashed", "not yet", "Not read back yet."),
}


@dataclass(frozen=True)
class ArmTrend:
    """Median time to first token of one condition over an engine's runs that passed, oldest first, milliseconds."""

    engine_name: str
    arm: str
    points: Sequence[float | None]
    first: float
    last: float


@dataclass(frozen=True)
class AcceptancePage(PageContext):
    """acceptance.html: how every engine stands, the history, and where it goes."""

    verdicts: Sequence[EngineVerdict]
    runs: Sequence[AcceptanceRunView]
    trends: Sequence[ArmTrend]
    state: TableState
    next_page_token: str | None


@dataclass(frozen=True)
class AcceptanceStartPage(PageContext):
    """acceptance_start.html"""

    engines: Sequence[EngineView]
    hooks: Sequence[HookView]
    form: FormState
    estimate: EstimateView | None
    second_engines: Sequence[EngineView] = ()
    no_second_engine: str = ""
    profile_arms: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {name: numbers.arms for name, numbers in PROFILES.items()}
    )


@dataclass(frozen=True)
class AcceptanceRunPage(PageContext):
    """acceptance_run.html: live progress, then the result."""

    run: AcceptanceRunView
    ttft: Sequence[tuple[str, Sequence[float]]]  # (condition, milliseconds of every request)
    told: Sequence[tuple[str, str]] = ()  # what the verdict rests on, in plain words
    load: Sequence[LoadLine] = ()


@dataclass(frozen=True)
class AcceptanceComparePage(PageContext):
    """acceptance_compare.html"""

    comparison: RunComparisonView


@dataclass(frozen=True)
class ReadinessPage(PageContext):
    """acceptance_readiness.html: every pair, or one."""

    pairs: Sequence[ReadinessView]
    one: bool
    state: TableState
    next_page_token: str | None
    words: Mapping[str, Word] = field(default_factory=lambda: READINESS_WORDS)


@dataclass(frozen=True)
class CanariesPage(PageContext):
    """acceptance_canaries.html: kept prompts with their history, and the work on them."""

    canaries: Sequence[CanaryView]
    engine_names: Mapping[str, str]
    runs: Sequence[CanaryRunView]
    state: TableState
    next_page_token: str | None
    words: Mapping[str, Word] = field(default_factory=lambda: CANARY_WORDS)


@dataclass(frozen=True)
class HooksPage(PageContext):
    """acceptance_hooks.html"""

    hooks: Sequence[HookView]
    form: FormState
