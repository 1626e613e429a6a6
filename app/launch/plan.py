"""From the form to words: the two programs' arguments and environments, and the directory for this layout. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from app.errors import InvalidInput
from app.launch import words
from app.launch.schemas import EngineInput, LaunchInput, ServerInput, StoreInput
from app.lmcache.layout_directory import layout_path

DEFAULT_CHUNK = 256


@dataclass(frozen=True)
class Plan:
    """What everything is written from. `engine_a` is `engine_b` without `connector`."""

    server: tuple[str, ...]
    engine_a: tuple[str, ...]
    connector: tuple[str, ...]
    server_environment: dict[str, str]
    engine_environment: dict[str, str]
    base_path: str | None
    root_path: str | None
    fingerprint: str | None
    fingerprint_of: str
    chunk_size: int
    notes: tuple[str, ...]

    @property
    def engine_b(self) -> tuple[str, ...]:
        return (*self.engine_a, *self.connector)


@dataclass(frozen=True)
class Place:
    """Where the two programs find each other: what the server binds, and how the engine calls it."""

    server_host: str
    http_host: str
    connect_host: str
    isolated_ipc: bool = False


def make_plan(body: LaunchInput, *, registered: str | None = None, place: Place | None = None) -> Plan:
    """Arguments of both programs. `registered`: fingerprint of a layout that is live under these settings.

    `place` replaces addresses (containers). Raises InvalidInput naming the field.
    """
    server, engine = body.server, body.engine
    chunk = _chunk_size(server, engine)
    place = place or Place(
        words.host("server.host", server.host),
        words.host("server.http_host", server.http_host),
        _reachable(server.host),
    )
    notes: list[str] = []
    fingerprint, origin, base_path, root = None, "no disk tier", None, None
    if server.store is not None:
        root = words.path("server.store.base_path", server.store.base_path)
        fingerprint, origin = (
            (registered, "layout registered at the server")
            if registered is not None
            else (declared_fingerprint(body, chunk), "what these commands declare")
        )
        base_path = layout_path(root, model_of(body), fingerprint) if server.store.per_layout else root
        if not server.store.per_layout:
            notes.append("all layouts share one directory: after a change of dtype or chunk size clean it first")
        if server.store.adapter == "fs":
            notes.append("the fs adapter never evicts: add a cleanup policy for this directory")
    if engine.hybrid_block_tokens:
        notes.append("hybrid model: vLLM calls --mamba-cache-mode align experimental; run an acceptance test")
    if body.device == "cpu":
        notes.append("CPU engines need an explicit transfer mode: auto would mean engine_driven and hang at start")
    if engine.dev_mode:
        notes.append("dev mode opens /reset_prefix_cache and /server_info, and more: only on a trusted network")
    return Plan(
        server=_server_words(server, engine, chunk, l1_gib(body), base_path, place),
        engine_a=_engine_words(engine, model_of(body)),
        connector=("--kv-transfer-config", _connector(server, engine, place)),
        server_environment={"PYTHONHASHSEED": "0"},
        engine_environment=_engine_environment(engine),
        base_path=base_path,
        root_path=root,
        fingerprint=fingerprint,
        fingerprint_of=origin,
        chunk_size=chunk,
        notes=tuple(notes),
    )


def l1_gib(body: LaunchInput) -> float:
    """The size of L1. Raises InvalidInput where nobody gave one."""
    if body.server.l1_gib is None:
        raise InvalidInput.field(
            "server.l1_gib", "is needed: how much memory the cache may take, or a registered server that tells its own"
        )
    return body.server.l1_gib


def model_of(body: LaunchInput) -> str:
    """The model. Raises InvalidInput where nobody gave one."""
    if body.engine.model is None:
        raise InvalidInput.field("engine.model", "is needed: the model's path or name, or a registered engine")
    return body.engine.model


def block_of(engine: EngineInput) -> int:
    """Tokens of which a chunk must be a multiple."""
    return engine.hybrid_block_tokens or engine.block_size or 16


def _chunk_size(server: ServerInput, engine: EngineInput) -> int:
    """As given, else 256 brought up to whole blocks."""
    block = block_of(engine)
    if server.chunk_size is None:
        return block * max(1, -(-DEFAULT_CHUNK // block))
    if server.chunk_size % block:
        better = block * max(1, -(-server.chunk_size // block))
        raise InvalidInput.field(
            "server.chunk_size", f"{server.chunk_size} is no multiple of the engine's block size {block}; use {better}"
        )
    return server.chunk_size


def _server_words(
    server: ServerInput, engine: EngineInput, chunk: int, l1: float, base_path: str | None, place: Place
) -> tuple[str, ...]:
    workers = server.workers if "workers" in server.model_fields_set else max(server.workers, engine.tensor_parallel)
    found = [
        "server",
        *("--host", place.server_host, "--port", str(server.port)),
        *("--http-host", place.http_host, "--http-port", str(server.http_port)),
        *("--chunk-size", str(chunk), "--l1-size-gb", _number(l1)),
        *("--l1-init-size-gb", _number(min(l1, 20.0) if l1 >= 1 else 1)),
        *("--eviction-policy", "LRU", "--eviction-trigger-watermark", _number(server.watermark)),
        *("--eviction-ratio", _number(server.eviction_ratio), "--max-workers", str(workers)),
        *("--hash-algorithm", "blake3", "--supported-transfer-mode", server.transfer_mode),
        *("--worker-reap-timeout-seconds", _number(max(30.0, 3 * engine.heartbeat_seconds, 120.0))),
    ]
    if server.transfer_mode != "lmcache_driven":
        found += ["--shm-name", f"lmcache_l1_{server.port}"]  # without it every transfer is a copy through a pickle
    if place.isolated_ipc:
        found.append("--isolated-ipc")
    if engine.hybrid_block_tokens:
        found.append("--separate-object-groups")
    if server.instance_id is not None:
        found += ["--instance-id", words.name("server.instance_id", server.instance_id)]
    if server.store is not None and base_path is not None:
        found += ["--l2-adapter", _adapter(server.store, base_path)]
    return tuple(found)


def _adapter(store: StoreInput, base_path: str) -> str:
    value: dict[str, object] = {
        "type": store.adapter,
        "base_path": base_path,
        "relative_tmp_dir": words.folder("server.store.temp_dir", store.temp_dir),
        "use_odirect": store.use_odirect,
    }
    if store.capacity_gib is not None:
        if store.adapter != "fs_native":
            raise InvalidInput.field("server.store.capacity_gib", "needs the adapter fs_native: fs bounds nothing")
        value["max_capacity_gb"] = store.capacity_gib
        value["eviction"] = {"eviction_policy": "LRU", "trigger_watermark": 0.8, "eviction_ratio": 0.2}
    return json.dumps(value, separators=(", ", ": "))


def _engine_words(engine: EngineInput, model: str) -> tuple[str, ...]:
    found = ["serve", words.plain("engine.model", model)]
    if engine.served_model_name is not None:
        found += ["--served-model-name", words.plain("engine.served_model_name", engine.served_model_name)]
    found += ["--host", words.host("engine.host", engine.host), "--port", str(engine.port)]
    found += ["--dtype", words.name("engine.dtype", engine.dtype)]
    found += ["--kv-cache-dtype", words.name("engine.kv_cache_dtype", engine.kv_cache_dtype)]
    for option, value in (
        ("--max-model-len", engine.max_model_len),
        ("--max-num-seqs", engine.max_num_seqs),
        ("--block-size", engine.block_size),
        ("--gpu-memory-utilization", engine.gpu_memory_utilization),
    ):
        if value is not None:
            found += [option, _number(value)]
    if engine.tensor_parallel > 1:
        found += ["--tensor-parallel-size", str(engine.tensor_parallel)]
    found += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    if engine.hybrid_block_tokens:
        found += ["--mamba-cache-mode", "align"]
        found += ["--max-num-batched-tokens", str(2 * engine.hybrid_block_tokens - 1)]
    return (*found, *words.further("engine.extra_args", engine.extra_args))


def _connector(server: ServerInput, engine: EngineInput, place: Place) -> str:
    options: dict[str, object] = {
        "lmcache.mp.host": place.connect_host,
        "lmcache.mp.port": server.port,
        # both sides name it: with auto a CPU engine and its server would not agree, and hang
        "lmcache.mp.mp_transfer_mode": "lmcache_driven" if server.transfer_mode == "auto" else server.transfer_mode,
        "lmcache.mp.heartbeat_interval": engine.heartbeat_seconds,
        "lmcache.mp.mq_timeout": engine.mq_timeout_seconds,
    }
    if place.isolated_ipc:
        options["lmcache.mp.isolated_ipc"] = True
    value = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", "kv_connector_extra_config": options}
    return json.dumps(value, separators=(", ", ": "))


def _engine_environment(engine: EngineInput) -> dict[str, str]:
    found = {"PYTHONHASHSEED": "0"}
    if engine.dev_mode:
        found["VLLM_SERVER_DEV_MODE"] = "1"
    return {**found, **words.variables("engine.environment", engine.environment)}


def _reachable(host: str) -> str:
    """How the engine on the same host calls a server that binds to `host`."""
    return "127.0.0.1" if host in ("0.0.0.0", "::", "[::]", "localhost") else host  # noqa: S104


def declared_fingerprint(body: LaunchInput, chunk: int) -> str:
    """16 hex digits over what these commands fix of a layout. Not LMCache's own fingerprint: the real layout is known
    only when the engine has registered it.
    """
    engine = body.engine
    fixed = {
        "model": engine.model,
        "dtype": engine.dtype,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "chunk_size": chunk,
        "block_size": engine.hybrid_block_tokens or engine.block_size,
        "tensor_parallel": engine.tensor_parallel,
        "separate_object_groups": bool(engine.hybrid_block_tokens),
        "device": body.device,
    }
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
