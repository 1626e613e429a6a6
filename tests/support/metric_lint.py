"""What `promtool check metrics` and the Prometheus naming rules would say of an exposition, a sentence each.

https://prometheus.io/docs/practices/naming and https://prometheus.io/docs/instrumenting/writing_exporters; read with
the strict OpenMetrics parser, so that types, units, escapes and samples are checked as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

#: Units that are not base units, as whole words of a name, and what to use.
NOT_BASE = {
    **dict.fromkeys(
        ("ms", "millis", "milliseconds", "microseconds", "nanoseconds", "minutes", "hours", "days", "weeks"), "seconds"
    ),
    **dict.fromkeys(("bits", "kb", "mb", "gb", "kib", "mib", "gib", "kilobytes", "megabytes", "gigabytes"), "bytes"),
    **dict.fromkeys(("percent", "percents", "pct"), "ratio"),
}
BASE = ("seconds", "bytes", "ratio")
TYPES = ("gauge", "counter", "histogram", "summary", "untyped", "info")
#: Labels that belong to Prometheus or to the types.
TAKEN = ("le", "quantile", "job", "instance")


def problems(openmetrics: str, *, prefix: str, labels: Mapping[str, str]) -> list[str]:
    """Everything that is wrong. `labels`: {label that may be used: what bounds the number of its values}.

    Raises ValueError for text that is not OpenMetrics.
    """
    found: list[str] = []
    seen: set[str] = set()
    for family in text_string_to_metric_families(openmetrics):
        found += [f"{family.name}: {problem}" for problem in _of_family(family, prefix)]
        if family.name in seen:
            found.append(f"{family.name}: is there twice")
        seen.add(family.name)
        series = set()
        for sample in family.samples:
            own = sample.labels
            found += [f"{family.name}: {problem}" for name in own for problem in _of_label(name, labels)]
            if (key := (sample.name, tuple(sorted(own.items())))) in series:
                found.append(f"{family.name}: the series {own} is there twice")
            series.add(key)
    return sorted(set(found))


def _of_family(family: Metric, prefix: str) -> Iterator[str]:
    name, kind = family.name, family.type
    words = name.split("_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        yield "is not in snake_case (colons belong to recording rules)"
    if not name.startswith(prefix):
        yield f"does not begin with {prefix}"
    if kind in ("unknown", "untyped"):
        yield "has no type"
    if not family.documentation.endswith("."):
        yield "has no sentence of help"
    if kind != "counter" and words[-1] == "total":
        yield "only counters end in _total"
    if kind not in ("histogram", "summary") and words[-1] in ("count", "sum", "bucket"):
        yield f"_{words[-1]} belongs to histograms and summaries"
    if kind != "info" and words[-1] == "info":
        yield "only an info ends in _info"
    for word in words:
        if word in NOT_BASE:
            yield f"{word} is no base unit: use {NOT_BASE[word]}"
        if word in TYPES:
            yield f"its name holds the type {word}"
    unit = [word for word in words if word in BASE]
    if unit and words[-1] not in BASE:
        yield f"its unit {unit[0]} stands in the middle of its name"
    if "timestamp" in words and not name.endswith("_timestamp_seconds"):
        yield "a time ends in _timestamp_seconds"
    if kind == "counter" and not all(s.name.endswith(("_total", "_created")) for s in family.samples):
        yield "a counter ends in _total"


def _of_label(name: str, labels: Mapping[str, str]) -> Iterator[str]:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        yield f"the label {name} is not in snake_case"
    if name in TAKEN or name.startswith("__"):
        yield f"the label {name} is Prometheus's own"
    elif name not in labels:
        yield f"nothing is said to bound the values of the label {name}"
