"""The manual page names every rule, and only rules that exist."""

from __future__ import annotations

import re
from pathlib import Path

from app.checks.rules import ALL

PAGE = (Path(__file__).parents[3] / "docs" / "CHECKS.md").read_text("utf-8")


def test_every_rule_is_documented_as_it_is() -> None:
    rows = dict(re.findall(r"^\| `([a-z0-9_]+)` \| ([^|]+?) \|", PAGE, re.MULTILINE))
    assert rows == {rule.id: rule.title for rule in ALL}
