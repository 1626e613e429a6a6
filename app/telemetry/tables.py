"""What polls leave behind: the last snapshot, samples, and the layout observations that timelines are built from."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base


class Snapshot(Base):
    """The last reading of one target, good or not: `data` are view values (`server_reading`, `engine_reading`),
    `memory` is what the next poll needs of this one. That is most of it and no page wants it: it is read on demand."""

    __tablename__ = "telemetry_snapshot"

    target_kind: Mapped[str] = mapped_column(primary_key=True)  # server | engine | store
    target_id: Mapped[int] = mapped_column(primary_key=True)
    polled_at: Mapped[float]  # when the last poll ended, whatever came of it
    scraped_at: Mapped[float | None] = mapped_column(default=None)  # when the values in `data` were true
    data: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    memory: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict, deferred=True, deferred_raiseload=True)


class Observation(Base):
    """A span of polls of one server in which nothing that decides a timeline changed (RULES.md C2).

    Consecutive equal polls extend `last_at` and `polls`; a difference, a failed poll or a gap longer than three
    poll intervals starts a new row. Failed polls are rows too (`ok` false), so that gaps are facts.
    """

    __tablename__ = "layout_observation"
    __table_args__ = (Index("ix_layout_observation_server_first", "server_id", "first_at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    server_id: Mapped[int] = mapped_column(ForeignKey("server.id", ondelete="CASCADE"))
    first_at: Mapped[float]
    last_at: Mapped[float]
    polls: Mapped[int] = mapped_column(default=1)
    ok: Mapped[bool]
    reason: Mapped[str | None] = mapped_column(default=None)  # why not ok
    instance_id: Mapped[str | None] = mapped_column(default=None)
    process_start: Mapped[float | None] = mapped_column(default=None)  # of the server
    lmcache_version: Mapped[str | None] = mapped_column(default=None)
    # {context_id: KVLayout.to_json()} with the engines' own facts (dtype, kv cache dtype) merged in.
    contexts: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    # {"<engine row id>": process start or null} of the engines registered here that belong to this server.
    engine_starts: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    # Engine ids in lmcache_mp_l0_l1_store_throughput_GB_per_second_count, sorted; null when the metrics were not read
    # (an empty list means that they were, and name no engine).
    engine_ids: Mapped[list[str] | None] = mapped_column(JSON, default=list)
    # Store controller pending + in flight == 0 at the row's FIRST poll; null when the server does not say. A queue that
    # drains later in the span begins a new row (RULES.md C2: a layout ends at the first poll without it that is
    # drained); one that fills again does not, since what it then holds is of the layouts of this row.
    drained: Mapped[bool | None] = mapped_column(default=None)
    # Panel clock minus the server's Date header, seconds; null when unknown.
    clock_offset: Mapped[float | None] = mapped_column(default=None)
    reap_timeout_seconds: Mapped[float | None] = mapped_column(default=None)


class Series(Base):
    """One metric of one target."""

    __tablename__ = "series"
    __table_args__ = (Index("ix_series_target", "target_kind", "target_id", "metric", unique=True),)

    id: Mapped[int] = mapped_column(primary_key=True)
    target_kind: Mapped[str]  # server | engine | store
    target_id: Mapped[int]
    metric: Mapped[str]


class RollUpMark(Base):
    """How far a roll-up table is complete: all buckets that end at or before `until` (epoch milliseconds) are in it."""

    __tablename__ = "roll_up_mark"

    name: Mapped[str] = mapped_column(primary_key=True)  # 5m | 1h
    until: Mapped[int] = mapped_column(BigInteger)


class SampleRaw(Base):
    """One value at one poll. No row = not known then."""

    __tablename__ = "sample_raw"
    __table_args__ = ({"sqlite_with_rowid": False},)

    series_id: Mapped[int] = mapped_column(ForeignKey("series.id", ondelete="CASCADE"), primary_key=True)
    at: Mapped[int] = mapped_column(BigInteger, primary_key=True)  # epoch milliseconds
    value: Mapped[float]


class _Rolled:
    count: Mapped[int]
    sum: Mapped[float]
    min: Mapped[float]
    max: Mapped[float]
    last: Mapped[float]


class Sample5m(_Rolled, Base):
    """Five-minute roll-up; `at` is the start of the bucket, epoch milliseconds."""

    __tablename__ = "sample_5m"
    __table_args__ = ({"sqlite_with_rowid": False},)

    series_id: Mapped[int] = mapped_column(ForeignKey("series.id", ondelete="CASCADE"), primary_key=True)
    at: Mapped[int] = mapped_column(BigInteger, primary_key=True)


class Sample1h(_Rolled, Base):
    """Hourly roll-up; `at` is the start of the bucket, epoch milliseconds."""

    __tablename__ = "sample_1h"
    __table_args__ = ({"sqlite_with_rowid": False},)

    series_id: Mapped[int] = mapped_column(ForeignKey("series.id", ondelete="CASCADE"), primary_key=True)
    at: Mapped[int] = mapped_column(BigInteger, primary_key=True)
