"""The sandbox itself: components, their servers, the pump that keeps time, traffic, and a thread to run it in."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from app.sandbox.config import EngineSpec, SandboxConfig, ServerSpec
from app.sandbox.control import Control, create_control_app
from app.sandbox.engine_app import create_engine_app
from app.sandbox.hosting import Host
from app.sandbox.misbehaviour import ASGIApp, FaultyHTTP
from app.sandbox.sampling import Sampling
from app.sandbox.seeding import SeedReport, seed_demo
from app.sandbox.server_app import create_server_app
from app.sandbox.traffic import Prompts, Traffic, TrafficShape
from app.sandbox.world import World


class Sandbox:
    """Simulated cache servers and engines over ``directory/l2``, each on a loopback port of its own.

    `servers` and `engines` are counts (of the templates in `config`; engines are dealt to the servers in turn) or
    explicit specs. `clock` gives epoch seconds. Start and stop it in one event loop:
    ``async with Sandbox(path) as sandbox: …``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        servers: int | Sequence[ServerSpec] = 1,
        engines: int | Sequence[EngineSpec] = 1,
        clock: Callable[[], float] = time.time,
        config: SandboxConfig | None = None,
    ) -> None:
        config = config or SandboxConfig()
        server_specs = [config.server] * servers if isinstance(servers, int) else list(servers)
        if isinstance(engines, int):
            count = len(server_specs)
            engine_specs = [replace(config.engine, server=i % count if count else None) for i in range(engines)]
        else:
            engine_specs = list(engines)
        self.config = config
        self.world = World(directory / "l2", server_specs, engine_specs, clock, config)
        self._clock = clock
        self._hosts: dict[str, Host] = {}
        self._wrappers: dict[str, FaultyHTTP] = {}
        for i, server in enumerate(self.world.servers):
            name = f"server/{i}"
            self._add(name, create_server_app(self.world, server, lambda n=name: self._hosts[n].port), server.faults)  # type: ignore[misc]
        for i, engine in enumerate(self.world.engines):
            self._add(f"engine/{i}", create_engine_app(self.world, engine), engine.faults)
        self.control = Control(self.world, self._hosts, self._wrappers)
        self._control_host = Host(create_control_app(self.control)) if config.control else None
        self._tasks: set[asyncio.Task[None]] = set()

    def _add(self, name: str, app: ASGIApp, faults: object) -> None:
        self._wrappers[name] = FaultyHTTP(app, faults)  # type: ignore[arg-type]
        self._hosts[name] = Host(self._wrappers[name])

    # --- where things are ---

    @property
    def store_path(self) -> Path:
        return self.world.store_path

    @property
    def server_urls(self) -> list[str]:
        return [host.url for name, host in self._hosts.items() if name.startswith("server/")]

    @property
    def engine_urls(self) -> list[str]:
        return [host.url for name, host in self._hosts.items() if name.startswith("engine/")]

    @property
    def server_url(self) -> str:
        return self.server_urls[0]

    @property
    def engine_url(self) -> str:
        return self.engine_urls[0]

    @property
    def control_url(self) -> str | None:
        return self._control_host.url if self._control_host is not None else None

    # --- life ---

    async def start(self) -> None:
        """Listen on 127.0.0.1, a free port for every component, and keep the background loops running."""
        self.control.attach(asyncio.get_running_loop())
        await asyncio.gather(*(host.start() for host in self._all_hosts()))
        self._spawn(self._pump())

    async def stop(self) -> None:
        """End traffic and servers. The directory stays as it is."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(host.close() for host in self._all_hosts()))

    async def __aenter__(self) -> Sandbox:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _all_hosts(self) -> list[Host]:
        extra = [self._control_host] if self._control_host is not None else []
        return [*self._hosts.values(), *extra]

    def _spawn(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pump(self) -> None:
        """Heartbeats, evictions, stores and reaping go on when nobody asks anything."""
        while True:
            await asyncio.sleep(self.config.pump_seconds)
            await asyncio.to_thread(self.world.now)

    # --- life in it ---

    def traffic(self, shape: TrafficShape | None = None) -> Traffic:
        """Requests in the background from now on; `Traffic.stop()` ends them. Call it in the sandbox's loop."""
        models = [engine.spec.served_model_name for engine in self.world.engines]
        traffic = Traffic(list(zip(self.engine_urls, models, strict=True)), shape or TrafficShape(), self._clock)
        self._spawn(traffic.run())
        return traffic

    def prime(self, requests: int = 60, shape: TrafficShape | None = None) -> None:
        """Let every engine answer `requests` prompts at once, without the time they would take: warm tiers and
        counters that are not 0. About 10 ms of work each."""
        prompts = Prompts(shape or TrafficShape(), "prime")
        for _ in range(requests):
            prompt = prompts.next()
            for engine in self.world.engines:
                with self.world.lock:
                    engine.generate(prompt.tokens, Sampling(max_tokens=2, salt=prompt.salt), self.world.now())

    def seed_demo(self) -> SeedReport:
        """Fill the store with what a store looks like after weeks of use (see `app.sandbox.seeding`)."""
        with self.world.lock:
            return seed_demo(self.world, self._clock())


