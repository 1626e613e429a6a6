"""Epochs as they are kept and shown: what only became better known is one, whatever came between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete, select

from app.lmcache.layouts import KVLayout, compare_layouts
from app.records.epoch_views import epoch_views, folds
from app.records.filters import RecordFilter
from app.records.schemas import EpochView
from app.records.tables import LayoutEpoch
from tests.unit.records.room import Room
from tests.unit.records.world import LAYOUTS, layout

SECOND = "/models/other"


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    made.close()


def told(shown: KVLayout) -> KVLayout:
    """The same once its engine was read: facts the server does not tell."""
    return replace(shown, engine_version="0.32.0", model_revision="main", draft_layers=0)


def of_model(room: Room, model: str) -> list[EpochView]:
    return [epoch for epoch in room.records.epochs(1).items if epoch.model_name == model]


def rows(room: Room) -> list[LayoutEpoch]:
    with room.db.read() as session:
        return list(session.scalars(select(LayoutEpoch).order_by(LayoutEpoch.id)))


class TestKept:
    """The history of two models on one store: the second one's engine is read a poll after its context appeared."""

    def second_appears(self, room: Room) -> None:
        theirs = replace(LAYOUTS[1], model_name=SECOND)
        room.changed_layout()
        with room.db.write() as session:  # its last poll was a while ago
            session.execute(delete(LayoutEpoch))
        room.polls(0, 10, {"c2": LAYOUTS[1], "c3": theirs}, engine_ids=("c1", "c2"))
        room.clock.now += 10
        assert len(of_model(room, SECOND)) == 1  # somebody looked meanwhile, and it was written down
        room.polls(20, 60, {"c2": LAYOUTS[1], "c3": told(theirs)}, engine_ids=("c1", "c2", "c3"))
        room.clock.now += 60

    def test_what_became_known_of_a_second_model_makes_no_epoch(self, room: Room) -> None:
        self.second_appears(room)
        before = [row.id for row in rows(room) if row.display_model == SECOND]
        (epoch,) = of_model(room, SECOND)
        assert epoch.layout is not None
        assert (epoch.layout["dtype"], epoch.layout["engine_version"]) == ("float16", "0.32.0")
        assert (epoch.live, epoch.changes, len(epoch.spans)) == (True, [], 1)
        assert [int(epoch.id)] == before  # a link to it still holds

    def test_it_ends_when_its_server_drops_it(self, room: Room) -> None:
        """The row as it was known at first stayed possible for ever. (An engine that is away keeps its layout live.)"""
        self.second_appears(room)
        room.polls(70, 100, {"c2": LAYOUTS[1]}, engine_ids=("c1", "c2", "c3"))
        room.clock.now += 40
        (epoch,) = of_model(room, SECOND)
        assert epoch.live
        assert epoch.ended_at is not None

    def test_a_layout_after_another_is_listed_once_too(self, room: Room) -> None:
        """The first model had epochs before: there both rows differed from the one before, and both were listed."""
        room.polls(-5_000, -1_000, {"c1": told(LAYOUTS[0])}, engine_ids=("c1",))
        room.polls(-990, -900, {"c2": LAYOUTS[1]}, engine_ids=("c1", "c2"))
        assert len(of_model(room, LAYOUTS[0].model_name)) == 2
        room.polls(-890, -1, {"c2": told(LAYOUTS[1])}, engine_ids=("c1", "c2"))
        new, old = of_model(room, LAYOUTS[0].model_name)
        assert {change["field"] for change in new.changes} >= {"dtype"}
        assert (new.live, old.live) == (True, False)
        assert len(rows(room)) == 2

    def test_what_no_poll_tells_of_any_more_stays_as_past(self, room: Room) -> None:
        room.changed_layout()
        room.records.epochs(1)
        with room.db.write() as session:
            gone = layout("float32")
            span = {"from": 1.0, "until": None, "first_listed": 2.0, "last_listed": 3.0}
            session.add(_row(0, gone, 1.0, live=True, spans=[span], store_id=1, model_name="-SEP-models-SEP-tiny"))
        found = next(epoch for epoch in room.records.epochs(1).items if (epoch.layout or {})["dtype"] == "float32")
        assert (found.live, found.ended_at) == (False, "1970-01-01T00:00:03.000Z")

    def test_records_of_either_are_the_one_epochs(self, room: Room) -> None:
        """What decides bytes became known later: two fingerprints, one epoch; its records are counted and found."""
        known = replace(LAYOUTS[0], draft_layers=1)
        assert known.fingerprint != LAYOUTS[0].fingerprint
        room.polls(-5_000, -3_000, {"c1": known}, engine_ids=("c1",))
        # another server process: its engine could not be read, so nothing says that they are the same
        room.polls(-2_000, -1, {"c1": LAYOUTS[0]}, instance="i2", boot=-2_500.0, engine_ids=("c1",))
        names = {room.record(1, age=4_000), room.record(2, age=1_000)}
        room.scan()
        (epoch,) = [epoch for epoch in room.records.epochs(1).items if epoch.kind == "observed"]
        assert (epoch.records, len(epoch.spans), epoch.live) == (2, 2, True)
        assert epoch.layout is not None
        assert epoch.layout["draft_layers"] == 1
        for row in rows(room):
            where = RecordFilter(epoch_id=row.id)
            page = room.records.list_records(1, where, order="name", page_size=10, page_token=None)
            assert {item.name for item in page.items} == names
            assert {item.epoch_id for item in page.items} == {epoch.id}


