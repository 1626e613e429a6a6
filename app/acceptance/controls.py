"""Whether answers depend on what a record would be read back for: negative controls (RULES.md E4). Pure.

Two prompts are asked cold once more with other text in one chunk: one in its first, one in a chunk in its middle, all
else and the length equal. An engine that answers them as before, to the last bit, looks at its prompts' end or length
only: what a record of that chunk holds could never have been seen. A real model's log-probabilities move with any
token before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from app.acceptance.answers import Answer
from app.acceptance.prompts import Prompt

Place = Literal["first", "middle"]
#: moved: the answer depends on the chunk. equal: it does not. unshown: nothing tells. refused: no answer.
Outcome = Literal["moved", "equal", "unshown", "refused"]

#: How the key of a control ends: p03f is p03 with another first chunk.
SUFFIX: dict[Place, str] = {"first": "f", "middle": "m"}
#: Nats. Engines whose repeats differ by less are as good as exact: what moves within twice their floor did not move.
_QUIET = 0.01


@dataclass(frozen=True)
class Chosen:
    """One control to ask: the tokens from `start` until before `stop` of the `index`-th prompt are replaced."""

    index: int
    place: Place
    start: int
    stop: int


@dataclass(frozen=True)
class Control:
    """A control as it will be sent. `of` is the key of the prompt it is compared with."""

    of: str
    place: Place
    prompt: Prompt


@dataclass(frozen=True)
class ControlSeen:
    """What one control showed. `moved_nats`: the largest difference of a log-probability, where tokens stayed equal.

    `arm` is `changed_head` where that arm's cold answers were taken, in which the first token alone is another.
    """

    prompt: str
    place: Place
    outcome: Outcome
    moved_nats: float | None = None
    reason: str = ""
    arm: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def choose(
    lengths: Sequence[int], chunk_size: int, *, without_first: bool = False, without_middle: bool = False
) -> tuple[Chosen, ...]:
    """The controls for prompts of these lengths (tokens): the middle of the longest, and the first chunk of the longest
    one of another length.

    `without_first`: an arm of the run changes first tokens anyway. `without_middle`: a nonce at the head is what makes
    prompts new, so that only heads can be changed; then it is two heads.
    """
    able = sorted((i for i, n in enumerate(lengths) if n >= chunk_size), key=lambda i: (-lengths[i], i))
    if not able:
        return ()
    longest = able[0]
    found: list[Chosen] = []
    if not without_middle:
        found.append(Chosen(longest, "middle", *_middle(lengths[longest], chunk_size)))
    if without_first:
        return tuple(found)
    next_one = next((i for i in able if lengths[i] != lengths[longest]), able[1] if len(able) > 1 else longest)
    heads = [longest, next_one] if without_middle else [next_one]
    found += [Chosen(i, "first", *_first(lengths[i], chunk_size)) for i in dict.fromkeys(heads)]
    return tuple(found)


def _first(length: int, chunk_size: int) -> tuple[int, int]:
    """All of the first chunk but what begins every text. The end stays, also of a prompt hardly longer than a chunk."""
    return 1, min(chunk_size, length - length // 4)


def _middle(length: int, chunk_size: int) -> tuple[int, int]:
    """The middle one of three chunks or more; of fewer, as much, with half a chunk left before it."""
    chunks = length // chunk_size
    start = chunks // 2 * chunk_size if chunks >= 3 else chunk_size // 2
    return start, min(start + chunk_size, length - length // 4)


def other_tokens(ids: Sequence[int], start: int, stop: int) -> tuple[int, ...]:
    """The prompt with another token at each of these places, each one of the prompt's own (so the engine has it)."""
    known = sorted(set(ids[1:]))
    if len(known) < 2:
        return (*ids[:start], *(i + 1 for i in ids[start:stop]), *ids[stop:])
    following = dict(zip(known, [*known[1:], known[0]], strict=True))
    return (*ids[:start], *(following.get(i, known[0]) for i in ids[start:stop]), *ids[stop:])


