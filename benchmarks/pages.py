"""Every page with a million records and thirty days of history, beside the same pages with ten thousand and a day.

Run: ``python benchmarks/pages.py [--records N] [--days D] [--rounds R] [--json]``. A panel on a real socket watches a
sandbox; its inventory and its history are then multiplied by SQL, so that rows are as the panel writes them.

Wall time and the CPU time of the whole process are taken of each request (nothing else is at work: the next poll is an
hour away), compressed bytes as a browser receives them. Budgets: p95 of each page below 100 ms, the first visit of the
overview (page, styles, scripts, fonts, icons) below 150 kB, and no page more than 3 times as dear as with the small
database. Other work on the machine lengthens wall times only, so a page is too slow only by its CPU time. Exit
status 1 if a budget is missed.
"""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from app.commands.demo_history import seed_history  # noqa: E402
from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate  # noqa: E402
from app.sandbox import SandboxThread, demo_specs  # noqa: E402
from tests.support.panel import Panel, running_panel  # noqa: E402

BUDGET_MS, BUDGET_BYTES, BUDGET_RATIO = 100.0, 150_000, 3.0
SMALL_RECORDS, SMALL_DAYS = 10_000, 1
FLOOR_MS = 15.0  # below this a ratio says nothing
DAY = 86_400
PAGES = (
    "/", "/servers", "/servers/1", "/engines", "/engines/1", "/stores", "/stores/1", "/stores/1/records",
    "/stores/1/records?class=incompatible", "/stores/1/records?older_than=1d&order=size_bytes", "/stores/1/quarantine",
    "/records/{record}", "/cleanup", "/cleanup/policies/new", "/acceptance", "/acceptance/new", "/checks", "/benchmark",
    "/experiments", "/sizing", "/launch", "/alarms", "/alarms/rules", "/alarms/history", "/alarms/quiet",
    "/alarms/notifiers", "/alarms/facts", "/activity", "/activity?view=audit", "/schedules", "/settings", "/help",
    "/help/alarms", "/search?q=atlas",
)  # fmt: skip


