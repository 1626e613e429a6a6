"""The panel's time to first token beside a bare streaming client's, over the same prompts.

Run: ``python benchmarks/ttft_overhead.py [--engine URL] [--api-key KEY] [--pairs N] [--tokens N] [--json]``. Without an
engine a simulated one is started in a process of its own, with latencies like a real one's; of a real one the first
model it serves is asked. Each pair asks one prompt twice under two new cache salts, once as acceptance runs do (their
client, the engine's load read meanwhile) and once through a bare socket; which comes first alternates, and prompts take
turns. Both are cold requests of the same length, so their times have one distribution.

Budget: the medians differ by less than 3 % of the bare client's median plus 1 ms. Exit status 1 if it is missed, if a
request was answered without a token, or if a prompt came from a cache (then the two did not do the same work).
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from app.acceptance.prompts import Prompt
from app.acceptance.stack import Stack
from app.acceptance.stats import summarise
from app.errors import TargetError
from app.fleet.targets import EngineTarget, ServerTarget
from app.lmcache.client import LMCacheClient
from app.sandbox import Latency, SandboxConfig, SandboxThread
from app.vllm.client import VLLMClient

RELATIVE_BUDGET = 0.03
ABSOLUTE_BUDGET_SECONDS = 0.001
WARM_UPS = 3
TEXT = "The keeper counted the lamps near the well and wrote down what each of them had burned. "


class Unfit(Exception):
    """What was measured proves nothing."""


def simulated(directory: str, pipe: Connection) -> None:
    """A sandbox until the other side says stop; sends its engine's address."""
    latency = Latency(base=0.02, compute_per_token=0.0001, decode_per_token=0.002)
    with SandboxThread(Path(directory), config=SandboxConfig(latency=latency)) as sandbox:
        pipe.send(sandbox.engine_url)
        pipe.recv()


class BareClient:
    """One keep-alive connection. The moment counts at which the event of the first generated token was there; what it
    holds is looked at only afterwards."""

    def __init__(self, url: str, api_key: str | None) -> None:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=600)
        self._path = parts.path.rstrip("/") + "/v1/completions"
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    def ttft(self, body: dict[str, object]) -> float:
        """Seconds from sending to the first token."""
        raw = json.dumps(body).encode()
        began = time.perf_counter()
        self._connection.request("POST", self._path, raw, self._headers)
        answer = self._connection.getresponse()
        first: float | None = None
        line = b""
        while line := answer.readline():
            at = time.perf_counter() - began
            if first is None and line.startswith(b"data: {") and holds_token(line):
                first = at
        answer.read()
        if answer.status != 200 or first is None:
            raise Unfit(f"the engine answered the bare client with HTTP {answer.status} and no token")
        return first


def holds_token(line: bytes) -> bool:
    """Whether an event carries a generated token; its text may be empty (a part of a character)."""
    for choice in json.loads(line.removeprefix(b"data: ")).get("choices") or ():
        logprobs = choice.get("logprobs") or {}
        if choice.get("text") or choice.get("token_ids") or logprobs.get("tokens"):
            return True
    return False


def body_of(model: str, ids: tuple[int, ...], salt: str, max_tokens: int) -> dict[str, object]:
    """The same request as the panel's."""
    return {
        "model": model,
        "prompt": list(ids),
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "stream": True,
        "ignore_eos": True,
        "return_token_ids": True,
        "logprobs": 5,
        "return_tokens_as_token_ids": True,
        "seed": 0,
        "cache_salt": salt,
        "stream_options": {"include_usage": True},
        "kv_transfer_params": {"cached_token_stats": {}},
    }


@dataclass
class Measured:
    """Seconds to the first token of each request, in the order of asking."""

    model: str
    panel: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    load_readings: int = 0


