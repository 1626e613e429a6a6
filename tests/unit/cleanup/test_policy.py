"""What policies may say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cleanup.policy import (
    DEFAULT_REASONS,
    REASONS,
    SAFE_FILTER,
    Blackout,
    cron_of,
    in_blackout,
    on_layout_change,
)
from app.cleanup.policy_parsing import parse_filter_spec, parse_spec
from app.cleanup.presets import describe, presets
from app.cleanup.quantities import parse_age, parse_amount
from app.cleanup.service_policies import _schedule
from app.errors import InvalidInput
from app.paths import DOCS


def test_the_pages_filter_takes_what_keep_it_safe_takes() -> None:
    """What the buttons plan is one thing. A filter has no age of unfinished writes: those wait for the policy."""
    safe = parse_spec({"select": presets()[0].policy["select"]})
    filtered = parse_filter_spec({"filter": SAFE_FILTER})
    kinds = [*((cls, reason) for cls, reasons in REASONS.items() for reason in reasons)]
    for cls, reason in (*kinds, ("unverified", "derived"), ("unverified", "layout_unknown"), ("current", None)):
        why = "derived" if reason == "derived" else cls
        taken = why in (*REASONS, "derived") and safe.selects_now(why, cls, reason)
        assert filtered.selects_now("filter", cls, reason) is taken, (cls, reason)
    assert filtered.takes_derived
    assert safe.takes_derived
    told = " ".join((DOCS / "CLASSES.md").read_text("utf-8").split())
    for name, value in SAFE_FILTER.items():
        assert f"`{name}={value}`" in told
    assert not parse_filter_spec({"filter": {"class": "incompatible"}}).takes_derived
    assert not parse_filter_spec({"filter": {**SAFE_FILTER, "q": "@"}}).takes_derived, "some of them only"


def refused(body: dict[str, Any], **more: Any) -> dict[str, str]:
    with pytest.raises(InvalidInput) as caught:
        parse_spec(body, **more)
    return {e.field: e.message for e in caught.value.errors}


class TestAges:
    @pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("24h", 86400), ("14d", 1209600), (" 2w ", 1209600)])
    def test_reads(self, text: str, seconds: int) -> None:
        assert parse_age(text).seconds == seconds

    @pytest.mark.parametrize(
        "value", ["0h", "10", "1.5h", "-1h", "h", "", None, 10, True, "10 years", "9999999d", "１h"]
    )
    def test_refuses(self, value: object) -> None:
        with pytest.raises(ValueError, match="14d"):
            parse_age(value)


class TestSizes:
    @pytest.mark.parametrize(
        ("value", "size"),
        [
            (123, 123),
            ("123", 123),
            ("200GB", 200 * 10**9),
            ("200 GiB", 200 * 2**30),
            ("1.5TB", 1_500_000_000_000),
            ("4TiB", 4 * 2**40),
            ("9007199254740993", 9007199254740993),
        ],
    )
    def test_reads(self, value: object, size: int) -> None:
        assert parse_amount(value).bytes == size

    def test_percent(self) -> None:
        assert parse_amount("85%").fraction == 0.85

    @pytest.mark.parametrize(
        "value", ["0", "-1", "101%", "0%", "200G", "12XB", "", None, 1.5, True, "1e9", "9EB", 2**63]
    )
    def test_refuses(self, value: object) -> None:
        with pytest.raises(ValueError):
            parse_amount(value)

    def test_an_ambiguous_unit_is_named(self) -> None:
        with pytest.raises(ValueError, match=r"GB \(powers of ten\) or GiB"):
            parse_amount("200G")

    @given(st.integers(1, 2**62))
    def test_integers_lose_nothing(self, value: int) -> None:
        assert parse_amount(value).bytes == value
        assert parse_amount(str(value)).bytes == value


class TestSelect:
    def test_default_reasons_leave_the_owners_out(self) -> None:
        spec = parse_spec({"select": [{"kind": "incompatible"}]})
        assert spec.reasons_of("incompatible") == {"other_layout", "other_size", "declared"}

    def test_explicit_reasons(self) -> None:
        spec = parse_spec({"select": [{"kind": "incompatible", "reasons": ["model_not_served"]}]})
        assert spec.reasons_of("incompatible") == {"model_not_served"}

    def test_what_may_be_chosen_is_told_in_words_of_a_form_and_of_the_api(self) -> None:
        with pytest.raises(InvalidInput) as caught:
            parse_spec({"select": []})
        message = caught.value.errors[0].message
        assert message.startswith("choose at least one kind of record to remove: incompatible, corrupt, ")
        assert "{" not in message

    @pytest.mark.parametrize(
        ("select", "field"),
        [
            ([], "select"),
            (None, "select"),
            ("corrupt", "select"),
            ([7], "select[0]"),
            ([{"kind": "corupt"}], "select[0].kind"),
            ([{}], "select[0].kind"),
            ([{"kind": "corrupt", "reasons": []}], "select[0].reasons"),
            ([{"kind": "corrupt", "reasons": ["other_layout"]}], "select[0].reasons[0]"),
            ([{"kind": "corrupt", "reason": ["short"]}], "select[0].reason"),
            ([{"kind": "derived", "older_than": "1h"}], "select[0].older_than"),
            ([{"kind": "temporary", "older_than": "soon"}], "select[0].older_than"),
            ([{"kind": "unused"}], "select[0].for"),
            ([{"kind": "unused", "for": "14d", "age_only": "yes"}], "select[0].age_only"),
            ([{"kind": "corrupt"}, {"kind": "corrupt"}], "select[1].kind"),
            ([{"kind": "free_space"}], "select[0].floor"),
            ([{"kind": "capacity", "high": "85%"}], "select[0].low"),
        ],
    )
    def test_names_the_bad_field(self, select: object, field: str) -> None:
        assert field in refused({"select": select})

    @pytest.mark.parametrize(
        ("high", "low"),
        [("70%", "85%"), ("70%", "70%"), ("1TB", "2TB"), ("85%", "3TiB"), ("4TiB", "70%"), (100, "1KB")],
    )
    def test_contradictions_name_both_fields(self, high: object, low: object) -> None:
        found = refused({"select": [{"kind": "capacity", "high": high, "low": low}]})
        assert set(found) == {"select[0].low", "select[0].high"}
        assert all(str(high) in m and str(low) in m for m in found.values())

    def test_sizes_above_the_disk(self) -> None:
        capacity = refused({"select": [{"kind": "capacity", "high": "4TiB", "low": "3TiB"}]}, filesystem_bytes=2**40)
        assert "select[0].high" in capacity
        floor = refused({"select": [{"kind": "free_space", "floor": "2TiB"}]}, filesystem_bytes=2**40)
        assert set(floor) == {"select[0].floor", "store_id"}
        assert "select[0].floor" in refused({"select": [{"kind": "free_space", "floor": "100%"}]})

    def test_everything_wrong_is_said_at_once(self) -> None:
        found = refused(
            {
                "select": [{"kind": "nope"}],
                "protect": {"accessed": "1h", "written_within": "x", "models": "m"},
                "limits": {"max_records": 0, "max_bytes": "10%", "max_fraction": 2},
                "removal": "burn",
                "quarantine_for": "later",
                "blackouts": [{"start": "25:00", "end": "1:00", "days": [9]}],
            }
        )
        assert set(found) == {
            "select[0].kind",
            "protect.accessed",
            "protect.written_within",
            "protect.models",
            "limits.max_records",
            "limits.max_bytes",
            "limits.max_fraction",
            "removal",
            "quarantine_for",
            "blackouts[0].start",
            "blackouts[0].days",
        }


class TestActions:
    def test_space_is_freed_by_deleting_whatever_removal_says(self) -> None:
        spec = parse_spec({"select": [{"kind": "capacity", "high": "85%", "low": "70%"}]})
        assert spec.action_for("capacity", None) == "delete"
        assert spec.action_for("unused", None) == "quarantine"

    def test_other_size_is_never_deleted_at_once(self) -> None:
        spec = parse_spec({"select": [{"kind": "incompatible"}], "removal": "delete"})
        assert spec.action_for("incompatible", "other_size") == "quarantine"
        assert spec.action_for("incompatible", "other_layout") == "delete"

    def test_what_a_policy_selects_now(self) -> None:
        spec = parse_spec({"select": [{"kind": "incompatible"}, {"kind": "derived"}, {"kind": "unused", "for": "1d"}]})
        assert spec.selects_now("incompatible", "incompatible", "declared")
        assert not spec.selects_now("incompatible", "incompatible", "model_not_served")
        assert not spec.selects_now("incompatible", "current", None)
        assert spec.selects_now("derived", "unverified", "derived")
        assert not spec.selects_now("derived", "unverified", "layout_unknown")
        assert spec.selects_now("unused", "current", None)
        assert not spec.selects_now("unused", "foreign", None)
        assert not spec.selects_now("unused", "temporary", None)

    @pytest.mark.parametrize("given_class", ["corrupt", "corrupt,unreachable", ["corrupt"]])
    def test_a_filter_on_class_holds_at_the_run(self, given_class: object) -> None:
        spec = parse_filter_spec({"filter": {"class": given_class}, "removal": "quarantine"})
        assert spec.selects_now("filter", "corrupt", "short")
        assert not spec.selects_now("filter", "current", None)


class TestSchedules:
    @pytest.mark.parametrize(
        ("text", "cron"),
        [
            (None, None),
            ("@layout-change", None),
            ("0 2 * * * @layout-change", "0 2 * * *"),
            ("@daily", "0 0 * * *"),
            ("5 4 * * 0", "5 4 * * 0"),
        ],
    )
    def test_cron(self, text: str | None, cron: str | None) -> None:
        assert cron_of(text) == cron

    @pytest.mark.parametrize(
        ("text", "kept"),
        [
            (" 0  2 * * *  @layout-change", "0 2 * * * @layout-change"),
            ("@daily @layout-change", "@daily @layout-change"),
            ("@layout-change @layout-change", "@layout-change"),
        ],
    )
    def test_by_the_clock_and_on_a_layout_change(self, text: str, kept: str) -> None:
        assert _schedule(text) == kept

    @pytest.mark.parametrize("text", ["@sometimes @layout-change", "0 2 * * @layout-change", "@layout-change @daily"])
    def test_both_in_a_form_that_is_none(self, text: str) -> None:
        with pytest.raises(InvalidInput, match="schedule"):
            _schedule(text)

    def test_blackouts(self) -> None:
        day = Blackout(8 * 60, 20 * 60, frozenset({1, 2}))
        night = Blackout(22 * 60, 6 * 60, frozenset({5}))
        assert in_blackout([day], 1, 8 * 60)
        assert not in_blackout([day], 1, 20 * 60)
        assert not in_blackout([day], 3, 9 * 60)
        assert in_blackout([night], 5, 23 * 60)
        assert in_blackout([night], 6, 5 * 60)
        assert not in_blackout([night], 6, 23 * 60)
        assert not in_blackout([night], 5, 5 * 60)
        assert in_blackout([Blackout(0, 0, frozenset())], 3, 12 * 60)


class TestPresets:
    @pytest.mark.parametrize("preset", presets(), ids=lambda p: p.id)
    def test_are_valid_and_described(self, preset: Any) -> None:
        spec = parse_spec(preset.policy)
        assert len(describe(spec)) >= len(spec.select)

    def test_a_preset_with_a_mark_says_what_it_takes_below_it(self) -> None:
        preset = next(p for p in presets() if p.id == "keep_under_85")
        spec = parse_spec(preset.policy)
        assert spec.removal == "delete"
        assert preset.policy["schedule"] == "*/15 * * * *"
        assert preset.description.startswith("Every 15 minutes.")
        assert "at every run, however empty the file system is" in preset.description
        assert "Deletes for good" in preset.description
        said = describe(spec)
        for cls in ("corrupt", "unreachable", "incompatible"):
            assert any(s.startswith(f"Takes {cls} ") and "at every run, however full" in s for s in said)
        # Without a mark there is nothing that they could be thought to wait for.
        assert not any("however full" in s for s in describe(parse_spec(presets()[0].policy)))

    def test_keep_it_safe_takes_what_the_rules_name(self) -> None:
        spec = parse_spec(presets()[0].policy)
        for cls, reasons in DEFAULT_REASONS.items():
            assert spec.reasons_of(cls) == reasons
        assert spec.item("derived") is not None
        assert cron_of(presets()[0].policy["schedule"]) == "30 2 * * *"
        assert on_layout_change(presets()[0].policy["schedule"])
        assert spec.removal == "quarantine"
        assert not {"model_not_served", "other_world_size", "unknown_object_group"} & spec.reasons_of("incompatible")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(["kind", "reasons", "older_than", "for", "age_only", "high", "low", "floor", "x"])
kinds = st.sampled_from([*REASONS, "derived", "temporary", "unused", "capacity", "free_space"])


class TestHostileJson:
    @given(
        st.dictionaries(
            st.sampled_from(["select", "protect", "limits", "removal", "quarantine_for", "blackouts", "z"]), json_values
        )
    )
    def test_anything_is_read_or_refused_with_fields(self, body: dict[str, Any]) -> None:
        try:
            parse_spec(body)
        except InvalidInput as error:
            assert error.errors

    @given(st.lists(st.tuples(kinds, st.dictionaries(keys, json_values, max_size=3)), min_size=1, max_size=3))
    def test_any_select_is_read_or_refused_with_fields(self, raw: list[tuple[str, dict[str, Any]]]) -> None:
        try:
            spec = parse_spec({"select": [{**item, "kind": kind} for kind, item in raw]})
        except InvalidInput as error:
            assert all(e.field.startswith("select[") for e in error.errors)
        else:
            assert len(spec.select) == len(raw)
            assert describe(spec)
