"""The HTTP front of a cache server (thin: every decision is in `server` and the views)."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel

from app.sandbox import server_config, server_views
from app.sandbox.misbehaviour import KeptPage
from app.sandbox.server import CacheServer
from app.sandbox.tiers import ObjectKey
from app.sandbox.world import World

MAX_KEYS = 10_000


class Tier(StrEnum):
    l1 = "l1"
    l2 = "l2"
    all = "all"


class EncodedObjectKey(BaseModel):
    chunk_hash_hex: str
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


class DeleteObjectsRequest(BaseModel):
    keys: list[EncodedObjectKey]
    tier: Tier = Tier.l2
    force: bool = False
    adapter: str | None = None


class ClearRequest(BaseModel):
    tier: Tier = Tier.l1
    force: bool = False


class PrefetchRequest(BaseModel):
    model_name: str
    world_size: int
    token_ids: list[int]
    cache_salt: str = ""
    source_tier: Tier = Tier.l2
    target_tier: Tier = Tier.l1


def _object_key(index: int, key: EncodedObjectKey) -> ObjectKey:
    """The key, or the 400 that the real server gives for it."""
    try:
        chunk_hash = bytes.fromhex(key.chunk_hash_hex).hex()
    except ValueError as error:
        raise HTTPException(400, f"keys[{index}]: {error}") from None
    for name, value, forbidden, shown in (
        ("model_name", key.model_name, "@\0", "'@'"),
        ("cache_salt", key.cache_salt, "@/\\\0", "frozenset({'@'})"),
    ):
        if any(c in forbidden for c in value):
            raise HTTPException(400, f"keys[{index}]: {name} must not contain {shown} (got {value!r})")
    return ObjectKey(key.model_name, key.kv_rank & 0xFFFFFFFF, key.object_group_id, chunk_hash, key.cache_salt)


def create_server_app(world: World, server: CacheServer, port: Callable[[], int]) -> FastAPI:
    """The application of one cache server; `port` tells where it listens (for `/config`)."""
    app = FastAPI(title="LMCache HTTP API", docs_url=None, redoc_url=None)

    page = KeptPage(server.faults)

    def locked(answer: Callable[[float], Any]) -> Any:
        with world.lock:
            return answer(world.now())

    @app.get("/")
    def root() -> dict[str, str]:
        return {"status": "ok", "service": "LMCache HTTP API"}

    @app.get("/healthcheck")
    def healthcheck() -> Response:
        if server.faults.healthcheck_unhealthy:
            return JSONResponse({"status": "unhealthy", "reason": "engine not initialized"}, 503)
        return JSONResponse({"status": "healthy"})

    @app.get("/status")
    def status() -> Any:
        return locked(lambda now: server_views.status(server, now))

    @app.get("/config")
    def config() -> Any:
        return locked(lambda now: server_config.config(server, port()))

    @app.get("/config/adapters")
    def adapters() -> Any:
        return locked(lambda now: server_config.adapters(server))

    @app.get("/version")
    def version() -> str:
        return f"{server.spec.version}-{server.spec.commit}"

    @app.get("/lmc_version")
    def lmc_version() -> str:
        return server.spec.version

    @app.get("/commit_id")
    def commit_id() -> str:
        return server.spec.commit

    @app.get("/metrics")
    def metrics() -> Response:
        if server.faults.metrics_missing:
            raise HTTPException(404)
        return PlainTextResponse(locked(lambda now: page.text(lambda: server_views.metrics_text(server, now))))

    @app.post("/metrics/reset")
    def metrics_reset() -> Response:
        locked(lambda now: server.metrics.clear())
        return PlainTextResponse("ok")

    @app.get("/periodic-threads")
    def periodic_threads() -> Any:
        return locked(lambda now: server_views.threads(server, now))

    @app.get("/periodic-threads-health")
    def periodic_threads_health() -> Any:
        return server_views.threads_health()

    @app.get("/quota")
    def quotas() -> Any:
        return {"users": {}}

    @app.get("/quota/{cache_salt}")
    def quota(cache_salt: str) -> Any:
        used = locked(lambda now: server.l1.bytes_by_salt().get(cache_salt, 0))
        return {"cache_salt": cache_salt, "limit_gb": 0.0, "current_usage_gb": used / (1 << 30), "exists": False}

    @app.get("/cache/objects")
    def list_objects(tier: Tier = Tier.l2) -> Any:
        if tier is not Tier.l2:
            raise HTTPException(400, f"tier {tier.value!r} not supported; only 'l2'")
        if server.l2 is None:
            raise HTTPException(503, "no L2 adapter configured")
        raise HTTPException(
            503, "L2 adapter 'fs' does not support listing: FSL2Adapter does not implement list_l2_keys"
        )

    @app.delete("/cache/objects")
    def delete_objects(body: DeleteObjectsRequest) -> Any:
        if len(body.keys) > MAX_KEYS:
            message = f"too many keys in a single request (limit={MAX_KEYS}, got={len(body.keys)})"
            raise HTTPException(400, message)
        keys = [_object_key(i, key) for i, key in enumerate(body.keys)]
        if body.tier is not Tier.l1 and body.adapter not in (None, "fs"):
            raise HTTPException(404, f"no L2 adapter with type_name={body.adapter!r}")
        if body.tier is not Tier.l1 and server.l2 is None:
            raise HTTPException(503, "no L2 adapter configured")
        deleted = locked(lambda now: server.delete(keys, body.tier.value, now))
        return {"deleted": deleted, "skipped": 0, "ok": True}

    @app.post("/cache/clear")
    def clear(body: ClearRequest | None = None) -> Any:
        tier = body.tier if body is not None else Tier.l1
        if tier is not Tier.l1:
            raise HTTPException(400, f"tier {tier.value!r} not supported; only 'l1'")
        locked(server.clear)
        return {"status": "ok", "cleared": {"tier": "l1"}}

    @app.post("/cache/prefetches", status_code=202)
    def prefetch(body: PrefetchRequest) -> Any:
        if (body.source_tier, body.target_tier) != (Tier.l2, Tier.l1):
            direction = f"{body.source_tier.value!r}->{body.target_tier.value!r}"
            raise HTTPException(400, f"unsupported prefetch direction {direction}; only 'l2'->'l1'")
        _object_key(0, EncodedObjectKey(chunk_hash_hex="", model_name="", kv_rank=0, cache_salt=body.cache_salt))
        tokens = [token & 0xFFFFFFFF for token in body.token_ids]
        try:
            job = locked(lambda now: server.prefetch(body.model_name, body.world_size, tokens, body.cache_salt, now))
        except LookupError as error:
            message = f"{error}; the model has not allocated KV cache on this node yet"
            raise HTTPException(503, message) from None
        if job is None:
            return {"chunks": 0, "status": "noop"}
        return {"request_id": job, "chunks": len(tokens) // server.spec.chunk_size, "status": "submitted"}

    @app.get("/cache/prefetches/{request_id}")
    def prefetch_status(request_id: str) -> Any:
        def look(now: float) -> Any:
            job = server.prefetches.get(request_id)
            if job is None:
                message = f"unknown prefetch request_id={request_id!r} (already completed or never submitted)"
                raise HTTPException(404, message)
            job.polls += 1
            if job.polls == 1 and now <= job.submitted_at:
                return {"request_id": request_id, "status": "pending"}
            del server.prefetches[request_id]
            found = {"found_keys": job.found_keys, "total_keys": job.total_keys}
            return {"request_id": request_id, "status": "completed", **found}

        return locked(look)

    return app
