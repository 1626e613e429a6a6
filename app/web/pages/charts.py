"""The charts of servers and engines: which there are, with the server's sparkline of each."""

from __future__ import annotations

from typing import Literal

from app.services import Services
from app.web.contexts import ChartSpec, Trend

#: Seconds that the charts of a target's own page show.
WINDOW = 3600.0
#: (title, metric, unit on the chart, tier, lowest, highest)
Spec = tuple[str, str, str, str, float | None, float | None]
SERVER_CHARTS: tuple[Spec, ...] = (
    ("Hit rate", "hit_rate", "ratio", "", 0.0, 1.0),
    ("L1 memory used", "l1_used_bytes", "bytes", "l1", 0.0, None),
    ("Evicted from L1", "l1_evicted_per_second", "chunks_per_second", "l1", 0.0, None),
    ("Written to L2", "l2_store_bytes_per_second", "bytes_per_second", "l2", 0.0, None),
    ("Retrieves", "retrieves_per_second", "retrieves_per_second", "", 0.0, None),
    ("Processor of the server", "cpu_cores", "cores", "", 0.0, None),
)
ENGINE_CHARTS: tuple[Spec, ...] = (
    ("L0 in use", "kv_usage_ratio", "ratio", "l0", 0.0, 1.0),
    ("Tokens from L1 and L2", "external_tokens_per_second", "tokens_per_second", "l1", 0.0, None),
    ("Tokens from L0", "local_tokens_per_second", "tokens_per_second", "l0", 0.0, None),
    ("Tokens computed again", "recomputed_tokens_per_second", "tokens_per_second", "rc", 0.0, None),
)


def charts_of(services: Services, kind: Literal["server", "engine"], ident: str) -> list[ChartSpec]:
    """Every chart of a target, drawn by the server for now."""
    specs = SERVER_CHARTS if kind == "server" else ENGINE_CHARTS
    lines = services.telemetry.sparklines(kind, [int(ident)], [metric for _, metric, *_ in specs], seconds=WINDOW)
    return [
        ChartSpec(
            title,
            metric,
            unit,
            f"/api/v1/{kind}s/{ident}/samples?metric={metric}",
            Trend(tuple(line[int(ident)]), WINDOW),
            tier,
            low,
            high,
        )
        for (title, metric, unit, tier, low, high), line in zip(specs, lines, strict=True)
    ]
