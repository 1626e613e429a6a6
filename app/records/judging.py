"""Keeps the classes of an inventory's cohorts in step with what is known now. Touches no file of the store.

Where the answer changes inside a cohort it is split, so rows are written only for records that part from the others;
everything else is an update of a few cohort rows, however many records they stand for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from app.records.classify import Context, OwnerJudge, Sample, learn_sizes
from app.records.inventory_file import Cohort, Inventory, Owner
from app.records.owners import new_cohort_id

#: Cohorts of at most this many records are merged with a neighbour of the same kind: moving more costs too much.
MERGE_LIMIT = 20_000


def judge_inventory(inventory: Inventory, context: Context, alignments: Iterable[int]) -> Context:
    """Judges every cohort anew and returns the context with what the sizes prove.

    One unit of work on the inventory. `alignments`: block sizes that sizes may be rounded up to (C6).
    """
    with inventory.write():
        work = _Work(inventory)
        judges = {ident: OwnerJudge(owner.judged, context) for ident, owner in work.owners.items()}
        work.split_by_time(judges)
        context = replace(context, sizes=learn_sizes(work.samples(), context, alignments))
        judges = {ident: OwnerJudge(owner.judged, context) for ident, owner in work.owners.items()}
        work.split_by_size(judges)
        work.merge(judges)
        work.judge(judges)
    return context


def measure_cohorts(inventory: Inventory) -> None:
    """Exact counts and bounds of all cohorts: after a first scan, which only counted."""
    with inventory.write():
        _Work(inventory).measure_all()


class _Work:
    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._db = inventory.db
        self.owners: Mapping[int, Owner] = inventory.owners()
        self._cohorts = inventory.cohorts()
        for cohort in list(self._cohorts.values()):
            if cohort.records <= 0:
                self._measure(cohort)
                if not cohort.records:
                    self._drop(cohort)

    def measure_all(self) -> None:
        for cohort in self._cohorts.values():
            self._measure(cohort)

    def samples(self) -> list[Sample]:
        return [Sample(self.owners[c.owner].judged, c.min_mtime, c.size, c.records) for c in self._cohorts.values()]

    def split_by_time(self, judges: Mapping[int, OwnerJudge]) -> None:
        for cohort in list(self._cohorts.values()):
            judge = judges[cohort.owner]
            if judge.segment(cohort.min_mtime) == judge.segment(cohort.max_mtime):
                continue
            # The bounds may be wider than the records: look before splitting.
            self._measure(cohort)
            first, last = judge.segment(cohort.min_mtime), judge.segment(cohort.max_mtime)
            if first != last:
                edges = [cohort.min_mtime, *judge.cuts[first:last], cohort.max_mtime + 1]
                self._split(cohort, "mtime", edges)

    def split_by_size(self, judges: Mapping[int, OwnerJudge]) -> None:
        for cohort in list(self._cohorts.values()):
            if cohort.size is not None:
                continue
            judge = judges[cohort.owner]
            steps = judge.size_steps(judge.segment(cohort.min_mtime))
            # Each step is a place of its own: below it, it, above it.
            cuts = sorted({edge for step in steps for edge in (step, step + 1)})
            inner = [cut for cut in cuts if cohort.min_size < cut <= cohort.max_size]
            if (
                inner
                and len({judge.judge(judge.segment(cohort.min_mtime), size) for size in _probes(cohort, inner)}) > 1
            ):
                self._split(cohort, "size", [cohort.min_size, *inner, cohort.max_size + 1])

    def merge(self, judges: Mapping[int, OwnerJudge]) -> None:
        alike: dict[tuple[int, int | None, int, object], list[Cohort]] = {}
        for cohort in self._cohorts.values():
            judge = judges[cohort.owner]
            segment = judge.segment(cohort.min_mtime)
            verdict = judge.judge(segment, cohort.min_size) if cohort.size is None else None
            alike.setdefault((cohort.owner, cohort.size, segment, verdict), []).append(cohort)
        for cohorts in alike.values():
            cohorts.sort(key=lambda cohort: cohort.records)
            largest = cohorts.pop()
            for cohort in cohorts:
                if cohort.records > MERGE_LIMIT or not _mergeable(cohort, largest, judges[cohort.owner]):
                    continue
                self._db.execute("UPDATE record SET cohort=? WHERE cohort=?", (largest.id, cohort.id))
                largest.records += cohort.records
                largest.bytes += cohort.bytes
                largest.min_mtime = min(largest.min_mtime, cohort.min_mtime)
                largest.max_mtime = max(largest.max_mtime, cohort.max_mtime)
                largest.min_size = min(largest.min_size, cohort.min_size)
                largest.max_size = max(largest.max_size, cohort.max_size)
                self._inventory.save_cohort(largest)
                self._drop(cohort)

    def judge(self, judges: Mapping[int, OwnerJudge]) -> None:
        for cohort in self._cohorts.values():
            judge = judges[cohort.owner]
            found = judge.judge(judge.segment(cohort.min_mtime), cohort.min_size)
            if (cohort.cls, cohort.reason, cohort.epoch) != (found.cls, found.reason, found.epoch):
                cohort.cls, cohort.reason, cohort.epoch = found.cls, found.reason, found.epoch
                self._inventory.save_cohort(cohort)

    def _split(self, cohort: Cohort, column: str, edges: list[int]) -> None:
        """Moves the records between each two edges into a cohort of their own; the largest part stays."""
        counted = []
        for low, high in pairwise(edges):
            records = self._db.execute(
                f"SELECT count(*) FROM record WHERE cohort=? AND {column}>=? AND {column}<?",  # noqa: S608
                (cohort.id, low, high),
            ).fetchone()[0]
            if records:
                counted.append((records, low, high))
        if not counted:
            self._drop(cohort)
            return
        stays = max(counted)
        for part in counted:
            if part == stays:
                continue
            ident = new_cohort_id(self._cohorts, mixed=cohort.size is None)
            fresh = replace(cohort, id=ident)
            self._db.execute(
                f"UPDATE record SET cohort=? WHERE cohort=? AND {column}>=? AND {column}<?",  # noqa: S608
                (ident, cohort.id, part[1], part[2]),
            )
            self._cohorts[ident] = fresh
            self._measure(fresh)
        self._measure(cohort)

    def _measure(self, cohort: Cohort) -> None:
        """Exact counts and bounds, from the indexes."""
        records, size, first, last, least, most = self._db.execute(
            "SELECT count(*), sum(size), min(mtime), max(mtime), min(size), max(size) FROM record WHERE cohort=?"
            if cohort.size is None
            else "SELECT count(*), NULL, min(mtime), max(mtime), NULL, NULL FROM record WHERE cohort=?",
            (cohort.id,),
        ).fetchone()
        cohort.records = records
        if not records:
            return
        cohort.bytes = size if cohort.size is None else records * cohort.size
        cohort.min_mtime, cohort.max_mtime = first, last
        cohort.min_size = least if cohort.size is None else cohort.size
        cohort.max_size = most if cohort.size is None else cohort.size
        self._inventory.save_cohort(cohort)

    def _drop(self, cohort: Cohort) -> None:
        self._db.execute("DELETE FROM cohort WHERE id=?", (cohort.id,))
        del self._cohorts[cohort.id]


def _probes(cohort: Cohort, cuts: list[int]) -> list[int]:
    return [cohort.min_size, *cuts]


def _mergeable(small: Cohort, large: Cohort, judge: OwnerJudge) -> bool:
    """Whether the two together still have one verdict: mixed sizes may hold another step between them."""
    if small.size is not None:
        return True
    segment = judge.segment(large.min_mtime)
    low, high = min(small.min_size, large.min_size), max(small.max_size, large.max_size)
    steps = [step for step in judge.size_steps(segment) if low <= step <= high]
    return not steps or low == high
