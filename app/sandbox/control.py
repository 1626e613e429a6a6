"""Telling a running sandbox what to do: faults, restarts, other layouts, time in between.

`Control` may be called from any thread. Components are named ``server/0``, ``engine/1`` and so on, ``server`` and
``engine`` for short where there is one. The same can be done over HTTP (`create_control_app`), on a port of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.sandbox.config import EngineSpec, KVLayout, ServerSpec
from app.sandbox.engine import Engine
from app.sandbox.hosting import Host
from app.sandbox.misbehaviour import Faults, FaultyHTTP
from app.sandbox.server import CacheServer
from app.sandbox.world import World

T = TypeVar("T")


class Control:
    """The hands on a sandbox. Every method returns when the change is in effect."""

    def __init__(self, world: World, hosts: dict[str, Host], wrappers: dict[str, FaultyHTTP]) -> None:
        self._world = world
        self._hosts = hosts
        self._wrappers = wrappers
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called by the sandbox when it starts: the loop that its servers live in."""
        self._loop = loop

    # --- finding ---

    def components(self) -> dict[str, str]:
        """Names and addresses."""
        return {name: host.url for name, host in self._hosts.items()}

    def _name(self, component: str) -> str:
        name = component if "/" in component else f"{component}/0"
        if name not in self._hosts:
            raise ValueError(f"there is no component {component!r}; there are {', '.join(self._hosts)}")
        return name

    def _component(self, component: str) -> CacheServer | Engine:
        kind, _, number = self._name(component).partition("/")
        return self._world.servers[int(number)] if kind == "server" else self._world.engines[int(number)]

    def server(self, index: int = 0) -> CacheServer:
        """The simulation behind ``server/index``, for looking into it."""
        return self._world.servers[index]

    def engine(self, index: int = 0) -> Engine:
        """The simulation behind ``engine/index``, for looking into it."""
        return self._world.engines[index]

    def calls(self, component: str) -> Counter[str]:
        """How often each ``METHOD /path`` of the component was called."""
        return self._wrappers[self._name(component)].calls.copy()

    # --- faults ---

    def faults(self, component: str) -> Faults:
        """What the component does wrong just now."""
        return self._component(component).faults

    def misbehave(self, component: str, **changes: Any) -> None:
        """Set faults (`Faults` names them). Raises `ValueError` for unknown names and wrong types."""
        self.faults(component).apply(**changes)

    def behave(self, component: str | None = None) -> None:
        """No faults any more, of one component or of all."""
        for name in self._hosts if component is None else [self._name(component)]:
            self.faults(name).clear()

    def hold_stores(self, index: int = 0) -> None:
        """Let stores to L2 pile up in the server's queue."""
        self.misbehave(f"server/{index}", stores_stuck=True)

    def release_stores(self, index: int = 0) -> None:
        """Write what piled up."""
        self.misbehave(f"server/{index}", stores_stuck=False)
        self._world.now()

    # --- life ---

    def kill(self, component: str) -> None:
        """The process dies: connections are refused until `start`."""
        self._elsewhere()
        target = self._component(component)
        with self._world.lock:
            now = self._world.now()
            if isinstance(target, CacheServer):
                target.kill(now)
            else:
                target.kill()
        self._run(self._hosts[self._name(component)].stop())

    def start(self, component: str, **changes: Any) -> None:
        """A new process, with other settings if `changes` name fields of its spec (or, for an engine, its layout)."""
        self._elsewhere()
        target = self._component(component)
        with self._world.lock:
            now = self._world.now()
            if isinstance(target, CacheServer):
                target.restart(now, _changed_server(target.spec, changes))
            else:
                target.restart(now, _changed_engine(target.spec, changes))
        self._run(self._hosts[self._name(component)].start())

    def restart(self, component: str, **changes: Any) -> None:
        """Kill and start within no time: fast enough for engines not to notice that their server was away."""
        self.kill(component)
        self.start(component, **changes)

    def refuse(self, component: str) -> None:
        """Refuse connections while the process lives on (a firewall, a wrong port)."""
        name = self._name(component)
        self._elsewhere()
        self._run(self._hosts[name].stop())

    def accept(self, component: str) -> None:
        """Accept connections again after `refuse`."""
        name = self._name(component)
        self._elsewhere()
        self._run(self._hosts[name].start())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the sandbox's loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._elsewhere()).result(30)

    def _elsewhere(self) -> asyncio.AbstractEventLoop:
        """The sandbox's loop; an error where waiting for it could never end."""
        if self._loop is None:
            raise RuntimeError("the sandbox is not running")
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is self._loop:
                raise BlockingIOError("inside the sandbox's own loop use `await control.arun(action, component)`")
        return self._loop

    async def arun(self, action: str, component: str, **changes: Any) -> None:
        """`kill`, `start`, `restart`, `refuse` and `accept` for callers inside an event loop."""
        method = {"kill": self.kill, "refuse": self.refuse, "accept": self.accept}.get(action)
        if method is not None:
            await asyncio.to_thread(method, component)
        elif action == "start":
            await asyncio.to_thread(self.start, component, **changes)
        elif action == "restart":
            await asyncio.to_thread(self.restart, component, **changes)
        else:
            raise ValueError(f"unknown action {action!r}")


def _changed_server(spec: ServerSpec, changes: dict[str, Any]) -> ServerSpec:
    try:
        return replace(spec, **{"started_at": None, **changes})
    except TypeError as error:
        raise ValueError(str(error)) from None


def _changed_engine(spec: EngineSpec, changes: dict[str, Any]) -> EngineSpec:
    """`changes` may name fields of the layout directly: ``dtype="float16"``."""
    names = set(KVLayout.__dataclass_fields__)
    try:
        layout = replace(spec.layout, **{k: v for k, v in changes.items() if k in names})
        rest = {k: v for k, v in changes.items() if k not in names}
        return replace(spec, **{"started_at": None, "layout": layout, **rest})
    except TypeError as error:
        raise ValueError(str(error)) from None


def create_control_app(control: Control) -> Starlette:
    """``GET /`` tells the components, their faults and calls. ``POST /{component}/{action}`` with a JSON object:
    actions misbehave, behave, kill, start, restart, refuse, accept; component as ``server-0``."""

    async def overview(request: Request) -> Response:
        rows = {
            name: {"url": url, "faults": vars(control.faults(name)), "calls": control.calls(name)}
            for name, url in control.components().items()
        }
        return JSONResponse(rows)

    async def act(request: Request) -> Response:
        if "json" not in request.headers.get("content-type", ""):
            return JSONResponse({"detail": "send application/json"}, 415)
        component = request.path_params["component"].replace("-", "/")
        action = request.path_params["action"]
        try:
            body = await request.json() if await request.body() else {}
            if not isinstance(body, dict):
                raise ValueError("the body must be a JSON object")
            if action == "misbehave":
                control.misbehave(component, **body)
            elif action == "behave":
                control.behave(component)
            else:
                await control.arun(action, component, **body)
        except ValueError as error:
            return JSONResponse({"detail": str(error)}, 422)
        return JSONResponse({"component": component, "action": action, "faults": vars(control.faults(component))})

    return Starlette(
        routes=[
            Route("/", overview, methods=["GET"]),
            Route("/{component}/{action}", act, methods=["POST"]),
        ]
    )