def other_words(text: str, start: float, stop: float, turn: int = 0) -> str:
    """A text with its words between two places (0 = its beginning, 1 = its end) in another order, which seldom makes
    more tokens or less. `turn`: another order for each number. Where order changes nothing, characters are turned."""
    words = text.split(" ")
    first, last = max(1, round(start * len(words))), round(stop * len(words))
    part = words[first:last]
    for by in range(1 + turn, len(part)):
        turned = part[by:] + part[:by]
        if turned != part:
            return " ".join([*words[:first], *turned, *words[last:]])
    a, b = max(1, round(start * len(text))), round(stop * len(text))
    return text[:a] + text[a:b][::-1] + text[b:]


def with_words(prompt: Prompt, start: float, stop: float, turn: int) -> Prompt:
    """A text or chat prompt with its words in another order there."""
    if prompt.messages is None:
        return replace(prompt, text=other_words(prompt.text or "", start, stop, turn))
    first, *rest = prompt.messages
    return replace(prompt, messages=({**first, "content": other_words(first["content"], start, stop, turn)}, *rest))


def as_control(prompt: Prompt, place: Place, changed: Prompt) -> Control:
    """A changed prompt as the control of its original: not scored, no variants of its own."""
    sent = replace(
        changed, key=f"{prompt.key}{SUFFIX[place]}", kind="control", expected=None, scoring=None, other=None,
        changed=None, shared_tokens=None,
    )  # fmt: skip
    return Control(prompt.key, place, sent)


def judge(
    place: Place,
    cold: Answer,
    control: Answer,
    *,
    floor: float | None,
    lengths: tuple[int | None, int | None],
    arm: str | None = None,
) -> ControlSeen:
    """What a control's answer shows beside the cold answer of its prompt.

    `floor`: what repeats differ by, nats; None where it is not known. `lengths`: prompt tokens of both as the engine
    counted them: with another length, another answer shows nothing of the text.
    """

    def seen(outcome: Outcome, reason: str = "", moved: float | None = None) -> ControlSeen:
        return ControlSeen(cold.prompt, place, outcome, moved, reason, arm)

    if control.refusal is not None:
        status = f"HTTP {control.refusal.http_status}: " if control.refusal.http_status else ""
        return seen("refused", f"{status}{control.refusal.message}")
    if cold.refusal is not None:
        return seen("unshown", "its prompt was refused")
    told = _with_numbers(cold) and _with_numbers(control) and len(_numbers(cold) | _numbers(control)) > 1
    same_words = cold.keys == control.keys and cold.text == control.text
    moved = _largest(cold, control) if told and same_words else None
    quiet = floor is None or floor <= _QUIET
    if same_words and not told:
        return seen("unshown", "the words are the same, and no log-probabilities tell more")
    if same_words and (_bits(cold) == _bits(control) or (quiet and moved is not None and moved <= 2 * (floor or 0.0))):
        return seen("equal", moved=moved)
    if lengths[0] != lengths[1]:
        return seen("unshown", "the changed text is of another length", moved)
    if floor and moved is not None and moved <= floor:
        return seen("unshown", f"it moved by {moved:.3g} nat, no more than the engine's own noise", moved)
    return seen("moved", moved=moved)


def _with_numbers(answer: Answer) -> bool:
    return bool(answer.keys) and len(answer.logprobs) == len(answer.keys)


def _numbers(answer: Answer) -> set[float]:
    return {*answer.logprobs, *(c.logprob for row in answer.top for c in row)}


def _bits(answer: Answer) -> tuple[Any, ...]:
    return answer.logprobs, answer.top


def _largest(a: Answer, b: Answer) -> float:
    """The largest difference of a log-probability: of the answer's tokens, and of candidates that both lists have."""
    differences = [abs(x - y) for x, y in zip(a.logprobs, b.logprobs, strict=True)]
    for row_a, row_b in zip(a.top, b.top, strict=False):
        other = {c.token: c.logprob for c in row_b}
        differences += [abs(c.logprob - other[c.token]) for c in row_a if c.token in other]
    return max(differences, default=0.0)
