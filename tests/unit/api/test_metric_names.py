"""The panel's own /metrics keeps the naming rules of Prometheus, in both forms, with bounded labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from app.alerts.catalogue import RULES
from app.alerts.model import SEVERITIES, SubjectKind
from app.alerts.schemas import NotifierInput, RulePatch
from app.api.metrics import HEALTH_STATES, PanelMetrics
from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate
from tests.support.metric_lint import problems
from tests.support.panel import running_panel

#: What bounds the values of each label. A label that is not here is not exported.
BOUNDS = {
    "version": "one panel",
    "kind": "kinds of targets",
    "target": "registered targets",
    "store": "registered stores",
    "engine": "registered engines",
    "state": "states of health",
    "class": "classes of records",
    "verdict": "verdicts of runs",
    "outcome": "outcomes of firings",
    "severity": "severities",
    "rule": "shipped rules",
    "part": "alarms that fire, one a cause",
    "notifier": "registered notifiers",
}
#: Values of labels that no operator names.
CLOSED = {
    "severity": set(SEVERITIES),
    "state": set(HEALTH_STATES),
    "rule": set(RULES),
    "kind": set(get_args(SubjectKind)),
}
HOSTILE = 'a "server"\\ with {braces}'


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PanelMetrics]:
    """Of a panel with one of each target, a notifier and an alarm that fires."""
    folder = tmp_path_factory.mktemp("names")
    (folder / "kv").mkdir()
    with running_panel(folder / "var", POLL_SECONDS="3600") as panel:
        fleet, alerts = panel.services.fleet, panel.services.alerts
        fleet.create_server(ServerCreate(url="http://127.0.0.1:9", name=HOSTILE), actor="t")
        fleet.create_engine(EngineCreate(url="http://127.0.0.1:13", name="e"), actor="t")
        fleet.create_store(StoreCreate(path=str(folder / "kv"), name="disk", confirm=True), actor="t")
        alerts.notifiers.create(NotifierInput(name="n", kind="webhook", url="http://127.0.0.1:9/"), actor="t")
        alerts.rules.patch_rule("nobody_registered", RulePatch(for_seconds=0), actor="t")
        alerts.evaluate()
        made = PanelMetrics(panel.services)
        made.refresh()
        yield made


def test_names_types_units_and_labels_keep_the_rules(collected: PanelMetrics) -> None:
    text = openmetrics(collected.registry).decode()
    assert text.count("# TYPE tierkeeper_") >= 25
    assert problems(text, prefix="tierkeeper_", labels=BOUNDS) == []


def test_the_classic_form_tells_the_same_numbers(collected: PanelMetrics) -> None:
    def values(families: object) -> dict[tuple[str, str], float]:
        return {
            (s.name, str(sorted(s.labels.items()))): s.value
            for family in families  # type: ignore[attr-defined]
            for s in family.samples
        }

    classic = values(text_string_to_metric_families(generate_latest(collected.registry).decode()))
    assert classic == values(collected.collect())
    assert any(HOSTILE in labels.replace("\\\\", "\\") for _, labels in classic)


def test_labels_nobody_names_have_only_their_few_values(collected: PanelMetrics) -> None:
    seen: dict[str, set[str]] = {}
    for family in collected.collect():
        for sample in family.samples:
            for name, value in sample.labels.items():
                seen.setdefault(name, set()).add(value)
    assert {"kind", "severity", "state"} <= set(seen)
    for name, allowed in CLOSED.items():
        assert seen.get(name, set()) <= allowed, name


def test_more_requests_and_evaluations_make_no_more_series(collected: PanelMetrics) -> None:
    def series() -> int:
        return sum(len(family.samples) for family in collected.collect())

    before = series()
    for _ in range(3):
        collected._services.alerts.evaluate()
        collected.refresh()
    assert series() == before


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("# TYPE tk_a_total gauge\n# HELP tk_a_total Is.\ntk_a_total 1\n", "only counters end in _total"),
        ("# TYPE tk_wait_ms gauge\n# HELP tk_wait_ms Is.\ntk_wait_ms 1\n", "ms is no base unit: use seconds"),
        ("# TYPE tk_used_percent gauge\n# HELP tk_used_percent Is.\ntk_used_percent 1\n", "use ratio"),
        ("# TYPE tk_bytes_free gauge\n# HELP tk_bytes_free Is.\ntk_bytes_free 1\n", "stands in the middle"),
        ("# TYPE tk_timestamp gauge\n# HELP tk_timestamp Is.\ntk_timestamp 1\n", "_timestamp_seconds"),
        ("# TYPE tk_a_gauge gauge\n# HELP tk_a_gauge Is.\ntk_a_gauge 1\n", "holds the type gauge"),
        ("# TYPE tk_a_count gauge\n# HELP tk_a_count Is.\ntk_a_count 1\n", "_count belongs to histograms"),
        ("# TYPE other gauge\n# HELP other Is.\nother 1\n", "does not begin with tk_"),
        ("# TYPE tk_aB gauge\n# HELP tk_aB Is.\ntk_aB 1\n", "snake_case"),
        ("# TYPE tk_a gauge\ntk_a 1\n", "has no sentence of help"),
        ("# HELP tk_a Is.\ntk_a 1\n", "has no type"),
        ('# TYPE tk_a gauge\n# HELP tk_a Is.\ntk_a{prompt="x"} 1\n', "nothing is said to bound"),
        ('# TYPE tk_a gauge\n# HELP tk_a Is.\ntk_a{job="x"} 1\n', "Prometheus's own"),
    ],
)
def test_the_rules_can_be_broken(lines: str, problem: str) -> None:
    (found,) = problems(lines + "# EOF\n", prefix="tk_", labels={"target": "registered targets"})
    assert problem in found


def test_what_is_no_exposition_is_refused() -> None:
    bad = ["tk_a 1\n", "# TYPE tk_a counter\n# HELP tk_a Is.\ntk_a 1\n# EOF\n", 'tk_a{x="y} 1\n# EOF\n']
    for text in bad:
        with pytest.raises(ValueError, match=r"."):
            problems(text, prefix="tk_", labels={})
