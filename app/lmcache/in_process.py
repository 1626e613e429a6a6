"""The in-process mode's settings: ``LMCACHE_*`` variables or its YAML file, as pasted text.

That mode runs LMCache inside vLLM (connector `LMCacheConnectorV1`); the multi-process server and its connector read
none of these. Names are those of LMCache 0.5.6 (`lmcache.v1.config`) and their old aliases. Values of secret-looking
names are never kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

from app.wire import fields

MAX_LINES = 5000
MAX_VALUE = 4000

_NAMES = """
chunk_size local_cpu max_local_cpu_size local_cpu_use_hugepages reserve_local_cpu_size local_disk
local_disk_path_sharding max_local_disk_size remote_url remote_serde use_layerwise save_decode_cache
pre_caching_hash_algorithm enable_blending blend_recompute_ratios blend_thresholds blend_check_layers
blend_min_tokens blend_special_str retrieve_locations store_location enable_p2p p2p_host p2p_init_ports
p2p_lookup_ports mp_host mp_port enable_controller lmcache_instance_id controller_pull_url controller_reply_url
lmcache_worker_ports lmcache_worker_ids lmcache_worker_heartbeat_delay_time lmcache_worker_heartbeat_time enable_pd
pd_role pd_buffer_size pd_buffer_device pd_peer_host pd_peer_init_port pd_peer_alloc_port pd_peer_query_port
pd_proxy_host pd_proxy_port pd_allocation_timeout_sec pd_shutdown_timeout_sec pd_condition_poll_interval_sec
pd_max_prefill_len pd_backend_mode pd_skip_proxy_notification pd_bidirectional transfer_channel nixl_backends
nixl_buffer_size nixl_buffer_device gds_path gds_path_sharding gds_buffer_size maru_path maru_pool_size use_gds
gds_backend audit_actual_remote_url internal_api_server_host extra_config save_unfull_chunk blocking_timeout_secs
external_lookup_client py_enable_gc cache_policy numa_mode enable_async_loading internal_api_server_enabled
internal_api_server_port_start priority_limit internal_api_server_include_index_list
internal_api_server_socket_path_prefix runtime_plugin_locations storage_plugins remote_storage_plugins
lookup_timeout_ms min_retrieve_tokens hit_miss_ratio lookup_server_worker_ids enable_scheduler_bypass_lookup
script_allowed_imports enable_lazy_memory_allocator lazy_memory_initial_ratio lazy_memory_expand_trigger_ratio
lazy_memory_step_ratio lazy_memory_safe_size enable_chunk_statistics chunk_statistics_auto_start_statistics
chunk_statistics_auto_exit_timeout_hours chunk_statistics_auto_exit_target_unique_chunks chunk_statistics_strategy
enable_kv_events use_gpu_connector_v3 pin_timeout_sec pin_check_interval_sec remote_config_url app_id
enable_hidden_state_cache max_hidden_state_cpu_size hidden_state_layers hidden_states_retrieve_mode enable_xpyd
nixl_role nixl_peer_host nixl_peer_port nixl_proxy_host nixl_proxy_port controller_url lmcache_worker_port
plugin_locations external_backends nixl_peer_init_port nixl_peer_alloc_port enable_nixl weighted_semaphore
error_handling use_experimental
"""
#: Settings of the in-process mode, as in its YAML; the variable is LMCACHE_ and the name in capitals.
IN_PROCESS_NAMES = frozenset(_NAMES.split())
#: Variables that also mean something to the multi-process server, its connector, or to both modes.
SHARED_VARIABLES = (
    "LMCACHE_LOG_LEVEL",
    "LMCACHE_DISABLE_BANNER",
    "LMCACHE_TRACK_USAGE",
    "LMCACHE_USAGE_",
    "LMCACHE_COORDINATOR_",
    "LMCACHE_MP_",
    "LMCACHE_RUNTIME_PLUGIN_",
    "LMCACHE_RUN_SCRIPT_API_ENABLED",
    "LMCACHE_RESP_",
    "LMCACHE_AEROSPIKE_",
    "LMCACHE_DEVICE_BACKEND",
    "LMCACHE_GPU_STAGING_BUFFER_BYTES",
    "LMCACHE_MUSA_",
    "LMCACHE_ROCM_",
    "LMCACHE_REQUEST_TELEMETRY_",
    "LMCACHE_MQ_TIMEOUT",
)
_SECRET = re.compile(r"(?i)(password|passwd|secret|token|credential|api_?key|access_?key|private_?key)")
_URL_SECRET = re.compile(r"(://[^/\s:@]{0,200}:)[^/\s@]{1,500}@")
_LINE = re.compile(r"^\s*(?:-\s+|-e\s+|--env[= ]\s*|export\s+|set\s+)*[\"']?([A-Za-z_][A-Za-z0-9_]{0,120})=(.*)$")
HIDDEN = "(hidden)"


@dataclass(frozen=True)
class InProcessConfig:
    """What the text sets. `values` by YAML name, as text; `variables` all variables of the text, secrets masked.

    `problems` are sentences about what cannot be read (invalid JSON, invalid YAML, a value that is no number).
    `unknown` are LMCACHE_ variables of no known meaning. `origin`: ``environment`` or ``YAML``.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] | None = None
    problems: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    origin: str = "environment"

    @property
    def set_names(self) -> tuple[str, ...]:
        """Names of settings of the in-process mode that are set."""
        return tuple(self.values)

    def number(self, name: str) -> float | None:
        """A numeric setting, None where it is not set or no finite number."""
        try:
            return fields.number(float(self.values[name])) if name in self.values else None
        except ValueError:
            return None

    def flag(self, name: str) -> bool | None:
        """A boolean setting as LMCache reads it."""
        if name not in self.values:
            return None
        return self.values[name].strip().lower() in ("1", "true", "yes", "on")


