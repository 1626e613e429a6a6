"""docs/SECURITY.md names a test for every threat; each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "SECURITY.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", DOCUMENT)


def test_every_named_test_exists() -> None:
    missing = []
    for path, name in NAMED:
        file = ROOT / path
        if not file.is_file():
            missing.append(path)
        elif name:
            functions = {
                node.name
                for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            if name not in functions:
                missing.append(f"{path}::{name}")
    assert missing == []


def test_every_threat_has_a_guard_and_a_test() -> None:
    rows = [line for line in DOCUMENT.partition("## Threats")[2].splitlines() if line.startswith("| ")]
    threats = [row for row in rows if not row.startswith("| threat ")]
    assert len(threats) > 30
    for row in threats:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 3, row
        assert all(cells), row
        assert "tests/" in cells[2], row
