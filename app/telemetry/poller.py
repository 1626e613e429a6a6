"""Polls every target, each in its own task: a hanging one delays no other and is never asked twice at once.

Everything here runs on one event loop (whoever runs `run`), but for database work and looks at directories, which run
in threads. A tick starts a poll of every target that is not still being polled, spread over the first part of the
interval with some jitter; finished polls are collected for a moment and written in one transaction.
`poll_all_once` does the same once, without a loop, for commands and tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
import structlog

from app.clock import Clock
from app.database import Database
from app.fleet.clients import engine_client, server_client
from app.fleet.service import FleetService
from app.fleet.targets import EngineTarget, ServerTarget, StoreTarget
from app.lmcache.client import LMCacheClient
from app.lmcache.polling import ServerReading, poll_server
from app.settings import Settings
from app.telemetry.engine_reading import read_engine
from app.telemetry.host import Disks, memory_stalled_seconds
from app.telemetry.memory import EngineMemory, ServerMemory
from app.telemetry.metrics import INCREMENTS
from app.telemetry.seats import Key, Kind, Seat, Seats, tick_after
from app.telemetry.server_reading import HostLook, read_server
from app.telemetry.store_look import Looks, Trouble
from app.telemetry.turns import Turns
from app.telemetry.writer import Polled, Writer
from app.vllm.client import VLLMClient
from app.vllm.polling import EngineReading, poll_engine
from app.wire.own_host import is_local, own_addresses

log = structlog.get_logger()

#: The polls of one tick are spread over this part of the interval at most, and over these seconds for each target.
SPREAD = 0.5
SPREAD_SECONDS = 0.02
#: Engines are asked this much earlier than servers, so that a server's contexts find their engines' facts.
ENGINE_LEAD_SECONDS = 0.2
STOP_SECONDS = 1.0
REFRESH_SECONDS = 30.0
#: A poll after this many intervals of silence sets the state without damping.
STALE_INTERVALS = 3.5

#: Makes the client of one target; tests put their transports in here.
ServerClients = Callable[[ServerTarget], LMCacheClient]
EngineClients = Callable[[EngineTarget], VLLMClient]


class Poller:
    """One per process. `run` serves a panel; `poll_all_once`, `poll_server_now`, `poll_engine_now` look once."""

    def __init__(
        self,
        *,
        db: Database,
        clock: Clock,
        settings: Settings,
        fleet: FleetService,
        server_clients: ServerClients = server_client,
        engine_clients: EngineClients = engine_client,
        jitter: Callable[[], float] = random.random,
        store_trouble: Trouble | None = None,
    ) -> None:
        self._clock = clock
        self._interval = settings.poll_seconds
        self._server_clients = server_clients
        self._engine_clients = engine_clients
        self._jitter = jitter
        self._writer = Writer(db, self._interval)
        self._seats = Seats(db, fleet)
        self._own: set[Key] = set()  # targets that this poller has polled before
        self._asking: set[asyncio.Task[None]] = set()
        self._looks = Looks(store_trouble)
        self._disks = Disks()
        self._addresses = own_addresses()
        self._host: tuple[float, HostLook] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._done: asyncio.Queue[Polled] | None = None
        self._turns: Turns | None = None
        self._next_tick = 0.0
        fleet.on_change(self._on_change)
        fleet.attach_refresh(self._refresh)

    # a serving panel

    async def run(self, stop: asyncio.Event) -> None:
        """Polls until `stop` is set. Never raises for what targets do; trouble with the database is logged."""
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._done = asyncio.Queue()
        self._turns = Turns()
        self._next_tick = self._loop.time()
        writing = asyncio.create_task(self._write_loop(self._done), name="telemetry-writer")
        try:
            while not stop.is_set():
                due = (now := self._loop.time()) >= self._next_tick
                if due:
                    self._next_tick = tick_after(self._next_tick, now, self._interval)
                self._wake.clear()
                try:
                    await anyio.to_thread.run_sync(self._seats.load)
                    changed = self._seats.take_changed()
                    self._start_polls(list(self._seats.all) if due else changed)
                except Exception:
                    log.exception("telemetry.tick_failed")
                await _first(max(0.05, self._next_tick - self._loop.time()), stop.wait, self._wake.wait)
        finally:
            await self._stop_polls()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await self._flush(_drain(self._done))
            self._loop = self._wake = self._done = self._turns = None

    async def _stop_polls(self) -> None:
        """Polls that wait for their turn end at once, those under way may finish within a second."""
        tasks = {seat.task for seat in self._seats.all.values() if seat.task is not None}
        for task in tasks - self._asking:
            task.cancel()
        if self._asking:
            await asyncio.wait(self._asking, timeout=STOP_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_change(self, kind: Kind, target_id: int) -> None:
        """Called from any thread after a target was added, changed or removed."""
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and not loop.is_closed():
            loop.call_soon_threadsafe(wake.set)

    def _refresh(self, server_id: int) -> None:
        """Polls a server in the calling thread's time; not from inside an event loop, where nobody may wait."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            with contextlib.suppress(TimeoutError):  # the running poller may be stopping
                asyncio.run(asyncio.wait_for(self.poll_server_now(server_id), REFRESH_SECONDS))

    def _start_polls(self, keys: Iterable[Key]) -> None:
        for seat in self._seats.left:
            if seat.task is not None:
                seat.task.cancel()
        self._seats.left.clear()
        seats = self._seats.all
        waiting = [key for key in keys if (task := seats[key].task) is None or task.done()]
        spread = min(self._interval * SPREAD, len(waiting) * SPREAD_SECONDS)
        for index, key in enumerate(sorted(waiting, key=_engines_first)):
            lead = ENGINE_LEAD_SECONDS if key[0] == "server" else 0.0
            delay = lead + spread * (index + self._jitter()) / len(waiting)
            seat = seats[key]
            seat.task = asyncio.create_task(self._poll_later(key, seat, delay), name=f"poll-{key[0]}-{key[1]}")

    async def _poll_later(self, key: Key, seat: Seat, delay: float) -> None:
        await asyncio.sleep(delay)
        task = asyncio.current_task()
        assert task is not None
        self._asking.add(task)
        try:
            if self._turns is None or not _answered(seat):  # one that was silent last time may well be so again
                polled = await self._poll(seat)
            else:
                async with self._turns.one():
                    polled = await self._poll(seat)
        except Exception:
            log.exception("telemetry.poll_failed", kind=key[0], id=key[1])
            return
        finally:
            self._asking.discard(task)
        if self._done is not None:
            await self._done.put(polled)

    async def _write_loop(self, done: asyncio.Queue[Polled]) -> None:
        """Collects what finishes within a tenth of the interval (a second at most) and writes it at once."""
        while True:
            first = await done.get()
            try:
                await asyncio.sleep(min(1.0, self._interval / 10, 0.05 * len(self._seats.all)))
            except asyncio.CancelledError:
                done.put_nowait(first)  # `run` writes what is left at its end
                raise
            batch = [first, *_drain(done)]
            await asyncio.shield(self._flush(batch))

    async def _flush(self, batch: list[Polled]) -> None:
        try:
            await anyio.to_thread.run_sync(self._writer.write_or_keep, batch)
            await anyio.to_thread.run_sync(self._seats.relink)
        except Exception:
            log.exception("telemetry.write_failed", polls=len(batch))

    # one look

    async def poll_all_once(self) -> None:
        """Polls every target once and writes the outcome. Engines are read first, so that servers find their facts."""
        await self._on_own_loop(partial(self._once, None))

    async def poll_server_now(self, server_id: int) -> None:
        """Polls one server and its engines at once, in the running poller if there is one, and writes the outcome."""
        await self._on_own_loop(partial(self._once, ("server", server_id)))

    async def poll_engine_now(self, engine_id: int) -> None:
        """Polls one engine at once and writes the outcome."""
        await self._on_own_loop(partial(self._once, ("engine", engine_id)))

    async def _on_own_loop(self, work: Callable[[], Awaitable[None]]) -> None:
        loop = self._loop
        if loop is None or loop is asyncio.get_running_loop():
            await work()
            return

        async def there() -> None:
            await work()

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), loop))

    async def _once(self, only: Key | None) -> None:
        await anyio.to_thread.run_sync(self._seats.load)
        shared: set[Key] = set()
        if self._loop is None:
            # Another process may poll too: begin from what it stored last, and leave the increments to it.
            recent = 2 * self._interval
            shared = await anyio.to_thread.run_sync(self._seats.take_over, self._own, self._clock(), recent)
        keys = [key for key in self._seats.all if only is None or key == only or self._is_engine_of(key, only)]
        batch: list[Polled] = []
        for kinds in (("engine", "store"), ("server",)):
            polls = await asyncio.gather(*(self._poll_free(key) for key in keys if key[0] in kinds))
            batch += [_without_increments(p) if (p.kind, p.target_id) in shared else p for p in polls]
        await anyio.to_thread.run_sync(self._writer.write, batch)
        await anyio.to_thread.run_sync(self._seats.relink)

    async def _poll_free(self, key: Key) -> Polled:
        """Polls, after the poll that is under way for this target, if any."""
        seat = self._seats.all[key]
        if seat.task is not None and not seat.task.done():
            await asyncio.wait([seat.task])
        return await self._poll(seat)

    def _is_engine_of(self, key: Key, server: Key) -> bool:
        target = self._seats.all[key].target
        return server[0] == "server" and isinstance(target, EngineTarget) and target.server_id == server[1]

    # one poll

    async def _poll(self, seat: Seat) -> Polled:
        if isinstance(seat.target, ServerTarget):
            return await self._poll_server(seat, seat.target)
        if isinstance(seat.target, EngineTarget):
            return await self._poll_engine(seat, seat.target)
        return await self._poll_store(seat.target)

    async def _poll_server(self, seat: Seat, target: ServerTarget) -> Polled:
        before = seat.reading if isinstance(seat.reading, ServerReading) else None
        async with self._server_clients(target) as client:
            reading = await poll_server(client, before)
        now = self._clock()
        memory = seat.memory if isinstance(seat.memory, ServerMemory) else ServerMemory()
        engines = self._seats.engines_of(target.id, now, self._stale_seconds)
        host = self._host_of(target, now)
        poll = read_server(reading, memory, engines, now=now, interval=self._interval, host=host)
        seat.memory, seat.reading = poll.memory, _for_next(reading)
        self._own.add(("server", target.id))
        return Polled(
            kind="server",
            target_id=target.id,
            address=target.url,
            at=now,
            scraped_at=poll.memory.scraped_at,
            values=poll.memory.values,
            memory=poll.memory.to_json(),
            samples=poll.samples,
            judgement=poll.judgement,
            observed=poll.observed,
            stale=self._is_stale(memory.polled_at, now),
        )

    def _host_of(self, target: ServerTarget, now: float) -> HostLook | None:
        """This host's memory pressure for a server that runs on it; None for any other. Read once a second at most."""
        if not is_local(urlsplit(target.url).hostname or "", self._addresses):
            return None
        if self._host is None or not 0 <= now - self._host[0] < 1.0:
            self._host = now, HostLook(*memory_stalled_seconds())
        return self._host[1]

    async def _poll_engine(self, seat: Seat, target: EngineTarget) -> Polled:
        before = seat.reading if isinstance(seat.reading, EngineReading) else None
        async with self._engine_clients(target) as client:
            reading = await poll_engine(client, before)
        now = self._clock()
        memory = seat.memory if isinstance(seat.memory, EngineMemory) else EngineMemory()
        size = self._seats.bytes_per_token(target, memory)
        poll = read_engine(reading, target, memory, now=now, interval=self._interval, bytes_per_token=size)
        seat.memory, seat.reading = poll.memory, reading
        self._own.add(("engine", target.id))
        return Polled(
            kind="engine",
            target_id=target.id,
            address=target.url,
            at=now,
            scraped_at=poll.memory.scraped_at,
            values=poll.memory.values,
            memory=poll.memory.to_json(),
            samples=poll.samples,
            judgement=poll.judgement,
            stale=self._is_stale(memory.polled_at, now),
        )

    async def _poll_store(self, target: StoreTarget) -> Polled:
        look = await self._looks.at(target)
        now = self._clock()
        rates = self._disks.take(target.id, now, look.disk, self._stale_seconds)
        return Polled(
            kind="store",
            target_id=target.id,
            address=target.path,
            at=now,
            scraped_at=now if look.usable else None,
            values=look.values(rates),
            memory={},
            samples=look.samples(rates),
        )

    @property
    def _stale_seconds(self) -> float:
        return max(STALE_INTERVALS * self._interval, 10.0)

    def _is_stale(self, polled_at: float | None, now: float) -> bool:
        return polled_at is None or not 0 <= now - polled_at <= self._stale_seconds


def _answered(seat: Seat) -> bool:
    return seat.reading is None or seat.reading.http_up


def _engines_first(key: Key) -> tuple[int, int]:
    return {"engine": 0, "store": 1, "server": 2}[key[0]], key[1]


def _for_next(reading: ServerReading) -> ServerReading:
    """What the next poll needs of this one: not its thousands of look-up series, one for each salt ever used."""
    metrics = None if reading.metrics is None else replace(reading.metrics, lookups=())
    return replace(reading, status=None, metrics=metrics)


def _without_increments(polled: Polled) -> Polled:
    return replace(polled, samples={name: v for name, v in polled.samples.items() if name not in INCREMENTS})


def _drain(queue: asyncio.Queue[Polled]) -> list[Polled]:
    found = []
    while not queue.empty():
        found.append(queue.get_nowait())
    return found


async def _first(seconds: float, *waits: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Returns when one of these is done, or after `seconds`."""
    tasks = [asyncio.create_task(wait()) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
