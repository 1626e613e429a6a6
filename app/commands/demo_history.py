"""The invented past of the sandbox, written as the poller would have written it: former layouts, a day of samples."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from sqlalchemy import select

from app.database import insert_ignore
from app.lmcache.layouts import KVLayout
from app.services import Services
from app.telemetry.tables import Observation, SampleRaw, Series

DAY = 86_400.0
STEP_SECONDS = 60
# Between two layouts the engine is away for about this long.
RESTART_SECONDS = 120.0


def seed_history(services: Services, server_id: int, engine_ids: list[int], facts: Mapping[str, Any]) -> None:
    """Adds observations of the layouts before the sandbox's layout change, and samples of the last day."""
    now = services.clock()
    with services.db.write() as session:
        latest = session.scalars(
            select(Observation)
            .where(Observation.server_id == server_id, Observation.ok)
            .order_by(Observation.last_at.desc())
            .limit(1)
        ).one()
        layouts = [KVLayout.from_json(context) for context in latest.contexts.values()]
        past = list(_observations(server_id, latest, layouts, facts, now))
        for number, row in enumerate(past):
            row.id = number - len(past)  # before every row of the poller: ids grow with time
            session.add(row)
        for series_id, points in _samples(session, server_id, engine_ids, now):
            rows = [{"series_id": series_id, "at": at, "value": value} for at, value in points]
            insert_ignore(session, SampleRaw.__table__, rows)  # type: ignore[arg-type]


def _observations(
    server_id: int, latest: Observation, layouts: list[KVLayout], facts: Mapping[str, Any], now: float
) -> Iterator[Observation]:
    """One row a span between two changes of what was registered, up to now."""
    epochs = facts["epochs"]
    cuts = sorted({epoch["start"] for epoch in epochs} | {epoch["end"] for epoch in epochs if epoch["end"]} | {now})
    for start, end in pairwise(cuts):
        contexts = {}
        for number, epoch in enumerate(epochs):
            if epoch["start"] <= start and end <= (epoch["end"] or now):
                layout = _like(layouts, epoch["model"], epoch["dtype"])
                contexts[str(9_000_000 + number)] = layout.to_dict()
        this_process = latest.process_start is not None and start >= latest.process_start
        yield Observation(
            server_id=server_id,
            first_at=start + (RESTART_SECONDS if start > cuts[0] else 0.0),
            last_at=end - (RESTART_SECONDS if end < now else 1.0),
            polls=max(1, int((end - start) / 10)),
            ok=True,
            instance_id=latest.instance_id if this_process else "sandbox-before",
            process_start=latest.process_start if this_process else start - 30,
            lmcache_version=latest.lmcache_version,
            contexts=contexts,
            engine_starts=latest.engine_starts if end == now else {},
            engine_ids=sorted(contexts),
            drained=True,
            clock_offset=0.0,
            reap_timeout_seconds=latest.reap_timeout_seconds,
        )


def _like(layouts: list[KVLayout], model: str, dtype: str) -> KVLayout:
    """The live layout of the model (or of any), as it was with another dtype."""
    base = next((layout for layout in layouts if layout.model_name == model), layouts[0])
    groups = tuple(replace(group, dtype=dtype) for group in base.groups)
    return replace(base, model_name=model, dtype=dtype, groups=groups)


def _samples(session: Any, server_id: int, engine_ids: list[int], now: float) -> Iterator[tuple[int, Any]]:
    rng = random.Random(11)  # noqa: S311
    times = range(int(now - DAY), int(now) - 120, STEP_SECONDS)
    load = [0.55 + 0.35 * math.sin((t % DAY) / DAY * 2 * math.pi - 2.0) + rng.uniform(-0.08, 0.08) for t in times]
    capacity = 6_291_456
    columns: dict[tuple[str, int, str], list[float]] = {}

    def column(kind: str, target: int, name: str, values: list[float]) -> None:
        columns[(kind, target, name)] = values

    requested = [max(0.0, x) * 60 * 620 for x in load]
    l1_share = [0.42 + 0.12 * math.sin(i / 90) + rng.uniform(-0.05, 0.05) for i in range(len(load))]
    l2_share = [0.17 + 0.05 * math.sin(i / 140 + 1) + rng.uniform(-0.03, 0.03) for i in range(len(load))]
    used = [min(0.83, 0.62 + 0.2 * ((i * 7) % 60) / 60) for i in range(len(load))]
    column("server", server_id, "up", [1.0] * len(load))
    column("server", server_id, "interval_seconds", [float(STEP_SECONDS)] * len(load))
    column("server", server_id, "l1_usage_ratio", used)
    column("server", server_id, "l1_used_bytes", [u * capacity for u in used])
    column("server", server_id, "requested_tokens", requested)
    column("server", server_id, "l1_hit_tokens", [r * s for r, s in zip(requested, l1_share, strict=True)])
    column("server", server_id, "l2_hit_tokens", [r * s for r, s in zip(requested, l2_share, strict=True)])
    column(
        "server",
        server_id,
        "hit_tokens",
        [r * (a + b) for r, a, b in zip(requested, l1_share, l2_share, strict=True)],
    )
    column("server", server_id, "l1_evicted_chunks", [max(0.0, x) * 14 for x in load])
    column("server", server_id, "l2_store_bytes", [max(0.0, x) * 9_000_000 for x in load])
    for share, engine_id in zip((0.7, 0.3), engine_ids, strict=True):
        column("engine", engine_id, "up", [1.0] * len(load))
        column("engine", engine_id, "interval_seconds", [float(STEP_SECONDS)] * len(load))
        column("engine", engine_id, "local_tokens", [r * share * 0.3 for r in requested])
        column(
            "engine",
            engine_id,
            "external_tokens",
            [r * share * 0.7 * (a + b) for r, a, b in zip(requested, l1_share, l2_share, strict=True)],
        )
        column(
            "engine",
            engine_id,
            "recomputed_tokens",
            [r * share * 0.7 * (1 - a - b) for r, a, b in zip(requested, l1_share, l2_share, strict=True)],
        )
    for (kind, target, name), values in columns.items():
        row = session.scalar(
            select(Series).where(Series.target_kind == kind, Series.target_id == target, Series.metric == name)
        )
        if row is None:
            row = Series(target_kind=kind, target_id=target, metric=name)
            session.add(row)
            session.flush()
        yield row.id, [(t * 1000, value) for t, value in zip(times, values, strict=True)]
