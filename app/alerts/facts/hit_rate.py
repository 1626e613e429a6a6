"""The hit rate of lookups: of a server, and of each model, salt and engine behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.alerts.inputs import Moment, ServerInput
from app.alerts.model import Fact
from app.alerts.trail import Window
from app.telemetry.event_counters import SEPARATOR

WINDOW_SECONDS = 900.0


@dataclass(frozen=True)
class PartRate:
    """The hit rate of one model, salt or engine. Tokens; a value that is None is not known.

    Of an engine: what the cache supplied (`hit_tokens`) of what it asked for (`requested_tokens`), by its own counters.
    """

    by: Literal["model", "salt", "engine"]
    name: str
    requested_tokens: float | None
    hit_tokens: float | None
    l1_tokens: float | None = None
    l2_tokens: float | None = None

    @property
    def value(self) -> float | None:
        if not self.requested_tokens or self.hit_tokens is None:
            return None
        return min(1.0, self.hit_tokens / self.requested_tokens)


def hit_rate(moment: Moment, server: ServerInput) -> Fact:
    """Rule: Δ hit tokens / Δ requested tokens of lookups in fifteen minutes; no rate exists without requests."""
    window = moment.window(server, WINDOW_SECONDS)
    requested, hit = window.grown("requested_tokens"), window.grown("hit_tokens")
    if requested is None or hit is None:
        return Fact("hit_rate", server.subject, unknown=window.reason or "this server counts no lookups")
    if requested <= 0:
        return Fact("hit_rate", server.subject, {"requested": 0.0}, quiet="no lookups in the window")
    return Fact(
        "hit_rate",
        server.subject,
        {
            "rate": min(1.0, hit / requested),
            "requested": requested,
            "hit": hit,
            "l1": window.grown("l1_hit_tokens"),
            "l2": window.grown("l2_hit_tokens"),
            "window": window.seconds,
        },
    )


def part_rates(moment: Moment, server: ServerInput) -> list[PartRate]:
    """Rule: the same quotient for each model and salt where the server has several, and for each engine what it loaded
    of what it asked for (`vllm:external_prefix_cache_*`)."""
    window = moment.window(server, WINDOW_SECONDS)
    found = _split(window, "model") + _split(window, "salt")
    for engine in server.engines:
        own = moment.window(engine, WINDOW_SECONDS)
        asked, loaded = own.grown("external_queries"), own.grown("external_hits")
        found.append(PartRate("engine", engine.name, asked, loaded))
    return found


def _split(window: Window, by: Literal["model", "salt"]) -> list[PartRate]:
    prefix, suffix = f"hits{SEPARATOR}{by}{SEPARATOR}", f"{SEPARATOR}requested"
    keys = [name[len(prefix) : -len(suffix)] for name in window.names(prefix) if name.endswith(suffix)]
    return [
        PartRate(
            by,
            key,
            *(window.grown(f"{prefix}{key}{SEPARATOR}{field}") for field in ("requested", "hit", "l1", "l2")),
        )
        for key in keys
    ]
