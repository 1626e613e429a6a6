"""Makes a data directory large: its inventory and its history multiplied, while no panel has it open.

Rows are copied from rows that a panel wrote, so they look as the panel writes them; only their number grows.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

DAY = 86_400
#: Tables of which a panel that ran for a month has many rows: their column of time and how many a day.
_BUSY = (("health_change", "at", 40), ("audit_event", "at", 300))
_SCANS_A_DAY = 24


def enlarge(data_dir: Path, *, records: int, days: int, now: float) -> None:
    """So many records in the first store, so many days of samples, scans and events. Nothing else may have it open."""
    _records(next(data_dir.rglob("store-1.db")), records)
    with sqlite3.connect(data_dir / "tierkeeper.db") as db:
        db.execute("PRAGMA synchronous=OFF")
        _samples(db, days, now)
        for table, at, number in _BUSY:
            _copies(db, table, at, number * days, now, days)
        _scans(db, days, now)
    db.close()


def _records(inventory: Path, records: int) -> None:
    with sqlite3.connect(inventory) as db:
        # As a first scan does it: no journal, and the indexes when all rows are there.
        db.executescript("PRAGMA journal_mode=DELETE; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;")
        indexes = db.execute("SELECT name, sql FROM sqlite_master WHERE type='index' AND sql NOT NULL").fetchall()
        for name, _ in indexes:
            db.execute(f"DROP INDEX {name}")
        have, last = db.execute("SELECT count(*), max(id) FROM record").fetchone()
        times = max(0, records // have - 1)
        if times:
            # Each copy was written a nanosecond after the one before: no two records are alike but for their layout.
            db.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
                "INSERT INTO record (cohort, owner, salt, hash, size, mtime, ctime, atime, inode, flags) "
                "SELECT cohort, owner, salt, randomblob(32), size, mtime + i, ctime + i, atime + i, inode, flags "
                "FROM n CROSS JOIN record WHERE record.id <= ?",
                (times, last),
            )
            db.execute(
                "UPDATE cohort SET records = records * ?, bytes = bytes * ?, max_mtime = max_mtime + ?",
                (times + 1, times + 1, times),
            )
        for _, sql in indexes:
            db.execute(sql)
    db.execute("PRAGMA journal_mode=WAL")
    db.close()


def _samples(db: sqlite3.Connection, days: int, now: float) -> None:
    """Every series filled as polls every ten seconds, the roll-up and retention would have left it."""
    end = int(now * 1000)
    series = db.execute("SELECT id, metric FROM series").fetchall()
    for table, step, length in (
        ("sample_raw", 10_000, min(days, 2) * DAY * 1000),
        ("sample_5m", 300_000, days * DAY * 1000),
        ("sample_1h", 3_600_000, days * DAY * 1000),
    ):
        start = (end - length) // step * step
        polls = step // 10_000
        for ident, metric in series:
            value = "10.0" if metric == "interval_seconds" else "abs(random() % 1000)"
            mean = 10.0 if metric == "interval_seconds" else 500.0
            columns, values = ("value", value) if table == "sample_raw" else (
                "count, sum, min, max, last", f"{polls}, {polls * mean}, {mean / 2}, {mean * 2}, {mean}"
            )  # fmt: skip
            db.execute(
                "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
                f"INSERT OR IGNORE INTO {table} (series_id, at, {columns}) SELECT ?, ? + i * ?, {values} FROM n",
                (length // step - 1, ident, start, step),
            )
    for name, width in (("5m", 300_000), ("1h", 3_600_000)):
        db.execute("INSERT OR REPLACE INTO roll_up_mark (name, until) VALUES (?, ?)", (name, end // width * width))


def _copies(db: sqlite3.Connection, table: str, at: str, number: int, now: float, days: int) -> None:
    """So many copies of a row that is there, spread over the days."""
    names = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] != "id"]
    if db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 0:
        return
    quoted = ", ".join(f'"{name}"' for name in names)
    picked = ", ".join("? - (? - i) * ?" if name == at else f'"{name}"' for name in names)
    db.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
        f"INSERT INTO {table} ({quoted}) SELECT {picked} FROM n CROSS JOIN (SELECT * FROM {table} LIMIT 1)",
        (number, now, number, days * DAY / number),
    )


def _scans(db: sqlite3.Connection, days: int, now: float) -> None:
    """Scans like the newest one, each with its growth points; ids grow with time, so the newest stays the newest."""
    newest = db.execute("SELECT max(id) FROM scan").fetchone()[0]
    _copies(db, "scan", "finished_at", _SCANS_A_DAY * days, now, days)
    db.execute(
        "INSERT INTO growth_point (store_id, scan_id, at, cls, records, bytes) "
        "SELECT g.store_id, s.id, s.finished_at, g.cls, g.records, g.bytes "
        "FROM scan s CROSS JOIN growth_point g WHERE s.id > ? AND g.scan_id = ? ORDER BY s.id",
        (newest, newest),
    )