def mask_text(text: str) -> str:
    """The text with the values of secret-looking variables, options and URLs replaced; for texts that are kept."""
    text = _URL_SECRET.sub(rf"\1{HIDDEN}@", text)
    text = re.sub(r"(?i)\b(bearer|hf_token|hf)[ =_][A-Za-z0-9._\-]{12,}", rf"\1 {HIDDEN}", text)
    return re.sub(
        r"(?i)([\"']?[\w.\-]*(?:password|passwd|secret|token|credential|api[-_]?key|access[-_]?key)[\w.\-]*[\"']?\s*[=:]\s*"
        r"|--(?:api-key|hf-token|token|password)\s+)(\"[^\"]{3,}\"|'[^']{3,}'|[^\s,}\"']{3,})",
        lambda found: found[0] if _harmless(found[2]) else f"{found[1]}{HIDDEN}",
        text,
    )


def _harmless(value: str) -> bool:
    """Numbers, booleans and None are settings (``max_num_batched_tokens=2048``), not secrets."""
    bare = value.strip("\"'")
    return bool(re.fullmatch(r"(?i)[\d,._]+|true|false|none|null|auto|sha256\w*|/\S*", bare))


def read_variables(text: str) -> dict[str, str]:
    """``NAME=value`` lines of a shell, an env file, ``docker run -e`` or a compose list; quotes taken off, masked."""
    found: dict[str, str] = {}
    for line in text.splitlines()[:MAX_LINES]:
        match = _LINE.match(line)
        if match is None:
            continue
        name, value = match[1], _unquoted(match[2].strip().rstrip("\\").strip())
        found[name] = masked(name, value)
    return found


def masked(name: str, value: str) -> str:
    """The value, unless its name says that it is a secret."""
    if _SECRET.search(name) and value:
        return HIDDEN
    return _URL_SECRET.sub(rf"\1{HIDDEN}@", fields.clean_text(value[:MAX_VALUE]))


