"""One pass over the disk: chunk after chunk judged anew, journalled, moved, compared and settled.

A few chunks go together: their intents are committed and the manifest is written, then, chunk by chunk: is the store
still there, what are these records *now* (R1), may we go on, the files. Outcomes are committed together with the next
intents, after the directories were synced.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from app.cleanup.chunks import Chunk
from app.cleanup.disk import FULL, MAKE_ROOM, StoreRoot
from app.cleanup.items import ItemRow
from app.cleanup.journal import Journal, RunTally
from app.cleanup.lock import StoreLock
from app.cleanup.policy import PolicySpec
from app.cleanup.ports import RESTORED, Inventory
from app.cleanup.quarantine import Manifest, folder_path, remove_if_empty
from app.cleanup.removal import Outcome, remove, sync_directory
from app.clock import Clock
from app.errors import StoreError

#: Chunks whose intents are committed together: a disk makes one wait for a commit, however many rows are in it.
CHUNKS_AT_ONCE = 8
_LOOK_UP_EVERY = 64
_LOOK_UP_SECONDS = 0.5
#: How long a pass waits in all for polls that are late, and how often it looks.
_LATE_POLLS_SECONDS, _LATE_POLLS_LOOK = 30.0, 0.5


@dataclass
class PassDeps:
    """What a pass works with. `interrupted` says whether to stop (somebody cancelled, the panel shuts down)."""

    root: StoreRoot
    lock: StoreLock
    journal: Journal
    tally: RunTally
    inventory: Inventory
    clock: Clock
    store_id: int
    folder: str
    header: dict[str, Any]
    spec: PolicySpec
    interrupted: Callable[[], bool]
    progress: Callable[[int], None]


class Interrupted(Exception):
    """A pass stopped between two files because it was asked to; everything done is settled."""


def folder_of_round(folder: str, round_no: int) -> str:
    """A name can lie in quarantine once a round: what was re-created meanwhile goes into a folder of its own."""
    return folder if round_no == 1 else f"{folder}.{round_no}"


class RemovalPass:
    """Runs rounds of one run."""

    def __init__(self, deps: PassDeps) -> None:
        self._deps = deps
        self._manifest: Manifest | None = None
        self._done = 0
        self._quarantine = b""
        self._moved = False  # files, since directories were last made to survive a power cut
        self._looked_at = deps.clock()
        self._patience = _LATE_POLLS_SECONDS
        self._held: dict[bytes, str] = dict(deps.inventory.held(deps.store_id))

    def go(self, round_no: int) -> int:
        """Removes the planned items of a round; returns how many left the directory.

        Raises Interrupted, or StoreError when the store, or our own folder in it, is not what it was.
        """
        deps = self._deps
        before = deps.tally.removed_records
        quarantine = folder_path(folder_of_round(deps.folder, round_no))
        self._quarantine = quarantine
        try:
            for batch in self._batches(round_no):
                if deps.interrupted():
                    raise Interrupted
                deps.root.verify()
                deps.journal.turn("remove", batch, deps.tally)
                self._prepare(quarantine, round_no, batch)
                for chunk in batch:
                    deps.root.verify()
                    planned = chunk.in_state("planned")
                    wanted = self._judge(chunk, planned)
                    if deps.interrupted():
                        raise Interrupted
                    self._act(quarantine, chunk, wanted)
                    self._done += len(planned)  # what stays where it is is done with, too
                    deps.progress(self._done)
                    deps.lock.beat()
                self._sync()
            deps.root.verify()
        except Interrupted:
            deps.root.verify()  # what it moved so far counts, too
            raise
        except OSError as error:
            way_out = f"; {MAKE_ROOM}" if error.errno in FULL else ""
            raise StoreError(f"the run stopped: {deps.root.path}: {error.strerror}{way_out}") from error
        finally:
            self._sync()
            deps.journal.turn("remove", (), deps.tally)
            self._close(folder_of_round(deps.folder, round_no))
        return deps.tally.removed_records - before

    def _batches(self, round_no: int) -> Iterator[list[Chunk]]:
        """Chunks with something to do, a few at a time: as many as one wait for the disk is to cover."""
        chunks = (chunk for chunk in self._deps.journal.chunks(round_no) if chunk.in_state("planned"))
        while batch := list(islice(chunks, CHUNKS_AT_ONCE)):
            yield batch

    def _judge(self, chunk: Chunk, planned: list[ItemRow]) -> list[ItemRow]:
        """What may go now; what may not (its class is another now, or somebody holds it) is settled in the chunk."""
        deps = self._deps
        judged = self._classes_now(planned)
        # Records of a plan are of a few kinds: what holds for one holds for all like it.
        known: dict[tuple[str, str, str | None, int], bool] = {}
        wanted: list[ItemRow] = []
        refused: list[Outcome] = []
        held_names = self._held
        for item, (cls, reason) in zip(planned, judged, strict=True):
            held = held_names.get(item.name) if held_names else None
            if held is not None and not (held == RESTORED and item.why == "filter"):
                outcome = Outcome(item.seq, "held", None, held)
            else:
                kind = (item.why, cls, reason, item.round)
                go = known.get(kind)
                if go is None:
                    go = known[kind] = self._still_wanted(item, cls, reason)
                if go:
                    wanted.append(item)
                    continue
                outcome = Outcome(item.seq, "reclassified", None, f"it is {cls}{f'/{reason}' if reason else ''} now")
            refused.append(outcome)
            deps.tally.count(item, outcome)
        chunk.set(refused, deps.clock())
        return wanted

    def _classes_now(self, planned: list[ItemRow]) -> list[tuple[str, str | None]]:
        """What these records are now. Where a poll that is late leaves a wrong one undecided, that poll is waited for:
        to go on would leave what is wrong where it is, and take what was derived from it.
        """
        facts = [item.fact() for item in planned]
        judged = self._deps.inventory.classify_now(self._deps.store_id, facts)
        undecided = any(
            cls == "unverified" and not self._still_wanted(item, cls, reason)
            for item, (cls, reason) in zip(planned, judged, strict=True)
        )
        if undecided and self._polls_are_in():
            judged = self._deps.inventory.classify_now(self._deps.store_id, facts)
        return judged

    def _polls_are_in(self) -> bool:
        """Waits for late polls, in all no longer than the pass has patience. Raises Interrupted."""
        deps = self._deps
        while not deps.inventory.polled_in_time(deps.store_id):
            if self._patience <= 0:
                return False
            if deps.interrupted():
                raise Interrupted
            deps.lock.beat()
            time.sleep(_LATE_POLLS_LOOK)
            self._patience -= _LATE_POLLS_LOOK
        return True

    def _still_wanted(self, item: ItemRow, cls: str, reason: str | None) -> bool:
        if item.round == 1:
            return self._deps.spec.selects_now(item.why, cls, reason)
        # Re-created under a wrong record's key before the caches were clean (R4): whatever cannot be proven right goes.
        return cls not in ("foreign", "temporary", "current")

    def _prepare(self, quarantine: bytes, round_no: int, batch: Sequence[Chunk]) -> None:
        """The manifest tells of a file before the file moves (and perhaps of one that then stays where it is)."""
        deps = self._deps
        planned = [item for chunk in batch for item in chunk.in_state("planned")]
        if self._manifest is None:
            self._manifest = Manifest(deps.root, quarantine, {**deps.header, "round": round_no})
        self._manifest.add([item for item in planned if item.action == "quarantine"])

    def _act(self, quarantine: bytes, chunk: Chunk, wanted: list[ItemRow]) -> None:
        """Moves the files of one chunk; stops between two of them when asked to."""
        deps = self._deps
        root = deps.root
        outcomes: list[Outcome] = []
        try:
            for position, item in enumerate(wanted):
                if position % _LOOK_UP_EVERY == 0 and self._asked_to_stop():
                    raise Interrupted
                outcomes.append(remove(root, quarantine, item))
        finally:
            chunk.set(outcomes, deps.clock())
            deps.tally.count_all(wanted, outcomes)
            self._moved = True

    def _sync(self) -> None:
        """What the journal is about to call done must survive a power cut, too."""
        if self._moved:
            sync_directory(self._deps.root.directory.fd)
            with contextlib.suppress(OSError):
                sync_directory(self._deps.root.folder(self._quarantine))
            self._moved = False

    def _asked_to_stop(self) -> bool:
        now = self._deps.clock()
        if 0 <= now - self._looked_at < _LOOK_UP_SECONDS:
            return False
        self._looked_at = now
        return self._deps.interrupted()

    def _close(self, folder: str) -> None:
        if self._manifest is not None:
            self._manifest.close()
            self._manifest = None
            if not self._deps.tally.waiting_records:
                remove_if_empty(self._deps.root, folder)
