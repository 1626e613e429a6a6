"""The invented past of the sandbox, written as the poller would have written it: former layouts, a day of samples."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class WorkingDay:
    """A minute of the invented day: prompt tokens a second, and what shares of them were found where."""

    tokens: float
    local: float  # from the engines' own caches
    l2: float
    missed: float  # computed again

    @property
    def l1(self) -> float:
        return 1.0 - self.missed - self.l2


def working_day(at: float, now: float, unrest: float) -> WorkingDay:
    """The day as an office has it, in UTC, running into what the sandbox's own traffic does from `now` on.

    New documents come in the morning and after lunch (more is computed again), the night repeats itself. Scales are
    those of the sandbox, so that the charts show no step where the invention ends. `unrest` wanders around 0.
    """
    hour = at % DAY / 3600
    day = sum(height * math.exp(-(((hour - peak) / width) ** 2)) for peak, height, width in _BUSY)
    fresh = sum(height * math.exp(-(((hour - peak) / width) ** 2)) for peak, height, width in _FRESH)
    near = min(1.0, max(0.0, 1.0 - (now - at) / 5400))  # of the last hour and a half, the present's part
    load = (0.35 + day) * (1 - near) + 0.9 * near
    missed = (0.06 + fresh) * (1 - near) + 0.11 * near
    swing = math.sin(2 * math.pi * at / 900)  # the traffic's own breath
    return WorkingDay(
        tokens=max(30.0, 900.0 * load * (1 + 0.25 * swing + 0.4 * unrest)),
        local=0.66 + 0.05 * unrest,
        l2=0.14 + 0.03 * swing + 0.06 * unrest,
        missed=max(0.02, missed + 0.12 * unrest),
    )


#: (hour of the day, height, width in hours)
_BUSY = ((10.5, 0.6, 1.9), (15.0, 0.65, 2.2), (20.0, 0.2, 1.5))
_FRESH = ((9.2, 0.14, 0.9), (13.8, 0.07, 0.7))


def _samples(session: Any, server_id: int, engine_ids: list[int], now: float) -> Iterator[tuple[int, Any]]:
    rng = random.Random(11)  # noqa: S311
    times = range(int(now - DAY), int(now) - 120, STEP_SECONDS)
    unrest, days = 0.0, []
    for at in times:
        unrest = 0.93 * unrest + rng.gauss(0.0, 0.04)
        days.append(working_day(float(at), now, unrest))
    capacity, token_bytes, minute = 6_291_456, 256, float(STEP_SECONDS)
    used = [min(0.83, 0.66 + 0.15 * ((i * 7) % 60) / 60) for i in range(len(days))]
    columns: dict[tuple[str, int, str], list[float]] = {}

    def column(kind: str, target: int, name: str, values: list[float]) -> None:
        columns[(kind, target, name)] = values

    column("server", server_id, "up", [1.0] * len(days))
    column("server", server_id, "interval_seconds", [minute] * len(days))
    column("server", server_id, "l1_usage_ratio", used)
    column("server", server_id, "l1_used_bytes", [u * capacity for u in used])
    column("server", server_id, "requested_tokens", [d.tokens * minute for d in days])
    column("server", server_id, "l1_hit_tokens", [d.tokens * minute * d.l1 for d in days])
    column("server", server_id, "l2_hit_tokens", [d.tokens * minute * d.l2 for d in days])
    column("server", server_id, "hit_tokens", [d.tokens * minute * (d.l1 + d.l2) for d in days])
    column("server", server_id, "l1_evicted_chunks", [d.tokens * minute / 370 for d in days])
    column("server", server_id, "l2_store_bytes", [d.tokens * minute * d.missed * token_bytes for d in days])
    column("server", server_id, "retrieves_finished", [d.tokens * minute / 700 for d in days])
    column("server", server_id, "cpu_seconds", [minute * (0.008 + d.tokens / 75_000) for d in days])
    for share, engine_id in zip((0.55, 0.45), engine_ids, strict=True):
        mine = [d.tokens * minute * share for d in days]
        column("engine", engine_id, "up", [1.0] * len(days))
        column("engine", engine_id, "interval_seconds", [minute] * len(days))
        column("engine", engine_id, "kv_usage_ratio", [d.tokens * share / 30_000 for d in days])
        column("engine", engine_id, "local_tokens", [n * d.local for n, d in zip(mine, days, strict=True)])
        column("engine", engine_id, "recomputed_tokens", [n * d.missed for n, d in zip(mine, days, strict=True)])
        column(
            "engine",
            engine_id,
            "external_tokens",
            [n * max(0.0, 1 - d.local - d.missed) for n, d in zip(mine, days, strict=True)],
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
