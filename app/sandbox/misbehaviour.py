"""Everything the sandbox can be told to do wrong, in one place.

`Faults` is read by the simulations (lies, stuck stores, missing metrics, broken streams); its HTTP half is acted out by
`FaultyHTTP`, which wraps each component's application. A component that refuses connections, and restarts, are
not here: they are states of the component itself (`app.sandbox.control`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, fields
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


@dataclass
class Faults:
    """What a component does wrong just now; the defaults are good behaviour.

    `l2_garbage`: the files are right, but what is loaded from them is all zeros, as from failing storage.
    `reset_lasts`: a reset empties the cache for so many requests only. `constant_answers`: every prompt gets one text,
    with the `numbers` of one answer too, with those and a little `noise`, or as bare `words` over its own numbers.
    `answers_from`: the answer is computed anew from a part of the prompt alone, whatever was loaded: its `tail`, its
    `length`, or its two `ends`. `constant_logprobs`: every log-probability is 0.
    `stream_loses_after`: events behind so many tokens never come, though the usage counts their tokens.
    `metrics_kept_seconds`: /metrics answers with the page it made last, until that is so old.

    The first block concerns every HTTP answer whose path starts with `paths` (one prefix, or several joined by
    commas; empty means all). The second block belongs to cache servers, the third to engines, the last to both.
    """

    paths: str = ""
    slow_seconds: float = 0.0
    hang: bool = False
    status: int | None = None
    garbage: bool = False
    truncated: bool = False
    huge_bytes: int = 0
    redirect: str = ""

    delete_lies: bool = False
    clear_lies: bool = False
    stores_never_complete: bool = False
    stores_stuck: bool = False
    status_unhealthy: bool = False
    healthcheck_unhealthy: bool = False
    mq_dead: bool = False
    l2_garbage: bool = False

    reset_lies: bool = False
    reset_lasts: int | None = None
    constant_answers: str = ""
    reset_refuses: bool = False
    stream_stops_after: int | None = None
    stream_cut_after: int | None = None
    stream_loses_after: int | None = None
    answers_from: str = ""
    constant_logprobs: bool = False

    metrics_kept_seconds: float = 0.0
    metrics_missing: bool = False
    metrics_hidden: str = ""

    def apply(self, **changes: Any) -> None:
        """Change some fields. An unknown name or a value of another type is a `ValueError`."""
        known = {f.name: f for f in fields(self)}
        for name, value in changes.items():
            if name not in known:
                raise ValueError(f"there is no fault called {name!r}; known: {', '.join(known)}")
            default = known[name].default
            numeric = isinstance(value, int | float) and not isinstance(value, bool)
            if default is None:
                good = value is None or (isinstance(value, int) and numeric)
            elif isinstance(default, bool):
                good = isinstance(value, bool)
            elif isinstance(default, str):
                good = isinstance(value, str)
            else:
                good = numeric
            if not good:
                raise ValueError(f"fault {name}: {value!r} is not of the right type (default {default!r})")
        for name, value in changes.items():
            setattr(self, name, value)

    def clear(self) -> None:
        """Good behaviour again."""
        for f in fields(self):
            setattr(self, f.name, f.default)

    def concerns(self, path: str) -> bool:
        """True if the HTTP faults are meant for `path`."""
        return not self.paths or any(path.startswith(p) for p in self.paths.split(","))


class KeptPage:
    """A page of counters that is not made anew until it is old (`metrics_kept_seconds`), as behind a cache."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._made = float("-inf")
        self._text = ""

    def text(self, make: Callable[[], str]) -> str:
        """The page as it is told now."""
        now = time.monotonic()
        if now - self._made >= self._faults.metrics_kept_seconds:
            self._made, self._text = now, make()
        return self._text


class FaultyHTTP:
    """ASGI wrapper: counts the calls (`calls`, by "METHOD /path") and acts out the HTTP faults."""

    def __init__(self, app: ASGIApp, faults: Faults) -> None:
        self._app = app
        self._faults = faults
        self.calls: Counter[str] = Counter()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        self.calls[f"{scope['method']} {path}"] += 1
        faults = self._faults
        if not faults.concerns(path):
            await self._app(scope, receive, send)
            return
        if faults.hang:
            await until_disconnect(receive)
            return
        if faults.slow_seconds > 0:
            await asyncio.sleep(faults.slow_seconds)
        if faults.redirect:
            await _answer(send, 307, b"", (b"location", faults.redirect.encode()))
        elif faults.status is not None:
            await _answer(send, faults.status, b"Internal Server Error", (b"content-type", b"text/plain"))
        elif faults.garbage:
            await _answer(send, 200, b'{"is_healthy": tru\xff\x00 <html>', (b"content-type", b"application/json"))
        elif faults.huge_bytes > 0:
            await _huge(send, faults.huge_bytes)
        elif faults.truncated:
            await self._app(scope, receive, _Truncating(send))
        else:
            await self._app(scope, receive, send)


async def until_disconnect(receive: Receive) -> None:
    """Never answer; end when the client gives up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def _huge(send: Send, size: int) -> None:
    """A JSON string of `size` bytes, sent in pieces, without a length announced."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    piece = b"x" * 65536
    await send({"type": "http.response.body", "body": b'{"padding":"', "more_body": True})
    for start in range(0, size, len(piece)):
        await send({"type": "http.response.body", "body": piece[: size - start], "more_body": True})
    await send({"type": "http.response.body", "body": b'"}'})


class _Truncating:
    """Announces the whole body, sends half of it and closes the connection."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is None:
            return
        body: bytes = message.get("body", b"")
        headers = [h for h in self._start.get("headers", []) if h[0].lower() != b"content-length"]
        headers.append((b"content-length", str(max(2, len(body))).encode()))
        start, self._start = self._start, None
        await self._send({**start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
        raise ConnectionAbortedError("truncated on purpose")
