"""The charts of servers, engines and stores: which there are, with the server's sparkline of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlencode

from app.cleanup.schemas import RunView
from app.clock import parse_iso
from app.fleet.schemas import StoreView
from app.services import Services
from app.web.contexts import ChartSpec, Trend

Kind = Literal["server", "engine", "store"]
#: Seconds that the charts of a target's own page show.
WINDOW = 3600.0
#: (title, metric, unit on the chart, tier, lowest, highest)
Spec = tuple[str, str, str, str, float | None, float | None]
SERVER_CHARTS: tuple[Spec, ...] = (
    ("Hit rate", "hit_rate", "ratio", "", 0.0, 1.0),
    ("L1 memory used", "l1_used_bytes", "bytes", "l1", 0.0, None),
    ("Evicted from L1", "l1_evicted_per_second", "chunks_per_second", "l1", 0.0, None),
    ("Written to L2", "l2_store_bytes_per_second", "bytes_per_second", "l2", 0.0, None),
)
#: Saturation, with the number of engines attached first: one cursor goes through all of them.
SERVER_LOAD: tuple[Spec, ...] = (
    ("Engines attached", "engines_registered", "engines", "", 0.0, None),
    ("Retrieves", "retrieves_per_second", "retrieves_per_second", "", 0.0, None),
    ("Loaded from L1 to the engine", "l1_load_bytes_per_second", "bytes_per_second", "l1", 0.0, None),
    ("Loaded from L2 to L1", "l2_load_bytes_per_second", "bytes_per_second", "l2", 0.0, None),
    ("Processor of the server", "cpu_cores", "cores", "", 0.0, None),
    ("Memory pressure of the host", "memory_pressure_ratio", "ratio", "", 0.0, 1.0),
)
_MORE_OF_SERVER: tuple[Spec, ...] = (
    ("Resident memory", "resident_bytes", "bytes", "", 0.0, None),
    ("Hit rate of L1", "l1_hit_rate", "ratio", "l1", 0.0, 1.0),
    ("Hit rate of L2", "l2_hit_rate", "ratio", "l2", 0.0, 1.0),
    ("Tokens looked up", "requested_tokens_per_second", "tokens_per_second", "", 0.0, None),
    ("L1 in use", "l1_usage_ratio", "ratio", "l1", 0.0, 1.0),
    ("L2 as the server counts it", "l2_usage_bytes", "disk", "l2", 0.0, None),
    ("Answers", "up", "bool", "", 0.0, 1.0),
)
ENGINE_CHARTS: tuple[Spec, ...] = (
    ("L0 in use", "kv_usage_ratio", "ratio", "l0", 0.0, 1.0),
    ("Tokens from L1 and L2", "external_tokens_per_second", "tokens_per_second", "l1", 0.0, None),
    ("Tokens from L0", "local_tokens_per_second", "tokens_per_second", "l0", 0.0, None),
    ("Tokens computed again", "recomputed_tokens_per_second", "tokens_per_second", "rc", 0.0, None),
    ("Requests running", "running", "requests", "", 0.0, None),
    ("Requests waiting", "waiting", "requests", "", 0.0, None),
)
_MORE_OF_ENGINE: tuple[Spec, ...] = (
    ("Preemptions", "preemptions_per_second", "preemptions_per_second", "", 0.0, None),
    ("A look-up in the cache takes", "lookup_seconds", "seconds", "", 0.0, None),
    ("Processor", "cpu_cores", "cores", "", 0.0, None),
    ("Resident memory", "resident_bytes", "bytes", "", 0.0, None),
    ("Requests finished", "requests_finished_per_second", "requests_per_second", "", 0.0, None),
    ("Tokens generated", "generated_tokens_per_second", "tokens_per_second", "", 0.0, None),
    ("Found by LMCache inside it", "in_process_hit_rate", "ratio", "l1", 0.0, 1.0),
    ("Held by LMCache inside it in memory", "in_process_cpu_bytes", "bytes", "l1", 0.0, None),
    ("Held by LMCache inside it on disk", "in_process_disk_bytes", "disk", "l2", 0.0, None),
    ("Answers", "up", "bool", "", 0.0, 1.0),
)
#: The disk below a store: rates and what a request takes.
STORE_CHARTS: tuple[Spec, ...] = (
    ("Read from the disk", "disk_read_bytes_per_second", "bytes_per_second", "l2", 0.0, None),
    ("Written to the disk", "disk_write_bytes_per_second", "bytes_per_second", "l2", 0.0, None),
    ("A read of the disk takes", "disk_read_latency_seconds", "seconds", "l2", 0.0, None),
    ("A write of the disk takes", "disk_write_latency_seconds", "seconds", "l2", 0.0, None),
)
_MORE_OF_STORE: tuple[Spec, ...] = (
    ("Disk busy", "disk_busy_ratio", "ratio", "l2", 0.0, 1.0),
    ("Free", "free_bytes", "disk", "l2", 0.0, None),
    ("Inodes free", "inodes_free", "inodes", "l2", 0.0, None),
    ("Can be used", "up", "bool", "", 0.0, 1.0),
)
#: What the page of a target's history offers.
HISTORY: dict[Kind, tuple[Spec, ...]] = {
    "server": (*SERVER_CHARTS, *SERVER_LOAD, *_MORE_OF_SERVER),
    "engine": (*ENGINE_CHARTS, *_MORE_OF_ENGINE),
    "store": (*_MORE_OF_STORE[1:2], *STORE_CHARTS, *_MORE_OF_STORE[:1], *_MORE_OF_STORE[2:]),
}


#: Servers of one store that are drawn.
AROUND = 4
#: Stores of one server whose disks are drawn.
DISKS = 2


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


def charts_of(services: Services, kind: Kind, ident: str, specs: Sequence[Spec], name: str = "") -> list[ChartSpec]:
    """These charts of a target, drawn by the server for now; `name` goes before their titles."""
    lines = services.telemetry.sparklines(kind, [int(ident)], [metric for _, metric, *_ in specs], seconds=WINDOW)
    return [
        ChartSpec(
            f"{name}: {title}" if name else title,
            metric,
            unit,
            f"/api/v1/{kind}s/{ident}/samples?metric={metric}",
            Trend(tuple(line[int(ident)]), WINDOW),
            tier,
            low,
            high,
            f"/{kind}s/{ident}/history?metric={metric}",
        )
        for (title, metric, unit, tier, low, high), line in zip(specs, lines, strict=True)
    ]


def load_charts(services: Services, server_id: str, stores: Sequence[StoreView]) -> list[ChartSpec]:
    """What a server and the disks of its stores do, in one row of charts beside the number of engines attached."""
    found = charts_of(services, "server", server_id, SERVER_LOAD)
    for store in stores[:DISKS]:
        found += charts_of(services, "store", store.id, STORE_CHARTS, store.name if len(stores) > 1 else "")
    return found
