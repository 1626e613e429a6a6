"""What must be remembered of a target from one poll to the next; stored with its snapshot, so that a restart of the
panel (or another process that polls once) goes on where the last poll ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from app.errors import TargetError
from app.lmcache.layouts import KVLayout
from app.telemetry import window
from app.telemetry.contexts import Context, SeenLayout
from app.telemetry.rates import CounterPoint
from app.telemetry.window import Slice


@dataclass(frozen=True)
class ServerMemory:
    """Of one cache server. Times are epoch seconds.

    `values` are the last known view values (see `server_reading`), `counters` those of the last readable scrape,
    `scraped_at` when all values were last true, `process` the boot they are of. `restarted_at` is set by a restart that
    the panel saw, with the engines registered before it; `engines_back` once one registered since.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    polled_at: float | None = None
    scraped_at: float | None = None
    process: tuple[str | None, float | None] = (None, None)
    counters: CounterPoint | None = None
    window: tuple[Slice, ...] = ()
    contexts: Mapping[str, Context] = field(default_factory=dict)
    layouts: tuple[SeenLayout, ...] = ()
    restarted_at: float | None = None
    engines_before: int | None = None
    engines_back: bool = True
    last_engines: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "process": list(self.process),
            "counters": _counters_json(self.counters),
            "window": window.to_json(self.window),
            "contexts": {i: [c.layout.to_dict(), c.first_seen] for i, c in self.contexts.items()},
            "layouts": [[s.layout.to_dict(), s.first_seen, s.last_seen, s.contexts] for s in self.layouts],
            "restarted_at": self.restarted_at,
            "engines_before": self.engines_before,
            "engines_back": self.engines_back,
            "last_engines": self.last_engines,
        }

    @classmethod
    def from_json(
        cls, stored: Mapping[str, Any], values: Mapping[str, Any], polled_at: float, scraped_at: float | None
    ) -> ServerMemory:
        """What `to_json` gave; a memory of an older form is forgotten, not misread."""
        try:
            return cls(
                values=values,
                polled_at=polled_at,
                scraped_at=scraped_at,
                process=_process(stored.get("process")),
                counters=_counters(stored.get("counters")),
                window=window.from_json(stored.get("window")),
                contexts={i: Context(KVLayout.from_json(c[0]), float(c[1])) for i, c in stored["contexts"].items()},
                layouts=tuple(
                    SeenLayout(KVLayout.from_json(s[0]), float(s[1]), float(s[2]), int(s[3])) for s in stored["layouts"]
                ),
                restarted_at=stored.get("restarted_at"),
                engines_before=stored.get("engines_before"),
                engines_back=bool(stored.get("engines_back", True)),
                last_engines=stored.get("last_engines"),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, TargetError):
            return cls(values=values, polled_at=polled_at, scraped_at=scraped_at)


@dataclass(frozen=True)
class EngineMemory:
    """Of one engine. `facts` are those of the process that started at `process_start` (see `engine_reading`)."""

    values: Mapping[str, Any] = field(default_factory=dict)
    polled_at: float | None = None
    scraped_at: float | None = None
    process_start: float | None = None
    counters: CounterPoint | None = None
    window: tuple[Slice, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "process_start": self.process_start,
            "counters": _counters_json(self.counters),
            "window": window.to_json(self.window),
            "facts": dict(self.facts),
            "models": list(self.models),
        }

    @classmethod
    def from_json(
        cls, stored: Mapping[str, Any], values: Mapping[str, Any], polled_at: float, scraped_at: float | None
    ) -> EngineMemory:
        try:
            return cls(
                values=values,
                polled_at=polled_at,
                scraped_at=scraped_at,
                process_start=stored.get("process_start"),
                counters=_counters(stored.get("counters")),
                window=window.from_json(stored.get("window")),
                facts=dict(stored["facts"]),
                models=tuple(stored["models"]),
            )
        except (KeyError, TypeError, ValueError):
            return cls(values=values, polled_at=polled_at, scraped_at=scraped_at)


def _counters_json(point: CounterPoint | None) -> dict[str, Any] | None:
    return None if point is None else asdict(point)


def _counters(stored: object) -> CounterPoint | None:
    if not isinstance(stored, dict):
        return None
    return CounterPoint(float(stored["at"]), _process(stored["process"]), dict(stored["values"]))


def _process(stored: object) -> tuple[str | None, float | None]:
    if not isinstance(stored, list | tuple) or len(stored) != 2:
        return None, None
    return stored[0], stored[1]
