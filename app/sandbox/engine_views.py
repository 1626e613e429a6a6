"""The other answers of an engine: models, configuration text and metrics, shaped as vLLM 0.32.0 shapes them."""

from __future__ import annotations

from typing import Any

from app.sandbox.engine import Engine
from app.sandbox.server_views import hide, process_metrics

Json = dict[str, Any]


def models(engine: Engine, now: float) -> Json:
    """`GET /v1/models`. `created` is the time of the question, as there."""
    permission = {
        "id": f"modelperm-{engine.fingerprint}{engine.fingerprint}",
        "object": "model_permission",
        "created": int(now),
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    model = {
        "id": engine.spec.served_model_name,
        "object": "model",
        "created": int(now),
        "owned_by": "vllm",
        "root": engine.spec.model_path,
        "parent": None,
        "max_model_len": engine.spec.max_model_len,
        "permission": [permission],
    }
    return {"object": "list", "data": [model]}


def server_info(engine: Engine) -> Json:
    """`GET /server_info` (dev mode): the configuration as one text, in the real order and spelling."""
    spec = engine.spec
    text = (
        f"model='{spec.model_path}', speculative_config=None, tokenizer='{spec.model_path}', "
        f"skip_tokenizer_init=False, tokenizer_mode=auto, revision={spec.revision}, "
        "tokenizer_revision=None, trust_remote_code=False, "
        f"dtype=torch.{spec.layout.dtype}, max_seq_len={spec.max_model_len}, download_dir=None, load_format=auto, "
        f"tensor_parallel_size={spec.layout.world_size}, pipeline_parallel_size=1, data_parallel_size=1, "
        "decode_context_parallel_size=1, dcp_comm_backend=ag_rs, disable_custom_all_reduce=True, quantization=None, "
        f"quantization_config=None, enforce_eager=True, kv_cache_dtype={spec.kv_cache_dtype}, device_config=cpu, "
        "structured_outputs_config=StructuredOutputsConfig(backend='auto', disable_any_whitespace=False), "
        "observability_config=ObservabilityConfig(show_hidden_metrics_for_version=None, otlp_traces_endpoint=None), "
        f"seed=0, served_model_name={spec.served_model_name}, enable_prefix_caching=True, enable_chunked_prefill=True, "
        "pooler_config=None, compilation_config={'mode': <CompilationMode.NONE: 0>, 'backend': 'inductor'}, "
        "kernel_config=KernelConfig(enable_flashinfer_autotune=True, moe_backend='auto')"
    )
    return {
        "vllm_config": text,
        "vllm_env": {"VLLM_SERVER_DEV_MODE": True, "VLLM_LOGGING_LEVEL": "INFO"},
        "system_env": {"vllm_version": spec.version, "is_cuda_available": "False", "python_version": "3.11.7"},
    }


def metrics_text(engine: Engine, now: float) -> str:
    """`GET /metrics`."""
    metrics, spec = engine.metrics, engine.spec
    labels = {"engine": "0", "model_name": spec.served_model_name}
    process_metrics(metrics, engine.started_at, now)
    metrics.set("vllm:num_requests_running", engine.running, **labels)
    metrics.set("vllm:num_requests_waiting", engine.waiting, **labels)
    metrics.set("vllm:engine_sleep_state", 1, sleep_state="awake", **labels)
    metrics.set("vllm:kv_cache_usage_perc", min(1.0, engine.blocks_in_use / max(1, spec.l0_blocks)), **labels)
    metrics.set("vllm:cache_config_info", 1, **cache_config(engine))
    metrics.touch("http_request_duration_highr_seconds")
    return hide(metrics.render(), engine.faults.metrics_hidden)


def cache_config(engine: Engine) -> dict[str, str]:
    """The labels of `vllm:cache_config_info`: this needs no dev mode."""
    spec = engine.spec
    tokens = spec.l0_blocks * spec.layout.block_size
    known = {
        "block_size": str(spec.layout.block_size),
        "cache_dtype": spec.kv_cache_dtype,
        "effective_attention_block_size": str(spec.layout.block_size),
        "engine": "0",
        "gpu_memory_utilization": "0.92",
        "kv_cache_max_concurrency": f"{tokens / spec.max_model_len:.1f}",
        "kv_cache_memory_bytes": str(tokens * spec.layout.token_bytes),
        "kv_cache_size_tokens": str(tokens),
        "num_gpu_blocks": str(spec.l0_blocks),
        "num_gpu_blocks_override": str(spec.l0_blocks),
    }
    true = ("_block_size_resolved", "enable_prefix_caching", "swa_bounded_replay", "user_specified_block_size")
    false = (
        *("enable_mamba_shared_prefix_checkpoint", "is_attention_free", "kv_sharing_fast_prefill"),
        *("use_kda_recoverssm", "use_replayssm"),
    )
    none = (
        *("cache_hit_alignment_tokens", "hash_block_size", "kv_cache_layout", "kv_offloading_size", "mamba_block_size"),
        *("mamba_page_size_padded", "num_cpu_blocks", "prefix_match_unit", "skip_page_size_padded", "sliding_window"),
    )
    fixed = {
        "kv_cache_dtype_skip_layers": "[]",
        "kv_offloading_backend": "native",
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_ssm_cache_dtype": "float32",
        "prefix_cache_retention_interval": "0",
        "prefix_caching_hash_algo": "sha256",
        "replayssm_buffer_len": "16",
    }
    flags = dict.fromkeys(true, "True") | dict.fromkeys(false, "False") | dict.fromkeys(none, "None")
    return known | fixed | flags


def count_http(engine: Engine, handler: str, method: str, status: int, size: int, sent: int, seconds: float) -> None:
    """What the HTTP instrumentation of vLLM counts for every answer but those of the probes."""
    metrics = engine.metrics
    metrics.inc("http_requests_total", handler=handler, method=method, status=f"{status // 100}xx")
    metrics.observe("http_request_size_bytes", size, handler=handler)
    metrics.observe("http_response_size_bytes", sent, handler=handler)
    metrics.observe("http_request_duration_highr_seconds", seconds)
    metrics.observe("http_request_duration_seconds", seconds, handler=handler, method=method)
