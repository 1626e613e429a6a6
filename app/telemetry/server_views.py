"""What a poll of a cache server shows: the view values that are stored with the snapshot. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.fleet.schemas import HitRateView, L1View, L2View
from app.lmcache.polling import ServerReading
from app.lmcache.settings import server_settings
from app.lmcache.status import L2AdapterStatus, ServerStatus
from app.telemetry import contexts, hit_rate

# An adapter of these types never evicts (`fs` has no capacity limit at all).
NEVER_EVICTS = frozenset({"fs"})


def known_values(reading: ServerReading) -> dict[str, Any]:
    """The view values that this poll could read; the others keep their last ones."""
    found: dict[str, Any] = {}
    lmcache = reading.status is not None or (reading.metrics is not None and reading.metrics.any_lmcache_series)
    if reading.version is not None and lmcache:  # an engine answers /version too
        found["version"] = reading.version
    if reading.instance_id is not None:
        found["instance_id"] = reading.instance_id
    if reading.process_start_time is not None:
        found["process_start"] = reading.process_start_time
    status = reading.status
    if status is not None:
        found["chunk_size"] = status.chunk_size
        found["hash_algorithm"] = status.hash_algorithm
        found["store_queue"] = {"pending": status.store_pending, "in_flight": status.store_in_flight}
        found["reap_timeout_seconds"] = status.reap_timeout_seconds
        found["l1"] = _l1_view(status)
        found["model_names"] = sorted({layout.model_name for layout in status.contexts.values() if layout.model_name})
    if status is not None or reading.config is not None:
        found["l2"] = _l2_views(reading)
        found["settings"] = server_settings(reading.config, status)
    return found


def _l1_view(status: ServerStatus) -> dict[str, Any]:
    return L1View(
        used_bytes=status.l1_used_bytes,
        capacity_bytes=status.l1_total_bytes,
        usage_ratio=status.l1_usage_ratio,
        trigger_watermark=status.trigger_watermark,
        eviction_ratio=status.eviction_ratio,
        eviction_policy=status.eviction_policy,
        object_count=status.l1_object_count,
        reason=status.absent.get("l1_usage_ratio") or status.absent.get("l1_used_bytes"),
    ).model_dump()


def hit_rate_view(rate: hit_rate.HitRate) -> dict[str, Any]:
    return HitRateView(
        state=rate.state,
        value=rate.value,
        l1_share=rate.l1_share,
        l2_share=rate.l2_share,
        hit_tokens=rate.hit_tokens,
        requested_tokens=rate.requested_tokens,
        window_seconds=rate.covered_seconds,
        reason=rate.reason,
    ).model_dump()


def _l2_views(reading: ServerReading) -> list[dict[str, Any]]:
    reported: Sequence[L2AdapterStatus] = reading.status.l2_adapters if reading.status is not None else ()
    usage = reading.metrics.l2_usage_bytes if reading.metrics is not None else {}
    views: list[L2View] = []
    configured = reading.config.adapters if reading.config is not None else ()
    if configured:
        kinds = [a.type for a in configured]
        for index, a in enumerate(configured):
            status = reported[index] if len(reported) == len(configured) else None
            used, reason = _l2_usage(a.type, kinds, status, usage)
            evicts = False if a.type in NEVER_EVICTS else a.eviction
            views.append(
                L2View(
                    adapter=a.type or "unknown",
                    base_path=a.base_path,
                    relative_tmp_dir=a.relative_tmp_dir,
                    usage_bytes=used,
                    usage_reason=reason,
                    max_capacity_bytes=a.max_capacity_bytes or (status.capacity_bytes if status else None),
                    evicts=evicts,
                    store_id=None,
                )
            )
    else:
        kinds = [a.type for a in reported]
        for s in reported:
            used, reason = _l2_usage(s.type, kinds, s, usage)
            views.append(
                L2View(
                    adapter=s.type or "unknown",
                    base_path=s.base_path,
                    usage_bytes=used,
                    usage_reason=reason,
                    max_capacity_bytes=s.capacity_bytes,
                    evicts=False if s.type in NEVER_EVICTS else None,
                    store_id=None,
                )
            )
    return [view.model_dump() for view in views]


def _l2_usage(
    kind: str | None, kinds: Sequence[str | None], status: L2AdapterStatus | None, usage: Mapping[str, float]
) -> tuple[int | None, str | None]:
    """The adapter's own count, else the gauge of its type where it is the only one of it."""
    since = "counted since the server's start: files from before are not in it (the store's scan has them)"
    if status is not None and status.used_bytes is not None:
        return status.used_bytes, None
    if kind is not None and kind in usage:
        if kinds.count(kind) == 1:
            return round(usage[kind]), since
        return None, f"the server counts all its {kind} adapters together"
    return None, "the server has not told any L2 usage since its start"


def layout_json(seen: contexts.SeenLayout) -> dict[str, Any]:
    layout = seen.layout
    return {
        "model_name": layout.model_name,
        "world_size": layout.world_size,
        "chunk_size": layout.chunk_size,
        "bytes_per_token": layout.bytes_per_token,
        "dtype": layout.dtype,
        "kv_cache_dtype": layout.kv_cache_dtype,
        "attention_backend": layout.attention_backend,
        "tokens_per_block": layout.tokens_per_block
        if layout.tokens_per_block is not None
        else _common([g.tokens_per_block for g in layout.groups]),
        "object_groups": [
            {
                "index": g.index,
                "layers": g.layers,
                "tokens_per_block": g.tokens_per_block,
                "slots_per_block": g.slots_per_block,
                "dtype": g.dtype,
                "is_mla": g.is_mla,
            }
            for g in layout.groups
        ],
        "fingerprint": layout.fingerprint,
        "live": seen.contexts > 0,
        "contexts": seen.contexts,
        "first_seen": seen.first_seen,
        "last_seen": seen.last_seen,
    }


def _common(values: Sequence[int | None]) -> int | None:
    return values[0] if len(set(values)) == 1 else None


def warnings_of(reading: ServerReading, deltas: Mapping[str, float | None], *, metrics_absent: bool) -> list[str]:
    """Sentences for the server's page: what is of unknown health, not told, or known to be too low."""
    found = list(reading.status.warnings) if reading.status is not None else []
    if reading.http_up and metrics_absent:
        found.append(f"no hit rate and no L2 figures: {reading.metrics_reason}")
    if deltas.get("event_bus_dropped"):
        found.append("the server's event bus dropped events since the last poll: its counters are too low")
    return found
