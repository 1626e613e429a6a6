"""One case a line: what is wrong (or right) in otherwise captured facts, the verdict, and a word its text must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from app.checks.facts import Container, EngineSide, Facts, HostMemory, OtherUser, ServerSide, WriteProbe
from app.lmcache.in_process import parse_in_process
from app.lmcache.in_process_log import parse_in_process_log
from app.lmcache.kv_layout import KVLayout, ObjectGroup
from app.lmcache.server_log import ServerLogFacts
from app.vllm.client import ModelCard
from app.vllm.startup_log import StartupFacts, parse_startup_log
from app.vllm.startup_notes import StartupNotes, parse_startup_notes
from tests.unit.checks.support import (
    GIB,
    MODEL,
    capture,
    engine,
    facts,
    hybrid_engine,
    server,
    store,
    with_cache_config,
)


@dataclass(frozen=True)
class Case:
    check_id: str
    verdict: str
    facts: Callable[[], Facts]
    says: str = ""
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.check_id}-{self.verdict}-{self.says or 'plain'}"


def layout(model: str, block: int, chunk: int = 64, bytes_per_token: int = 512) -> KVLayout:
    group = ObjectGroup(0, 2, block, block, "bfloat16", False)
    return KVLayout(model, 1, chunk, "bfloat16", None, bytes_per_token, block, (group,))


def _hybrid(chunk: int = 784, **more: object) -> Facts:
    block = int(more.pop("block", 784))  # type: ignore[call-overload]
    pair = facts(
        engine=hybrid_engine(block=block, **more),
        server=server(
            config={"chunk_size": chunk, "separate_object_groups": True},
            status={"contexts": {"1": layout("/models/hybrid", block, chunk)}, "chunk_size": chunk},
        ),
    )
    return replace(pair, stores=(store(record_sizes=()),))


def _engine_start() -> float:
    start = engine().process_start
    assert start is not None
    return start


def _mistaken_server() -> ServerSide:
    return ServerSide("cache-a", url="http://127.0.0.1:8000", local=True, mistaken_for="a vLLM engine")


def _mistaken_engine() -> EngineSide:
    return EngineSide("engine-a", url="http://127.0.0.1:8080", local=True, mistaken_for="an LMCache cache server")


def _options(**options: object) -> Facts:
    return facts(engine=engine(facts={"connector_options": {f"lmcache.mp.{k}": v for k, v in options.items()}}))


def _box(role: str, **more: object) -> Container:
    values = {
        "name": "lmcache" if role == "server" else "vllm",
        "role": role,
        "image": "lmcache/vllm-openai:v0.5.6",
        "ipc": "host",
        "network": "host",
        "environment": {},
        "waits_for": (("lmcache", "service_healthy"),) if role == "engine" else (),
        "has_health_check": role == "server",
    }
    return Container(**{**values, **more})  # type: ignore[arg-type]


def _boxes(server_more: dict[str, object] | None = None, engine_more: dict[str, object] | None = None) -> Facts:
    return facts(containers=(_box("server", **(server_more or {})), _box("engine", **(engine_more or {}))))


def _in_process(text: str, **engine_changes: object) -> Facts:
    own = engine(facts={"kv_connector": "LMCacheConnectorV1", "device": "cuda", **engine_changes})
    return facts(server=None, stores=(), engine=own, in_process=parse_in_process(text))


_LOOKUP = "Reqid: a, Total tokens 1000, Inference Engine computed tokens: 0, LMCache hit tokens: 768, need to load: 768"
_STORED = "[req_id=a] Stored 1000 out of total 1000 tokens. size: 1.0 GB, cost 500.0 ms, throughput: 2.0 GB/s"


def _moved(*lines: str) -> Facts:
    """An engine with LMCache inside, and what its log says."""
    pair = _in_process("PYTHONHASHSEED=0")
    assert pair.engine is not None
    return replace(pair, engine=replace(pair.engine, transfers=parse_in_process_log("\n".join(lines))))


def _log(**changes: object) -> ServerLogFacts:
    return ServerLogFacts(starts=1, **changes)  # type: ignore[arg-type]


_STARTUP = "logs/vllm-startup.log"
_HANGS = "logs/vllm-wrong-transfer-mode-hangs.log"
_MAMBA_ERROR = (
    "(EngineCore pid=1) ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (356). Each decode "
    "sequence requires one Mamba cache block"
)

CASES = [
    # the pair as such
    Case("reachable", "ok", facts),
    Case("reachable", "fail", lambda: facts(server=server(reachable=False)), "", "8080"),
    Case("reachable", "fail", lambda: facts(engine=engine(reachable=False)), "", "8000"),
    Case(
        "reachable",
        "fail",
        lambda: facts(server=_mistaken_server(), engine=_mistaken_engine()),
        "a vLLM engine answers there, no cache server",
        "swap the two addresses",
    ),
    Case("reachable", "fail", lambda: facts(server=_mistaken_server()), "a vLLM engine", "8080 by default"),
    Case("engine_registered", "ok", facts, MODEL),
    Case(
        "engine_registered",
        "fail",
        lambda: facts(server=server(status={"contexts": {}, "engines_registered": 0})),
        "no engine is registered",
    ),
    Case("engine_registered", "fail", lambda: _options(port=5556), "5556"),
    Case(
        "engine_registered",
        "fail",
        lambda: facts(server=server(status={"contexts": {"1": layout("/models/other", 16)}})),
        "/models/other",
    ),
    Case("version_pair", "ok", facts, "0.5.6"),
    Case("version_pair", "warn", lambda: facts(engine=engine(version="0.31.2")), "nothing is known"),
    Case(
        "version_pair",
        "fail",
        lambda: facts(server=server(version="0.5.2"), engine=engine(version="0.26.0")),
        "garbage",
    ),
    Case("version_pair", "fail", lambda: facts(server=server(version="0.3.8"), engine=engine(version="0.15.1"))),
    Case("connector_class", "ok", facts, "LMCacheMPConnector"),
    Case(
        "connector_class",
        "fail",
        lambda: facts(engine=engine(facts={"kv_connector": "LMCacheConnectorV1"})),
        "does not speak",
        "LMCacheMPConnector",
    ),
    Case(
        "connector_class",
        "fail",
        lambda: facts(engine=engine(facts={"kv_connector": None}, metrics={"lookup_seconds_count": None})),
        "no KV connector",
    ),
    Case("connector_class", "fail", lambda: facts(engine=engine(facts={"kv_connector": "OffloadingConnector"}))),
    Case("connector_class", "fail", lambda: _in_process("LMCACHE_CHUNK_SIZE=256", device="cpu"), "CPU build"),
    Case("connector_class", "ok", lambda: _in_process("LMCACHE_CHUNK_SIZE=256")),
    Case(
        "connector_class",
        "unknown",
        lambda: facts(engine=engine(facts=None, metrics={"lookup_seconds_count": None})),
        "",
        "VLLM_SERVER_DEV_MODE",
    ),
    Case("kv_role", "ok", facts, "kv_both"),
    Case("kv_role", "fail", lambda: facts(engine=engine(facts={"kv_role": "kv_consumer"})), "never stores"),
    Case(
        "kv_role",
        "warn",
        lambda: facts(engine=engine(facts={"kv_role": "kv_producer"}), engines_of_server=2),
        "never loads",
    ),
    Case("transfer_mode", "ok", facts, "lmcache_driven"),
    Case(
        "transfer_mode",
        "fail",
        lambda: facts(
            engine=engine(log=parse_startup_log(capture(_HANGS)), notes=parse_startup_notes(capture(_HANGS)))
        ),
        "engine_driven",
        "--supported-transfer-mode auto",
    ),
    Case("transfer_mode", "fail", lambda: _options(mp_transfer_mode="auto"), "auto on a CPU engine"),
    Case("transfer_mode", "ok", lambda: facts(server=server(config={"supported_transfer_mode": "auto"})), "both"),
    Case(
        "transfer_mode",
        "warn",
        lambda: facts(
            server=server(config={"supported_transfer_mode": "engine_driven"}),
            engine=engine(log=parse_startup_log(capture(_STARTUP))),
        ),
        "pickle",
    ),
    Case("isolated_ipc", "ok", facts),
    Case("isolated_ipc", "fail", lambda: _options(isolated_ipc=True), "off at the server"),
    Case("isolated_ipc", "fail", lambda: facts(server=server(config={"isolated_ipc": True})), "on at the server"),
    Case("container_sharing", "ok", _boxes, "shared IPC namespace"),
    Case(
        "container_sharing", "fail", lambda: _boxes({"ipc": None}, {"ipc": None}), "does not replace it", "--ipc=host"
    ),
    Case(
        "container_sharing",
        "fail",
        lambda: replace(
            _boxes({"network": None}, {"network": None}),
            engine=engine(facts={"connector_options": {"lmcache.mp.host": "localhost"}}),
        ),
        "does not replace a network",
    ),
    Case(
        "container_sharing",
        "ok",
        lambda: replace(
            _boxes({"network": None, "ipc": "shareable"}, {"network": None, "ipc": "service:lmcache"}),
            engine=engine(facts={"connector_options": {"lmcache.mp.host": "tcp://lmcache"}}),
        ),
        "'lmcache'",
    ),
    Case("start_order", "ok", facts, "first"),
    Case(
        "start_order",
        "warn",
        lambda: facts(server=server(metrics={"process_start_time": _engine_start() + 90 * 60})),
        "started 90 min after",
    ),
    Case(
        "start_order",
        "warn",
        lambda: facts(server=server(metrics={"process_start_time": 1.9e9})),
        "after the engine",
    ),
    Case(
        "start_order",
        "fail",
        lambda: facts(engine=engine(notes=StartupNotes(server_unreachable=True))),
        "could not reach",
    ),
    Case(
        "start_order",
        "warn",
        lambda: replace(_boxes({}, {"waits_for": ()}), server=None),
        "does not wait",
        "service_healthy",
    ),
    Case("start_order", "fail", lambda: replace(_boxes({"has_health_check": False}), server=None), "no healthcheck"),
    Case("start_order", "ok", lambda: replace(_boxes(), server=None), "waits for a healthy server"),
    Case("mq_timeout", "ok", facts, "5 min (300 s)"),
    Case(
        "mq_timeout",
        "fail",
        lambda: replace(_options(mq_timeout=10), server=server(config={"prefetch_load_timeout_seconds": 30.0})),
        "ends before",
        '"lmcache.mp.mq_timeout": 90',
    ),
    Case(
        "mq_timeout",
        "warn",
        lambda: replace(_options(mq_timeout=40), server=server(config={"prefetch_load_timeout_seconds": 30.0})),
        "less than twice",
    ),
    Case("mq_timeout", "warn", lambda: _options(mq_timeout=5)),
    Case("heartbeat", "ok", facts, "every 10 s"),
    Case("heartbeat", "fail", lambda: _options(heartbeat_interval=60), "3 min (180 s) exceeds"),
    Case(
        "heartbeat", "warn", lambda: facts(server=server(config={"worker_reap_timeout_seconds": 0.0})), "never dropped"
    ),
    # blocks and hybrid models
    Case("chunk_size_multiple", "ok", facts, "64 = 2 × 32"),
    Case(
        "chunk_size_multiple", "fail", lambda: facts(server=server(config={"chunk_size": 48})), "48", "--chunk-size 64"
    ),
    Case("chunk_size_multiple", "ok", _hybrid, "N = 784"),
    Case("chunk_size_multiple", "fail", lambda: _hybrid(chunk=544), "784"),
    Case(
        "chunk_size_multiple",
        "fail",
        lambda: facts(
            server=server(
                config={"chunk_size": 784},
                status={"contexts": {"1": layout(MODEL, 784), "2": layout("/models/b", 544)}},
            )
        ),
        "least common multiple is 26656",
        "--chunk-size 26656",
    ),
    Case(
        "chunk_size_multiple",
        "unknown",
        lambda: facts(server=server(status={"contexts": {}}), engine=engine(facts=None, metrics={"cache_configs": ()})),
    ),
    Case("prefix_caching", "ok", facts),
    Case("prefix_caching", "warn", lambda: facts(engine=with_cache_config(engine(), enable_prefix_caching=False))),
    Case(
        "prefix_caching",
        "fail",
        lambda: facts(engine=with_cache_config(hybrid_engine(), enable_prefix_caching=False)),
        "hybrid",
        "--enable-prefix-caching",
    ),
    Case("max_num_batched_tokens", "ok", _hybrid, "784 < 1567 < 2N"),
    Case("max_num_batched_tokens", "fail", lambda: _hybrid(batched=512), "512 < N", "1567"),
    Case("max_num_batched_tokens", "warn", lambda: _hybrid(batched=784), "7 times slower"),
    Case("max_num_batched_tokens", "warn", lambda: _hybrid(batched=8192), "2N = 1568"),
    Case("mamba_cache_mode", "ok", _hybrid, "experimental"),
    Case("mamba_cache_mode", "fail", lambda: _hybrid(mode="none"), "'none'", "align"),
    Case(
        "mamba_blocks",
        "fail",
        lambda: facts(engine=engine(notes=parse_startup_notes(_MAMBA_ERROR))),
        "356",
        "--max-num-seqs 356",
    ),
    Case("mamba_blocks", "ok", _hybrid, "8 requests"),
    Case("separate_object_groups", "ok", _hybrid),
    Case(
        "separate_object_groups",
        "warn",
        lambda: facts(engine=hybrid_engine()),
        "single object group",
        "--separate-object-groups",
    ),
    Case("serde_and_blending", "ok", facts),
    Case(
        "serde_and_blending",
        "fail",
        lambda: facts(engine=hybrid_engine(), stores=(store(adapter={"serde": '{"type":"cachegen"}'}),)),
        "cachegen",
    ),
    Case(
        "serde_and_blending",
        "fail",
        lambda: facts(engine=hybrid_engine(), server=server(config={"engine_type": "blend"})),
        "CacheBlend",
    ),
    Case("serde_and_blending", "warn", lambda: _in_process("LMCACHE_REMOTE_SERDE=cachegen"), "remote serde cachegen"),
    Case("serde_and_blending", "warn", lambda: _in_process("LMCACHE_ENABLE_BLENDING=True"), "CacheBlend"),
    Case(
        "serde_and_blending",
        "fail",
        lambda: replace(_in_process("LMCACHE_ENABLE_BLENDING=True"), engine=hybrid_engine()),
        "with a hybrid model",
        "LMCACHE_ENABLE_BLENDING=False",
    ),
    Case("serde_and_blending", "warn", lambda: facts(stores=(store(adapter={"serde": '{"type":"fp8"}'}),)), "fp8"),
    # memory
    Case("eviction_ratio", "warn", facts, "0.99", "--eviction-ratio 0.2"),
    Case("eviction_ratio", "ok", lambda: facts(server=server(status={"eviction_ratio": 0.2}))),
    Case("eviction_ratio", "warn", lambda: facts(server=server(status={"eviction_ratio": 0.005})), "without pause"),
    Case(
        "eviction_ratio", "fail", lambda: facts(server=server(status={"eviction_policy": "noop"})), "every store fails"
    ),
    Case(
        "eviction_ratio",
        "warn",
        lambda: facts(server=server(status={"eviction_policy": "IsolatedLRU", "eviction_ratio": 0.2})),
        "limit 0",
    ),
    Case("eviction_watermark", "ok", facts),
    Case("eviction_watermark", "ok", lambda: facts(server=server(status=None)), "0.8 (default 0.8)"),
    Case("eviction_watermark", "fail", lambda: facts(server=server(status={"trigger_watermark": 1.0})), "", "0.8"),
    Case("eviction_watermark", "warn", lambda: facts(server=server(status={"trigger_watermark": 0.99}))),
    Case("eviction_watermark", "warn", lambda: facts(server=server(status={"trigger_watermark": 0.3})), "never used"),
    Case("l1_size", "ok", facts, "allocated whole"),
    Case("l1_size", "fail", lambda: facts(server=server(config={"l1_size_bytes": 65536})), "one chunk takes 32 KiB"),
    Case(
        "l1_size",
        "warn",
        lambda: facts(engine=engine(models=(ModelCard("t", MODEL, 4_000_000),))),
        "one context of 4000000 tokens",
    ),
    Case(
        "l1_size",
        "warn",
        lambda: facts(server=server(metrics={"l1_allocation_failures": 12.0})),
        "12 chunks found no room",
    ),
    Case("l1_host_memory", "ok", facts, "reserve"),
    Case("l1_host_memory", "fail", lambda: facts(server=server(config={"l1_size_bytes": 100 * GIB})), "does not fit"),
    Case(
        "l1_host_memory",
        "warn",
        lambda: facts(server=server(config={"l1_size_bytes": 60 * GIB}), memory=HostMemory(64 * GIB, 63 * GIB)),
        "no reserve",
    ),
    Case(
        "l1_host_memory",
        "fail",
        lambda: facts(memory=HostMemory(64 * GIB, 48 * GIB, limit_bytes=GIB // 2)),
        "512 MiB",
    ),
    Case("l1_host_memory", "unknown", lambda: facts(server=server(local=False)), "another host"),
    Case("unified_memory", "ok", facts, "L0 8 MiB"),
    Case(
        "unified_memory",
        "fail",
        lambda: facts(
            engine=engine(
                facts={"device": "cuda"}, notes=StartupNotes(weights_bytes=70 * GIB, kv_cache_bytes=30 * GIB)
            ),
            server=server(config={"l1_size_bytes": 60 * GIB}),
            memory=HostMemory(128 * GIB, 100 * GIB, unified=True),
        ),
        "weights 70 GiB + L0 30 GiB + L1 60 GiB",
    ),
    Case("workers", "ok", facts, "1 threads"),
    Case("workers", "warn", lambda: facts(engines_of_server=3), "3 engine workers expected", "--max-workers 3"),
    Case("workers", "warn", lambda: facts(engine=engine(facts={"tensor_parallel_size": 4})), "4 engine workers"),
    # stores
    Case("store_device", "ok", facts, "ext4 at /srv/kv"),
    Case("store_device", "fail", lambda: facts(stores=(store(fs_type="tmpfs", mount_point="/dev/shm"),)), "tmpfs"),
    Case("store_device", "fail", lambda: facts(stores=(store(fs_type="overlay", mount_point="/"),)), "the container"),
    Case("store_device", "warn", lambda: facts(stores=(store(fs_type="nfs4"),)), "nfs4"),
    Case("store_device", "warn", lambda: facts(stores=(store(mount_point="/", is_root=True),)), "root file system"),
    Case(
        "store_device", "unknown", lambda: facts(stores=(store(fs_type=None, unseen_reason="elsewhere"),)), "elsewhere"
    ),
    Case("write_probe", "ok", facts, "O_DIRECT"),
    Case(
        "write_probe",
        "fail",
        lambda: facts(stores=(store(probe=WriteProbe("refused", "EINVAL: …", True, 4096, "EINVAL")),)),
        "EINVAL",
        "use_odirect",
    ),
    Case(
        "write_probe",
        "unknown",
        lambda: facts(stores=(store(probe=WriteProbe("refused", "EACCES", False, 4096, "EACCES")),)),
        "panel's user",
    ),
    Case("odirect_alignment", "ok", facts, "32 KiB"),
    Case("odirect_alignment", "warn", lambda: facts(stores=(store(record_sizes=(24000,)),)), "written buffered"),
    Case(
        "odirect_alignment",
        "fail",
        lambda: facts(stores=(store(record_sizes=(24000,), adapter={"type": "fs_native"}),)),
        "their writes fail",
    ),
    Case("odirect_alignment", "fail", lambda: facts(stores=(store(block_size=65536),)), "EINVAL", "--l1-align-bytes"),
    Case("odirect_alignment", "fail", lambda: facts(server=server(log=_log(odirect_failed=57))), "57 failed"),
    Case("odirect_alignment", "unknown", lambda: facts(stores=(store(record_sizes=()),)), "no record size"),
    Case("temp_dir", "ok", facts),
    Case("temp_dir", "fail", lambda: facts(stores=(store(temp_same_device=False),)), "another device"),
    Case(
        "capacity_without_eviction",
        "fail",
        lambda: facts(stores=(store(adapter={"max_capacity_gb": 4000.0, "eviction": False}),)),
        "nothing is bounded",
        "eviction_policy",
    ),
    Case(
        "capacity_without_eviction",
        "ok",
        lambda: facts(stores=(store(adapter={"max_capacity_gb": 500.0, "eviction": True, "eviction_policy": "LRU"}),)),
    ),
    Case(
        "capacity_without_eviction",
        "fail",
        lambda: facts(stores=(store(adapter={"max_capacity_gb": 4000.0, "eviction": True}),)),
        "more than the file system has",
    ),
    Case("growth_bounded", "ok", facts, "keep the disk free"),
    Case("growth_bounded", "warn", lambda: facts(stores=(store(policies=()),)), "no enabled cleanup policy"),
    Case(
        "growth_bounded", "warn", lambda: facts(stores=(store(policies=None),)), "no store of the panel stands for this"
    ),
    Case(
        "growth_bounded",
        "warn",
        lambda: facts(stores=(store(policies=None, policies_known=False),)),
        "no panel was asked",
    ),
    Case("growth_bounded", "fail", lambda: facts(stores=(store(policies=(), free_bytes=50 * GIB),)), "53.7 GB free"),
    Case(
        "growth_bounded",
        "ok",
        lambda: facts(stores=(store(policies=(), adapter={"type": "fs_native", "eviction": True}),)),
        "evicts by itself",
    ),
    Case("shared_directory", "ok", facts),
    Case(
        "shared_directory", "warn", lambda: facts(stores=(store(shared_with=(OtherUser("b", 64, False),)),)), "shared"
    ),
    Case(
        "shared_directory",
        "fail",
        lambda: facts(stores=(store(shared_with=(OtherUser("b", 256, False),)),)),
        "b: 256; here 64",
    ),
    Case("shared_directory", "fail", lambda: facts(stores=(store(shared_with=(OtherUser("b", 64, True),)),)), "evicts"),
    Case("hash_algorithm", "ok", facts, "blake3"),
    Case("hash_algorithm", "fail", lambda: facts(server=server(config={"hash_algorithm": "builtin"})), "own hash"),
    Case(
        "hash_algorithm",
        "warn",
        lambda: facts(server=server(config={"hash_algorithm": "sha256_cbor"})),
        "PYTHONHASHSEED",
    ),
    Case(
        "hash_algorithm",
        "ok",
        lambda: facts(server=server(config={"hash_algorithm": "sha256_cbor"}, environment={"PYTHONHASHSEED": "0"})),
        "PYTHONHASHSEED=0",
    ),
    Case(
        "hash_algorithm",
        "fail",
        lambda: facts(server=server(config={"hash_algorithm": "sha256_cbor"}, log=_log(hash_function="builtin"))),
        "could not be loaded",
    ),
    Case("hash_algorithm", "fail", lambda: _options(hash_algorithm="sha256_cbor"), "the connector announces"),
    Case("hash_algorithm", "fail", lambda: _in_process("LMCACHE_LOCAL_CPU=True"), "PYTHONHASHSEED is not set"),
    Case("hash_algorithm", "ok", lambda: _in_process("PYTHONHASHSEED=0\nLMCACHE_LOCAL_CPU=True"), "PYTHONHASHSEED=0"),
    Case("record_names", "ok", facts, "room for a cache_salt"),
    Case("record_names", "fail", lambda: facts(engine=engine(facts={"model": "/m/a@b"}, models=())), "@"),
    Case("record_names", "warn", lambda: facts(engine=engine(facts={"model": "/m/a-SEP-b"}, models=())), "-SEP-"),
    Case("record_names", "fail", lambda: facts(engine=engine(facts={"model": "/m/" + "x" * 300}, models=())), "255"),
    # seeing what happens
    Case("metrics", "ok", lambda: facts(engine=None)),
    Case("metrics", "ok", lambda: facts(server=None)),
    Case(
        "metrics",
        "fail",
        lambda: facts(engine=None, server=server(metrics=None, metrics_reason="GET … answered 404: Not Found")),
        "404",
    ),
    Case(
        "metrics",
        "warn",
        lambda: facts(engine=None, server=server(metrics=None, config={"otlp_endpoint": "http://otel:4317"})),
        "pushed",
    ),
    Case(
        "metrics", "fail", lambda: facts(engine=None, server=server(config={"metrics_enabled": False})), "switched off"
    ),
    Case("metrics", "warn", lambda: facts(engine=None, server=server(metrics={"event_bus_dropped": 9.0})), "too low"),
    Case(
        "metrics",
        "fail",
        lambda: facts(server=None, engine=engine(metrics=None, metrics_reason="…", metrics_status=500)),
        "PROMETHEUS_MULTIPROC_DIR",
    ),
    Case("metrics", "unknown", lambda: facts(engine=None, server=server(metrics=None, reachable=False)), "answer"),
    Case("metrics", "unknown", lambda: facts(server=None, engine=engine(metrics=None, reachable=False)), "answer"),
    Case("metrics", "warn", lambda: facts(server=None, engine=engine(metrics={"external_queries": None}))),
    Case("metrics", "warn", lambda: _in_process("LMCACHE_LOCAL_CPU=True"), "lmcache:*"),
    Case("prometheus_port", "ok", facts),
    Case(
        "prometheus_port",
        "warn",
        lambda: facts(server=server(config={"prometheus_port": 9191})),
        "nothing listens",
        "8080/metrics",
    ),
    Case("prompt_tokens_details", "unknown", facts),
    Case("prompt_tokens_details", "ok", lambda: facts(engine=engine(log=parse_startup_log(capture(_STARTUP))))),
    Case(
        "prompt_tokens_details",
        "warn",
        lambda: facts(engine=engine(log=StartupFacts(prompt_tokens_details=False, starts=1))),
        "off",
        "--enable-prompt-tokens-details",
    ),
    Case("log_level", "ok", facts),
    Case("log_level", "warn", lambda: facts(engine=engine(facts={"log_level": "DEBUG"})), "DEBUG"),
    Case("log_level", "warn", lambda: facts(engine=None, server=server(log=_log(debug=True))), "start-up log"),
    Case("log_level", "ok", lambda: facts(engine=None, server=server(environment={"LMCACHE_LOG_LEVEL": "INFO"}))),
    Case("open_port", "ok", facts, "127.0.0.1"),
    Case(
        "open_port",
        "fail",
        lambda: facts(server=server(config={"http_host": "0.0.0.0"}, answers_from=("203.0.113.5:8080",))),
        "203.0.113.5",
        "--http-host 127.0.0.1",
    ),
    Case(
        "open_port",
        "ok",
        lambda: facts(server=server(config={"http_host": "0.0.0.0"}, answers_from=(), key_refused=True)),
        "asks for a key",
    ),
    Case("open_port", "warn", lambda: facts(server=server(config={"http_host": "10.0.0.7"})), "clear the cache"),
    Case("open_port", "fail", lambda: facts(server=server(config={"http_host": "8.8.8.8"})), "8.8.8.8"),
    Case(
        "open_port",
        "fail",
        lambda: facts(server=server(config={"http_host": "10.0.0.7", "run_script_api_enabled": True})),
        "runs code",
    ),
    Case(
        "open_port",
        "warn",
        lambda: replace(
            _boxes({"network": None}), server=server(config={"http_host": "0.0.0.0"}, answers_from=None, local=False)
        ),
        "published ports",
    ),
    Case("in_process_transfers", "ok", lambda: _moved(_LOOKUP, _STORED), "look-ups found 76.8% of 1000 tokens"),
    Case("in_process_transfers", "ok", lambda: _moved(_STORED), "1.07 GB in 500 ms: 2.15 GB/s"),
    Case("in_process_transfers", "warn", lambda: _moved(*[_LOOKUP.replace("768", "0")] * 20), "0.0%", "chunk_size"),
    Case(
        "in_process_transfers",
        "warn",
        lambda: _moved(_STORED, "PROMETHEUS_MULTIPROC_DIR is not set"),
        "PROMETHEUS_MULTIPROC_DIR is missing",
        "emptied before each start",
    ),
    Case("in_process_transfers", "unknown", lambda: _moved("LMCache Configuration: {'chunk_size': 256}"), "start only"),
    # texts
    Case("image_tag", "ok", lambda: facts(containers=(_box("server"),)), "v0.5.6"),
    Case("image_tag", "ok", lambda: facts(containers=(_box("engine", image="vllm@sha256:0123"),))),
    Case("image_tag", "warn", lambda: facts(containers=(_box("server", image="lmcache/standalone:latest"),)), "moves"),
    Case("image_tag", "warn", lambda: facts(containers=(_box("server", image="reg:5000/lmcache"),)), "no tag"),
    Case("image_tag", "warn", lambda: facts(containers=(_box("engine", image="vllm:latest-nightly"),)), "moves"),
    Case(
        "leftover_variables",
        "warn",
        lambda: facts(in_process=parse_in_process("LMCACHE_MAX_LOCAL_DISK_SIZE=250\nLMCACHE_CONFIG_FILE=/a.yaml")),
        "LMCACHE_CONFIG_FILE, LMCACHE_MAX_LOCAL_DISK_SIZE",
        "unset",
    ),
    Case(
        "leftover_variables",
        "ok",
        lambda: facts(in_process=parse_in_process("LMCACHE_LOG_LEVEL=INFO\nPYTHONHASHSEED=0")),
    ),
    Case("leftover_variables", "warn", lambda: _in_process("LMCACHE_CHUNKSIZE=256"), "LMCACHE_CHUNKSIZE"),
    Case(
        "readable_settings",
        "fail",
        lambda: _in_process("LMCACHE_EXTRA_CONFIG={'a': 1}"),
        "not valid JSON",
    ),
    Case("readable_settings", "fail", lambda: _in_process("chunk_size: [\nlocal_cpu: x"), "YAML cannot be read"),
    Case("readable_settings", "fail", lambda: _in_process("LMCACHE_CHUNK_SIZE=many"), "no number"),
    Case("readable_settings", "ok", lambda: _in_process("LMCACHE_EXTRA_CONFIG='{\"a\": 1}'")),
    Case(
        "disk_limit_per_rank",
        "warn",
        lambda: _in_process("LMCACHE_LOCAL_DISK=file:///kv\nLMCACHE_MAX_LOCAL_DISK_SIZE=640", tensor_parallel_size=8),
        "640 GB × 8 ranks = 5120 GB",
        "=80 ",
    ),
    Case(
        "disk_limit_per_rank", "ok", lambda: _in_process("local_disk: file:///kv\nmax_local_disk_size: 100"), "one rank"
    ),
    Case("disk_limit_per_rank", "fail", lambda: _in_process("LMCACHE_LOCAL_DISK=file:///kv"), "nothing is stored"),
    Case("unverified_territory", "ok", facts),
    Case("unverified_territory", "warn", lambda: facts(engine=engine(facts={"multimodal": True})), "images"),
    Case(
        "unverified_territory",
        "warn",
        lambda: facts(engine=engine(models=(ModelCard("base", MODEL, 1), ModelCard("lora-a", MODEL, 1, "base")))),
        "lora-a",
    ),
    Case(
        "unverified_territory",
        "warn",
        lambda: facts(
            server=server(status={"contexts": {"1": replace(layout("m", 1), attention_backend="SGLang MHA")}})
        ),
        "SGLang",
    ),
]
