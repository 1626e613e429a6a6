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


def not_there(expr: str, exported: Exported) -> Iterator[str]:
    """What an expression refers to and the panel does not export."""
    names = METRIC.findall(expr)
    if not names:
        yield "no metric of the panel"
    yield from (name for name in names if name not in exported)
    there = [name for name in names if name in exported]
    for name, matchers in re.findall(r"(tierkeeper_[a-z0-9_]+)\{([^}]*)\}", expr):
        for label in re.findall(r"([a-zA-Z_]+)\s*(?:=~|!~|!=|=)", matchers):
            if name in exported and label not in exported[name]:
                yield f"{name}{{{label}}}"
    for labels in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expr):
        for label in (part.strip() for part in labels.split(",")):
            yield from (f"{name} by {label}" for name in there if label not in exported[name])


def ill_formed(expr: str) -> Iterator[str]:
    """What Prometheus would not take, as far as it can be seen from outside."""
    outside = re.sub(r'"[^"]*"', '""', expr)
    for left, right in ("()", "{}", "[]"):
        if outside.count(left) != outside.count(right):
            yield f"{left} without {right}"
    yield from (f"[{span}]" for span in re.findall(r"\[([^\]]*)\]", outside) if not DURATION.fullmatch(span))
    yield from sorted(set(re.findall(r"(?<![\w$\"])([a-z_]+)\s*\(", outside)) - FUNCTIONS)
    if re.search(r"increase\(\s*tierkeeper_(?!\w+_total)", outside):
        yield "increase() is for counters"


@pytest.mark.parametrize(("where", "expr"), expressions())
def test_metrics_and_labels_exist(exported: Exported, where: str, expr: str) -> None:
    assert list(not_there(expr, exported)) == [], where


@pytest.mark.parametrize(("where", "expr"), expressions())
def test_expressions_are_well_formed(where: str, expr: str) -> None:
    assert list(ill_formed(expr)) == [], where


@pytest.mark.parametrize(
    ("expr", "wrong"),
    [
        ("sum(tierkeeper_target_upp)", "tierkeeper_target_upp"),
        ("tierkeeper_schedule_firings", "tierkeeper_schedule_firings"),  # the counter without its _total
        ('tierkeeper_target_up{server="a"}', "tierkeeper_target_up{server}"),
        ("sum by (server) (tierkeeper_target_up)", "tierkeeper_target_up by server"),
        ("up == 0", "no metric of the panel"),
    ],
)
def test_what_does_not_exist_is_found(exported: Exported, expr: str, wrong: str) -> None:
    assert list(not_there(expr, exported)) == [wrong]


@pytest.mark.parametrize(
    ("expr", "wrong"),
    [
        ("sum(tierkeeper_target_up", "( without )"),
        ("avg_over_time(tierkeeper_target_up[5 minutes])", "[5 minutes]"),
        ("mean(tierkeeper_target_up)", "mean"),
        ("increase(tierkeeper_target_up[5m])", "increase() is for counters"),
    ],
)
def test_what_is_no_expression_is_found(expr: str, wrong: str) -> None:
    assert list(ill_formed(expr)) == [wrong]


def test_legends_name_labels_that_their_series_have(exported: Exported) -> None:
    seen = 0
    for panel in BOARD["panels"]:
        for target in panel.get("targets", []):
            grouped = re.findall(r"\bby\s*\(([^)]*)\)", target["expr"])
            there = frozenset().union(*(exported[name] for name in METRIC.findall(target["expr"])))
            left = {part.strip() for part in grouped[0].split(",")} if grouped else there
            for label in re.findall(r"\{\{\s*(\w+)\s*\}\}", target.get("legendFormat", "")):
                assert label in left, (panel["title"], label)
                seen += 1
    assert seen >= 10


def test_an_engine_that_never_passed_counts_as_one_without_a_pass() -> None:
    """It has no time of a last pass, so that counting old times would leave it out."""
    (expr,) = [e for where, e in expressions() if where == "Engines without a passed acceptance run in a week"]
    assert expr.startswith('sum(tierkeeper_targets{kind="engine"}) - ')


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
