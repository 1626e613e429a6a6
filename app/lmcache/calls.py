"""The panel's only way to a cache server: an allow-list of calls, each bounded, each absorbing version differences.

`ALLOWED` is everything that is ever sent. ``/env``, ``/run_script``, ``/loglevel`` and every deletion from L2 are not
in it: records on disk are removed through the file system (RULES R4), never behind our back by the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self
from urllib.parse import urlsplit

import httpx

from app.errors import TargetError
from app.lmcache.configuration import AdapterEntry, ServerConfig, parse_adapters, parse_config
from app.lmcache.metrics import ServerMetrics, server_metrics
from app.lmcache.status import ServerStatus, parse_status
from app.wire import fields
from app.wire.exposition import parse_metrics
from app.wire.tls import SYSTEM, Tls
from app.wire.transport import MAX_BYTES, Answer, TargetHttp
from app.wire.troubles import describe_error

MAX_KEYS: Final = 10_000
MAX_INSTANCES: Final = 1000
_L1: Final = "l1"

# what -> (method, paths newest first): an older path is tried only after 404 for the newer one
ALLOWED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "root": ("GET", ("/",)),
    "healthcheck": ("GET", ("/healthcheck", "/api/healthcheck")),
    "status": ("GET", ("/status", "/api/status")),
    "config": ("GET", ("/config", "/conf")),
    "version": ("GET", ("/version", "/lmc_version")),
    "metrics": ("GET", ("/metrics",)),
    "adapters": ("GET", ("/config/adapters", "/l2/adapters")),
    "instances": ("GET", ("/instances",)),
    "delete_l1": ("DELETE", ("/cache/objects",)),
    "clear_l1": ("POST", ("/cache/clear", "/clear-cache", "/api/clear-cache")),
}


class KeyLike(Protocol):
    """What names an object in L1: `app.lmcache.object_keys.ObjectKey`."""

    def to_wire(self) -> Mapping[str, object]: ...


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """The server's own word on its health: it says only that the engine object exists."""

    ok: bool
    reason: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class DeleteAnswer:
    """Sums over all batches. `deleted` counts what L1 held and dropped, `skipped` what was locked by a transfer."""

    deleted: int
    skipped: int
    ok: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ClearAnswer:
    """`forced` is True where an older server cleared locked objects as well (0.4.x and 0.5.0 know no other way)."""

    ok: bool
    forced: bool


