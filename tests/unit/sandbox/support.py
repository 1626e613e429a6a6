"""Shared by the sandbox's tests: a clock that moves when told, a driver for a running sandbox, reading of metrics."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from app.sandbox import ObjectKey, SandboxThread

START = 1_796_000_000.0
CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"
FIXTURES = Path(__file__).parent / "fixtures"


@dataclass
class Clock:
    now: float = START

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


def prompt(length: int, seed: int = 5) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(6, 512) for _ in range(length)]


@dataclass
class Answer:
    """The parts of a completion that tests look at."""

    status: int
    body: dict[str, Any]

    @property
    def cached(self) -> int:
        return self.body["usage"]["prompt_tokens_details"]["cached_tokens"]

    @property
    def stats(self) -> tuple[int, int, int]:
        """(in vLLM, in LMCache, really supplied by LMCache)."""
        found = self.body["kv_transfer_params"]["cached_token_stats"]
        keys = ("num_vllm_cached_tokens", "num_lmcache_cached_tokens", "num_lmcache_extra_cached_tokens")
        return tuple(found[k] for k in keys)  # type: ignore[return-value]

    @property
    def tokens(self) -> list[int]:
        return self.body["choices"][0]["token_ids"]

    @property
    def logprobs(self) -> list[dict[str, float]]:
        return self.body["choices"][0]["logprobs"]["top_logprobs"]

    def distance(self, other: Answer) -> float:
        """Largest difference of the log-probability of the first answer token's alternatives."""
        mine, theirs = self.logprobs[0], other.logprobs[0]
        worst = max(abs(mine[k] - theirs[k]) for k in mine if k in theirs) if set(mine) & set(theirs) else 9.0
        return worst if set(mine) == set(theirs) else max(worst, 0.1)


@dataclass
class Driver:
    """One sandbox and a client; everything goes over HTTP."""

    sandbox: SandboxThread
    clock: Clock
    client: httpx.Client
    salt: str = "t-1"
    log: list[str] = field(default_factory=list)

    def ask(self, length: int = 300, which: int = 5, engine: int = 0, **more: Any) -> Answer:
        body = {
            "model": self.sandbox.control.engine(engine).spec.served_model_name,
            "prompt": prompt(length, which),
            "max_tokens": 4,
            "temperature": 0,
            "logprobs": 5,
            "cache_salt": self.salt,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "kv_transfer_params": {"cached_token_stats": {}},
            **more,
        }
        answer = self.client.post(self.sandbox.engine_urls[engine] + "/v1/completions", json=body)
        return Answer(answer.status_code, answer.json())

    def reset(self, engine: int = 0, external: bool = False) -> bool:
        url = self.sandbox.engine_urls[engine] + f"/reset_prefix_cache?reset_external={str(external).lower()}"
        return bool(self.client.post(url).json()["success"])

    def files(self, salt: str | None = None) -> list[Path]:
        """Record files of the salt, in the order in which their chunks follow each other in `ask`'s prompt."""
        salt = self.salt if salt is None else salt
        return sorted(self.sandbox.store_path.glob(f"*@{salt}.data"), key=lambda p: p.name)

    def chunk_file(self, index: int, length: int = 300, which: int = 5) -> Path:
        """The file of chunk `index` of `ask`'s prompt."""
        from app.sandbox.tiers import chunk_hashes

        engine = self.sandbox.control.engine()
        size = self.sandbox.control.server().spec.chunk_size
        key = ObjectKey(
            engine.spec.model_path,
            engine.spec.layout.kv_ranks()[0],
            0,
            chunk_hashes(prompt(length, which), size)[index],
            self.salt,
        )
        return self.sandbox.store_path / key.file_name()

    def delete(self, paths: list[Path], tier: str = "l1", server: int = 0) -> dict[str, Any]:
        keys = [key_of(p) for p in paths]
        body = {"keys": keys, "tier": tier}
        return self.client.request("DELETE", self.sandbox.server_urls[server] + "/cache/objects", json=body).json()

    def only_l2(self) -> None:
        """Empty L1 (by key) and L0, so that the next request has to read the files."""
        self.delete(self.files())
        assert self.reset()

    def status(self, server: int = 0) -> dict[str, Any]:
        return self.client.get(self.sandbox.server_urls[server] + "/status").json()

    def server_metrics(self, server: int = 0) -> dict[str, float]:
        return read_metrics(self.client.get(self.sandbox.server_urls[server] + "/metrics").text)

    def engine_metrics(self, engine: int = 0) -> dict[str, float]:
        return read_metrics(self.client.get(self.sandbox.engine_urls[engine] + "/metrics").text)


def key_of(path: Path) -> dict[str, Any]:
    """The key of a record file in its present form, as `DELETE /cache/objects` wants it."""
    model, rank, group, chunk_hash, *salt = path.name.removesuffix(".data").split("@")
    return {
        "model_name": model.replace("-SEP-", "/"),
        "kv_rank": int(rank, 16),
        "object_group_id": int(group, 16),
        "chunk_hash_hex": chunk_hash,
        "cache_salt": salt[0] if salt else "",
    }


def read_metrics(text: str) -> dict[str, float]:
    """Sums over all series of a sample name, buckets left out; and every series by its full name."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#") or "_bucket{" in line:
            continue
        series, value = line.rsplit(" ", 1)
        name = series.split("{", 1)[0]
        values[name] = values.get(name, 0.0) + float(value)
        values[series] = float(value)
    return values


def metric_shapes(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Family name to (type, label names without `le`)."""
    types: dict[str, str] = {}
    labels: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            types[name] = kind
        elif line and not line.startswith("#"):
            found = re.match(r"([^{ ]+)(?:\{(.*)\})? ", line)
            assert found is not None, line
            name = found[1]
            for suffix in ("_bucket", "_sum", "_count"):
                if name.endswith(suffix) and name.removesuffix(suffix) in types:
                    name = name.removesuffix(suffix)
            labels.setdefault(name, set()).update(re.findall(r'(\w+)="', found[2] or ""))
    return {name: (kind, frozenset(labels.get(name, set()) - {"le"})) for name, kind in types.items()}


def shape(value: Any, path: str = "$") -> dict[str, str]:
    """Path to type for every key of a JSON value, recursively. Ids used as keys become ``*``, lists their elements."""
    if isinstance(value, dict):
        found = {path: "object"}
        for key, inner in value.items():
            name = "*" if re.fullmatch(r"\d{6,}", key) or key.startswith("token_id:") else key
            found |= shape(inner, f"{path}.{name}")
        return found
    if isinstance(value, list):
        if path.endswith(".bytes"):
            return {path: "list"}  # empty for special tokens
        found = {path: "list"}
        for inner in value[:3]:
            found |= shape(inner, f"{path}[]")
        return found
    return {path: type(value).__name__}


def captured(name: str) -> Any:
    """A captured JSON answer."""
    return json.loads((CAPTURES / name).read_text())


def live(name: str) -> dict[str, Any]:
    """Answers of the real servers kept beside these tests."""
    return json.loads((FIXTURES / f"{name}.json").read_text())
