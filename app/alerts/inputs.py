"""What facts are derived from: plain values of one moment, put together by `gather`. Times are epoch seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from app.alerts.model import Subject
from app.alerts.trail import Trail, Window
from app.lmcache.layouts import KVLayout


@dataclass(frozen=True)
class LiveLayout:
    """One KV layout that a server has registered now, by so many contexts (one a worker)."""

    layout: KVLayout
    contexts: int

    @property
    def key(self) -> tuple[str, int]:
        return self.layout.model_name, self.layout.world_size

    @property
    def said(self) -> str:
        """``bfloat16, chunk 64``: for sentences."""
        return f"{self.layout.dtype or 'dtype unknown'}, chunk {self.layout.chunk_size or 'unknown'}"


@dataclass(frozen=True)
class LayoutChange:
    """One change of the layouts of a (model, world size) on a server, as polls showed it."""

    at: float
    model_name: str
    world_size: int
    fields: tuple[str, ...]  # "dtype: bfloat16 → float16"


@dataclass(frozen=True)
class Adapter:
    """One L2 adapter of a server."""

    type: str
    base_path: str | None


@dataclass(frozen=True)
class TargetInput:
    """What is known of any polled target. `health_state` is the damped one; `polled_at` of the last poll, good or not.

    `scraped_at`: when everything that is shown was last true; None: never yet.
    """

    id: int
    name: str
    url: str
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: float = 0.0
    health_state: str = "unknown"
    health_reason: str = ""
    health_since: float = 0.0
    polled_at: float | None = None
    scraped_at: float | None = None
    http_up: bool | None = None
    process_start: float | None = None
    trail: Trail = field(default_factory=Trail, repr=False)

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


@dataclass(frozen=True)
class EngineInput(TargetInput):
    """One engine. `model_names` are all names under which its model may be registered; `in_process` is what LMCache
    inside it says of itself (`InProcessView`), None where it does not run inside."""

    server_id: int | None = None
    model_names: frozenset[str] = frozenset()
    running: float | None = None
    waiting: float | None = None
    connector: bool | None = None
    in_process: Mapping[str, Any] | None = None

    @property
    def subject(self) -> Subject:
        return Subject("engine", self.id, self.name)

    @property
    def up(self) -> bool:
        """It answers, and has answered for as long as damping takes."""
        return self.http_up is True and self.health_state not in ("unreachable", "unknown")


@dataclass(frozen=True)
class ServerInput(TargetInput):
    """One cache server with its engines. `queue` is what the store controller says waits or is in flight."""

    engine_up: bool | None = None
    engines_registered: int | None = None
    hash_algorithm: str | None = None
    restarted_at: float | None = None
    l1_usage_ratio: float | None = None
    l1_trigger_watermark: float | None = None
    l1_object_count: float | None = None
    adapters: Sequence[Adapter] = ()
    queue: float | None = None
    layouts: Sequence[LiveLayout] = ()
    model_names: frozenset[str] = frozenset()
    reap_timeout: float | None = None
    last_change: LayoutChange | None = None
    shares_host: bool | None = None
    resident_bytes: float | None = None
    data_path_proven_at: float | None = None
    engines: Sequence[EngineInput] = ()

    @property
    def subject(self) -> Subject:
        return Subject("server", self.id, self.name)

    @property
    def up(self) -> bool:
        return self.http_up is True and self.health_state not in ("unreachable", "unknown")


@dataclass(frozen=True)
class StoreInput:
    """One store: the last look at its directory, and what its last scan left. None: not known (never scanned)."""

    id: int
    name: str
    path: str
    server_path: str
    server_ids: tuple[int, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: float = 0.0
    usable: bool | None = None
    usable_reason: str | None = None
    checked_at: float | None = None
    total_bytes: float | None = None
    free_bytes: float | None = None
    used_bytes: float | None = None  # None: what is not free is used
    inodes_free: float | None = None
    disk: Mapping[str, Any] | None = None  # DiskView of the last look
    scanned_at: float | None = None
    records: Mapping[str, int] | None = None  # by class; None: never scanned
    wrong: int = 0  # incompatible ones that would be served as wrong answers
    derived: int = 0  # that may have been computed behind wrong ones
    corrupt: int = 0
    blind: str | None = None  # why classes cannot be decided now
    known_at: float | None = None  # when they were last decided, where that is known
    stale_temporaries: int | None = None  # temporary files older than an hour, at the last scan
    growth_per_hour: float | None = None
    growth_reason: str | None = "never scanned"

    @property
    def subject(self) -> Subject:
        return Subject("store", self.id, self.name)


@dataclass(frozen=True)
class RunOutcome:
    """The last cleanup run that ended, of one policy (or by hand) on one store."""

    id: int
    store_id: int
    policy: str | None
    state: str
    verdict: str | None
    finished_at: float
    note: str = ""


@dataclass(frozen=True)
class TestOutcome:
    """The last acceptance run with a verdict, of one engine."""

    __test__ = False

    id: int
    engine_id: int
    verdict: str
    finished_at: float
    headline: str = ""


@dataclass(frozen=True)
class CanaryOutcome:
    """One canary as it was last read back. outcome: ok, lost, drift, wrong, invalid, error or never."""

    engine_id: int
    name: str
    outcome: str
    checked_at: float | None


@dataclass(frozen=True)
class ScheduleInput:
    """One schedule with its last firing; `due` is the first firing time after that one, None while paused."""

    id: int
    name: str
    kind: str
    paused: bool
    due: float | None
    outcome: str | None = None
    detail: str | None = None
    fired_at: float | None = None

    @property
    def subject(self) -> Subject:
        return Subject("schedule", self.id, self.name)


@dataclass(frozen=True)
class NotifierInput:
    """What waits in the outbox for one notifier that is switched on."""

    id: int
    name: str
    waiting: int
    oldest_at: float | None
    error: str | None


@dataclass(frozen=True)
class Moment:
    """Everything, at one moment. `interval` is the poll interval, seconds."""

    now: float
    interval: float
    servers: Mapping[int, ServerInput] = field(default_factory=dict)
    engines: Mapping[int, EngineInput] = field(default_factory=dict)
    stores: Mapping[int, StoreInput] = field(default_factory=dict)
    cleanups: Sequence[RunOutcome] = ()
    tests: Sequence[TestOutcome] = ()
    canaries: Sequence[CanaryOutcome] = ()
    schedules: Sequence[ScheduleInput] = ()
    notifiers: Sequence[NotifierInput] = ()

    def window(self, target: TargetInput, seconds: float) -> Window:
        """What a target counted within the last `seconds`."""
        return target.trail.window(seconds, self.now, self.interval)

    def stores_of(self, server_id: int) -> list[StoreInput]:
        return [store for store in self.stores.values() if server_id in store.server_ids]
