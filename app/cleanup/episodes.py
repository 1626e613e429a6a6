"""Episodes: caches that may still hold wrong records of a model, remembered from one run to the next (R4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Select, select, update

from app.cleanup.tables import CleanupEpisode
from app.cleanup.tiers import Mark
from app.clock import Clock
from app.database import Database


@dataclass(frozen=True)
class OpenEpisode:
    """One open episode; `model_name` is encoded as in record names."""

    id: int
    model_name: str
    mark: Mark
    run_ids: tuple[int, ...]


class Episodes:
    """The episodes of stores."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def open_of(self, store_id: int) -> list[OpenEpisode]:
        """Oldest first."""
        with self._db.read() as session:
            return [
                OpenEpisode(row.id, row.model_name, Mark(row.pass_at, row.starts), tuple(row.run_ids))
                for row in session.scalars(_open(store_id))
            ]

    def announce(self, store_id: int, models: frozenset[str], run_id: int) -> None:
        """Before the first file moves: whatever ends the run, the next one knows what is left to do.

        An episode that is open already keeps its mark: what it waits for may have happened since.
        """
        now = self._clock()
        waiting = [f"cleanup run {run_id} has not cleared L1 and L0 yet; if it was cut off, run again"]
        known = {e.model_name: e.id for e in self.open_of(store_id)}
        with self._db.write() as session:
            for model in sorted(models):
                row = session.get(CleanupEpisode, known[model]) if model in known else None
                if row is not None:
                    row.run_ids = sorted({*row.run_ids, run_id})
                    continue
                session.add(
                    CleanupEpisode(
                        store_id=store_id,
                        model_name=model,
                        opened_at=now,
                        pass_at=now,
                        run_ids=[run_id],
                        starts={},
                        waiting_for=waiting,
                    )
                )

    def drop_announced(self, store_id: int, run_id: int) -> None:
        """Nothing was taken that a cache could hold: what `announce` opened for this run alone is void."""
        with self._db.write() as session:
            for row in session.scalars(_open(store_id)):
                if row.run_ids == [run_id]:
                    session.delete(row)

    def cut_off(self, run_id: int) -> None:
        """A crashed run: its first pass may have gone on until now, so a restart counts from now on."""
        now = self._clock()
        with self._db.write() as session:
            for row in session.scalars(select(CleanupEpisode).where(CleanupEpisode.closed_at.is_(None))):
                if row.run_ids == [run_id]:
                    row.pass_at = now

    def keep_open(self, store_id: int, models: frozenset[str], run_id: int, mark: Mark, waiting: Sequence[str]) -> None:
        """Opens an episode for each model, or carries the open one on with a newer mark."""
        now = self._clock()
        with self._db.write() as session:
            for model in sorted(models):
                row = session.scalar(
                    select(CleanupEpisode).where(
                        CleanupEpisode.store_id == store_id,
                        CleanupEpisode.model_name == model,
                        CleanupEpisode.closed_at.is_(None),
                    )
                )
                if row is None:
                    row = CleanupEpisode(store_id=store_id, model_name=model, opened_at=now, run_ids=[], starts={})
                    session.add(row)
                row.pass_at = mark.at
                # A start that could not be read now leaves the one seen before.
                row.starts = {**row.starts, **{k: v for k, v in mark.starts.items() if v is not None}}
                row.run_ids = sorted({*row.run_ids, run_id})
                row.waiting_for = list(waiting)

    def close(self, store_id: int, models: frozenset[str], run_id: int) -> int:
        """Ends the open episodes of these models; returns how many there were."""
        with self._db.write() as session:
            result = session.execute(
                update(CleanupEpisode)
                .where(
                    CleanupEpisode.store_id == store_id,
                    CleanupEpisode.model_name.in_(models),
                    CleanupEpisode.closed_at.is_(None),
                )
                .values(closed_at=self._clock(), closed_by_run_id=run_id, waiting_for=[])
            )
            return int(result.rowcount)  # type: ignore[attr-defined]


def _open(store_id: int) -> Select[CleanupEpisode]:
    return (
        select(CleanupEpisode)
        .where(CleanupEpisode.store_id == store_id, CleanupEpisode.closed_at.is_(None))
        .order_by(CleanupEpisode.id)
    )
