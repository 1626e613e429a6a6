"""What answers at an address, and what to enter instead. Only harmless GETs of the clients' allow-lists are sent."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from app.errors import InvalidInput, TargetError
from app.fleet.addresses import Address, parse_address
from app.fleet.probe_schemas import ProbeView
from app.lmcache.client import LMCacheClient
from app.lmcache.in_process_metrics import IN_PROCESS_CONNECTORS, MULTIPROC_MISSING
from app.lmcache.metrics import ServerMetrics
from app.lmcache.status import ServerStatus
from app.vllm.client import VLLMClient
from app.vllm.facts import EngineFacts
from app.vllm.metrics import EngineMetrics
from app.wire.tls import SYSTEM, Tls

T = TypeVar("T")
LMCACHE_HTTP_PORT = 8080
ENGINE_PORT = 8000
#: As many addresses of a coordinator's cache servers are suggested.
MOST_SUGGESTED = 20


@dataclass(frozen=True)
class Findings:
    """Each call's answer, or None; `errors` says why not, by call. `members`: what a coordinator lists (host, port)."""

    greeting: str | None = None
    status: ServerStatus | None = None
    server_version: str | None = None
    server_metrics: ServerMetrics | None = None
    engine_version: str | None = None
    model_names: tuple[str, ...] = ()
    engine_metrics: EngineMetrics | None = None
    facts: EngineFacts | None = None
    members: tuple[tuple[str, int], ...] | None = None
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
        engine_version, models, engine_metrics, facts, members = await asyncio.gather(
            ask("/version (vLLM)", engine.version),
            ask("/v1/models", engine.models),
            ask("/metrics (vLLM)", engine.metrics),
            ask("/server_info", engine.server_info),
            ask("/instances", server.instances),
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
        members=members,
        errors=errors,
    )


def judge(address: Address, found: Findings) -> ProbeView:
    """What it is, and what to enter. Pure."""
    if found.status is not None or (found.greeting or "").startswith("LMCache HTTP"):
        return _lmcache(address, found)
    if found.members is not None or "oordinator" in (found.greeting or ""):
        return _coordinator(address, found)
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
            suggested_urls=[instead] if instead else [],
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


def _coordinator(address: Address, found: Findings) -> ProbeView:
    """It has neither ``/`` nor ``/status``: its list of cache servers is what tells it, and what to enter instead."""
    listed = [_member(address, host, port) for host, port in found.members or ()]
    urls = list(dict.fromkeys(url for url in listed if url is not None))
    if urls:
        detail = "A coordinator holds no cache: enter each of its cache servers."
    else:
        detail = (
            "A coordinator holds no cache: enter the HTTP address of each of its cache servers "
            f"(by default port {LMCACHE_HTTP_PORT}). None is registered with it at the moment."
        )
    evidence = [f"GET / names itself {found.greeting!r}"] if found.greeting else []
    if found.members is not None:
        count = len(found.members)
        evidence.append(f"GET /instances lists {count} cache server{'s' * (count != 1)}")
    return _view(
        address,
        "lmcache_coordinator",
        "An LMCache coordinator",
        detail,
        suggested_urls=urls[:MOST_SUGGESTED],
        evidence=evidence,
    )


def _member(address: Address, host: str, port: int) -> str | None:
    """A cache server as its coordinator tells it; one that registered with "this host" runs beside the coordinator."""
    try:
        here = ipaddress.ip_address(host)
        if here.is_loopback or here.is_unspecified:
            host = address.host
        shown = f"[{host}]" if ":" in host else host
    except ValueError:
        shown = host
    try:
        return parse_address(f"http://{shown}:{port}").url
    except InvalidInput:
        return None


def _engine(address: Address, found: Findings) -> ProbeView:
    metrics, facts = found.engine_metrics, found.facts
    connector = facts.kv_connector if facts is not None else None
    own_series = bool(metrics and metrics.in_process)
    inside = own_series or connector in IN_PROCESS_CONNECTORS
    lookups = metrics is not None and metrics.lookup_seconds_count is not None
    evidence = ["/metrics holds vllm series"] if metrics is not None and metrics.any_vllm_series else []
    if connector:
        evidence.append(f"/server_info names the KV connector {connector!r}")
    if lookups:
        evidence.append("/metrics holds look-ups of an LMCache server")
    if own_series:
        evidence.append("/metrics holds lmcache series of its own")
    detail = "A vLLM engine: add it as an engine."
    kind, title = "vllm", "A vLLM engine"
    if inside:
        kind, title = "vllm_in_process", "A vLLM engine with LMCache inside it"
        detail += (
            " LMCache runs inside it, not as a cache server: there is no server to add, and its disk tier cannot be "
            "watched from here."
        )
        if not own_series:
            detail += f" {MULTIPROC_MISSING}"
    elif connector or lookups:
        kind, title = "vllm_with_connector", "A vLLM engine with a KV connector"
    else:
        detail += " No KV connector can be seen; without one it does not use the cache server."
    if facts is None:
        detail += " Dev mode is off, so its prefix cache cannot be reset (VLLM_SERVER_DEV_MODE=1 opens that)."
    return _view(
        address,
        kind,
        title,
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
    instead = [url for port in (LMCACHE_HTTP_PORT, ENGINE_PORT) if (url := _with_port(address, port)) is not None]
    if first is not None and "ZeroMQ" in first.detail:
        return _view(
            address,
            "lmcache_message_port",
            "The message port of an LMCache server",
            "Engines talk to the cache server here (ZeroMQ); HTTP on it would stop the server, so none was sent. "
            f"Enter its HTTP port, by default {LMCACHE_HTTP_PORT}.",
            suggested_urls=[url for url in instead if url.endswith(f":{LMCACHE_HTTP_PORT}")],
            evidence=[first.detail],
        )
    evidence = [f"{call}: {error.detail}" for call, error in list(found.errors.items())[:4]]
    return _view(
        address,
        "other",
        "Something else answers there",
        f"It is neither an LMCache server nor a vLLM engine. A cache server's HTTP port is {LMCACHE_HTTP_PORT} by "
        f"default, an engine's is {ENGINE_PORT}.",
        suggested_urls=instead,
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
    suggested = more.pop("suggested_urls", [])
    return ProbeView.model_validate(
        {
            "url": address.url,
            "kind": kind,
            "title": title,
            "detail": detail,
            "model_names": [],
            "register_as": None,
            "suggested_url": next(iter(suggested), None),
            "suggested_urls": suggested,
            "evidence": [],
            **more,
        }
    )
