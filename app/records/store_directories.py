"""Which directory each store is: checked before anything of a store is read or written, told, accepted by a person.

A directory that is not proven to be the one the last scan knew (`same_store.py`) is refused whole: no scan, no cleanup,
not even our own folder is made in it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog
from sqlalchemy import select

from app.audit.service import AuditService
from app.clock import Clock, iso
from app.database import Database
from app.errors import Conflict, InvalidInput, StoreError
from app.fleet.mounts import place_of
from app.fleet.service import FleetService
from app.fleet.targets import StoreTarget
from app.records.inventory_file import Inventory, remove_inventory
from app.records.same_store import (
    FoundDirectory,
    KnownDirectory,
    Sampled,
    count_entries,
    find_directory,
    identity_text,
    is_same,
    read_mark,
    sample_of,
    set_mark,
)
from app.records.scan_work import inventory_lock
from app.records.schemas import ANOTHER_SCAN, StoreDirectoryView
from app.records.store_dir import StoreDirectory
from app.records.tables import Scan, StoreDirectoryRow
from app.records.volatile import began_anew
from app.scheduling.work import SUCCEEDED

log = structlog.get_logger()

#: What the audit trail calls a directory that a person said to be the store, and one that was followed by itself.
ACCEPTED, BEGAN_ANEW = "store.accept_directory", "store.began_anew"


class AnotherDirectory(StoreError):
    """The directory at the store's path is not proven to be the one that the last scan knew."""

    code = "another_directory"


class WouldBeginAnew(AnotherDirectory):
    """A volatile one that began anew: the next scan follows it, nobody else does."""


class AnotherStores(AnotherDirectory):
    """The directory at the store's path is that of another store; no person can say that it is this one's."""


