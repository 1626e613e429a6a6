"""Two arms' answers side by side: `compare(answers_a, answers_b, tolerance) -> Comparison`. Pure.

Only the common prefix of two answers can be compared: behind the first different token the two contexts differ. There
the near-tie rule decides: each side's choice must be in the other's top-k list, as close to the top as the tolerance
says, and neither may have moved by more than the log-probability bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from app.acceptance.answers import INCOMPLETE, NOT_FINITE, Answer, AnswerSet, Candidate
from app.acceptance.stats import sign_test
from app.acceptance.tolerance import Tolerance

Outcome = Literal["exact", "near_tie", "flip", "drift", "refused", "missing"]
#: Outcomes that say "the answer is not the same" in modes exact and near_tie.
WRONG: frozenset[Outcome] = frozenset({"flip", "drift", "refused"})


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where two answers differ. `gap_nats` is the larger of the two gaps, None when unknown."""

    position: int
    token_a: str | None
    token_b: str | None
    top_a: tuple[Candidate, ...]
    top_b: tuple[Candidate, ...]
    gap_nats: float | None


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt in both arms. Differences are nats over the common prefix, None where nothing could be compared."""

    prompt: str
    outcome: Outcome
    reason: str
    compared_tokens: int = 0
    sum_abs: float = 0.0
    max_abs: float | None = None
    top1_same: int = 0
    top1_total: int = 0
    divergence: Divergence | None = None
    text_a: str | None = None  # kept only where the answers differ
    text_b: str | None = None

    @property
    def mean_abs(self) -> float | None:
        return self.sum_abs / self.compared_tokens if self.max_abs is not None and self.compared_tokens else None


@dataclass(frozen=True, slots=True)
class ScorePairs:
    """Paired task scores: the first word is a's result, the second b's."""

    right_right: int = 0
    right_wrong: int = 0
    wrong_right: int = 0
    wrong_wrong: int = 0

    @property
    def scored(self) -> int:
        return self.right_right + self.right_wrong + self.wrong_right + self.wrong_wrong

    @property
    def right_a(self) -> int:
        return self.right_right + self.right_wrong

    @property
    def p_value(self) -> float | None:
        """Two-sided exact test over the discordant pairs."""
        return sign_test(self.right_wrong, self.wrong_right)


@dataclass(frozen=True)
class Comparison:
    """One arm (b) against its reference (a). Batches of one arm are put together by `merged`."""

    arm: str
    reference: str
    pairs: tuple[Pair, ...] = ()
    scores: ScorePairs = field(default_factory=ScorePairs)

    def count(self, *outcomes: Outcome) -> int:
        return sum(1 for p in self.pairs if p.outcome in outcomes)

    @property
    def compared_tokens(self) -> int:
        return sum(p.compared_tokens for p in self.pairs if p.max_abs is not None)

    @property
    def max_abs(self) -> float | None:
        known = [p.max_abs for p in self.pairs if p.max_abs is not None]
        return max(known) if known else None

    @property
    def mean_abs(self) -> float | None:
        tokens = self.compared_tokens
        return math.fsum(p.sum_abs for p in self.pairs if p.max_abs is not None) / tokens if tokens else None

    @property
    def top1_agreement(self) -> float | None:
        total = sum(p.top1_total for p in self.pairs)
        return sum(p.top1_same for p in self.pairs) / total if total else None

    @property
    def without_logprobs(self) -> int:
        """Answered pairs for which one side gave no log-probabilities: a small fault would not show in them."""
        return sum(1 for p in self.pairs if p.max_abs is None and p.outcome in ("exact", "near_tie", "flip"))

    def merged(self, other: Comparison) -> Comparison:
        """This comparison with another batch's pairs added."""
        a, b = self.scores, other.scores
        return Comparison(
            self.arm,
            self.reference if self.reference == other.reference else f"{self.reference}, {other.reference}",
            self.pairs + other.pairs,
            ScorePairs(
                a.right_right + b.right_right,
                a.right_wrong + b.right_wrong,
                a.wrong_right + b.wrong_right,
                a.wrong_wrong + b.wrong_wrong,
            ),
        )


