"""After the quarantine of a store was taken away under a run, a restore or a purge: what is where, and true counts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from app.cleanup.chunks import read_chunks
from app.cleanup.disk import StoreRoot
from app.cleanup.footing import FootingLost
from app.cleanup.items import ItemRow
from app.cleanup.journal import WAITING, recount
from app.cleanup.removal import LEFT_BEHIND, same_file
from app.clock import Clock
from app.database import Database
from app.errors import StoreError


def account_for_lost(
    db: Database,
    clock: Clock,
    root: StoreRoot,
    lost: FootingLost,
    *,
    run_id: int,
    plan_id: int,
    folder_of_round: Callable[[int], bytes],
) -> StoreError:
    """What the work ends with: `lost`, where the run's records that wait in quarantine lie now, how many are gone.

    Those are `vanished` from now on. Asks the folders that are held open, wherever they are; only looks there.
    """
    lie: Counter[tuple[str | None, bytes]] = Counter()
    vanished = 0
    for chunk in read_chunks(db, plan_id):
        waiting, folder = chunk.in_state(*WAITING), folder_of_round(chunk.round)
        held = root.footing.folder(folder) if waiting else None
        if held is None:  # nobody worked there
            continue
        left_behind = {item.seq for item in chunk.in_state(LEFT_BEHIND)}
        gone = [item.seq for item in waiting if not _lies_in(held, item, checked=item.seq not in left_behind)]
        lie[root.footing.where(folder), folder] += len(waiting) - len(gone)
        vanished += len(gone)
        chunk.set([(seq, "vanished", None, "it went with the quarantine folder") for seq in gone], clock())
        with db.write(durable=True) as session:
            chunk.save(session)
    recount(db, run_id, plan_id)
    told = [_told(root.path, place, folder, number) for (place, folder), number in lie.items() if number]
    if vanished:
        told.append(f"{_records(vanished)} that had been moved into quarantine went with it, and count as vanished.")
    return StoreError(f"{lost.detail}. {' '.join(told or ['Nothing of this run lies in quarantine.'])}")


def _lies_in(folder: int, item: ItemRow, *, checked: bool) -> bool:
    try:
        found = os.stat(item.name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return same_file(found, item) or not checked


def _told(store: str, place: str | None, folder: bytes, number: int) -> str:
    at_home = f"{store}/{folder.decode()}"
    if place is None:
        return f"{_records(number)} that had been moved into quarantine lie in a folder whose path cannot be told."
    told = f"{_records(number)} that had been moved into quarantine lie in {place}."
    return told if place == at_home else f"{told} To have them restored, move that folder back to {at_home}."


def _records(number: int) -> str:
    return f"{number:,} record{'' if number == 1 else 's'}"
