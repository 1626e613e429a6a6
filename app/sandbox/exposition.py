"""Counters, gauges, histograms and summaries, printed as the real servers print them.

The families (name, type, help, buckets) come from `data/*.json`. Label names are united per family, with empty
values for what a series does not have: the same family may print other labels once a second kind of series exists.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from prometheus_client.utils import floatToGoString

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Family:
    """One metric family. `created` families print a ``…_created`` gauge; `label`, `values` are there from the start."""

    name: str
    type: str
    help: str
    buckets: tuple[float, ...] = ()
    created: bool = False
    label: str = ""
    values: tuple[str, ...] = ()


@dataclass
class _Distribution:
    counts: list[int]
    total: float = 0.0
    count: int = 0


@dataclass
class _Series:
    value: float = 0.0
    spread: _Distribution | None = None
    since: float = 0.0


@lru_cache(maxsize=4)
def families(which: str) -> tuple[Family, ...]:
    """The families of ``server`` or ``engine``, in the order in which they are printed."""
    rows: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / f"{which}_metrics.json").read_text())
    return tuple(
        Family(
            name=row["name"],
            type=row["type"],
            help=row["help"],
            buckets=tuple(float(b) for b in row.get("buckets", ())),
            created=row.get("created", False),
            label=row.get("label", ""),
            values=tuple(row.get("values", ())),
        )
        for row in rows
    )


@dataclass
class MetricSet:
    """All series of one component. Series exist from their first use (or `touch`) on."""

    which: str
    now: float = 0.0
    _series: dict[str, dict[Labels, _Series]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._families = {family.name: family for family in families(self.which)}

    def clear(self) -> None:
        """Forget everything, as `POST /metrics/reset` and a restart do."""
        self._series.clear()

    def _find(self, name: str, labels: Mapping[str, str]) -> _Series:
        family = self._families[name]
        by_labels = self._series.setdefault(name, {})
        key = tuple(sorted(labels.items()))
        series = by_labels.get(key)
        if series is None:
            series = by_labels[key] = _Series(since=self.now)
            if family.type in {"histogram", "summary"}:
                series.spread = _Distribution([0] * len(family.buckets))
        return series

    def touch(self, name: str, **labels: str) -> None:
        """Make the series exist with value 0."""
        self._find(name, labels)

    def inc(self, name: str, value: float = 1.0, /, **labels: str) -> None:
        self._find(name, labels).value += value

    def set(self, name: str, value: float, /, **labels: str) -> None:
        self._find(name, labels).value = value

    def observe(self, name: str, value: float, times: int = 1, /, **labels: str) -> None:
        spread = self._find(name, labels).spread
        if spread is None:
            raise TypeError(f"{name} is not a histogram")
        first = bisect.bisect_left(self._families[name].buckets, value)
        for index in range(first, len(spread.counts)):
            spread.counts[index] += times
        spread.total += value * times
        spread.count += times

    def value(self, name: str, **labels: str) -> float:
        """The value of one series, 0 if it does not exist; for a histogram its count. For tests and gauges."""
        series = self._series.get(name, {}).get(tuple(sorted(labels.items())))
        if series is None:
            return 0.0
        return series.value if series.spread is None else float(series.spread.count)

    def total(self, name: str) -> float:
        """The sum over all series of a family."""
        return sum(s.value if s.spread is None else s.spread.count for s in self._series.get(name, {}).values())

    def render(self) -> str:
        """Prometheus text, classic format."""
        lines: list[str] = []
        for family in self._families.values():
            by_labels = self._series.get(family.name)
            if by_labels:
                _render_family(lines, family, by_labels)
        return "\n".join(lines) + "\n"


def _render_family(lines: list[str], family: Family, by_labels: Mapping[Labels, _Series]) -> None:
    names = sorted({name for labels in by_labels for name, _ in labels})
    lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.type}"]
    created: list[str] = []
    for labels, series in by_labels.items():
        values = dict(labels)
        full = {name: values.get(name, "") for name in names}
        spread = series.spread
        if spread is None:
            lines.append(f"{family.name}{_labels(full)} {_number(series.value)}")
        else:
            if family.type == "histogram":
                for bound, count in zip(family.buckets, spread.counts, strict=True):
                    lines.append(_bucket(family.name, full, _number(bound), count))
                lines.append(_bucket(family.name, full, "+Inf", spread.count))
            lines.append(f"{family.name}_count{_labels(full)} {_number(spread.count)}")
            lines.append(f"{family.name}_sum{_labels(full)} {_number(spread.total)}")
        created.append(f"{_labels(full)} {_number(series.since)}")
    if family.created:
        base = family.name.removesuffix("_total") if family.type == "counter" else family.name
        lines += [f"# HELP {base}_created {family.help}", f"# TYPE {base}_created gauge"]
        lines += [f"{base}_created{line}" for line in created]


def _bucket(name: str, labels: Mapping[str, str], bound: str, count: int) -> str:
    full = dict(sorted({**labels, "le": bound}.items()))
    return f"{name}_bucket{_labels(full)} {_number(count)}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
