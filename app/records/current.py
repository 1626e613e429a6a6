"""The inventories of stores, judged by what is known now, and what is needed to read and show them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import select

from app.clock import Clock
from app.database import Database
from app.fleet.targets import StoreTarget
from app.records import epochs as epoch_rows
from app.records.choosing import RecordRow
from app.records.classify import Context, Sample, learn_sizes
from app.records.detail import record_detail, sizes_seen
from app.records.epoch_counts import EpochKey
from app.records.epoch_views import epoch_ids, epoch_views, folds, keys_of
from app.records.inventory_file import Inventory
from app.records.judging import judge_inventory
from app.records.knowledge import Knowledge, KnowledgeSource, Stand
from app.records.past import past_of
from app.records.query import Reader
from app.records.scan_work import alignments, inventory_lock
from app.records.schemas import EpochView, PastView, RecordDetail, RecordView
from app.records.store_summary import access_times_of
from app.records.tables import LayoutEpoch, RecordHold, Scan
from app.records.timeline import NS
from app.records.views import record_view
from app.scheduling.work import SUCCEEDED


@dataclass(frozen=True)
class Labels:
    """The observed layouts and models of a store by what its records name them.

    `epoch_ids`: the observed epoch shown for each model, world size and fingerprint; `epochs`: of which of these each
    is, by its id; `names`: model names by how record names spell them, as servers were seen to use them.
    """

    epoch_ids: Mapping[EpochKey, int]
    epochs: Mapping[int, frozenset[EpochKey]]
    names: Mapping[str, str]


#: (store id, name as on the disk) -> what another room has to tell of a record's past.
PastTeller = Callable[[int, bytes], list[PastView]]


class CurrentInventories:
    """Opens inventories; judges them anew when a poll, or somebody's word, came since they were judged last."""

    def __init__(self, *, db: Database, clock: Clock, directory: Path, knowledge: KnowledgeSource) -> None:
        self._db = db
        self._clock = clock
        self._directory = directory
        self._knowledge = knowledge
        #: By inventory file: which one it was, by what it was found judged, and when it had been.
        self._judged: dict[Path, tuple[tuple[int, int], Stand, float]] = {}
        self._lock = threading.Lock()

    def path(self, store_id: int) -> Path:
        """Where a store's inventory is kept."""
        return self._directory / f"store-{store_id}.db"

    def as_found(self, store_id: int) -> Inventory | None:
        """The inventory as it is; the caller closes it."""
        return Inventory.open(self.path(store_id))

    def judged(self, store: StoreTarget) -> Inventory | None:
        """The inventory, judged by the polls up to now; the caller closes it."""
        self.judge_if_stale(store)
        return Inventory.open(self.path(store.id))

    def judge_if_stale(
        self, store: StoreTarget, *, force: bool = False, stand: Stand | None = None
    ) -> Knowledge | None:
        """Judges anew when a poll, or somebody's word, came since it was judged last; what is then known, or None.

        `stand`: where knowledge stands now, if the caller has just asked.
        """
        path = self.path(store.id)
        stand = self._knowledge.stand(store) if stand is None else stand
        if not force and self._seen_judged(path, stand):
            return None
        inventory = Inventory.open(path)
        if inventory is None:
            return None
        with inventory:
            meta = inventory.meta()
            fresh = (meta.get("judged_poll"), meta.get("judged_acts")) == stand
            at = float(meta.get("judged_at") or 0.0)
            if fresh and not self._old(at) and not force:
                self._keep_judged(path, stand, at)
                return None
            with inventory_lock(path) as mine:
                if not mine:
                    return None  # a scan is under way and judges at its end
                known = self._knowledge.load_at(store, stand)
                judge_inventory(inventory, known.context, alignments(inventory))
                with inventory.write():
                    inventory.set_meta(judged_at=known.built_at, judged_poll=known.newest_poll, judged_acts=stand.acts)
            if known.newest_poll == stand.poll:
                self._keep_judged(path, stand, known.built_at)
            return known

    def _old(self, judged_at: float) -> bool:
        """Without polls only ages move: now and then is enough."""
        return self._clock() - judged_at > self._knowledge.fresh_seconds

    def _seen_judged(self, path: Path, stand: Stand) -> bool:
        """Whether this very file was found judged by what is still all there is to know: spares opening it."""
        with self._lock:
            kept = self._judged.get(path)
        return kept is not None and kept[:2] == (_identity(path), stand) and not self._old(kept[2])

    def _keep_judged(self, path: Path, stand: Stand, at: float) -> None:
        identity = _identity(path)
        if identity is not None:
            with self._lock:
                self._judged[path] = (identity, stand, at)

    def with_sizes(self, inventory: Inventory, context: Context) -> Context:
        """The context with what the sizes in the inventory prove."""
        owners = inventory.owners()
        samples = [
            Sample(owners[c.owner].judged, c.min_mtime, c.size, c.records)
            for c in inventory.cohorts().values()
            if c.records > 0
        ]
        return replace(context, sizes=learn_sizes(samples, context, alignments(inventory)))

    def reader(self, store_id: int, inventory: Inventory, labels: Labels | None = None) -> Reader:
        """Queries of an open inventory now."""
        labels = self.labels(store_id) if labels is None else labels
        return Reader(inventory, round(self._clock() * NS), epochs=labels.epochs)

    # what stands beside the inventory

    def sync_epochs(self, store_id: int, known: Knowledge, *, patience: float | None = None) -> list[LayoutEpoch]:
        """Writes down what the timeline says of epochs, if that is news; all rows of the store as they are then.

        `patience`: somebody only looks, and a database that cannot be written within so many seconds is left as it is.
        """
        rows = self.epoch_rows(store_id)
        if not epoch_rows.out_of_step(rows, known.timeline):
            return rows
        if patience is None:
            with self._db.write() as session:
                epoch_rows.sync_observed(session, store_id, known.timeline, self._clock())
        else:
            self._db.write_if_free(
                lambda session: epoch_rows.sync_observed(session, store_id, known.timeline, self._clock()),
                patience=patience,
            )
        return self.epoch_rows(store_id)

    def epoch_rows(self, store_id: int) -> list[LayoutEpoch]:
        """Observed layouts, declarations and adoptions of a store."""
        with self._db.read() as session:
            return list(session.scalars(select(LayoutEpoch).where(LayoutEpoch.store_id == store_id)))

    def labels(self, store_id: int) -> Labels:
        """What records of a store are shown with."""
        row = LayoutEpoch
        columns = (
            row.id,
            row.kind,
            row.fingerprint,
            row.model_name,
            row.world_size,
            row.display_model,
            row.layout,
            row.spans,
            row.created_at,
        )
        query = select(*columns).where(row.store_id == store_id, row.kind == "observed")
        with self._db.read() as session:
            return labels_of(session.execute(query).all())

    def record(self, store: StoreTarget, row_id: int, tellers: Sequence[PastTeller]) -> RecordDetail | None:
        """A row with all that its class rests on, and its past, also as other rooms tell it; None: there is none."""
        stand = self._knowledge.stand(store)
        self.judge_if_stale(store, stand=stand)
        inventory = self.as_found(store.id)
        if inventory is None:
            return None
        rows = self.epoch_rows(store.id)
        labels, epochs = labels_of(rows), epoch_views(rows, None)
        with inventory:
            row = self.reader(store.id, inventory, labels).get(row_id)
            if row is None:
                return None
            context = self.with_sizes(inventory, self._knowledge.recent(store, stand).context)
            sizes = sizes_seen(inventory, row)
        view = record_view(store.id, row, labels.epoch_ids, labels.names, self.held_of(store.id, [row.name]))
        past = self._past(store, view, row, epochs)
        past += [event for tell in tellers for event in tell(store.id, name_bytes(row.name))]
        past.sort(key=lambda event: event.at)
        epoch = next((epoch for epoch in epochs if epoch.id == view.epoch_id), None)
        return record_detail(view, row, context, sizes, past, epoch)

    def _past(
        self, store: StoreTarget, view: RecordView, row: RecordRow, epochs: Sequence[EpochView]
    ) -> list[PastView]:
        """What is known of one record's past."""
        name = name_bytes(row.name)
        with self._db.read() as session:
            hold = session.get(RecordHold, (store.id, name))
            # The first that can have found it; a store has thousands of them.
            ends = session.execute(
                select(Scan.id, Scan.finished_at)
                .where(
                    Scan.store_id == store.id,
                    Scan.state == SUCCEEDED,
                    Scan.finished_at >= max(row.mtime, row.ctime) / NS,
                )
                .order_by(Scan.id)
                .limit(1)
            )
            scans = [(int(ident), float(at)) for ident, at in ends if at is not None]
        return past_of(
            view,
            mtime_ns=row.mtime,
            ctime_ns=row.ctime,
            atime_ns=row.atime,
            scans=scans,
            epochs=epochs,
            hold=hold,
            access_times=access_times_of(store),
        )

    def models(self, store_id: int) -> set[str]:
        """Models with records in the store, as record names spell them."""
        inventory = Inventory.open(self.path(store_id))
        if inventory is None:
            return set()
        with inventory:
            return {owner.model for owner in inventory.owners().values() if not owner.temporary}

    def held_of(self, store_id: int, names: Sequence[str]) -> frozenset[str]:
        """Those of the names that are held."""
        wanted = [name_bytes(name) for name in names]
        with self._db.read() as session:
            found = session.scalars(
                select(RecordHold.name).where(RecordHold.store_id == store_id, RecordHold.name.in_(wanted))
            )
            return frozenset(name.decode("utf-8", "surrogateescape") for name in found)


def labels_of(rows: Sequence[Any]) -> Labels:
    """From rows of `LayoutEpoch`, or of columns of it."""
    found = folds(rows)
    return Labels(
        epoch_ids=epoch_ids(found),
        epochs=keys_of(found),
        names={row.model_name: row.display_model for row in rows if row.kind == "observed"},
    )


def name_bytes(name: str) -> bytes:
    """A name as it stands on the disk."""
    return name.encode("utf-8", "surrogateescape")


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file lies there: a scan that begins anew puts another one in its place."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
