"""Pages, counts and streams, against a plain reading of the same rows."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.lmcache.object_keys import format_name
from app.records.facts import REASONS, certainty
from app.records.filters import ORDERS, RecordFilter, page_order, parse_age, parse_order, parse_size
from app.records.inventory_file import Inventory
from app.records.query import Reader, RecordRow
from tests.unit.records.disk import NOW, NS, key, write
from tests.unit.records.test_scanner import scan

_SIZES = (0, 100, 32768, 32768, 32768, 65536)


@functools.cache
def _world() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory()
    root, database = Path(folder.name, "l2"), Path(folder.name, "i.db")
    for number in range(300):
        made = key(
            number,
            model="/models/tiny" if number % 3 else "org/other",
            rank=0x01000100 if number % 4 else 0x02010201,
            group=number % 2,
            salt=f"t{number % 5}" if number % 7 == 0 else "",
        )
        # Ages from seconds to weeks, some equal; every tenth was read later than it was written. The sizes of one
        # owner are many enough to need a cohort of mixed sizes.
        mtime = NOW - (number % 60) ** 3 - 700
        size = _SIZES[number % 6] if number % 12 else 1000 + number
        name = format_name(made)
        write(root, f".tmp/{name}" if number % 50 == 0 else name, size, mtime=mtime, atime=mtime + (number % 10) * 50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.records.owners._SIZES", 3)
        scan(root, database)
    return folder, database


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with Inventory.require(_world()[1]) as inventory:
        yield Reader(inventory, round(NOW * NS))


def key_of(order: str, row: RecordRow) -> tuple[object, ...]:
    name = order.removeprefix("-")
    values: dict[str, tuple[object, ...]] = {
        "modified_at": (row.mtime, row.used, row.id),
        "accessed_at": (row.used, row.id),
        "size_bytes": (row.size, row.mtime, row.used, row.id),
        "name": (row.owner.head, row.chunk_hash[:8], row.id),
        "certainty": (certainty(row.cohort.cls, row.cohort.reason), row.mtime, row.used, row.id),
    }
    return values[name]


def matches(where: RecordFilter, row: RecordRow) -> bool:
    now = round(NOW * NS)
    return (
        (not where.classes or row.cohort.cls in where.classes)
        and (not where.reasons or row.cohort.reason in where.reasons)
        and (not where.models or row.owner.model.replace("-SEP-", "/") in where.models)
        and (where.kv_rank is None or row.owner.kv_rank == where.kv_rank)
        and (where.salt is None or row.salt == where.salt)
        and (where.q is None or where.q in row.name)
        and (where.min_size is None or row.size >= where.min_size)
        and (where.older_than is None or row.mtime < now - round(where.older_than * NS))
        and (where.unused_for is None or max(row.atime, row.mtime) < now - round(where.unused_for * NS))
    )


_HASHES = [key(number).chunk_hash_hex for number in (1, 7, 200)]
FILTERS = st.builds(
    RecordFilter,
    classes=st.sampled_from([frozenset[str](), frozenset({"corrupt"}), frozenset({"unverified", "temporary"})]),
    models=st.sampled_from([frozenset[str](), frozenset({"org/other"})]),
    kv_rank=st.sampled_from([None, None, 0x01000100]),
    salt=st.sampled_from([None, None, None, "", "t0", "t3", "nobody"]),
    q=st.sampled_from([None, None, None, "tiny", "@t1", "other@0x0", "ab", *_HASHES, _HASHES[0][:9], "zz", "@0@"]),
    min_size=st.sampled_from([None, None, 1, 1100, 32768]),
    older_than=st.sampled_from([None, None, 1000.0, 86400.0]),
    unused_for=st.sampled_from([None, None, 1000.0, 86400.0]),
)


@settings(max_examples=200, deadline=None)
@given(where=FILTERS, order=st.sampled_from(ORDERS), size=st.sampled_from([1, 7, 100, 500]))
def test_pages_are_the_sorted_matching_rows(where: RecordFilter, order: str, size: int) -> None:
    with Inventory.require(_world()[1]) as inventory:
        reader = Reader(inventory, round(NOW * NS))
        everything = list(reader.stream(RecordFilter()))
        assert len(everything) == 300
        expected = sorted(
            (row for row in everything if matches(where, row)),
            key=lambda row: key_of(order, row),  # type: ignore[arg-type,return-value]
            reverse=order.startswith("-"),
        )
        found: list[RecordRow] = []
        position = None
        for _ in range(400):
            page = reader.page(where, parse_order(order), size, position, budget=150)
            assert len(page.rows) <= size
            found += page.rows
            position = page.position
            if position is None:
                break
        assert [row.id for row in found] == [row.id for row in expected]
        assert {row.id for row in reader.stream(where)} == {row.id for row in expected}
        assert [row.id for row in reader.stream(where, parse_order(order))] == [row.id for row in expected]
        counted = reader.count(where, 10_000)
        assert counted == (len(expected), sum(row.size for row in expected), True)
        few, _, exact = reader.count(where, 3)
        assert few == len(expected) if exact else few <= len(expected)


def test_the_certainly_wrong_come_before_what_derives_from_them_and_what_is_right() -> None:
    every = [(cls, reason) for cls, reasons in REASONS.items() for reason in (reasons or (None,))]
    ranked = [reason or cls for cls, reason in sorted(every, key=lambda kind: -certainty(*kind))]
    assert len({certainty(*kind) for kind in every}) == len(every), "each has a place of its own"
    assert 0 not in {certainty(*kind) for kind in every}
    order = ["other_layout", "other_size", "short", "legacy_name", "model_not_served", "derived", "layout_unknown"]
    assert [name for name in ranked if name in order] == order
    assert ranked[-2:] == ["current", "foreign"]


@pytest.mark.parametrize(
    ("query", "order"),
    [
        ({}, "-modified_at"),
        ({"q": "ab"}, "-modified_at"),
        ({"class": "current"}, "-modified_at"),
        ({"class": "unverified", "reason": "derived"}, "-modified_at"),
        ({"reason": "derived"}, "-modified_at"),
        ({"class": "incompatible"}, "-certainty"),
        ({"class": "incompatible,temporary", "reason": "other_layout"}, "-modified_at"),
        ({"class": "corrupt,unverified", "reason": "derived,short"}, "-certainty"),
    ],
)
def test_what_nobody_sorted_comes_by_certainty_where_kinds_are_mixed(query: dict[str, str], order: str) -> None:
    assert page_order(RecordFilter.from_query(query)) == order


def test_a_page_looks_at_a_bounded_number_of_rows(reader: Reader) -> None:
    page = reader.page(RecordFilter(q="eeee"), "name", 100, None, budget=20)
    assert len(page.rows) < 20
    assert page.position is not None


def test_the_indexes_answer_every_order(reader: Reader) -> None:
    """No page sorts: a sort would read a million rows for a hundred."""
    plans = []
    database = reader._db
    for order in ORDERS:
        statements: list[str] = []
        database.set_trace_callback(statements.append)
        reader.page(RecordFilter(older_than=5.0, unused_for=5.0), parse_order(order), 50, None)
        database.set_trace_callback(None)
        for statement in statements:
            if " FROM record " in statement:
                plans += [row[3] for row in database.execute("EXPLAIN QUERY PLAN " + statement)]
    assert plans
    assert not [plan for plan in plans if "TEMP B-TREE" in plan or "SCAN" in plan]


def test_a_foreign_position_is_refused(reader: Reader) -> None:
    for order in ORDERS:
        for position in ([], ["x"], [1], [None, None], ["a", "b", "c", "d"]):
            with pytest.raises(ValueError):
                reader.page(RecordFilter(), parse_order(order), 10, position)  # type: ignore[arg-type]


class TestFilters:
    @pytest.mark.parametrize(
        ("text", "seconds"), [("10m", 600), ("24h", 86400), ("14d", 1209600), ("90", 90), ("1.5h", 5400), ("0s", 0)]
    )
    def test_ages(self, text: str, seconds: float) -> None:
        assert parse_age(text, field="older_than") == seconds

    @pytest.mark.parametrize("text", ["", "soon", "-1h", "1y", "1h30m", True, None, "9" * 40, "1e400d"])
    def test_ages_that_make_no_sense(self, text: object) -> None:
        with pytest.raises(InvalidInput, match="older_than"):
            parse_age(text, field="older_than")

    @pytest.mark.parametrize(
        ("text", "size"),
        [("0", 0), ("4096", 4096), ("10MB", 10**7), ("10MiB", 10 * 2**20), ("1.5k", 1500), ("2TiB", 2**41), (7, 7)],
    )
    def test_sizes(self, text: object, size: int) -> None:
        assert parse_size(text, field="min_size") == size

    @pytest.mark.parametrize("text", ["", "big", "-1", "1iB", "1XB", "9" * 30, True, 1.5])
    def test_sizes_that_make_no_sense(self, text: object) -> None:
        with pytest.raises(InvalidInput, match="min_size"):
            parse_size(text, field="min_size")

    @pytest.mark.parametrize(
        ("query", "field"),
        [
            ({"class": "good"}, "class"),
            ({"reason": "bad"}, "reason"),
            ({"kv_rank": "0x1ffffffff"}, "kv_rank"),
            ({"kv_rank": "one"}, "kv_rank"),
            ({"salt": "s" * 129}, "salt"),
            ({"q": "a\0b"}, "q"),
            ({"older_than": "x"}, "older_than"),
            ({"epoch": "-3"}, "epoch"),
            ({"colour": "red"}, "colour"),
            ({"class": 3}, "class"),
        ],
    )
    def test_each_bad_field_is_named(self, query: dict[str, object], field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            RecordFilter.from_query(query, prefix="filter.")
        assert [error.field for error in caught.value.errors] == [f"filter.{field}"]

    def test_all_fields(self) -> None:
        where = RecordFilter.from_query(
            {
                "class": "corrupt,unverified",
                "reason": "short",
                "model": "/models/a",
                "kv_rank": "0x01000100",
                "salt": "",
                "q": "ab",
                "min_size": "1MiB",
                "older_than": "1h",
                "unused_for": "2d",
            }
        )
        assert where == RecordFilter(
            frozenset({"corrupt", "unverified"}),
            frozenset({"short"}),
            frozenset({"/models/a"}),
            16777472,
            "",
            "ab",
            2**20,
            3600.0,
            172800.0,
        )
        with pytest.raises(InvalidInput, match="order"):
            parse_order("colour")
