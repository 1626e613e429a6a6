"""The end of a `serve` that was told to end: five seconds, whatever it was in the middle of.

The orderly end takes what it needs: requests have a grace, polls another, work stops at its next check. What cannot be
asked to stop (a message to a host that does not answer, a wait for a database that another program holds, a file system
that hangs) would keep the process as long as it likes: Python waits for its threads. So the process ends itself when
the time is over. What was under way is then what a kill -9 leaves, and the next start settles it: work becomes
`interrupted`, intents are read back from the disk, messages are sent again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import structlog

#: From the signal to the end of the process. The rest of the five seconds is for a machine that is busy.
STOP_SECONDS = 4.5
#: For requests under way, of that.
REQUEST_GRACE_SECONDS = 2
_LOG_SECONDS = 0.2

log = structlog.get_logger()


class Deadline:
    """Ends the process `seconds` after `begin`, unless it has ended before."""

    def __init__(self, seconds: float = STOP_SECONDS, *, end: Callable[[int], object] = os._exit) -> None:
        self._seconds = seconds
        self._end = end
        # A signal handler may start no thread (it may have interrupted the start of another) and may write to a pipe.
        self._wait, self._begin = os.pipe()
        threading.Thread(target=self._run, name="stop-deadline", daemon=True).start()

    def begin(self) -> None:
        """Called by the signal handler, once or several times: the first counts."""
        os.write(self._begin, b"x")

    def _run(self) -> None:
        os.read(self._wait, 1)
        time.sleep(self._seconds)
        # Beside this thread: a log that nobody reads may be what it hangs on.
        teller = threading.Thread(target=self._tell, daemon=True)
        teller.start()
        teller.join(_LOG_SECONDS)
        self._end(0)

    def _tell(self) -> None:
        own = (threading.current_thread(), threading.main_thread())
        busy = sorted(thread.name for thread in threading.enumerate() if not thread.daemon and thread not in own)
        log.warning(
            "stop.not_waited_for",
            seconds=self._seconds,
            threads=busy,
            hint="what was under way is settled by the next start, as after a kill",
        )
