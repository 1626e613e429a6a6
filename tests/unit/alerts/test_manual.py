"""docs/ALARMS.md tells every fact, every rule and tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from app.alerts import manual
from app.alerts.catalogue import RULES, rules_by_fact

PAGE = manual.PAGE.read_text("utf-8")
HERE = Path(__file__).parent


def rows() -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")
    ]


def test_the_sections_are_those_of_the_catalogue() -> None:
    assert manual.renewed(PAGE) == PAGE, "run: python -m app.alerts.manual"
    for rule in RULES.values():
        anchor = rule.docs.partition("#")[2]
        assert f"### {anchor}\n" in PAGE


def test_every_fact_has_its_row_with_a_fault_and_a_healthy_case() -> None:
    told = {name for row in rows() for name in re.findall(r"`(\w+)`", row[0])}
    assert told == set(rules_by_fact())
    for row in rows():
        assert len(row) == 5, row[0]
        assert all(row), row[0]


def test_every_test_that_is_named_exists() -> None:
    for row in rows():
        for file, names in re.findall(r"`(test_\w+\.py)`: ((?:`test_\w+`(?:, )?)+)", row[4]):
            text = (HERE / file).read_text()
            for name in re.findall(r"`(test_\w+)`", names):
                assert re.search(rf"def {name}\(", text), (file, name)
        assert re.findall(r"`(test_\w+\.py)`: `test_", row[4]), row[0]


def bodies_of_named_tests(cell: str) -> str:
    """The source of all tests that the last cell of a row names."""
    found = []
    for file, names in re.findall(r"`(test_\w+\.py)`: ((?:`test_\w+`(?:, )?)+)", cell):
        source = (HERE / file).read_text("utf-8")
        wanted = set(re.findall(r"`(test_\w+)`", names))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found += [ast.get_source_segment(source, node) or ""] if node.name in wanted else []
    return "\n".join(found)


def test_every_rule_is_raised_by_name_in_a_test_of_its_fact() -> None:
    """Docs, rules and tests hold together: what a fact's row points to names each rule that judges the fact."""
    tested = {name: bodies_of_named_tests(row[4]) for row in rows() for name in re.findall(r"`(\w+)`", row[0])}
    missing = [rule.id for rule in RULES.values() if not re.search(rf'"{rule.id}"', tested[rule.fact])]
    assert missing == []


def test_every_fact_says_its_rule_where_it_is_derived() -> None:
    """In its docstring, beside the code that must keep to it."""
    untold = []
    for module in sorted((HERE.parents[2] / "app/alerts/facts").glob("*.py")):
        source = module.read_text("utf-8")
        for node in ast.parse(source).body:
            makes = isinstance(node, ast.FunctionDef) and re.search(
                r"\bFact\(", ast.get_source_segment(source, node) or ""
            )
            if makes and not node.name.startswith("_") and "Rule:" not in (ast.get_docstring(node) or ""):
                untold.append(f"{module.stem}.{node.name}")
    assert untold == []
