"""The poller's seats: one a target, with what is remembered of it from poll to poll."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from app.database import Database
from app.fleet.service import FleetService
from app.fleet.targets import EngineTarget, ServerTarget, StoreTarget
from app.lmcache.polling import ServerReading
from app.telemetry import window
from app.telemetry.engine_reading import witness
from app.telemetry.live import snapshots
from app.telemetry.memory import EngineMemory, ServerMemory
from app.telemetry.server_reading import EnginesSeen
from app.telemetry.tables import Snapshot
from app.vllm.polling import EngineReading

Kind = Literal["server", "engine", "store"]
Key = tuple[Kind, int]
Target = ServerTarget | EngineTarget | StoreTarget
_POLLED_KINDS: tuple[Kind, ...] = ("server", "engine")


@dataclass
class Seat:
    """One target's place: the last reading is kept in memory only, the rest is what its snapshot holds."""

    target: Target
    memory: ServerMemory | EngineMemory | None
    reading: ServerReading | EngineReading | None = None
    task: asyncio.Task[None] | None = None


class Seats:
    """All seats. `load`, `take_over` and `relink` touch the database: call them in a thread."""

    def __init__(self, db: Database, fleet: FleetService) -> None:
        self._db = db
        self._fleet = fleet
        self._lock = threading.Lock()
        self.all: dict[Key, Seat] = {}
        self.left: list[Seat] = []  # seats of targets that are gone, for the poller to cancel
        self._changed: set[Key] = set()

    def load(self) -> None:
        """Brings the seats in step with the targets."""
        with self._lock:
            self._load()

    def take_changed(self) -> list[Key]:
        """The targets that are new, or reached otherwise, since this was last called."""
        with self._lock:
            changed, self._changed = self._changed, set()
            return [key for key in self.all if key in changed]

    def _load(self) -> None:
        targets: dict[Key, Target] = {("server", t.id): t for t in self._fleet.server_targets()}
        targets |= {("engine", t.id): t for t in self._fleet.engine_targets()}
        targets |= {("store", t.id): t for t in self._fleet.store_targets()}
        known = self.all
        new = [key for key in targets if key not in known or _moved(known[key].target, targets[key])]
        self._changed.update(key for key in targets if key not in known or known[key].target != targets[key])
        stored = self._stored(new)
        seats: dict[Key, Seat] = {}
        for key, target in targets.items():
            seat = known.get(key)
            if seat is None or key in new:
                seats[key] = Seat(target, _memory_of(key, stored.get(key)), task=seat.task if seat else None)
            else:
                seat.target = target
                seats[key] = seat
        self.left += [seat for key, seat in known.items() if key not in seats]
        self.all = seats

    def take_over(self, own: set[Key], now: float, recent_seconds: float) -> set[Key]:
        """For targets this poller has not polled before: goes on from what is stored; returns those that another
        process polled within `recent_seconds`."""
        shared: set[Key] = set()
        for key, row in self._stored(self.all).items():
            seat = self.all[key]
            if key in own or seat.memory is None:
                continue
            if row.polled_at != seat.memory.polled_at:
                seat.memory, seat.reading = _memory_of(key, row), None
            if 0 <= now - row.polled_at < recent_seconds:
                shared.add(key)
        return shared

    def relink(self) -> None:
        """Links engines to the only server that registers their model."""
        engines: dict[int, set[str]] = {}
        servers: dict[int, set[str]] = {}
        for (kind, ident), seat in list(self.all.items()):
            if isinstance(seat.memory, EngineMemory) and seat.memory.models and seat.memory.values.get("http_up"):
                engines[ident] = set(seat.memory.models)
            elif kind == "server" and isinstance(seat.memory, ServerMemory):
                servers[ident] = set(seat.memory.values.get("model_names") or ())
        if engines and self._fleet.relink_engines(engines, servers):
            self.load()

    def engines_of(self, server_id: int, now: float, fresh_seconds: float) -> EnginesSeen:
        """What is known of a server's engines; an engine counts as up by a poll within `fresh_seconds`."""
        witnesses = []
        starts: dict[str, float | None] = {}
        external: list[float] = []
        queries: list[float] = []
        up = 0
        for seat in self.all.values():
            target = seat.target
            if not isinstance(target, EngineTarget) or target.server_id != server_id:
                continue
            memory = seat.memory if isinstance(seat.memory, EngineMemory) else EngineMemory()
            witnesses.append(witness(target, memory))
            starts[str(target.id)] = memory.process_start
            if memory.values.get("http_up") and memory.polled_at and 0 <= now - memory.polled_at <= fresh_seconds:
                up += 1
            recent = window.expire(memory.window, now)
            tokens = window.total(recent, "external_tokens")
            if tokens is not None:
                external.append(tokens)
                queries.append(window.total(recent, "external_queries") or 0.0)
        return EnginesSeen(
            witnesses=witnesses,
            starts=starts,
            up=up,
            external_tokens=sum(external) if external else None,
            external_queries=sum(queries) if queries else None,
        )

    def bytes_per_token(self, target: EngineTarget, memory: EngineMemory) -> int | None:
        """Of the engine's model at its server, over all ranks; None where the server's contexts do not agree."""
        seat = self.all.get(("server", target.server_id)) if target.server_id is not None else None
        if seat is None or not isinstance(seat.memory, ServerMemory):
            return None
        found = {
            layout.bytes_per_token * layout.world_size
            for layout in (context.layout for context in seat.memory.contexts.values())
            if layout.model_name in memory.models and layout.bytes_per_token is not None
        }
        return found.pop() if len(found) == 1 else None

    def _stored(self, keys: Iterable[Key]) -> dict[Key, Snapshot]:
        wanted = list(keys)
        found: dict[Key, Snapshot] = {}
        with self._db.read() as session:
            for kind in _POLLED_KINDS:
                rows = snapshots(session, kind, [ident for k, ident in wanted if k == kind], memory=True)
                found.update({(kind, ident): row for ident, row in rows.items()})
        return found


def tick_after(due: float, now: float, interval: float) -> float:
    """When the tick after the one of `due` is due, seconds of one clock: always after `now`, always a whole number of
    intervals after `due`. A late tick is made up for by the next, so that lateness does not add up over a day."""
    later = due + interval * max(1, math.ceil((now - due) / interval))
    return later if later > now else later + interval


def _moved(old: Target, new: Target) -> bool:
    """Whether what was remembered is about another address."""
    return _address(old) != _address(new)


def _address(target: Target) -> str:
    return target.path if isinstance(target, StoreTarget) else target.url


def _memory_of(key: Key, row: Any) -> ServerMemory | EngineMemory | None:
    if key[0] == "store":
        return None
    empty = ServerMemory() if key[0] == "server" else EngineMemory()
    if row is None:
        return empty
    return type(empty).from_json(row.memory, row.data, row.polled_at, row.scraped_at)
