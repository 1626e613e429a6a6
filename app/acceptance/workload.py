"""How many requests a run makes, condition by condition. Pure.

The estimate and the run itself count by the same rules, so that the form promises what the run does; `fits_*` are
those by which `conduct` chooses the prompts of a condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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
    def has_head(self) -> bool:
        return self.prompt.messages is None


@dataclass(frozen=True)
class Workload:
    """`compared`: requests whose answers stand in the table of conditions. `besides`: the warm-up, probes, repeated
    colds, references of variants, heads. `prompt_tokens` of them all, probes of `probe_tokens` each."""

    compared: int
    besides: int
    prompt_tokens: int

    @property
    def requests(self) -> int:
        return self.compared + self.besides


def fits_mixed(length: int, chunk_size: int) -> bool:
    """Whether a prompt has a head of whole chunks and a rest of at least one."""
    return length >= 2 * chunk_size


def fits_shared(shared: int | None, chunk_size: int) -> bool:
    """Whether the variant of a prompt shares a whole chunk with it."""
    return shared is not None and shared >= chunk_size


def workload(
    arms: Sequence[str],
    batches: Sequence[Sequence[Shape]],
    numbers: ProfileNumbers,
    chunk_size: int,
    *,
    probe_tokens: int = 0,
) -> Workload:
    """The requests of a run over these batches."""
    compared, besides, tokens = 0, 1, probe_tokens  # the warm-up
    for index, batch in enumerate(batches):
        if index == 0:
            again = [s.length for s in batch[: numbers.repeated_prompts]] * numbers.repeats
            besides += len(again)
            tokens += sum(again)
        for arm in arms:
            if arm in _LAST_BATCH_ONLY and index < len(batches) - 1:
                continue
            asked = [s.length for s in batch if asks(arm, s, chunk_size)]
            compared += len(asked)
            tokens += sum(asked)
            if arm in _OWN_REFERENCE:
                besides += len(asked)
                tokens += sum(asked)
            if arm == "mixed":
                besides += len(asked)
                tokens += sum(n // chunk_size // 2 * chunk_size for n in asked)
            if arm in _PROBED:
                besides += 1
                tokens += probe_tokens
    return Workload(compared, besides, tokens)


def asks(arm: str, shape: Shape, chunk_size: int) -> bool:
    """Whether a prompt can be asked in an arm."""
    if arm == "mixed":
        return shape.has_head and fits_mixed(shape.length, chunk_size)
    if arm == "shared_prefix":
        return fits_shared(shape.shared, chunk_size)
    return arm != "changed_head" or shape.has_changed
