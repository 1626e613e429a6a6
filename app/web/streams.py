"""The event streams of open pages: each tells its page that something changed, which then asks for its live part.

A stream carries no facts, so it needs no history and no order: a topic that is waiting already is not queued twice.
Streams are bounded; a page that gets none polls, as it does where a proxy breaks streams.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from app.scheduling.news import News

MAX_STREAMS = 200
#: A comment this often keeps proxies from ending a quiet stream, and is when the sign-in is looked at again.
BEAT_SECONDS = 15.0
#: What came within this time is told at once: work that moves on twice a second needs no event for each step.
GATHER_SECONDS = 0.25


class Streams:
    """All streams of this process. Used on the event loop; only `News` calls from other threads."""

    def __init__(
        self, news: News, *, limit: int = MAX_STREAMS, beat: float = BEAT_SECONDS, gather: float = GATHER_SECONDS
    ) -> None:
        self._news = news
        self._limit, self._beat, self._gather = limit, beat, gather
        self._open: set[_Stream] = set()
        self._closed = False

    @property
    def count(self) -> int:
        return len(self._open)

    def open(self, may_go_on: Callable[[], Awaitable[bool]]) -> AsyncIterator[str] | None:
        """The text of a new stream; None where there are too many, or the panel is ending.

        may_go_on: asked at every beat; the stream ends when it says no (signed out, say).
        """
        if self._closed or len(self._open) >= self._limit:
            return None
        return self._text(_Stream(asyncio.get_running_loop()), may_go_on)

    def close(self) -> None:
        """Ends all streams and opens no more. May be called from a signal handler."""
        self._closed = True
        for stream in tuple(self._open):
            stream.end()

    async def _text(self, stream: _Stream, may_go_on: Callable[[], Awaitable[bool]]) -> AsyncIterator[str]:
        self._open.add(stream)
        leave = self._news.listen(stream.tell)
        try:
            yield "retry: 5000\n\n"
            loop = asyncio.get_running_loop()
            next_look = loop.time() + self._beat
            while True:
                topics = await stream.wait(max(0.0, next_look - loop.time()))
                if self._closed:
                    return
                if loop.time() >= next_look:  # by the clock: where news never ends there is no quiet moment
                    if not await may_go_on():
                        return
                    next_look = loop.time() + self._beat
                    yield ": still here\n\n"
                for topic in topics or ():
                    yield f"event: change\ndata: {topic}\n\n"
                if topics:
                    await asyncio.sleep(self._gather)
        finally:
            leave()
            self._open.discard(stream)


class _Stream:
    """What waits to be told to one page."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._topics: set[str] = set()
        self._wake = asyncio.Event()

    def tell(self, topic: str) -> None:
        """From any thread."""
        self._call(self._add, topic)

    def end(self) -> None:
        self._call(self._wake.set)

    async def wait(self, seconds: float) -> list[str] | None:
        """The topics that came, sorted; None where none came in that time."""
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return None
        self._wake.clear()
        topics, self._topics = sorted(self._topics), set()
        return topics

    def _add(self, topic: str) -> None:
        self._topics.add(topic)
        self._wake.set()

    def _call(self, function: Callable[..., None], *arguments: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the page's stream
            self._loop.call_soon_threadsafe(function, *arguments)
