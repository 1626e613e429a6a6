"""How many requests a run makes, condition by condition. Pure.

The estimate and the run itself count by the same rules, so that the form promises what the run does; `fits_*` are
those by which `conduct` chooses the prompts of a condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.acceptance.controls import Chosen, choose
from app.acceptance.profiles import ProfileNumbers
from app.acceptance.prompts import Prompt

#: Conditions whose cache is proven empty (or whose state is shown) by a probe of their own, once a batch.
_PROBED = frozenset(
    {"cold", "warm", "external_l1", "external_l2", "mixed", "shared_prefix", "restarted_server", "restarted_engine"}
)
#: Conditions that ask every prompt twice: once for their own reference.
_OWN_REFERENCE = frozenset({"shared_prefix", "changed_head", "cross_engine", "restarted_engine"})
_LAST_BATCH_ONLY = frozenset({"restarted_server", "restarted_engine"})


class Shape(Protocol):
    """What decides which conditions ask a prompt."""

    @property
    def length(self) -> int: ...

    @property
    def shared(self) -> int | None:
        """Tokens at the head that the variant with another question has too; None: there is no such variant."""
        ...

    @property
    def has_changed(self) -> bool: ...

    @property
    def exact_changed(self) -> bool:
        """Whether the variant with another first token has just as many tokens (texts are made longer)."""
        ...

    @property
    def has_head(self) -> bool:
        """Whether its beginning can be asked alone (a chat message cannot be cut)."""
        ...


@dataclass(frozen=True)
class PlannedShape:
    """A prompt that is not built yet."""

    length: int
    shared: int | None
    has_changed: bool = True
    has_head: bool = True
    exact_changed: bool = True


@dataclass(frozen=True)
class BuiltShape:
    """A prompt as it will be sent."""

    prompt: Prompt

    @property
    def length(self) -> int:
        return self.prompt.tokens or 0

    @property
    def shared(self) -> int | None:
        return None if self.prompt.other is None else self.prompt.shared_tokens or 0

    @property
    def has_changed(self) -> bool:
        return self.prompt.changed is not None

    @property
    def exact_changed(self) -> bool:
        return self.prompt.changed is not None and self.prompt.changed.token_ids is not None

    @property
    def has_head(self) -> bool:
        return self.prompt.messages is None


@dataclass(frozen=True)
class Workload:
    """`compared`: requests whose answers stand in the table of conditions. `besides`: the warm-up, probes, repeated
    colds, controls, references of variants, heads. `prompt_tokens` of them all, probes of `probe_tokens` each.
    `stored_tokens`: whole chunks that are new to the cache, answers among them where they complete a chunk."""

    compared: int
    besides: int
    prompt_tokens: int
    stored_tokens: int = 0

    @property
    def requests(self) -> int:
        return self.compared + self.besides


def fits_mixed(length: int, chunk_size: int) -> bool:
    """Whether a prompt has a head of whole chunks and a rest of at least one."""
    return length >= 2 * chunk_size


def fits_shared(shared: int | None, chunk_size: int) -> bool:
    """Whether the variant of a prompt shares a whole chunk with it."""
    return shared is not None and shared >= chunk_size


def controls_for(
    arms: Sequence[str], shapes: Sequence[Shape], chunk_size: int, *, salted: bool = True
) -> tuple[Chosen, ...]:
    """The controls that a run asks: heads are left to `changed_head` where it changes nothing but tokens."""
    by_arm = "changed_head" in arms and any(s.exact_changed and s.length >= chunk_size for s in shapes)
    return choose([s.length for s in shapes], chunk_size, without_first=by_arm, without_middle=not salted)


def workload(
    arms: Sequence[str],
    batches: Sequence[Sequence[Shape]],
    numbers: ProfileNumbers,
    chunk_size: int,
    *,
    probe_tokens: int = 0,
) -> Workload:
    """The requests of a run over these batches."""

    def new(lengths: Sequence[int], shared: int = 0) -> int:
        """Whole chunks of prompts under salts of their own, but for what they share with a stored one."""
        whole = [(n + numbers.max_tokens) // chunk_size * chunk_size for n in lengths]
        return sum(whole) - shared

    compared, besides, tokens = 0, 1, probe_tokens  # the warm-up
    stored = new([probe_tokens]) if probe_tokens else 0
    shapes = [s for batch in batches for s in batch]
    controls = [shapes[c.index].length for c in controls_for(arms, shapes, chunk_size)]
    besides += len(controls)
    tokens += sum(controls)
    stored += new(controls)
    for index, batch in enumerate(batches):
        stored += new([s.length for s in batch]) + (new([probe_tokens]) if probe_tokens else 0)
        if index == 0:
            again = [s.length for s in batch[: numbers.repeated_prompts]] * numbers.repeats
            besides += len(again)
            tokens += sum(again)
            stored += new(again)
        for arm in arms:
            if arm in _LAST_BATCH_ONLY and index < len(batches) - 1:
                continue
            asked = [s.length for s in batch if asks(arm, s, chunk_size)]
            compared += len(asked)
            tokens += sum(asked)
            if arm in _OWN_REFERENCE:
                besides += len(asked)
                tokens += sum(asked)
                stored += new(asked)
            if arm == "changed_head":
                stored += new(asked)
            if arm == "shared_prefix":
                heads = sum((s.shared or 0) // chunk_size * chunk_size for s in batch if asks(arm, s, chunk_size))
                stored += new(asked, heads)
            if arm == "mixed":
                besides += len(asked)
                tokens += sum(n // chunk_size // 2 * chunk_size for n in asked)
            if arm in _PROBED:
                besides += 1
                tokens += probe_tokens
    return Workload(compared, besides, tokens, stored)


def asks(arm: str, shape: Shape, chunk_size: int) -> bool:
    """Whether a prompt can be asked in an arm."""
    if arm == "mixed":
        return shape.has_head and fits_mixed(shape.length, chunk_size)
    if arm == "shared_prefix":
        return fits_shared(shape.shared, chunk_size)
    return arm != "changed_head" or shape.has_changed
