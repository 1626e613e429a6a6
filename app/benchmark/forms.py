"""What each form does, phase by phase: two passes, request rate, restarts, accumulation, lookups.

Salts are ``tk-<run>-<scenario><repeat>``: one for each run of a scenario, so that its first pass is always cold, nobody
else's records can match, and the server's counters of that salt are the run's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from app.acceptance import own_records
from app.benchmark import fixes
from app.benchmark.arrival import poisson_offsets
from app.benchmark.conduct import Conduct, Sending
from app.benchmark.fill import Filler
from app.benchmark.numbers import spread
from app.benchmark.ports import Pace
from app.benchmark.result import PhaseData, RunData
from app.benchmark.schemas import BenchmarkInput
from app.benchmark.shapes import Plan, Planned
from app.benchmark.stack import (
    Engine,
    RunStopped,
    Server,
    Side,
    engine_metrics,
    reset_l0,
    wait_stored,
)
from app.benchmark.verdict import Finding
from app.errors import TargetError
from app.vllm.metrics import EngineMetrics

#: Shapes whose passes hold every prompt once: only there must a GPU cache that was emptied serve nothing.
_NOTHING_RECURS = ("repeat", "use_once")
SALT_PREFIX = "tk-"


@dataclass
class Work:
    """Everything a form needs. `prefix_cache` is decided: left, reset or off."""

    request: BenchmarkInput
    run_key: str
    sides: list[Side]
    plan: Plan
    data: RunData
    conduct: Conduct
    pace: Pace
    prefix_cache: str
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    restart: Callable[[Side], Awaitable[None]] | None = None
    filler: Filler | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def b(self) -> Side:
        return next(side for side in self.sides if side.name == "b")

    def salt(self, side: Side, repeat: int, *, fresh: bool = False) -> str:
        return f"{SALT_PREFIX}{self.run_key}-{side.name}r{repeat}" + ("x" if fresh else "")

    @property
    def once(self) -> bool:
        """Whether nothing recurs within a pass."""
        return self.request.texts is None and self.request.shape in _NOTHING_RECURS


async def two_pass(work: Work) -> None:
    """Run 0, then the measured runs, A and B in turn (the order alternates); last the repeat that shows the noise."""
    repeats = work.request.repeats or 3
    await _runs(work, range(repeats + 1), _sequential(work))


async def request_rate(work: Work) -> None:
    """Both runs of every scenario at the same Poisson times."""
    work.data.measured_from = 1
    await _runs(work, range(1, (work.request.repeats or 1) + 1), None)


def _sequential(work: Work) -> Sending:
    return Sending(concurrency=work.request.concurrency or 1)


async def _runs(work: Work, repeats: range, sending: Sending | None) -> None:
    for repeat in repeats:
        order = work.sides if repeat % 2 == 0 else list(reversed(work.sides))
        for side in order:
            await _two_phases(work, side, repeat, sending)
    if work.request.noise_repeat:
        first = work.sides[0]  # A where there is one: an A/A repeat
        again = Side(f"{first.name}2", f"{first.title}, again", first.engines, first.readers, first.fresh_salts)
        await _two_phases(work, again, 1, sending)


async def _two_phases(work: Work, side: Side, repeat: int, sending: Sending | None) -> None:
    def how(items: Sequence[Planned]) -> Sending:
        if sending is not None:
            return sending
        offsets = poisson_offsets(len(items), work.request.rate, work.request.seed + repeat)
        return Sending(work.request.concurrency, offsets)

    salt = work.salt(side, repeat)
    plan = work.plan
    first = await work.conduct.phase(
        side,
        repeat,
        "first",
        plan.first,
        salt=salt,
        engines=side.engines[:1],
        sending=how(plan.first),
        l0_empty=work.once,
    )
    await _between(work, side, first, salt)
    readers = side.readers or side.engines[:1]
    emptied = work.prefix_cache in ("reset", "off") or side.fresh_salts
    used = work.salt(side, repeat, fresh=True) if side.fresh_salts else salt
    second = await work.conduct.phase(
        side,
        repeat,
        "second",
        plan.second,
        salt=used,
        engines=readers,
        sending=how(plan.second),
        l0_empty=emptied and work.once,
    )
    # What this pass still stores must not be in the times of the other scenario, which comes next.
    await _drained(work, side, second, used)
    _prove(work, side, second, emptied=emptied)


async def _between(work: Work, side: Side, first: PhaseData, salt: str) -> None:
    """Stores drained, the wait that was asked for, the GPU caches emptied, L1 emptied of our own."""
    server = side.server
    await _drained(work, side, first, salt)
    if work.request.wait_seconds:
        await work.sleep(work.request.wait_seconds)
        first.notes.append(f"{work.request.wait_seconds:g} s waited after it")
    if work.prefix_cache == "reset":
        await reset_l0(side.all_engines, work.pace)
        first.notes.append("GPU prefix cache emptied after it")
    if work.request.empty_l1 and server is not None:
        first.notes.append(await _empty_l1(server, salt))


async def _drained(work: Work, side: Side, data: PhaseData, salt: str) -> None:
    """Waits until what a phase computed is stored; says so where it did not come to that."""
    server = side.server
    if server is None:
        return
    data.stored = await wait_stored(server, salt, _chunks(data, server), work.pace)
    if data.stored.drained is False:
        work.findings.append(Finding("stores_in_flight", "warning", data.stored.text, fixes.STORES))
    elif data.stored.drained is None:
        data.notes.append(data.stored.text)


def _chunks(data: PhaseData, server: Server) -> int | None:
    if server.chunk_size is None:
        return None
    return sum((r.prompt_tokens or 0) // server.chunk_size for r in data.requests if r.ok)


async def _empty_l1(server: Server, salt: str) -> str:
    """Drops the run's own objects from L1 by the names of its records. Raises RunStopped where that cannot be done."""
    looked, why = await asyncio.to_thread(own_records.try_find, server.stores, salt)
    keys = looked.keys([salt]) if looked is not None else []
    if not keys:
        text = f"L1 could not be emptied of the run's own records: {why or 'none of them is on disk'}"
        raise RunStopped(Finding("l1_not_emptied", "invalid", text, fixes.FILES))
    try:
        answer = await server.client.delete_l1(keys)
    except TargetError as error:
        text = f"L1 could not be emptied of the run's own records: {error.detail}"
        raise RunStopped(Finding("l1_not_emptied", "invalid", text, fixes.SERVER_DOWN)) from error
    return f"L1 emptied of {answer.deleted} of the run's own objects after it"


