"""The first contact with an address only listens; on loopback a moment is enough."""

from __future__ import annotations

import pytest

from app.wire import greeting


@pytest.fixture(autouse=True)
def short_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "_LOCAL_WAIT", 0.01)
