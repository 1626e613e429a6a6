"""One whole poll of an engine: health and metrics each time, the rest when its process is new."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from app.errors import TargetError
from app.vllm.calls import EngineHealth, ModelCard, VLLMClient
from app.vllm.facts import EngineFacts
from app.vllm.metrics import EngineMetrics

T = TypeVar("T")


@dataclass(frozen=True)
class EngineReading:
    """What one poll found. Each part is its value or None with a sentence why; `version`, `models`, `facts` and
    `reset_available` are carried over while the process start stays the same.

    `reset_available`: whether ``/reset_prefix_cache`` exists, told by ``/server_info`` (both come with dev mode only),
    without calling it; None where that could not be found out. Times as in `ServerReading`.
    """

    started_at: float
    duration_seconds: float
    latency_seconds: float | None
    http_up: bool
    health: EngineHealth | None
    health_reason: str | None
    metrics: EngineMetrics | None
    metrics_reason: str | None
    version: str | None
    version_reason: str | None
    models: tuple[ModelCard, ...] | None
    models_reason: str | None
    facts: EngineFacts | None
    facts_reason: str | None
    reset_available: bool | None
    error_kinds: Mapping[str, str] = field(default_factory=dict)

    @property
    def process_start_time(self) -> float | None:
        """Epoch seconds, None where no metrics tell it."""
        return self.metrics.process_start_time if self.metrics is not None else None

    @property
    def max_model_len(self) -> int | None:
        """Of the first base model."""
        return next((card.max_model_len for card in self.models or () if card.parent is None), None)


_DEV_MODE_OFF = "this engine has no /server_info (dev mode is off)"
_NOT_ASKED = "not asked: the engine answered nothing"


async def poll_engine(client: VLLMClient, previous: EngineReading | None = None) -> EngineReading:
    """Poll once; never raises for trouble with the target."""
    began = time.perf_counter()
    health, metrics = await asyncio.gather(_try(client.health), _try(client.metrics))
    up = health.answered or metrics.answered
    reset_available: bool | None = None
    if previous is not None and _same_process(previous, metrics.value):
        version = _Part(previous.version, previous.version_reason)
        models = _Part(previous.models, previous.models_reason)
        facts = _Part(previous.facts, previous.facts_reason)
        reset_available = previous.reset_available
    elif up:
        version, listed, info = await asyncio.gather(
            _try(client.version), _try(client.models), _try(client.server_info)
        )
        models = _Part(None if listed.value is None else tuple(listed.value), listed.reason, listed.kind)
        if info.value is None and info.reason is None:
            facts, reset_available = _Part(None, _DEV_MODE_OFF), False
        else:
            facts = _Part(info.value, info.reason, info.kind)
            reset_available = True if info.value is not None else None
    else:
        # nothing answers: a second round would only wait for its timeouts
        version, models, facts = _Part(None, _NOT_ASKED), _Part(None, _NOT_ASKED), _Part(None, _NOT_ASKED)
    parts: dict[str, _Part[Any]] = {
        "health": health,
        "metrics": metrics,
        "version": version,
        "models": models,
        "server_info": facts,
    }
    return EngineReading(
        started_at=began,
        duration_seconds=time.perf_counter() - began,
        latency_seconds=health.value.seconds if health.value is not None else None,
        http_up=up,
        health=health.value,
        health_reason=health.reason,
        metrics=metrics.value,
        metrics_reason=metrics.reason,
        version=version.value,
        version_reason=version.reason,
        models=models.value,
        models_reason=models.reason,
        facts=facts.value,
        facts_reason=facts.reason,
        reset_available=reset_available,
        error_kinds={name: part.kind for name, part in parts.items() if part.kind is not None},
    )


@dataclass(frozen=True, slots=True)
class _Part(Generic[T]):
    value: T | None
    reason: str | None
    kind: str | None = None
    answered: bool = True


async def _try(call: Callable[[], Awaitable[T]]) -> _Part[T]:
    """The call is made here: a poll that is cancelled before its turn leaves no coroutine behind."""
    try:
        return _Part(await call(), None)
    except TargetError as error:
        answered = error.http_status is not None
        return _Part(None, error.detail, error.kind, answered)


def _same_process(previous: EngineReading, metrics: EngineMetrics | None) -> bool:
    """Whether the last reading was of this very process and complete."""
    start = metrics.process_start_time if metrics is not None else None
    complete = previous.version is not None and previous.models is not None and previous.reset_available is not None
    return start is not None and start == previous.process_start_time and complete
