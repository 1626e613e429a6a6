"""What answers at an address, and what to enter instead. Only harmless GETs of the clients' allow-lists are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from app.errors import TargetError
from app.fleet.addresses import Address
from app.fleet.schemas import ProbeView
from app.lmcache.client import LMCacheClient
from app.lmcache.metrics import ServerMetrics
from app.lmcache.status import ServerStatus
from app.vllm.client import VLLMClient
from app.vllm.facts import EngineFacts
from app.vllm.metrics import EngineMetrics
from app.wire.tls import SYSTEM, Tls

T = TypeVar("T")
LMCACHE_HTTP_PORT = 8080


@dataclass(frozen=True)
class Findings:
    """Each call's answer, or None; `errors` says why not, by call."""

    greeting: str | None = None
    status: ServerStatus | None = None
    server_version: str | None = None
    server_metrics: ServerMetrics | None = None
    engine_version: str | None = None
    model_names: tuple[str, ...] = ()
    engine_metrics: EngineMetrics | None = None
    facts: EngineFacts | None = None
    errors: Mapping[str, TargetError] = field(default_factory=dict)


async def find(address: Address, *, api_key: str | None, headers: Mapping[str, str], tls: Tls = SYSTEM) -> Findings:
    """Asks everything that tells them apart; never raises for trouble with the target."""
    errors: dict[str, TargetError] = {}

    async def ask(name: str, call: Callable[[], Awaitable[T]]) -> T | None:
        try:
            return await call()
        except TargetError as error:
            errors[name] = error
            return None

    async with (
        LMCacheClient(address.url, api_key=api_key, headers=headers, tls=tls) as server,
        VLLMClient(address.url, api_key=api_key, headers=headers, tls=tls) as engine,
    ):
        greeting = await ask("/", server.greeting)
        if "/" in errors and errors["/"].kind in ("refused", "dns", "timeout", "tls"):
            return Findings(errors=errors)
        status, version, metrics = await asyncio.gather(
            ask("/status", server.status), ask("/version", server.version), ask("/metrics", server.metrics)
        )
        engine_version, models, engine_metrics, facts = await asyncio.gather(
            ask("/version (vLLM)", engine.version),
            ask("/v1/models", engine.models),
            ask("/metrics (vLLM)", engine.metrics),
            ask("/server_info", engine.server_info),
        )
    return Findings(
        greeting=greeting,
        status=status,
        server_version=version,
        server_metrics=metrics,
        engine_version=engine_version,
        model_names=tuple(card.root or card.id for card in models or ()),
        engine_metrics=engine_metrics,
        facts=facts,
        errors=errors,
    )


def judge(address: Address, found: Findings) -> ProbeView:
    """What it is, and what to enter. Pure."""
    if found.status is not None or (found.greeting or "").startswith("LMCache HTTP"):
        return _lmcache(address, found)
    if "oordinator" in (found.greeting or ""):
        return _view(
            address,
            "lmcache_coordinator",
            "An LMCache coordinator",
            "A coordinator holds no cache: enter the HTTP address of each of its cache servers (by default port 8080).",
            evidence=[f"GET / names itself {found.greeting!r}"],
        )
    engine = found.engine_metrics is not None and found.engine_metrics.any_vllm_series
    if engine or (found.engine_version is not None and found.model_names):
        return _engine(address, found)
    if found.server_metrics is not None and found.server_metrics.any_lmcache_series:
        instead = _with_port(address, LMCACHE_HTTP_PORT)
        return _view(
            address,
            "lmcache_prometheus_only",
            "Only the Prometheus port of an LMCache server",
            "Metrics are served here, but no /status. The panel needs the server's HTTP front end: start it with "
            f"`lmcache server` (it listens on port {LMCACHE_HTTP_PORT} by default) and enter that address.",
            suggested_url=instead,
            evidence=["/metrics holds lmcache_mp series", _error(found, "/status")],
        )
    return _nothing_known(address, found)


