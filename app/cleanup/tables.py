"""Policies, plans with their frozen records, runs, the journal of intents, quarantine jobs, laundering episodes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base
from app.scheduling.work import WorkColumns


class Policy(Base):
    """What to remove from one store, and when. `body` is the validated JSON of `select`, `protect`, `limits`."""

    __tablename__ = "policy"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    store_id: Mapped[int] = mapped_column(ForeignKey("store.id", ondelete="CASCADE"), index=True)
    enabled: Mapped[bool] = mapped_column(default=True)  # false stops the schedule, not runs by hand
    schedule: Mapped[str | None] = mapped_column(default=None)  # cron text or @layout-change
    timezone: Mapped[str] = mapped_column(default="UTC")
    body: Mapped[dict[str, Any]] = mapped_column(JSON)
    removal: Mapped[str] = mapped_column(default="quarantine")  # quarantine | delete
    quarantine_for: Mapped[str | None] = mapped_column(default=None)  # as written, such as 7d; null = until purged
    # When a changed layout calls the policy: now (or as soon as it can start), and once more when the server's queue
    # of stores has surely drained, before which nothing is proven (C2).
    pending_at: Mapped[list[float]] = mapped_column(JSON, default=list)
    created_at: Mapped[float]
    updated_at: Mapped[float]


class Plan(WorkColumns, Base):
    """A frozen list of what would go. `body` is the policy (or the filter) as it was when the plan was made."""

    __tablename__ = "plan"

    store_id: Mapped[int] = mapped_column(ForeignKey("store.id", ondelete="CASCADE"), index=True)
    policy_id: Mapped[int | None] = mapped_column(
        ForeignKey("policy.id", ondelete="SET NULL"), default=None, index=True
    )
    policy_name: Mapped[str | None] = mapped_column(default=None)
    origin: Mapped[str]  # policy | filter | housekeeping (own records of a test) | quarantine (adopted from a manifest)
    body: Mapped[dict[str, Any]] = mapped_column(JSON)
    removal: Mapped[str]
    quarantine_for: Mapped[str | None] = mapped_column(default=None)
    records: Mapped[int] = mapped_column(default=0)
    bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    by_reason: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)  # {reason: [records, bytes]}
    leaves: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    held_back: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)  # {why not: [records, bytes]}
    recent_use: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    goal: Mapped[dict[str, Any] | None] = mapped_column(JSON, default=None)  # of capacity and free_space
    warnings: Mapped[list[str]] = mapped_column(JSON, default=list)
    limited: Mapped[str | None] = mapped_column(default=None)  # the limit that cut the list
    expires_at: Mapped[float | None] = mapped_column(default=None)
    scanned_at: Mapped[float | None] = mapped_column(default=None)  # of the inventory it rests on
    # The directory the plan was made for; another one under the same path is not touched.
    root_device: Mapped[int | None] = mapped_column(BigInteger, default=None)
    root_inode: Mapped[int | None] = mapped_column(BigInteger, default=None)
    # Records with a number below this one are in `plan_names`.
    indexed_before: Mapped[int] = mapped_column(default=1)


class PlanChunk(Base):
    """Up to two thousand records of a plan with the frozen facts of R1. Written once; see `app.cleanup.chunks`.

    Not a row a record, because planning a million records must not cost a million rows: `names` are joined by NUL (no
    file name holds one), `facts` are little-endian 64 bit columns, `kinds` [[class, reason, why, action]], `kind_of` a
    byte a record.
    """

    __tablename__ = "plan_chunk"

    plan_id: Mapped[int] = mapped_column(ForeignKey("plan.id", ondelete="CASCADE"), primary_key=True)
    first_seq: Mapped[int] = mapped_column(primary_key=True)  # records are numbered from 1 within their plan
    records: Mapped[int]
    # 1 was planned; above that are records re-created while a run went on, which it added itself (R4, second pass).
    round: Mapped[int] = mapped_column(default=1)
    device: Mapped[int] = mapped_column(BigInteger)
    names: Mapped[bytes] = mapped_column(LargeBinary)
    facts: Mapped[bytes] = mapped_column(LargeBinary)
    kinds: Mapped[list[list[str | None]]] = mapped_column(JSON)
    kind_of: Mapped[bytes] = mapped_column(LargeBinary)


class PlanNames(Base):
    """Which record of a plan has which name, for many records at once; see `app.cleanup.name_index`.

    `entries`: sorted little-endian 64 bit numbers, the CRC-32 of a name above the record's number. Those of one bucket
    have its number as their highest bits; a few records together are the bucket -1.
    """

    __tablename__ = "plan_names"

    plan_id: Mapped[int] = mapped_column(ForeignKey("plan.id", ondelete="CASCADE"), primary_key=True)
    bucket: Mapped[int] = mapped_column(primary_key=True)
    first_seq: Mapped[int] = mapped_column(primary_key=True)
    entries: Mapped[bytes] = mapped_column(LargeBinary)


class PlanChunkState(Base):
    """What became of a chunk's records: one state byte a record, and what there is to say of single ones.

    No row: all are planned. `tally` is [[kind, state, records, bytes]], so that counting a run reads no record.
    """

    __tablename__ = "plan_chunk_state"

    plan_id: Mapped[int] = mapped_column(ForeignKey("plan.id", ondelete="CASCADE"), primary_key=True)
    first_seq: Mapped[int] = mapped_column(primary_key=True)
    states: Mapped[bytes] = mapped_column(LargeBinary)
    notes: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)  # {index: [errno, detail]}
    times: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)  # {state: when it was last entered}
    tally: Mapped[list[list[int]]] = mapped_column(JSON, default=list)


class CleanupRun(WorkColumns, Base):
    """One execution of a plan. `folder` is its name under `.tierkeeper/quarantine` of the store."""

    __tablename__ = "cleanup_run"

    store_id: Mapped[int] = mapped_column(ForeignKey("store.id", ondelete="CASCADE"), index=True)
    policy_id: Mapped[int | None] = mapped_column(
        ForeignKey("policy.id", ondelete="SET NULL"), default=None, index=True
    )
    policy_name: Mapped[str | None] = mapped_column(default=None)
    plan_id: Mapped[int | None] = mapped_column(ForeignKey("plan.id", ondelete="SET NULL"), default=None, index=True)
    trigger: Mapped[str] = mapped_column(default="hand")  # hand | schedule | layout_change | housekeeping
    folder: Mapped[str] = mapped_column(unique=True)
    verdict: Mapped[str | None] = mapped_column(default=None)
    notes: Mapped[list[str]] = mapped_column(JSON, default=list)  # why the verdict, and the way out
    steps: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)
    # What the plan held, kept when the plan is forgotten, and what the run found and added itself (round 2 and later).
    planned_records: Mapped[int] = mapped_column(default=0)
    planned_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    added_records: Mapped[int] = mapped_column(default=0)
    added_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    removed_records: Mapped[int] = mapped_column(default=0)
    removed_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    deleted_bytes: Mapped[int] = mapped_column(BigInteger, default=0)  # of what was removed, without quarantine
    by_reason: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)  # of what was removed
    skipped: Mapped[dict[str, int]] = mapped_column(JSON, default=dict)
    failed: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)  # the first hundred
    failed_total: Mapped[int] = mapped_column(default=0)
    free_bytes_before: Mapped[int | None] = mapped_column(BigInteger, default=None)
    free_bytes_after: Mapped[int | None] = mapped_column(BigInteger, default=None)
    # The inventory knows of every record removed with a number below this one.
    told_before: Mapped[int] = mapped_column(default=1)
    # What waits in quarantine now, and what left it.
    waiting_records: Mapped[int] = mapped_column(default=0)
    waiting_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    restored_records: Mapped[int] = mapped_column(default=0)
    purged_records: Mapped[int] = mapped_column(default=0)
    purged_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    purge_after: Mapped[float | None] = mapped_column(default=None, index=True)


class CleanupIntent(Base):
    """The journal (R7): committed durably before its batch touches the disk; open until settled from the disk."""

    __tablename__ = "cleanup_intent"
    __table_args__ = (Index("ix_cleanup_intent_open", "run_id", "settled_at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("cleanup_run.id", ondelete="CASCADE"))
    kind: Mapped[str]  # remove | restore | purge
    plan_id: Mapped[int]
    first_seq: Mapped[int]  # of the chunk
    opened_at: Mapped[float]
    settled_at: Mapped[float | None] = mapped_column(default=None)


class QuarantineJob(WorkColumns, Base):
    """A restore or a purge of what a run left in quarantine."""

    __tablename__ = "quarantine_job"

    run_id: Mapped[int] = mapped_column(ForeignKey("cleanup_run.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str]  # restore | purge
    selection: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)  # {} = all, {"seqs": []} or {"filter": {}}
    records: Mapped[int] = mapped_column(default=0)  # restored or purged
    bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    skipped: Mapped[dict[str, int]] = mapped_column(JSON, default=dict)  # exists, vanished, changed
    failed: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)
    failed_total: Mapped[int] = mapped_column(default=0)
    free_bytes_before: Mapped[int | None] = mapped_column(BigInteger, default=None)
    free_bytes_after: Mapped[int | None] = mapped_column(BigInteger, default=None)


class CleanupEpisode(Base):
    """Wrong records of one model were removed from L2, but a GPU or CPU cache that may hold them is not clean yet.

    Opened by a run that ended `insufficient`, closed by the next run that finds every engine reset or restarted
    after `pass_at` and has made the second pass (R4).
    """

    __tablename__ = "cleanup_episode"

    id: Mapped[int] = mapped_column(primary_key=True)
    store_id: Mapped[int] = mapped_column(ForeignKey("store.id", ondelete="CASCADE"), index=True)
    model_name: Mapped[str]
    opened_at: Mapped[float]
    pass_at: Mapped[float]  # end of the latest first pass over L2
    run_ids: Mapped[list[int]] = mapped_column(JSON)  # whose dirty items the second pass goes over
    # {"engine:<id>" | "server:<id>": process start or null} at `pass_at`: a later start means a restart since.
    starts: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    waiting_for: Mapped[list[str]] = mapped_column(JSON, default=list)  # sentences: what stands in the way
    closed_at: Mapped[float | None] = mapped_column(default=None)
    closed_by_run_id: Mapped[int | None] = mapped_column(default=None)
