"""What the servers of a store say of their L2 adapters, and which of those cannot be listed here."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from app.fleet.live import ServerLive
from app.fleet.schemas import L2View
from app.fleet.targets import StoreTarget
from app.records.store_summary import adapters_of


class Telemetry:
    def __init__(self, *adapters: L2View) -> None:
        self._live = ServerLive(l2=adapters)

    def servers_live(self, ids: Collection[int]) -> Mapping[int, ServerLive]:
        return dict.fromkeys(ids, self._live)


def adapter(name: str, base_path: str | None, usage: int | None = None) -> L2View:
    return L2View(
        adapter=name, base_path=base_path, usage_bytes=usage, max_capacity_bytes=None, evicts=None, store_id=None
    )


def test_adapters_without_a_directory_are_told_with_the_reason() -> None:
    store = StoreTarget(1, "l2", "/srv/kv", "/data/kv", None, "lmcache_fs", (7,))
    telemetry = Telemetry(adapter("fs", "/data/kv", 4096), adapter("fs", "/data/other"), adapter("redis", None))
    mine, other, redis = adapters_of(store, telemetry)  # type: ignore[arg-type]
    assert (mine.listed, mine.reason, mine.usage_bytes) == (True, None, 4096)
    assert not other.listed and "another directory" in (other.reason or "")
    assert not redis.listed and "redis" in (redis.reason or "") and "cannot be listed" in (redis.reason or "")
    assert redis.usage_bytes is None, "unknown, not zero"
