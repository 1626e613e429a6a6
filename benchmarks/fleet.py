"""A whole fleet polled by one panel: processor, lateness, memory, growth of the database, and the overview page.

    python benchmarks/fleet.py [--targets 200] [--seconds 120] [--interval 10] [--history-days 30] [--json]

Starts `targets` cache servers and as many engines (captured answers whose counters move, in one process of their own),
one server that never answers, and `tierkeeper serve` over a fresh data directory. All figures are of the panel's
process, from /proc: processor seconds, so that a busy machine does not distort them, and resident memory. Lateness is
seen from the targets: how much later than an interval after the poll before each was asked. With `--history-days` the
database is first filled with that much history of every series, and the overview page is asked 60 times.

Exit status 1 where a limit is not kept: 60 % of one core, 2 s late, 150 ms for the overview (95th percentile of the
processor time a page takes; the time on a clock is printed beside it).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")
CPU_LIMIT, LATE_LIMIT, PAGE_LIMIT = 0.6, 2.0, 0.15
PAGES = 60
PASSWORD = "a password for the benchmark"


class Panel:
    """`tierkeeper serve` in a process of its own."""

    def __init__(self, folder: Path, targets: str, count: int, interval: float, *, hang: bool) -> None:
        self.folder = folder
        self.data = folder / "panel"
        declared: dict[str, Any] = {
            "servers": [{"name": f"server {n}", "url": f"{targets}/s{n}"} for n in range(count)],
            "engines": [
                {"name": f"engine {n}", "url": f"{targets}/e{n}", "server": f"server {n}"} for n in range(count)
            ],
        }
        if hang:
            declared["servers"].append({"name": "hangs", "url": f"{targets}/hang"})
        (folder / "targets.yaml").write_text(json.dumps(declared))
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TIERKEEPER")} | {
            "TIERKEEPER_DATA_DIR": str(self.data),
            "TIERKEEPER_PORT": "0",
            "TIERKEEPER_POLL_SECONDS": str(interval),
            "TIERKEEPER_ADMIN_PASSWORD": PASSWORD,
            "TIERKEEPER_TARGETS_FILE": str(folder / "targets.yaml"),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self, interval: float | None = None) -> None:
        environment = self.environment | ({"TIERKEEPER_POLL_SECONDS": str(interval)} if interval else {})
        log = (self.folder / "panel.log").open("ab")
        port = _free_port()
        environment["TIERKEEPER_PORT"] = str(port)
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", "serve"], env=environment, stdout=log, stderr=log, cwd=self.folder
        )
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "panel.log").read_text()[-2000:])
            try:
                if httpx.get(f"{self.url}/readyz", timeout=5, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.2)
        raise RuntimeError("the panel did not get ready")

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
            self.process = None

    def cpu_seconds(self) -> float:
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident_bytes(self) -> int:
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def signed_in(self) -> httpx.Client:
        client = httpx.Client(base_url=self.url, headers={"Origin": self.url, "Accept": "text/html"}, timeout=60)
        answer = client.post("/login", data={"username": "admin", "password": PASSWORD})
        assert answer.status_code == 303, answer.text[:300]
        return client


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def watch(panel: Panel, targets: str, seconds: float, interval: float) -> dict[str, Any]:
    """Lets the panel poll for a while; what it took."""
    time.sleep(2.5 * interval)  # the first polls also read what only a new boot changes
    began, cpu = time.time(), panel.cpu_seconds()
    memory, cpus = [panel.resident_bytes()], [cpu]
    while time.time() - began < seconds:
        time.sleep(min(interval, max(0.1, began + seconds - time.time())))
        memory.append(panel.resident_bytes())
        cpus.append(panel.cpu_seconds())
    took, passed = panel.cpu_seconds() - cpu, time.time() - began
    asked = httpx.get(f"{targets}/asked", timeout=60, trust_env=False).json()
    late, polls = [], 0
    for times in asked.values():
        times = [at for at in times if at >= began - interval]
        polls += len(times)
        late += [after - before - interval for before, after in itertools.pairwise(times)]
    half = len(memory) // 2
    return {
        "cpu_share_of_a_core": took / passed,
        "cpu_ms_a_poll": took * 1000 / max(1, polls) * passed / (passed + interval),
        "polls": polls,
        "targets_asked": len(asked),
        "late_seconds_max": max(late, default=float("inf")),
        "late_seconds_p99": statistics.quantiles(late, n=100)[98] if len(late) > 1 else float("inf"),
        "resident_mb_first_half": statistics.mean(memory[: half or 1]) / 1e6,
        "resident_mb_second_half": statistics.mean(memory[half:]) / 1e6,
    }


def database(panel: Panel) -> dict[str, float]:
    """Rows and bytes a poll leaves behind (the panel must be stopped)."""
    with contextlib.closing(sqlite3.connect(panel.data / "tierkeeper.db", isolation_level=None)) as db:
        rows = db.execute("select count(*) from sample_raw").fetchone()[0]
        polls = db.execute(
            "select count(*) from sample_raw join series on id = series_id where metric = 'up'"
        ).fetchone()[0]
        series = db.execute("select count(*) from series").fetchone()[0]
        db.execute("vacuum")
        pages = dict(_sizes(db))
    return {
        "series": series,
        "rows_a_poll": rows / max(1, polls),
        "bytes_a_row": pages.get("sample_raw", 0) / max(1, rows),
    }


def _sizes(db: sqlite3.Connection) -> list[tuple[str, int]]:
    try:
        return db.execute("select name, sum(pgsize) from dbstat group by name").fetchall()
    except sqlite3.OperationalError:  # this SQLite was built without dbstat
        return [("sample_raw", db.execute("pragma page_count").fetchone()[0] * 4096)]


def fill(panel: Panel, days: float, raw_hours: float, interval: float) -> dict[str, float]:
    """History of every series that the polls have begun: raw, five minutes, hours, as after weeks (panel stopped)."""
    now = round(time.time() * 1000)
    began = time.time()
    with contextlib.closing(sqlite3.connect(panel.data / "tierkeeper.db", isolation_level=None)) as db:
        db.execute("pragma journal_mode = off")
        db.execute("pragma synchronous = off")
        ids = [row[0] for row in db.execute("select id from series order by id")]
        for table, step, span in (
            ("sample_raw", round(interval * 1000), round(raw_hours * 3_600_000)),
            ("sample_5m", 300_000, round(days * 86_400_000)),
            ("sample_1h", 3_600_000, round(max(days, 60) * 86_400_000)),
        ):
            first = (now - span) // step * step
            values = "at % 977" if table == "sample_raw" else "30, at % 977 * 30, 1, 976, at % 977"
            db.execute("begin")
            for series in ids:
                db.execute(
                    f"with recursive times(at) as (select ? union all select at + {step} from times where at < ?) "
                    f"insert or ignore into {table} select ?, at, {values} from times",
                    (first, now - 2 * step, series),
                )
            db.execute("commit")
        for name, width in (("5m", 300_000), ("1h", 3_600_000)):
            db.execute("insert or replace into roll_up_mark values (?, ?)", (name, now // width * width))
        rows = sum(
            db.execute(f"select count(*) from {t}").fetchone()[0] for t in ("sample_raw", "sample_5m", "sample_1h")
        )
        db.execute("pragma journal_mode = wal")
    size = (panel.data / "tierkeeper.db").stat().st_size
    return {"rows": rows, "gigabytes": size / 1e9, "filled_seconds": time.time() - began}


def pages(panel: Panel, path: str = "/") -> dict[str, float]:
    """Times of a page, milliseconds: the processor's and the clock's."""
    client = panel.signed_in()
    for _ in range(3):
        assert client.get(path).status_code == 200
    cpu, clock = [], []
    for _ in range(PAGES):
        before, began = panel.cpu_seconds(), time.perf_counter()
        answer = client.get(path)
        clock.append((time.perf_counter() - began) * 1000)
        cpu.append((panel.cpu_seconds() - before) * 1000)
        assert answer.status_code == 200
    client.close()
    return {
        "cpu_ms_mean": statistics.mean(cpu),
        "cpu_ms_p95": statistics.quantiles(cpu, n=20)[18],
        "clock_ms_p50": statistics.median(clock),
        "clock_ms_p95": statistics.quantiles(clock, n=20)[18],
        "kilobytes": len(answer.content) / 1000,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"targets": options.targets, "interval": options.interval}
    helper = subprocess.Popen([sys.executable, str(HERE / "fleet_targets.py")], stdout=subprocess.PIPE, text=True)
    assert helper.stdout is not None
    targets = f"http://127.0.0.1:{int(helper.stdout.readline())}"
    try:
        with tempfile.TemporaryDirectory(prefix="tierkeeper-fleet-", dir=options.dir) as folder:
            panel = Panel(Path(folder), targets, options.targets, options.interval, hang=True)
            try:
                panel.start()
                found["polling"] = watch(panel, targets, options.seconds, options.interval)
                print(json.dumps(found["polling"]), file=sys.stderr, flush=True)
                panel.stop()
                found["database"] = database(panel)
                if options.history_days:
                    found["history"] = fill(panel, options.history_days, options.raw_hours, options.interval)
                    panel.start(interval=3600)
                    time.sleep(options.settle)
                    found["overview"] = pages(panel)
            finally:
                panel.stop()
    finally:
        helper.kill()
        helper.wait()
    return found


def broken(found: dict[str, Any]) -> list[str]:
    """The limits that were not kept."""
    polling, told = found["polling"], []
    scale = found["targets"] / 200 * 10 / found["interval"]
    if polling["cpu_share_of_a_core"] > CPU_LIMIT * max(1.0, scale):
        told.append(f"{polling['cpu_share_of_a_core']:.0%} of one core, {CPU_LIMIT:.0%} allowed")
    if polling["late_seconds_max"] > LATE_LIMIT:
        told.append(f"a poll {polling['late_seconds_max']:.2f} s late, {LATE_LIMIT:g} s allowed")
    if "overview" in found and found["overview"]["cpu_ms_p95"] > PAGE_LIMIT * 1000:
        told.append(f"the overview takes {found['overview']['cpu_ms_p95']:.0f} ms, {PAGE_LIMIT * 1000:.0f} allowed")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=200, help="cache servers, and as many engines")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long polls are watched")
    parser.add_argument("--interval", type=float, default=10.0, help="TIERKEEPER_POLL_SECONDS")
    parser.add_argument("--history-days", type=float, default=0.0, help="fill so much history, then ask the overview")
    parser.add_argument("--raw-hours", type=float, default=48.0, help="of it as raw samples")
    parser.add_argument("--settle", type=float, default=20.0, help="seconds before the pages are asked")
    parser.add_argument("--dir", type=Path, help="where the data directory is made")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options)
    wrong = broken(found)
    if options.json:
        print(json.dumps({**found, "broken": wrong}))
    else:
        for part, values in found.items():
            if isinstance(values, dict):
                print(part)
                for name, value in values.items():
                    print(f"  {name:<28} {value:12.3f}")
        print("all limits kept" if not wrong else f"NOT KEPT: {'; '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
