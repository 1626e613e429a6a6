"""Records in the main database: scans, epochs and what operators declared, holds, growth.

The inventory itself (a row a record) is not here: it is derived from the disk and can be rebuilt by a scan at any time,
so each store has a file of its own in the data directory (`inventory_file.py`), whatever the database of the panel is.
A scan of a million records then neither holds the panel's write lock nor makes its backups larger.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base
from app.scheduling.work import WorkColumns


class Scan(WorkColumns, Base):
    """One walk over a store's directory. Counts are of the whole directory as it was found."""

    __tablename__ = "scan"

    store_id: Mapped[int] = mapped_column(ForeignKey("store.id", ondelete="CASCADE"), index=True)
    gentle: Mapped[bool] = mapped_column(default=False)  # pauses between batches, for slow mounts
    rescan: Mapped[bool] = mapped_column(default=False)  # compared with an inventory that was there before
    files_seen: Mapped[int] = mapped_column(default=0)
    records: Mapped[int] = mapped_column(default=0)
    bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    allocated_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    foreign: Mapped[int] = mapped_column(default=0)
    foreign_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    foreign_examples: Mapped[list[str]] = mapped_column(JSON, default=list)
    added: Mapped[int] = mapped_column(default=0)
    changed: Mapped[int] = mapped_column(default=0)
    vanished: Mapped[int] = mapped_column(default=0)  # and no run of ours removed them: the adapter, or somebody
    vanished_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    removed_by_runs: Mapped[int] = mapped_column(default=0)  # since the scan before
    removed_by_runs_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    unreadable: Mapped[list[str]] = mapped_column(JSON, default=list)  # sub-directories, with the reason
    walk_seconds: Mapped[float | None] = mapped_column(default=None)
    clock_difference: Mapped[float | None] = mapped_column(default=None)  # file system minus panel, seconds
    clock_measured: Mapped[bool] = mapped_column(default=False)  # else the 2 s allowance of RULES.md C3
    mount: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)


class StoreDirectoryRow(Base):
    """The directory that the last scan of a store found, or that somebody said is the store now (`same_store.py`)."""

    __tablename__ = "store_directory"

    store_id: Mapped[int] = mapped_column(ForeignKey("store.id", ondelete="CASCADE"), primary_key=True)
    identity: Mapped[str]  # device:inode
    mark: Mapped[str | None] = mapped_column(default=None)  # null: it could not be marked
    fs_type: Mapped[str | None] = mapped_column(default=None)
    seen_at: Mapped[float]


class LayoutEpoch(Base):
    """A layout of one (store, model, world size) as seen on servers, or what an operator said of a model.

    kind `observed`: upserted from the timeline by `variant`, so A → B → A is two rows, not three. Records refer to
    layouts by `fingerprint`: two variants with one fingerprint write the same bytes.
    kind `declare`: a generation that starts at `effective_at`. kind `adopt`: what was there before is the layout in
    `layouts` ([{world_size, layout, fingerprint, until, same_as: [fingerprints]}]). Undoing deletes the row.
    `model_name` is the name as it stands in record names (``-SEP-`` for ``/``); `display_model` what people see.
    """

    __tablename__ = "layout_epoch"
    __table_args__ = (Index("ix_layout_epoch_store", "store_id", "model_name", "world_size"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    store_id: Mapped[int] = mapped_column(ForeignKey("store.id", ondelete="CASCADE"))
    kind: Mapped[str]
    model_name: Mapped[str]
    display_model: Mapped[str]
    world_size: Mapped[int | None] = mapped_column(default=None)
    fingerprint: Mapped[str | None] = mapped_column(default=None)
    variant: Mapped[str | None] = mapped_column(default=None)  # of all fields, also those that do not decide bytes
    layout: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    spans: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)  # when it was possible, when certain
    live: Mapped[bool] = mapped_column(default=False)
    effective_at: Mapped[float | None] = mapped_column(default=None)
    layouts: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)
    reason: Mapped[str | None] = mapped_column(default=None)
    actor: Mapped[str | None] = mapped_column(default=None)
    created_at: Mapped[float]


class ServerHistory(Base):
    """What one server's polls said for one store, kept when the server is forgotten or moved to another store.

    Without it, forgetting a server would make what it wrote look like the work of those that remain.
    """

    __tablename__ = "store_server_history"

    store_id: Mapped[int] = mapped_column(ForeignKey("store.id", ondelete="CASCADE"), primary_key=True)
    server_id: Mapped[int] = mapped_column(primary_key=True)  # no foreign key: it outlives the server
    history: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    covered_until: Mapped[float]
    left_at: Mapped[float | None] = mapped_column(default=None)


class ClearedEpisode(Base):
    """L2, L1 and L0 were cleared of wrong records of a model (RULES.md C8); told by cleanup runs.

    `reopened`: the opposite. A restore put wrong records of the model back, so that engines may read them again.
    """

    __tablename__ = "cleared_episode"
    __table_args__ = (Index("ix_cleared_episode_store", "store_id", "model_name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    store_id: Mapped[int] = mapped_column(ForeignKey("store.id", ondelete="CASCADE"))
    model_name: Mapped[str]  # as in record names
    world_size: Mapped[int | None] = mapped_column(default=None)  # null: all
    at: Mapped[float]
    reopened: Mapped[bool] = mapped_column(default=False)


class RecordHold(Base):
    """A restored record that no schedule takes again (RULES.md R5)."""

    __tablename__ = "record_hold"
    __table_args__ = ({"sqlite_with_rowid": False},)

    store_id: Mapped[int] = mapped_column(ForeignKey("store.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    reason: Mapped[str]
    actor: Mapped[str]
    at: Mapped[float]


class RemovedByRuns(Base):
    """Records that runs of ours took out of a store since its last scan: not "vanished"."""

    __tablename__ = "removed_by_runs"

    store_id: Mapped[int] = mapped_column(ForeignKey("store.id", ondelete="CASCADE"), primary_key=True)
    records: Mapped[int] = mapped_column(default=0)
    bytes: Mapped[int] = mapped_column(BigInteger, default=0)


class GrowthPoint(Base):
    """Records and bytes of one class at the end of one scan; the class ``total`` is all records."""

    __tablename__ = "growth_point"
    __table_args__ = (Index("ix_growth_point_store_at", "store_id", "at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    store_id: Mapped[int] = mapped_column(ForeignKey("store.id", ondelete="CASCADE"))
    scan_id: Mapped[int]
    at: Mapped[float]
    cls: Mapped[str]
    records: Mapped[int]
    bytes: Mapped[int] = mapped_column(BigInteger)
