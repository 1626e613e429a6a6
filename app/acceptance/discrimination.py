"""Whether the cold answers depend on their prompts at all (RULES.md E4). Pure.

What an engine answers from a wrong record is at worst the answer to another prompt. If it answers every prompt alike,
by tokens and by log-probabilities, within the very tolerance that the arms are compared with, then no record can be so
wrong that this run would have seen it: equal arms prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.acceptance.answers import Answer
from app.acceptance.compare import WRONG, compare_pair
from app.acceptance.tolerance import Tolerance

#: Kinds of answers that are kept to compare further ones with; there are enough of them long before.
KINDS_KEPT = 16


@dataclass(frozen=True)
class Discrimination:
    """`kinds`: answers that differ from each other by more than the tolerance, of so many `prompts`."""

    prompts: int = 0
    kinds: tuple[Answer, ...] = ()
    tokens: int = 0  # with a log-probability
    values: tuple[float, ...] = ()  # the log-probabilities seen, up to two

    def with_answers(self, answers: Iterable[Answer], tolerance: Tolerance) -> Discrimination:
        """With more prompts' cold answers; refusals tell nothing."""
        prompts, kinds = self.prompts, list(self.kinds)
        tokens, values = self.tokens, dict.fromkeys(self.values)
        for answer in answers:
            if answer.refusal is not None or not (answer.keys or answer.text):
                continue
            prompts += 1
            tokens += len(answer.logprobs)
            values.update(dict.fromkeys(answer.logprobs))
            if len(kinds) < KINDS_KEPT and all(told_apart(answer, kind, tolerance) for kind in kinds):
                kinds.append(answer)
        return Discrimination(prompts, tuple(kinds), tokens, tuple(values)[:2])

    @property
    def shown(self) -> bool | None:
        """Whether answers depend on their prompts; None where fewer than two prompts were answered."""
        return None if self.prompts < 2 else len(self.kinds) > 1

    @property
    def constant(self) -> float | None:
        """The one value that all log-probabilities have: then they are no numbers of a model's, and prove nothing."""
        return self.values[0] if self.tokens > 1 and len(self.values) == 1 else None


def told_apart(a: Answer, b: Answer, tolerance: Tolerance) -> bool:
    """Whether two prompts' answers differ by more than what two right answers to one prompt may differ by.

    Log-probabilities that all are one number tell no more than none. An answer that was cut off at its most tokens is
    no other answer than a longer one that begins alike.
    """
    if not (a.keys and b.keys) or len({*a.logprobs, *b.logprobs}) == 1:
        return not _begins_alike(a, b)
    pair = compare_pair(a.prompt, a, b, tolerance)
    if pair.outcome not in WRONG:
        return False
    divergence = pair.divergence
    if pair.outcome == "flip" and divergence is not None and None in (divergence.token_a, divergence.token_b):
        shorter = a if divergence.token_a is None else b
        return shorter.finish_reason != "length"
    return True


def _begins_alike(a: Answer, b: Answer) -> bool:
    shorter, longer = sorted((a, b), key=lambda x: len(x.text))
    if shorter.finish_reason == "length":
        return longer.text.startswith(shorter.text)
    return longer.text == shorter.text
