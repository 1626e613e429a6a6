"""One evaluation: which alarms begin, change and end, given what holds now and what stood before. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.alerts.catalogue import RULES, rules_by_fact
from app.alerts.causes import CauseKey, explanation, in_order
from app.alerts.inputs import Moment
from app.alerts.model import Fact, Verdict
from app.alerts.rules.base import Rule
from app.alerts.states import ACTIVE, Standing, advance, begin
from app.alerts.tuning import Effective, Tuning

#: (rule, kind of the subject, its id, part)
AlertKey = tuple[str, str, int, str]
#: Evaluations further apart than so many poll intervals (and this many seconds) say nothing of the time between.
GAP_INTERVALS = 5.0
GAP_SECONDS = 180.0
#: A cause that is still pending holds others back for this long at most.
PENDING_SECONDS = 300.0

_ORDER = in_order(RULES)


@dataclass(frozen=True, slots=True)
class Condition:
    """One rule judged on one fact."""

    rule: Rule
    fact: Fact
    verdict: Verdict
    effective: Effective

    @property
    def key(self) -> AlertKey:
        return (self.rule.id, *self.fact.subject.key, self.fact.part)

    @property
    def cause_key(self) -> CauseKey:
        return self.rule.id, self.fact.subject.key


@dataclass(frozen=True)
class Known:
    """An alarm that stands."""

    id: int
    standing: Standing
    checked_at: float


@dataclass(frozen=True)
class Outcome:
    """What one alarm is after this evaluation. `before` None: it begins; `condition` None: nothing watches it now."""

    key: AlertKey
    condition: Condition | None
    before: Known | None
    after: Standing
    explained_by: CauseKey | None


def judge(facts: Sequence[Fact], tuning: Tuning, failed: Callable[[str, Exception], None]) -> list[Condition]:
    """Every rule on every fact it is about. `failed` is told of a rule that could not judge: its verdict is unknown."""
    by_fact = rules_by_fact()
    found = []
    for fact in facts:
        for rule in by_fact.get(fact.key, ()):
            effective = tuning.of(rule, fact.subject)
            try:
                verdict = rule.verdict(fact, effective.limits)
            except Exception as error:  # one bad number must not silence all alarms
                failed(rule.id, error)
                verdict = Verdict(None, "could not be judged: see the panel's log")
            found.append(Condition(rule, fact, verdict, effective))
    return found


def plan(
    moment: Moment, conditions: Iterable[Condition], known: Mapping[AlertKey, Known], *, complete: bool = True
) -> list[Outcome]:
    """All alarms that stand or begin, causes before what they explain. `complete`: every fact could be derived, so that
    what is not among the conditions is not watched any more."""
    by_rule: dict[str, list[Condition]] = {}
    for condition in conditions:
        by_rule.setdefault(condition.rule.id, []).append(condition)
    active: dict[CauseKey, None] = {}
    outcomes: list[Outcome] = []
    for rule_id in _ORDER:
        for condition in by_rule.get(rule_id, ()):
            outcome = _one(moment, condition, known.get(condition.key), active)
            if outcome is None:
                continue
            outcomes.append(outcome)
            if _explains(outcome.after, _wait(condition), moment.now):
                active[condition.cause_key] = None
    watched = {outcome.key for outcome in outcomes}
    for key, standing in known.items():
        if key not in watched and complete:
            ended = Standing("resolved", standing.standing.holds_since, reason="it is not watched any more")
            outcomes.append(Outcome(key, None, standing, ended, None))
    return outcomes


def _wait(condition: Condition) -> float:
    """Seconds that the condition must hold."""
    return max(condition.effective.for_seconds, condition.verdict.wait_seconds or 0.0)


def _explains(standing: Standing, wait_seconds: float, now: float) -> bool:
    """An alarm explains others while it fires, and when it is about to: one that waits for long may be nothing."""
    if standing.state == "pending":
        return standing.holds_since + wait_seconds - now <= PENDING_SECONDS
    return standing.state in ACTIVE


def _one(moment: Moment, condition: Condition, known: Known | None, active: Mapping[CauseKey, None]) -> Outcome | None:
    now, effective, verdict = moment.now, condition.effective, condition.verdict
    holds = verdict.holds if effective.enabled else False
    if known is None and holds is not True:
        return None
    cause = explanation(moment, condition.rule, condition.fact.subject, active)
    wait = _wait(condition)
    if known is None:
        after = begin(now, wait, explained=cause is not None)
    else:
        after = advance(
            known.standing,
            holds,
            now,
            wait_seconds=wait,
            clear_seconds=condition.rule.clear_seconds if effective.enabled else 0.0,
            explained=cause is not None,
            gap=now - known.checked_at > max(GAP_INTERVALS * moment.interval, GAP_SECONDS),
        )
    return Outcome(condition.key, condition, known, after, cause)
