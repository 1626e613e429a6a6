"""A request goes out in one piece, and the moment it does is known.

httpcore writes the head and the body of a request one after the other and lets the event loop turn in between; on a
busy machine that puts a millisecond (measured: 2 of 3) between the moment a request is said to be sent and the moment
its target has it. That is this client's time, and would count as the target's time to first token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

#: Larger requests are not kept back: sending them takes longer than a turn of the loop.
_MOST_HELD = 256 * 1024
_CONNECTED = (".connect_tcp.complete", ".start_tls.complete")

Write = Callable[..., Awaitable[None]]
_told: ContextVar[Callable[[], None] | None] = ContextVar("told_when_sending", default=None)


@contextmanager
def telling(on_sending: Callable[[], None] | None) -> Iterator[None]:
    """Within it, `on_sending` is called just before the bytes of a request go out; again where it goes out again."""
    token = _told.set(on_sending)
    try:
        yield
    finally:
        _told.reset(token)


def whole_requests(event: str, info: dict[str, Any]) -> None:
    """Part of an httpcore trace: from now on this new connection sends each request in one piece."""
    if event.endswith(_CONNECTED):
        stream = info["return_value"]
        stream.write = _Held(stream.write)


class _Held:
    """A stream's `write`. httpcore ends every request with an empty write (what h11 makes of its end)."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._held = bytearray()

    async def __call__(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore's
        self._held += buffer
        if buffer and len(self._held) <= _MOST_HELD:
            return
        whole, self._held = bytes(self._held), bytearray()
        if not whole:
            return
        told = _told.get()
        if told is not None:
            told()
        await self._write(whole, timeout)
