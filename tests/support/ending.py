"""How long a process took to end, by its own doing: what it waited for a processor is the machine's."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path


def seconds_to_end(process: subprocess.Popen[str], patience: float = 60.0) -> float:
    """Waits for its end; the seconds since the call, without those its threads were ready and got no processor."""
    began, waited = time.monotonic(), _waited_for_processor(process.pid)
    latest = waited
    while process.poll() is None:
        assert time.monotonic() - began < patience, "it does not end"
        latest = max(latest, _waited_for_processor(process.pid))
        time.sleep(0.01)
    return time.monotonic() - began - (latest - waited)


def _waited_for_processor(pid: int) -> float:
    total = 0.0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total += int(task.read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):  # a thread, or the process, that is gone
            continue
    return total
