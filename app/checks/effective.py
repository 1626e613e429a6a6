"""What is really in force, put together from several witnesses, each value with where it was read. Pure.

The order of the witnesses is the order of trust: what a running process reports, then its start-up log, then what it
was told on its command line, then the default.
"""

from __future__ import annotations

from app.checks.facts import EngineSide, Facts, Sourced
from app.lmcache.layouts import KVLayout, common_multiple

#: Connector options and their defaults (LMCache 0.5.6).
CONNECTOR_DEFAULTS: dict[str, object] = {
    "mq_timeout": 300.0,
    "heartbeat_interval": 10.0,
    "mp_transfer_mode": "auto",
    "isolated_ipc": False,
    "use_vmm_api": False,
    "hash_algorithm": "blake3",
    "host": "tcp://localhost",
    "port": 5555,
}
MP_CONNECTOR = "LMCacheMPConnector"
_UNSET = ("None", "", None)


def chunk_size(facts: Facts) -> Sourced[int] | None:
    """Tokens per chunk of the cache server (or of the in-process mode)."""
    server = facts.server
    if server is not None and server.config is not None and server.config.chunk_size:
        origin = "command line (--chunk-size or its default)" if server.planned else "/config of the server"
        return Sourced(server.config.chunk_size, origin)
    if server is not None and server.status is not None and server.status.chunk_size:
        return Sourced(server.status.chunk_size, "/status of the server")
    if server is not None and server.log is not None and server.log.chunk_size:
        return Sourced(server.log.chunk_size, "start-up log of the server")
    if server is None and facts.in_process is not None:
        given = facts.in_process.number("chunk_size")
        if given:
            return Sourced(int(given), facts.in_process.origin)
        return Sourced(256, "default of the in-process mode")
    return None


def engine_models(engine: EngineSide | None) -> tuple[str, ...]:
    """The names under which LMCache may know the engine's models: paths, not served names."""
    if engine is None:
        return ()
    names = [engine.facts.model if engine.facts is not None else None]
    names += [card.root for card in engine.models or ()]
    names += [engine.log.cache_model_name] if engine.log is not None else []
    return tuple(dict.fromkeys(name for name in names if name))


def layouts(facts: Facts) -> tuple[KVLayout, ...]:
    """The layouts registered at the server."""
    server = facts.server
    return tuple(server.status.contexts.values()) if server is not None and server.status is not None else ()


def own_layouts(facts: Facts) -> tuple[KVLayout, ...]:
    """Those of this engine's model."""
    names = engine_models(facts.engine)
    return tuple(layout for layout in layouts(facts) if layout.model_name in names)


def block_tokens(facts: Facts) -> Sourced[int] | None:
    """N: the tokens of one block of this engine; of a hybrid model what vLLM chose, not what was asked for."""
    engine = facts.engine
    if engine is None:
        return None
    log = engine.log
    if log is not None and log.attention_block_size:
        return Sourced(log.attention_block_size, 'start-up log: "Setting attention block size"')
    if log is not None and (joined := common_multiple(log.group_tokens_per_block)):
        return Sourced(joined, "start-up log: group_tokens_per_block")
    found = common_multiple(filter(None, (_layout_tokens(layout) for layout in own_layouts(facts))))
    if found:
        return Sourced(found, "layout registered at the server (/status)")
    if engine.metrics is not None:
        sizes = [config.effective_block_size or config.block_size for config in engine.metrics.cache_configs]
        if joined := common_multiple(sizes):
            return Sourced(joined, "vllm:cache_config_info on /metrics of the engine")
    if engine.facts is not None and engine.facts.block_size:
        origin = "command line (--block-size)" if engine.planned else "/server_info of the engine"
        return Sourced(engine.facts.block_size, origin)
    return None


def _layout_tokens(layout: KVLayout) -> int | None:
    return common_multiple(group.tokens_per_block for group in layout.groups) or layout.tokens_per_block


