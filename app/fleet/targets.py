"""Targets as other rooms use them: plain values, secrets included, detached from any session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.wire.tls import SYSTEM, Tls


@dataclass(frozen=True)
class ServerTarget:
    """What is needed to call a cache server."""

    id: int
    name: str
    url: str
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: Tls = SYSTEM


@dataclass(frozen=True)
class EngineTarget:
    """What is needed to call an engine. `entered_facts` hold for the process that started at `entered_for`."""

    id: int
    name: str
    url: str
    server_id: int | None
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    entered_facts: Mapping[str, str] = field(default_factory=dict)
    entered_for: float | None = None
    tls: Tls = SYSTEM


@dataclass(frozen=True)
class StoreTarget:
    """What is needed to work on a store. `path` is where this host finds it, resolved.

    `check` is given the opened directory and raises where it is not the store's (`app.records.store_dir.open_store`).
    """

    id: int
    name: str
    path: str
    server_path: str
    temp_dir: str | None
    kind: str
    server_ids: tuple[int, ...]
    check: Callable[[Any], object] | None = field(default=None, repr=False, compare=False)
