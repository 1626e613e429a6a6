"""A cache server without HTTP: contexts, lookups, stores, deletions, eviction, counters, restarts.

The semantics were measured on LMCache 0.5.6: which counter moves when, what a failed load does to the hit, that objects
loaded from L2 are temporary in L1, that deleting by key counts found objects in L1 but asked ones in L2.
Time is a parameter; background loops (eviction every second, stores to L2, reaping) run in `advance`.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.sandbox.config import KVLayout, ServerSpec
from app.sandbox.exposition import MetricSet
from app.sandbox.misbehaviour import Faults
from app.sandbox.server_counters import ServerCounters
from app.sandbox.tiers import Directory, Memory, ObjectKey, chunk_hashes


@dataclass
class Context:
    """One registered worker of an engine."""

    instance_id: int
    model_name: str
    layout: KVLayout
    num_blocks: int
    last_seen: float
    pinged: bool = False


@dataclass
class Lookup:
    """What a lookup found: `data[i]` holds the objects of chunk i (in the order of the layout's parts).

    `early_exit` names why no tier was asked; then nothing was found and nothing can be stored.
    """

    hashes: list[str] = field(default_factory=list)
    data: list[list[bytes]] = field(default_factory=list)
    from_l2: list[bool] = field(default_factory=list)
    early_exit: str = ""

    @property
    def hit(self) -> int:
        """Chunks hit, from the start of the prompt."""
        return len(self.data)


@dataclass
class _StoreTask:
    objects: list[tuple[ObjectKey, bytes]]
    salt: str
    due: float


@dataclass
class Prefetch:
    """A warm-up job: one answer after it completed, then it is forgotten."""

    submitted_at: float
    found_keys: int
    total_keys: int
    polls: int = 0


class CacheServer:
    """One server process, and what survives it (the directory, the outages seen by its engines)."""

    def __init__(self, spec: ServerSpec, store: Path, rng: random.Random, now: float) -> None:
        self.spec = spec
        self.faults = Faults()
        self.store_path = store
        self.outages: list[tuple[float, float]] = []
        self.down_since: float | None = None
        self._rng = rng
        self._boot(now if spec.started_at is None else spec.started_at)

    # --- life -----------------------------------------------------------------------------------------------

    def _boot(self, started_at: float) -> None:
        self.started_at = started_at
        self.instance_id = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        self.l1 = Memory(self.spec.l1_bytes, self.spec.align_bytes)
        self.l2 = Directory(self.store_path, self.spec.relative_tmp_dir) if self.spec.l2_enabled else None
        if self.l2 is not None:
            self.l2.prepare()
        self.contexts: dict[int, Context] = {}
        self.prefetches: dict[str, Prefetch] = {}
        driven = self.spec.transfer_mode == "engine_driven"
        self.counters = ServerCounters(started_at, self.spec.metrics_sample_rate, self._rng, engine_driven=driven)
        self.events = 0
        self.l2_usage = 0
        self.queue: list[_StoreTask] = []
        self._ticks = 0

    @property
    def metrics(self) -> MetricSet:
        """All series of this process."""
        return self.counters.metrics

    def restart(self, now: float, spec: ServerSpec | None = None) -> None:
        """A new process: new instance id, counters 0, L1 empty, nobody registered. The directory stays."""
        if spec is not None:
            self.spec = spec
        if self.down_since is not None:
            self.outages.append((self.down_since, now))
            self.down_since = None
        self._boot(now)

    def kill(self, now: float) -> None:
        """The process is gone until `restart`; what was queued for L2 is lost."""
        if self.down_since is None:
            self.down_since = now
            self.queue.clear()

    @property
    def reachable(self) -> bool:
        """True if engines can talk to it now (its message queue may be dead while HTTP is well)."""
        return self.down_since is None and not self.faults.mq_dead

    def was_up(self, when: float) -> bool:
        """True if a heartbeat sent at `when` was answered."""
        if self.faults.mq_dead or (self.down_since is not None and when >= self.down_since):
            return False
        return not any(start <= when < end for start, end in self.outages)

    def advance(self, now: float) -> None:
        """Run the background loops up to `now`."""
        if self.down_since is not None:
            return
        self.metrics.now = now
        self._drain(now)
        ticks = max(self._ticks, int(now - self.started_at))
        for _ in range(ticks - self._ticks):
            if self.l1.used < self.spec.trigger_watermark * self.l1.capacity:
                break
            self._evict(now)
        if ticks > self._ticks:
            self.metrics.inc("lmcache_mp_l1_eviction_loop_ticks_total", ticks - self._ticks)
        self._ticks = ticks
        for context in list(self.contexts.values()):
            limit = self.spec.reap_timeout_seconds if context.pinged else self.spec.registration_grace_seconds
            if now - context.last_seen > limit:
                del self.contexts[context.instance_id]

    def _evict(self, now: float) -> None:
        count = int(len(self.l1) * self.spec.eviction_ratio) or (1 if self.spec.eviction_ratio > 0 else 0)
        for key in self.l1.oldest(count):
            self._forget(key, now)
        self.metrics.inc("lmcache_mp_l1_eviction_loop_triggered_total")

    # --- registration ---------------------------------------------------------------------------------------

    def register(self, instance_id: int, model_name: str, layout: KVLayout, num_blocks: int, now: float) -> None:
        known = self.contexts.get(instance_id)
        if known is not None:
            known.last_seen = now
            return
        self.contexts[instance_id] = Context(instance_id, model_name, layout, num_blocks, now)

    def ping(self, instance_id: int, now: float) -> None:
        """A heartbeat; one of an unknown instance is answered too, and changes nothing."""
        context = self.contexts.get(instance_id)
        if context is not None:
            context.last_seen = now
            context.pinged = True

    def find_layout(self, model_name: str, world_size: int) -> KVLayout | None:
        """The layout that serves lookups of (model, world size): that of the last one registered."""
        for context in reversed(self.contexts.values()):
            if context.model_name == model_name and context.layout.world_size == world_size:
                return context.layout
        return None

    # --- lookup and load ------------------------------------------------------------------------------------

    def lookup(self, model_name: str, layout: KVLayout, tokens: Sequence[int], salt: str, now: float) -> Lookup:
        """Find the longest prefix of whole chunks; what only L2 has is loaded (temporarily) on the way."""
        self.advance(now)
        hashes = chunk_hashes(tokens, self.spec.chunk_size)
        missing = self.find_layout(model_name, layout.world_size) is None
        reason = "no_gpu_context" if missing else "" if hashes else "empty_chunk_hashes"
        self.counters.lookup(model_name, salt, 0 if reason else len(hashes) * self.spec.chunk_size, reason)
        if reason:
            return Lookup(early_exit=reason)
        keys = [self._chunk_keys(model_name, layout, h, salt) for h in hashes]
        found = self._fetch(keys, layout, salt, now, keep=False)
        result = Lookup(hashes=hashes)
        for chunk in keys:
            parts = [found.get(key) for key in chunk]
            if any(part is None for part in parts):
                break
            result.data.append([part[0] for part in parts if part is not None])
            result.from_l2.append(any(part[1] for part in parts if part is not None))
        self._count_hit(result, keys, found)
        return result

    def _chunk_keys(self, model_name: str, layout: KVLayout, chunk_hash: str, salt: str) -> list[ObjectKey]:
        return [ObjectKey(model_name, rank, group, chunk_hash, salt) for rank, group, _ in layout.parts()]

    def _fetch(
        self, chunks: list[list[ObjectKey]], layout: KVLayout, salt: str, now: float, *, keep: bool
    ) -> dict[ObjectKey, tuple[bytes, bool]]:
        """Bytes of the present prefix, by key, with True for those that came from L2.

        `keep` leaves loaded objects in L1 (a prefetch does); otherwise they are temporary: written, read, evicted.
        """
        sizes = [size * self.spec.chunk_size for _, _, size in layout.parts()]
        if self.l2 is not None:
            self.counters.l2_looked_up(salt, sum(map(len, chunks)))
        found: dict[ObjectKey, tuple[bytes, bool]] = {}
        loads: list[tuple[ObjectKey, int]] = []
        for chunk in chunks:
            if not all(key in self.l1 or (self.l2 is not None and self.l2.exists(key)) for key in chunk):
                break
            for key, size in zip(chunk, sizes, strict=True):
                held = self.l1.get(key, now)
                if held is None:
                    loads.append((key, size))
                else:
                    found[key] = (held[0], False)
                    self.counters.reused_in_l1(key, held[1])
        if loads and self.l2 is not None:
            self._load(self.l2, loads, salt, found, now, keep=keep)
        for key in found:
            self.counters.reused(key, now)
        self.counters.l1("read", salt, len(found))
        return found

    def _load(
        self,
        l2: Directory,
        loads: list[tuple[ObjectKey, int]],
        salt: str,
        found: dict[ObjectKey, tuple[bytes, bool]],
        now: float,
        *,
        keep: bool,
    ) -> None:
        loaded: list[tuple[ObjectKey, bytes]] = []
        for key, size in loads:
            reason = "not_found"
            if not self.l1.fits([*(len(data) for _, data in loaded), size]):
                reason = "l1_oom"
            elif (data := l2.load(key, size)) is not None:
                loaded.append((key, bytes(len(data)) if self.faults.l2_garbage else data))
                continue
            self.counters.load_failed(key.model_name, reason)
        self.counters.loaded(salt, len(loads), len(loaded))
        self.counters.l1("write", salt, len(loaded))
        if not keep:
            self.counters.l1("evicted", salt, len(loaded))
        for key, data in loaded:
            found[key] = (data, True)
            if keep:
                self.l1.put(key, data, now)
                self.events += 1

    def _count_hit(
        self, result: Lookup, keys: list[list[ObjectKey]], found: dict[ObjectKey, tuple[bytes, bool]]
    ) -> None:
        """Tokens count as L1's up to the first chunk that needed L2; keys count by where they were."""
        size = self.spec.chunk_size
        leading = next((i for i, from_l2 in enumerate(result.from_l2) if from_l2), result.hit)
        used = [key for chunk in keys[: result.hit] for key in chunk]
        l2_keys = sum(found[key][1] for key in used)
        self.counters.hit(
            keys[0][0].model_name,
            keys[0][0].salt,
            tokens=result.hit * size,
            l1_tokens=leading * size,
            l2_tokens=(result.hit - leading) * size,
            l1_keys=len(used) - l2_keys,
            l2_keys=l2_keys,
        )

    def retrieved(self, instance_ids: Sequence[int], model_name: str, salt: str, objects: int) -> None:
        """Each worker has copied `objects` of its chunks' objects into the engine's blocks."""
        for instance_id in instance_ids:
            self.counters.retrieved(instance_id, model_name, salt, objects)

    # --- store ----------------------------------------------------------------------------------------------

    def store(
        self,
        instance_ids: Sequence[int],
        model_name: str,
        layout: KVLayout,
        chunks: Sequence[tuple[str, list[bytes]]],
        salt: str,
        now: float,
    ) -> bool:
        """Take chunks (hash, objects) into L1 and queue them for L2. False if L1 had no room for all of them."""
        objects = [
            (key, data)
            for chunk_hash, parts in chunks
            for key, data in zip(self._chunk_keys(model_name, layout, chunk_hash, salt), parts, strict=True)
        ]
        self.counters.store_submitted(len(instance_ids))
        if not self.l1.fits(len(data) for key, data in objects if key not in self.l1):
            self.counters.store_refused(model_name, len(objects))
            return False
        for key, data in objects:
            self.l1.put(key, data, now)
            self.counters.accessed(key, now)
        self.events += len(objects)
        self.counters.l1("write", salt, len(objects))
        self.counters.store_finished(instance_ids, model_name)
        if self.l2 is not None:
            self.counters.l2_submitted(salt, len(objects))
            self.queue.append(_StoreTask(objects, salt, now + self.spec.l2_store_delay_seconds))
            self._drain(now)
        return True

    def _drain(self, now: float) -> None:
        """Write what is due to L2."""
        if self.l2 is None or self.faults.stores_stuck:
            return
        due = [task for task in self.queue if task.due <= now]
        self.queue = [task for task in self.queue if task.due > now]
        if self.faults.stores_never_complete:
            return
        for task in due:
            done = 0
            for key, data in task.objects:
                try:
                    self.l2_usage += self.l2.store(key, data, now)
                except OSError:
                    continue
                done += 1
            self.counters.l2_completed(task.salt, done)

    @property
    def pending(self) -> tuple[int, int]:
        """(keys that wait, tasks in flight) of the store controller."""
        waiting = sum(len(task.objects) for task in self.queue[1:])
        return waiting, min(1, len(self.queue))

    # --- operator's calls -----------------------------------------------------------------------------------

    def delete(self, keys: Sequence[ObjectKey], tier: str, now: float) -> int:
        """What `DELETE /cache/objects` reports as deleted: found objects of L1, asked objects of L2."""
        self.advance(now)
        if self.faults.delete_lies:
            return len(keys)
        count = 0
        if tier in {"l1", "all"}:
            count += sum(self._forget(key, now) for key in keys)
        if tier in {"l2", "all"}:
            for key in keys if self.l2 is not None else ():
                self.l2_usage = max(0, self.l2_usage - (self.l2.delete(key) if self.l2 else 0))
            count += len(keys)
        return count

    def clear(self, now: float) -> None:
        """Empty L1."""
        self.advance(now)
        if not self.faults.clear_lies:
            for key in list(self.l1):
                self._forget(key, now)

    def prefetch(self, model_name: str, world_size: int, tokens: Sequence[int], salt: str, now: float) -> str | None:
        """Load a prompt's chunks into L1 and keep them. The job's id; None for a prompt without a whole chunk.

        Raises `LookupError` if no engine of (model, world size) is registered.
        """
        self.advance(now)
        layout = self.find_layout(model_name, world_size)
        if layout is None:
            raise LookupError(f"no layout registered for model_name={model_name!r} world_size={world_size}")
        hashes = chunk_hashes(tokens, self.spec.chunk_size)
        if not hashes:
            return None
        keys = [self._chunk_keys(model_name, layout, h, salt) for h in hashes]
        found = self._fetch(keys, layout, salt, now, keep=True)
        job = f"{self._rng.getrandbits(128):032x}"
        self.prefetches[job] = Prefetch(now, len(found), sum(map(len, keys)))
        return job

    def _forget(self, key: ObjectKey, now: float) -> bool:
        gone = self.l1.delete(key, now)
        if gone is None:
            return False
        self.events += 1
        self.counters.left_l1(key, gone)
        return True
