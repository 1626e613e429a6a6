"""What the counters say of a store, put together for people: written against read back, and records per request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from app.clock import Clock, iso
from app.errors import NotFound
from app.fleet.service import FleetService
from app.fleet.targets import StoreTarget
from app.lmcache.layouts import KVLayout
from app.records import traffic
from app.records.inventory_file import Cohort, Inventory
from app.records.knowledge import Knowledge, KnowledgeSource
from app.records.schemas import Count
from app.records.store_summary import adapters_of
from app.records.timeline import NS
from app.records.traffic_schemas import NeverReadView, ReadBackView, RequestRecordsView, TrafficView
from app.sizes import disk_size
from app.telemetry.counted import Span
from app.telemetry.service import TelemetryService

#: How far back counters are summed, seconds.
_EVER = 90 * 86_400.0
_SOURCE = "the servers' own counters (lmcache_mp_l2_store_completed…, lmcache_mp_l2_prefetch_load_completed…)"
#: A count is shown for this long; one that somebody looked at lately is made again before it is that old.
_KEPT_SECONDS = 90.0
_LATELY_SECONDS = 600.0
_SHARED = "a server of this store writes to other places, too; its counters are of all of them"
_REQUESTS_SOURCE = "the engines' own counters (vllm:request_prompt_tokens, vllm:request_generation_tokens) and "


class TrafficDesk:
    """Reads samples and the inventory; walks nothing and asks nobody."""

    def __init__(
        self,
        clock: Clock,
        fleet: FleetService,
        telemetry: TelemetryService,
        knowledge: KnowledgeSource,
        inventory_of: Callable[[int], Inventory | None],
    ) -> None:
        self._clock = clock
        self._fleet = fleet
        self._telemetry = telemetry
        self._knowledge = knowledge
        self._inventory_of = inventory_of
        self._kept: dict[int, _Kept] = {}
        self._lock = threading.Lock()

    def view(self, store_id: int) -> TrafficView:
        """At most a minute and a half old: days of samples, and of a large store all records since, are counted for it.

        Raises NotFound.
        """
        return self.of(self._fleet.store_target(store_id))

    def of(self, store: StoreTarget) -> TrafficView:
        """`view` of a store that is known."""
        store_id = store.id
        now, scanned_at = self._clock(), self._scanned_at(store_id)
        with self._lock:
            kept = self._kept.get(store_id)
        if kept is not None and kept.scanned_at == scanned_at and 0 <= now - kept.counted_at <= _KEPT_SECONDS:
            kept.asked_at = now
            return kept.view
        found = self._view(store, now)
        with self._lock:
            self._kept[store_id] = _Kept(scanned_at, now, now, found)
        return found

    def count_anew(self) -> None:
        """Counts again what somebody looked at lately, so that its page need not: called by the scheduler."""
        now = self._clock()
        with self._lock:
            asked = {ident: kept.asked_at for ident, kept in self._kept.items()}
        for ident, at in asked.items():
            found = None
            if 0 <= now - at <= _LATELY_SECONDS:
                with suppress(NotFound):  # it was forgotten
                    found = self._view(self._fleet.store_target(ident), now)
            with self._lock:
                if found is None:
                    self._kept.pop(ident, None)
                else:
                    self._kept[ident] = _Kept(self._scanned_at(ident), now, at, found)

    def _scanned_at(self, store_id: int) -> float | None:
        inventory = self._inventory_of(store_id)
        if inventory is None:
            return None
        with inventory:
            at = inventory.meta().get("scanned_at")
        return None if at is None else float(at)

    def _view(self, store: StoreTarget, now: float) -> TrafficView:
        known = self._knowledge.recent(store, self._knowledge.stand(store))
        servers = self._telemetry.counted("server", store.server_ids, traffic.SERVER_NAMES, since=now - _EVER)
        elsewhere = [a for a in adapters_of(store, self._telemetry) if not a.listed]
        only = _SHARED if elsewhere else ""
        found = traffic.quiet(servers, now, self._knowledge.fresh_seconds)
        inventory = self._inventory_of(store.id)
        if inventory is None:
            held = _Held()
        else:
            with inventory:
                held = _held(inventory, found, known)
        return TrafficView(
            store_id=str(store.id),
            counted_at=iso(now) or "",
            read_back=read_back(traffic.flow(servers), held, only),
            never_read=never_read(found, held),
            requests=self._requests(store, known, servers, held, only, now),
        )

    def _requests(
        self,
        store: StoreTarget,
        known: Knowledge,
        servers: dict[int, list[Span]],
        held: _Held,
        only: str,
        now: float,
    ) -> RequestRecordsView:
        engines = [e for ident in store.server_ids for e in self._fleet.engine_targets(ident)]
        if not engines:
            return RequestRecordsView(state="unknown", reason="no engine of its servers is registered in the panel")
        factors = live_factors(known, held.groups)
        if isinstance(factors, str):
            return RequestRecordsView(state="unknown", reason=factors)
        since = now - traffic.REQUEST_WINDOW
        spans = self._telemetry.counted("engine", [e.id for e in engines], traffic.ENGINE_NAMES, since=since)
        # From when on both sides count: a request whose records were not counted would be missed.
        sides = [traffic.begins(found, traffic.STORED) for found in servers.values()]
        sides += [traffic.begins(found, traffic.ENGINE_NAMES[0]) for found in spans.values()]
        start = max([since, *(at for at in sides if at is not None)])
        told = traffic.requests(spans, factors.chunk, start, now)
        windowed = {
            ident: [span for span in found if span.end > start and span.start < now] for ident, found in servers.items()
        }
        silent = sum(1 for found in spans.values() if not found)
        note = f"{silent} of {len(engines)} engines told nothing in this window" if silent else None
        return request_records(told, factors, traffic.flow(windowed), only, note)


@dataclass
class _Kept:
    scanned_at: float | None
    counted_at: float
    asked_at: float
    view: TrafficView


@dataclass(frozen=True)
class _Held:
    """What of the inventory the counters are held against. `since` and `after`: records written since then.

    `mean_bytes`, `least_bytes`, `most_bytes`: of one record.
    """

    mean_bytes: float | None = None
    least_bytes: int | None = None
    most_bytes: int | None = None
    scanned_at: float | None = None
    written_since: Count | None = None
    written_after: Count | None = None
    groups: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Factors:
    """Tokens of a chunk, and how many records a chunk becomes."""

    chunk: int
    groups: int
    ranks: int


def live_factors(known: Knowledge, groups_on_disk: frozenset[int]) -> Factors | str:
    """From the live layouts where they agree; else why not."""
    found: set[Factors] = set()
    for line in known.timeline.models.values():
        for layout in (line.layouts[number] for number in line.live):
            groups = _groups(layout, groups_on_disk)
            if layout.chunk_size is None or not groups:
                return "chunk size or object groups of the live layout are not known"
            found.add(Factors(layout.chunk_size, groups, layout.world_size))
    if not found:
        return "no live layout is known, so how many records a request should leave is not"
    if len(found) > 1:
        return "several layouts are live, with other chunk sizes, groups or ranks: their requests cannot be told apart"
    return found.pop()


def _groups(layout: KVLayout, on_disk: frozenset[int]) -> int:
    # A server under engine_driven tells no groups: those on the disk are what it writes.
    return len(layout.groups) or len(on_disk)


def _held(inventory: Inventory, found: traffic.Quiet | str, known: Knowledge) -> _Held:
    owners = inventory.owners()
    cohorts = [c for c in inventory.cohorts().values() if c.records > 0 and not owners[c.owner].temporary]
    records, size = sum(c.records for c in cohorts), sum(c.bytes for c in cohorts)
    at = inventory.meta().get("scanned_at")
    since = after = None
    if not isinstance(found, str):
        since = written_since(inventory, cohorts, round(found.since * NS) + known.context.margin)
        after = written_since(inventory, cohorts, round(found.last_load * NS) + known.context.margin)
    return _Held(
        mean_bytes=size / records if records else None,
        least_bytes=min((c.min_size for c in cohorts), default=None),
        most_bytes=max((c.max_size for c in cohorts), default=None),
        scanned_at=None if at is None else float(at),
        written_since=since,
        written_after=after,
        groups=frozenset(
            group for owner in owners.values() if not owner.temporary and (group := owner.group) is not None
        ),
    )


def written_since(inventory: Inventory, cohorts: Sequence[Cohort], since_ns: int) -> Count:
    """Records whose time of writing is later; indexes answer."""
    records = size = 0
    for cohort in cohorts:
        if cohort.max_mtime <= since_ns:
            continue
        total = "sum(size)" if cohort.size is None else "NULL"
        count, summed = inventory.db.execute(
            f"SELECT count(*), {total} FROM record WHERE cohort=? AND mtime>?",  # noqa: S608
            (cohort.id, since_ns),
        ).fetchone()
        records += count
        size += (summed or 0) if cohort.size is None else count * cohort.size
    return Count(records=records, bytes=size)


def read_back(flow: traffic.Flow, held: _Held, only: str) -> ReadBackView:
    """Written against read back. Bytes read back are records times the mean record on the disk: LMCache counts none."""
    if flow.start is None or flow.end is None:
        none = "no server of this store has told its L2 counters yet (two polls are needed)"
        return ReadBackView(state="unknown", reason=none, source=_SOURCE)
    reason = only or None
    if flow.stored is None and flow.loaded is None:
        reason = "a server of this store does not count what it stores in L2 and reads from it"
    mean = held.mean_bytes
    written = flow.stored_bytes
    if written is None and flow.stored is not None and mean is not None:
        written = flow.stored * mean
    elif flow.stored == 0:
        written = 0.0
    read = 0.0 if flow.loaded == 0 else flow.loaded * mean if flow.loaded is not None and mean is not None else None
    return ReadBackView(
        state="value" if not reason else "unknown",
        reason=reason,
        window_from=iso(flow.start),
        window_until=iso(flow.end),
        covered_seconds=flow.covered,
        written_records=_whole(flow.stored),
        written_bytes=_whole(written),
        written_estimated=flow.stored_bytes is None and bool(written),
        read_records=_whole(flow.loaded),
        read_bytes=_whole(read),
        read_bytes_bounds=_bounds(flow.loaded, held),
        read_bytes_note=_estimate(flow.loaded, held),
        reads_per_record=flow.loaded / flow.stored if flow.loaded is not None and flow.stored else None,
        mean_record_bytes=_whole(mean),
        source=_SOURCE,
    )


def _bounds(loaded: float | None, held: _Held) -> list[int] | None:
    if not loaded or held.least_bytes is None or held.most_bytes is None:
        return None
    return [round(loaded * held.least_bytes), round(loaded * held.most_bytes)]


def _estimate(loaded: float | None, held: _Held) -> str | None:
    """The rule behind the bytes read back, and how far off they can be."""
    bounds = _bounds(loaded, held)
    if bounds is None or held.mean_bytes is None:
        return None
    rule = (
        "an estimate, since LMCache counts records read from L2 and not their bytes: "
        f"records read × {disk_size(held.mean_bytes)}, the mean of those on the disk at the last scan"
    )
    gone = "records read and gone since may have had other sizes"
    if held.least_bytes == held.most_bytes:
        return f"{rule}. All of them have that size, so it is off only as far as {gone}"
    return (
        f"{rule}. If only the smallest were read it is {disk_size(bounds[0])}, if only the largest "
        f"{disk_size(bounds[1])}; {gone}"
    )


def never_read(found: traffic.Quiet | str, held: _Held) -> NeverReadView:
    """At least so many of the records on the disk were never read back: each read reads one record at most."""
    if isinstance(found, str):
        return NeverReadView(state="unknown", reason=found, source=_SOURCE)
    since, after = held.written_since, held.written_after
    if since is None or after is None:
        return NeverReadView(state="unknown", reason="the store was never scanned", source=_SOURCE)
    left = max(0, since.records - round(found.loads))
    best = max(left, after.records)
    return NeverReadView(
        state="value",
        counted_since=iso(found.since),
        written_records=since.records,
        read_records=round(found.loads),
        last_read_at=iso(found.last_load) if found.loads else None,
        at_least_records=best,
        at_least_bytes=after.bytes if after.records >= left else None,
        scanned_at=iso(held.scanned_at),
        source=_SOURCE,
    )


def request_records(
    told: traffic.Requests | None, factors: Factors, flow: traffic.Flow, only: str, note: str | None
) -> RequestRecordsView:
    """Records per request as measured beside ⌊tokens / chunk⌋ × object groups × ranks."""
    base = RequestRecordsView(
        state="unknown",
        chunk_tokens=factors.chunk,
        object_groups=factors.groups,
        ranks=factors.ranks,
        source=_REQUESTS_SOURCE + _SOURCE,
    )
    if told is None:
        return base.model_copy(update={"reason": "no engine has told its requests yet (two polls are needed)"})
    each = factors.groups * factors.ranks
    prompt, output = told.prompt_chunks.times(each), told.output_chunks.times(each)
    stored = None if only else flow.stored
    reason = None
    if stored is None:
        reason = only or "a server of this store does not count what it stores in L2"
    return base.model_copy(
        update={
            "state": "no_traffic" if not told.requests else "value" if stored is not None else "unknown",
            "reason": reason,
            "note": note,
            "window_from": iso(told.start),
            "window_until": iso(told.end),
            "requests": _whole(told.requests),
            "prompt_tokens": _whole(told.prompt_tokens),
            "generated_tokens": _whole(told.generated_tokens),
            "computed_prompt_tokens": _whole(told.computed_tokens),
            "expected_prompt_records": [round(prompt.least), round(prompt.most)],
            "expected_output_records": [round(output.least), round(output.most)],
            "stored_records": _whole(stored),
            "stored_per_request": stored / told.requests if stored is not None and told.requests else None,
            "expected_per_request": [
                (prompt.least + output.least) / told.requests,
                (prompt.most + output.most) / told.requests,
            ]
            if told.requests
            else None,
            "sentence": sentence(stored, prompt + output),
        }
    )


def sentence(stored: float | None, expected: traffic.Bounds) -> str | None:
    """What the comparison means."""
    if stored is None:
        return None
    if stored > expected.most:
        return (
            "more than these requests account for: an engine that is not registered here writes, too, or requests are "
            "still running"
        )
    if stored >= expected.least:
        return "as many as a store that held nothing of them before gets"
    return "fewer than their lengths say, as it is where prompts repeat: what is stored already is not stored again"


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