def _prove(work: Work, side: Side, data: PhaseData, *, emptied: bool) -> None:
    """What the measured pass must show, or the number it gives is of something else."""
    tokens = data.tokens
    where = f"{side.title}, run {data.repeat}"
    if emptied and work.once and tokens.l0:
        text = f"{where}: the GPU cache served {tokens.l0:,} tokens although it had been emptied or the salts were new"
        work.findings.append(Finding("l0_not_empty", "invalid", text, fixes.RESET_LIES))
    if side.fresh_salts and tokens.external:
        text = f"{where}: {tokens.external:,} tokens came back under a salt that was never used before"
        work.findings.append(Finding("salt_ignored", "invalid", text, fixes.SALT))
    if side.server is None or side.fresh_salts or not tokens.reachable:
        return
    if tokens.share is not None and tokens.share < 0.5:
        share = f"{tokens.share * 100:.0f} % of the tokens that can come back did"
        work.findings.append(Finding("little_came_back", "warning", f"{where}: only {share}", fixes.USED))


# restarts


async def restarts(work: Work) -> None:
    """Cold start, restart with records, and the control: a restart with nothing stored for these prompts."""
    assert work.restart is not None
    side = work.b
    work.data.measured_from = 1
    items = work.plan.first
    again = [Planned(p.key, p.pieces, p.tokens, p.text) for p in items]
    for repeat in range(1, (work.request.repeats or 1) + 1):
        salt = work.salt(side, repeat)
        steps: tuple[tuple[str, Sequence[Planned], str], ...] = (
            ("cold_start", items, salt),
            ("with_records", again, salt),
            ("empty_store", items, work.salt(side, repeat, fresh=True)),
        )
        for name, prompts, used in steps:
            await work.restart(side)
            data = await work.conduct.phase(
                side,
                repeat,
                name,
                prompts,
                salt=used,
                engines=side.engines[:1],
                sending=_sequential(work),
                l0_empty=True,
            )
            await _drained(work, side, data, used)


# accumulation


