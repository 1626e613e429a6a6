"""What planning and removing cost: planning CPU over a large inventory, and removal beside ``find … -delete``.

Run: ``python benchmarks/cleanup.py [--plan-records N] [--remove-records N] [--dir DIR] [--json]``. Both parts use the
product's own services over a data directory of their own; planning over an inventory made of rows (no such files need
to be there), removal over real files, in quarantine and by deletion, with journal, re-check and re-classification.
``find`` deletes the same number of files of the same names and sizes, in the same run and on the same file system.

Budgets: planning at 1,000,000 records at most 3 s of CPU; removal at most 4 × find; memory flat. Exit status 1 if one
is missed. Removal is judged by wall time, which is what an operator waits; CPU time is told beside it, and says whether
a miss was other people's work. Numbers are ratios where one can be had: a busy machine slows both sides.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.cleanup.schemas import FilterPlanInput, PlanView, PolicyInput
from app.commands.context import keep_program
from app.database import Base
from app.fleet.tables import Store
from app.records.inventory_file import Cohort, Inventory
from app.services import Services
from app.settings import load_settings
from app.wiring import build_services

PLAN_BUDGET_SECONDS = 3.0
REMOVE_BUDGET = 4.0
SIZE = 4096
DAY = 86_400


@contextmanager
def panel(base: Path) -> Iterator[Services]:
    """Services over a fresh data directory, with one store; work runs in this thread."""
    path = base / "store"
    path.mkdir()
    settings = load_settings({"TIERKEEPER_DATA_DIR": str(base / "var"), "TIERKEEPER_LOG_LEVEL": "ERROR"})
    (base / "var").mkdir()
    services = build_services(settings, time.time)
    Base.metadata.create_all(services.db.engine)
    with services.db.write() as session:
        session.add(Store(name="bench", path=str(path.resolve()), server_path=str(path), created_at=time.time()))
    keep_program()  # as `serve` and `clean` do
    try:
        yield services
    finally:
        services.db.dispose()


def name_of(number: int) -> str:
    return f"-SEP-models-SEP-bench@0x01000100@0@{hashlib.blake2b(b'%d' % number, digest_size=32).hexdigest()}.data"


def fill_inventory(services: Services, records: int) -> None:
    """Rows as a scan would have left them: written over thirty days, every second one read since."""
    inventory = Inventory.build(services.settings.data_dir / "inventory" / "store-1.db")
    inventory.db.execute("INSERT INTO owner VALUES (1, '', '', '-SEP-models-SEP-bench', 16777472, 0, 'data')")
    now = time.time_ns()
    step = 30 * DAY * 10**9 // records

    def rows() -> Iterator[tuple[Any, ...]]:
        for number in range(records):
            written = now - 30 * DAY * 10**9 + number * step
            used = written if number % 2 else min(written + 5 * DAY * 10**9, now)
            digest = hashlib.blake2b(b"%d" % number, digest_size=32).digest()
            yield 1, 1, 0, digest, SIZE, written, written, used, number + 10, 0

    inventory.db.executemany(
        "INSERT INTO record (cohort, owner, salt, hash, size, mtime, ctime, atime, inode, flags)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows(),
    )
    oldest = now - 30 * DAY * 10**9
    inventory.save_cohort(
        Cohort(1, 1, SIZE, "unverified", "layout_unknown", None, records, records * SIZE, oldest, now, SIZE, SIZE)
    )
    directory = Path(services.fleet.store_target(1).path).stat()
    inventory.set_meta(
        scanned_at=time.time(), device=directory.st_dev, records=records, bytes=records * SIZE, judged_at=time.time()
    )
    inventory.finish_build()


def plan_costs(base: Path, records: int) -> list[dict[str, Any]]:
    """CPU seconds and peak memory of plans that take a little, a third, and everything."""
    found = []
    policies: dict[str, dict[str, Any]] = {
        "unused 14d": {"select": [{"kind": "unused", "for": "14d"}]},
        "capacity, a third": {
            "select": [{"kind": "capacity", "high": records * SIZE - 1, "low": records * SIZE * 2 // 3}]
        },
        "derived (none)": {"select": [{"kind": "derived"}, {"kind": "corrupt"}]},
    }
    with panel(base) as services:
        fill_inventory(services, records)
        services.records.summary(1)  # judged once, as after a scan
        for name, body in policies.items():
            policy = services.cleanup.create_policy(PolicyInput(name=name, store_id="1", **body), actor="bench")
            began, memory = time.process_time(), _memory()
            plan = services.cleanup.start_policy_plan(int(policy.id), actor="bench")
            found.append(_plan_row(name, plan, time.process_time() - began, memory))
        began, memory = time.process_time(), _memory()
        plan = services.cleanup.start_filter_plan(1, FilterPlanInput(filter={"class": "unverified"}), actor="bench")
        found.append(_plan_row("filter, all of them", plan, time.process_time() - began, memory))
    return found


def _plan_row(name: str, plan: PlanView, cpu: float, memory: int) -> dict[str, Any]:
    if plan.state != "succeeded":
        raise SystemExit(f"the plan {name!r} ended {plan.state}: {plan.error}")
    return {"plan": name, "planned": plan.records, "cpu_seconds": cpu, "grown_mb": (_memory() - memory) / 1e6}


def removal_costs(base: Path, records: int, *, written_out: bool = False) -> list[dict[str, Any]]:
    """Wall and CPU of removals beside find, over as many files.

    Each side's files are made right before they go, find's first and all gone before the other side's are made: files
    that lie for half a minute are being written to the disk, and whoever removes them then waits for the disk.
    `written_out`: instead, after both sides' files have reached the disk, as records of a real store have: freeing
    their blocks then costs both sides more.
    """
    found = []
    for removal in ("quarantine", "delete"):
        with panel(_fresh(base, removal)) as services:
            path = Path(services.fleet.store_target(1).path)
            reference = path.parent / "reference"
            reference.mkdir()
            os.sync()  # whatever was written before is not waited for by either side
            make_files(reference, records)
            if written_out:
                make_files(path, records)
                os.sync()
            find_wall, find_cpu = _find(reference)
            if written_out:
                os.sync()
            else:
                make_files(path, records)
            services.records.start_scan(1, actor="bench")
            plan = services.cleanup.start_filter_plan(
                1,
                FilterPlanInput(filter={"class": "unverified"}, removal=removal),
                actor="bench",
            )
            memory, began, cpu = _memory(), time.perf_counter(), time.process_time()
            run = services.cleanup.start_run(int(plan.id), actor="bench")
            wall, cpu = time.perf_counter() - began, time.process_time() - cpu
            if run.removed.records != records:
                raise SystemExit(f"removed {run.removed.records} of {records}: {run.error or run.notes or run.skipped}")
            found.append(
                {
                    "removal": removal,
                    "records": records,
                    "seconds": wall,
                    "find_seconds": find_wall,
                    "ratio": wall / find_wall,
                    "cpu_seconds": cpu,
                    "find_cpu_seconds": find_cpu,
                    "cpu_ratio": cpu / find_cpu,
                    "microseconds_a_record": wall / records * 1e6,
                    "grown_mb": (_memory() - memory) / 1e6,
                }
            )
        # What is left lies there until the end: taking it away now would keep the disk busy under the next measurement.
    return found


def make_files(directory: Path, records: int) -> None:
    fd = os.open(directory, os.O_DIRECTORY)
    body = b"\0" * SIZE
    for number in range(records):
        file = os.open(name_of(number), os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd)
        os.write(file, body)
        os.close(file)
    os.close(fd)


def _find(directory: Path) -> tuple[float, float]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(["find", str(directory), "-type", "f", "-delete"], check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _fresh(base: Path, name: str) -> Path:
    made = base / name
    made.mkdir()
    return made


def _memory() -> int:
    """Resident bytes now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan-records", type=int, default=1_000_000)
    parser.add_argument("--remove-records", type=int, default=100_000)
    parser.add_argument("--written-out", action="store_true", help="sync all files first (may take minutes)")
    parser.add_argument("--dir", type=Path, default=None, help="where to work (a real file system; default: /tmp)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="tierkeeper-bench-", dir=options.dir))
    plans: list[dict[str, Any]] = []
    removals: list[dict[str, Any]] = []
    try:
        if options.plan_records:
            plans = plan_costs(_fresh(base, "plan"), options.plan_records)
        if options.remove_records:
            removals = removal_costs(base, options.remove_records, written_out=options.written_out)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    over = [p["plan"] for p in plans if p["cpu_seconds"] > PLAN_BUDGET_SECONDS * max(options.plan_records / 1e6, 0.1)]
    over += [r["removal"] for r in removals if r["ratio"] > REMOVE_BUDGET]
    if options.json:
        print(json.dumps({"plans": plans, "removals": removals, "over_budget": over}, indent=2))
        return 1 if over else 0
    for p in plans:
        print(
            f"plan {p['plan']}: {p['planned']:,} of {options.plan_records:,} records "
            f"in {p['cpu_seconds']:.2f} s of CPU (budget {PLAN_BUDGET_SECONDS:.0f} s at 1,000,000), "
            f"memory +{p['grown_mb']:.0f} MB"
        )
    for r in removals:
        print(
            f"{r['removal']}: {r['records']:,} records in {r['seconds']:.2f} s, "
            f"find -delete {r['find_seconds']:.2f} s: ratio {r['ratio']:.2f} (budget {REMOVE_BUDGET:.0f}), "
            f"CPU {r['cpu_seconds']:.2f} s to {r['find_cpu_seconds']:.2f} s: ratio {r['cpu_ratio']:.2f}, "
            f"{r['microseconds_a_record']:.0f} µs a record, memory +{r['grown_mb']:.0f} MB"
        )
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
