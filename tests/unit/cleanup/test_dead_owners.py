"""A process that was killed in the middle of a run, under this host name or another: nobody waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cleanup.schemas import PolicyInput
from app.commands.context import command_services
from app.errors import Conflict
from app.fleet.schemas import StoreCreate
from app.scheduling.runner import UNBEGUN
from app.services import Services
from tests.support.panel import running_panel
from tests.unit.cleanup.support import name_of

RECORDS = 40
#: `tierkeeper clean` that is killed, or stopped for good, before it moves one of the records.
CLEAN = """
import os, signal, socket, sys, time
host, fatal, how = sys.argv[1], int(sys.argv[2]), getattr(signal, sys.argv[3])
if host:
    socket.gethostname = lambda: host
move, moved = os.rename, [0]
def rename(*args, **more):
    moved[0] += 1
    if moved[0] == fatal:
        os.kill(os.getpid(), how)
        time.sleep(600)  # a stop reaches this thread only after another one has taken it
    return move(*args, **more)
os.rename = rename
from app.commands.clean import CleanOptions, clean
clean(CleanOptions(policy="nightly"))
"""
#: Queues one of each kind of work that needs no engine, and is killed before it begins any.
QUEUE = """
import os, signal
from app.checks.schemas import CheckRunInput
from app.commands.context import command_services
from app.scheduling.runner import WorkRunner
WorkRunner.submit = lambda *_: None
with command_services() as services:
    services.records.start_scan(1, actor="t")
    services.cleanup.start_policy_plan(1, actor="t")
    services.cleanup.start_policy_run(1, actor="t")
    services.checks.start_run(CheckRunInput(), actor="t")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with a store of wrong records and a policy."""
    path, data = tmp_path / "l2", tmp_path / "var"
    monkeypatch.setenv("TIERKEEPER_DATA_DIR", str(data))
    path.mkdir()
    for number in range(RECORDS):
        file = path / name_of(number).decode()
        file.write_bytes(b"")
        os.utime(file, (time.time() - 7200, time.time() - 7200))
    with command_services(create=True) as services:
        services.fleet.create_store(StoreCreate(path=str(path), name="main", confirm=True), actor="t")
        body = PolicyInput(name="nightly", store_id="1", select=[{"kind": "corrupt"}])
        services.cleanup.create_policy(body, actor="t")
    return data


def clean(host: str, *, how: str = "SIGKILL") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CLEAN, host, "15", how], stderr=subprocess.DEVNULL)


def within(seconds: float, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.05)


def told(services: Services) -> tuple[str, int, int]:
    run = services.cleanup.get_run(1)
    return run.state, run.removed.records, run.in_quarantine.records


def ends(services: Services) -> list[tuple[object, object, object]]:
    found = services.audit.list_events(page_size=100, page_token=None, action="cleanup.finish").items
    return [(e.detail["state"], e.detail["planned_records"], e.detail["removed_records"]) for e in found]


@pytest.mark.parametrize("host", ["", "pod-5c9d"])
def test_the_next_start_settles_it_and_the_store_is_free(data: Path, host: str) -> None:
    assert clean(host).wait(60) == -signal.SIGKILL
    with running_panel(data) as panel:
        services = panel.services
        assert told(services) == ("interrupted", 14, 14)
        assert ends(services) == [("interrupted", RECORDS, 14)]
        again = services.cleanup.start_policy_run(1, actor="t")
        within(60, lambda: services.cleanup.get_run(int(again.id)).state == "succeeded")
        assert services.cleanup.get_run(int(again.id)).removed.records == RECORDS - 14


def test_a_panel_beside_it_notices_by_itself(data: Path) -> None:
    with running_panel(data) as panel:
        assert clean("pod-5c9d").wait(60) == -signal.SIGKILL
        within(15, lambda: told(panel.services) == ("interrupted", 14, 14))
        assert ends(panel.services) == [("interrupted", RECORDS, 14)]


@pytest.mark.parametrize("act", ["cancel", "restore", "start"])
def test_whoever_asks_meanwhile_does_not_wait(data: Path, act: str) -> None:
    assert clean("pod-5c9d").wait(60) == -signal.SIGKILL
    with command_services() as services:  # no panel that would look
        assert services.cleanup.get_run(1).state == "running"
        if act == "cancel":
            assert services.cleanup.cancel_run(1, actor="t").state == "interrupted"
        elif act == "restore":
            assert services.cleanup.restore(1, None, actor="t").records == 14
        else:
            assert services.cleanup.start_policy_run(1, actor="t").removed.records == RECORDS - 14
        assert services.cleanup.get_run(1).state == "interrupted"


def test_one_that_lives_is_waited_for_whatever_its_host_is_called(data: Path) -> None:
    process = clean("pod-5c9d", how="SIGSTOP")
    try:
        within(60, lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        with running_panel(data) as panel:
            services = panel.services
            services.runner.recover()
            assert services.cleanup.cancel_run(1, actor="t").state == "running"
            with pytest.raises(Conflict, match="cleanup run 1 of this store is running"):
                services.cleanup.start_policy_run(1, actor="t")
            process.kill()
            process.wait(60)
            within(15, lambda: told(services) == ("interrupted", 14, 14))
    finally:
        process.kill()
        process.wait(60)


def queued_by_a_dead_command() -> None:
    process = subprocess.run([sys.executable, "-c", QUEUE], capture_output=True, timeout=600)
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()


def of_every_kind(services: Services) -> list[tuple[str, str | None]]:
    rows = [
        services.records.get_scan(1),
        services.cleanup.get_plan(1),
        services.cleanup.get_run(1),
        services.checks.get_run(1),
    ]
    return [(row.state, row.error) for row in rows]


def test_what_a_killed_command_had_queued_is_in_nobodys_way(data: Path) -> None:
    queued_by_a_dead_command()
    with command_services() as services:  # no panel that would look
        assert of_every_kind(services) == [("queued", None)] * 4
        again = services.cleanup.start_policy_run(1, actor="t")
        assert of_every_kind(services) == [("interrupted", UNBEGUN)] * 4
        assert (again.id, again.removed.records) == ("2", RECORDS)
        assert sorted(ends(services), key=str) == [("interrupted", None, 0), ("succeeded", RECORDS, RECORDS)]


def test_a_panel_beside_it_ends_what_it_had_queued(data: Path) -> None:
    with running_panel(data, POLL_SECONDS="3600") as panel:
        queued_by_a_dead_command()
        within(60, lambda: panel.services.cleanup.get_run(1).state == "interrupted")
        assert panel.services.records.get_scan(1).state == "interrupted"
        assert ends(panel.services) == [("interrupted", None, 0)]


def test_the_next_start_begins_what_was_left_queued(data: Path) -> None:
    queued_by_a_dead_command()
    with running_panel(data, POLL_SECONDS="3600") as panel:
        within(60, lambda: [state for state, _ in of_every_kind(panel.services)] == ["succeeded"] * 4)
        assert panel.services.cleanup.get_run(1).removed.records == RECORDS