async def accumulation(work: Work) -> None:
    """Cold requests, and the record files that they leave."""
    side = work.b
    work.data.measured_from = 1
    server = side.server
    assert server is not None
    salt = work.salt(side, 1)
    data = await work.conduct.phase(
        side, 1, "first", work.plan.first, salt=salt, engines=side.engines[:1], sending=_sequential(work), l0_empty=True
    )
    await _drained(work, side, data, salt)
    looked, why = await asyncio.to_thread(own_records.try_find, server.stores, salt)
    answered = sum(r.ok for r in data.requests)
    mine = [] if looked is None else [r for r in looked.records if r.key.cache_salt == salt]
    expected, how = _expected_files(side, data)
    work.data.files = {
        "requests": answered,
        "files": len(mine),
        "bytes": sum(r.size for r in mine),
        "files_per_request": len(mine) / answered if answered and looked is not None else None,
        "expected_per_request": expected,
        "expectation": how if looked is not None else f"the record files could not be counted: {why}",
    }
    if looked is None:
        work.findings.append(Finding("files_not_counted", "invalid", str(work.data.files["expectation"]), fixes.FILES))


def _expected_files(side: Side, data: PhaseData) -> tuple[int | None, str]:
    """⌊prompt ÷ chunk⌋ × object groups × ranks of one request, and how that was reckoned."""
    server, layout = side.server, side.engines[0].facts.layout
    tokens = next((r.prompt_tokens for r in data.requests if r.ok), None)
    if server is None or server.chunk_size is None or tokens is None:
        return None, "the chunk size is not known"
    if layout is None:
        return None, "the layout is not known, so neither are object groups and ranks"
    groups, ranks = max(1, len(layout.groups)), max(1, layout.world_size)
    chunks = tokens // server.chunk_size
    return chunks * groups * ranks, f"⌊{tokens:,} ÷ {server.chunk_size:,}⌋ × {groups} groups × {ranks} ranks"


# lookups


async def lookups(work: Work) -> None:
    """Lookups of absent keys, with the directory as it is and filled to each size."""
    assert work.filler is not None and work.request.lookup is not None
    wanted = work.request.lookup
    work.data.measured_from = 0
    filler = work.filler  # what it wrote is taken away by `execution`, whatever ends the run
    present = await asyncio.to_thread(filler.count)
    sizes = sorted(set(wanted.records)) if wanted.allow_fill else []
    missing = await asyncio.to_thread(filler.short_of, max(sizes, default=0) - present)
    if missing:
        text = f"the store's file system lacks {missing:,} inodes for {sizes[-1]:,} records"
        raise RunStopped(Finding("no_inodes", "error", text, fixes.INODES))
    await _lookup_point(work, 0, present)
    for number, size in enumerate((size for size in sizes if size > present), start=1):
        await work.conduct.log.stage(f"writing empty records: {size:,} in all")
        await asyncio.to_thread(filler.fill, size - present)
        await _lookup_point(work, number, size)


async def _lookup_point(work: Work, number: int, records: int) -> None:
    side = work.b
    engine = side.engines[0]
    count = work.request.lookup.lookups if work.request.lookup is not None else 1
    items = [Planned(f"l{number}n{i}", work.plan.first[i % len(work.plan.first)].pieces) for i in range(count)]
    before = await engine_metrics(engine)
    data = await work.conduct.phase(
        side,
        number,
        "first",
        items,
        salt=work.salt(side, number),
        engines=[engine],
        sending=_sequential(work),
        l0_empty=True,
    )
    mean, source = _lookup_mean(engine, before, await engine_metrics(engine))
    middle = spread([r.ttft * 1000 for r in data.requests if r.ok and r.ttft is not None]).median
    work.data.lookups.append(
        {"records": records, "lookups": count, "mean_ms": mean, "ttft_median_ms": middle, "source": source}
    )


def _lookup_mean(engine: Engine, before: EngineMetrics | None, after: EngineMetrics | None) -> tuple[float | None, str]:
    if before is None or after is None or after.lookup_seconds_count is None or after.lookup_seconds_sum is None:
        return None, f"the engine {engine.target.name} does not time its lookups"
    count = after.lookup_seconds_count - (before.lookup_seconds_count or 0.0)
    seconds = after.lookup_seconds_sum - (before.lookup_seconds_sum or 0.0)
    return (seconds / count * 1000, "engine histogram") if count > 0 else (None, "no lookup was counted")


FORMS: dict[str, Callable[[Work], Awaitable[None]]] = {
    "two_pass": two_pass,
    "request_rate": request_rate,
    "restart": restarts,
    "accumulation": accumulation,
    "lookup": lookups,
}
