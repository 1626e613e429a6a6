"""What every test shares."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# The panel honours the proxies of its environment: a test that wants one says so.
for _name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
    os.environ.pop(_name, None)
    os.environ.pop(_name.upper(), None)

# Property tests are about values, never about time: a busy machine must not decide them.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")


@pytest.fixture(autouse=True)
def stores_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own directories may lie on a tmpfs, where an empty one in a store's place is followed: a test that is
    about that says so."""
    monkeypatch.setattr("app.records.volatile.VOLATILE", frozenset())