def _lmcache(address: Address, found: Findings) -> ProbeView:
    status = found.status
    evidence = [f"GET / names itself {found.greeting!r}"] if found.greeting else []
    models: list[str] = []
    detail = "An LMCache server with its HTTP front end: add it as a cache server."
    if status is not None:
        models = sorted({layout.model_name for layout in status.contexts.values() if layout.model_name})
        evidence.append(f"/status says is_healthy: {str(status.is_healthy).lower()}")
        if status.engines_registered == 0:
            detail += " No engine is registered with it at the moment."
    else:
        detail += f" Its /status cannot be used just now ({_error(found, '/status')})."
    if found.server_metrics is None:
        evidence.append(_error(found, "/metrics"))
        detail += " It serves no /metrics here, so there will be no hit rate."
    return _view(
        address,
        "lmcache_http",
        "An LMCache cache server",
        detail,
        version=found.server_version,
        model_names=models,
        register_as="server",
        suggested_url=address.url,
        evidence=evidence,
    )


def _engine(address: Address, found: Findings) -> ProbeView:
    metrics, facts = found.engine_metrics, found.facts
    in_process = bool(metrics and metrics.in_process)
    lookups = metrics is not None and metrics.lookup_seconds_count is not None
    connector = facts.kv_connector if facts is not None else None
    evidence = ["/metrics holds vllm series"] if metrics is not None and metrics.any_vllm_series else []
    if connector:
        evidence.append(f"/server_info names the KV connector {connector!r}")
    if lookups:
        evidence.append("/metrics holds look-ups of an LMCache server")
    detail = "A vLLM engine: add it as an engine."
    if in_process:
        evidence.append("/metrics holds lmcache series of its own")
        detail += " LMCache runs inside it, not as a cache server: L1 and its disk tier cannot be watched from here."
    elif not connector and not lookups:
        detail += " No KV connector can be seen; without one it does not use the cache server."
    if facts is None:
        detail += " Dev mode is off, so its prefix cache cannot be reset (VLLM_SERVER_DEV_MODE=1 opens that)."
    with_connector = bool(connector) or lookups or in_process
    return _view(
        address,
        "vllm_with_connector" if with_connector else "vllm",
        "A vLLM engine with a KV connector" if with_connector else "A vLLM engine",
        detail,
        version=found.engine_version,
        model_names=list(dict.fromkeys(found.model_names)),
        register_as="engine",
        suggested_url=address.url,
        evidence=evidence,
    )


def _nothing_known(address: Address, found: Findings) -> ProbeView:
    first = next(iter(found.errors.values()), None)
    if first is not None and "/" in found.errors and first.kind in ("refused", "dns", "timeout", "tls"):
        hints = {
            "refused": "Nothing listens there, or it listens on 127.0.0.1 of its own host only (--http-host).",
            "dns": "The host name is not known to the panel's host.",
            "timeout": "Something takes connections or drops them silently: a firewall, a hanging process, or a port "
            "that does not speak HTTP (LMCache's 5555 is ZMQ; its HTTP port is 8080).",
            "tls": "No secure connection: try http:// instead of https://, or give the CA that signed its certificate.",
        }
        detail = f"{hints[first.kind]} It can be added all the same and is shown as unreachable until it answers."
        return _view(address, "nothing", "Nothing answers there", detail, evidence=[first.detail])
    evidence = [f"{call}: {error.detail}" for call, error in list(found.errors.items())[:4]]
    return _view(
        address,
        "other",
        "Something else answers there",
        "It is neither an LMCache server nor a vLLM engine. A cache server's HTTP port is 8080 by default, an engine's "
        "is 8000.",
        evidence=evidence,
    )


def _error(found: Findings, call: str) -> str:
    error = found.errors.get(call)
    return f"{call} gave no answer" if error is None else error.detail


def _with_port(address: Address, port: int) -> str | None:
    if address.port == port:
        return None
    parts = urlsplit(address.url)
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{parts.scheme}://{host}:{port}{parts.path}"


def _view(address: Address, kind: str, title: str, detail: str, **more: Any) -> ProbeView:
    return ProbeView.model_validate(
        {
            "url": address.url,
            "kind": kind,
            "title": title,
            "detail": detail,
            "model_names": [],
            "register_as": None,
            "suggested_url": None,
            "evidence": [],
            **more,
        }
    )
