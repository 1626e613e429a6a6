"""What a test that is run again starts from: nothing its first attempt left behind.

A prompt that was stored once is a hit the second time, and an engine that was restarted with another dtype stays so:
without a world of its own no second attempt could pass, and the first one's reason would be lost behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Generic, TypeVar

import pytest

World = TypeVar("World")


def is_again(request: pytest.FixtureRequest) -> bool:
    """Whether the test that asks has failed before and is tried once more (pytest-rerunfailures counts from 1)."""
    return int(getattr(request.node, "execution_count", 1)) > 1


class Shared(Generic[World]):
    """A world that the tests of a module share, made anew for every further attempt at one of them."""

    def __init__(self, make: Callable[[], AbstractContextManager[World]]) -> None:
        self._make = make
        self._open = ExitStack()
        self._world: World | None = None

    def of(self, request: pytest.FixtureRequest) -> World:
        """The world for this attempt; the one before has been closed where it is a new one."""
        if self._world is None or is_again(request):
            self.close()
            self._world = self._open.enter_context(self._make())
        return self._world

    def close(self) -> None:
        self._world = None
        self._open.close()


@contextmanager
def shared(make: Callable[[], AbstractContextManager[World]]) -> Iterator[Shared[World]]:
    """For a fixture of module scope; the tests take `Shared.of(request)` through one of their own."""
    worlds = Shared(make)
    try:
        yield worlds
    finally:
        worlds.close()
