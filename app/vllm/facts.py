"""What an engine says of its own configuration: ``/server_info`` (dev mode), as JSON or as the text it logs at start.

``?config_format=json`` gives every section, among them the KV connector's settings and a Hugging Face token, so only
the facts listed in `EngineFacts` are taken out and nothing else is kept. Older engines ignore the parameter and answer
with the text; the same text stands in the start-up log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields

from app.errors import TargetError
from app.wire import fields

_MAX_TEXT = 2**20
_CONNECTOR_KEYS = re.compile(r"[\w.\-]{1,80}")


@dataclass(frozen=True)
class EngineFacts:
    """Known facts of one engine process; None is what it does not say. `revision` None may also mean the default one.

    `dtype` as in ``bfloat16``; `kv_cache_dtype` ``auto`` or explicit. `draft_layers` is 0 without speculative decoding
    and None with it (its layers are not told). `connector_options` are the KV connector's own settings.
    """

    model: str | None = None
    served_model_name: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    revision: str | None = None
    tokenizer: str | None = None
    tokenizer_revision: str | None = None
    max_model_len: int | None = None
    max_logprobs: int | None = None
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    mamba_cache_mode: str | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    enforce_eager: bool | None = None
    seed: int | None = None
    speculative: bool | None = None
    draft_layers: int | None = None
    attention_backend: str | None = None
    batch_invariant: bool | None = None
    device: str | None = None
    kv_connector: str | None = None
    kv_role: str | None = None
    engine_id: str | None = None
    connector_options: Mapping[str, object] = field(default_factory=dict)
    prefix_caching_hash_algo: str | None = None
    log_level: str | None = None
    multimodal: bool | None = None

    @property
    def lmcache_transfer_mode(self) -> str | None:
        """The connector's transfer mode where it was set."""
        return fields.text(self.connector_options.get("lmcache.mp.mp_transfer_mode"))


#: What an engine is started with, by name. Not among them: its id, new with every start; the blocks that fit, measured
#: anew with every start; and its model, which is kept beside them.
CHECKED_SETTINGS: tuple[str, ...] = tuple(
    item.name
    for item in dataclass_fields(EngineFacts)
    if item.name not in ("engine_id", "num_gpu_blocks", "model", "served_model_name")
)
#: Settings that are null in a complete answer when nobody set them.
_MAY_BE_UNSET = ("quantization", "revision", "tokenizer_revision", "attention_backend", "kv_connector", "kv_role")
UNSET = "none"


def checked_settings(facts: EngineFacts) -> dict[str, object]:
    """The settings that a test's result rests on, as JSON; None where the engine does not tell one, ``none`` where it
    tells that one is unset."""
    told = {name: getattr(facts, name) for name in CHECKED_SETTINGS}
    if facts.max_num_seqs is not None:  # only the JSON form tells it, and that form is complete
        told |= {name: UNSET for name in _MAY_BE_UNSET if told[name] is None}
    elif not facts.connector_options:
        told["connector_options"] = None  # the text form leaves them out
    return {name: dict(v) if isinstance(v, Mapping) else v for name, v in told.items()}


def parse_server_info(body: object) -> EngineFacts:
    """Read a parsed ``/server_info``. Raises TargetError ``unreadable`` where it holds no configuration."""
    value = fields.mapping(body)
    config = value.get("vllm_config")
    batch_invariant = fields.boolean(fields.mapping(value.get("vllm_env")).get("VLLM_BATCH_INVARIANT"))
    if isinstance(config, dict):
        return _from_json(config, batch_invariant)
    if isinstance(config, str) and "=" in config:
        return parse_config_text(config, batch_invariant=batch_invariant)
    raise TargetError("unreadable", "/server_info holds no vllm_config")


