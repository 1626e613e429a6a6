"""Raw HTTP to the two real servers: what an operator's curl would say, and nothing of the product."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

#: Waits end as soon as what they wait for is there; only a fault waits longer on a busy machine.
PATIENCE = 4.0
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")


def prompt(tokens: int, seed: int) -> list[int]:
    """A prompt of exactly `tokens` token ids, the same for the same seed; no special tokens in it."""
    dice = random.Random(seed)
    return [dice.randrange(6, 326) for _ in range(tokens)]


def samples(text: str) -> dict[str, float]:
    """Prometheus text as name-with-labels -> value, histogram buckets left out."""
    found = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match and not match["name"].endswith(("_bucket", "_created")):
            labels = f"{{{match['labels']}}}" if match["labels"] else ""
            found[match["name"] + labels] = float(match["value"])
    return found


def total(values: dict[str, float], name: str, *, having: str = "") -> float | None:
    """Sum over the series called `name` whose labels contain `having`; None where there is no such series."""
    hits = [v for k, v in values.items() if k.partition("{")[0] == name and having in k]
    return sum(hits) if hits else None


def wait_until(what: str, holds: Callable[[], object], seconds: float, *, every: float = 0.1) -> float:
    """Polls until `holds()` is true and returns how long that took; AssertionError naming `what` when it is too late.

    `seconds` is what it takes at most on an idle machine; a busy one gets PATIENCE times as long.
    """
    started = time.monotonic()
    while True:
        last = holds()
        took = time.monotonic() - started
        if last:
            return took
        assert took < PATIENCE * seconds, f"{what}: not within {PATIENCE * seconds:g} s (last: {last!r})"
        time.sleep(every)


@dataclass(frozen=True)
class Answer:
    """One completion. `cached` is vLLM's count of cached prompt tokens (local and external), `stats` the connector's
    per-request split.
    """

    status: int
    seconds: float
    body: Any
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached: int | None = None
    stats: dict[str, int] | None = None
    ttft: float | None = None

    @property
    def external(self) -> int | None:
        """Prompt tokens that LMCache really supplied for this request; None where the connector does not say."""
        return None if self.stats is None else self.stats["num_lmcache_extra_cached_tokens"]

    @property
    def local(self) -> int | None:
        """Prompt tokens that the engine's own prefix cache supplied."""
        return None if self.stats is None else self.stats["num_vllm_cached_tokens"]


def drift(left: Answer, right: Answer) -> float:
    """Largest difference of log-probabilities, in nat, up to and including the first token where the answers part."""
    assert left.status == right.status == 200, (left.status, left.body, right.status, right.body)
    worst = 0.0
    for a, b, x, y in zip(left.tokens, right.tokens, left.logprobs, right.logprobs, strict=True):
        worst = max(worst, abs(x - y))
        if a != b:
            break
    return worst


class Http:
    """A base URL with an httpx client that never reads proxies from the environment."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self._client = httpx.Client(base_url=url, timeout=30.0 * PATIENCE, trust_env=False)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self._client.get(path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self._client.post(path, **options)

    def answers(self, path: str) -> bool:
        """Whether GET `path` gives 200 within two seconds."""
        try:
            return self._client.get(path, timeout=2.0 * PATIENCE).status_code == 200
        except httpx.HTTPError:
            return False

    def metrics(self) -> dict[str, float]:
        """The samples on /metrics."""
        return samples(self.get("/metrics").text)

    def close(self) -> None:
        self._client.close()


class CacheServer(Http):
    """The HTTP side of one LMCache server."""

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.get("/status").json()
        return answer

    def contexts(self) -> dict[str, dict[str, Any]]:
        """Registered KV contexts by id, as /status lists them (empty with engine_driven)."""
        return self.status().get("cache_context_meta") or {}

    def registered(self) -> int:
        """How many workers the server knows, whatever the transfer mode."""
        return int(self.status()["worker_liveness"]["tracked_instances"])

    def dtypes(self) -> list[str]:
        """The dtype of each registered context's first kernel group, sorted."""
        metas = self.contexts().values()
        return sorted(meta["kv_cache_layout"]["kernel_groups"][0]["dtype"] for meta in metas)

    def l1_objects(self) -> int:
        return int(self.status()["storage_manager"]["l1_manager"]["total_object_count"])

    def pending(self) -> int:
        """Objects that the server still has to write to L2, waiting and under way."""
        store = self.status()["storage_manager"]["store_controller"]
        return int(store["pending_keys_count"]) + int(store["in_flight_task_count"])

    def clear_l1(self) -> None:
        """Empties L1, waiting for reads that hold objects to let go."""
        self.post("/cache/clear", json={"tier": "l1", "force": False}).raise_for_status()
        wait_until("L1 empty", lambda: self.l1_objects() == 0 or self._clear_again(), 10)

    def _clear_again(self) -> bool:
        self.post("/cache/clear", json={"tier": "l1", "force": False})
        return False

    def delete(self, names: list[str], tier: str = "l1") -> dict[str, Any]:
        """DELETE /cache/objects for the keys that these file names spell; the server's answer."""
        keys = [key_of(name) for name in names]
        request = self._client.build_request(
            "DELETE", "/cache/objects", json={"keys": keys, "tier": tier, "force": False}
        )
        answer: dict[str, Any] = self._client.send(request).raise_for_status().json()
        return answer


