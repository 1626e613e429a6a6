"""Starting and ending process groups without leaving anything behind. Standard library only: the watchdog runs it as
a script.

Each program runs in a session of its own, so that a Ctrl-C for pytest does not reach it half-way and everything it
forks can be ended by its group id. A watchdog process holds the read end of a pipe from the test process: when that
closes without a farewell (killed, out of memory), it ends what was still running.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

SHM = Path("/dev/shm")


def members(group: int) -> list[int]:
    """Process ids that belong to the group or to the session it leads (vLLM's workers)."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = Path(entry.path, "stat").read_text().rsplit(")", 1)[1].split()
            if fields[0] != "Z" and group in (int(fields[2]), int(fields[3])):
                found.append(int(entry.name))
    return found


def shared_memory(pids: list[int]) -> set[str]:
    """Names of the /dev/shm segments that these processes map, or own by the naming of LMCache (`lmcache_kv_PID_N`)."""
    names = {path.name for pid in pids for path in SHM.glob(f"lmcache_kv_{pid}_*")}
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                _, found, path = line.partition(f"{SHM}/")
                if found:
                    names.add(path.removesuffix(" (deleted)"))
    return names


def end_group(group: int, *, hard: bool = False, grace: float = 20.0) -> None:
    """Ends a process group and removes the shared memory that only it used.

    TERM first, KILL after `grace` seconds; `hard` starts with KILL. A segment that a process outside the group still
    maps stays, except the group's own KV segments: LMCache leaves those behind even after an orderly exit.
    """
    pids = members(group)
    if not pids:
        return
    used = shared_memory(pids)
    if not hard:
        # Only the leader: it is what an operator's service manager signals, and it stops its own workers.
        with contextlib.suppress(ProcessLookupError):
            os.kill(group, signal.SIGTERM)
        _wait_gone(group, grace)
    _kill([pid for pid in members(group) if not _is_tracker(pid)])
    # Python's resource tracker unlinks named semaphores and segments once everybody else is gone; give it the time to.
    _wait_gone(group, 3.0)
    _kill(members(group))
    _wait_gone(group, 10.0)
    owned = {name for name in used if any(name.startswith(f"lmcache_kv_{pid}_") for pid in pids)}
    strangers = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    for name in owned | (used - shared_memory(strangers)):
        (SHM / name).unlink(missing_ok=True)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _wait_gone(group: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.05)


class Watchdog:
    """Ends registered process groups when the test process is gone without having said farewell."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
            stdout=subprocess.DEVNULL,
        )

    def watch(self, group: int) -> None:
        """From now on this group is ended if we vanish."""
        self._say(f"watch {group}")

    def forget(self, group: int) -> None:
        """This group has been ended; its id may be given to somebody else."""
        self._say(f"forget {group}")

    def close(self) -> None:
        """Ends what is still watched and waits for that."""
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            pipe.close()
        self._process.wait(timeout=60)

    def _say(self, line: str) -> None:
        pipe: IO[str] | None = self._process.stdin
        if pipe is not None:
            pipe.write(line + "\n")
            pipe.flush()


def _watch_over(lines: IO[str]) -> None:
    groups: list[int] = []
    for line in lines:
        order, _, number = line.strip().partition(" ")
        if order == "watch":
            groups.append(int(number))
        elif order == "forget" and int(number) in groups:
            groups.remove(int(number))
    for group in reversed(groups):  # engines before the server they hang on
        end_group(group, grace=5.0)


if __name__ == "__main__":
    _watch_over(sys.stdin)
