"""From readings to the facts of one pair. Pure: the readings and looks at the disk are passed in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.checks.facts import (
    Container,
    EngineSide,
    Facts,
    HostMemory,
    OtherUser,
    ServerSide,
    StoreSide,
    WriteProbe,
)
from app.checks.host import StoreFacts
from app.lmcache.client import ServerReading
from app.lmcache.configuration import AdapterConfig
from app.lmcache.in_process import InProcessConfig, parse_in_process, read_variables
from app.lmcache.in_process_log import parse_in_process_log
from app.lmcache.layouts import KVLayout, expected_object_bytes
from app.lmcache.server_log import parse_server_log
from app.vllm.client import EngineReading
from app.vllm.startup_log import parse_startup_log
from app.vllm.startup_notes import parse_startup_notes

_STATUS = re.compile(r"answered (\d{3})\b")


#: How a start-up log is told from other text.
ENGINE_MARKER, SERVER_MARKER = b"non-default args: {", b"Starting LMCache HTTP server on"


@dataclass(frozen=True)
class Texts:
    """Texts that somebody gave for a target; empty where nobody did."""

    log: str = ""
    environment: str = ""
    commands: str = ""


NO_TEXTS = Texts()


@dataclass(frozen=True)
class StoreLook:
    """What was found below one adapter's directory."""

    facts: StoreFacts | None = None
    unseen_reason: str | None = None
    refused: bool = False
    probe: WriteProbe | None = None
    policies: tuple[str, ...] | None = None
    policies_known: bool = True


@dataclass(frozen=True)
class ServerLook:
    """Everything gathered about one server."""

    name: str
    url: str
    reading: ServerReading
    local: bool = False
    answers_from: tuple[str, ...] | None = None
    key_refused: bool = False
    mistaken_for: str | None = None
    stores: Mapping[int, StoreLook] = field(default_factory=dict)
    texts: Texts = NO_TEXTS


@dataclass(frozen=True)
class EngineLook:
    """Everything gathered about one engine."""

    name: str
    url: str
    reading: EngineReading
    local: bool = False
    mistaken_for: str | None = None
    texts: Texts = NO_TEXTS


def server_side(look: ServerLook) -> ServerSide:
    reading = look.reading
    if look.mistaken_for is not None:
        return ServerSide(name=look.name, url=look.url, local=look.local, mistaken_for=look.mistaken_for)
    return ServerSide(
        name=look.name,
        url=look.url,
        reachable=reading.http_up,
        local=look.local,
        version=reading.version,
        config=reading.config,
        config_reason=reading.config_reason,
        status=reading.status,
        status_reason=reading.status_reason or reading.health_reason,
        metrics=reading.metrics,
        metrics_reason=reading.metrics_reason,
        metrics_status=_http_status(reading.metrics_reason),
        answers_from=look.answers_from,
        key_refused=look.key_refused,
        log=parse_server_log(look.texts.log) if look.texts.log else None,
        environment=read_variables(look.texts.environment),
    )


def engine_side(look: EngineLook) -> EngineSide:
    reading, log = look.reading, look.texts.log
    if look.mistaken_for is not None:
        return EngineSide(name=look.name, url=look.url, local=look.local, mistaken_for=look.mistaken_for)
    return EngineSide(
        name=look.name,
        url=look.url,
        reachable=reading.http_up,
        local=look.local,
        version=reading.version,
        models=reading.models,
        facts=reading.facts,
        facts_reason=reading.facts_reason,
        metrics=reading.metrics,
        metrics_reason=reading.metrics_reason or reading.health_reason,
        metrics_status=_http_status(reading.metrics_reason),
        log=parse_startup_log(log) if log else None,
        notes=parse_startup_notes(log) if log else None,
        transfers=parse_in_process_log(log) if log else None,
        environment=read_variables(look.texts.environment),
    )


