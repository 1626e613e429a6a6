"""The command lines of the two servers: what a test may turn, and what is the same for all tests."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# LMCache refuses a reap timeout below 30 s, and wants three heartbeats in it. The heartbeat is the default: quicker
# ones would make restarts quicker, but an engine whose server does not answer one within its interval computes for
# itself for a while, and on a busy machine 2 s were not enough: prompts then got nothing from the cache.
REAP_SECONDS = 30.0
HEARTBEAT_SECONDS = 10.0
QUIET = {
    "LMCACHE_DISABLE_BANNER": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # Record names hash with Python's seed for one of the algorithms; fixed, so that a restarted server finds its files.
    "PYTHONHASHSEED": "0",
    # The first request would otherwise compile two small functions with g++ for 12 to 17 s.
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class ServerKnobs:
    """How `lmcache server` is started. Sizes: `l1_gb` in GiB as LMCache counts; `odirect` None tries what the
    directory can do; `package` a folder with another version of `lmcache`.
    """

    chunk_size: int = 64
    l1_gb: float = 0.25
    reap_timeout: float = REAP_SECONDS
    transfer_mode: str = "lmcache_driven"
    l2_path: Path | None = None
    odirect: bool | None = None
    temp_dir: str = ".tmp"
    watermark: float = 0.8
    eviction_ratio: float = 0.2
    instance_id: str | None = None
    extra: tuple[str, ...] = ()
    package: Path | None = None


@dataclass(frozen=True)
class EngineKnobs:
    """How `vllm serve` is started. `blocks` KV blocks of `block_size` tokens; `connector` False is an engine without
    LMCache, `package` a folder with another version of `lmcache`.
    """

    dtype: str = "bfloat16"
    block_size: int = 32
    blocks: int = 512
    dev_mode: bool = True
    served_name: str = "tiny-llama"
    heartbeat: float = HEARTBEAT_SECONDS
    connector: bool = True
    max_model_len: int = 4096
    mq_timeout: float = 300.0
    model: Path | None = None
    warm_up: bool = True
    extra: tuple[str, ...] = ()
    package: Path | None = None


def server_command(lmcache: str, knobs: ServerKnobs, store: Path, zmq_port: int, http_port: int) -> list[str]:
    """`lmcache server` on loopback with one `fs` adapter over `store`."""
    odirect = _can_odirect(store) if knobs.odirect is None else knobs.odirect
    adapter = {"type": "fs", "base_path": str(store), "relative_tmp_dir": knobs.temp_dir, "use_odirect": odirect}
    options = {
        "--host": "127.0.0.1",
        "--port": zmq_port,
        "--http-host": "127.0.0.1",
        "--http-port": http_port,
        "--chunk-size": knobs.chunk_size,
        "--l1-size-gb": knobs.l1_gb,
        "--l1-init-size-gb": 1,
        "--eviction-policy": "LRU",
        "--eviction-trigger-watermark": knobs.watermark,
        "--eviction-ratio": knobs.eviction_ratio,
        "--supported-transfer-mode": knobs.transfer_mode,
        "--worker-reap-timeout-seconds": knobs.reap_timeout,
        "--l2-adapter": json.dumps(adapter),
        "--instance-id": knobs.instance_id,
    }
    return [lmcache, "server", *_flags(options), *knobs.extra]


def engine_command(vllm: str, knobs: EngineKnobs, port: int, zmq_port: int, transfer_mode: str) -> list[str]:
    """`vllm serve` on loopback, with the connector to the cache server at `zmq_port` unless the knobs say otherwise."""
    options = {
        "--served-model-name": knobs.served_name,
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": knobs.dtype,
        "--max-model-len": knobs.max_model_len,
        "--max-num-seqs": 8,
        "--block-size": knobs.block_size,
        "--num-gpu-blocks-override": knobs.blocks,
        "--kv-transfer-config": _connector(knobs, zmq_port, transfer_mode) if knobs.connector else None,
    }
    switches = ["--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details"]
    return [vllm, "serve", str(knobs.model), *switches, *_flags(options), *knobs.extra]


def engine_environment(knobs: EngineKnobs) -> dict[str, str]:
    """What an engine reads from its environment."""
    return {
        "VLLM_SERVER_DEV_MODE": "1" if knobs.dev_mode else "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    } | package_environment(knobs.package)


def package_environment(package: Path | None) -> dict[str, str]:
    """Lets a program import what is in this folder before what is installed."""
    return {} if package is None else {"PYTHONPATH": str(package)}


def _connector(knobs: EngineKnobs, zmq_port: int, transfer_mode: str) -> str:
    options = {
        "lmcache.mp.host": "127.0.0.1",
        "lmcache.mp.port": zmq_port,
        "lmcache.mp.mp_transfer_mode": "engine_driven" if transfer_mode == "auto" else transfer_mode,
        "lmcache.mp.heartbeat_interval": knobs.heartbeat,
        "lmcache.mp.mq_timeout": knobs.mq_timeout,
    }
    return json.dumps(
        {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", "kv_connector_extra_config": options}
    )


def _flags(options: dict[str, Any]) -> list[str]:
    """Options with a value as arguments; those that are None are left out."""
    return [part for name, value in options.items() if value is not None for part in (name, str(value))]


def _can_odirect(directory: Path) -> bool:
    """Whether files in this directory can be opened with O_DIRECT (not on every overlay or tmpfs)."""
    probe = directory / ".odirect-probe"
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600))
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True
