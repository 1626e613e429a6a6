"""Judging many files at once says of each what judging it alone does."""

from __future__ import annotations

import stat

from hypothesis import given
from hypothesis import strategies as st

from app.lmcache.object_keys import parse_name
from app.records.classify import classify, classify_facts
from app.records.facts import FileFact
from app.records.timeline import NS
from tests.unit.records.test_rules import BF16, ENCODED, NOW, context, span

HEX = "0123456789abcdef"
HEADS = (f"{ENCODED}@0x01000100@0@", f"{ENCODED}@0x01000100@", "other@0x01000100@0@", "no record ")
HASHES = st.text(HEX, min_size=64, max_size=64) | st.sampled_from(
    ["AB" * 32, "ab" * 31, "ab" * 33, "a" * 63 + "g", "a" * 63 + " ", "ab" * 16]
)
TAILS = st.sampled_from([".data", ".data", "@salt.data", f"@{'cd' * 32}.data", ".tmp", ".dat", ".data\n"])
FOLDERS = st.sampled_from(["", "", "", "ab/", "aa/", ".tmp/", "../"])


@given(
    st.lists(
        st.tuples(FOLDERS, st.sampled_from(HEADS), HASHES, TAILS, st.sampled_from([0, 100, 8192]), st.booleans()),
        max_size=12,
    )
)
def test_many_files_at_once_are_what_each_is_alone(parts: list[tuple[str, str, str, str, int, bool]]) -> None:
    """Names are parsed once for an owner: that must not let any other name through."""
    ctx = context([span(0, NOW, {"c1": BF16})])
    facts = [
        FileFact(
            f"{folder}{head}{chunk}{tail}".encode(),
            size,
            *(int((NOW - 5_000) * NS),) * 3,
            7,
            1,
            1,
            stat.S_IFREG | 0o600 if regular else stat.S_IFLNK,
        )
        for folder, head, chunk, tail, size, regular in parts
    ]
    alone = [classify(fact, parse_name(fact.name), ctx) for fact in facts]
    assert classify_facts(facts, (), ctx) == alone
