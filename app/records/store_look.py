"""What the pages of one store show, all of one moment: what is known and the rows it rests on are read once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from app.database import Database
from app.fleet.service import FleetService
from app.fleet.targets import StoreTarget
from app.records.current import CurrentInventories, Labels, labels_of
from app.records.distribution import distribution
from app.records.epoch_counts import epoch_counts
from app.records.epoch_views import epoch_views
from app.records.knowledge import Knowledge, KnowledgeSource
from app.records.safe_choices import safe_choices
from app.records.schemas import DistributionView, EpochsView, GrowthPointView, SummaryView
from app.records.store_summary import access_times_of, adapters_here, growth_points, store_summary
from app.records.tables import LayoutEpoch
from app.records.traffic_schemas import TrafficView
from app.records.traffic_views import TrafficDesk
from app.records.unwatched import unwatched
from app.telemetry.service import TelemetryService


class StoreLook(NamedTuple):
    """A store's page. `distribution` None: never scanned."""

    summary: SummaryView
    epochs: EpochsView
    distribution: DistributionView | None
    growth: list[GrowthPointView]
    traffic: TrafficView


#: How long somebody who looks at a store waits for a layout that is news to be written down, seconds.
LOOKING_PATIENCE = 0.2


@dataclass(frozen=True)
class Looker:
    """Reads rows, inventories and samples; walks nothing and asks nobody."""

    db: Database
    fleet: FleetService
    telemetry: TelemetryService
    knowledge: KnowledgeSource
    current: CurrentInventories
    traffic: TrafficDesk

    def look(self, store_id: int, *, points: int) -> StoreLook:
        """All of a store, its growth by the last `points` scans. Raises NotFound."""
        store, known = self._known(store_id)
        rows = self.current.sync_epochs(store_id, known, patience=LOOKING_PATIENCE)
        labels = labels_of(rows)
        return StoreLook(
            summary=self._summary(store, known, labels),
            epochs=self._epochs(store, known, rows),
            distribution=self._distribution(store, labels),
            growth=growth_points(self.db, store_id, points),
            traffic=self.traffic.of(store),
        )

    def summary(self, store_id: int) -> SummaryView:
        """Raises NotFound."""
        store, known = self._known(store_id)
        return self._summary(store, known, self.current.labels(store_id))

    def epochs(self, store_id: int) -> EpochsView:
        """Raises NotFound."""
        store, known = self._known(store_id)
        return self._epochs(store, known, self.current.sync_epochs(store_id, known, patience=LOOKING_PATIENCE))

    def distribution(self, store_id: int) -> DistributionView | None:
        """Raises NotFound."""
        return self._distribution(self.fleet.store_target(store_id), self.current.labels(store_id))

    def _known(self, store_id: int) -> tuple[StoreTarget, Knowledge]:
        store = self.fleet.store_target(store_id)
        stand = self.knowledge.stand(store)
        self.current.judge_if_stale(store, stand=stand)
        return store, self.knowledge.recent(store, stand)

    def _summary(self, store: StoreTarget, known: Knowledge, labels: Labels) -> SummaryView:
        return store_summary(
            store,
            self.current.path(store.id),
            db=self.db,
            telemetry=self.telemetry,
            alarms=known.alarms,
            names=labels.names,
        )

    def _epochs(self, store: StoreTarget, known: Knowledge, rows: list[LayoutEpoch]) -> EpochsView:
        counts = None
        inventory = self.current.as_found(store.id)
        if inventory is not None:
            with inventory:
                counts = epoch_counts(inventory)
        choices = safe_choices(store, rows, counts, lambda: adapters_here(store, self.telemetry))
        names = {target.id: target.name for target in self.fleet.server_targets()}
        return EpochsView(
            items=epoch_views(rows, counts),
            alarms=list(known.alarms),
            choices=choices,
            unwatched=unwatched(known.timeline.servers, names),
        )

    def _distribution(self, store: StoreTarget, labels: Labels) -> DistributionView | None:
        inventory = self.current.as_found(store.id)
        if inventory is None:
            return None
        with inventory:
            return distribution(str(store.id), inventory, access_times_of(store), labels.names)
