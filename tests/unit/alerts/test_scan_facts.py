"""Facts of stores whose summaries take long: an evaluation hardly waits for them, and the next one has them."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.alerts.scan_facts import ScanFactsCache
from app.records.service import RecordsService

INTERVAL = 1.0


class _Slow:
    """Records whose summary takes until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked: list[int] = []

    def summary(self, store_id: int) -> Any:
        self.asked.append(store_id)
        assert self.go.wait(30)
        count = SimpleNamespace(records=7)
        return SimpleNamespace(
            by_class={"current": count}, by_reason={}, growth_bytes_per_hour=None, growth_reason="one scan"
        )

    def count_records(self, store_id: int, wanted: object, *, limit: int) -> tuple[int, int, bool]:
        return 0, 0, True


@pytest.fixture
def slow() -> _Slow:
    return _Slow()


def test_all_stores_together_hold_up_an_evaluation_by_a_part_of_its_interval(slow: _Slow) -> None:
    cache = ScanFactsCache(cast(RecordsService, slow), INTERVAL)
    began = time.monotonic()
    cache.begin()
    assert [cache.of(ident, (1, 50.0), look=True, now=100.0) for ident in range(8)] == [None] * 8
    assert time.monotonic() - began < INTERVAL  # eight times the patience would be two intervals
    assert len(slow.asked) == 8
    cache.begin()
    assert cache.of(0, (1, 50.0), look=True, now=101.0) is None
    assert len(slow.asked) == 8  # the one that reads is not joined by a second
    slow.go.set()
    deadline = time.monotonic() + 20
    while (found := cache.of(0, (1, 50.0), look=True, now=102.0)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found is not None
    assert found.records == {"current": 7}