def _from_json(config: Mapping[str, object], batch_invariant: bool | None) -> EngineFacts:
    model = fields.mapping(config.get("model_config"))
    cache = fields.mapping(config.get("cache_config"))
    parallel = fields.mapping(config.get("parallel_config"))
    scheduler = fields.mapping(config.get("scheduler_config"))
    transfer = fields.mapping(config.get("kv_transfer_config"))
    speculative = config.get("speculative_config") is not None if "speculative_config" in config else None
    served = model.get("served_model_name")
    return EngineFacts(
        model=fields.text(model.get("model")),
        served_model_name=fields.text(served[0] if isinstance(served, list) and served else served),
        dtype=_dtype(model.get("dtype")),
        kv_cache_dtype=_dtype(cache.get("cache_dtype")),
        quantization=fields.text(model.get("quantization")),
        revision=fields.text(model.get("revision")),
        tokenizer=fields.text(model.get("tokenizer")),
        tokenizer_revision=fields.text(model.get("tokenizer_revision")),
        max_model_len=fields.count(model.get("max_model_len")),
        max_logprobs=fields.integer(model.get("max_logprobs")),
        block_size=fields.count(cache.get("block_size")),
        num_gpu_blocks=fields.count(cache.get("num_gpu_blocks")),
        enable_prefix_caching=fields.boolean(cache.get("enable_prefix_caching")),
        enable_chunked_prefill=fields.boolean(scheduler.get("enable_chunked_prefill")),
        mamba_cache_mode=fields.text(cache.get("mamba_cache_mode")),
        max_num_batched_tokens=fields.count(scheduler.get("max_num_batched_tokens")),
        max_num_seqs=fields.count(scheduler.get("max_num_seqs")),
        tensor_parallel_size=fields.count(parallel.get("tensor_parallel_size")),
        pipeline_parallel_size=fields.count(parallel.get("pipeline_parallel_size")),
        data_parallel_size=fields.count(parallel.get("data_parallel_size")),
        enforce_eager=fields.boolean(model.get("enforce_eager")),
        seed=fields.integer(model.get("seed")),
        speculative=speculative,
        draft_layers=0 if speculative is False else None,
        attention_backend=fields.text(fields.mapping(config.get("attention_config")).get("backend")),
        batch_invariant=batch_invariant,
        device=fields.text(fields.mapping(config.get("device_config")).get("device")),
        kv_connector=fields.text(transfer.get("kv_connector")),
        kv_role=fields.text(transfer.get("kv_role")),
        engine_id=fields.text(transfer.get("engine_id")),
        connector_options=_options(transfer.get("kv_connector_extra_config")),
        prefix_caching_hash_algo=fields.text(cache.get("prefix_caching_hash_algo")),
        log_level=fields.text(fields.mapping(config.get("logging_config")).get("log_level")),
        multimodal=model.get("multimodal_config") is not None if "multimodal_config" in model else None,
    )


def _options(value: object) -> dict[str, object]:
    """Plain settings only (texts, numbers, booleans) under plain names."""
    options: dict[str, object] = {}
    for key, item in list(fields.mapping(value).items())[:200]:
        if _CONNECTOR_KEYS.fullmatch(key) and isinstance(item, (str, int, float, bool)):
            options[key] = fields.text(item, limit=500) if isinstance(item, str) else item
    return options


_TEXT_NAMES = {"max_model_len": "max_seq_len", "device": "device_config", "speculative": "speculative_config"}


def parse_config_text(text: str, *, batch_invariant: bool | None = None) -> EngineFacts:
    """Read ``model='/m', dtype=torch.bfloat16, max_seq_len=4096, …`` as vLLM prints its configuration. Never raises."""
    pairs = split_pairs(text)
    values: dict[str, object] = {"batch_invariant": batch_invariant}
    for item in dataclass_fields(EngineFacts):
        raw = pairs.get(_TEXT_NAMES.get(item.name, item.name))
        if raw is None:
            continue
        annotation = str(item.type)
        if item.name in ("dtype", "kv_cache_dtype"):
            values[item.name] = _dtype(_literal(raw))
        elif item.name == "speculative":
            values[item.name] = raw != "None"
            values["draft_layers"] = 0 if raw == "None" else None
        elif annotation.startswith("int"):
            values[item.name] = fields.whole_number_text(raw)
        elif annotation.startswith("bool"):
            values[item.name] = {"True": True, "False": False}.get(raw)
        elif annotation.startswith("str"):
            values[item.name] = fields.text(_literal(raw))
    return EngineFacts(**values)  # type: ignore[arg-type]


def split_pairs(text: str) -> dict[str, str]:
    """The ``name=value`` pairs of the outermost level; quotes and brackets inside values are kept together."""
    pairs: dict[str, str] = {}
    depth = 0
    quote = ""
    start = 0
    text = text[:_MAX_TEXT]
    for index, char in enumerate(text + ","):
        if quote:
            if char == quote and text[index - 1] != "\\":
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth = max(0, depth - 1)
        elif char == "," and depth == 0:
            name, equals, value = text[start:index].strip().partition("=")
            if equals and name.isidentifier():
                pairs.setdefault(name, value.strip())
            start = index + 1
    return pairs


def _literal(raw: str) -> str | None:
    if raw == "None":
        return None
    return raw[1:-1] if len(raw) > 1 and raw[0] in "'\"" and raw[-1] == raw[0] else raw


def _dtype(value: object) -> str | None:
    text = fields.text(value, limit=100)
    return text.removeprefix("torch.").lower() if text else None
