"""R4 in order: after the first pass over L2, clear L1, then L0, then go over L2 and L1 again until nothing comes back.

Wrong records leave traces: an engine goes on answering from its GPU cache, and stores what it computes behind a wrong
prefix as new records (C8). So what was re-created under the same keys before the caches were clean goes too; so do
records that are `derived` now, where the policy takes those. What cannot be cleaned opens an episode, which the next
run closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from app.cleanup.dirty import DirtyItems
from app.cleanup.disk import signed
from app.cleanup.episodes import Episodes, OpenEpisode
from app.cleanup.passes import PassDeps, RemovalPass
from app.cleanup.plan import Group, Planner, StoreFacts
from app.cleanup.policy import DIRTY_REASONS, REASONS, Limits, Select
from app.cleanup.ports import CANARY, INODE, MTIME, NAME, Batch, Selection
from app.cleanup.removal import LEFT_BEHIND
from app.cleanup.steps import Steps
from app.cleanup.tiers import Mark, Served, TierResult, Tiers
from app.lmcache.object_keys import ObjectKey, decode_model, encode_model

#: Passes over L2 after the first. Each goes over what came back before the caches were clean.
MAX_PASSES = 3
_AT_ONCE = 1000
#: States of items that left L2 by us, or by somebody else, while a cache may still hold what they were.
_TOUCHED = frozenset({"quarantined", "deleted", "vanished", "changed", LEFT_BEHIND})
#: What engines may be served wrong answers from, by class.
_WRONG = {
    "unverified": frozenset({"derived"}),
    **{cls: found for cls, reasons in REASONS.items() if (found := DIRTY_REASONS & frozenset(reasons))},
}
_ALWAYS = 2**63
_NOT_AGAIN = frozenset({"foreign", "temporary", "current"})


@dataclass(frozen=True)
class ClearingResult:
    """What came of it. `waiting`: ways out, empty when everything is clean. `closed`: episodes that ended.

    `left`: sentences on wrong records that lie in the store yet, which this run did not take (a limit, an error, a
    filter that meant others).
    """

    waiting: tuple[str, ...] = ()
    closed: int = 0
    again: int = 0
    models: frozenset[str] = frozenset()
    left: tuple[str, ...] = ()


class Clearing:
    """One run's way through the tiers.

    `items_of(run ids)` gives the dirty items of runs; `tell` lets the inventory know what is gone, before a scan.
    """

    def __init__(
        self,
        deps: PassDeps,
        passes: RemovalPass,
        tiers: Tiers,
        episodes: Episodes,
        steps: Steps,
        *,
        items_of: Callable[[Sequence[int]], DirtyItems],
        check_cancel: Callable[[], None],
        tell: Callable[[], None],
    ) -> None:
        self._deps = deps
        self._passes = passes
        self._tiers = tiers
        self._episodes = episodes
        self._steps = steps
        self._items_of = items_of
        self._check_cancel = check_cancel
        self._tell = tell
        self._run_id = deps.journal.run_id
        self._round = 1
        self._served: Served | None = None

    def announce(self) -> None:
        """Before the first pass. Raises OSError of the database only."""
        models = self._items_of([self._run_id]).models()
        if not models:
            return
        served = self._ask()
        names = _spelt(served)
        possible = frozenset(m for m in models if m in names or served.unknown)
        self._episodes.announce(self._deps.store_id, possible, self._run_id)

    def go(self) -> ClearingResult:
        """Everything after the first pass over L2. Raises Interrupted, Cancelled, StoreError, OSError."""
        self._deps.root.verify()
        episodes = self._episodes.open_of(self._deps.store_id)
        mine = self._items_of([self._run_id])
        touched = mine.models(states=_TOUCHED)
        earlier = [e for e in episodes if e.run_ids != (self._run_id,)]
        # A model that no engine serves any more is not waited for: whoever serves it next starts with clean caches.
        models = frozenset(e.model_name for e in episodes if e.model_name in touched or e in earlier)
        if not models:
            self._episodes.drop_announced(self._deps.store_id, self._run_id)
            if touched:
                self._steps.add("l1", "skipped", "no engine serves the models of these records: L2 was all there was")
            return ClearingResult()
        dirty = self._items_of(sorted({self._run_id, *(i for e in episodes for i in e.run_ids)}))
        fresh = mine.has_other_than_derived(_TOUCHED) or not earlier
        names = _spelt(self._ask())
        return self._clear(models, dirty, lambda: dirty.keys(models, names), None if fresh else _latest(earlier))

    def _ask(self) -> Served:
        """Which models are served; asked once a run."""
        if self._served is None:
            self._served = asyncio.run(self._tiers.served())
        return self._served

    def _clear(
        self,
        models: frozenset[str],
        dirty: DirtyItems,
        keys: Callable[[], Iterator[list[ObjectKey]]],
        mark: Mark | None,
    ) -> ClearingResult:
        derived = self._sweep(models)
        if derived:
            self._steps.add("l2", "done", f"{derived} more records were derived from wrong ones since the scan")
        l1 = asyncio.run(self._tiers.clear_l1(keys, mark or Mark(self._deps.clock())))
        self._say("l1", l1)
        if mark is None:
            mark = Mark(self._deps.clock(), asyncio.run(self._tiers.starts()))
        l0 = asyncio.run(self._tiers.clear_l0(models, mark))
        self._say("l0", l0)
        waiting = (*l1.waiting, *l0.waiting)
        if waiting:
            return self._wait(models, mark, waiting)
        again, clean_at, clean_ns = 0, self._deps.clock(), 0
        for number in range(MAX_PASSES):
            self._check_cancel()
            self._deps.root.verify()
            clean_at, clean_ns = self._deps.clock(), self._deps.lock.beat()
            found = self._recreated(dirty, models, clean_ns) + self._sweep(models)
            again += found
            l1 = asyncio.run(self._tiers.clear_l1(keys, mark))
            if l1.waiting:
                self._say("l1_again", l1)
                return self._wait(models, mark, l1.waiting)
            if not found or number == MAX_PASSES - 1:
                break
            # What came back may have been read again meanwhile.
            l0 = asyncio.run(self._tiers.clear_l0(models, mark))
            if l0.waiting:
                self._say("l0", l0)
                return self._wait(models, mark, l0.waiting)
        self._steps.add(
            "l2_again", "done", f"{again} records had come back and went again" if again else "none came back"
        )
        self._say("l1_again", l1)
        left = self._still_wrong(models, clean_ns)
        self._deps.root.verify()  # where the quarantine was taken away meanwhile, nothing is called clean
        for model in sorted(models - left.keys()):
            self._deps.inventory.cleared(self._deps.store_id, model, clean_at, self._run_id)
        closed = self._episodes.close(self._deps.store_id, models, self._run_id)
        told = tuple(_left_over(model, number) for model, number in sorted(left.items()))
        for sentence in told:
            self._steps.add("verify", "waiting", sentence)
        return ClearingResult(closed=closed, again=again, models=models, left=told)

    def _wait(self, models: frozenset[str], mark: Mark, waiting: tuple[str, ...]) -> ClearingResult:
        self._episodes.keep_open(self._deps.store_id, models, self._run_id, mark, waiting)
        return ClearingResult(waiting=waiting, models=models)

    def _say(self, step: str, result: TierResult) -> None:
        self._steps.add(step, "done" if result.clean else "waiting", result.detail)

    # what is left

    def _still_wrong(self, models: frozenset[str], until_ns: int) -> dict[str, int]:
        """Records of these models that are wrong, or derived and written up to `until_ns`, and lie in the store yet.

        Engines go on reading them, so that L2 is not clean (C8), however clean the caches are at this moment.
        """
        self._tell()
        # A run that takes derived records has scanned for its last sweep. Any other knows only the scan before it,
        # which misses what was stored or taken by somebody else since.
        if self._deps.spec.takes_derived and not self._count_wrong(models, until_ns):
            return {}
        self._deps.inventory.refresh(self._deps.store_id, self._check_cancel)
        return self._count_wrong(models, until_ns)

    def _count_wrong(self, models: frozenset[str], until_ns: int) -> dict[str, int]:
        deps = self._deps
        # What a canary keeps has a salt of its own: nobody else reads it.
        kept = {name for name, why in deps.inventory.held(deps.store_id).items() if why == CANARY}
        found: dict[str, int] = {}
        for batch in deps.inventory.select(deps.store_id, Selection(classes=_WRONG, hard_links=True)):
            model = None if batch.model is None else encode_model(batch.model)
            if model is None or model not in models:
                continue
            # What was written behind clean caches is called derived, too, until this run has said that they are.
            latest = until_ns if batch.reason == "derived" else _ALWAYS
            number = sum(row[MTIME] <= latest and row[NAME] not in kept for row in batch.rows)
            if number:
                found[model] = found.get(model, 0) + number
        return found

    # what came back

    def _recreated(self, dirty: DirtyItems, models: frozenset[str], until_ns: int) -> int:
        """Removes what lies under the keys again, written before the caches were clean."""
        deps = self._deps
        found = list(dirty.recreated(deps.root, models, until_ns))
        groups: list[Group] = []
        for start in range(0, len(found), _AT_ONCE):
            part = found[start : start + _AT_ONCE]
            judged = deps.inventory.classify_now(deps.store_id, [fact for _, fact in part])
            for (item, fact), (cls, reason) in zip(part, judged, strict=True):
                if cls not in _NOT_AGAIN:
                    row = (*fact[:5], signed(fact.inode), None)
                    groups.append(Group(cls, reason, "recreated", item.action, fact.device, [row]))
        return self._remove(groups)

    def _sweep(self, models: frozenset[str]) -> int:
        """Removes records that are derived now and were not in the plan, where the policy takes derived ones."""
        deps = self._deps
        if not deps.spec.takes_derived:
            return 0
        self._tell()
        deps.inventory.refresh(deps.store_id, self._check_cancel)
        spec = replace(deps.spec, select=(Select("derived"),), filters=None, limits=Limits())
        facts = StoreFacts(0, 0, device=deps.root.device)
        planner = Planner(spec, facts, deps.clock(), deps.inventory.held(deps.store_id))
        failed = deps.journal.failed_files()

        def source(selection: Selection) -> Iterator[Batch]:
            for batch in deps.inventory.select(deps.store_id, selection):
                if batch.model is not None and encode_model(batch.model) in models:
                    yield batch._replace(rows=[row for row in batch.rows if (row[NAME], row[INODE]) not in failed])

        return self._remove(list(planner.groups(source)))

    def _remove(self, groups: list[Group]) -> int:
        if not groups:
            return 0
        self._round += 1
        self._deps.journal.append(groups, self._round, self._deps.tally)
        return self._passes.go(self._round)


def _left_over(model: str, number: int) -> str:
    one = number == 1
    which = "record" if one else "records"
    return (
        f"{number:,} {which} of {decode_model(model)} that {'is' if one else 'are'} wrong, or may be (derived), "
        f"{'lies' if one else 'lie'} in the store yet: engines go on reading {'it' if one else 'them'}, and "
        "what they store behind counts as derived until a run has taken all. A policy such as Keep it safe does."
    )


def _spelt(served: Served) -> dict[str, str]:
    """The servers' own spelling of the models in record names."""
    return {encode_model(model): model for model in served.models}


def _latest(episodes: Sequence[OpenEpisode]) -> Mark:
    """The mark that all of the episodes are behind of."""
    starts: dict[str, float | None] = {}
    for episode in episodes:
        for name, start in episode.mark.starts.items():
            seen = starts.get(name)
            starts[name] = start if seen is None or (start is not None and start > seen) else seen
    return Mark(max(e.mark.at for e in episodes), starts)