def key_of(name: str) -> dict[str, Any]:
    """The object key that a current file name spells, in the words of the server's API."""
    fields = name.removesuffix(".data").split("@")
    model, rank, group, chunk_hash = fields[:4]
    return {
        "chunk_hash_hex": chunk_hash,
        "model_name": model.replace("-SEP-", "/"),
        "kv_rank": int(rank, 16),
        "object_group_id": int(group, 16),
        "cache_salt": fields[4] if len(fields) > 4 else "",
    }


class Engine(Http):
    """The HTTP side of one vLLM."""

    def __init__(self, url: str, served_name: str) -> None:
        super().__init__(url)
        self.served_name = served_name

    def reset(self) -> httpx.Response:
        """POST /reset_prefix_cache without touching the cache server."""
        return self.post("/reset_prefix_cache", params={"reset_external": "false"})

    def empty_l0(self) -> None:
        """Resets the prefix cache, polling while blocks are still in use by a store."""
        wait_until("prefix cache reset", lambda: self.reset().json()["success"], 20)

    def complete(
        self,
        tokens: list[int] | str,
        *,
        salt: str | None = None,
        max_tokens: int = 8,
        stream: bool = False,
        stats: bool = True,
        timeout: float = 60.0 * PATIENCE,
        **extra: Any,
    ) -> Answer:
        """One greedy completion with log-probabilities; never raises for an HTTP status."""
        body: dict[str, Any] = {
            "model": self.served_name,
            "prompt": tokens,
            "max_tokens": max_tokens,
            "temperature": 0,
            "logprobs": 5,
            "ignore_eos": True,
            "return_token_ids": True,
            **({"cache_salt": salt} if salt is not None else {}),
            **({"kv_transfer_params": {"cached_token_stats": {}}} if stats else {}),
            **extra,
        }
        started = time.monotonic()
        if stream:
            return self._streamed(body, started, timeout)
        response = self._client.post("/v1/completions", json=body, timeout=timeout)
        return _answer(response, time.monotonic() - started)

    def _streamed(self, body: dict[str, Any], started: float, timeout: float) -> Answer:
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        events: list[dict[str, Any]] = []
        first: float | None = None
        with self._client.stream("POST", "/v1/completions", json=body, timeout=timeout) as response:
            if response.status_code != 200:
                response.read()
                return _answer(response, time.monotonic() - started)
            for line in response.iter_lines():
                payload = line.removeprefix("data: ")
                if not line.startswith("data: ") or payload == "[DONE]":
                    continue
                events.append(json.loads(payload))
                if first is None and events[-1].get("choices"):
                    first = time.monotonic() - started
        choices = [choice for event in events for choice in event.get("choices") or []]
        usage: dict[str, Any] = next((event["usage"] for event in reversed(events) if event.get("usage")), {})
        params = next((e["kv_transfer_params"] for e in events if e.get("kv_transfer_params")), None)
        return Answer(
            status=200,
            seconds=time.monotonic() - started,
            body=events,
            tokens=[token for choice in choices for token in choice.get("token_ids") or []],
            logprobs=[x for choice in choices for x in (choice.get("logprobs") or {}).get("token_logprobs", [])],
            prompt_tokens=usage.get("prompt_tokens"),
            cached=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            stats=(params or {}).get("cached_token_stats"),
            ttft=first,
        )


def _answer(response: httpx.Response, seconds: float) -> Answer:
    try:
        body = response.json()
    except ValueError:
        body = response.text
    if response.status_code != 200:
        return Answer(status=response.status_code, seconds=seconds, body=body)
    choice = body["choices"][0]
    return Answer(
        status=200,
        seconds=seconds,
        body=body,
        tokens=choice.get("token_ids") or [],
        logprobs=(choice.get("logprobs") or {}).get("token_logprobs", []),
        prompt_tokens=body["usage"]["prompt_tokens"],
        cached=(body["usage"].get("prompt_tokens_details") or {}).get("cached_tokens"),
        stats=(body.get("kv_transfer_params") or {}).get("cached_token_stats"),
    )
