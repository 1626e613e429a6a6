"""A whole fleet polled by one panel: processor, lateness, memory, growth of the database, and the overview page.

    python benchmarks/fleet.py [--targets 200] [--warm-up 300] [--seconds 600] [--interval 10] [--history-days 30]
                               [--any-machine]

Starts `targets` cache servers and as many engines (captured answers whose counters move, in one process of their own),
one server that never answers, and `tierkeeper serve` over a fresh data directory. All figures are of the panel's
process, from /proc: processor seconds, so that a busy machine does not distort them, and resident memory. Lateness is
seen from the targets: how much later than an interval after the poll before each was asked. With `--history-days` the
database is first filled with that much history of every series, and the overview page is asked 60 times.

What is watched begins after a warm-up (300 s by default): by then every sliding window of five minutes is full and the
program has done everything once. What still grows then is bounded: the trails behind alarms, which are fullest after an
hour (docs/PERFORMANCE.md has the numbers). Memory is judged by the straight line through all samples of that time.

Exit status 1 where a limit is not kept: every target asked in every interval; no poll more than 2 s late; lateness flat
(its 99th percentile grows by no more than a second from the first to the second half of the run) and memory flat (the
line rises by no more than 8 % and no more than 16 MB from end to end); 60 % of one core; 150 ms for the overview (95th
percentile of the processor time a page takes; the time on a clock is printed beside it). `--any-machine` judges what
holds on a slow or shared machine, too: the share of a core is only printed, and a poll may be 5 s late.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")
CPU_LIMIT, LATE_LIMIT, PAGE_LIMIT = 0.6, 2.0, 0.15
LATE_ANYWHERE = 5.0
#: What a run may end with above its beginning: resident memory (both), and lateness (second half and first).
GROWTH_SHARE, GROWTH_MB, GROWTH_LATE = 0.08, 16.0, 1.0
WARM_UP = 300.0
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


def watch(panel: Panel, targets: str, seconds: float, interval: float, warm_up: float) -> dict[str, Any]:
    """Lets the panel poll for a while after its warm-up; what it took."""
    time.sleep(max(warm_up, 2.5 * interval))  # the first polls also read what only a new boot changes
    began, cpu = time.time(), panel.cpu_seconds()
    memory: list[tuple[float, float]] = []
    while (now := time.time()) - began < seconds:
        memory.append((now, panel.resident_bytes() / 1e6))
        time.sleep(min(1.0, interval / 4))
    took, ended = panel.cpu_seconds() - cpu, time.time()
    asked: dict[str, list[float]] = httpx.get(f"{targets}/asked", timeout=60, trust_env=False).json()
    found = judged(asked, memory, began, ended, interval)
    found["cpu_share_of_a_core"] = took / (ended - began)
    found["cpu_ms_a_poll"] = took * 1000 / max(1, found["polls"])
    found["load_average"] = os.getloadavg()[2 if ended - began > 450 else 1]
    return found


def judged(
    asked: dict[str, list[float]], memory: list[tuple[float, float]], began: float, ended: float, interval: float
) -> dict[str, Any]:
    """The figures of a run from `began` to `ended` (epoch seconds). Pure.

    `asked`: when each target's ``/metrics`` was asked; `memory`: (time, MB). Lateness is how much longer than an
    interval it took until a target was asked again; a target has missed an interval when that is half of one. What was
    asked before `began` counts only as the poll before the first.
    """
    middle = (began + ended) / 2
    late: list[tuple[float, float]] = []
    polls = missed = 0
    for times in asked.values():
        times = sorted(at for at in times if at <= ended)
        first = next((n for n, at in enumerate(times) if at >= began), len(times))
        polls += len(times) - first
        within = times[first - 1 :] if first else [began - interval, *times]
        late += [(after, after - before - interval) for before, after in itertools.pairwise(within)]
        missed += sum(max(0, round((after - at) / interval) - 1) for at, after in itertools.pairwise([*within, ended]))
    halves = [[x for at, x in late if at < middle], [x for at, x in late if at >= middle]]
    at_begin, at_end = line(memory, began, ended)
    return {
        "polls": polls,
        "targets_asked": sum(1 for times in asked.values() if any(began <= at <= ended for at in times)),
        "intervals_missed": missed,
        "late_seconds_max": max((x for _, x in late), default=float("inf")),
        "late_seconds_p99": _p99([x for _, x in late]),
        "late_seconds_p99_first_half": _p99(halves[0]),
        "late_seconds_p99_second_half": _p99(halves[1]),
        "resident_mb_begin": at_begin,
        "resident_mb_end": at_end,
        "resident_mb_max": max((mb for _, mb in memory), default=float("nan")),
    }


def line(points: list[tuple[float, float]], began: float, ended: float) -> tuple[float, float]:
    """The straight line through the points (least squares), at two times; NaN for fewer than two points. Pure."""
    if len({at for at, _ in points}) < 2:
        return float("nan"), float("nan")
    slope, offset = statistics.linear_regression([at - began for at, _ in points], [value for _, value in points])
    return offset, offset + slope * (ended - began)


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else float("inf")


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
    """History of every series that the polls have begun: raw, five minutes, hours, as after weeks (panel stopped).

    No value is a whole number, which SQLite keeps in fewer bytes: `bytes_a_row` of each table is the most it takes.
    """
    sizes: dict[str, float] = {}
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
            values = "at % 977 + 0.3"
            if table != "sample_raw":
                values = f"30, at % 977 * 30 + 0.3, 1.3, 976.3, {values}"
            pages, there = _pages(db), db.execute(f"select count(*) from {table}").fetchone()[0]
            db.execute("begin")
            for series in ids:
                db.execute(
                    f"with recursive times(at) as (select ? union all select at + {step} from times where at < ?) "
                    f"insert or ignore into {table} select ?, at, {values} from times",
                    (first, now - 2 * step, series),
                )
            db.execute("commit")
            added = db.execute(f"select count(*) from {table}").fetchone()[0] - there
            sizes[f"{table}_rows_added"] = added
            sizes[f"{table}_bytes_a_row"] = (_pages(db) - pages) * 4096 / max(1, added)
        for name, width in (("5m", 300_000), ("1h", 3_600_000)):
            db.execute("insert or replace into roll_up_mark values (?, ?)", (name, now // width * width))
        rows = sum(
            db.execute(f"select count(*) from {t}").fetchone()[0] for t in ("sample_raw", "sample_5m", "sample_1h")
        )
        db.execute("pragma journal_mode = wal")
    size = (panel.data / "tierkeeper.db").stat().st_size
    return {"rows": rows, "gigabytes": size / 1e9, "filled_seconds": time.time() - began, **sizes}


def _pages(db: sqlite3.Connection) -> int:
    """Pages in use. The database is made with 4096 bytes a page."""
    used: int = db.execute("pragma page_count").fetchone()[0] - db.execute("pragma freelist_count").fetchone()[0]
    return used


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
                found["polling"] = watch(panel, targets, options.seconds, options.interval, options.warm_up)
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


def broken(found: dict[str, Any], *, any_machine: bool = False) -> list[str]:
    """The limits that were not kept, a sentence each."""
    polling, told = found["polling"], []
    late = LATE_ANYWHERE if any_machine else LATE_LIMIT
    scale = found["targets"] / 200 * 10 / found["interval"]
    if not any_machine and polling["cpu_share_of_a_core"] > CPU_LIMIT * max(1.0, scale):
        told.append(f"{polling['cpu_share_of_a_core']:.0%} of one core, {CPU_LIMIT:.0%} allowed")
    if polling["targets_asked"] < 2 * found["targets"]:
        told.append(f"{polling['targets_asked']} of {2 * found['targets']} targets were asked")
    if polling["intervals_missed"]:
        told.append(f"{polling['intervals_missed']} polls were left out")
    if not polling["late_seconds_max"] <= late:
        told.append(f"a poll {polling['late_seconds_max']:.2f} s late, {late:g} s allowed")
    told += [*_grown(polling)]
    if "overview" in found and found["overview"]["cpu_ms_p95"] > PAGE_LIMIT * 1000:
        told.append(f"the overview takes {found['overview']['cpu_ms_p95']:.0f} ms, {PAGE_LIMIT * 1000:.0f} allowed")
    return told


def _grown(polling: dict[str, Any]) -> Iterator[str]:
    """What is not flat over the run."""
    first, second = polling["resident_mb_begin"], polling["resident_mb_end"]
    if not second - first <= min(GROWTH_MB, GROWTH_SHARE * first):
        yield f"memory grew from {first:.0f} to {second:.0f} MB, {GROWTH_SHARE:.0%} and {GROWTH_MB:g} MB allowed"
    first, second = (polling[f"late_seconds_p99_{half}_half"] for half in ("first", "second"))
    if not second - first <= GROWTH_LATE:
        yield f"lateness grew from {first:.2f} to {second:.2f} s (p99), {GROWTH_LATE:g} s allowed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=200, help="cache servers, and as many engines")
    parser.add_argument("--warm-up", type=float, default=WARM_UP, help="seconds of polling before that")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long polls are watched")
    parser.add_argument("--interval", type=float, default=10.0, help="TIERKEEPER_POLL_SECONDS")
    parser.add_argument("--history-days", type=float, default=0.0, help="fill so much history, then ask the overview")
    parser.add_argument("--raw-hours", type=float, default=48.0, help="of it as raw samples")
    parser.add_argument("--settle", type=float, default=20.0, help="seconds before the pages are asked")
    parser.add_argument("--any-machine", action="store_true", help="limits that a slow or shared machine keeps, too")
    parser.add_argument("--dir", type=Path, help="where the data directory is made")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options)
    wrong = broken(found, any_machine=options.any_machine)
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
