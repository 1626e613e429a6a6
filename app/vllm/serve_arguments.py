"""The command line of ``vllm serve`` as facts. What is not given stays unknown: vLLM chooses much of it at start."""

from __future__ import annotations

import json
from collections.abc import Mapping

from app.vllm.facts import EngineFacts
from app.wire import fields
from app.wire.arguments import Options


def planned_facts(options: Options) -> tuple[EngineFacts, tuple[str, ...]]:
    """(the facts that the command line fixes, sentences about what cannot be read)."""
    problems: list[str] = []
    transfer = _transfer(options.text("kv_transfer_config"), problems)
    model = options.text("model") or (options.positional[0] if options.positional else None)
    served = options.text("served_model_name")
    extra = fields.mapping(transfer.get("kv_connector_extra_config"))
    speculative = options.text("speculative_config") is not None
    facts = EngineFacts(
        model=model,
        served_model_name=served or model,
        dtype=_dtype(options.text("dtype")),
        kv_cache_dtype=options.text("kv_cache_dtype") or "auto",
        quantization=options.text("quantization"),
        revision=options.text("revision"),
        max_model_len=options.count("max_model_len"),
        block_size=options.count("block_size"),
        num_gpu_blocks=options.count("num_gpu_blocks_override"),
        enable_prefix_caching=options.flag("enable_prefix_caching"),
        mamba_cache_mode=options.text("mamba_cache_mode"),
        max_num_batched_tokens=options.count("max_num_batched_tokens"),
        max_num_seqs=options.count("max_num_seqs"),
        tensor_parallel_size=options.count("tensor_parallel_size") or options.count("tp") or 1,
        pipeline_parallel_size=options.count("pipeline_parallel_size") or options.count("pp") or 1,
        data_parallel_size=options.count("data_parallel_size") or options.count("dp") or 1,
        speculative=speculative,
        draft_layers=None if speculative else 0,
        kv_connector=fields.text(transfer.get("kv_connector")),
        kv_role=fields.text(transfer.get("kv_role")),
        connector_options={
            str(key): value for key, value in extra.items() if isinstance(value, (str, int, float, bool))
        },
        prefix_caching_hash_algo=options.text("prefix_caching_hash_algo"),
        log_level=(options.text("log_level") or "").upper() or None,
        multimodal=True if options.text("limit_mm_per_prompt") is not None else None,
    )
    return facts, tuple(problems)


def _dtype(name: str | None) -> str | None:
    """vLLM's short names; ``auto`` is decided by the model."""
    if name is None or name == "auto":
        return None
    return {"half": "float16", "float": "float32"}.get(name, name)


def _transfer(text: str | None, problems: list[str]) -> Mapping[str, object]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        place = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        problems.append(f"--kv-transfer-config is not valid JSON{place}")
        return {}
    if not isinstance(value, dict):
        problems.append("--kv-transfer-config is JSON but no object")
        return {}
    return value