def server_blocks(facts: Facts) -> dict[str, int]:
    """model name -> tokens per block, of every model registered at the server and of this engine."""
    found: dict[str, int] = {}
    for layout in layouts(facts):
        tokens = _layout_tokens(layout)
        if tokens:
            found[layout.model_name] = common_multiple((found.get(layout.model_name, 1), tokens)) or tokens
    own = block_tokens(facts)
    if own is not None:
        names = engine_models(facts.engine) or (facts.engine_name,)
        name = next((item for item in names if item in found), names[0])
        found[name] = own.value
    return found


def hybrid(facts: Facts) -> Sourced[bool] | None:
    """Whether the engine's model mixes attention with recurrent state (Mamba, gated delta nets)."""
    engine = facts.engine
    if engine is None:
        return None
    if engine.log is not None and engine.log.attention_block_size:
        return Sourced(True, "start-up log: vLLM set the attention block size to match the state")
    if engine.notes is not None and engine.notes.mamba_blocks_short:
        return Sourced(True, "start-up log: Mamba cache blocks")
    for config in engine.metrics.cache_configs if engine.metrics is not None else ():
        padded, state = config.labels.get("mamba_page_size_padded"), config.labels.get("mamba_block_size")
        if padded not in _UNSET or state not in _UNSET:
            return Sourced(True, "vllm:cache_config_info: a Mamba page or block size is set")
        if "mamba_page_size_padded" in config.labels:
            return Sourced(False, "vllm:cache_config_info: no Mamba page size")
    if engine.facts is not None and engine.facts.mamba_cache_mode not in (None, "none"):
        return Sourced(True, "mamba_cache_mode is set")
    return None


def mamba_mode(facts: Facts) -> Sourced[str] | None:
    engine = facts.engine
    if engine is None:
        return None
    for config in engine.metrics.cache_configs if engine.metrics is not None else ():
        if config.labels.get("mamba_cache_mode") not in _UNSET:
            return Sourced(config.labels["mamba_cache_mode"], "vllm:cache_config_info on /metrics of the engine")
    if engine.facts is not None and engine.facts.mamba_cache_mode:
        return Sourced(engine.facts.mamba_cache_mode, _engine_origin(engine))
    if engine.notes is not None and engine.notes.mamba_cache_mode:
        return Sourced(engine.notes.mamba_cache_mode, "start-up log")
    return None


def batched_tokens(facts: Facts) -> Sourced[int] | None:
    engine = facts.engine
    if engine is None:
        return None
    if engine.facts is not None and engine.facts.max_num_batched_tokens:
        return Sourced(engine.facts.max_num_batched_tokens, _engine_origin(engine))
    if engine.notes is not None and engine.notes.max_num_batched_tokens:
        return Sourced(engine.notes.max_num_batched_tokens, "start-up log")
    return None


def prefix_caching(facts: Facts) -> Sourced[bool] | None:
    engine = facts.engine
    if engine is None:
        return None
    for config in engine.metrics.cache_configs if engine.metrics is not None else ():
        if config.enable_prefix_caching is not None:
            return Sourced(config.enable_prefix_caching, "vllm:cache_config_info on /metrics of the engine")
    if engine.facts is not None and engine.facts.enable_prefix_caching is not None:
        return Sourced(engine.facts.enable_prefix_caching, _engine_origin(engine))
    if engine.notes is not None and engine.notes.prefix_caching_disabled:
        return Sourced(False, "start-up log")
    return None


def connector(facts: Facts) -> Sourced[str] | None:
    """The class name of the KV connector; an empty text where the engine is known to have none."""
    engine = facts.engine
    if engine is None:
        return None
    if engine.facts is not None and engine.facts.kv_connector:
        return Sourced(engine.facts.kv_connector, _engine_origin(engine))
    if engine.log is not None and engine.log.connector:
        return Sourced(engine.log.connector, "start-up log of the engine")
    if engine.metrics is not None and engine.metrics.in_process:
        return Sourced("LMCacheConnectorV1", "lmcache:* series on the engine's own /metrics")
    if engine.metrics is not None and engine.metrics.lookup_seconds_count is not None:
        return Sourced(MP_CONNECTOR, "look-up series on the engine's /metrics")
    if engine.facts is not None and (engine.planned or engine.facts.max_num_seqs is not None):
        # the JSON form of /server_info and a command line are complete: no connector there means none at all
        return Sourced("", _engine_origin(engine))
    return None


