"""Restarts between the phases of the restart form: by a hook, or by a person the run waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.acceptance.hooks import HookFailed, HookTarget, run_action
from app.benchmark import fixes
from app.benchmark.conduct import Log
from app.benchmark.ports import Pace
from app.benchmark.stack import Engine, RunStopped, Server, Side, engine_metrics, server_metrics
from app.benchmark.verdict import Finding
from app.errors import TargetError

Kind = Literal["engine", "server"]


@dataclass(frozen=True)
class Hook:
    """How this operator restarts targets; actions as in the acceptance room's HookAction."""

    server: Mapping[str, Any] | None = None
    engine: Mapping[str, Any] | None = None
    timeout: float = 300.0


@dataclass
class Restarter:
    """Restarts what the run asks for and waits until engine and cache server work together again."""

    target: Literal["engine", "server", "both"]
    hook: Hook | None
    wait_seconds: float
    pace: Pace
    log: Log

    async def __call__(self, side: Side) -> None:
        """Before every phase, so that all of them begin with a process of the same age. Raises RunStopped."""
        engine, server = side.engines[0], side.server
        known: frozenset[str] = frozenset()
        if self.target != "engine" and server is not None:
            await self._restart_server(server)
            await self._registered(engine, server, known)
        if self.target != "server":
            known = await _contexts(server)
            await self._restart_engine(engine)
            await self._registered(engine, server, known)

    async def _restart_engine(self, engine: Engine) -> None:
        before = engine.start
        manual = await self._act("engine", HookTarget("engine", engine.target.name, engine.target.url))
        until = time.monotonic() + (self.wait_seconds if manual else self.pace.registered)
        while True:
            metrics = await engine_metrics(engine)
            start = metrics.process_start_time if metrics is not None else None
            if start is not None and start != before and await _answers(engine):
                engine.start = start
                return
            self._patience(until, f"the engine {engine.target.name}")
            await asyncio.sleep(self.pace.poll)

    async def _restart_server(self, server: Server) -> None:
        before = server.identity
        manual = await self._act("server", HookTarget("server", server.target.name, server.target.url))
        until = time.monotonic() + (self.wait_seconds if manual else self.pace.registered)
        while True:
            metrics = await server_metrics(server)
            now = None if metrics is None else (metrics.instance_id, metrics.process_start_time)
            if now is not None and now != before:
                server.identity = now
                return
            self._patience(until, f"the cache server {server.target.name}")
            await asyncio.sleep(self.pace.poll)

    async def _act(self, kind: Kind, target: HookTarget) -> bool:
        """Runs the hook; True where a person does it instead, whom the panel waits for."""
        action = None if self.hook is None else self.hook.engine if kind == "engine" else self.hook.server
        word = "engine" if kind == "engine" else "cache server"
        if action is None or action.get("manual"):
            await self.log.stage(f"waiting for somebody to restart the {word} {target.name}")
            return True
        await self.log.stage(f"restarting the {word} {target.name}")

        async def nobody(_: HookTarget) -> None:
            return None

        assert self.hook is not None
        try:
            await run_action(action, target, seconds=self.hook.timeout, ask_operator=nobody)
        except HookFailed as error:
            raise RunStopped(Finding("restart_failed", "error", error.detail, fixes.RESTART)) from error
        return False

    def _patience(self, until: float, who: str) -> None:
        if time.monotonic() > until:
            text = f"{who} was not restarted in time, or did not come back"
            raise RunStopped(Finding("not_restarted", "invalid", text, fixes.RESTART))

    async def _registered(self, engine: Engine, server: Server | None, known: frozenset[str]) -> None:
        """Waits until the server lists a context beyond `known`: an old one stays listed until it is reaped."""
        if server is None:
            return
        until = time.monotonic() + self.pace.registered
        while True:
            if await _contexts(server) - known and await _answers(engine):
                return
            if time.monotonic() > until:
                text = f"the engine {engine.target.name} did not register at the cache server again"
                raise RunStopped(Finding("not_registered", "invalid", text, fixes.NOT_REGISTERED))
            await asyncio.sleep(self.pace.poll)


async def _contexts(server: Server | None) -> frozenset[str]:
    if server is None:
        return frozenset()
    try:
        return frozenset((await server.client.status()).context_ids)
    except TargetError:
        return frozenset()


async def _answers(engine: Engine) -> bool:
    try:
        return (await engine.client.health()).ok and bool(await engine.client.models())
    except TargetError:
        return False