def parse_in_process(text: str) -> InProcessConfig:
    """Read pasted text: variables where there are any ``NAME=value`` lines, else YAML. Never raises."""
    variables = read_variables(text)
    if variables or not text.strip():
        return from_variables(variables)
    return _from_yaml(text)


def from_variables(variables: Mapping[str, str]) -> InProcessConfig:
    """The in-process settings among these variables."""
    values: dict[str, str] = {}
    unknown: list[str] = []
    for name, value in variables.items():
        if not name.startswith("LMCACHE_"):
            continue
        short = name.removeprefix("LMCACHE_").lower()
        if short in IN_PROCESS_NAMES:
            values[short] = value
        elif name != "LMCACHE_CONFIG_FILE" and not name.startswith(SHARED_VARIABLES):
            unknown.append(name)
    extra, problems = _extra(values.get("extra_config"), "LMCACHE_EXTRA_CONFIG")
    return InProcessConfig(
        values=values,
        variables=dict(variables),
        extra=extra,
        problems=tuple(problems + _number_problems(values, "LMCACHE_{}")),
        unknown=tuple(unknown),
        origin="environment",
    )


def _from_yaml(text: str) -> InProcessConfig:
    try:
        loaded = yaml.safe_load(text[:200_000])
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else "no reason given"
        return InProcessConfig(problems=(f"the YAML cannot be read: {first[:200]}",), origin="YAML")
    if not isinstance(loaded, dict):
        return InProcessConfig(problems=("the text holds neither NAME=value lines nor YAML settings",), origin="YAML")
    values: dict[str, str] = {}
    unknown: list[str] = []
    extra: Mapping[str, object] | None = None
    problems: list[str] = []
    for key, value in list(loaded.items())[:1000]:
        name = str(key)[:120]
        if name not in IN_PROCESS_NAMES:
            unknown.append(fields.clean_text(name))
        elif name == "extra_config":
            if isinstance(value, dict):
                extra = _plain(value)
            elif value is not None:
                extra, problems = _extra(str(value), "extra_config")
        elif value is not None:
            values[name] = masked(name, str(value))
    return InProcessConfig(
        values=values,
        extra=extra,
        problems=tuple(problems + _number_problems(values, "{}")),
        unknown=tuple(unknown),
        origin="YAML",
    )


_NUMBERS = ("chunk_size", "max_local_cpu_size", "max_local_disk_size", "reserve_local_cpu_size", "min_retrieve_tokens")


def _number_problems(values: Mapping[str, str], form: str) -> list[str]:
    found: list[str] = []
    for name in _NUMBERS:
        try:
            float(values.get(name, "0"))
        except ValueError:
            shown = form.format(name.upper() if form != "{}" else name)
            found.append(f"{shown} is {values[name][:80]!r}, which is no number")
    return found


def _extra(text: str | None, name: str) -> tuple[Mapping[str, object] | None, list[str]]:
    if text is None or not text.strip():
        return None, []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        place = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        return None, [f"{name} is not valid JSON{place}: LMCache then starts without it or not at all"]
    if not isinstance(value, dict):
        return None, [f"{name} is JSON but no object"]
    return _plain(value), []


def _plain(value: Mapping[object, object]) -> dict[str, object]:
    plain: dict[str, object] = {}
    for key, item in list(value.items())[:200]:
        name = fields.clean_text(str(key)[:120])
        plain[name] = HIDDEN if _SECRET.search(name) and item else item if isinstance(item, (int, float)) else str(item)
    return plain


def _unquoted(value: str) -> str:
    for quote in ('"', "'"):
        if len(value) > 1 and value.startswith(quote) and value.endswith(quote):
            return value[1:-1]
        if value.endswith(quote) and not value.startswith(quote) and value.count(quote) == 1:
            return value[:-1]  # the quote before the name closed here: "NAME=value"
    return value
