"""Right or wrong without a judge."""

from __future__ import annotations

import time

import pytest

from app.acceptance.scoring import check_scoring, regex_found, score


class TestScore:
    @pytest.mark.parametrize(
        ("text", "expected", "rule", "right"),
        [
            (" Paris\n", "Paris", "exact", True),
            ("Paris.", "Paris", "exact", False),
            ("The code is ZEBRA-17.", "zebra-17", "contains", True),
            ("The code is ZEBRA.", "zebra-17", "contains", False),
            ("The code is ZEBRA-17.", "zebra-17", None, True),
            ("order 12-34", r"\d\d-\d\d", "regex", True),
            ("order 1-34", r"^\d\d-\d\d", "regex", False),
            ("It is 1,024 tokens", "1024", "number", True),
            ("It is 1025", "1024", "number", False),
            ("no idea", "1024", "number", False),
            ("-3.5e2 is it", "-350", "number", True),
        ],
    )
    def test_rules(self, text: str, expected: str, rule: str | None, right: bool) -> None:
        assert score(text, expected, rule) == float(right)  # type: ignore[arg-type]

    def test_a_pattern_that_never_ends_is_given_up(self) -> None:
        before = time.monotonic()
        assert regex_found(r"(a+)+$", "a" * 60 + "b", timeout=0.3) is False
        assert time.monotonic() - before < 3


class TestCheckScoring:
    def test_names_what_is_wrong(self) -> None:
        assert check_scoring("(", "regex") is not None
        # Every answer would be right.
        for blank in (" ", "\n"):
            assert "blank" in str(check_scoring(blank, None))
        assert "every answer" in str(check_scoring(".*", "regex"))
        assert check_scoring("none", "number") is not None
        assert check_scoring(None, "exact") is not None

    def test_accepts_what_can_be_used(self) -> None:
        assert check_scoring(None, None) is None
        assert check_scoring("17", "number") is None
        assert check_scoring("a|b", "regex") is None
