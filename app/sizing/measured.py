"""What server and engine measured of themselves, as far as sizing wants it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from app.lmcache.client import ServerReading
from app.sizing.schemas import ModelView
from app.vllm.client import EngineReading

_GB = 10**9
#: Averages over less than this are noise.
_LEAST_SECONDS = 60.0
_LEAST_TOKENS = 1000


@dataclass(frozen=True)
class Measured:
    """None is what was not measured. Rates are averages since the process started."""

    l0_tokens: int | None = None
    l1_bytes: int | None = None
    watermark: float | None = None
    eviction_ratio: float | None = None
    chunk_size: int | None = None
    l1_bytes_per_second: float | None = None
    l2_bytes_per_second: float | None = None
    prefill_tokens_per_second: float | None = None
    written_bytes_per_second: float | None = None
    stored_tokens_per_second: float | None = None
    reuse_gaps: tuple[tuple[float, float], ...] = ()


def measured_of(server: ServerReading | None, engine: EngineReading | None, model: ModelView, now: float) -> Measured:
    """Take it out of one reading of each."""
    status = server.status if server is not None else None
    metrics = server.metrics if server is not None else None
    config = server.config if server is not None else None
    chunk = status.chunk_size if status is not None else None
    seconds = None
    if metrics is not None and metrics.process_start_time is not None:
        seconds = now - metrics.process_start_time
    written = stored = None
    if metrics is not None and chunk and seconds is not None and seconds >= _LEAST_SECONDS:
        if metrics.l1_write_chunks is not None:
            written = metrics.l1_write_chunks * chunk * record_token_bytes(model) / seconds
        if metrics.l2_store_completed_chunks is not None:
            stored = metrics.l2_store_completed_chunks * chunk / model.records_per_chunk / seconds
    return Measured(
        l0_tokens=engine.metrics.capacity_tokens if engine is not None and engine.metrics is not None else None,
        l1_bytes=(config.l1_size_bytes if config is not None else None)
        or (status.l1_total_bytes if status is not None else None),
        watermark=status.trigger_watermark if status is not None else None,
        eviction_ratio=status.eviction_ratio if status is not None else None,
        chunk_size=chunk,
        l1_bytes_per_second=_rate(metrics.l0_l1_load_gbps_sum, metrics.l0_l1_load_gbps_count) if metrics else None,
        l2_bytes_per_second=_rate(metrics.l2_load_gbps_sum, metrics.l2_load_gbps_count) if metrics else None,
        prefill_tokens_per_second=_prefill(engine),
        written_bytes_per_second=written,
        stored_tokens_per_second=stored,
        reuse_gaps=metrics.reuse_gaps if metrics is not None else (),
    )


def record_token_bytes(model: ModelView) -> int:
    """Bytes of one token in one record: of one rank (and stage)."""
    return max(1, model.bytes_per_token // model.records_per_chunk)


def _rate(total: float | None, count: float | None) -> float | None:
    """Mean of a GB/s histogram in bytes per second."""
    return total / count * _GB if total and count else None


def _prefill(engine: EngineReading | None) -> float | None:
    """Tokens that were really computed, over the time spent in prefill."""
    metrics = engine.metrics if engine is not None else None
    if metrics is None or not metrics.prefill_sum or metrics.prompt_tokens is None:
        return None
    computed = metrics.prompt_tokens_by_source.get("local_compute")
    if computed is None:
        computed = metrics.prompt_tokens - (metrics.prompt_tokens_cached or 0.0)
    return computed / metrics.prefill_sum if computed >= _LEAST_TOKENS else None