async def measure(options: argparse.Namespace, url: str) -> Measured:
    """Asks all pairs, the first few only to warm both connections up."""
    key = options.api_key
    async with VLLMClient(url, api_key=key) as vllm, LMCacheClient(url) as unused:
        models = [m for m in await vllm.models() if m.parent is None]
        if not models:
            raise Unfit("the engine lists no model")
        model = models[0].id
        needed = options.tokens + options.prompts
        ids = (await vllm.tokenize(TEXT * needed, model=model)).ids[:needed]
        if len(ids) < needed:
            raise Unfit(f"the engine's tokenizer made only {len(ids)} of {needed} tokens")
        prompts = [ids[n : n + options.tokens] for n in range(options.prompts)]
        stack = Stack(
            engine=EngineTarget(0, "bench", url, key),
            server=ServerTarget(0, "bench", url),
            stores=(),
            vllm=vllm,
            lmcache=unused,
            model=model,
            run_key=secrets.token_hex(5),
            request_timeout=600.0,
            clock=time.time,
        )
        bare_client = BareClient(url, key)
        found = Measured(model)

        async def by_panel(index: int, tokens: tuple[int, ...]) -> None:
            prompt = Prompt("p01", "continuation", options.max_tokens, token_ids=tokens, ignore_eos=True)
            asked = await stack.ask(prompt, f"tk-{stack.run_key}-{index}-panel", stream=True)
            if asked.ttft_seconds is None:
                raise Unfit(f"the engine answered the panel without a token: {asked.answer.refusal}")
            if asked.counts.cached_tokens:
                raise Unfit(f"{asked.counts.cached_tokens} tokens came from a cache although the salt was new")
            found.panel.append(asked.ttft_seconds)

        async def by_bare(index: int, tokens: tuple[int, ...]) -> None:
            body = body_of(model, tokens, f"tk-{stack.run_key}-{index}-bare", options.max_tokens)
            found.bare.append(await asyncio.to_thread(bare_client.ttft, body))

        with stack.load.arm() as load:
            for index in range(-WARM_UPS, options.pairs):
                order = (by_panel, by_bare) if index % 2 else (by_bare, by_panel)
                for ask in order:
                    await ask(index, prompts[index % len(prompts)])
                if index == -1:
                    found.panel.clear()
                    found.bare.clear()
            found.load_readings = load().readings
        return found


def judge(panel: Sequence[float], bare: Sequence[float]) -> dict[str, float | bool]:
    """The numbers of the budget in milliseconds, and whether it is kept."""
    ours, theirs = statistics.median(panel), statistics.median(bare)
    budget = RELATIVE_BUDGET * theirs + ABSOLUTE_BUDGET_SECONDS
    difference = abs(ours - theirs)
    return {
        "panel_ms": ours * 1000,
        "bare_ms": theirs * 1000,
        "ratio": ours / theirs,
        "difference_ms": difference * 1000,
        "budget_ms": budget * 1000,
        "within_budget": difference < budget,
    }


def table(found: Measured, judged: dict[str, float | bool]) -> str:
    """Both clients' times, then the verdict."""
    lines = [f"model {found.model}: time to first token in ms, {len(found.bare)} pairs"]
    lines.append(f"{'client':>8} {'median':>9} {'mean':>9} {'p90':>9} {'p99':>9} {'min':>9} {'max':>9}")
    for name, seconds in (("panel", found.panel), ("bare", found.bare)):
        s = summarise([x * 1000 for x in seconds])
        numbers = (s.median, s.mean, s.p90, s.p99, s.min, s.max)
        lines.append(f"{name:>8} " + " ".join("        –" if n is None else f"{n:9.2f}" for n in numbers))
    lines.append(
        f"medians differ by {judged['difference_ms']:.2f} ms, ratio {judged['ratio']:.3f}; allowed "
        f"{judged['budget_ms']:.2f} ms (3 % of the bare client's median + 1 ms): "
        f"{'ok' if judged['within_budget'] else 'MISSED'}"
    )
    lines.append(f"the engine's load was read {found.load_readings} times meanwhile")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", help="address of a real engine; without it a simulated one is started")
    parser.add_argument("--api-key", help="bearer token of that engine")
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--prompts", type=int, default=6, help="how many prompts take turns")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--max-tokens", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if min(options.pairs, options.prompts, options.tokens, options.max_tokens) < 1:
        parser.error("--pairs, --prompts, --tokens and --max-tokens must be at least 1")
    process = None
    pipe = None
    with tempfile.TemporaryDirectory(prefix="tierkeeper-bench-") as directory:
        url = options.engine
        if url is None:
            context = multiprocessing.get_context("spawn")
            pipe, theirs = context.Pipe()
            process = context.Process(target=simulated, args=(directory, theirs), daemon=True)
            process.start()
            url = pipe.recv()
        try:
            found = asyncio.run(measure(options, url))
        except (Unfit, TargetError, OSError, http.client.HTTPException) as error:
            print(f"nothing was measured: {error}", file=sys.stderr)
            return 1
        finally:
            if process is not None and pipe is not None:
                pipe.send("stop")
                process.join(10)
    judged = judge(found.panel, found.bare)
    if options.json:
        print(json.dumps({"pairs": options.pairs, "model": found.model, **judged}))
    else:
        print(table(found, judged))
    return 0 if judged["within_budget"] else 1


if __name__ == "__main__":
    sys.exit(main())
