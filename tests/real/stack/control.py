"""`RealStack`: one LMCache server and any number of vLLM engines on free loopback ports, in a temporary directory of
their own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.real.stack import build
from tests.real.stack.clients import PATIENCE, CacheServer, Engine, wait_until
from tests.real.stack.commands import (
    EngineKnobs,
    ServerKnobs,
    engine_command,
    engine_environment,
    package_environment,
    server_command,
)
from tests.real.stack.processes import Watchdog
from tests.real.stack.programs import Program, Programs, StartError

__all__ = ["Program", "RealStack", "StartError"]


@dataclass
class _Slot:
    """What stays the same over restarts of one engine."""

    port: int
    knobs: EngineKnobs
    client: Engine
    program: Program | None = None
    starts: int = field(default=0)


class RealStack(Programs):
    """Context manager; everything it started is ended on exit, also after a failure, a Ctrl-C or a SIGKILL of the
    test process.

    `directory` keeps logs and the L2 store (`l2`); it is removed on exit unless a start failed or `keep` (or
    TIERKEEPER_REAL_KEEP=1) says otherwise.
    """

    def __init__(self, *, keep: bool = False) -> None:
        super().__init__(keep=keep or os.environ.get("TIERKEEPER_REAL_KEEP") == "1")
        self.l2 = self.directory / "l2"
        self.server_knobs = ServerKnobs()
        self._environment: build.Environment | None = None
        self._closing = contextlib.ExitStack()
        self._server: CacheServer | None = None
        self._server_program: Program | None = None
        self._server_starts = 0
        self._server_down_since = 0.0
        self._engines: dict[str, _Slot] = {}

    # --- coming and going

    def __enter__(self) -> RealStack:
        self._environment = self._closing.enter_context(build.in_use())
        self._watchdog = Watchdog()
        self.l2.mkdir()
        atexit.register(self.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends everything, engines first. May be called twice."""
        if self._watchdog is None:
            return
        for program in reversed(self._others):
            self.end_program(program)
        for name in list(self._engines):
            self.stop_engine(name)
            self._engines[name].client.close()
        self.stop_server()
        if self._server is not None:
            self._server.close()
        self._watchdog.close()
        self._watchdog = None
        atexit.unregister(self.close)
        self._closing.close()
        if not self.keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    # --- what is there

    @property
    def environment(self) -> build.Environment:
        assert self._environment is not None, "use RealStack as a context manager"
        return self._environment

    @property
    def running(self) -> bool:
        """Whether the server and the engine called `engine` are up."""
        engine = self._engines.get("engine")
        programs = [self._server_program, engine.program if engine else None]
        return all(program is not None and program.running for program in programs)

    @property
    def server(self) -> CacheServer:
        assert self._server is not None, "start_server() first"
        return self._server

    @property
    def server_program(self) -> Program:
        assert self._server_program is not None, "the cache server is not running"
        return self._server_program

    @property
    def engine_names(self) -> list[str]:
        """The engines that were ever started here."""
        return list(self._engines)

    def engine(self, name: str = "engine") -> Engine:
        return self._engines[name].client

    def engine_program(self, name: str = "engine") -> Program:
        program = self._engines[name].program
        assert program is not None, f"{name} is not running"
        return program

    def engine_knobs(self, name: str = "engine") -> EngineKnobs:
        return self._engines[name].knobs

    def records(self, *, salt: str | None = None) -> dict[str, int]:
        """Name -> size of the record files in L2; with `salt` only that salt's."""
        found = {}
        for entry in os.scandir(self.l2):
            if entry.name.endswith(".data") and (salt is None or entry.name.endswith(f"@{salt}.data")):
                with contextlib.suppress(FileNotFoundError):
                    found[entry.name] = entry.stat().st_size
        return found

    def wait_stored(self, count: int, *, salt: str | None = None, seconds: float = 20.0) -> float:
        """Waits until L2 holds `count` records (of `salt`) and the server has no more to write; how long that took."""
        return wait_until(
            f"{count} records of {salt or 'any salt'} in L2",
            lambda: len(self.records(salt=salt)) >= count and self.server.pending() == 0,
            seconds,
            every=0.02,
        )

    # --- starting

    def start(self, server: dict[str, Any] | None = None, engine: dict[str, Any] | None = None) -> None:
        """Cache server and one engine side by side: the engine needs the server only at the end of its own start."""
        self._launch_server(**(server or {}))
        self.launch_engine("engine", **(engine or {}))
        self._await_server()
        self.await_engine("engine")

    def start_afresh(self) -> None:
        """Everything down, then server and engine with their default knobs on a store that is empty."""
        self.stop()
        self.server_knobs = ServerKnobs()
        empty = Path(tempfile.mkdtemp(prefix="l2-", dir=self.directory))
        self.start(server={"l2_path": empty}, engine=asdict(EngineKnobs()))

    def start_server(self, **knobs: Any) -> CacheServer:
        """Starts the cache server and waits until it is healthy. Knobs: see ServerKnobs."""
        self._launch_server(**knobs)
        self._await_server()
        return self.server

    def start_engine(self, name: str = "engine", **knobs: Any) -> Engine:
        """Starts one more engine, waits until it answers, is registered and has answered one request. Knobs: see
        EngineKnobs.
        """
        self.launch_engine(name, **knobs)
        self.await_engine(name)
        return self.engine(name)

    def restart_engine(self, name: str = "engine", *, hard: bool = False, **changed: Any) -> Engine:
        """Stops (TERM, or KILL where `hard`) and starts an engine on its old port with changed knobs."""
        self.stop_engine(name, hard=hard)
        return self.start_engine(name, **changed)

    def restart_server(self, down_seconds: float | None = None, *, hard: bool = False, **changed: Any) -> CacheServer:
        """Stops the cache server, leaves it down, starts it on its old ports and waits until the engines have
        registered again.

        `down_seconds` None: three heartbeats. Shorter than one heartbeat, the engines never notice and never register
        again; then nothing is waited for.
        """
        self.stop_server(hard=hard)
        if down_seconds is None:
            return self.revive_server(**changed)
        time.sleep(down_seconds)
        self.start_server(**changed)
        if down_seconds >= 2 * self._longest_heartbeat():
            self.wait_registered()
        return self.server

    def revive_server(self, **changed: Any) -> CacheServer:
        """Starts the cache server again once it was down for three heartbeats, and waits until the engines have
        registered again: one that comes back sooner is never missed, and nobody ever registers with it.
        """
        time.sleep(max(0.0, self._server_down_since + 3 * self._longest_heartbeat() - time.monotonic()))
        self.start_server(**changed)
        self.wait_registered()
        return self.server

    @contextlib.contextmanager
    def without_server(self, *, hard: bool = False) -> Iterator[None]:
        """The cache server down; afterwards it is back with its engines registered."""
        self.stop_server(hard=hard)
        try:
            yield
        finally:
            self.revive_server()

    def _longest_heartbeat(self) -> float:
        """Of the engines that run, in seconds; 0 where none does."""
        running = (slot for slot in self._engines.values() if slot.program and slot.knobs.connector)
        return max((slot.knobs.heartbeat for slot in running), default=0.0)

    def ensure(self, name: str = "engine", **wanted: Any) -> Engine:
        """The engine and the server running, the engine with the default knobs plus `wanted`; restarts only what
        differs or is down.
        """
        knobs = replace(EngineKnobs(), **wanted)
        if self._server_program is None and not self._engines and name == "engine":
            self.start(engine=wanted)
            return self.engine()
        if self._server_program is None or not self._server_program.running:
            self.stop_server()
            self.revive_server()
        slot = self._engines.get(name)
        if slot is not None and slot.program is not None and slot.program.running and slot.knobs == knobs:
            self.wait_registered()
            return slot.client
        if slot is not None:
            self.stop_engine(name)
            slot.knobs = knobs
        return self.start_engine(name, **wanted)

    def wait_registered(self) -> None:
        """Waits until the server knows every running engine (after a restart of the server: within two heartbeats)
        and, where one has just come back, has heard from it: one that was never heard from stays listed for an hour.
        """
        slots = [s for s in self._engines.values() if s.program is not None and s.program.running and s.knobs.connector]
        if self.server.registered() < len(slots):
            wait_until("engines registered", lambda: self.server.registered() >= len(slots), 60)
            time.sleep(1.5 * max(slot.knobs.heartbeat for slot in slots))

    # --- ending

    def stop(self) -> None:
        """Server and engines down; ports and clients stay for the next start."""
        for name in self._engines:
            self.stop_engine(name)
        self.stop_server()

    def stop_engine(self, name: str = "engine", *, hard: bool = False) -> None:
        slot = self._engines[name]
        if slot.program is not None:
            self._end(slot.program, hard)
            slot.program = None

    def stop_server(self, *, hard: bool = False) -> None:
        if self._server_program is not None:
            self._end(self._server_program, hard)
            self._server_program = None
            self._server_down_since = time.monotonic()

    # --- inside

    def _launch_server(self, **changed: Any) -> None:
        assert self._server_program is None, "the cache server is running already"
        self.server_knobs = knobs = replace(self.server_knobs, **changed)
        if knobs.l2_path is not None:
            self.l2 = knobs.l2_path
        if self._server is None:
            self._server = CacheServer(f"http://127.0.0.1:{self.free_port()}")
            self.zmq_port = self.free_port()
        argv = server_command(self.environment.program("lmcache"), knobs, self.l2, self.zmq_port, self.server.port)
        self._server_starts += 1
        self._server_program = self._spawn("server", self._server_starts, argv, package_environment(knobs.package))

    def launch_engine(self, name: str = "engine", **changed: Any) -> None:
        """Starts an engine without waiting for it; await_engine does that."""
        slot = self._engines.get(name)
        knobs = replace(slot.knobs if slot else EngineKnobs(), **changed)
        if slot is None:
            port = self.free_port()
            slot = self._engines[name] = _Slot(port, knobs, Engine(f"http://127.0.0.1:{port}", knobs.served_name))
        assert slot.program is None, f"{name} is running already"
        slot.knobs = knobs
        slot.client.served_name = knobs.served_name
        knobs = replace(knobs, model=knobs.model or self.environment.model)
        mode = self.server_knobs.transfer_mode
        argv = engine_command(self.environment.program("vllm"), knobs, slot.port, self.zmq_port, mode)
        env = engine_environment(knobs) | {"VLLM_CACHE_ROOT": str(self.environment.cache / "vllm")}
        slot.starts += 1
        slot.program = self._spawn(name, slot.starts, argv, env)

    def _await_server(self) -> None:
        self._await(self.server_program, lambda: self.server.answers("/healthcheck"), 60)

    def await_engine(self, name: str = "engine") -> None:
        """Waits until the engine answers and has answered one request."""
        slot = self._engines[name]
        program = self.engine_program(name)
        self._await(program, lambda: slot.client.answers("/health"), 240)
        if slot.knobs.warm_up:
            self._warm_up(slot, program)
        program.ready_seconds = time.monotonic() - program.started

    def _warm_up(self, slot: _Slot, program: Program) -> None:
        """One request of one chunk, whose record is removed again.

        The first request initialises what no later one pays for, and an engine sends heartbeats only from its first
        store on: one that never stored is not missed for an hour when it dies, and does not miss a server that was
        restarted.
        """
        salt = f"warm-up-{program.log.stem}"
        warm = slot.client.complete(
            list(range(40, 40 + self.server_knobs.chunk_size + 1)), salt=salt, timeout=120 * PATIENCE
        )
        if warm.status != 200:
            raise StartError(
                f"{program.name} answered the first request with {warm.status}: {warm.body}\n{program.tail()}"
            )
        if slot.knobs.connector:
            self.wait_stored(1, salt=salt)
            names = list(self.records(salt=salt))
            for name in names:
                (self.l2 / name).unlink()
            self.server.delete(names)