def wait(ready: Any, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > until:
            raise SystemExit("the panel did not get ready")
        time.sleep(0.05)


def register(panel: Panel, sandbox: SandboxThread, facts: dict[str, Any]) -> None:
    """The sandbox's targets, their past, one scan."""
    services = panel.services
    server = services.fleet.create_server(ServerCreate(url=sandbox.server_url, name="cache"), actor="bench")
    engines = [
        services.fleet.create_engine(EngineCreate(url=url, name=f"engine-{i}", server_id=server.id), actor="bench")
        for i, url in enumerate(sandbox.engine_urls)
    ]
    store = services.fleet.create_store(
        StoreCreate(path=str(sandbox.store_path), name="kv", server_ids=[server.id]), actor="bench"
    )
    wait(lambda: services.fleet.get_server(int(server.id)).layouts != [])
    seed_history(services, int(server.id), [int(e.id) for e in engines], facts)
    scan = services.records.start_scan(int(store.id), actor="bench")
    wait(lambda: services.records.get_scan(int(scan.id)).state == "succeeded")


def multiply(folder: Path, records: int, days: int, now: float) -> None:
    """The inventory to so many records, the history to so many days."""
    inventory = next(folder.rglob("store-1.db"))
    with sqlite3.connect(inventory, timeout=60) as db:
        have = db.execute("SELECT count(*) FROM record").fetchone()[0]
        db.execute("PRAGMA synchronous=OFF")
        first = db.execute("SELECT max(id) FROM record").fetchone()[0]
        times = max(0, records // have - 1)
        db.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
            "INSERT INTO record (cohort, owner, salt, hash, size, mtime, ctime, atime, inode, flags) "
            "SELECT cohort, owner, salt, randomblob(32), size, mtime + i, ctime + i, atime + i, inode, flags "
            "FROM n CROSS JOIN record WHERE record.id <= ? AND ? > 0",
            (max(times, 1), first, times),
        )
        db.execute("UPDATE cohort SET records = records * ?, bytes = bytes * ?", (times + 1, times + 1))
    db.close()
    with sqlite3.connect(folder / "tierkeeper.db", timeout=60) as db:
        db.execute("PRAGMA synchronous=OFF")
        end = int(now * 1000)
        series = [row[0] for row in db.execute("SELECT id FROM series")]
        for number, table, step, length in (
            (1, "sample_raw", 10_000, min(days, 2) * DAY * 1000),
            (2, "sample_5m", 300_000, days * DAY * 1000),
            (3, "sample_1h", 3_600_000, days * DAY * 1000),
        ):
            start = (end - length) // step * step
            columns = "series_id, at, value" if number == 1 else "series_id, at, count, sum, min, max, last"
            values = "?, ? + i * ?, abs(random() % 1000)" if number == 1 else "?, ? + i * ?, 30, 15000, 1, 1000, 500"
            for ident in series:
                db.execute(
                    "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
                    f"INSERT OR IGNORE INTO {table} ({columns}) SELECT {values} FROM n",
                    (length // step - 1, ident, start, step),
                )
        for name, width in (("5m", 300_000), ("1h", 3_600_000)):
            db.execute("INSERT OR REPLACE INTO roll_up_mark (name, until) VALUES (?, ?)", (name, end // width * width))
        copies(db, "health_change", "at", 40 * days, now, days)
        copies(db, "audit_event", "at", 300 * days, now, days)
        copies(db, "scan", "finished_at", 24 * days, now, days)
        db.execute("ANALYZE")
    db.close()


def copies(db: sqlite3.Connection, table: str, at: str, number: int, now: float, days: int) -> None:
    """So many copies of rows that are there, spread over the days."""
    names = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] != "id"]
    if not names or db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 0:
        return
    quoted = ", ".join(f'"{name}"' for name in names)
    picked = ", ".join("? - i * ?" if name == at else f'"{name}"' for name in names)
    db.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
        f"INSERT INTO {table} ({quoted}) SELECT {picked} FROM n CROSS JOIN (SELECT * FROM {table} LIMIT 1)",
        (number, now, days * DAY / number),
    )


def measure(records: int, days: int, rounds: int) -> dict[str, dict[str, float]]:
    """{page: CPU and wall milliseconds (median and p95), compressed bytes}; "first visit": bytes of the overview."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        servers, engines, config = demo_specs(time.time())
        with SandboxThread(folder / "sandbox", servers=servers, engines=engines, config=config) as sandbox:
            seeded = sandbox.seed_demo()
            facts = {
                "epochs": [
                    {"model": e.model_path, "dtype": e.layout.dtype, "start": e.start, "end": e.end}
                    for e in seeded.epochs
                ]
            }
            with running_panel(folder / "var", POLL_SECONDS="3600") as panel:
                register(panel, sandbox, facts)
                multiply(folder / "var", records, days, time.time())
                wait(lambda: panel.services.records.summary(1).records is not None)
                browser = panel.browser()
                browser.timeout = httpx.Timeout(600)
                browser.headers["Accept-Encoding"] = "gzip"
                return visit(browser, rounds)


def visit(browser: httpx.Client, rounds: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    listed = browser.get("/stores/1/records").text
    record = re.search(r'/records/([\w.-]+)"', listed)
    for page in PAGES:
        path = page.replace("{record}", record.group(1) if record else "1-1")
        wall, cpu, size = [], [], 0
        for number in range(rounds + 1):
            began, used = time.perf_counter(), time.process_time()
            with browser.stream("GET", path) as answer:
                raw = b"".join(answer.iter_raw())
            if answer.status_code != 200:
                raise SystemExit(f"{path}: {answer.status_code}")
            if number:  # the first compiles the template
                wall.append((time.perf_counter() - began) * 1000)
                cpu.append((time.process_time() - used) * 1000)
                size = len(raw)
        found[page] = {
            "cpu_ms": median(cpu), "cpu_p95_ms": p95(cpu), "wall_ms": median(wall), "wall_p95_ms": p95(wall),
            "bytes": float(size),
        }  # fmt: skip
    found["first visit"] = {"bytes": float(first_visit(browser))}
    return found


def first_visit(browser: httpx.Client) -> int:
    """Compressed bytes of the overview and everything it names, fonts of its styles included."""
    text = browser.get("/").text
    names = set(re.findall(r'(?:href|src)="(/static/[^"#]+)', text))
    for style in [name for name in names if ".css" in name]:
        names |= set(re.findall(r'url\("?(/static/[^")]+)', browser.get(style).text))
    total = 0
    for name in ["/", *sorted(names)]:
        with browser.stream("GET", name) as answer:
            total += len(b"".join(answer.iter_raw()))
    return total


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    small = measure(SMALL_RECORDS, SMALL_DAYS, args.rounds)
    large = measure(args.records, args.days, args.rounds)
    missed = []
    if not args.json:
        print(f"{'page':48} {'cpu':>7} {'p95':>7} {'wall':>7} {'p95':>7} {'ratio':>6} {'kB':>7}")
    for page, found in large.items():
        if page == "first visit":
            continue
        ratio = found["cpu_ms"] / max(small[page]["cpu_ms"], FLOOR_MS)
        slow = min(found["cpu_p95_ms"], found["wall_p95_ms"]) > BUDGET_MS
        if slow or ratio > BUDGET_RATIO:
            missed.append(page)
        if not args.json:
            numbers = [found[name] for name in ("cpu_ms", "cpu_p95_ms", "wall_ms", "wall_p95_ms")]
            text = " ".join(f"{number:7.1f}" for number in numbers)
            print(f"{page:48} {text} {ratio:6.2f} {found['bytes'] / 1000:7.1f}{'  MISSED' if page in missed else ''}")
    total = large["first visit"]["bytes"]
    if total > BUDGET_BYTES:
        missed.append("first visit")
    if args.json:
        print(json.dumps({"small": small, "large": large, "missed": missed}, indent=1))
    else:
        print(
            f"first visit of the overview: {total / 1000:.1f} kB compressed{'  MISSED' if total > BUDGET_BYTES else ''}"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
