"""Targets: cache servers, engines, stores; and one row for every change of a health state."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base
from app.vault import SecretJson, SecretText


class Server(Base):
    """One LMCache multi-process server, reached over HTTP."""

    __tablename__ = "server"
    __table_args__ = ({"sqlite_autoincrement": True},)  # an id is never used again: history is kept by id

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    url: Mapped[str] = mapped_column(unique=True)  # normalised: scheme://host:port[/path], no trailing slash
    api_key: Mapped[str | None] = mapped_column(SecretText, default=None)  # write-only towards the outside
    headers: Mapped[dict[str, str]] = mapped_column(SecretJson, default=dict)
    tls_verify: Mapped[bool] = mapped_column(default=True)
    tls_ca: Mapped[str | None] = mapped_column(default=None)  # PEM text or a file; None: the system's authorities
    labels: Mapped[dict[str, str]] = mapped_column(JSON, default=dict)
    revision: Mapped[int] = mapped_column(default=1)  # of what the operator set; the ETag of PATCH
    created_at: Mapped[float]
    # The state in force and since when; `health_change` holds the history, `telemetry_snapshot` the last reading.
    health_state: Mapped[str] = mapped_column(default="unknown")
    health_reason: Mapped[str] = mapped_column(default="not polled yet")
    health_since: Mapped[float]
    # Damping: the state last seen but not yet believed, and how many polls in a row differed from the one in force.
    candidate_state: Mapped[str | None] = mapped_column(default=None)
    candidate_count: Mapped[int] = mapped_column(default=0)
    # The last run or canary that read records back right, and the last that read wrong ones; and what each was.
    data_path_proven_at: Mapped[float | None] = mapped_column(default=None)
    data_path_proven_by: Mapped[str | None] = mapped_column(default=None)
    data_path_wrong_at: Mapped[float | None] = mapped_column(default=None)
    data_path_wrong_by: Mapped[str | None] = mapped_column(default=None)


class Engine(Base):
    """One vLLM instance."""

    __tablename__ = "engine"
    __table_args__ = ({"sqlite_autoincrement": True},)  # an id is never used again: history is kept by id

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    url: Mapped[str] = mapped_column(unique=True)
    server_id: Mapped[int | None] = mapped_column(
        ForeignKey("server.id", ondelete="SET NULL"), default=None, index=True
    )
    # given: the operator said so; guessed: the only server that registers its model path; none: neither.
    server_link: Mapped[str] = mapped_column(default="none")
    api_key: Mapped[str | None] = mapped_column(SecretText, default=None)
    headers: Mapped[dict[str, str]] = mapped_column(SecretJson, default=dict)
    tls_verify: Mapped[bool] = mapped_column(default=True)
    tls_ca: Mapped[str | None] = mapped_column(default=None)  # PEM text or a file; None: the system's authorities
    labels: Mapped[dict[str, str]] = mapped_column(JSON, default=dict)
    # What the operator entered where no dev mode tells (RULES.md C1), such as {"dtype": …, "kv_cache_dtype": …}:
    # valid only for the engine process that had this start time when it was entered.
    entered_facts: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    entered_for_process_start: Mapped[float | None] = mapped_column(default=None)
    revision: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[float]
    health_state: Mapped[str] = mapped_column(default="unknown")
    health_reason: Mapped[str] = mapped_column(default="not polled yet")
    health_since: Mapped[float]
    candidate_state: Mapped[str | None] = mapped_column(default=None)
    candidate_count: Mapped[int] = mapped_column(default=0)


class Store(Base):
    """The storage behind one L2 adapter: for the file adapters, a directory of this host."""

    __tablename__ = "store"
    __table_args__ = ({"sqlite_autoincrement": True},)  # an id is never used again: history is kept by id

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    path: Mapped[str] = mapped_column(unique=True)  # where the panel finds it; the resolved real path
    server_path: Mapped[str]  # what its servers call it (containers differ)
    temp_dir: Mapped[str | None] = mapped_column(default=None)  # the adapter's relative_tmp_dir
    kind: Mapped[str] = mapped_column(default="lmcache_fs")
    labels: Mapped[dict[str, str]] = mapped_column(JSON, default=dict)
    revision: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[float]


class StoreServer(Base):
    """Which servers use a store; several may share one directory."""

    __tablename__ = "store_server"
    __table_args__ = (UniqueConstraint("store_id", "server_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    store_id: Mapped[int] = mapped_column(ForeignKey("store.id", ondelete="CASCADE"), index=True)
    server_id: Mapped[int] = mapped_column(ForeignKey("server.id", ondelete="CASCADE"), index=True)


class HealthChange(Base):
    """One change of state of one target. Badges, history and alarms read these rows."""

    __tablename__ = "health_change"
    __table_args__ = (Index("ix_health_change_target", "target_kind", "target_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    target_kind: Mapped[str]  # server | engine
    target_id: Mapped[int]
    old_state: Mapped[str | None]
    new_state: Mapped[str]
    reason: Mapped[str]
    at: Mapped[float] = mapped_column(index=True)
    by: Mapped[str] = mapped_column(default="poller")