class SandboxThread:
    """A sandbox in a thread and event loop of its own, for synchronous tests and for the panel's demo.

    ``with SandboxThread(path) as sandbox:`` gives `server_url`, `engine_url`, `store_path`, `control` and the rest of
    `Sandbox`'s addresses. Arguments are those of `Sandbox`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        servers: int | Sequence[ServerSpec] = 1,
        engines: int | Sequence[EngineSpec] = 1,
        clock: Callable[[], float] = time.time,
        config: SandboxConfig | None = None,
    ) -> None:
        self.sandbox = Sandbox(directory, servers=servers, engines=engines, clock=clock, config=config)
        self.control = self.sandbox.control
        self.store_path = self.sandbox.store_path
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._finish: asyncio.Event | None = None
        self._failure: BaseException | None = None

    @property
    def server_url(self) -> str:
        return self.sandbox.server_url

    @property
    def engine_url(self) -> str:
        return self.sandbox.engine_url

    @property
    def server_urls(self) -> list[str]:
        return self.sandbox.server_urls

    @property
    def engine_urls(self) -> list[str]:
        return self.sandbox.engine_urls

    @property
    def control_url(self) -> str | None:
        return self.sandbox.control_url

    def start(self) -> None:
        """Returns when all components listen. Raises what went wrong otherwise."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._main, args=(ready,), name="sandbox", daemon=True)
        self._thread.start()
        ready.wait(30)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ends the thread; idempotent."""
        thread, loop, finish = self._thread, self._loop, self._finish
        if thread is None:
            return
        if loop is not None and finish is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(finish.set)
        thread.join(30)
        self._thread = None

    def traffic(self, shape: TrafficShape | None = None) -> Traffic:
        """See `Sandbox.traffic`."""

        async def begin() -> Traffic:
            return self.sandbox.traffic(shape)

        if self._loop is None:
            raise RuntimeError("the sandbox is not running")
        return asyncio.run_coroutine_threadsafe(begin(), self._loop).result(10)

    def seed_demo(self) -> SeedReport:
        """See `Sandbox.seed_demo`."""
        return self.sandbox.seed_demo()

    def prime(self, requests: int = 60, shape: TrafficShape | None = None) -> None:
        """See `Sandbox.prime`."""
        self.sandbox.prime(requests, shape)

    def _main(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:
            self._failure = error
        finally:
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._finish = asyncio.Event()
        try:
            await self.sandbox.start()
            ready.set()
            await self._finish.wait()
        finally:
            await self.sandbox.stop()

    def __enter__(self) -> SandboxThread:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
