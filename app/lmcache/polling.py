"""One whole poll of a cache server: everything that changes, plus what only a new boot can change when it is new."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from app.errors import TargetError
from app.lmcache.calls import HealthAnswer, LMCacheClient
from app.lmcache.configuration import ServerConfig, with_adapter_status, with_adapter_types
from app.lmcache.layouts import KVLayout
from app.lmcache.metrics import ServerMetrics
from app.lmcache.status import ServerStatus

T = TypeVar("T")


@dataclass(frozen=True)
class ServerReading:
    """What one poll found. Each part is its value or None with a sentence why; nothing is carried over but `config` and
    `version` of the same boot.

    `http_up`: some call was answered, whatever it said. `started_at` and `duration_seconds` are of the monotonic clock
    (`time.perf_counter`), `latency_seconds` is the health check's (else the quickest answered call's).
    `server_date`: the server's clock by its Date header, as in `LMCacheClient.date`.
    """

    started_at: float
    duration_seconds: float
    latency_seconds: float | None
    http_up: bool
    health: HealthAnswer | None
    health_reason: str | None
    status: ServerStatus | None
    status_reason: str | None
    metrics: ServerMetrics | None
    metrics_reason: str | None
    config: ServerConfig | None
    config_reason: str | None
    version: str | None
    version_reason: str | None
    error_kinds: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    server_date: tuple[float, float] | None = None

    @property
    def instance_id(self) -> str | None:
        """The id of this boot: from the metrics, else from the configuration."""
        if self.metrics is not None and self.metrics.instance_id is not None:
            return self.metrics.instance_id
        return self.config.instance_id if self.config is not None else None

    @property
    def process_start_time(self) -> float | None:
        """Epoch seconds, None where no metrics tell it."""
        return self.metrics.process_start_time if self.metrics is not None else None

    @property
    def pushes_metrics(self) -> bool:
        """Whether the metrics go to an OTLP endpoint: then there is no ``/metrics`` and nothing is wrong."""
        return self.metrics is None and self.config is not None and bool(self.config.otlp_endpoint)

    def layouts(self, base_path: str | None = None) -> dict[str, KVLayout]:
        """The registered layouts by context id, completed with version, serde and checksum mode.

        Serde and checksum belong to an adapter: that of `base_path` (the server's name for the directory), or without
        one the value on which all adapters agree.
        """
        if self.status is None:
            return {}
        serde, checksum = self._adapter_options(base_path)
        return {
            context: replace(
                layout, lmcache_version=self.version or layout.lmcache_version, serde=serde, checksum=checksum
            )
            for context, layout in self.status.contexts.items()
        }

    def _adapter_options(self, base_path: str | None) -> tuple[str | None, str | None]:
        adapters = self.config.adapters if self.config is not None else ()
        if base_path is not None:
            adapters = tuple(adapter for adapter in adapters if adapter.base_path == base_path)
        serdes = {adapter.serde for adapter in adapters}
        checksums = {adapter.checksum for adapter in adapters}
        return (serdes.pop() if len(serdes) == 1 else None), (checksums.pop() if len(checksums) == 1 else None)


async def poll_server(client: LMCacheClient, previous: ServerReading | None = None) -> ServerReading:
    """Poll once; never raises for trouble with the target.

    Health, status and metrics are asked at the same time; configuration, adapters and version only where this boot's
    are not known yet: the instance id (else the process start) is new or unknown, or they could not be read before.
    """
    if previous is not None and not client.paths:
        client.paths.update(previous.paths)
    began = time.perf_counter()
    health, status, metrics = await asyncio.gather(
        _try(client.healthcheck),
        _try(partial(client.status, previous.version if previous is not None else None)),
        _try(client.metrics),
    )
    told_before = previous.config if previous is not None else None
    metrics = await _or_beside(client, metrics, told_before)
    config, version = _remembered(previous, metrics.value)
    if config is None or version is None:
        if any(part.answered for part in (health, status, metrics)):
            config, version = await _settings(client, status.value)
            if config.value is not None and told_before is None:
                metrics = await _or_beside(client, metrics, config.value)
        else:
            # nothing answers: a second round would only wait for its timeouts
            config, version = _Part(None, _NOT_ASKED, answered=False), _Part(None, _NOT_ASKED, answered=False)
    parts: dict[str, _Part[Any]] = {
        "health": health,
        "status": status,
        "metrics": metrics,
        "config": config,
        "version": version,
    }
    return ServerReading(
        started_at=began,
        duration_seconds=time.perf_counter() - began,
        latency_seconds=health.value.seconds if health.value is not None else None,
        http_up=any(part.answered for part in (health, status, metrics)),
        health=health.value,
        health_reason=health.reason,
        status=status.value,
        status_reason=status.reason,
        metrics=metrics.value,
        metrics_reason=_explained(metrics, config.value),
        config=config.value,
        config_reason=config.reason,
        version=version.value,
        version_reason=version.reason,
        error_kinds={name: part.kind for name, part in parts.items() if part.kind is not None},
        paths=dict(client.paths),
        server_date=client.date,
    )


_NOT_ASKED = "not asked: the server answered nothing"
_NO_VERSION = "this server tells no version (LMCache before 0.4.3)"


@dataclass(frozen=True, slots=True)
class _Part(Generic[T]):
    value: T | None
    reason: str | None
    kind: str | None = None
    http_status: int | None = None
    answered: bool = True


async def _try(call: Callable[[], Awaitable[T]]) -> _Part[T]:
    """The call is made here: a poll that is cancelled before its turn leaves no coroutine behind."""
    try:
        return _Part(await call(), None)
    except TargetError as error:
        answered = error.http_status is not None
        return _Part(None, error.detail, error.kind, error.http_status, answered)


async def _or_beside(
    client: LMCacheClient, metrics: _Part[ServerMetrics], config: ServerConfig | None
) -> _Part[ServerMetrics]:
    """The metrics of another port, where this server has none on its HTTP port and its configuration names one."""
    port = config.prometheus_port if config is not None else None
    if metrics.http_status != 404 or config is None or not port or port == config.http_port:
        return metrics
    if config.otlp_endpoint or config.metrics_enabled is False:
        return metrics
    found = await _try(partial(client.metrics_beside, port))
    if found.value is not None:
        return found
    return replace(metrics, reason=f"{metrics.reason}; on its Prometheus port {port} neither: {found.reason}")


def _remembered(
    previous: ServerReading | None, metrics: ServerMetrics | None
) -> tuple[_Part[ServerConfig] | None, _Part[str] | None]:
    """Configuration and version of the last reading, if it was of this very boot."""
    if previous is None or metrics is None or previous.metrics is None:
        return None, None
    before = (previous.metrics.instance_id, previous.metrics.process_start_time)
    if before != (metrics.instance_id, metrics.process_start_time) or before == (None, None):
        return None, None
    version = None
    if previous.version is not None or previous.version_reason == _NO_VERSION:
        version = _Part(previous.version, previous.version_reason)
    return (_Part(previous.config, None) if previous.config is not None else None), version


async def _settings(client: LMCacheClient, status: ServerStatus | None) -> tuple[_Part[ServerConfig], _Part[str]]:
    config, version, adapters = await asyncio.gather(_try(client.config), _try(client.version), _try(client.adapters))
    if config.value is not None:
        complete = with_adapter_types(config.value, adapters.value or ())
        config = _Part(with_adapter_status(complete, status.l2_adapters if status is not None else ()), None)
    told = _Part(version.value, version.reason, version.kind, version.http_status, version.answered)
    return config, (_Part(None, _NO_VERSION) if told.value is None and told.reason is None else told)


def _explained(metrics: _Part[ServerMetrics], config: ServerConfig | None) -> str | None:
    """Why there are no metrics, in the words of the server's own configuration where that says it."""
    if metrics.http_status != 404 or config is None:
        return metrics.reason
    if config.otlp_endpoint:
        return f"this server pushes its metrics to {config.otlp_endpoint} and has no /metrics"
    if config.metrics_enabled is False:
        return "metrics are switched off in this server's configuration"
    return metrics.reason
