"""`tierkeeper demo` in a process of its own, in a fresh directory, on a free port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct horse battery"


@contextmanager
def running_demo() -> Iterator[tuple[str, str, Callable[[], float]]]:
    """(url, admin's password, CPU seconds of the panel's process so far), from the moment it says where it is."""
    with tempfile.TemporaryDirectory() as scratch, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TIERKEEPER_")},
            "PYTHONPATH": str(ROOT),
            "TIERKEEPER_DATA_DIR": str(Path(scratch) / "var"),
            "TIERKEEPER_PORT": str(port),
            "TIERKEEPER_ADMIN_PASSWORD": PASSWORD,
            "TIERKEEPER_LOG_LEVEL": "ERROR",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "app", "demo"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("Tierkeeper on "), line or "the demo did not start"
            # Linux counts the CPU time of any process on a clock of its own.
            clock = (~process.pid << 3) | 2
            yield line.split()[-1], PASSWORD, lambda: time.clock_gettime(clock)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
