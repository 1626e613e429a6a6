"""What a cache server counts, and under which labels."""

from __future__ import annotations

import random
from collections.abc import Sequence

from app.sandbox.exposition import MetricSet
from app.sandbox.tiers import Evicted, ObjectKey

L1_TAG = "_default"
L2_NAME = "fs"


class ServerCounters:
    """The series of one server process. Families about single chunks are sampled by the chunk's hash."""

    def __init__(self, started_at: float, sample_rate: float, rng: random.Random, *, engine_driven: bool) -> None:
        self.metrics = MetricSet("server", started_at)
        self._rate = sample_rate
        self._rng = rng
        self._engine_driven = engine_driven
        self._accesses: dict[str, int] = {}
        self._last_access: dict[ObjectKey, tuple[float, int]] = {}

    # --- lookups ---

    def lookup(self, model_name: str, salt: str, requested: int, early_exit: str) -> None:
        """A lookup for so many tokens; `early_exit` names why no tier was asked."""
        names = {"cache_salt": salt, "model_name": model_name}
        self.metrics.inc("lmcache_mp_lookups_requests_total", **names)
        self.metrics.inc("lmcache_mp_lookup_requested_tokens_total", requested, **names)
        for counter in ("tokens", "l1_tokens", "l2_tokens", "l1_keys", "l2_keys"):
            self.metrics.touch(f"lmcache_mp_lookup_hit_{counter}_total", **names)
        if early_exit:
            self.metrics.inc("lmcache_mp_lookup_early_exit_requests_total", reason=early_exit, **names)

    def hit(self, model_name: str, salt: str, **values: int) -> None:
        """`values`: tokens, l1_tokens, l2_tokens, l1_keys, l2_keys."""
        for counter, value in values.items():
            name = f"lmcache_mp_lookup_hit_{counter}_total"
            self.metrics.inc(name, value, cache_salt=salt, model_name=model_name)

    def l2_looked_up(self, salt: str, objects: int) -> None:
        self.metrics.inc("lmcache_mp_l2_prefetch_lookup_requests_total")
        self.salted("lmcache_mp_l2_prefetch_lookup_objects_chunks_total", salt, objects)

    def load_failed(self, model_name: str, reason: str) -> None:
        self.metrics.inc("lmcache_mp_l2_prefetch_failure_chunks_total", model_name=model_name, reason=reason)

    def loaded(self, salt: str, submitted: int, completed: int) -> None:
        self.metrics.inc("lmcache_mp_l2_prefetch_load_submitted_requests_total")
        self.salted("lmcache_mp_l2_prefetch_load_submitted_objects_chunks_total", salt, submitted)
        self.metrics.inc("lmcache_mp_l2_load_completed_requests_total", l2_name=L2_NAME)
        self.salted("lmcache_mp_l2_prefetch_load_completed_chunks_total", salt, completed)
        self.metrics.observe("lmcache_mp_l2_load_throughput_GB_per_second", 0.13, l2_name=L2_NAME)

    def retrieved(self, instance_id: int, model_name: str, salt: str, objects: int) -> None:
        """A worker copied objects into its blocks (with `engine_driven` nobody counts that)."""
        if self._engine_driven:
            return
        worker = {"engine_id": str(instance_id), "model_name": model_name}
        self.metrics.inc("lmcache_mp_num_submitted_retrieves_total", device="cpu")
        self.metrics.inc("lmcache_mp_num_finished_retrieves_total", device="cpu")
        self.metrics.observe("lmcache_mp_l0_l1_load_throughput_GB_per_second", 0.15, device="cpu", **worker)
        labels = {"cache_salt": salt, "model_name": model_name, "worker_id": str(instance_id)}
        self.metrics.inc("lmcache_mp_num_chunks_loaded_total", objects, **labels)

    # --- stores ---

    def store_submitted(self, workers: int) -> None:
        if not self._engine_driven:
            self.metrics.inc("lmcache_mp_num_submitted_stores_total", workers, device="cpu")

    def store_refused(self, model_name: str, objects: int) -> None:
        """L1 had no room."""
        labels = {"during": "l1_store", "model_name": model_name}
        self.metrics.inc("lmcache_mp_l1_allocation_failure_chunks_total", objects, **labels)

    def store_finished(self, instance_ids: Sequence[int], model_name: str) -> None:
        for instance_id in () if self._engine_driven else instance_ids:
            worker = {"engine_id": str(instance_id), "model_name": model_name}
            self.metrics.inc("lmcache_mp_num_finished_stores_total", device="cpu")
            self.metrics.observe("lmcache_mp_l0_l1_store_throughput_GB_per_second", 0.2, device="cpu", **worker)

    def l2_submitted(self, salt: str, objects: int) -> None:
        self.metrics.inc("lmcache_mp_l2_store_submitted_requests_total")
        self.salted("lmcache_mp_l2_store_submitted_objects_chunks_total", salt, objects)
        self.l1("read", salt, objects)

    def l2_completed(self, salt: str, objects: int) -> None:
        self.salted("lmcache_mp_l2_store_completed_objects_chunks_total", salt, objects)
        self.metrics.inc("lmcache_mp_l2_store_completed_requests_total", l2_name=L2_NAME)
        self.metrics.observe("lmcache_mp_l2_store_throughput_GB_per_second", 0.07, l2_name=L2_NAME)

    # --- chunks ---

    def l1(self, what: str, salt: str, value: int) -> None:
        """`what`: write, read or evicted."""
        if value:
            labels = {"l1_tag": L1_TAG, **({"cache_salt": salt} if salt else {})}
            self.metrics.inc(f"lmcache_mp_l1_{what}_chunks_total", value, **labels)

    def salted(self, name: str, salt: str, value: float) -> None:
        """These families carry the salt only where there is one."""
        self.metrics.inc(name, value, **({"cache_salt": salt} if salt else {}))

    def accessed(self, key: ObjectKey, now: float) -> int:
        """A write or read of a chunk; the number of accesses under its salt so far."""
        count = self._accesses[key.salt] = self._accesses.get(key.salt, 0) + 1
        if self._sampled(key):
            self._last_access[key] = (now, count)
        return count

    def reused(self, key: ObjectKey, now: float) -> None:
        """A read of a chunk that was written or read before."""
        before = self._last_access.get(key)
        count = self.accessed(key, now)
        if before is not None:
            self.metrics.observe("lmcache_mp_real_reuse_gap_seconds", now - before[0], cache_salt=key.salt)
            self.metrics.observe("lmcache_mp_real_reuse_gap_objects", count - before[1], cache_salt=key.salt)

    def reused_in_l1(self, key: ObjectKey, gap: float) -> None:
        if self._sampled(key):
            self.metrics.observe("lmcache_mp_l1_chunk_reuse_gap_seconds", gap, l1_tag=L1_TAG)

    def left_l1(self, key: ObjectKey, gone: Evicted) -> None:
        self.l1("evicted", key.salt, 1)
        if self._sampled(key):
            self.metrics.observe("lmcache_mp_l1_chunk_lifetime_seconds", gone.lifetime, l1_tag=L1_TAG)
            self.metrics.observe("lmcache_mp_l1_chunk_idle_before_evict_seconds", gone.idle, l1_tag=L1_TAG)

    def left_l0(self, instance_id: int, model_name: str, gone: Evicted) -> None:
        """An engine reports a block that left its GPU cache."""
        if self._rng.random() < self._rate:
            labels = {"instance_id": str(instance_id), "model_name": model_name}
            self.metrics.observe("lmcache_mp_l0_block_lifetime_seconds", gone.lifetime, **labels)
            self.metrics.observe("lmcache_mp_l0_block_idle_before_evict_seconds", gone.idle, **labels)

    def _sampled(self, key: ObjectKey) -> bool:
        return int(key.chunk_hash[:8] or "0", 16) < self._rate * 0x1_0000_0000
