"""Looks at stores' directories from an event loop, which no file system may block."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from app.fleet.targets import StoreTarget
from app.telemetry.store_reading import StoreLook, look_at_store

STORE_TIMEOUT_SECONDS = 5.0
#: Why the directory at a store's path is not taken for the store; None where it is. Asked in the thread that looks.
Trouble = Callable[[StoreTarget], str | None]


class Looks:
    """A mount whose server is gone blocks whoever looks: that thread is left behind, and none is sent after it."""

    def __init__(self, trouble: Trouble | None = None) -> None:
        self._looking: set[int] = set()
        self._trouble = trouble

    async def at(self, target: StoreTarget) -> StoreLook:
        """One look; `usable` is None where there is no answer within five seconds, or none yet to an earlier look."""
        if target.id in self._looking:
            return StoreLook(None, "the file system has not answered an earlier look yet")
        self._looking.add(target.id)
        loop = asyncio.get_running_loop()
        found: asyncio.Future[StoreLook] = loop.create_future()

        def tell(look: StoreLook) -> None:
            if not found.done():
                found.set_result(look)

        def look() -> None:
            try:
                result = look_at_store(target.path)
                why = self._trouble(target) if self._trouble is not None and result.usable else None
                if why is not None:
                    # Room and disk are those of whatever lies there now.
                    result = StoreLook(False, why)
            finally:
                self._looking.discard(target.id)
            with contextlib.suppress(RuntimeError):  # the loop may have ended meanwhile
                loop.call_soon_threadsafe(tell, result)

        # A daemon: a thread that never comes back must not keep the process from ending.
        threading.Thread(target=look, name=f"look-at-store-{target.id}", daemon=True).start()
        try:
            async with asyncio.timeout(STORE_TIMEOUT_SECONDS):
                return await found
        except TimeoutError:
            return StoreLook(None, f"the file system did not answer within {STORE_TIMEOUT_SECONDS:g} s")
