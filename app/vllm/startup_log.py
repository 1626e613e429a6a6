"""The lines of an engine's start-up log that matter to a cache, from a log file or pasted text.

They tell what no endpoint tells without dev mode: dtype, the attention block size that vLLM chose, the connector class,
its transfer mode and timeouts. A log that holds several starts is read for its last one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app.vllm.facts import EngineFacts, parse_config_text
from app.wire import fields

MAX_LINES = 200_000
_MAX_LINE = 64 * 1024
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\[(?:0|[0-9]{1,2};20|3)m")


@dataclass(frozen=True)
class StartupFacts:
    """What one start logged; None is what it did not. Tokens and seconds.

    `facts` come from the configuration line. `attention_block_size` is N of "Setting attention block size to N tokens"
    (hybrid models; there the chunk size must be a multiple of it). `transfer_mode` is what the worker really uses.
    `options` are LMCache's own settings as logged (``mq_timeout``, ``heartbeat_interval``, …, without their prefix).
    `context_registered`: the worker said that the cache server took its registration (``engine_driven`` logs it).
    """

    version: str | None = None
    facts: EngineFacts = field(default_factory=EngineFacts)
    attention_block_size: int | None = None
    connector: str | None = None
    connector_source: str | None = None
    engine_id: str | None = None
    transfer_mode: str | None = None
    cache_model_name: str | None = None
    group_tokens_per_block: tuple[int, ...] = ()
    scheduler_block_size: int | None = None
    engine_kv_format: str | None = None
    kv_cache_tokens: int | None = None
    prompt_tokens_details: bool | None = None
    instance_ids: tuple[str, ...] = ()
    context_registered: bool | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    starts: int = 0

    @property
    def seen(self) -> bool:
        """Whether the text held any line of an engine's start."""
        return self != StartupFacts()


_BANNER = re.compile(r"\bversion (\d+\.\d[\w.+\-]{0,40})\s*$")
_ARGUMENTS = re.compile(r"non-default args: (\{.*)")
_CONFIG = re.compile(r"Initializing a V\d LLM engine \(v([^)]{1,60})\) with config: (.+)")
_ATTENTION = re.compile(r"Setting attention block size to (\d{1,9}) tokens")
_CONNECTOR = re.compile(r"Creating v\d connector with name: (\w{1,80}) and engine_id: ([\w\-]{1,80})")
_SOURCE = re.compile(r"Using (?:external|internal) (\w{1,80}) from ([\w.]{1,200})")
_OPTION = re.compile(r"\blmcache\.mp\.(\w{1,60}) = (\S{1,200})")
_CONTEXT = re.compile(r"Creating transfer context \(device_type=\w+, mode=(\w{1,40})\)")
_GEOMETRY = re.compile(
    r"Resolved LMCache MP geometry: group_tokens_per_block=\[([\d, ]{0,400})\], "
    r"scheduler_block_size=(\d{1,9}), cache_model_name=(\S+)"
)
_FORMAT = re.compile(r"Engine KV Format: (?:EngineKVFormat\.)?(\w{1,80})")
_TOKENS = re.compile(r"KV cache size: ([\d,]{1,20}) tokens")
_INSTANCE = re.compile(r"LMCache MP worker adapter created with instance_id=(\d{1,40})")


def parse_startup_log(text: str) -> StartupFacts:
    """Read a log. Never raises; lines beyond the first 200,000 are left out (give the end of a longer log)."""
    found = StartupFacts()
    for line in text.split("\n", MAX_LINES)[:MAX_LINES]:
        if len(line) <= _MAX_LINE and ("vllm" in line or "=" in line or ":" in line or "version" in line):
            found = _line(found, _COLOUR.sub("", line) if "[" in line else line)
    return found


def _line(found: StartupFacts, line: str) -> StartupFacts:
    if match := _ARGUMENTS.search(
        line
    ):  # the first line of a start: forget the one before, but for the banner just read
        details = re.search(r"'enable_prompt_tokens_details': (True|False)", match[1])
        return StartupFacts(
            version=found.version,
            prompt_tokens_details=bool(details and details[1] == "True"),  # listed unless it has its default, False
            starts=found.starts + 1,
        )
    if match := _CONFIG.search(line):
        return replace(found, version=match[1], facts=parse_config_text(match[2]))
    if match := _OPTION.search(line):
        options = {**found.options, match[1]: fields.clean_text(match[2])}
        mode = match[2] if match[1] == "mp_transfer_mode" and match[2] != "auto" else found.transfer_mode
        return replace(found, options=options, transfer_mode=mode)
    if match := _ATTENTION.search(line):
        return replace(found, attention_block_size=int(match[1]))
    if match := _CONNECTOR.search(line):
        return replace(found, connector=match[1], engine_id=match[2])
    if match := _SOURCE.search(line):
        return replace(found, connector=found.connector or match[1], connector_source=match[2])
    if match := _CONTEXT.search(line):
        return replace(found, transfer_mode=match[1])
    if match := _GEOMETRY.search(line):
        blocks = tuple(int(part) for part in match[1].replace(" ", "").split(",") if part.isdigit() and len(part) < 10)
        return replace(
            found,
            group_tokens_per_block=blocks,
            scheduler_block_size=int(match[2]),
            cache_model_name=fields.text(match[3]),
        )
    if match := _FORMAT.search(line):
        return replace(found, engine_kv_format=match[1])
    if match := _TOKENS.search(line):
        return replace(found, kv_cache_tokens=fields.whole_number_text(match[1].replace(",", "")))
    if match := _INSTANCE.search(line):
        return replace(found, instance_ids=(*found.instance_ids, match[1])[-64:])
    if "engine-driven context registered" in line:
        return replace(found, context_registered=True)
    if match := _BANNER.search(line.rstrip()):
        return replace(found, version=match[1])
    return found