class StoreDirectories:
    """Rows of `store_directory`. `path_of` says where a store's inventory is kept."""

    def __init__(
        self, db: Database, clock: Clock, audit: AuditService, fleet: FleetService, path_of: Callable[[int], Path]
    ) -> None:
        self._db = db
        self._clock = clock
        self._audit = audit
        self._fleet = fleet
        self._path_of = path_of
        self._keeps: list[Callable[[int], bool]] = []

    def on_follow(self, keeps: Callable[[int], bool]) -> None:
        """Rooms above say whether something of a store must not be forgotten: no volatile one is followed then."""
        self._keeps.append(keeps)

    def check(self, store_id: int, directory: StoreDirectory, *, follow: bool = False) -> bool:
        """Whether it is proven to be the directory known before; False where none is known yet. Writes nothing there.

        `follow`: a volatile one that began anew (`volatile.py`) is followed, and False too; that changes what is known
        of the store, so only a scan does. Raises AnotherDirectory, which says what changed and the way out, and
        WouldBeginAnew where a scan would follow.
        """
        self._refuse_another_stores(store_id, directory)
        known = self._known(store_id)
        if known is None:
            return False
        found = find_directory(directory, known, lambda: self._sample(store_id))
        if not is_same(known, found):
            anew = began_anew(directory, known) and not any(keeps(store_id) for keeps in self._keeps)
            if anew and not follow:
                raise WouldBeginAnew(self._sentence(store_id, directory, known, found, anew=True))
            if not anew or not self._follow(store_id, directory, known):
                raise AnotherDirectory(self._sentence(store_id, directory, known, found))
            return False
        return True

    def trouble(self, store: StoreTarget) -> str | None:
        """Why the directory that lies there now is refused; None where a scan would take it, or it cannot be opened."""
        try:
            with StoreDirectory.open(store.path) as directory:
                self.check(store.id, directory)
        except WouldBeginAnew:
            return None
        except AnotherDirectory as error:
            return error.detail
        except StoreError:
            return None
        return None

    def remember(self, store_id: int, directory: StoreDirectory) -> None:
        """After a scan: this is the store, and it gets its mark."""
        self._save(store_id, directory, set_mark(directory))

    def view(self, store_id: int) -> StoreDirectoryView:
        """What is known and what lies there now. Raises NotFound."""
        store = self._fleet.store_target(store_id)
        view = StoreDirectoryView(state="not_known_yet")
        try:
            with StoreDirectory.open(store.path) as directory:
                view.found = identity_text(directory)
                if self.check(store.id, directory):
                    view.state = "same"
                view.began_anew_at = self._began_anew_at(store.id)
        except AnotherDirectory as error:
            view.state, view.reason = "another", error.detail
        except StoreError as error:
            view.state, view.reason = "unreadable", error.detail
        known = self._known(store.id)
        view.known = None if known is None else known.identity
        return view

    def accept(self, store_id: int, found: str | None, *, actor: str) -> StoreDirectoryView:
        """A person says: the directory that lies there now is the store. `found` is the one they saw, ``device:inode``.

        Its inventory is forgotten (it says nothing of this directory), so the next scan is a first one. Where nothing
        has to be accepted, nothing changes. Raises NotFound, StoreError; InvalidInput when another one than `found`
        lies there; Conflict while a scan is under way.
        """
        store = self._fleet.store_target(store_id)
        with StoreDirectory.open(store.path) as directory, inventory_lock(self._path_of(store.id)) as mine:
            if not mine:
                raise Conflict(ANOTHER_SCAN)
            now = identity_text(directory)
            if found is not None and found != now:
                raise InvalidInput.field(
                    "found", f"{found!r} is not what lies at {store.path} now, which is {now!r}; look again"
                )
            try:
                self.check(store.id, directory)
            except AnotherStores:
                raise
            except AnotherDirectory:
                known = self._known(store.id)
                self._save(store.id, directory, set_mark(directory), told=(actor, ACCEPTED), before=known)
                remove_inventory(self._path_of(store.id))
        return self.view(store_id)

    # inside

    def _refuse_another_stores(self, store_id: int, directory: StoreDirectory) -> None:
        """Two stores over one directory count it twice, and each cleans what the other one knows. Bound to the path of
        a store, the directory of another has that one's mark, or lies at its place in the same file system."""
        mark = read_mark(directory)
        with self._db.read() as session:
            marked = (
                ()
                if mark is None
                else session.scalars(select(StoreDirectoryRow.store_id).where(StoreDirectoryRow.mark == mark)).all()
            )
        # Whose mark it has, and alone, is not refused because another one was bound over it.
        if marked and set(marked) == {store_id}:
            return
        place = place_of(directory.path)
        for other in self._fleet.store_targets():
            if other.id == store_id:
                continue
            if other.id in marked or (place is not None and place_of(other.path) == place):
                raise AnotherStores(
                    f"{directory.path} is the directory of the store {other.name!r} ({other.path}). Nothing was taken "
                    "over and nothing was written. Mount this store's own volume there, or forget one of the two; if "
                    "it is a copy of that store's directory, remove .tierkeeper/store in the copy"
                )

    def _follow(self, store_id: int, directory: StoreDirectory, known: KnownDirectory) -> bool:
        """The store begins anew there, what was known of its records is forgotten. False while a scan is under way."""
        with inventory_lock(self._path_of(store_id)) as mine:
            if not mine:
                return False
            if self._known(store_id) == known:  # else somebody else has just done it
                self._save(store_id, directory, None, told=("system", BEGAN_ANEW), before=known)
                remove_inventory(self._path_of(store_id))
                log.warning("store.began_anew", store=store_id, path=directory.path, fs_type=known.fs_type)
        return True

    def _known(self, store_id: int) -> KnownDirectory | None:
        with self._db.read() as session:
            row = session.get(StoreDirectoryRow, store_id)
            if row is not None:
                return KnownDirectory(row.identity, row.mark, row.fs_type, row.seen_at)
        # Scanned by a version that kept this in the inventory alone.
        inventory = Inventory.open(self._path_of(store_id))
        if inventory is None:
            return None
        with inventory:
            identity = inventory.meta().get("directory")
        return None if identity is None else KnownDirectory(str(identity), None, None)

    def _began_anew_at(self, store_id: int) -> str | None:
        events = self._audit.list_events(
            page_size=1, page_token=None, target_kind="store", target_id=str(store_id), action=BEGAN_ANEW
        )
        return events.items[0].at if events.items else None

    def _sample(self, store_id: int) -> list[Sampled] | None:
        """Of its inventory; None where that is lost: a scan made one since the directory was last accepted or followed,
        which had none."""
        inventory = Inventory.open(self._path_of(store_id))
        if inventory is not None:
            with inventory:
                return sample_of(inventory)
        with self._db.read() as session:
            lost = session.scalar(
                select(Scan.id)
                .join(StoreDirectoryRow, StoreDirectoryRow.store_id == Scan.store_id)
                .where(Scan.store_id == store_id, Scan.state == SUCCEEDED, Scan.finished_at > StoreDirectoryRow.seen_at)
                .limit(1)
            )
        return [] if lost is None else None

    def _save(
        self,
        store_id: int,
        directory: StoreDirectory,
        mark: str | None,
        *,
        told: tuple[str, str] | None = None,
        before: KnownDirectory | None = None,
    ) -> None:
        identity, fs_type = identity_text(directory), directory.mount().fs_type
        with self._db.write() as session:
            row = session.get(StoreDirectoryRow, store_id)
            if row is None:
                row = StoreDirectoryRow(store_id=store_id, identity=identity, seen_at=0.0)
                session.add(row)
            row.identity, row.mark, row.fs_type, row.seen_at = identity, mark, fs_type, self._clock()
            if told is not None:
                actor, action = told
                self._audit.record(
                    session,
                    actor=actor,
                    action=action,
                    target_kind="store",
                    target_id=store_id,
                    detail={"from": before.identity if before else None, "to": identity, "fs_type": fs_type},
                )

    def _sentence(
        self,
        store_id: int,
        directory: StoreDirectory,
        known: KnownDirectory,
        found: FoundDirectory,
        *,
        anew: bool = False,
    ) -> str:
        with self._db.read() as session:
            last = session.execute(
                select(Scan.records, Scan.finished_at)
                .where(Scan.store_id == store_id, Scan.state == SUCCEEDED)
                .order_by(Scan.id.desc())
                .limit(1)
            ).one_or_none()
        then = known.identity + (f", {known.fs_type}" if known.fs_type else "")
        if last is not None:
            records, at = last
            then += f", {records:,} record{'' if records == 1 else 's'}" + (f" at {iso(at)}" if at is not None else "")
        now = f"{found.identity}, {directory.mount().fs_type or 'file system unknown'}, {count_entries(directory)}"
        why = "; its mark is another store's" if known.mark and found.mark else ""
        if found.alike is None:
            why = "; it has no mark, and the inventory that its records could be compared with is lost"
        told = (
            f"{directory.path} is not the directory that the last scan knew: then {then}; now {now}{why} "
            "(device:inode). Nothing was taken over and nothing was written. "
        )
        if anew:
            return told + "It began anew in memory, where what was there ends with its mount: the next scan follows it"
        return told + (
            "If its volume is not mounted, mount it "
            "and try again; if this directory is the store now, say so on the store's page, or with "
            "tierkeeper scan STORE --accept-directory"
        )
