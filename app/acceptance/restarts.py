"""Restarting targets between the arms, and waiting until engine and cache server work together again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.acceptance import fixes
from app.acceptance.finding import Finding
from app.acceptance.hooks import HookFailed, HookTarget, run_action
from app.acceptance.stack import RunStopped, Stack
from app.errors import TargetError


@dataclass(frozen=True)
class Hook:
    """A restart hook as a run uses it. Actions as in schemas.HookAction."""

    server: Mapping[str, Any] | None
    engine: Mapping[str, Any] | None
    timeout: float


@dataclass
class Restarts:
    """Restarts of one run. `model_root` is what the engine registers as at the server."""

    hook: Hook
    ask_operator: Callable[[HookTarget], Awaitable[None]]
    model_root: str | None

    async def server(self, stack: Stack) -> str:
        """The cache server restarted, answering, and the engine registered at it again."""
        arm = "restarted_server"
        before = await self._server_identity(stack)
        told = await self._act(self.hook.server, HookTarget("server", stack.server.name, stack.server.url), arm)
        deadline = time.monotonic() + stack.pace.registered
        while True:
            now = await self._server_identity(stack)
            if now is not None and now != before and await self._registered(stack):
                return told
            if time.monotonic() > deadline:
                raise RunStopped(self._server_trouble(stack, before, now))
            await asyncio.sleep(stack.pace.poll)

    def _server_trouble(self, stack: Stack, before: Any, now: Any) -> Finding:
        arm, waited = "restarted_server", f"{stack.pace.registered:.0f} s"
        if now is None:
            text = f"the cache server did not answer within {waited} after its restart"
            return Finding("server_not_back", "error", text, fixes.SERVER_DOWN, arm)
        if now == before:
            text = "the hook ended, but the cache server is still the same process"
            return Finding("not_restarted", "invalid", text, fixes.HOOK, arm)
        text = (
            f"the engine did not register at the restarted cache server within {waited}: it never noticed the restart"
        )
        return Finding("not_reregistered", "invalid", text, fixes.HEARTBEAT, arm)

    async def engine(self, stack: Stack) -> str:
        """The engine restarted, answering, and registered at the cache server."""
        arm = "restarted_engine"
        before = (await stack.counters.engine()).process_start
        known = await self._contexts(stack)
        told = await self._act(self.hook.engine, HookTarget("engine", stack.engine.name, stack.engine.url), arm)
        deadline = time.monotonic() + stack.pace.registered
        while True:
            start = (await stack.counters.engine()).process_start
            back = start is not None and start != before and await self._answers(stack)
            contexts = await self._contexts(stack)
            # The old context stays listed until it is reaped: a new one must have come.
            if back and contexts is not None and (contexts - (known or frozenset()) or not known):
                return told
            if time.monotonic() > deadline:
                raise RunStopped(self._engine_trouble(stack, before, start, back))
            await asyncio.sleep(stack.pace.poll)

    def _engine_trouble(self, stack: Stack, before: float | None, start: float | None, back: bool) -> Finding:
        arm, waited = "restarted_engine", f"{stack.pace.registered:.0f} s"
        if start is None or (start != before and not back):
            text = f"the engine did not answer within {waited} after its restart"
            return Finding("engine_not_back", "error", text, fixes.ENGINE_DOWN, arm)
        if start == before:
            text = "the hook ended, but the engine is still the same process"
            return Finding("not_restarted", "invalid", text, fixes.HOOK, arm)
        text = f"the restarted engine did not register at the cache server within {waited}"
        return Finding("engine_not_registered", "invalid", text, fixes.NOT_REGISTERED, arm)

    async def _act(self, action: Mapping[str, Any] | None, target: HookTarget, arm: str) -> str:
        if action is None:
            text = f"the restart hook has no action for the {target.kind}"
            raise RunStopped(Finding("no_hook", "invalid", text, fixes.HOOK, arm))
        try:
            return await run_action(action, target, seconds=self.hook.timeout, ask_operator=self.ask_operator)
        except HookFailed as error:
            raise RunStopped(Finding("hook_failed", "error", error.detail, fixes.HOOK, arm)) from error

    async def _server_identity(self, stack: Stack) -> tuple[object, object] | None:
        """What is new at each boot; None while the server does not answer."""
        metrics = await stack.counters.server()
        return None if metrics is None else (metrics.instance_id, metrics.process_start_time)

    async def _registered(self, stack: Stack) -> bool:
        contexts = await self._contexts(stack)
        return bool(contexts)

    async def _contexts(self, stack: Stack) -> frozenset[str] | None:
        """Context ids of this model at the server (all ids where it does not tell models); None while it is away."""
        try:
            status = await stack.lmcache.status()
        except TargetError:
            return None
        mine = {i for i, layout in status.contexts.items() if layout.model_name == self.model_root}
        return frozenset(mine or (() if status.contexts else status.context_ids))

    async def _answers(self, stack: Stack) -> bool:
        try:
            return (await stack.vllm.health()).ok and bool(await stack.vllm.models())
        except TargetError:
            return False