def facts_of(
    server: ServerLook | None,
    engine: EngineLook | None,
    *,
    memory: HostMemory | None,
    engines_of_server: Sequence[EngineLook] = (),
    other_servers: Sequence[ServerLook] = (),
    containers: Sequence[Container] = (),
    problems: Sequence[str] = (),
) -> Facts:
    """The facts of one pair. `other_servers` are all others the panel knows."""
    own_server = server_side(server) if server is not None else None
    own_engine = engine_side(engine) if engine is not None else None
    for box in containers:
        if box.role == "server" and own_server is not None:
            own_server = replace(own_server, environment={**box.environment, **own_server.environment})
        elif box.role == "engine" and own_engine is not None:
            own_engine = replace(own_engine, environment={**box.environment, **own_engine.environment})
    return Facts(
        server=own_server,
        engine=own_engine,
        stores=stores_of(server, other_servers) if server is not None else (),
        memory=memory,
        containers=tuple(containers),
        in_process=_in_process(engine),
        engines_of_server=len(engines_of_server) or None,
        other_engines=tuple(engine_side(item) for item in engines_of_server if item is not engine),
        problems=tuple(problems),
    )


def _in_process(engine: EngineLook | None) -> InProcessConfig | None:
    return parse_in_process(engine.texts.environment) if engine is not None and engine.texts.environment else None


def stores_of(server: ServerLook, others: Sequence[ServerLook] = ()) -> tuple[StoreSide, ...]:
    """One side per L2 adapter."""
    config = server.reading.config
    if config is None:
        return ()
    sizes = record_sizes(server.reading.layouts().values())
    return tuple(
        _store(adapter, server.stores.get(adapter.index) or StoreLook(), sizes, _sharers(adapter, server, others))
        for adapter in config.adapters
    )


def _store(
    adapter: AdapterConfig, look: StoreLook, sizes: tuple[int, ...], sharers: tuple[OtherUser, ...]
) -> StoreSide:
    side = StoreSide(
        adapter=adapter,
        unseen_reason=look.unseen_reason,
        refused=look.refused,
        probe=look.probe,
        record_sizes=sizes,
        policies=look.policies,
        policies_known=look.policies_known,
        shared_with=sharers,
    )
    seen = look.facts
    if seen is None:
        return side
    return replace(
        side,
        path=seen.path,
        fs_type=seen.fs_type,
        mount_point=seen.mount_point,
        device=seen.device,
        is_root=seen.is_root,
        block_size=seen.block_size,
        total_bytes=seen.total_bytes,
        free_bytes=seen.free_bytes,
        temp_same_device=seen.temp_same_device,
    )


def _sharers(adapter: AdapterConfig, own: ServerLook, others: Sequence[ServerLook]) -> tuple[OtherUser, ...]:
    """Other servers with this directory: of this host by path, else by what both call it on one and the same host."""
    found = []
    mine = own.stores.get(adapter.index)
    for other in others:
        config = other.reading.config
        for theirs in config.adapters if config is not None else ():
            look = other.stores.get(theirs.index)
            seen = (mine.facts if mine else None), (look.facts if look else None)
            if seen[0] is not None and seen[1] is not None:
                same = seen[0].path == seen[1].path
            else:
                same = theirs.base_path == adapter.base_path and own.local == other.local and own.local
            if same and adapter.base_path is not None:
                found.append(OtherUser(other.name, config.chunk_size if config else None, theirs.eviction is True))
                break
    return tuple(found)


def record_sizes(layouts: Iterable[KVLayout]) -> tuple[int, ...]:
    """Sizes of records of these layouts, as far as they are proven."""
    found: set[int] = set()
    for layout in layouts:
        for group in layout.groups:
            size = expected_object_bytes(layout, group.index)
            if size is not None:
                found.add(size)
    return tuple(sorted(found))


def _http_status(reason: str | None) -> int | None:
    match = _STATUS.search(reason or "")
    return int(match[1]) if match else None
