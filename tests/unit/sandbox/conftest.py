from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.sandbox import SandboxThread
from tests.unit.sandbox.support import Clock, Driver


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., Driver]]:
    """Starts sandboxes (arguments as of `Sandbox`) that end with the test."""
    with ExitStack() as stack:

        def build(directory: Path = tmp_path, **arguments: Any) -> Driver:
            sandbox = stack.enter_context(SandboxThread(directory, clock=clock, **arguments))
            client = stack.enter_context(httpx.Client(timeout=10, trust_env=False))
            return Driver(sandbox, clock, client)

        yield build


@pytest.fixture
def box(make: Callable[..., Driver]) -> Driver:
    """One server, one engine."""
    return make()
