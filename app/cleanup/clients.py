"""`TierCalls` over HTTP: the allow-listed clients of `app.lmcache` and `app.vllm`."""

from __future__ import annotations

from collections.abc import Sequence

from app.cleanup.tiers import Dropped, Reset, ServerGlance
from app.errors import TargetError
from app.fleet.clients import engine_client, server_client
from app.fleet.targets import EngineTarget, ServerTarget
from app.lmcache.object_keys import ObjectKey


class HttpTierCalls:
    """One connection a call: a run makes a handful of them."""

    async def glance(self, server: ServerTarget) -> ServerGlance:
        """`/status`, and the process start from `/metrics` where there is one."""
        async with server_client(server) as client:
            status = await client.status()
            try:
                start = (await client.metrics()).process_start_time
            except TargetError:
                start = None
        return ServerGlance(
            models=frozenset(layout.model_name for layout in status.contexts.values()),
            engines_registered=status.engines_registered,
            l1_objects=status.l1_object_count,
            process_start=start,
            reap_timeout=status.reap_timeout_seconds,
            stores_waiting=_plus(status.store_pending, status.store_in_flight),
        )

    async def delete_l1(self, server: ServerTarget, keys: Sequence[ObjectKey]) -> Dropped:
        """`DELETE /cache/objects` with tier l1 and force false, in batches."""
        async with server_client(server) as client:
            answer = await client.delete_l1([key.to_wire() for key in keys])
        return Dropped(answer.deleted, answer.skipped, answer.ok, answer.error)

    async def reset(self, engine: EngineTarget) -> Reset:
        """`POST /reset_prefix_cache?reset_external=false`, once."""
        async with engine_client(engine) as client:
            answer = await client.reset_prefix_cache()
        return Reset(answer.state, answer.detail)

    async def engine_started(self, engine: EngineTarget) -> float | None:
        """The start of the engine's process, None when its metrics do not tell."""
        async with engine_client(engine) as client:
            return (await client.metrics()).process_start_time


def _plus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b
