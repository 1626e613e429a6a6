"""Everything the rules look at, gathered before and frozen: the two sides of a pair, the stores, the host, the texts.

None means "not known"; where that matters a `…_reason` says why. Nothing here fetches anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.lmcache.configuration import AdapterConfig, ServerConfig
from app.lmcache.in_process import InProcessConfig
from app.lmcache.in_process_log import InProcessLog
from app.lmcache.metrics import ServerMetrics
from app.lmcache.server_log import ServerLogFacts
from app.lmcache.status import ServerStatus
from app.vllm.client import ModelCard
from app.vllm.facts import EngineFacts
from app.vllm.metrics import EngineMetrics
from app.vllm.startup_log import StartupFacts
from app.vllm.startup_notes import StartupNotes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    """A value and where it was read."""

    value: T
    origin: str


@dataclass(frozen=True)
class ServerSide:
    """One cache server. `planned`: known from its command line only, it may not run yet.

    `local`: on the panel's own host, so that its memory and its file systems are the ones measured here. `answers_from`
    lists addresses beyond loopback at which its HTTP port answered without a key, None where that was not tried;
    `key_refused`: one of them was answered, and the answer was that a key is needed. `environment` are variables known
    from a container or a pasted text. `mistaken_for`: what answers at its address where that is known to be no cache
    server; nothing else is known then.
    """

    name: str
    url: str | None = None
    reachable: bool = False
    planned: bool = False
    local: bool = False
    version: str | None = None
    config: ServerConfig | None = None
    config_reason: str | None = None
    status: ServerStatus | None = None
    status_reason: str | None = None
    metrics: ServerMetrics | None = None
    metrics_reason: str | None = None
    metrics_status: int | None = None
    answers_from: tuple[str, ...] | None = None
    key_refused: bool = False
    mistaken_for: str | None = None
    log: ServerLogFacts | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def process_start(self) -> float | None:
        return self.metrics.process_start_time if self.metrics is not None else None


@dataclass(frozen=True)
class EngineSide:
    """One engine. `planned` and `mistaken_for` as in `ServerSide`. `facts` come from ``/server_info`` or its command
    line.
    """

    name: str
    url: str | None = None
    reachable: bool = False
    planned: bool = False
    local: bool = False
    version: str | None = None
    models: tuple[ModelCard, ...] | None = None
    facts: EngineFacts | None = None
    facts_reason: str | None = None
    metrics: EngineMetrics | None = None
    metrics_reason: str | None = None
    metrics_status: int | None = None
    log: StartupFacts | None = None
    notes: StartupNotes | None = None
    transfers: InProcessLog | None = None
    mistaken_for: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def process_start(self) -> float | None:
        return self.metrics.process_start_time if self.metrics is not None else None


@dataclass(frozen=True, slots=True)
class WriteProbe:
    """One real write. `state`: written, refused (with `errno_name` and `detail`), not_tried (with `detail`).

    `direct`: O_DIRECT was used; `size` bytes were written.
    """

    state: str
    detail: str
    direct: bool = False
    size: int = 0
    errno_name: str | None = None


@dataclass(frozen=True, slots=True)
class OtherUser:
    """Another server whose configuration names the same directory."""

    name: str
    chunk_size: int | None
    evicts: bool


@dataclass(frozen=True)
class StoreSide:
    """One L2 adapter of the server and what this host sees of its directory.

    `path` is where this host finds the directory, None where it does not (`unseen_reason`), or where another one than
    the store's lies there (`refused`: the reason says the way out). `fs_type`, `mount_point`
    and `device` are of the mount. `is_root`: it lies on the file system of ``/``. `policies` are the names of enabled
    policies of the store that keep it from growing, None where the panel keeps no record of it; `policies_known` is
    false where no panel was asked.
    """

    adapter: AdapterConfig
    path: str | None = None
    unseen_reason: str | None = None
    refused: bool = False
    fs_type: str | None = None
    mount_point: str | None = None
    device: str | None = None
    is_root: bool = False
    in_container: bool = False
    block_size: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    temp_same_device: bool | None = None
    probe: WriteProbe | None = None
    record_sizes: tuple[int, ...] = ()
    policies: tuple[str, ...] | None = None
    policies_known: bool = True
    shared_with: tuple[OtherUser, ...] = ()

    @property
    def subject(self) -> str:
        return self.adapter.base_path or f"adapter {self.adapter.index} ({self.adapter.type or 'type not told'})"


def where_it_lies(store: StoreSide) -> str:
    """The way out where a directory is not seen: none to add where another one was refused, the reason has it."""
    return "" if store.refused else "register the store with the path where this host finds it"


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of the panel's own host, bytes. `limit_bytes` is this container's limit where there is one."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None = None
    unified: bool | None = None

    @property
    def usable_bytes(self) -> int:
        return min(self.total_bytes, self.limit_bytes) if self.limit_bytes else self.total_bytes


@dataclass(frozen=True)
class Container:
    """One container of a compose file or a ``docker run`` line. `role`: server, engine or other.

    `waits_for` are (service, condition) pairs; `has_health_check` whether it defines one.
    """

    name: str
    role: str
    image: str | None
    ipc: str | None
    network: str | None
    environment: Mapping[str, str]
    waits_for: tuple[tuple[str, str], ...] = ()
    has_health_check: bool = False
    shm_size: str | None = None
    origin: str = "compose file"


@dataclass(frozen=True)
class Facts:
    """All of one server-engine pair. Either side may be missing: an in-process engine has no server."""

    server: ServerSide | None = None
    engine: EngineSide | None = None
    stores: tuple[StoreSide, ...] = ()
    memory: HostMemory | None = None
    containers: tuple[Container, ...] = ()
    in_process: InProcessConfig | None = None
    engines_of_server: int | None = None
    other_engines: tuple[EngineSide, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def server_name(self) -> str:
        return self.server.name if self.server is not None else "cache server"

    @property
    def engine_name(self) -> str:
        return self.engine.name if self.engine is not None else "engine"

    @property
    def pair_name(self) -> str:
        return f"{self.server_name} · {self.engine_name}" if self.engine is not None else self.server_name
