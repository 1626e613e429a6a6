"""docs/ALARMS.md tells every fact, every rule and tests that exist."""

from __future__ import annotations

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
