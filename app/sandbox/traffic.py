"""Requests as a small team of users would send them: shared system prompts, tails that come back, busy and quiet hours.

All prompts come from a bounded pool, so that a sandbox that runs for days does not fill the disk (`fs` never evicts).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from app.sandbox.tokenizer import VOCABULARY


@dataclass(frozen=True)
class TrafficShape:
    """How much and how alike. Lengths are in tokens; the rate swings by `wobble` (0..1) over `period` seconds."""

    requests_per_second: float = 1.5
    wobble: float = 0.6
    period: float = 900.0
    prefixes: int = 6
    prefix_tokens: int = 400
    tails: int = 160
    tail_tokens: int = 220
    max_tokens: int = 12
    salted_every: int = 12
    salts: Sequence[str] = ("tenant-a", "tenant-b")
    concurrency: int = 4
    seed: int = 7


@dataclass(frozen=True)
class Prompt:
    tokens: list[int]
    salt: str


class Prompts:
    """The pool: prompt number i is always the same one; `sequence` names the order in which `next` takes them."""

    def __init__(self, shape: TrafficShape, sequence: str = "live") -> None:
        self._shape = shape
        self._rng = random.Random(f"{shape.seed}/{sequence}")  # noqa: S311  (traffic, not secrets)

    def numbered(self, number: int) -> Prompt:
        """Prompt `number`: one of the shared prefixes and a tail of its own."""
        shape = self._shape
        prefix = number % shape.prefixes
        tokens = _words(f"{shape.seed}/prefix/{prefix}", shape.prefix_tokens)
        tail = random.Random(f"{shape.seed}/length/{number}").randint(shape.tail_tokens // 3, shape.tail_tokens)  # noqa: S311
        tokens += _words(f"{shape.seed}/tail/{number}", tail)
        salted = shape.salted_every and shape.salts and number % shape.salted_every == shape.salted_every - 1
        return Prompt(tokens, shape.salts[number % len(shape.salts)] if salted else "")

    def next(self) -> Prompt:
        """Low numbers are popular; high ones come back seldom."""
        share = self._rng.random()
        return self.numbered(int(self._shape.tails * share * share))


def _words(seed: str, count: int) -> list[int]:
    rng = random.Random(seed)  # noqa: S311
    return [rng.randrange(262, VOCABULARY) for _ in range(count)]


class Traffic:
    """Sends requests over HTTP to the engines in turn until `stop`; failures are counted and survived."""

    def __init__(self, targets: Sequence[tuple[str, str]], shape: TrafficShape, clock: Callable[[], float]) -> None:
        self.shape = shape
        self.sent = 0
        self.failed = 0
        self._targets = list(targets)
        self._prompts = Prompts(shape)
        self._clock = clock
        self._rng = random.Random(shape.seed + 1)  # noqa: S311
        self._stopped = False

    def stop(self) -> None:
        """No new requests; may be called from any thread."""
        self._stopped = True

    def rate(self, now: float) -> float:
        """Requests per second at `now`: a day's course in `period` seconds, with a little unrest on top."""
        shape = self.shape
        swing = math.sin(2 * math.pi * now / shape.period) + 0.3 * math.sin(2 * math.pi * now / (shape.period / 7.3))
        return max(0.05, shape.requests_per_second * (1 + shape.wobble * swing / 1.3))

    async def run(self) -> None:
        """The loop; cancelling it is another way to stop."""
        limits = httpx.Limits(max_connections=self.shape.concurrency * 2)
        async with httpx.AsyncClient(timeout=30, limits=limits, trust_env=False) as client:
            running: set[asyncio.Task[None]] = set()
            try:
                while not self._stopped and self._targets:
                    await asyncio.sleep(min(2.0, self._rng.expovariate(self.rate(self._clock()))))
                    if len(running) < self.shape.concurrency:
                        task = asyncio.create_task(self._request(client))
                        running.add(task)
                        task.add_done_callback(running.discard)
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    async def _request(self, client: httpx.AsyncClient) -> None:
        prompt = self._prompts.next()
        url, model = self._targets[self.sent % len(self._targets)]
        self.sent += 1
        body = {
            "model": model,
            "prompt": prompt.tokens,
            "max_tokens": self._rng.randint(2, self.shape.max_tokens),
            "temperature": 0,
            **({"cache_salt": prompt.salt} if prompt.salt else {}),
        }
        try:
            answer = await client.post(f"{url}/v1/completions", json=body)
        except httpx.HTTPError:
            self.failed += 1
            return
        self.failed += answer.status_code != 200
