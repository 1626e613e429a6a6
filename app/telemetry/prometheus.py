"""History from before the panel's own, out of a Prometheus server that scrapes the same targets.

The panel asks in PromQL for what the targets themselves export (`instance` is the target's host and port, as Prometheus
writes it), and else for what the panel exports (`target` is its name). Failures are told, never raised: a chart then
has a gap with a reason.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from app.errors import TargetError, TierkeeperError
from app.wire import fields
from app.wire.transport import TargetHttp

DEADLINE_SECONDS = 10.0
#: What Prometheus itself allows in one answer.
MAX_POINTS = 11_000
Point = tuple[float, float | None]

_HITS = "lmcache_mp_lookup_{}_tokens_total"
_REQUESTED = _HITS.format("requested")
_VLLM = "vllm:{}"


@dataclass(frozen=True)
class Older:
    """What Prometheus gave. `state`: value, nothing (it knows no such series then), unknown (with `reason`)."""

    state: Literal["value", "nothing", "unknown"]
    points: tuple[Point, ...] = ()
    reason: str | None = None
    query: str | None = None


@dataclass(frozen=True)
class Prometheus:
    """One Prometheus server. `clients` makes the client of an address; tests put their transports in there."""

    url: str
    token: str | None = None
    clients: Callable[[str, str | None], TargetHttp] = lambda url, token: TargetHttp(
        url, api_key=token, connect_timeout=2.0, read_timeout=DEADLINE_SECONDS
    )

    def read(self, query: str, start: float, end: float, step: float) -> Older:
        """One point for each bucket of `step` seconds that begins in [start, end), at the bucket's beginning."""
        if (end - start) / step > MAX_POINTS:
            return Older("unknown", reason=f"more than {MAX_POINTS} points; choose a longer step", query=query)
        try:
            return asyncio.run(self._read(query, start, end, step))
        except TierkeeperError as error:
            return Older("unknown", reason=f"Prometheus: {error.detail}", query=query)

    async def _read(self, query: str, start: float, end: float, step: float) -> Older:
        # Prometheus looks back from the moment asked: a bucket's value is what it says at the bucket's end.
        ask = {"query": query, "start": f"{start + step:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        async with self.clients(self.url, self.token) as client:
            answer = await client.fetch("GET", "/api/v1/query_range", params=ask, deadline=DEADLINE_SECONDS)
            if answer.status != 200:
                raise answer.error()
            body = fields.mapping(answer.json())
        if body.get("status") != "success":
            said = fields.text(body.get("error"), limit=200) or "no success and no error"
            return Older("unknown", reason=f"Prometheus: {said}", query=query)
        found = _points(fields.mapping(body.get("data")).get("result"), step)
        if found is None:
            raise TargetError("unreadable", "the answer is no matrix of one series", http_status=200)
        return Older("value" if any(v is not None for _, v in found) else "nothing", tuple(found), query=query)


def _points(result: object, step: float) -> list[Point] | None:
    """The points of the only series; [] where there is none, None where the answer has another form."""
    if not isinstance(result, list) or len(result) > 1:
        return None
    if not result:
        return []
    values = fields.mapping(result[0]).get("values")
    if not isinstance(values, list):
        return None
    found: list[Point] = []
    for item in values:
        if not isinstance(item, list | tuple) or len(item) != 2:
            return None
        try:
            at, value = float(item[0]), float(item[1])
        except (TypeError, ValueError):
            return None
        found.append((at - step, value if math.isfinite(value) else None))
    return found


def merged(own: Sequence[Point], older: Sequence[Point]) -> list[Point]:
    """Our own points, and what Prometheus says where we know nothing; by time."""
    known = dict(older)
    points = [(at, known.pop(at, None) if value is None else value) for at, value in own]
    times = {at for at, _ in own}
    return sorted([*points, *((at, value) for at, value in known.items() if at not in times)])


def query_of(kind: str, metric: str, url: str, name: str, step: float) -> str | None:
    """The PromQL of one metric of one target over buckets of `step` seconds; None where Prometheus has none like it."""
    templates = _QUERIES.get(kind, {}).get(metric)
    if not templates:
        return None
    labels = {
        "$I": f'instance="{_quoted(_instance(url))}"',
        "$T": f'target="{_quoted(name)}"',
        "$S": f'store="{_quoted(name)}"',
        "$W": f"[{max(1, round(step))}s]",
    }
    return " or ".join(_filled(template, labels) for template in templates)


def _filled(template: str, labels: Mapping[str, str]) -> str:
    """Each place filled once: a name that holds a `$` is no place."""
    return re.sub(r"\$[ITSW]", lambda found: labels[found[0]], template)


def _instance(url: str) -> str:
    """``host:port`` as in the label that Prometheus gives to a scraped target."""
    parts = urlsplit(url)
    return f"{parts.hostname or ''}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _mean(series: str, panel: str | None = None) -> tuple[str, ...]:
    own = f"sum(avg_over_time({series}{{$I}}$W))"
    return (own,) if panel is None else (own, f"sum(avg_over_time({panel}{{$T}}$W))")


def _rate(series: str, more: str = "") -> str:
    return f"sum(rate({series}{{$I{more}}}$W))"


def _share(part: str) -> str:
    return f"{_rate(_HITS.format(part))} / {_rate(_REQUESTED)}"


def _prompt(source: str) -> str:
    return _rate(_VLLM.format("prompt_tokens_by_source_total"), f',source="{source}"')


_QUERIES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "server": {
        "up": ("min(min_over_time(up{$I}$W))", 'min(min_over_time(tierkeeper_target_up{kind="server",$T}$W))'),
        "l1_used_bytes": _mean("lmcache_mp_l1_memory_usage_bytes", "tierkeeper_l1_used_bytes"),
        "l1_usage_ratio": _mean("lmcache_mp_l1_usage_ratio"),
        "l2_usage_bytes": _mean("lmcache_mp_l2_usage_bytes"),
        "engines_registered": ("sum(avg_over_time(tierkeeper_engines_registered{$T}$W))",),
        "hit_rate": (_share("hit"), "avg(avg_over_time(tierkeeper_hit_rate_ratio{$T}$W))"),
        "l1_hit_rate": (_share("hit_l1"),),
        "l2_hit_rate": (_share("hit_l2"),),
        "requested_tokens_per_second": (_rate(_REQUESTED),),
        "hit_tokens_per_second": (_rate(_HITS.format("hit")),),
        "l1_hit_tokens_per_second": (_rate(_HITS.format("hit_l1")),),
        "l2_hit_tokens_per_second": (_rate(_HITS.format("hit_l2")),),
        "l1_written_per_second": (_rate("lmcache_mp_l1_write_chunks_total"),),
        "l1_evicted_per_second": (_rate("lmcache_mp_l1_evicted_chunks_total"),),
        "l2_stored_records_per_second": (_rate("lmcache_mp_l2_store_completed_objects_chunks_total"),),
        "l2_loaded_records_per_second": (_rate("lmcache_mp_l2_prefetch_load_completed_chunks_total"),),
        "retrieves_per_second": (_rate("lmcache_mp_num_finished_retrieves_total"),),
        "cpu_cores": (_rate("process_cpu_seconds_total"),),
        "resident_bytes": _mean("process_resident_memory_bytes"),
    },
    "engine": {
        "up": ("min(min_over_time(up{$I}$W))", 'min(min_over_time(tierkeeper_target_up{kind="engine",$T}$W))'),
        "running": _mean("vllm:num_requests_running"),
        "waiting": _mean("vllm:num_requests_waiting"),
        "kv_usage_ratio": ("max(avg_over_time(vllm:kv_cache_usage_perc{$I}$W))",),
        "local_tokens_per_second": (_prompt("local_cache_hit"),),
        "external_tokens_per_second": (_prompt("external_kv_transfer"),),
        "recomputed_tokens_per_second": (_prompt("local_compute"),),
        "requests_finished_per_second": (_rate("vllm:request_prompt_tokens_count"),),
        "prompt_tokens_finished_per_second": (_rate("vllm:request_prompt_tokens_sum"),),
        "generated_tokens_per_second": (_rate("vllm:request_generation_tokens_sum"),),
        "preemptions_per_second": (_rate("vllm:num_preemptions_total"),),
        "in_process_hit_rate": (
            f"{_rate('lmcache:num_lookup_hits_total')} / {_rate('lmcache:num_lookup_tokens_total')}",
        ),
        "in_process_stored_tokens_per_second": (_rate("lmcache:num_stored_tokens_total"),),
        "in_process_cpu_bytes": _mean("lmcache:local_cache_usage"),
        "in_process_disk_bytes": _mean("lmcache:local_storage_usage"),
        "cpu_cores": (_rate("process_cpu_seconds_total"),),
        "resident_bytes": _mean("process_resident_memory_bytes"),
    },
    "store": {
        "free_bytes": ("sum(avg_over_time(tierkeeper_store_free_bytes{$S}$W))",),
    },
}
