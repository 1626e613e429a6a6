"""The Prometheus rules and the Grafana dashboard refer only to metrics and labels that the panel exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from app.alerts.schemas import NotifierInput, RulePatch
from app.api.metrics import PanelMetrics
from app.fleet.schemas import EngineCreate, ServerCreate
from tests.support.panel import running_panel

ROOT = Path(__file__).parents[3]
RULES = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
BOARD = json.loads((ROOT / "deploy/grafana/tierkeeper.json").read_text())
METRIC = re.compile(r"\btierkeeper_[a-z0-9_]+")
DURATION = re.compile(r"(\d+(ms|[smhdwy]))+")
FUNCTIONS = {
    "absent",
    "and",
    "avg_over_time",
    "by",
    "count",
    "increase",
    "on",
    "or",
    "predict_linear",
    "sum",
    "time",
    "vector",
}

Exported = dict[str, frozenset[str]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    """{sample name: its labels} of everything the panel can export, and its text."""
    with running_panel(tmp_path_factory.mktemp("metrics") / "var", POLL_SECONDS="3600") as panel:
        fleet, alerts = panel.services.fleet, panel.services.alerts
        fleet.create_server(ServerCreate(url="http://127.0.0.1:9", name="s"), actor="t")
        fleet.create_engine(EngineCreate(url="http://127.0.0.1:13", name="e"), actor="t")
        alerts.notifiers.create(NotifierInput(name="n", kind="webhook", url="http://127.0.0.1:9/"), actor="t")
        alerts.rules.patch_rule("nobody_registered", RulePatch(for_seconds=0), actor="t")
        alerts.evaluate()
        collected = PanelMetrics(panel.services)
        collected.refresh()
        found: Exported = {}
        for family in collected.collect():
            labels = frozenset(getattr(family, "_labelnames", ()) or ())
            suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
            found[family.name + suffix] = labels if family.type != "info" else frozenset({"version"})
        text = generate_latest(collected.registry).decode()
        assert 'tierkeeper_alerts_firing{severity="warning"}' in text
        assert all(name in text for name in found if not name.endswith("_total"))
        yield found


def prometheus_rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def expressions() -> list[tuple[str, str]]:
    """(where, expression) of every rule and panel."""
    found = [(rule["alert"], rule["expr"]) for rule in prometheus_rules()]
    found += [(p["title"], t["expr"]) for p in BOARD["panels"] for t in p.get("targets", [])]
    found += [(a["name"], a["expr"]) for a in BOARD["annotations"]["list"]]
    return found


def test_there_is_something_to_look_at() -> None:
    assert len(prometheus_rules()) >= 15
    assert len(expressions()) >= 35


@pytest.mark.parametrize(("where", "expr"), expressions())
def test_metrics_and_labels_exist(exported: Exported, where: str, expr: str) -> None:
    names = METRIC.findall(expr)
    assert names, where
    for name in names:
        assert name in exported, f"{where}: the panel exports no {name}"
    for name, matchers in re.findall(r"(tierkeeper_[a-z0-9_]+)\{([^}]*)\}", expr):
        for label in re.findall(r"([a-zA-Z_]+)\s*(?:=~|!~|!=|=)", matchers):
            assert label in exported[name], f"{where}: {name} has no label {label}"
    for labels in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expr):
        for label in (part.strip() for part in labels.split(",")):
            assert all(label in exported[name] for name in names), f"{where}: {label}"


@pytest.mark.parametrize(("where", "expr"), expressions())
def test_expressions_are_well_formed(where: str, expr: str) -> None:
    outside = re.sub(r'"[^"]*"', '""', expr)
    for left, right in ("()", "{}", "[]"):
        assert outside.count(left) == outside.count(right), where
    for span in re.findall(r"\[([^\]]*)\]", outside):
        assert DURATION.fullmatch(span), (where, span)
    words = set(re.findall(r"(?<![\w$\"])([a-z_]+)\s*\(", outside))
    assert words <= FUNCTIONS, (where, words - FUNCTIONS)
    assert not re.search(r"increase\(\s*tierkeeper_(?!\w+_total)", outside), f"{where}: increase() is for counters"


@pytest.mark.parametrize("rule", prometheus_rules(), ids=lambda rule: rule["alert"])
def test_rules_are_whole(exported: Exported, rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"Tierkeeper[A-Za-z0-9]+", rule["alert"])
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert DURATION.fullmatch(rule.get("for", "1m"))
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"]
    known = frozenset().union(*(exported[name] for name in METRIC.findall(rule["expr"])))
    for text in rule["annotations"].values():
        for label in re.findall(r"\$labels\.(\w+)", text):
            assert label in known, (rule["alert"], label)
        assert text.count("{{") == text.count("}}")


def test_alert_names_are_used_once() -> None:
    names = [rule["alert"] for rule in prometheus_rules()]
    assert len(names) == len(set(names))
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    assert config["rule_files"] == ["alerts.yml"]


def test_the_dashboard_is_whole(exported: Exported) -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["description"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs))
    variables = {item["name"] for item in BOARD["templating"]["list"]}
    used = set(re.findall(r"\$(\w+)", json.dumps([e for _, e in expressions()])))
    assert used <= variables
    for item in BOARD["templating"]["list"]:
        if item["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", item["definition"]).groups()  # type: ignore[union-attr]
            assert label in exported[metric]


def test_every_metric_is_documented_and_every_documented_metric_exists(exported: Exported) -> None:
    text = (ROOT / "docs" / "METRICS.md").read_text()
    documented = {name for line in text.splitlines() if line.startswith("| `") for name in METRIC.findall(line)}
    assert documented == set(exported)
    for line in text.splitlines():
        if line.startswith("| `"):
            _, names, _, labels, *_ = line.split("|")
            for name in METRIC.findall(names):
                assert frozenset(re.findall(r"`(\w+)`", labels)) == exported[name], name
