"""One HTTP target: bounded in time and size, no redirects, every trouble a TargetError.

The panel is a client of machines it does not own. What they answer may be endless, slow, compressed to burst, or not
HTTP at all; a caller here gets a whole answer within its deadline or one TargetError that says what happened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from app.errors import InvalidInput, TargetError
from app.wire import destinations, fields, greeting, sending
from app.wire.proxies import HttpProxy, check_behind, for_httpx, proxy_of
from app.wire.tls import SYSTEM, UNVERIFIED, Tls, context_of
from app.wire.troubles import describe_error, translated

MAX_BYTES = 16 * 2**20
_READ = httpx.ByteStream(b"")


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole HTTP answer. `where` is "GET http://host/path", `seconds` from sending to the last byte."""

    status: int
    content_type: str | None
    body: bytes
    seconds: float
    where: str

    def json(self) -> object:
        """The body as JSON. Raises TargetError ``unreadable``."""
        with self.reading():
            return fields.loads(self.body, f"the answer to {self.where}")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around the reading of this answer: its errors carry the HTTP status, so that they count as an answer."""
        try:
            yield
        except TargetError as error:
            error.http_status = error.http_status or self.status
            raise

    def error(self) -> TargetError:
        """The answer as an error (``http``), its body brought into one sentence."""
        said = describe_error(self.status, self.body)
        return TargetError("http", f"{self.where} answered {self.status}: {said}", http_status=self.status)

    def ok(self) -> Self:
        """Itself. Raises TargetError ``http`` unless the status is 2xx."""
        if not 200 <= self.status < 300:
            raise self.error()
        return self


class TargetHttp:
    """Async HTTP client of one base address. Use as an async context manager within one event loop.

    `connect_timeout` and `read_timeout` are seconds; a whole answer must arrive within their sum unless a call says
    otherwise. `tls` says whose certificates are believed. `transport` replaces the network.
    `connections` is how many requests may be under way at once; further ones wait `connect_timeout` and fail.
    `date` is the target's clock as its last answer told it: (epoch seconds, whole; `time.perf_counter` at receipt).
    Raises InvalidInput for an address or a header that cannot be used.
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
        connections: int = 64,
    ) -> None:
        self._connections = connections
        self.base_url = normalise_base_url(base_url)
        self.max_bytes = max_bytes
        self.deadline = connect_timeout + read_timeout
        self._timeout = httpx.Timeout(read_timeout, connect=connect_timeout, pool=connect_timeout)
        self._headers = _headers(api_key, headers or {})
        self._transport = transport
        self._tls = tls
        self._unusable: TargetError | None = None
        self._proxy: HttpProxy | None = None
        self._client: httpx.AsyncClient | None = None
        self._listening: asyncio.Lock | None = None
        self._listened = transport is not None
        parts = urlsplit(self.base_url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self.date: tuple[float, float] | None = None

    async def __aenter__(self) -> Self:
        transport = self._transport
        if transport is None:
            # plain http needs no trust store, and loading one costs 20 ms
            try:
                secure = context_of(self._tls if self.base_url.startswith("https:") else UNVERIFIED)
            except TargetError as error:  # told by each call, as all trouble with a target is
                self._unusable, secure = error, context_of(UNVERIFIED)
            try:
                self._proxy = proxy_of(self.base_url)
            except TargetError as error:
                self._unusable = error
            transport = httpx.AsyncHTTPTransport(
                verify=secure,
                trust_env=False,
                proxy=for_httpx(self._proxy),
                limits=httpx.Limits(
                    max_connections=self._connections,
                    max_keepalive_connections=max(8, self._connections // 8),
                    keepalive_expiry=4.0,
                ),
            )
        self._client = httpx.AsyncClient(
            transport=transport,
            headers=self._headers,
            timeout=self._timeout,
            follow_redirects=False,
            trust_env=False,
            max_redirects=0,
        )
        self._listening = asyncio.Lock()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def fetch(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        payload: object = None,
        max_bytes: int | None = None,
        deadline: float | None = None,
    ) -> Answer:
        """Send and read the whole answer, whatever its status. Raises TargetError for everything but an answer."""
        limit = max_bytes or self.max_bytes
        began = time.perf_counter()
        async with self.open(method, path, params=params, payload=payload, deadline=deadline) as response:
            body = b"".join([chunk async for chunk in bounded(response, limit)])
            return Answer(
                status=response.status_code,
                content_type=response.headers.get("content-type"),
                body=body,
                seconds=time.perf_counter() - began,
                where=f"{method} {self.base_url}{path}",
            )

    async def prepare(self) -> None:
        """Make sure that HTTP may be sent there (see `greeting`); at once after the first answer in this process.

        Called by every request; call it before a measurement, which it would lengthen by a tenth of a second.
        """
        if self._proxy is not None:
            await check_behind(self._host)
        if self._listened or self._listening is None or greeting.speaks_http(self._host, self._port):
            return
        async with self._listening:
            if not self._listened:
                await greeting.listen(
                    self._host, self._port, connect_timeout=self._timeout.connect or 2.0, proxy=self._proxy
                )
                self._listened = True

    @asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        payload: object = None,
        deadline: float | None = None,
        read_timeout: float | None = None,
        on_sending: Callable[[], None] | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """The response with its body unread; body of the ``with`` and all reading fall under the deadline (seconds).

        `on_sending` is called when the request is about to go out, which is when a measurement begins: building the
        request and finding a connection is this client's own time, not the target's. Where a stale connection made it
        go out again, the last time counts.
        """
        if self._client is None:
            raise RuntimeError("use the client as an async context manager")
        if self._unusable is not None:
            raise TargetError(self._unusable.kind, f"{method} {self.base_url}{path}: {self._unusable.detail}")
        seconds = deadline or self.deadline
        timeout = self._timeout
        if read_timeout is None and deadline is not None:
            # Whoever allows a call more time allows it to be silent for as long.
            read_timeout = max(deadline, self._timeout.read or 0.0)
        if read_timeout is not None:
            timeout = httpx.Timeout(read_timeout, connect=timeout.connect, pool=timeout.pool)
        await self.prepare()
        with self._translated(f"{method} {self.base_url}{path}", seconds):
            async with asyncio.timeout(seconds):
                request = self._client.build_request(
                    method, self.base_url + path, params=params, json=payload, timeout=timeout
                )
                request.extensions["trace"] = _trace
                with sending.telling(on_sending):
                    response = await self._client.send(request, stream=True)
                self.date = _date(response.headers.get("date")) or self.date
                greeting.remember(self._host, self._port)
                try:
                    if response.headers.get("content-encoding", "identity").lower() != "identity":
                        raise TargetError(
                            "unreadable", f"{method} {self.base_url}{path} answered in an encoding not asked for"
                        )
                    yield response
                except TargetError as error:
                    error.http_status = error.http_status or response.status_code
                    raise
                finally:
                    await response.aclose()
                    # httpx ties answer and stream into a knot that only the garbage collector would undo, and with them
                    # the connection and its buffers: a fleet's polls left fifty of those a second lying about.
                    response.stream = _READ

    @contextmanager
    def _translated(self, where: str, seconds: float) -> Iterator[None]:
        try:
            with translated(where, seconds):
                yield
        except TargetError as error:
            if error.kind in ("refused", "closed", "timeout"):
                greeting.forget(self._host, self._port)
            if self._proxy is not None and self._proxy.name not in error.detail and error.http_status is None:
                # Whose trouble it is cannot be told from here: say that somebody stands between.
                error.detail += f" (by way of the proxy {self._proxy.name}; NO_PROXY lists hosts to ask directly)"
            raise


async def bounded(response: httpx.Response, limit: int) -> AsyncIterator[bytes]:
    """The body's chunks; raises TargetError ``too_large`` as soon as more than `limit` bytes came."""
    left = limit
    async for chunk in response.aiter_raw():
        left -= len(chunk)
        if left < 0:
            raise TargetError("too_large", f"{response.request.url} answered with more than {limit} bytes")
        yield chunk


def _date(header: str | None) -> tuple[float, float] | None:
    try:
        return (parsedate_to_datetime(header).timestamp(), time.perf_counter()) if header else None
    except (TypeError, ValueError, OverflowError):
        return None


def normalise_base_url(url: str) -> str:
    """``http(s)://host[:port][/prefix]`` without a trailing slash. Raises InvalidInput naming the field ``url``."""
    text = url.strip()
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise InvalidInput.field("url", f"{text[:200]!r} is not an address: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidInput.field("url", f"{text[:200]!r} must look like http://host:8080")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput.field("url", "must not hold a user name or password; give them as api_key or header")
    if parts.query or parts.fragment:
        raise InvalidInput.field("url", f"{text[:200]!r} must not hold ? or #")
    if port == 0 or any(ord(char) <= 32 or ord(char) == 127 for char in text):
        raise InvalidInput.field("url", f"{text[:200]!r} is not an address")
    try:
        httpx.URL(text)
    except (httpx.InvalidURL, ValueError) as error:
        raise InvalidInput.field("url", f"{text[:200]!r} is not an address: {error}") from error
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")


async def _trace(event: str, info: dict[str, Any]) -> None:
    """An httpcore trace: looks at each new connection before anything is sent."""
    await destinations.guard(event, info)
    sending.whole_requests(event, info)


def _headers(api_key: str | None, extra: Mapping[str, str]) -> dict[str, str]:
    headers = {"user-agent": "tierkeeper", "accept-encoding": "identity", **extra}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    for name, value in headers.items():
        if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise InvalidInput.field("headers", f"{name[:60]!r} is not a header name")
        if not value.isascii() or any(ord(char) < 32 or ord(char) == 127 for char in value):
            raise InvalidInput.field("headers", f"the value of {name!r} must be one line of ASCII text")
    return headers
