"""Observation rows and contexts: what begins a new row, whose facts a context gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.lmcache.layouts import KVLayout, ObjectGroup
from app.telemetry.contexts import Context, SeenLayout, Witness, complete, remember
from app.telemetry.observation import Observed, Span, extends

GROUP = ObjectGroup(index=0, layers=2, tokens_per_block=32, slots_per_block=32, dtype="bfloat16", is_mla=False)
LAYOUT = KVLayout(model_name="/m", world_size=1, chunk_size=64, dtype="bfloat16", groups=(GROUP,), bytes_per_token=512)
BARE = KVLayout(model_name="/m", world_size=1, chunk_size=64)  # engine_driven: the server tells no dtype
POLL = Observed(
    at=110.0,
    ok=True,
    instance_id="i",
    process_start=1.0,
    lmcache_version="0.5.6",
    contexts={"7": LAYOUT.to_dict()},
    engine_starts={"1": 2.0},
    engine_ids=("7",),
    drained=True,
    reap_timeout_seconds=120.0,
)
SPAN = Span(first_at=50.0, last_at=100.0, observed=POLL)


class TestExtends:
    def test_an_equal_poll_does(self) -> None:
        assert extends(SPAN, POLL, 10.0)
        assert extends(SPAN, replace(POLL, clock_offset=3.0), 10.0)

    @pytest.mark.parametrize(
        "change",
        [
            {"ok": False},
            {"instance_id": "j"},
            {"process_start": 90.0},
            {"lmcache_version": "0.5.7"},
            {"contexts": {}},
            {"engine_starts": {"1": 95.0}},
            {"engine_ids": ("7", "8")},
            {"engine_ids": None},
            {"reap_timeout_seconds": 5.0},
            {"at": 131.0},
            {"at": 99.0},
        ],
    )
    def test_any_difference_or_gap_does_not(self, change: dict[str, object]) -> None:
        assert not extends(SPAN, replace(POLL, **change), 10.0)  # type: ignore[arg-type]

    def test_a_queue_that_drains_begins_a_row_one_that_fills_does_not(self) -> None:
        filled = Span(50.0, 100.0, replace(POLL, drained=False))
        assert not extends(filled, POLL, 10.0)
        assert extends(SPAN, replace(POLL, drained=False), 10.0)
        assert extends(SPAN, replace(POLL, drained=None), 10.0)

    def test_failed_polls_share_a_row_whatever_they_say(self) -> None:
        failed = Span(50.0, 100.0, Observed(at=100.0, ok=False, reason="refused"))
        assert extends(failed, Observed(at=110.0, ok=False, reason="timeout"), 10.0)


def engine(**changes: object) -> Witness:
    base = Witness(1, frozenset({"/m"}), process_start=100.0, dtype="bfloat16", kv_cache_dtype="auto")
    return replace(base, **changes)  # type: ignore[arg-type]


class TestFacts:
    def test_the_engine_fills_what_the_server_does_not_tell(self) -> None:
        found = complete({"7": BARE}, {}, [engine()], now=120.0)
        assert (found["7"].layout.dtype, found["7"].layout.kv_cache_dtype) == ("bfloat16", "auto")
        assert found["7"].first_seen == 120.0

    def test_of_another_model_it_says_nothing(self) -> None:
        assert complete({"7": BARE}, {}, [engine(model_names=frozenset({"/n"}))], now=120.0)["7"].layout == BARE

    def test_a_context_from_before_the_engines_process_keeps_its_own(self) -> None:
        before = {"7": Context(BARE, 50.0)}
        old = complete({"7": BARE, "8": BARE}, before, [engine(process_start=100.0, dtype="float16")], now=120.0)
        assert old["7"].layout.dtype is None
        assert old["8"].layout.dtype == "float16"

    def test_what_was_merged_stays_when_the_engine_restarts_with_another_dtype(self) -> None:
        first = complete({"7": BARE}, {}, [engine()], now=120.0)
        later = complete({"7": BARE, "8": BARE}, first, [engine(process_start=200.0, dtype="float16")], now=230.0)
        assert later["7"].layout.dtype == "bfloat16"
        assert later["8"].layout.dtype == "float16"

    def test_old_and_new_first_seen_together_are_not_guessed(self) -> None:
        both = complete({"7": BARE, "8": BARE}, {}, [engine()], now=120.0)
        assert {c.layout.dtype for c in both.values()} == {None}

    def test_ranks_of_one_engine_are_no_rivals(self) -> None:
        pair = replace(BARE, world_size=2)
        both = complete({"7": pair, "8": pair}, {}, [engine()], now=120.0)
        assert {c.layout.dtype for c in both.values()} == {"bfloat16"}

    def test_two_engines_must_agree_and_both_be_known(self) -> None:
        agree = [engine(), engine(engine_id=2)]
        assert complete({"7": BARE, "8": BARE}, {}, agree, now=120.0)["7"].layout.dtype == "bfloat16"
        for other in (engine(engine_id=2, dtype="float16"), engine(engine_id=2, process_start=None)):
            assert complete({"7": BARE}, {}, [engine(), other], now=120.0)["7"].layout.dtype is None

    def test_known_fields_are_never_replaced(self) -> None:
        found = complete({"7": LAYOUT}, {}, [engine(dtype="float16")], now=120.0)
        assert found["7"].layout.dtype == "bfloat16"

    def test_an_id_with_another_layout_is_another_context(self) -> None:
        before = {"7": Context(LAYOUT, 50.0)}
        other = replace(LAYOUT, chunk_size=128)
        assert complete({"7": other}, before, [], now=120.0)["7"] == Context(other, 120.0)


class TestRemember:
    def test_live_ones_first_then_those_that_are_gone(self) -> None:
        seen = remember((), {"7": Context(LAYOUT, 50.0), "9": Context(LAYOUT, 40.0)}, 60.0)
        assert seen == (SeenLayout(LAYOUT, 40.0, 60.0, 2),)
        other = replace(LAYOUT, chunk_size=128)
        later = remember(seen, {"8": Context(other, 70.0)}, 70.0)
        assert [(s.layout.chunk_size, s.first_seen, s.last_seen, s.contexts) for s in later] == [
            (128, 70.0, 70.0, 1),
            (64, 40.0, 60.0, 0),
        ]
        back = remember(later, {"1": Context(LAYOUT, 90.0)}, 90.0)
        assert [(s.layout.chunk_size, s.first_seen, s.contexts) for s in back] == [(64, 40.0, 1), (128, 70.0, 0)]

    def test_learning_more_of_a_layout_makes_no_second_one(self) -> None:
        seen = remember((), {"7": Context(BARE, 50.0)}, 60.0)
        known = replace(BARE, dtype="bfloat16", kv_cache_dtype="auto")
        assert remember(seen, {"7": Context(known, 50.0)}, 70.0) == (SeenLayout(known, 50.0, 70.0, 1),)

    def test_what_no_known_field_sets_apart_is_one_layout_also_after_it_was_gone(self) -> None:
        known = replace(BARE, draft_layers=1)
        assert known.fingerprint != BARE.fingerprint
        both = {"7": Context(known, 50.0), "8": Context(BARE, 55.0)}
        assert remember((), both, 60.0) == (SeenLayout(known, 50.0, 60.0, 2),)
        gone = remember((SeenLayout(BARE, 40.0, 50.0, 1),), {}, 60.0)
        assert [entry.contexts for entry in gone] == [0]
        assert remember(gone, {"9": Context(known, 70.0)}, 70.0) == (SeenLayout(known, 40.0, 70.0, 1),)

    def test_is_bounded(self) -> None:
        seen: tuple[SeenLayout, ...] = ()
        for size in range(80):
            seen = remember(seen, {"7": Context(replace(LAYOUT, chunk_size=size + 1), float(size))}, float(size))
        assert len(seen) == 50
