"""Fixtures for tests against a real LMCache server and a real vLLM. Run by `make test-real`, which sets
TIERKEEPER_REAL=1.

With TIERKEEPER_REAL=1 nothing here skips: an environment that cannot be built or a stack that does not start fails
the tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.attempts import is_again
from tests.real.stack import build
from tests.real.stack.control import RealStack

# An assertion that fails in a step must show its values, as one in a test does.
pytest.register_assert_rewrite("tests.real.stack.steps", "tests.real.jobs", "tests.real.panel")

WANTED = os.environ.get("TIERKEEPER_REAL") == "1"
HERE = Path(__file__).resolve().parent
# Starting an engine takes 20 to 40 s on two idle cores, minutes on busy ones.
SECONDS_PER_TEST = 1200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks everything in this folder `real`, and skips it loudly where the real stack was not asked for."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.real)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS_PER_TEST))
        if not WANTED:
            item.add_marker(
                pytest.mark.skip(reason="NOT RUN: needs the real LMCache server and vLLM; use `make test-real`")
            )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Builds the environment before the first test's clock runs: once per machine it takes minutes."""
    if WANTED and not session.config.option.collectonly:
        try:
            build.ensure(lambda line: print(f"real stack: {line}", flush=True))
        except build.BuildError as error:
            pytest.exit(f"real stack: {error}", returncode=1)


@pytest.fixture(scope="session")
def session_stack() -> Iterator[RealStack]:
    """The session's server and engines; nothing runs until a test or another fixture starts it."""
    with RealStack() as stack:
        yield stack


@pytest.fixture
def stack(session_stack: RealStack, request: pytest.FixtureRequest) -> RealStack:
    """The session's stack with server and engine alive, whatever the test before left behind; on a further attempt
    with an empty store and new processes.

    A test that needs another kind of engine says so itself with `stack.ensure(dtype=...)`, which restarts only if it
    must.
    """
    if is_again(request):
        session_stack.start_afresh()
    elif not session_stack.running:
        session_stack.ensure()
    return session_stack