def connector_option(facts: Facts, name: str) -> Sourced[object] | None:
    """One ``lmcache.mp.<name>`` of the connector: as logged (its effective value), as set, or the default."""
    engine = facts.engine
    if engine is None:
        return None
    if engine.log is not None and name in engine.log.options:
        return Sourced(engine.log.options[name], "start-up log of the engine")
    told = engine.facts is not None and bool(engine.facts.kv_connector)
    if engine.facts is not None and (value := engine.facts.connector_options.get(f"lmcache.mp.{name}")) is not None:
        return Sourced(value, f"kv_connector_extra_config ({_engine_origin(engine)})")
    if told and name in CONNECTOR_DEFAULTS:
        return Sourced(CONNECTOR_DEFAULTS[name], "default of the connector, not set")
    return None


def option_number(facts: Facts, name: str) -> Sourced[float] | None:
    found = connector_option(facts, name)
    if found is None:
        return None
    try:
        return Sourced(float(str(found.value)), found.origin)
    except ValueError:
        return None


def option_flag(facts: Facts, name: str) -> Sourced[bool] | None:
    found = connector_option(facts, name)
    return (
        None if found is None else Sourced(str(found.value).strip().lower() in ("1", "true", "yes", "on"), found.origin)
    )


def engine_mode(facts: Facts) -> Sourced[str] | None:
    """The transfer mode the engine's workers use; ``auto`` resolved by its device where that is known."""
    engine = facts.engine
    if engine is None:
        return None
    if engine.log is not None and engine.log.transfer_mode:
        return Sourced(engine.log.transfer_mode, "start-up log of the engine")
    found = connector_option(facts, "mp_transfer_mode")
    if found is None:
        return None
    mode = str(found.value).lower()
    if mode != "auto":
        return Sourced(mode, found.origin)
    variable = engine.environment.get("LMCACHE_MP_TRANSFER_MODE", "").lower()
    if variable and variable != "auto":
        return Sourced(variable, "LMCACHE_MP_TRANSFER_MODE")
    device = (engine.facts.device or "") if engine.facts is not None else ""
    if device.startswith("cpu"):
        return Sourced("engine_driven", f"auto on a CPU engine ({found.origin})")
    if device.startswith(("cuda", "npu")):
        return Sourced("lmcache_driven", f"auto on {device} ({found.origin})")
    return None


def _engine_origin(engine: EngineSide) -> str:
    return "command line of the engine" if engine.planned else "/server_info of the engine"


def how_to_see(engine: EngineSide | None) -> str:
    """What lets the panel see the engine's own settings, in the state it is in: dev mode that is on is not advised."""
    if engine is None or engine.facts is None:
        return (
            "give the engine's start-up log (--log FILE, or paste it on the checks page), or start the engine with "
            "VLLM_SERVER_DEV_MODE=1, so that /server_info tells it"
        )
    if engine.planned:
        return "name it in the engine's command line"
    return (
        "give the engine's start-up log (--log FILE, or paste it on the checks page): /server_info is open, but this "
        "engine's answer leaves it out"
    )


def human_seconds(seconds: float) -> str:
    """``5 min``, ``90 s``, ``2.5 h``, ``30 days``: whole units where they are exact, else one place."""
    for unit, size, least in (("days", 86400, 2 * 86400), ("h", 3600, 7200), ("min", 60, 120)):
        if abs(seconds) >= least or (abs(seconds) >= size and seconds % size == 0 and unit != "days"):
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:g} s" if seconds == round(seconds, 3) else f"{seconds:.1f} s"


def set_seconds(seconds: float) -> str:
    """A setting that is written in seconds: ``5 min (300 s)``, or ``45 s``."""
    told = human_seconds(seconds)
    return told if told == f"{seconds:g} s" else f"{told} ({seconds:g} s)"


def human_bytes(amount: float) -> str:
    """``20 GiB``, for sentences."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(amount) >= size:
            return f"{amount / size:.1f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{int(amount)} B"
