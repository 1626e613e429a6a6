"""One answer of an engine, as the comparison needs it: tokens, log-probabilities, top-k lists, or a refusal. Pure.

Tokens are compared by id where the engine gave ids, else by text. Texts alone are ambiguous: tokens of half a
character print as "", and a top-k list keyed by text loses all but one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.vllm.completions import CompletionAnswer


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate of a top-k list: a token key ("token_id:12" or its text) and its log-probability in nats."""

    token: str
    logprob: float


#: Why an answer with HTTP 200 is none: its numbers say that the engine computed on something that is no KV data.
NOT_FINITE = "log-probabilities that are not finite numbers"


#: Why two answers that do not contradict each other are not equal either: a part of one of them never came.
INCOMPLETE = "the answer did not come whole"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The engine gave no usable answer: an error status, an error inside the stream, or numbers that are not finite."""

    http_status: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt's answer. The tuples run in parallel; they are empty where the engine did not report them."""

    prompt: str
    token_ids: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    top: tuple[tuple[Candidate, ...], ...] = ()
    text: str = ""
    finish_reason: str | None = None
    refusal: Refusal | None = None
    score: float | None = None
    incomplete: str | None = None  # what is known to be missing of it

    @property
    def keys(self) -> tuple[str, ...]:
        """What tokens are compared by."""
        return tuple(f"token_id:{i}" for i in self.token_ids) if self.token_ids else self.tokens

    def to_json(self) -> dict[str, Any]:
        """A JSON object for storage; `from_json` reads it."""
        return {
            "prompt": self.prompt,
            "token_ids": list(self.token_ids),
            "tokens": list(self.tokens),
            "logprobs": list(self.logprobs),
            "top": [[[c.token, c.logprob] for c in row] for row in self.top],
            "text": self.text,
            "finish_reason": self.finish_reason,
            "refusal": None if self.refusal is None else [self.refusal.http_status, self.refusal.message],
            "score": self.score,
            "incomplete": self.incomplete,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Answer:
        """The answer stored by `to_json`."""
        refusal = data.get("refusal")
        return cls(
            prompt=data["prompt"],
            token_ids=tuple(data.get("token_ids") or ()),
            tokens=tuple(data.get("tokens") or ()),
            logprobs=tuple(data.get("logprobs") or ()),
            top=tuple(tuple(Candidate(t, p) for t, p in row) for row in data.get("top") or ()),
            text=data.get("text") or "",
            finish_reason=data.get("finish_reason"),
            refusal=None if refusal is None else Refusal(refusal[0], refusal[1]),
            score=data.get("score"),
            incomplete=data.get("incomplete"),
        )


def ranked(candidates: Iterable[tuple[str, float]]) -> tuple[Candidate, ...]:
    """A top-k list, best first; ties keep a stable order by token."""
    return tuple(Candidate(t, p) for t, p in sorted(candidates, key=lambda c: (-c[1], c[0])))


@dataclass(frozen=True, slots=True)
class AnswerSet:
    """The answers of one arm (of one batch), by prompt key."""

    name: str
    answers: Mapping[str, Answer] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, answers: Sequence[Answer]) -> AnswerSet:
        """From a list; a later answer of a prompt replaces an earlier one."""
        return cls(name, {a.prompt: a for a in answers})


def to_answer(prompt: str, raw: CompletionAnswer, *, most: int, chat: bool = False) -> Answer:
    """The engine's answer as the comparison needs it. `most`: the tokens that were asked for."""
    refusal = None
    if raw.error is not None:
        refusal = Refusal(raw.error.status, raw.error.message)
    elif raw.non_finite or any(p is None for p in raw.token_logprobs):
        refusal = Refusal(raw.http_status, NOT_FINITE)
    return Answer(
        prompt=prompt,
        token_ids=raw.token_ids,
        tokens=raw.tokens,
        logprobs=() if refusal else tuple(p for p in raw.token_logprobs if p is not None),
        top=tuple(ranked(row.items()) for row in raw.top_logprobs),
        text=raw.text,
        finish_reason=raw.finish_reason,
        refusal=refusal,
        incomplete=None if refusal else _incomplete(raw, most, chat=chat),
    )


def _incomplete(raw: CompletionAnswer, most: int, *, chat: bool) -> str | None:
    """What says that more tokens were generated than came: the usage, or no end at all.

    A token that ends the answer may be counted and not sent, and in chat those that open and close a thought.
    """
    came = len(raw.token_ids or raw.tokens)
    told = raw.completion_tokens
    if not came:
        return None  # this engine does not tell tokens, or there is no answer: both are found elsewhere
    if told is None:
        unended = raw.finish_reason is None and came < most
        return f"{came} tokens came, without a finish reason and without a usage" if unended else None
    unsent = 2 if chat else (1 if raw.finish_reason == "stop" else 0)
    return f"{came} of the {told} tokens that the usage counts came" if told - came > unsent else None
