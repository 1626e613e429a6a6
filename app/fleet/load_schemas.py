"""What a target uses and what a hit costs, as shown. Bytes, seconds, ratios 0..1; null is not known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import ValidationError

from app.clock import iso
from app.shapes import ApiModel


class _Load(ApiModel):
    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values as they are kept with a snapshot: times as epoch seconds, names checked."""
        unknown = set(values) - set(cls.model_fields)
        assert not unknown, f"{cls.__name__} has no {sorted(unknown)}"
        return dict(values)

    @classmethod
    def shown(cls, values: object) -> Self:
        """The view of what `stored` kept; what an older panel kept in another form is not known."""
        if not isinstance(values, dict):
            return cls()
        try:
            return cls.model_validate({k: iso(v) if k.endswith("_at") else v for k, v in values.items()})
        except (ValidationError, TypeError):
            return cls()


class ServerLoadView(_Load):
    """A cache server since its poll before (`seconds` ago): processor in cores, resident memory, finished retrieves.

    `l1_load_bytes_per_second` (L1 to the engine) and `l2_load_bytes_per_second` (L2 to L1) are means over the loads of
    the last poll that had any, at `l1_loaded_at` and `l2_loaded_at`. `memory_pressure_ratio` is the share of time in
    which something on this host waited for memory, known where `shares_host`; else `reason` says why not.
    """

    seconds: float | None = None
    cpu_cores: float | None = None
    resident_bytes: int | None = None
    retrieves_per_second: float | None = None
    l1_load_bytes_per_second: float | None = None
    l1_loaded_at: str | None = None
    l2_load_bytes_per_second: float | None = None
    l2_loaded_at: str | None = None
    shares_host: bool | None = None
    memory_pressure_ratio: float | None = None
    reason: str | None = None


class EngineLoadView(_Load):
    """An engine's API process since its poll before, and the mean time of its look-ups in the cache (at
    `looked_up_at`). `prefill_tokens_per_second` (prompt tokens that it computed itself) and `decode_tokens_per_second`
    (tokens of one answer) are means since its start, null until it has answered something."""

    seconds: float | None = None
    cpu_cores: float | None = None
    resident_bytes: int | None = None
    lookup_seconds: float | None = None
    looked_up_at: str | None = None
    prefill_tokens_per_second: float | None = None
    decode_tokens_per_second: float | None = None


class DiskView(_Load):
    """The block device below a store, over the last `seconds`: rates, mean latencies of its requests (null without
    any), share of the time in which it was busy. `reason` says why nothing is known."""

    device: str | None = None
    seconds: float | None = None
    read_bytes_per_second: float | None = None
    write_bytes_per_second: float | None = None
    read_latency_seconds: float | None = None
    write_latency_seconds: float | None = None
    requests: float | None = None
    busy_ratio: float | None = None
    reason: str | None = "not looked at yet"


class InProcessView(_Load):
    """LMCache inside an engine, by its ``lmcache:*`` series. Tokens, keys and bytes; those of the window are
    `hit_tokens`, `lookup_tokens` and `hit_rate`, the others are since the engine's start or what is held now.

    `state`: value, no_traffic, or unknown with `reason`. `check`: whether vLLM's own count of what its connector
    supplied agrees (agree, disagree, unknown).
    """

    state: Literal["value", "no_traffic", "unknown"] = "unknown"
    hit_rate: float | None = None
    hit_tokens: int | None = None
    lookup_tokens: int | None = None
    window_seconds: float | None = None
    reason: str | None = None
    check: Literal["agree", "disagree", "unknown"] = "unknown"
    check_reason: str | None = None
    stored_tokens: int | None = None
    evicted_keys: int | None = None
    cpu_bytes: int | None = None
    disk_bytes: int | None = None
    remote_bytes: int | None = None
    healthy: bool | None = None
