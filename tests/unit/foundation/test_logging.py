"""Off a terminal every line of the log is one JSON object, also what libraries write."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import logging
import structlog
from app.commands.serve import configure_logging
configure_logging("INFO")
structlog.get_logger().info("panel.ours", answer=42)
scheduler = logging.getLogger("apscheduler.scheduler")
scheduler.warning('Execution of job "%s" skipped: maximum number of running instances reached (%d)', "poll", 1)
scheduler.warning('Execution of job "%s" skipped: maximum number of running instances reached (%d)', "poll", 1)
scheduler.info("a library's daily news is left out")
try:
    raise ValueError("broken")
except ValueError:
    logging.getLogger("some.package").exception("it failed")
"""


def test_libraries_write_lines_of_the_same_form() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ""
    ours, skipped, failed = (json.loads(line) for line in done.stderr.splitlines())
    assert (ours["event"], ours["answer"], ours["level"]) == ("panel.ours", 42, "info")
    assert skipped["event"] == 'Execution of job "poll" skipped: maximum number of running instances reached (1)'
    assert (skipped["level"], skipped["logger"]) == ("warning", "apscheduler.scheduler")
    assert skipped["timestamp"].endswith("Z")
    assert (failed["logger"], failed["level"]) == ("some.package", "error")
    assert "ValueError: broken" in failed["exception"]