def compare(answers_a: AnswerSet, answers_b: AnswerSet, tolerance: Tolerance) -> Comparison:
    """Compares b (the arm under test) with a (its reference), prompt by prompt."""
    prompts = list(dict.fromkeys([*answers_a.answers, *answers_b.answers]))
    pairs = [compare_pair(p, answers_a.answers.get(p), answers_b.answers.get(p), tolerance) for p in prompts]
    return Comparison(
        arm=answers_b.name,
        reference=answers_a.name,
        pairs=tuple(pairs),
        scores=_score_pairs((answers_a.answers.get(p), answers_b.answers.get(p)) for p in prompts),
    )


def compare_pair(prompt: str, a: Answer | None, b: Answer | None, tolerance: Tolerance) -> Pair:
    """One prompt's two answers."""
    if a is None or b is None:
        return Pair(prompt, "missing", f"no answer in the {'reference' if a is None else 'arm under test'}")
    if a.refusal is not None:
        both = " in both arms" if b.refusal is not None else " in the reference arm"
        return Pair(prompt, "missing", f"the engine refused the prompt{both}: {a.refusal.message}")
    if b.refusal is not None:
        if b.refusal.message == NOT_FINITE:
            return Pair(prompt, "refused", NOT_FINITE, text_a=a.text, text_b="")
        status = f"HTTP {b.refusal.http_status}: " if b.refusal.http_status else ""
        return Pair(prompt, "refused", f"{status}{b.refusal.message}", text_a=a.text, text_b="")
    return _compare_answers(prompt, a, b, tolerance)


def _compare_answers(prompt: str, a: Answer, b: Answer, tolerance: Tolerance) -> Pair:
    keys_a, keys_b = _comparable_keys(a, b)
    if not keys_a and not keys_b:
        if a.text == b.text:
            return Pair(prompt, "exact" if a.text else "missing", "same text" if a.text else "both answers are empty")
        return Pair(prompt, "flip", "the texts differ", text_a=a.text, text_b=b.text)
    common = 0
    while common < min(len(keys_a), len(keys_b)) and keys_a[common] == keys_b[common]:
        common += 1
    with_logprobs = len(a.logprobs) == len(keys_a) and len(b.logprobs) == len(keys_b)
    if with_logprobs and not all(map(math.isfinite, a.logprobs)):
        return Pair(prompt, "missing", "the reference's log-probabilities are not finite numbers")
    if with_logprobs and not all(map(math.isfinite, b.logprobs)):
        return Pair(prompt, "refused", NOT_FINITE, text_a=a.text, text_b=b.text)
    pairs = zip(a.logprobs[:common], b.logprobs[:common], strict=True) if with_logprobs else ()
    differences = [abs(x - y) for x, y in pairs]
    diverged = common < max(len(keys_a), len(keys_b))
    divergence = _divergence(common, a, b, keys_a, keys_b) if diverged else None
    max_abs = max(differences, default=0.0) if with_logprobs else None
    outcome, reason = _judge(max_abs, divergence, tolerance)
    if not _contradicts(outcome, divergence) and (a.incomplete or b.incomplete):
        where = f"in the reference: {a.incomplete}" if a.incomplete else f"in the arm under test: {b.incomplete}"
        return Pair(prompt, "missing", f"{INCOMPLETE} {where}")
    differs = outcome != "exact"
    return Pair(
        prompt=prompt,
        outcome=outcome,
        reason=reason,
        compared_tokens=common if with_logprobs else 0,
        sum_abs=math.fsum(differences),
        max_abs=max_abs,
        top1_same=_top1_same(a, b, common),
        top1_total=common + (1 if diverged else 0),
        divergence=divergence,
        text_a=a.text if differs else None,
        text_b=b.text if differs else None,
    )


def _contradicts(outcome: Outcome, divergence: Divergence | None) -> bool:
    """Whether what came of both answers differs, so that what did not come cannot make them equal."""
    ends = divergence is not None and None in (divergence.token_a, divergence.token_b)
    return outcome in WRONG and not (outcome == "flip" and ends)


