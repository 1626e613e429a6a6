from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.fleet.support import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, names={"gpu-1": ["10.0.0.1"], "evil.example": ["10.0.0.9", "169.254.169.254"]})
    yield made
    made.db.dispose()
