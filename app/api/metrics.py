"""The panel's own /metrics. State is collected by a background job; a scrape only prints what was collected.

Names and labels follow the Prometheus rules: base units, `_total` on counters, labels bounded by the number of
registered targets and of record classes. A value that is not known has no sample. docs/METRICS.md lists every name.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from app import __version__
from app.acceptance.tables import AcceptanceRun
from app.alerts.model import SEVERITIES
from app.cleanup.tables import CleanupRun
from app.clock import parse_iso
from app.errors import NotSignedIn, TierkeeperError
from app.fleet.tables import Engine, Server, Store
from app.scheduling.tables import Firing
from app.services import Services
from app.shapes import Page

HEALTH_STATES = ("healthy", "degraded", "unhealthy", "unreachable", "unknown")

_PAGE = 50
_T = TypeVar("_T")

router = APIRouter()


@router.get("/metrics", include_in_schema=False)
def metrics(request: Request) -> Response:
    """Prometheus or OpenMetrics text, as the Accept header asks."""
    services: Services = request.app.state.services
    wanted = services.settings.metrics_token
    if wanted is not None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), wanted.get_secret_value().encode()):
            raise NotSignedIn("send 'Authorization: Bearer' with the value of TIERKEEPER_METRICS_TOKEN")
    panel: PanelMetrics = request.app.state.metrics
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(panel.registry), media_type=content_type)


class PanelMetrics(Collector):
    """Holds the families collected last; `refresh` is the background job."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = Lock()
        self._families: list[Metric] = []
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            return list(self._families)

    def refresh(self) -> None:
        """Collects everything anew; rooms that cannot answer just now leave their families out."""
        started = time.perf_counter()
        families = [_build_info()]
        for part in (_targets, _stores, _cleanup, _acceptance, _schedules, _alarms):
            try:
                families.extend(part(self._services))
            except TierkeeperError:
                continue
        cost = GaugeMetricFamily("tierkeeper_collect_duration_seconds", "Time the last collection of metrics took.")
        cost.add_metric([], time.perf_counter() - started)
        with self._lock:
            self._families = [*families, cost]


def _build_info() -> Metric:
    return InfoMetricFamily("tierkeeper_build", "Version of the panel.", value={"version": __version__})


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tierkeeper_{name}", text, labels=labels)


def _all(page_of: Callable[..., Page[_T]]) -> Iterator[_T]:
    """Every item of a list, a few at a time: the views of a whole fleet are tens of megabytes."""
    token: str | None = None
    while True:
        page = page_of(page_size=_PAGE, page_token=token)
        yield from page.items
        token = page.next_page_token
        if token is None:
            return


def _targets(services: Services) -> list[Metric]:
    up = _gauge("target_up", "1 when the last poll of the target was answered.", "kind", "target")
    health = _gauge("target_health", "1 for the state the target is in.", "kind", "target", "state")
    age = _gauge("target_scrape_age_seconds", "Age of the values shown for the target.", "kind", "target")
    used = _gauge("l1_used_bytes", "Bytes used in L1, as the cache server says.", "target")
    capacity = _gauge("l1_capacity_bytes", "Size of L1, as the cache server says.", "target")
    registered = _gauge("engines_registered", "Engines that the cache server has registered.", "target")
    hit = _gauge("hit_rate_ratio", "Token hit rate of lookups over the window; absent without traffic.", "target")
    now = services.clock()
    for server in _all(services.fleet.list_servers):
        up.add_metric(["server", server.name], float(server.health.http_up is True))
        for state in HEALTH_STATES:
            health.add_metric(["server", server.name, state], float(server.health.state == state))
        if server.scraped_at:
            age.add_metric(["server", server.name], now - parse_iso(server.scraped_at))
        if server.l1.used_bytes is not None:
            used.add_metric([server.name], server.l1.used_bytes)
        if server.l1.capacity_bytes is not None:
            capacity.add_metric([server.name], server.l1.capacity_bytes)
        if server.health.engines_registered is not None:
            registered.add_metric([server.name], server.health.engines_registered)
        if server.hit_rate.value is not None:
            hit.add_metric([server.name], server.hit_rate.value)
    for engine in _all(services.fleet.list_engines):
        up.add_metric(["engine", engine.name], float(engine.health.http_up is True))
        for state in HEALTH_STATES:
            health.add_metric(["engine", engine.name, state], float(engine.health.state == state))
        if engine.scraped_at:
            age.add_metric(["engine", engine.name], now - parse_iso(engine.scraped_at))
    return [up, health, age, used, capacity, registered, hit]


def _stores(services: Services) -> list[Metric]:
    records = _gauge("store_records", "Records of the store by class, at the last scan.", "store", "class")
    size = _gauge("store_record_bytes", "Bytes of records of the store by class, at the last scan.", "store", "class")
    free = _gauge("store_free_bytes", "Free bytes of the store's file system.", "store")
    used = _gauge("store_used_bytes", "Used bytes of the store's file system, by whatever.", "store")
    room = _gauge("store_filesystem_bytes", "Size of the store's file system, reserved blocks included.", "store")
    scanned = _gauge("store_scanned_timestamp_seconds", "When the last complete scan of the store ended.", "store")
    for store in _all(services.fleet.list_stores):
        try:
            summary = services.records.summary(int(store.id))
        except TierkeeperError:
            continue
        if summary.scanned_at is None:
            continue
        scanned.add_metric([store.name], parse_iso(summary.scanned_at))
        for name, count in summary.by_class.items():
            records.add_metric([store.name, name], count.records)
            size.add_metric([store.name, name], count.bytes)
        if summary.filesystem and summary.filesystem.free_bytes is not None:
            free.add_metric([store.name], summary.filesystem.free_bytes)
        if summary.filesystem and summary.filesystem.used_bytes is not None:
            used.add_metric([store.name], summary.filesystem.used_bytes)
        if summary.filesystem and summary.filesystem.total_bytes is not None:
            room.add_metric([store.name], summary.filesystem.total_bytes)
    return [records, size, free, used, room, scanned]


