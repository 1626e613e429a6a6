"""Restart hooks: how this operator restarts a cache server or an engine. Commands run without a shell.

One hook says how to restart the server, the engine, or both: by a command (a list of arguments), by a webhook, or by a
person who then says "go on" on the page. A command gets no environment but PATH, HOME and the target's name and URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from app.errors import TargetError, TierkeeperError
from app.wire.destinations import guard
from app.wire.proxies import check_behind, for_httpx, proxy_of
from app.wire.transport import bounded

OUTPUT_KEPT = 2000
ANSWER_BYTES = 64 * 1024
_PLAIN = {"accept-encoding": "identity"}
TargetKind = Literal["server", "engine"]


class HookFailed(TierkeeperError):
    """The hook did not do its work; the sentence says how it ended."""

    code = "hook_failed"
    title = "The restart hook failed"


@dataclass(frozen=True)
class HookTarget:
    """What is to be restarted."""

    kind: TargetKind
    name: str
    url: str


async def run_action(
    action: Mapping[str, Any],
    target: HookTarget,
    *,
    seconds: float,
    ask_operator: Callable[[HookTarget], Awaitable[None]],
) -> str:
    """Restarts the target as `action` says (schemas.HookAction); returns a sentence on how it went.

    Raises HookFailed. Cancelling the task ends the command.
    """
    if action.get("argv"):
        return await _command(list(action["argv"]), target, seconds)
    if action.get("webhook"):
        return await _webhook(str(action["webhook"]), action.get("headers") or {}, target, seconds)
    try:
        async with asyncio.timeout(seconds):
            await ask_operator(target)
    except TimeoutError:
        raise HookFailed(f"nobody said that the {target.kind} was restarted within {seconds:g} s") from None
    return "the operator said that it was restarted"


async def _command(argv: list[str], target: HookTarget, seconds: float) -> str:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= {
        "TIERKEEPER_HOOK_TARGET": target.kind,
        "TIERKEEPER_HOOK_NAME": target.name,
        "TIERKEEPER_HOOK_URL": target.url,
    }
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise HookFailed(f"the command {argv[0]!r} cannot be started: {error}") from error
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        raise HookFailed(f"the command {argv[0]!r} did not end within {seconds:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own: its children go with it
            await process.wait()
    told = output.decode("utf-8", "replace").strip()[-OUTPUT_KEPT:]
    if process.returncode != 0:
        raise HookFailed(f"the command {argv[0]!r} ended with status {process.returncode}: {told or 'no output'}")
    return f"the command {argv[0]!r} ended well"


async def _webhook(url: str, headers: Mapping[str, str], target: HookTarget, seconds: float) -> str:
    body = {"action": "restart", "target": target.kind, "name": target.name, "url": target.url}
    try:
        found = proxy_of(url)
        if found is not None:
            await check_behind(urlsplit(url).hostname or "")
        # One deadline over everything, and a bounded answer: who is called here may be as hostile as any target.
        async with (
            asyncio.timeout(seconds),
            httpx.AsyncClient(
                timeout=seconds, follow_redirects=False, trust_env=False, proxy=for_httpx(found)
            ) as client,
            client.stream("POST", url, json=body, headers={**_PLAIN, **headers}, extensions={"trace": guard}) as answer,
        ):
            told = b"".join([chunk async for chunk in bounded(answer, ANSWER_BYTES)])
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise HookFailed(f"the webhook does not answer: {error or type(error).__name__}") from error
    except TargetError as error:
        raise HookFailed(f"the webhook failed: {error.detail}") from error
    if not 200 <= answer.status_code < 300:
        raise HookFailed(f"the webhook answered {answer.status_code}: {told.decode('utf-8', 'replace')[:300]}")
    return f"the webhook answered {answer.status_code}"
