"""Fetches the facts: network and disk, never inside a database session. The only impure part before the verdicts.

All servers and engines of a run are read at the same time; what one does not answer is a reason in its reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from app.checks import host
from app.checks.assemble import NO_TEXTS, EngineLook, ServerLook, StoreLook, Texts, record_sizes
from app.errors import StoreError, TargetError
from app.fleet.targets import StoreTarget
from app.lmcache.client import LMCacheClient, ServerReading, poll_server
from app.lmcache.configuration import AdapterConfig
from app.records.store_dir import StoreDirectory, open_store
from app.records.store_directories import AnotherDirectory
from app.vllm.client import EngineReading, VLLMClient, poll_engine
from app.wire import own_host
from app.wire.tls import SYSTEM, UNVERIFIED, Tls

#: What may answer at the other's address.
ENGINE, CACHE_SERVER = "a vLLM engine", "an LMCache cache server"
_ALL_INTERFACES = ("0.0.0.0", "::", "")  # noqa: S104
_MOST_ADDRESSES = 3


@dataclass(frozen=True)
class ServerRequest:
    """A server to look at. `stores`: the server's name for a directory -> (the store, policies that bound it), None
    where no panel was asked for it.

    `probe`: whether its stores may be written to for a moment.
    """

    name: str
    url: str
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: Tls = SYSTEM
    stores: Mapping[str, tuple[StoreTarget, tuple[str, ...]]] | None = None
    texts: Texts = NO_TEXTS
    probe: bool = True


@dataclass(frozen=True)
class EngineRequest:
    """An engine to look at."""

    name: str
    url: str
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: Tls = SYSTEM
    texts: Texts = NO_TEXTS


def gather(
    servers: Sequence[ServerRequest], engines: Sequence[EngineRequest], *, write_probe: bool
) -> tuple[list[ServerLook], list[EngineLook]]:
    """Look at all of them, in the order given. Network first, then the disk; call it in a worker thread."""
    addresses = own_host.own_addresses()
    found = asyncio.run(_read(servers, engines, addresses))
    looks = [
        replace(look, stores=_stores(request, look, write_probe and request.probe))
        for request, look in zip(servers, found[0], strict=True)
    ]
    return looks, found[1]


async def _read(
    servers: Sequence[ServerRequest], engines: Sequence[EngineRequest], addresses: tuple[str, ...]
) -> tuple[list[ServerLook], list[EngineLook]]:
    gate = asyncio.Semaphore(16)

    async def one_server(request: ServerRequest) -> ServerLook:
        async with gate:
            return await _server(request, addresses)

    async def one_engine(request: EngineRequest) -> EngineLook:
        async with gate:
            return await _engine(request, addresses)

    looks = await asyncio.gather(
        asyncio.gather(*(one_server(item) for item in servers)), asyncio.gather(*(one_engine(item) for item in engines))
    )
    return list(looks[0]), list(looks[1])


async def _server(request: ServerRequest, addresses: tuple[str, ...]) -> ServerLook:
    async with LMCacheClient(request.url, api_key=request.api_key, headers=request.headers, tls=request.tls) as client:
        reading = await poll_server(client)
    parts = urlsplit(request.url)
    local = own_host.is_local(parts.hostname or "", addresses)
    answered, key_refused = await _open_addresses(request.url, reading, local, addresses)
    return ServerLook(
        name=request.name,
        url=request.url,
        reading=reading,
        local=local,
        answers_from=answered,
        key_refused=key_refused,
        mistaken_for=await _mistaken_server(request, reading),
        texts=request.texts,
    )


async def _engine(request: EngineRequest, addresses: tuple[str, ...]) -> EngineLook:
    async with VLLMClient(request.url, api_key=request.api_key, headers=request.headers, tls=request.tls) as client:
        reading = await poll_engine(client)
    return EngineLook(
        name=request.name,
        url=request.url,
        reading=reading,
        local=own_host.is_local(urlsplit(request.url).hostname or "", addresses),
        mistaken_for=await _mistaken_engine(request, reading),
        texts=request.texts,
    )


async def _mistaken_server(request: ServerRequest, reading: ServerReading) -> str | None:
    """What answers there instead of a cache server; None where it is one, or where nothing says what it is."""
    named = reading.metrics is not None and reading.metrics.any_lmcache_series
    if not reading.http_up or reading.status is not None or reading.config is not None or named:
        return None
    async with VLLMClient(request.url, api_key=request.api_key, headers=request.headers, tls=request.tls) as client:
        with suppress(TargetError):
            if (await client.metrics()).any_vllm_series:
                return ENGINE
        with suppress(TargetError):
            if await client.models() and await client.version():
                return ENGINE
    return None


async def _mistaken_engine(request: EngineRequest, reading: EngineReading) -> str | None:
    """What answers there instead of an engine; None where it is one, or where nothing says what it is."""
    named = reading.metrics is not None and reading.metrics.any_vllm_series
    if not reading.http_up or named or reading.models:
        return None
    async with LMCacheClient(request.url, api_key=request.api_key, headers=request.headers, tls=request.tls) as client:
        with suppress(TargetError):
            if ((await client.greeting()) or "").startswith("LMCache HTTP"):
                return CACHE_SERVER
        with suppress(TargetError):
            if (await client.status()).chunk_size:
                return CACHE_SERVER
    return None


async def _open_addresses(
    url: str, reading: ServerReading, local: bool, addresses: tuple[str, ...]
) -> tuple[tuple[str, ...] | None, bool]:
    """(addresses beyond loopback at which the port answers without a key, whether it asked for one there); None where
    there is nothing to try.

    Only the very port that just answered HTTP is tried: a request to a message port would end the server's messages.
    """
    parts = urlsplit(url)
    if not reading.http_up or reading.config is None:
        return None, False
    if local and reading.config.http_host in _ALL_INTERFACES:
        hosts = list(addresses[:_MOST_ADDRESSES])
    elif not local and parts.hostname:
        hosts = [parts.hostname]
    else:
        return None, False
    port = parts.port or (443 if parts.scheme == "https" else 80)
    answered: list[str] = []
    key_refused = False
    for name in hosts:
        shown = f"[{name}]" if ":" in name else name
        try:
            # No key is sent, and whether it answers at all is the question: its certificate need not hold this name.
            target = f"{parts.scheme}://{shown}:{port}{parts.path.rstrip('/')}"
            async with LMCacheClient(target, connect_timeout=1.0, read_timeout=2.0, tls=UNVERIFIED) as client:
                await client.healthcheck()
            answered.append(f"{shown}:{port}")
        except TargetError as error:
            key_refused = key_refused or error.http_status in (401, 403)
    return tuple(answered), key_refused


def _stores(request: ServerRequest, look: ServerLook, write_probe: bool) -> dict[int, StoreLook]:
    config = look.reading.config
    if config is None:
        return {}
    sizes = record_sizes(look.reading.layouts().values())
    return {adapter.index: _store(request, look, adapter, sizes, write_probe) for adapter in config.adapters}


def _store(
    request: ServerRequest, look: ServerLook, adapter: AdapterConfig, sizes: tuple[int, ...], write_probe: bool
) -> StoreLook:
    base = adapter.base_path
    if base is None:
        return StoreLook(unseen_reason="this adapter has no directory")
    known = request.stores
    registered = known.get(base.rstrip("/") or base) if known is not None else None
    policies = registered[1] if registered is not None else None
    look_back = StoreLook(policies=policies, policies_known=known is not None)
    if registered is None and not look.local:
        return replace(
            look_back, unseen_reason="the directory is on the server's host, and no store here stands for it"
        )
    path = base.rstrip("/")
    if registered is None and (why := host.usable_directory(path)) is not None:
        return replace(look_back, unseen_reason=why)
    try:
        with open_store(registered[0]) if registered is not None else StoreDirectory.open(path) as directory:
            facts = host.store_facts(directory, adapter.relative_tmp_dir)
            probe = None
            if write_probe:
                probe = host.write_probe(
                    directory,
                    adapter.relative_tmp_dir,
                    direct=bool(adapter.use_odirect),
                    size=max(sizes, default=facts.block_size or 4096),
                    block_size=facts.block_size,
                )
    except StoreError as error:
        return replace(look_back, unseen_reason=error.detail, refused=isinstance(error, AnotherDirectory))
    return replace(look_back, facts=facts, probe=probe)
