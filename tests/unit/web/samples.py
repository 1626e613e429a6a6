"""Views as the services return them, for rendering pages in every state. NOW is 2026-11-30 14:05 UTC."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from app.acceptance.schemas import AcceptanceRunView, LatestView
from app.clock import iso
from app.fleet.load_schemas import DiskView, ServerLoadView
from app.fleet.schemas import (
    CrossCheckView,
    EngineFactsView,
    EngineView,
    FilesystemView,
    HealthView,
    HitRateView,
    L0View,
    L1View,
    L2View,
    LayoutView,
    LightView,
    ObjectGroupView,
    PrefixCacheView,
    ServerView,
    StoreView,
)
from app.scheduling.schemas import Progress
from app.telemetry.schemas import FlowLevelView, HealthChangeView, TokenFlowView

NOW = 1796047500.0  # 2026-11-30T14:05:00Z
GIB = 2**30
HOSTILE = '<script>alert("x")</script>\'"&\u202e\n\x1b[31m'


Model = TypeVar("Model", bound=BaseModel)


def made(model: type[Model], values: dict[str, Any]) -> Model:
    """The view of `values`; fields that it gained since this was written are not known (None), where they may be."""
    try:
        return model(**values)
    except ValidationError as error:
        missing = {str(e["loc"][0]): None for e in error.errors() if e["type"] == "missing" and len(e["loc"]) == 1}
        return model(**(missing | values))


def ago(seconds: float) -> str:
    """RFC 3339, that many seconds before NOW."""
    text = iso(NOW - seconds)
    assert text is not None
    return text


def layout(name: str = "/models/qwen2.5-7b", *, live: bool = True, dtype: str | None = "bfloat16") -> LayoutView:
    return LayoutView(
        model_name=name,
        world_size=1,
        chunk_size=256,
        bytes_per_token=57344,
        dtype=dtype,
        kv_cache_dtype=None,
        attention_backend="FLASH_ATTN",
        tokens_per_block=16,
        object_groups=[
            ObjectGroupView(index=0, layers=28, tokens_per_block=16, slots_per_block=16, dtype=dtype, is_mla=False)
        ],
        fingerprint="3fa91c02d4e85b7790aa" if dtype == "bfloat16" else "b1d2770cf3e94410aabb",
        live=live,
        contexts=1 if live else 0,
        first_seen=ago(400000),
        last_seen=ago(3),
    )


def server(
    ident: str = "1",
    name: str = "lmc-a",
    *,
    state: str = "healthy",
    usage: float | None = 0.755,
    hit: float | None = 0.583,
    engines: int | None = 2,
    **over: Any,
) -> ServerView:
    """A server with everything known; `usage=None` and friends take values away."""
    up = state not in ("unreachable", "unknown")
    reasons = {
        "healthy": "all parts say they are well",
        "degraded": "1 of 2 engines registered: qwen-2 restarted 2 m 07 s ago and is not back",
        "unreachable": "connection refused at 10.0.3.17:8080",
        "unhealthy": "/healthcheck says unhealthy: engine not initialised",
        "unknown": "not polled yet",
    }
    l1 = (
        L1View(
            used_bytes=int(usage * 20 * GIB),
            capacity_bytes=20 * GIB,
            usage_ratio=usage,
            trigger_watermark=0.8,
            eviction_ratio=0.2,
            eviction_policy="LRU",
            object_count=int(usage * 1432),
        )
        if usage is not None
        else L1View(reason=reasons[state])
    )
    rate = (
        HitRateView(
            state="value",
            value=hit,
            l1_share=hit * 0.71,
            l2_share=hit * 0.29,
            hit_tokens=int(hit * 1_942_310),
            requested_tokens=1_942_310,
            window_seconds=900,
        )
        if hit is not None
        else HitRateView(
            state="no_traffic" if up else "unknown", window_seconds=900, reason=None if up else reasons[state]
        )
    )
    values: dict[str, Any] = {
        "id": ident,
        "name": name,
        "url": f"http://10.0.3.{14 + int(ident) if ident.isdecimal() else 9}:8080",
        "has_api_key": False,
        "header_names": [],
        "labels": {"rack": "b7"},
        "revision": 1,
        "created_at": ago(900000),
        "version": "0.5.6" if up else None,
        "instance_id": "lmc-7f3a" if up else None,
        "started_at": ago(500000) if up else None,
        "restarted_at": None,
        "chunk_size": 256 if up else None,
        "health": HealthView(
            state=state,  # type: ignore[arg-type]
            reason=reasons[state],
            since=ago(7420),
            http_up=up if state != "unknown" else None,
            engine_up=(state != "unhealthy") if up else None,
            engines_registered=engines if up else None,
            data_path_proven_at=ago(17900) if state == "healthy" else None,
            lights=[
                LightView(name="http_up", value=up if state != "unknown" else None, reason=reasons[state]),
                LightView(name="engine_up", value=(state != "unhealthy") if up else None, reason=reasons[state]),
                LightView(
                    name="engines_registered", value=engines > 0 if up else None, reason=reasons[state], since=ago(7420)
                ),
                LightView(
                    name="data_path",
                    value=True if state == "healthy" else None,
                    reason="acceptance run 7 read records back right",
                    since=ago(17900),
                ),
            ],
        ),
        "l1": l1,
        "hit_rate": rate,
        "hit_rate_check": CrossCheckView(
            state="agree", reason="vLLM loaded 1,128,004 external tokens", external_tokens=1128004
        ),
        "layouts": [layout(), layout(dtype="float16", live=False)] if up else [],
        "l2": [
            L2View(
                adapter="fs",
                base_path="/mnt/nvme0/kv",
                relative_tmp_dir=".tmp",
                usage_bytes=1_920_000_000_000 if up else None,
                usage_reason=None if up else reasons[state],
                max_capacity_bytes=None,
                evicts=False,
                store_id="1",
            )
        ],
        "load": ServerLoadView(
            seconds=10.0,
            cpu_cores=0.41,
            resident_bytes=34_800_000_000,
            retrieves_per_second=12.4,
            l1_load_bytes_per_second=38_200_000_000.0,
            l1_loaded_at=ago(2),
            l2_load_bytes_per_second=2_900_000_000.0,
            l2_loaded_at=ago(130),
            shares_host=True,
            memory_pressure_ratio=0.002,
        )
        if up
        else ServerLoadView(),
        "warnings": [],
        "last_error": None if up else reasons[state],
        "polled_at": ago(2),
        "scraped_at": ago(2) if up else ago(3900),
        "scrape_age_seconds": 2.0 if up else 3900.0,
        "engine_ids": ["1", "2"],
        "store_ids": ["1"],
    }
    return made(ServerView, values | over)


def engine(
    ident: str = "1", name: str = "qwen-1", *, state: str = "healthy", known: bool = True, **over: Any
) -> EngineView:
    values: dict[str, Any] = {
        "id": ident,
        "name": name,
        "url": f"http://10.0.4.{10 + int(ident)}:8000",
        "server_id": "1",
        "server_link": "given",
        "has_api_key": False,
        "header_names": [],
        "labels": {},
        "revision": 1,
        "created_at": ago(900000),
        "version": "0.32.0" if known else None,
        "model_names": ["qwen2.5-7b"] if known else [],
        "model_roots": ["/models/qwen2.5-7b"] if known else [],
        "max_model_len": 32768 if known else None,
        "started_at": ago(180) if known else None,
        "health": HealthView(
            state=state,  # type: ignore[arg-type]
            reason="answers /health" if state == "healthy" else "connection refused at 10.0.4.12:8000",
            since=ago(180),
            http_up=known,
            engine_up=known or None,
        ),
        "l0": L0View(capacity_tokens=412_000, capacity_bytes=22 * GIB, usage_ratio=0.64)
        if known
        else L0View(reason="no metrics"),
        "running": 12 if known else None,
        "waiting": 0 if known else None,
        "preemptions": 3 if known else None,
        "prefix_cache": PrefixCacheView(
            local_hit_rate=0.28,
            external_hit_rate=0.61,
            external_share=0.72 * 0.61,
            recomputed_share=0.72 * 0.39,
            window_seconds=900,
        )
        if known
        else PrefixCacheView(reason="not read yet"),
        "reset_available": True if known else None,
        "connector": True if known else None,
        "facts": EngineFactsView(
            dtype="bfloat16",
            kv_cache_dtype="auto",
            block_size=16,
            prefix_caching=True,
            revision="main",
            sources={"dtype": "/server_info", "kv_cache_dtype": "/server_info", "block_size": "/metrics"},
        )
        if known
        else EngineFactsView(),
        "entered_facts": {},
        "entered_facts_valid": None,
        "warnings": [],
        "last_error": None if known else "connection refused",
        "polled_at": ago(2),
        "scraped_at": ago(2) if known else None,
        "scrape_age_seconds": 2.0 if known else None,
    }
    return made(EngineView, values | over)


def store(ident: str = "1", name: str = "nvme-a", *, known: bool = True, **over: Any) -> StoreView:
    values: dict[str, Any] = {
        "id": ident,
        "name": name,
        "path": "/srv/kv/nvme-a",
        "server_path": "/mnt/nvme0/kv",
        "server_ids": ["1"],
        "temp_dir": ".tmp",
        "kind": "lmcache_fs",
        "labels": {},
        "revision": 1,
        "created_at": ago(900000),
        "usable": True if known else None,
        "usable_reason": None,
        "checked_at": ago(40) if known else None,
        "filesystem": FilesystemView(total_bytes=2_600_000_000_000, free_bytes=612_000_000_000, inodes_free=158_000_000)
        if known
        else FilesystemView(),
        "disk": DiskView(
            device="nvme0n1",
            seconds=10.0,
            read_bytes_per_second=1_410_000_000.0,
            write_bytes_per_second=212_000_000.0,
            read_latency_seconds=0.0009,
            write_latency_seconds=0.0021,
            requests=18_400.0,
            busy_ratio=0.37,
            reason=None,
        )
        if known
        else DiskView(),
    }
    return made(StoreView, values | over)


def token_flow(state: str = "value", *, total: int = 4_210_448) -> TokenFlowView:
    if state != "value":
        why = None if state == "no_traffic" else "no engine answers /metrics"
        return TokenFlowView(
            server_id=None,
            window_seconds=900,
            covered_seconds=900 if why is None else None,
            state=state,  # type: ignore[arg-type]
            total_tokens=0 if why is None else None,
            external_tokens=None,
            levels=[
                FlowLevelView(
                    level=name,
                    state="value" if why is None else "unknown",
                    tokens=0 if why is None else None,
                    reason=why,
                )  # type: ignore[arg-type]
                for name in ("l0", "l1", "l2", "recomputed")
            ],
            engines=0,
            reason=why,
        )
    shares = {"l0": 0.28, "l1": 0.41, "l2": 0.17, "recomputed": 0.14}
    return TokenFlowView(
        server_id=None,
        window_seconds=900,
        covered_seconds=897.4,
        state="value",
        total_tokens=total,
        external_tokens=int(total * 0.58),
        levels=[
            FlowLevelView(
                level=name, state="value", tokens=int(total * s), share=s, tokens_per_second=total * s / 897.4
            )  # type: ignore[arg-type]
            for name, s in shares.items()
        ],
        engines=3,
    )


def wave(
    points: int = 60, *, base: float = 0.55, swing: float = 0.09, dip: int | None = 40, gap: int | None = None
) -> tuple[float | None, ...]:
    """A believable hit rate over time, with a dip and a gap."""
    values: list[float | None] = []
    for i in range(points):
        v = base + swing * math.sin(i / 5.3) + swing * 0.4 * math.sin(i * 1.7)
        if dip is not None and dip <= i < dip + 5:
            v -= 0.22 - 0.04 * (i - dip)
        values.append(None if gap is not None and gap <= i < gap + 4 else v)
    return tuple(values)


def change(
    ident: str, target: str, old: str | None, new: str, reason: str, at: float, kind: str = "server"
) -> HealthChangeView:
    return HealthChangeView(
        id=ident,
        target_kind=kind,
        target_id="1",
        target_name=target,
        old_state=old,
        new_state=new,
        reason=reason,  # type: ignore[arg-type]
        at=ago(at),
        by="poller",
    )


def run_view(
    ident: str = "7",
    *,
    verdict: str | None = "pass",
    state: str = "succeeded",
    engine_name: str = "qwen-1",
    at: float = 17900,
    **over: Any,
) -> AcceptanceRunView:
    ended = state not in ("queued", "running")
    values: dict[str, Any] = {
        "id": ident,
        "state": state,
        "progress": Progress(done=96 if ended else 41, total=96, unit="requests"),
        "error": None,
        "created_at": ago(at + 190),
        "started_at": ago(at + 188),
        "finished_at": ago(at) if ended else None,
        "requested_by": "admin",
        "engine_id": "1",
        "engine_name": engine_name,
        "server_id": "1",
        "server_name": "lmc-a",
        "second_engine_id": None,
        "profile": "quick",
        "mode": "near_tie",
        "verdict": verdict,
        "headline": None,
        "reasons": [],
        "findings": [],
        "steps": [],
        "arms": [],
        "comparisons": [],
        "evidence": {},
        "request": {},
        "frozen": {},
        "deadline_seconds": 600.0,
        "duration_seconds": 188.0 if ended else None,
        "report_urls": {},
    }
    return made(AcceptanceRunView, values | over)


def latest(state: str = "fresh", *, run: AcceptanceRunView | None = None, reason: str = "") -> LatestView:
    run = run if run is not None or state in ("never", "unknown") else run_view()
    return LatestView(
        engine_id="1",
        state=state,
        reason=reason,
        last_run=run,  # type: ignore[arg-type]
        last_pass=run if run is not None and run.verdict == "pass" else None,
        last_verdict=run if run is not None and run.verdict in ("pass", "pass_with_near_ties", "fail") else None,
        changed=[],
    )