def _cleanup(services: Services) -> list[Metric]:
    records = CounterMetricFamily("tierkeeper_cleanup_removed_records", "Records removed by runs.", labels=["store"])
    size = CounterMetricFamily("tierkeeper_cleanup_removed_bytes", "Bytes removed by runs.", labels=["store"])
    runs = CounterMetricFamily("tierkeeper_cleanup_runs", "Finished runs by verdict.", labels=["verdict"])
    waiting = _gauge("quarantine_bytes", "Bytes waiting in quarantine; they count as used.", "store")
    sums = (
        func.sum(CleanupRun.removed_records),
        func.sum(CleanupRun.removed_bytes),
        func.sum(CleanupRun.waiting_bytes),
    )
    with services.db.read() as session:
        by_store = session.execute(
            select(Store.name, *sums).join(CleanupRun, CleanupRun.store_id == Store.id).group_by(Store.name)
        ).all()
        verdicts = session.execute(
            select(CleanupRun.verdict, func.count()).where(CleanupRun.verdict.is_not(None)).group_by(CleanupRun.verdict)
        ).all()
    for store, removed, removed_bytes, quarantined in by_store:
        records.add_metric([store], removed or 0)
        size.add_metric([store], removed_bytes or 0)
        waiting.add_metric([store], quarantined or 0)
    for verdict, count in verdicts:
        runs.add_metric([verdict or ""], count)
    return [records, size, runs, waiting]


def _acceptance(services: Services) -> list[Metric]:
    runs = CounterMetricFamily("tierkeeper_acceptance_runs", "Finished acceptance runs.", labels=["engine", "verdict"])
    passed = _gauge("acceptance_last_pass_timestamp_seconds", "End of the last acceptance run that passed.", "engine")
    with services.db.read() as session:
        rows = session.execute(
            select(Engine.name, AcceptanceRun.verdict, func.count(), func.max(AcceptanceRun.finished_at))
            .join(Engine, Engine.id == AcceptanceRun.engine_id)
            .where(AcceptanceRun.verdict.is_not(None))
            .group_by(Engine.name, AcceptanceRun.verdict)
        ).all()
    last_pass: dict[str, float] = {}
    for engine, verdict, count, finished in rows:
        runs.add_metric([engine, verdict or ""], count)
        if verdict in ("pass", "pass_with_near_ties") and finished:
            last_pass[engine] = max(finished, last_pass.get(engine, 0.0))
    for engine, at in last_pass.items():
        passed.add_metric([engine], at)
    return [runs, passed]


def _schedules(services: Services) -> list[Metric]:
    firings = CounterMetricFamily("tierkeeper_schedule_firings", "Firings of schedules by outcome.", labels=["outcome"])
    servers = _gauge("targets", "Registered targets.", "kind")
    with services.db.read() as session:
        outcomes = session.execute(select(Firing.outcome, func.count()).group_by(Firing.outcome)).all()
        counts = [
            (kind, session.scalar(select(func.count()).select_from(table)))
            for kind, table in (("server", Server), ("engine", Engine), ("store", Store))
        ]
    for outcome, count in outcomes:
        firings.add_metric([outcome], count)
    for kind, registered in counts:
        servers.add_metric([kind], registered or 0)
    return [firings, servers]


def _alarms(services: Services) -> list[Metric]:
    firing = _gauge("alerts_firing", "Alarms that fire, not explained by another one and not silenced.", "severity")
    one = _gauge("alert_firing", "1 for each alarm that fires.", "rule", "severity", "kind", "target", "part")
    evaluated = _gauge("alerts_evaluated_timestamp_seconds", "When alarms were evaluated last.")
    waiting = _gauge("notifications_waiting", "Messages in the outbox.", "notifier")
    failing = _gauge("notifier_failing", "1 when the last attempt to send a message failed.", "notifier")
    counts = services.alerts.counts()
    for severity in SEVERITIES:
        firing.add_metric([severity], getattr(counts, severity))
    others = []
    for state in ("pending", "acknowledged", "held_back", "silenced"):
        other = _gauge(f"alerts_{state}", f"Alarms that are {state.replace('_', ' ')}.")
        other.add_metric([], getattr(counts, state))
        others.append(other)
    for alert in services.alerts.active():
        if alert.state == "firing" and alert.silenced_by is None:
            one.add_metric([alert.rule, alert.severity, alert.target_kind, alert.target_name, alert.part], 1.0)
    at = services.alerts.evaluated_at
    if at is not None:
        evaluated.add_metric([], at)
    for notifier in _all(services.alerts.notifiers.list_notifiers):
        waiting.add_metric([notifier.name], notifier.waiting)
        failing.add_metric([notifier.name], float(notifier.last_error is not None))
    return [firing, *others, one, evaluated, waiting, failing]
