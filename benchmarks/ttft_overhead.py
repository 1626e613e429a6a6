"""The panel's time to first token beside a bare streaming client's, over the same prompts.

Run: ``python benchmarks/ttft_overhead.py [--engine URL] [--pairs N] [--tokens N] [--json]``. Without an engine a
simulated one is started in a process of its own, with latencies like a real one's. Each pair asks one prompt twice
under two new cache salts, once through the client that acceptance runs use and once through a bare socket; which comes
first alternates. Both are cold requests of the same length, so their times have one distribution.

Budget: the medians differ by less than 3 % of the bare client's median plus 1 ms. Exit status 1 if it is missed.
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
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from app.acceptance.prompts import Prompt
from app.acceptance.stack import Stack
from app.fleet.targets import EngineTarget, ServerTarget
from app.lmcache.client import LMCacheClient
from app.sandbox import Latency, SandboxConfig, SandboxThread
from app.vllm.client import VLLMClient

RELATIVE_BUDGET = 0.03
ABSOLUTE_BUDGET_SECONDS = 0.001


def simulated(directory: str, pipe: Connection) -> None:
    """A sandbox until the other side says stop; sends its engine's address."""
    latency = Latency(base=0.02, compute_per_token=0.0001, decode_per_token=0.002)
    with SandboxThread(Path(directory), config=SandboxConfig(latency=latency)) as sandbox:
        pipe.send(sandbox.engine_url)
        pipe.recv()


class BareClient:
    """One keep-alive connection; the first byte of an event that holds a token ends the measurement."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=60)

    def ttft(self, body: dict[str, object]) -> float:
        """Seconds from sending to the first token."""
        raw = json.dumps(body).encode()
        began = time.perf_counter()
        self._connection.request("POST", "/v1/completions", raw, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        first = 0.0
        while line := answer.readline():
            if not first and line.startswith(b"data: {") and b'"text"' in line:
                first = time.perf_counter() - began
        answer.read()
        if not first:
            raise RuntimeError(f"the engine answered {answer.status} without a token")
        return first


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


async def measure(url: str, pairs: int, tokens: int, max_tokens: int) -> tuple[list[float], list[float]]:
    """(panel's, bare client's) times in seconds."""
    async with VLLMClient(url) as vllm, LMCacheClient(url) as unused:
        model = (await vllm.models())[0].id
        ids = (await vllm.tokenize("The keeper counted the lamps near the well. " * (tokens // 2), model=model)).ids[
            :tokens
        ]
        stack = Stack(
            engine=EngineTarget(0, "bench", url, None),
            server=ServerTarget(0, "bench", url),
            stores=(),
            vllm=vllm,
            lmcache=unused,
            model=model,
            run_key=secrets.token_hex(5),
            request_timeout=60.0,
            clock=time.time,
        )
        prompt = Prompt("p01", "continuation", max_tokens, token_ids=ids, ignore_eos=True)
        bare_client = BareClient(url)
        panel: list[float] = []
        bare: list[float] = []

        async def by_panel(salt: str) -> None:
            asked = await stack.ask(prompt, salt, stream=True)
            assert asked.ttft_seconds is not None, asked.answer.refusal
            panel.append(asked.ttft_seconds)

        async def by_bare(salt: str) -> None:
            bare.append(await asyncio.to_thread(bare_client.ttft, body_of(model, ids, salt, max_tokens)))

        for index in range(-3, pairs):
            order = (by_panel, by_bare) if index % 2 else (by_bare, by_panel)
            for ask in order:
                await ask(f"tk-{stack.run_key}-{index}-{ask.__name__}")
            if index == -1:  # the first pairs warm both connections up
                panel.clear()
                bare.clear()
        return panel, bare


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", help="address of a real engine; without it a simulated one is started")
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--max-tokens", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
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
            panel, bare = asyncio.run(measure(url, options.pairs, options.tokens, options.max_tokens))
        finally:
            if process is not None and pipe is not None:
                pipe.send("stop")
                process.join(10)
    ours, theirs_median = statistics.median(panel), statistics.median(bare)
    budget = RELATIVE_BUDGET * theirs_median + ABSOLUTE_BUDGET_SECONDS
    difference = abs(ours - theirs_median)
    good = difference < budget
    found = {
        "pairs": options.pairs,
        "panel_ms": ours * 1000,
        "bare_ms": theirs_median * 1000,
        "ratio": ours / theirs_median,
        "difference_ms": difference * 1000,
        "budget_ms": budget * 1000,
        "within_budget": good,
    }
    if options.json:
        print(json.dumps(found))
    else:
        print(
            f"time to first token, median of {options.pairs}: panel {ours * 1000:.2f} ms, bare client "
            f"{theirs_median * 1000:.2f} ms, ratio {found['ratio']:.3f}; difference {difference * 1000:.2f} ms of "
            f"{budget * 1000:.2f} ms allowed: {'ok' if good else 'MISSED'}"
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
