"""What telemetry knows of the targets, as fleet's views show it.

Telemetry implements `LiveSource` and attaches itself; fleet never imports telemetry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from app.fleet.load_schemas import DiskView, EngineLoadView, InProcessView, ServerLoadView
from app.fleet.schemas import (
    CrossCheckView,
    EngineFactsView,
    FilesystemView,
    HitRateView,
    L0View,
    L1View,
    L2View,
    LayoutView,
    LightView,
    PrefixCacheView,
)


@dataclass(frozen=True)
class ServerLive:
    """The last reading of one server. Times are epoch seconds; `scraped_at` is when the values were true."""

    polled_at: float | None = None
    scraped_at: float | None = None
    last_error: str | None = None
    http_up: bool | None = None
    engine_up: bool | None = None
    engines_registered: int | None = None
    lights: tuple[LightView, ...] = ()
    version: str | None = None
    instance_id: str | None = None
    process_start: float | None = None
    restarted_at: float | None = None
    chunk_size: int | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    l1: L1View = field(default_factory=lambda: L1View(reason="not polled yet"))
    hit_rate: HitRateView = field(default_factory=lambda: HitRateView(reason="not polled yet"))
    hit_rate_check: CrossCheckView = field(default_factory=CrossCheckView)
    layouts: tuple[LayoutView, ...] = ()
    l2: tuple[L2View, ...] = ()
    warnings: tuple[str, ...] = ()
    load: ServerLoadView = field(default_factory=ServerLoadView)
    #: Every model name (path) this server was ever seen to register.
    model_names: frozenset[str] = frozenset()
    #: The model names registered at the last good poll.
    live_model_names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class EngineLive:
    """The last reading of one engine."""

    polled_at: float | None = None
    scraped_at: float | None = None
    last_error: str | None = None
    http_up: bool | None = None
    version: str | None = None
    process_start: float | None = None
    model_names: tuple[str, ...] = ()
    model_roots: tuple[str, ...] = ()
    max_model_len: int | None = None
    l0: L0View = field(default_factory=lambda: L0View(reason="not polled yet"))
    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    prefix_cache: PrefixCacheView = field(default_factory=lambda: PrefixCacheView(reason="not polled yet"))
    reset_available: bool | None = None
    reset_reason: str | None = None
    connector: bool | None = None
    facts: EngineFactsView = field(default_factory=EngineFactsView)
    warnings: tuple[str, ...] = ()
    load: EngineLoadView = field(default_factory=EngineLoadView)
    in_process: InProcessView | None = None


@dataclass(frozen=True)
class StoreLive:
    """The last look at a store's directory."""

    checked_at: float | None = None
    usable: bool | None = None
    usable_reason: str | None = None
    filesystem: FilesystemView = field(default_factory=FilesystemView)
    disk: DiskView = field(default_factory=DiskView)


class LiveSource(Protocol):
    """Last readings by row id; a target without one is simply absent. Each call is one short read session."""

    def servers_live(self, ids: Collection[int]) -> Mapping[int, ServerLive]: ...

    def engines_live(self, ids: Collection[int]) -> Mapping[int, EngineLive]: ...

    def stores_live(self, ids: Collection[int]) -> Mapping[int, StoreLive]: ...


class NothingKnown:
    """The source before telemetry is attached (commands that never poll)."""

    def servers_live(self, ids: Collection[int]) -> Mapping[int, ServerLive]:
        return {}

    def engines_live(self, ids: Collection[int]) -> Mapping[int, EngineLive]:
        return {}

    def stores_live(self, ids: Collection[int]) -> Mapping[int, StoreLive]:
        return {}
