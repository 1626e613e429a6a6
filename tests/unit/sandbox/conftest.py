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


@pytest.fixture(scope="session")
def client() -> Iterator[httpx.Client]:
    """One for all: making one reads the machine's certificates each time."""
    with httpx.Client(timeout=10, trust_env=False) as client:
        yield client


@pytest.fixture
def make(tmp_path: Path, clock: Clock, client: httpx.Client) -> Iterator[Callable[..., Driver]]:
    """Starts sandboxes (arguments as of `Sandbox`) that end with the test."""
    with ExitStack() as stack:

        def build(directory: Path = tmp_path, **arguments: Any) -> Driver:
            sandbox = stack.enter_context(SandboxThread(directory, clock=clock, **arguments))
            return Driver(sandbox, clock, client)

        yield build


@pytest.fixture
def box(make: Callable[..., Driver]) -> Driver:
    """One server, one engine."""
    return make()