def _comparable_keys(a: Answer, b: Answer) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Ids on both sides, else texts on both sides: never ids against texts."""
    if bool(a.token_ids) == bool(b.token_ids):
        return a.keys, b.keys
    return a.tokens, b.tokens


def _divergence(at: int, a: Answer, b: Answer, keys_a: tuple[str, ...], keys_b: tuple[str, ...]) -> Divergence:
    # The top-k lists are keyed as `tokens` are, which may be texts although equality was decided by ids.
    token_a = _name(a, at, keys_a)
    token_b = _name(b, at, keys_b)
    top_a = a.top[at] if at < len(a.top) else ()
    top_b = b.top[at] if at < len(b.top) else ()
    gap = None
    if token_a is not None and token_b is not None:
        pa, pb = {c.token: c.logprob for c in top_a}, {c.token: c.logprob for c in top_b}
        if token_a in pa and token_b in pa and token_a in pb and token_b in pb:
            gap = max(pa[token_a] - pa[token_b], pb[token_b] - pb[token_a])
    return Divergence(at, token_a, token_b, top_a, top_b, gap)


def _name(answer: Answer, at: int, keys: tuple[str, ...]) -> str | None:
    if at >= len(keys):
        return None
    return answer.tokens[at] if len(answer.tokens) == len(keys) else keys[at]


def _judge(max_abs: float | None, divergence: Divergence | None, tolerance: Tolerance) -> tuple[Outcome, str]:
    bound = tolerance.max_abs_nats
    if max_abs is not None and max_abs > bound:
        return "drift", f"log-probabilities moved by up to {max_abs:.3g} nat, more than the {bound:.3g} allowed"
    if divergence is None:
        return "exact", "same tokens"
    place = f"token {divergence.position + 1}"
    if divergence.token_a is None or divergence.token_b is None:
        return "flip", f"one answer ends before {place}, the other goes on"
    if tolerance.mode == "exact":
        return "flip", f"{place} differs, and this run asks for equal tokens"
    if divergence.gap_nats is None:
        return "flip", f"{place} differs, and the other choice is not in the top-k list: not a near tie"
    if divergence.gap_nats > tolerance.near_tie_gap_nats:
        return "flip", f"{place} differs by a lead of {divergence.gap_nats:.3g} nat: not a near tie"
    moved = _moved(divergence)
    if moved > bound:
        return "drift", f"at {place} the candidates moved by {moved:.3g} nat, more than the {bound:.3g} allowed"
    return "near_tie", f"{place} differs by a near tie of {max(divergence.gap_nats, 0.0):.3g} nat"


def _moved(divergence: Divergence) -> float:
    """How far the two contested tokens moved between the arms, nats."""
    pa = {c.token: c.logprob for c in divergence.top_a}
    pb = {c.token: c.logprob for c in divergence.top_b}
    return max(abs(pa[t] - pb[t]) for t in (divergence.token_a, divergence.token_b) if t in pa and t in pb)


def _top1_same(a: Answer, b: Answer, common: int) -> int:
    """Positions of the common prefix at which both sides rank the same token first (greedy: the token itself)."""
    same = 0
    for i in range(common):
        best_a = a.top[i][0].token if i < len(a.top) and a.top[i] else None
        best_b = b.top[i][0].token if i < len(b.top) and b.top[i] else None
        same += best_a == best_b or best_a is None or best_b is None
    return same


def _score_pairs(pairs: Iterable[tuple[Answer | None, Answer | None]]) -> ScorePairs:
    counts = {(True, True): 0, (True, False): 0, (False, True): 0, (False, False): 0}
    for a, b in pairs:
        if a is None or a.score is None or b is None:
            continue
        # A refusal in the arm under test is a wrong answer, not a missing one.
        right_b = b.score is not None and b.score >= 0.5
        counts[(a.score >= 0.5, right_b)] += 1
    return ScorePairs(counts[(True, True)], counts[(True, False)], counts[(False, True)], counts[(False, False)])
