"""Collecting what arms gave: evidence, answers, times; and the views that pages and reports show. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from app.acceptance.answers import AnswerSet, Candidate
from app.acceptance.compare import Comparison, Pair
from app.acceptance.evidence import ArmEvidence, TokenEvidence
from app.acceptance.finding import ARM_LABELS
from app.acceptance.schemas import (
    ArmView,
    CandidateView,
    ComparisonView,
    DivergenceView,
    LoadView,
    LogprobView,
    PairView,
    ScorePairsView,
    ScoreView,
    SpeedupView,
    TtftView,
)
from app.acceptance.stats import median_interval, summarise
from app.acceptance.tolerance import Tolerance

#: Divergences shown of one comparison; all of them count.
MAX_DIVERGENCES = 20


@dataclass
class ArmResult:
    """What one arm gave so far, over all batches. Answers themselves are kept only until they are compared."""

    name: str
    engine: str
    evidence: ArmEvidence
    ttft: dict[str, float] = field(default_factory=dict)  # prompt key without variant → seconds
    scored: int = 0
    right: float = 0.0
    metrics: set[str] = field(default_factory=set)
    comparison: Comparison | None = None

    def add(self, evidence: ArmEvidence) -> None:
        """One more batch's evidence."""
        self.evidence = evidence if self.evidence.requests == 0 else self.evidence.merged(evidence)

    def compare_with(self, comparison: Comparison) -> None:
        """One more batch's comparison."""
        self.comparison = comparison if self.comparison is None else self.comparison.merged(comparison)


@dataclass(frozen=True)
class Batch:
    """One batch's answers and token evidence of one arm."""

    answers: AnswerSet
    tokens: Sequence[TokenEvidence]


def arm_view(
    result: ArmResult, cold_ttft: Mapping[str, float], tolerance: Tolerance | None, *, failed: bool = False
) -> ArmView:
    """One row of the arms table. `failed`: the verdict found it wrong, by whatever this run's mode goes by."""
    evidence, comparison = result.evidence, result.comparison
    totals = evidence.totals
    milliseconds = summarise([s * 1000 for s in result.ttft.values()])
    done = evidence.answered + evidence.refused
    return ArmView(
        name=result.name,
        title=ARM_LABELS.get(result.name, result.name),
        engine=result.engine,
        state="complete" if evidence.complete else ("incomplete" if done else "not_run"),
        requests=evidence.requests,
        failed_requests=evidence.refused,
        prompt_tokens=totals.prompt_tokens if totals else None,
        local_tokens=totals.local_tokens if totals else None,
        external_tokens=totals.external_tokens if totals else None,
        expected_external_tokens=totals.expected_tokens if totals else None,
        external_share=totals.share if totals else None,
        too_short_requests=totals.too_short if totals else 0,
        too_short_share=totals.too_short / totals.requests if totals and totals.requests else None,
        l1_hit_tokens=_whole(evidence.server.hit_l1 if evidence.server else None),
        l2_hit_tokens=_whole(evidence.server.hit_l2 if evidence.server else None),
        evidence_source=", ".join(totals.sources) if totals else "none",
        ttft_ms=TtftView(
            **asdict(milliseconds),
            reason=None if milliseconds.count else _no_ttft(result),
        ),
        speedup=_speedup(result, cold_ttft),
        score=ScoreView(
            metric=", ".join(sorted(result.metrics)),
            value=result.right / result.scored,
            scored=result.scored,
        )
        if result.scored
        else None,
        compared_to=comparison.reference if comparison else None,
        exact_matches=comparison.count("exact") if comparison else 0,
        near_ties=comparison.count("near_tie") if comparison else 0,
        flips=comparison.count("flip", "drift") if comparison else 0,
        refused=comparison.count("refused") if comparison else evidence.refused,
        logprob=LogprobView(
            mean_abs_difference=comparison.mean_abs,
            max_abs_difference=_largest(comparison),
            compared_tokens=comparison.compared_tokens,
            top1_agreement=comparison.top1_agreement,
        )
        if comparison
        else None,
        passed=False if failed and comparison is not None else _passed(comparison, tolerance),
        load=_load(evidence),
    )


def _load(evidence: ArmEvidence) -> LoadView | None:
    load = evidence.load
    if load is None:
        return None
    reason = None
    if load.readings == 0:
        untold = load.before is None
        reason = "the engine does not tell it" if untold else "every answer was there before the engine could be read"
    return LoadView(**asdict(load), reason=reason)


def _no_ttft(result: ArmResult) -> str:
    if not result.evidence.answered:
        return "no request was answered"
    return "asked without streaming: only then the engine tells what its own cache served"


