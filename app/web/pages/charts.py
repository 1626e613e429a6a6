"""The charts of servers and engines: which there are, with the server's sparkline of each."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlencode

from app.cleanup.schemas import RunView
from app.clock import parse_iso
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


#: Servers of one store that are drawn.
AROUND = 4


def around_run(services: Services, run: RunView) -> list[ChartSpec]:
    """The hit rate of the store's servers in the hour before a run and the hour after it, in one chart a server."""
    if run.hit_rate is None:
        return []
    start, end = parse_iso(run.hit_rate.from_time), parse_iso(run.hit_rate.to_time)
    span = urlencode({"metric": "hit_rate", "from": run.hit_rate.from_time, "to": run.hit_rate.to_time})
    found = []
    for server_id in services.fleet.store_target(int(run.store_id)).server_ids[:AROUND]:
        points = services.telemetry.samples("server", server_id, "hit_rate", start=start, end=end).points
        trend = Trend(tuple(value for _, value in points), end - start)
        name = services.fleet.server_target(server_id).name
        url = f"/api/v1/servers/{server_id}/samples?{span}"
        found.append(ChartSpec(name, "hit_rate", "ratio", url, trend, "", 0.0, 1.0))
    return found


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
