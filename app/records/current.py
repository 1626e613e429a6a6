"""The inventories of stores, judged by what is known now, and what is needed to read and show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sqlalchemy import select

from app.clock import Clock
from app.database import Database
from app.fleet.targets import StoreTarget
from app.records import epochs as epoch_rows
from app.records.classify import Context, Sample, learn_sizes
from app.records.inventory_file import Inventory
from app.records.judging import judge_inventory
from app.records.knowledge import Knowledge, KnowledgeSource
from app.records.query import Reader
from app.records.scan_work import alignments, inventory_lock
from app.records.tables import LayoutEpoch, RecordHold
from app.records.timeline import NS


class CurrentInventories:
    """Opens inventories; judges them anew when a poll, or somebody's word, came since they were judged last."""

    def __init__(self, *, db: Database, clock: Clock, directory: Path, knowledge: KnowledgeSource) -> None:
        self._db = db
        self._clock = clock
        self._directory = directory
        self._knowledge = knowledge

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

    def judge_if_stale(self, store: StoreTarget, *, force: bool = False) -> Knowledge | None:
        """Judges anew when a poll, or somebody's word, came since it was judged last; what is then known, or None."""
        path = self.path(store.id)
        inventory = Inventory.open(path)
        if inventory is None:
            return None
        with inventory:
            meta = inventory.meta()
            latest, acts = self._knowledge.latest_poll(store), self._knowledge.acts_version(store.id)
            fresh = (meta.get("judged_poll"), meta.get("judged_acts")) == (latest, acts)
            # Without polls only ages move: now and then is enough.
            old = self._clock() - float(meta.get("judged_at") or 0.0) > self._knowledge.fresh_seconds
            if fresh and not old and not force:
                return None
            with inventory_lock(path) as mine:
                if not mine:
                    return None  # a scan is under way and judges at its end
                known = self._knowledge.load(store)
                judge_inventory(inventory, known.context, alignments(inventory))
                with inventory.write():
                    inventory.set_meta(judged_at=known.built_at, judged_poll=known.newest_poll, judged_acts=acts)
                return known

    def with_sizes(self, inventory: Inventory, context: Context) -> Context:
        """The context with what the sizes in the inventory prove."""
        owners = inventory.owners()
        samples = [
            Sample(owners[c.owner].judged, c.min_mtime, c.size, c.records)
            for c in inventory.cohorts().values()
            if c.records > 0
        ]
        return replace(context, sizes=learn_sizes(samples, context, alignments(inventory)))

    def reader(self, store_id: int, inventory: Inventory) -> Reader:
        """Queries of an open inventory now."""
        rows = self.epoch_rows(store_id)
        fingerprints = {row.id: row.fingerprint for row in rows if row.kind == "observed" and row.fingerprint}
        return Reader(inventory, round(self._clock() * NS), epochs=fingerprints)

    # what stands beside the inventory

    def sync_epochs(self, store_id: int, known: Knowledge) -> None:
        """Writes down what the timeline says of epochs, if that is news."""
        if epoch_rows.out_of_step(self.epoch_rows(store_id), known.timeline):
            with self._db.write() as session:
                epoch_rows.sync_observed(session, store_id, known.timeline, self._clock())

    def epoch_rows(self, store_id: int) -> list[LayoutEpoch]:
        """Observed layouts, declarations and adoptions of a store."""
        with self._db.read() as session:
            return list(session.scalars(select(LayoutEpoch).where(LayoutEpoch.store_id == store_id)))

    def epoch_ids(self, store_id: int) -> dict[str, int]:
        """{fingerprint: id of the newest observed epoch with it}."""
        return epoch_rows.epoch_ids(self.epoch_rows(store_id))

    def known_names(self, store_id: int) -> dict[str, str]:
        """Model names by how record names spell them, as servers were seen to use them."""
        with self._db.read() as session:
            query = select(LayoutEpoch.model_name, LayoutEpoch.display_model).where(
                LayoutEpoch.store_id == store_id, LayoutEpoch.kind == "observed"
            )
            return {str(spelt): str(shown) for spelt, shown in session.execute(query)}

    def models(self, store_id: int) -> set[str]:
        """Models with records in the store, as record names spell them."""
        inventory = Inventory.open(self.path(store_id))
        if inventory is None:
            return set()
        with inventory:
            return {owner.model for owner in inventory.owners().values() if not owner.temporary}

    def held_of(self, store_id: int, names: Sequence[str]) -> frozenset[str]:
        """Those of the names that are held."""
        wanted = [name.encode("utf-8", "surrogateescape") for name in names]
        with self._db.read() as session:
            found = session.scalars(
                select(RecordHold.name).where(RecordHold.store_id == store_id, RecordHold.name.in_(wanted))
            )
            return frozenset(name.decode("utf-8", "surrogateescape") for name in found)
