"""Restarts of cache servers and their engines, as polls saw them: out of the layout observations, which are kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.telemetry.tables import Observation


@dataclass(frozen=True)
class Restart:
    """One process that took the place of another; `at` is its own start where it tells it, else when it was seen."""

    kind: Literal["server", "engine"]
    target_id: int
    at: float


@dataclass
class _Process:
    seen: float
    start: float | None


def restarts(session: Session, server_id: int, since: float) -> list[Restart]:
    """Those of a server and of the engines registered with it that began at or after `since`, oldest first.

    What ran when the panel first looked is no restart: it took nobody's place that the panel knew.
    """
    first = session.scalar(select(func.min(Observation.first_at)).where(Observation.server_id == server_id))
    if first is None:
        return []
    of_server = Observation.server_id == server_id, Observation.ok, Observation.last_at >= since
    began = func.min(Observation.first_at)
    processes: dict[object, _Process] = {}
    query = select(Observation.instance_id, Observation.process_start, began).where(*of_server)
    for instance, start, seen in session.execute(query.group_by(Observation.instance_id, Observation.process_start)):
        _note(processes, instance or start, start, seen)
    found = [Restart("server", server_id, at) for at in _starts(processes.values(), first)]
    engines: dict[str, dict[object, _Process]] = {}
    starts = select(Observation.engine_starts, began).where(*of_server).group_by(Observation.engine_starts)
    for by_engine, seen in session.execute(starts):
        for engine_id, start in (by_engine or {}).items():
            _note(engines.setdefault(engine_id, {}), start, start, seen)
    for engine_id, own in engines.items():
        found += [Restart("engine", int(engine_id), at) for at in _starts(own.values(), first)]
    return sorted((one for one in found if one.at >= since), key=lambda one: one.at)


def _note(processes: dict[object, _Process], key: object, start: float | None, seen: float) -> None:
    if key is None:
        return
    known = processes.setdefault(key, _Process(seen, start))
    known.seen = min(known.seen, seen)
    known.start = start if known.start is None else known.start


def _starts(processes: Iterable[_Process], first: float) -> list[float]:
    """A process that tells no start began when it was first seen; the panel's first look is nobody's beginning."""
    return [at for p in processes if (at := p.seen if p.start is None else p.start) > first]