class LMCacheClient:
    """One cache server over HTTP. Async context manager; every call raises TargetError for trouble with the target.

    Timeouts in seconds. `headers` are sent with every call, `api_key` as a bearer token. `paths` remembers which path
    answered for each call, so that an old server is not asked the new path again.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        connect_timeout: float = 2.0,
        read_timeout: float = 5.0,
        max_bytes: int = MAX_BYTES,
        tls: Tls = SYSTEM,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = TargetHttp(
            base_url,
            api_key=api_key,
            headers=headers,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            max_bytes=max_bytes,
            tls=tls,
            transport=transport,
        )
        self.base_url = self._http.base_url
        self._beside = (connect_timeout, read_timeout, max_bytes, transport)
        self.paths: dict[str, str] = {}

    @property
    def date(self) -> tuple[float, float] | None:
        """The server's clock at its last answer: (epoch seconds, whole; `time.perf_counter` at receipt)."""
        return self._http.date

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def _call(self, what: str, payload: object = None, *, deadline: float | None = None) -> tuple[Answer, str]:
        """Send the first path of `what` that is not 404; the answer (of any status) and the path that gave it.

        Where all are 404 it is the newest path's answer.
        """
        method, paths = ALLOWED[what]
        known = self.paths.pop(what, None)
        candidates = paths if known is None else (known, *(path for path in paths if path != known))
        missing: dict[str, Answer] = {}
        for path in candidates:
            answer = await self._http.fetch(method, path, payload=payload, deadline=deadline)
            if answer.status != 404 or _is_about_something_else(answer):
                self.paths[what] = path
                return answer, path
            missing[path] = answer
        return missing[paths[0]], paths[0]

    async def healthcheck(self) -> HealthAnswer:
        """Ask ``/healthcheck``: 200 is healthy, 503 unhealthy with its reason. Other statuses raise TargetError."""
        answer, _ = await self._call("healthcheck")
        if answer.status == 503:
            return HealthAnswer(False, describe_error(503, answer.body), answer.seconds)
        said = fields.mapping(answer.ok().json()).get("status")
        ok = said in ("healthy", "ok", None)
        return HealthAnswer(ok, None if ok else f"it says {str(said)[:100]!r}", answer.seconds)

    async def status(self, lmcache_version: str | None = None) -> ServerStatus:
        """``/status``; the version, where known, is noted in the layouts."""
        answer, _ = await self._call("status")
        body = answer.ok().json()
        with answer.reading():
            return parse_status(body, lmcache_version)

    async def config(self) -> ServerConfig:
        """``/config`` (older: ``/conf``)."""
        answer, _ = await self._call("config")
        body = answer.ok().json()
        with answer.reading():
            return parse_config(body)

    async def version(self) -> str | None:
        """The server's version text (``0.5.6-g3e11e108``), None where it has no such call (0.4.2)."""
        answer, _ = await self._call("version")
        if answer.status == 404:
            return None
        value = answer.ok().json()
        if isinstance(value, dict):
            value = value.get("version")
        text = fields.text(value, limit=200)
        if text is None:
            raise TargetError("unreadable", f"{answer.where} is not a version text", http_status=answer.status)
        return text.strip() or None

    async def metrics(self) -> ServerMetrics:
        """``/metrics``. TargetError ``http`` 404 where they are pushed to an OTLP endpoint or on another port."""
        answer, _ = await self._call("metrics")
        with answer.ok().reading():
            return server_metrics(parse_metrics(answer.body, answer.content_type))

    async def metrics_beside(self, port: int) -> ServerMetrics:
        """``/metrics`` on another port of the same host, where a server without them on its HTTP port says they are.

        Plain HTTP, and nothing secret goes along: another program may listen there. TargetError ``unreadable`` where
        what answers holds no series of a cache server.
        """
        connect_timeout, read_timeout, max_bytes, transport = self._beside
        host = urlsplit(self.base_url).hostname or ""
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        async with TargetHttp(
            url,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            max_bytes=max_bytes,
            transport=transport,
        ) as http:
            answer = await http.fetch("GET", "/metrics")
        with answer.ok().reading():
            found = server_metrics(parse_metrics(answer.body, answer.content_type))
        if not found.any_lmcache_series and found.instance_id is None:
            raise TargetError("unreadable", f"{answer.where} holds no series of a cache server", http_status=200)
        return found

    async def adapters(self) -> tuple[AdapterEntry, ...]:
        """``/config/adapters``: the types of the loaded adapters; empty where the server has no such call."""
        answer, _ = await self._call("adapters")
        if answer.status == 404:
            return ()
        body = answer.ok().json()
        with answer.reading():
            return parse_adapters(body)

    async def greeting(self) -> str | None:
        """The ``service`` that ``GET /`` names (``"LMCache HTTP API"``), None for anything else that answers there."""
        answer, _ = await self._call("root")
        try:
            return fields.text(fields.mapping(answer.json()).get("service"), limit=200)
        except TargetError:
            return None

    async def instances(self) -> tuple[tuple[str, int], ...]:
        """``/instances`` of an LMCache coordinator: (host, HTTP port) of each cache server that registered with it.

        A coordinator has no ``/`` and no ``/status``; this list is what tells it. Raises TargetError for anything else.
        """
        answer, _ = await self._call("instances")
        with answer.ok().reading():
            listed = fields.mapping(answer.json()).get("instances")
            if not isinstance(listed, list):
                raise TargetError("unreadable", f"{answer.where} is no list of cache servers")
            found = []
            for item in listed[:MAX_INSTANCES]:
                told = fields.mapping(item)
                host, port = fields.text(told.get("ip"), limit=255), fields.count(told.get("http_port"))
                if host and port and port <= 65_535:
                    found.append((host, port))
            return tuple(dict.fromkeys(found))

    async def delete_l1(
        self, keys: Iterable[KeyLike | Mapping[str, object]], force: bool = False, *, deadline: float = 30.0
    ) -> DeleteAnswer:
        """Drop objects from L1 only, in batches of at most 10,000; `deadline` seconds each.

        Without `force` objects locked by a transfer stay and count as skipped. Repeating it is harmless. Servers before
        0.5.2 cannot do it: TargetError ``http`` 404 (no such call) or 400 ("tier not supported"); nothing was deleted.
        """
        wire = [_wire_key(key) for key in keys]
        deleted = skipped = 0
        ok = True
        problem: str | None = None
        for start in range(0, len(wire), MAX_KEYS):
            body = {"keys": wire[start : start + MAX_KEYS], "tier": _L1, "force": force}
            answer, _ = await self._call("delete_l1", body, deadline=deadline)
            value = fields.mapping(answer.ok().json())
            count = fields.count(value.get("deleted"))
            if count is None:
                raise TargetError("unreadable", f"{answer.where} does not say how many objects it deleted")
            deleted += count
            skipped += fields.count(value.get("skipped")) or 0
            ok = ok and value.get("ok") is not False
            problem = problem or fields.text(value.get("error"), limit=300)
        return DeleteAnswer(deleted, skipped, ok, problem)

    async def clear_l1(self, *, deadline: float = 30.0) -> ClearAnswer:
        """Drop everything from L1 that no transfer holds (the records on disk stay)."""
        answer, path = await self._call("clear_l1", {"tier": _L1, "force": False}, deadline=deadline)
        value = fields.mapping(answer.ok().json())
        return ClearAnswer(ok=value.get("status") in ("ok", None), forced=path != "/cache/clear")


def _is_about_something_else(answer: Answer) -> bool:
    """Whether a 404 is the call's own word (``adapter matches none``), not the router's for an unknown path."""
    try:
        detail = fields.mapping(answer.json()).get("detail")
    except TargetError:
        return False
    return isinstance(detail, str) and detail.strip().lower() not in ("not found", "")


def _wire_key(key: KeyLike | Mapping[str, object]) -> dict[str, object]:
    """A key as ``DELETE /cache/objects`` wants it; a mapping is taken to have that form already."""
    return dict(key) if isinstance(key, Mapping) else dict(key.to_wire())
