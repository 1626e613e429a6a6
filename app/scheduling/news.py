"""News inside this process: that long work moved on or an alarm changed, for pages that would else ask for it.

News says that something changed, never what: whoever hears it asks as usual. A page that misses one (another process
did the work, the stream broke) learns it at its next poll.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

Listener = Callable[[str], None]


class News:
    """Tells listeners, in the thread of whoever has news. Listeners are quick and do not raise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Adds a listener; the function returned takes it away again."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def leave() -> None:
            with self._lock:
                self._listeners = tuple(other for other in self._listeners if other is not listener)

        return leave

    def tell(self, topic: str) -> None:
        """`topic`: the name of a kind of work, or ``alarms``."""
        for listener in self._listeners:
            listener(topic)
