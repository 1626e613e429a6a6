"""A small true world for model-based tests: a server, engines, a disk, and a panel that polls when it can.

Everything a panel could see is derived from what really happened, so a test can compare judgement and truth.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from app.lmcache.layouts import KVLayout, ObjectGroup
from app.records.polls import PollSpan

MODEL = "/models/tiny"
REAP = 120.0
POLL = 10.0


def layout(dtype: str = "bfloat16", *, chunk: int = 64, version: str = "0.5.6", shape: str | None = None) -> KVLayout:
    """A layout of the tiny model; 512 bytes a token."""
    return KVLayout(
        model_name=MODEL,
        world_size=1,
        chunk_size=chunk,
        dtype=dtype,
        kv_cache_dtype="auto",
        bytes_per_token=512,
        tokens_per_block=32,
        groups=(ObjectGroup(0, 2, 32, 32, dtype, False),),
        serde="none",
        engine_kv_shape=shape,
        lmcache_version=version,
    )


LAYOUTS = (layout(), layout("float16"), layout(chunk=128))


@dataclass
class Engine:
    """One engine of the world. `known`: registered in the panel. Times are true time."""

    index: int
    known: bool
    layout: KVLayout | None = None  # None: not running
    process_start: float = 0.0
    registers_at: float = 0.0
    context: str | None = None


@dataclass(frozen=True)
class Written:
    """A record of the world: when it appeared (file system clock), and what wrote it."""

    mtime: float
    layout: KVLayout
    size: int
    damaged: bool = False


@dataclass
class World:
    """`server_offset`: panel clock minus server clock. `disk_offset`: file system clock minus panel clock."""

    server_offset: float = 0.0
    disk_offset: float = 0.0
    offset_error: float = 0.0
    now: float = 10_000.0
    server_start: float = 5_000.0
    instance: int = 1
    fixed_instance: bool = False
    metrics: bool = True  # False: the panel cannot read the metrics (no instance id, no starts, no series)
    engines: list[Engine] = field(default_factory=lambda: [Engine(0, True), Engine(1, True), Engine(2, False)])
    contexts: dict[str, tuple[KVLayout, float | None]] = field(default_factory=dict)  # layout, dropped at
    series: set[str] = field(default_factory=set)
    queue: list[tuple[float, Written]] = field(default_factory=list)  # appears at
    disk: list[Written] = field(default_factory=list)
    spans: list[PollSpan] = field(default_factory=list)
    _next_context: int = 0

    # what happens

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.queue.sort(key=lambda item: item[0])
        while self.queue and self.queue[0][0] <= self.now:
            at, record = self.queue.pop(0)
            self.disk.append(replace(record, mtime=at + self.disk_offset))
        for ident, (_, dropped_at) in list(self.contexts.items()):
            if dropped_at is not None and dropped_at <= self.now:
                del self.contexts[ident]
        for engine in self.engines:
            if engine.layout is not None and engine.context is None and engine.registers_at <= self.now:
                engine.context = f"c{self._next_context}"
                self._next_context += 1
                self.contexts[engine.context] = (engine.layout, None)

    def start(self, index: int, layout: KVLayout, boot: float) -> None:
        """(Re)starts an engine; its old context stays listed until it is reaped."""
        self.stop(index)
        engine = self.engines[index]
        engine.layout = layout
        engine.process_start = self.now
        engine.registers_at = self.now + boot

    def stop(self, index: int) -> None:
        engine = self.engines[index]
        if engine.context is not None and engine.context in self.contexts:
            self.contexts[engine.context] = (self.contexts[engine.context][0], self.now + REAP)
        engine.layout, engine.context = None, None

    def unregister(self, index: int) -> None:
        """An engine leaves properly: its context is gone at once, its last chunks may still be queued."""
        context = self.engines[index].context
        self.stop(index)
        # Without metrics an engine that came and left between two polls leaves no trace at all; real ones take longer.
        if context is not None and self.metrics:
            self.contexts.pop(context, None)

    def restart_server(self, heartbeat: float) -> None:
        """The process, its queue, its contexts and its series are gone; running engines register again."""
        self.server_start = self.now
        self.instance += 1
        self.contexts.clear()
        self.series.clear()
        self.queue.clear()
        for engine in self.engines:
            engine.context = None
            engine.registers_at = max(engine.registers_at, self.now + heartbeat)

    def write(self, index: int, delay: float, *, damaged: bool = False) -> None:
        """An engine stores a chunk; its file appears `delay` seconds later unless the server dies before."""
        engine = self.engines[index]
        if engine.context is None or engine.layout is None:
            return
        self.series.add(engine.context)
        size = (engine.layout.chunk_size or 0) * (engine.layout.bytes_per_token or 0)
        record = Written(0.0, engine.layout, size // 2 if damaged else size, damaged)
        self.queue.append((self.now + delay, record))

    # what the panel sees

    def poll(self) -> None:
        seen = PollSpan(
            first_at=self.now,
            last_at=self.now,
            instance_id=None if not self.metrics else "fixed" if self.fixed_instance else f"i{self.instance}",
            raw_start=self.server_start - self.server_offset if self.metrics else None,
            process_start=self.server_start + self.offset_error if self.metrics else None,
            lmcache_version="0.5.6",
            contexts={ident: layout for ident, (layout, _) in self.contexts.items()},
            engine_starts={
                str(engine.index): engine.process_start + self.offset_error if engine.layout is not None else None
                for engine in self.engines
                if engine.known
            },
            engine_ids=frozenset(self.series) if self.metrics else None,
            drained=not self.queue,
            reap_timeout=REAP,
        )
        last = self.spans[-1] if self.spans else None
        if last is not None and last.ok and self.now - last.last_at <= 3 * POLL:
            compared = replace(seen, first_at=last.first_at, last_at=last.last_at)
            if compared == last or replace(compared, drained=True) == last:
                self.spans[-1] = replace(last, last_at=self.now)
                return
        self.spans.append(seen)

    def fail_poll(self) -> None:
        self.spans.append(PollSpan(self.now, self.now, ok=False))

    @property
    def live(self) -> set[KVLayout]:
        """Layouts that are registered now (an engine that is still booting has not read or written anything yet)."""
        return {layout for layout, _ in self.contexts.values()}
