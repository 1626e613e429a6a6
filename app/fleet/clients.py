"""Clients of registered targets: the one place that knows what it takes to reach them (key, headers, certificates)."""

from __future__ import annotations

from app.fleet.targets import EngineTarget, ServerTarget
from app.lmcache.client import LMCacheClient
from app.vllm.client import VLLMClient


def server_client(target: ServerTarget, *, connect_timeout: float = 2.0, read_timeout: float = 5.0) -> LMCacheClient:
    """Timeouts in seconds; the defaults are those of a target that is slow but alive."""
    return LMCacheClient(
        target.url,
        api_key=target.api_key,
        headers=target.headers,
        tls=target.tls,
        connect_timeout=connect_timeout,
        read_timeout=read_timeout,
    )


def engine_client(
    target: EngineTarget, *, connections: int = 64, connect_timeout: float = 2.0, read_timeout: float = 5.0
) -> VLLMClient:
    """`connections`: requests that may be under way at once; `read_timeout`: seconds of silence."""
    return VLLMClient(
        target.url,
        api_key=target.api_key,
        headers=target.headers,
        tls=target.tls,
        connections=connections,
        connect_timeout=connect_timeout,
        read_timeout=read_timeout,
    )
