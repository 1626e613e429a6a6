"""One pass over the disk: chunk after chunk judged anew, journalled, moved, compared and settled.

Order in a chunk: is the store still there, may we go on, what are these records *now* (R1), intent committed and
manifest written, then the files. Outcomes of a chunk are committed together with the intent of the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.cleanup.chunks import Chunk
from app.cleanup.disk import StoreRoot
from app.cleanup.items import ItemRow
from app.cleanup.journal import Journal, RunTally
from app.cleanup.lock import StoreLock
from app.cleanup.policy import PolicySpec
from app.cleanup.ports import RESTORED, Inventory
from app.cleanup.quarantine import Manifest, folder_path
from app.cleanup.removal import Outcome, remove, sync_directory
from app.clock import Clock
from app.errors import StoreError

_LOOK_UP_EVERY = 64
_LOOK_UP_SECONDS = 0.5


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
        self._looked_at = deps.clock()
        self._held: dict[bytes, str] = dict(deps.inventory.held(deps.store_id))

    def go(self, round_no: int) -> int:
        """Removes the planned items of a round; returns how many left the directory.

        Raises Interrupted, or StoreError when the store is not what it was.
        """
        deps = self._deps
        before = deps.tally.removed_records
        quarantine = folder_path(folder_of_round(deps.folder, round_no))
        try:
            for chunk in deps.journal.chunks(round_no):
                planned = chunk.in_state("planned")
                if not planned:
                    continue
                deps.root.verify()
                wanted = self._judge(chunk, planned)
                if deps.interrupted():
                    raise Interrupted
                if not wanted:
                    deps.journal.turn("remove", None, deps.tally, chunk)
                    continue
                deps.journal.turn("remove", chunk, deps.tally)
                self._prepare(quarantine, round_no, wanted)
                self._act(quarantine, chunk, wanted)
                deps.lock.beat()
        except OSError as error:
            raise StoreError(f"the run stopped: {deps.root.path}: {error.strerror}") from error
        finally:
            deps.journal.turn("remove", None, deps.tally)
            self._close()
        return deps.tally.removed_records - before

    def _judge(self, chunk: Chunk, planned: list[ItemRow]) -> list[ItemRow]:
        """What may go now; what may not (its class is another now, or somebody holds it) is settled in the chunk."""
        deps = self._deps
        facts = [item.fact() for item in planned]
        wanted: list[ItemRow] = []
        refused: list[Outcome] = []
        for item, (cls, reason) in zip(planned, deps.inventory.classify_now(deps.store_id, facts), strict=True):
            held = self._held.get(item.name)
            if held is not None and not (held == RESTORED and item.why == "filter"):
                outcome = Outcome(item.seq, "held", None, held)
            elif not self._still_wanted(item, cls, reason):
                outcome = Outcome(item.seq, "reclassified", None, f"it is {cls}{f'/{reason}' if reason else ''} now")
            else:
                wanted.append(item)
                continue
            refused.append(outcome)
            deps.tally.count(item, outcome)
        chunk.set(refused, deps.clock())
        return wanted

    def _still_wanted(self, item: ItemRow, cls: str, reason: str | None) -> bool:
        if item.round == 1:
            return self._deps.spec.selects_now(item.why, cls, reason)
        # Re-created under a wrong record's key before the caches were clean (R4): whatever cannot be proven right goes.
        return cls not in ("foreign", "temporary", "current")

    def _prepare(self, quarantine: bytes, round_no: int, wanted: list[ItemRow]) -> None:
        """The manifest tells of a file before the file moves."""
        deps = self._deps
        if self._manifest is None and wanted:
            self._manifest = Manifest(deps.root, quarantine, {**deps.header, "round": round_no})
        if self._manifest is not None:
            self._manifest.add([item for item in wanted if item.action == "quarantine"])

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
        # What the journal is about to call done must survive a power cut, too.
        sync_directory(root.directory.fd)
        sync_directory(root.folder(quarantine))
        self._done += len(wanted)
        deps.progress(self._done)

    def _asked_to_stop(self) -> bool:
        now = self._deps.clock()
        if 0 <= now - self._looked_at < _LOOK_UP_SECONDS:
            return False
        self._looked_at = now
        return self._deps.interrupted()

    def _close(self) -> None:
        if self._manifest is not None:
            self._manifest.close()
            self._manifest = None
