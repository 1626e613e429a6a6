from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.sandbox import SandboxThread, ServerSpec
from tests.unit.checks.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxThread]:
    """Two servers on one directory, one engine at the first."""
    with SandboxThread(tmp_path_factory.mktemp("sandbox"), servers=[ServerSpec(), ServerSpec()]) as running:
        yield running