def _row(number: int, shown: KVLayout, *starts: float, **more: object) -> LayoutEpoch:
    spans = [{"from": at, "until": at + 10, "first_listed": at, "last_listed": at + 10} for at in starts]
    values = {
        "id": number or None,
        "kind": "observed",
        "model_name": shown.model_name,
        "display_model": shown.model_name,
        "world_size": shown.world_size,
        "live": False,
        "created_at": 0.0,
        "fingerprint": shown.fingerprint,
        "variant": str(number),
        "layout": shown.to_dict(),
        "spans": spans,
    }
    return LayoutEpoch(**{**values, **more})


_LAYOUTS = st.builds(
    lambda model, size, values: replace(layout(), model_name=model, world_size=size, **values),
    st.sampled_from(["/models/tiny", SECOND]),
    st.sampled_from([1, 2]),
    st.fixed_dictionaries(
        {
            "chunk_size": st.sampled_from([None, 64, 128]),
            "dtype": st.sampled_from([None, "bfloat16", "float16", "uint8"]),
            "kv_cache_dtype": st.sampled_from([None, "auto", "fp8_e4m3", "fp8_e5m2"]),
            "groups": st.sampled_from([(), layout().groups]),
            "tokens_per_block": st.sampled_from([None, 32]),
            "draft_layers": st.sampled_from([None, 0, 1]),
            "serde": st.sampled_from([None, "none", "x"]),
            "lmcache_version": st.sampled_from([None, "0.5.5", "0.5.6"]),
            "engine_version": st.sampled_from([None, "1", "2"]),
            "engine_kv_shape": st.sampled_from([None, "NHD", "HND"]),
        }
    ),
)


class TestShown:
    @given(st.lists(st.tuples(_LAYOUTS, st.sampled_from([100.0, 200.0, 300.0, 400.0])), max_size=8))
    def test_two_with_no_field_that_differs_are_never_two_rows(self, told_at: list[tuple[KVLayout, float]]) -> None:
        made = [_row(number, shown, at) for number, (shown, at) in enumerate(told_at, 1)]
        found = folds(made)
        assert sorted(row.id for fold in found for row in fold.rows) == [row.id for row in made]
        for one, other in combinations(found, 2):
            if (one.shown.model_name, one.shown.world_size) == (other.shown.model_name, other.shown.world_size):
                assert compare_layouts(one.known, other.known).differences
        views = epoch_views(made, {})
        assert len(views) == len(found)
        assert all(view.changes for view in views if _has_one_before(view, views))

    def test_known_less_after_another_it_is_still_the_one_before(self) -> None:
        a, b = told(layout("bfloat16")), told(layout("float16"))
        views = epoch_views([_row(1, a, 100.0), _row(2, b, 200.0), _row(3, layout("bfloat16"), 300.0)], {})
        assert [(view.id, len(view.spans)) for view in views] == [("2", 1), ("1", 2)]

    def test_another_model_or_world_size_is_another_epoch(self) -> None:
        a = layout()
        rows = [_row(1, a, 1.0), _row(2, replace(a, model_name=SECOND), 2.0), _row(3, replace(a, world_size=2), 3.0)]
        assert len(epoch_views(rows, {})) == 3


def _has_one_before(view: EpochView, views: list[EpochView]) -> bool:
    return any(
        (other.model_name, other.world_size) == (view.model_name, view.world_size)
        and any((span["from"] or "") < (view.possible_from or "") for span in other.spans)
        for other in views
        if other is not view
    )