def _passed(comparison: Comparison | None, tolerance: Tolerance | None) -> bool | None:
    if comparison is None or tolerance is None:
        return None
    if tolerance.mode == "score":
        return comparison.count("refused") == 0
    return comparison.count("flip", "drift", "refused") == 0


def _speedup(result: ArmResult, cold: Mapping[str, float]) -> SpeedupView | None:
    """Paired by prompt: cold ÷ this arm. The first streamed request after a start is part of it like any other."""
    if result.name == "cold" or not result.ttft:
        return None
    ratios = [cold[key] / seconds for key, seconds in result.ttft.items() if key in cold and seconds > 0]
    interval = median_interval(ratios)
    if interval is None:
        only = ratios[0] if ratios else None
        return SpeedupView(median=only, low=None, high=None, confidence=None, pairs=len(ratios))
    return SpeedupView(
        median=interval.median,
        low=interval.low,
        high=interval.high,
        confidence=interval.confidence,
        pairs=len(ratios),
    )


_ORDER = {"refused": 0, "flip": 1, "drift": 2, "near_tie": 3, "missing": 4}


def _unequal(comparison: Comparison) -> list[Pair]:
    """Pairs that are not exact, the wrong ones first."""
    return sorted((p for p in comparison.pairs if p.outcome != "exact"), key=lambda p: _ORDER[p.outcome])


def shown_tokens(comparisons: Iterable[Comparison]) -> list[str]:
    """Token keys that the shown divergences name, each once."""
    found: dict[str, None] = {}
    for comparison in comparisons:
        for pair in _unequal(comparison)[:MAX_DIVERGENCES]:
            d = pair.divergence
            if d is not None:
                named = [d.token_a, d.token_b, *(c.token for c in (*d.top_a, *d.top_b))]
                found.update(dict.fromkeys(t for t in named if t is not None))
    return list(found)


def comparison_view(comparison: Comparison, texts: Mapping[str, str] | None = None) -> ComparisonView:
    """One comparison with its divergences, the wrong ones first. `texts`: what tokens known by id read like."""
    unequal = _unequal(comparison)
    scores = comparison.scores
    return ComparisonView(
        arm=comparison.arm,
        reference=comparison.reference,
        pairs=len(comparison.pairs),
        exact_matches=comparison.count("exact"),
        near_ties=comparison.count("near_tie"),
        flips=comparison.count("flip"),
        drifts=comparison.count("drift"),
        refused=comparison.count("refused"),
        missing=comparison.count("missing"),
        compared_tokens=comparison.compared_tokens,
        mean_abs_difference=comparison.mean_abs,
        max_abs_difference=_largest(comparison),
        top1_agreement=comparison.top1_agreement,
        score_pairs=ScorePairsView(
            right_right=scores.right_right,
            right_wrong=scores.right_wrong,
            wrong_right=scores.wrong_right,
            wrong_wrong=scores.wrong_wrong,
            p_value=scores.p_value,
        )
        if scores.scored
        else None,
        divergences=[_pair_view(p, texts or {}) for p in unequal[:MAX_DIVERGENCES]],
        divergences_left_off=max(0, len(unequal) - MAX_DIVERGENCES),
    )


def _largest(compared: Comparison | Pair) -> float | None:
    """Of answers that differ from their first token on nothing was compared: that is unknown, not zero."""
    return compared.max_abs if compared.compared_tokens else None


def _pair_view(pair: Pair, texts: Mapping[str, str]) -> PairView:
    divergence = pair.divergence

    def candidates(top: Iterable[Candidate]) -> list[CandidateView]:
        return [CandidateView(token=c.token, text=texts.get(c.token), logprob=c.logprob) for c in top]

    return PairView(
        prompt=pair.prompt,
        outcome=pair.outcome,
        reason=pair.reason,
        first_divergence=DivergenceView(
            position=divergence.position,
            token_a=divergence.token_a,
            token_b=divergence.token_b,
            text_a=texts.get(divergence.token_a or ""),
            text_b=texts.get(divergence.token_b or ""),
            top_a=candidates(divergence.top_a),
            top_b=candidates(divergence.top_b),
            gap_nats=divergence.gap_nats,
        )
        if divergence
        else None,
        mean_abs_difference=pair.mean_abs,
        max_abs_difference=_largest(pair),
        text_a=pair.text_a,
        text_b=pair.text_b,
    )


def restricted(answers: AnswerSet, keys: Iterable[str]) -> AnswerSet:
    """Only the answers of these prompts."""
    wanted = set(keys)
    return AnswerSet(answers.name, {k: a for k, a in answers.answers.items() if k in wanted})


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
