"""How many polls are under way at once, so that a busy machine holds a few dozen answers in memory and not a fleet's.

A poll under way is some 100 kB (connections, answers, what is read out of them). Where the processor is short all of
them would be under way together, share it and all end late; in turn they end one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

#: A quick fleet has eight under way (40 polls a second, a fifth of a second each).
MOST_AT_ONCE = 64
#: Whoever takes longer goes on without a turn: a target that hangs holds up no other.
TURN_SECONDS = 2.0


class Turns:
    """Of one event loop."""

    def __init__(self, most: int = MOST_AT_ONCE, seconds: float = TURN_SECONDS) -> None:
        self._free = asyncio.Semaphore(most)
        self._seconds = seconds

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Waits for a turn; it is over with the block, or after its seconds."""
        await self._free.acquire()
        over = False

        def end() -> None:
            nonlocal over
            if not over:
                over = True
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._seconds, end)
        try:
            yield
        finally:
            timer.cancel()
            end()
