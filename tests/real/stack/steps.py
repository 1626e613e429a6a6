"""Steps that several tests take on a real stack."""

from __future__ import annotations

from collections.abc import Callable

from tests.real.stack.clients import Answer
from tests.real.stack.control import RealStack


def store(stack: RealStack, tokens: list[int], salt: str) -> Answer:
    """A cold answer whose records are all on disk."""
    cold = stack.engine().complete(tokens, salt=salt)
    assert (cold.status, cold.external, cold.local) == (200, 0, 0)
    stack.wait_stored(len(tokens) // stack.server_knobs.chunk_size, salt=salt)
    return cold


def from_disk(stack: RealStack, tokens: list[int], salt: str) -> Answer:
    """The answer when the engine's cache and L1 are empty: what is not recomputed comes from L2."""
    stack.engine().empty_l0()
    stack.server.clear_l1()
    return stack.engine().complete(tokens, salt=salt)


def rewrite(stack: RealStack, saved: dict[str, bytes], change: Callable[[bytes], bytes]) -> None:
    """Overwrites records with changed copies of their bytes."""
    for name, raw in saved.items():
        (stack.l2 / name).write_bytes(change(raw))


def contents(stack: RealStack, salt: str) -> dict[str, bytes]:
    """The bytes of a salt's records, by name."""
    return {name: (stack.l2 / name).read_bytes() for name in sorted(stack.records(salt=salt))}
