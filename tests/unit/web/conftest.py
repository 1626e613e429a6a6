from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.panel import Panel, running_panel


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Panel]:
    with running_panel(tmp_path_factory.mktemp("panel") / "var", POLL_SECONDS="3600") as running:
        yield running
