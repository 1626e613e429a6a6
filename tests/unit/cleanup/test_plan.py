"""The pure planner: what goes, in which order, what stays, and what a plan warns of."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cleanup.advice import check_use_is_visible, warnings_for
from app.cleanup.plan import StoreFacts
from app.cleanup.plan_in_memory import PlanResult, make_plan
from app.cleanup.policy import PolicySpec
from app.cleanup.policy_parsing import parse_filter_spec, parse_spec
from app.cleanup.ports import Batch
from app.cleanup.presets import presets
from app.errors import InvalidInput

NOW = 1_796_000_000.0
DAY = 86_400.0
KIB = 1024


class Record(NamedTuple):
    """One record, as tests speak of it."""

    id: int
    cls: str
    reason: str | None
    size: int
    mtime_ns: int
    atime_ns: int
    model: str
    held: str | None
    device: int


def record(
    number: int,
    cls: str = "current",
    reason: str | None = None,
    *,
    size: int = 4 * KIB,
    written: float = 40 * DAY,
    used: float | None = None,
    model: str = "/m/a",
    held: str | None = None,
    device: int = 1,
) -> Record:
    """Written and used so many seconds ago."""
    mtime = int((NOW - written) * 1e9)
    atime = mtime if used is None else int((NOW - used) * 1e9)
    return Record(number, cls, reason, size, mtime, atime, model, held, device)


def facts(records: list[Record], **more: Any) -> StoreFacts:
    values: dict[str, Any] = {
        "records": len(records),
        "bytes": sum(r.size for r in records),
        "fs_total": 1000 * KIB,
        "fs_used": 900 * KIB,
        "fs_free": 100 * KIB,
        "block_size": KIB,
        "device": 1,
        "scanned_at": NOW,
        "served_now": frozenset({"/m/a"}),
    }
    return StoreFacts(**{**values, **more})


def batches(records: list[Record]) -> list[Batch]:
    """As an inventory gives them: runs of one kind together."""
    found: list[Batch] = []
    for r in records:
        kind = (r.cls, r.reason, r.model, r.device)
        if not found or found[-1][:4] != kind:
            found.append(Batch(*kind, []))
        found[-1].rows.append((b"r%d" % r.id, r.size, r.mtime_ns, r.mtime_ns, r.atime_ns, 1000 + r.id, r.id))
    return found


def planned(records: list[Record], spec: PolicySpec, known: StoreFacts | None = None) -> PlanResult:
    held = {b"r%d" % r.id: r.held for r in records if r.held is not None}
    return make_plan(batches(records), spec, known or facts(records), NOW, held)


def plan(
    records: list[Record], select: list[dict[str, Any]], known: StoreFacts | None = None, **body: Any
) -> PlanResult:
    return planned(records, parse_spec({"select": select, **body}), known)


def taken(result: PlanResult) -> list[int]:
    return [row[6] or 0 for group in result.groups for row in group.rows]


class TestWhatGoes:
    def test_wrong_records_go_below_the_mark_too_and_others_do_not(self) -> None:
        """As the preset that keeps a disk under 85 % says of itself."""
        records = [record(1, "corrupt", "short"), record(2), record(3, "incompatible", "other_size")]
        empty = facts(records, fs_used=260 * KIB, fs_free=740 * KIB)
        policy = next(p.policy for p in presets() if p.id == "keep_under_85")
        result = planned(records, parse_spec(policy), empty)
        assert [(g.cls, g.action) for g in result.groups] == [("corrupt", "delete"), ("incompatible", "quarantine")]

    def test_classes_with_their_reasons_only(self) -> None:
        records = [
            record(1, "corrupt", "short"),
            record(2, "incompatible", "other_layout"),
            record(3, "incompatible", "model_not_served"),
            record(4, "unverified", "derived"),
            record(5, "unverified", "layout_unknown"),
            record(6, "foreign"),
            record(7),
        ]
        assert taken(plan(records, [{"kind": "incompatible"}])) == [2]
        assert taken(plan(records, [{"kind": "corrupt"}, {"kind": "derived"}])) == [1, 4]

    def test_temporaries_only_when_old(self) -> None:
        records = [record(1, "temporary", written=7200.0), record(2, "temporary", written=1800.0)]
        assert taken(plan(records, [{"kind": "temporary", "older_than": "1h"}])) == [1]
        assert taken(plan(records, [{"kind": "temporary"}])) == [1]

    def test_a_filter_never_takes_a_young_temporary(self) -> None:
        records = [record(1, "temporary", written=60.0), record(2, "temporary", written=3600.0)]
        spec = parse_filter_spec({"filter": {"class": "temporary"}})
        result = planned(records, spec)
        assert taken(result) == [2]
        assert result.summary.held_back == {"too_young": [1, 4 * KIB]}

    def test_unused_by_last_use_or_by_age(self) -> None:
        records = [record(1), record(2, used=2 * DAY), record(3, written=2 * DAY)]
        assert taken(plan(records, [{"kind": "unused", "for": "14d"}])) == [1]
        assert taken(plan(records, [{"kind": "unused", "for": "14d", "age_only": True}])) == [1, 2]

    def test_relatime_raises_short_ages_to_a_day(self) -> None:
        records = [record(1, used=2 * 3600.0), record(2, used=30 * 3600.0)]
        select = [{"kind": "unused", "for": "1h"}]
        assert taken(plan(records, select)) == [2]
        assert taken(plan(records, select, facts(records, atime="strict"))) == [1, 2]
        # only a limit makes the order matter
        limited = plan(records, select, facts(records, atime="strict"), limits={"max_records": 1})
        assert taken(limited) == [2]

    def test_noatime_refuses_unused_unless_by_age(self) -> None:
        spec = parse_spec({"select": [{"kind": "corrupt"}, {"kind": "unused", "for": "14d"}]})
        with pytest.raises(InvalidInput, match=r"select\[1\].age_only"):
            check_use_is_visible(spec, "noatime")
        check_use_is_visible(spec, "relatime")
        check_use_is_visible(parse_spec({"select": [{"kind": "unused", "for": "14d", "age_only": True}]}), "noatime")

    def test_each_record_goes_once(self) -> None:
        records = [record(1, "corrupt", "short"), record(2)]
        select = [
            {"kind": "corrupt"},
            {"kind": "unused", "for": "14d"},
            {"kind": "capacity", "high": "50%", "low": "10%"},
        ]
        assert taken(plan(records, select)) == [1, 2]


class TestSpace:
    def test_least_recently_used_down_to_the_low_mark(self) -> None:
        # 90 % full; down to 88 % means 20 KiB: five records of 4 KiB, the five used longest ago
        records = [record(n, used=n * DAY) for n in range(1, 40)]
        result = plan(records, [{"kind": "capacity", "high": "89%", "low": "88%"}])
        assert taken(result) == [39, 38, 37, 36, 35]
        assert all(group.action == "delete" for group in result.groups)
        assert result.summary.need is not None
        assert result.summary.need.bytes == 20 * KIB
        assert result.summary.leaves_free_bytes == 120 * KIB

    def test_below_the_high_mark_nothing_goes(self) -> None:
        result = plan([record(1)], [{"kind": "capacity", "high": "95%", "low": "10%"}])
        assert (taken(result), result.summary.need and result.summary.need.bytes) == ([], 0)

    def test_sizes_are_of_the_store_and_count_quarantine(self) -> None:
        records = [record(n, used=n * DAY) for n in range(1, 11)]
        select = [{"kind": "capacity", "high": 44 * KIB, "low": 30 * KIB}]
        assert taken(plan(records, select)) == []
        result = plan(records, select, facts(records, quarantine_bytes=8 * KIB))
        assert taken(result) == [10, 9, 8, 7, 6]  # 48 held, down to 30: 18 KiB

    def test_floor(self) -> None:
        records = [record(n, used=n * DAY) for n in range(1, 40)]
        assert len(taken(plan(records, [{"kind": "free_space", "floor": 108 * KIB}]))) == 2
        assert len(taken(plan(records, [{"kind": "free_space", "floor": "12%"}]))) == 5

    def test_certain_classes_go_first_and_count(self) -> None:
        records = [record(n, used=n * DAY) for n in range(1, 20)] + [record(50, "corrupt", "short", size=16 * KIB)]
        select = [{"kind": "corrupt"}, {"kind": "capacity", "high": "89%", "low": "88%"}]
        assert taken(plan(records, select, removal="delete")) == [50, 19]
        # in quarantine it frees nothing
        assert taken(plan(records, select)) == [50, 19, 18, 17, 16, 15]

    def test_hot_records_and_canaries_stay_and_the_shortfall_is_said(self) -> None:
        records = [record(1, used=3600.0), record(2, held="canary"), record(3)]
        select = [{"kind": "capacity", "high": "50%", "low": "40%"}]
        result = plan(records, select, protect={"accessed_within": "24h"})
        assert taken(result) == [3]
        assert result.summary.held_back == {"accessed_within": [1, 4 * KIB], "canary": [1, 4 * KIB]}
        told = warnings_for(parse_spec({"select": select}), facts(records), result.summary, NOW)
        assert "goal cannot be reached" in told[0]
        assert "accessed_within, canary" in told[0]

    def test_a_file_system_that_cannot_be_measured_frees_nothing(self) -> None:
        records = [record(1)]
        unknown = facts(records, fs_used=None, fs_free=None, fs_total=None)
        select = [{"kind": "capacity", "high": "50%", "low": "40%"}, {"kind": "free_space", "floor": "10%"}]
        result = plan(records, select, unknown)
        assert taken(result) == []
        assert "cannot be measured" in warnings_for(parse_spec({"select": select}), unknown, result.summary, NOW)[0]


class TestProtection:
    def test_a_wrong_record_in_use_goes_all_the_same(self) -> None:
        records = [record(1, "incompatible", "other_layout", used=60.0)]
        assert taken(plan(records, [{"kind": "incompatible"}], protect={"accessed_within": "7d"})) == [1]

    def test_models_and_fresh_writes_stay(self) -> None:
        records = [record(1, "corrupt", "short", model="/m/b"), record(2, "corrupt", "short", written=60.0)]
        result = plan(records, [{"kind": "corrupt"}], protect={"models": ["/m/b"], "written_within": "1h"})
        assert taken(result) == []
        assert set(result.summary.held_back) == {"protected_model", "written_within"}

    def test_restored_records_are_left_by_policies_not_by_hand(self) -> None:
        records = [record(1, "corrupt", "short", held="restored"), record(2, "corrupt", "short", held="canary")]
        assert taken(plan(records, [{"kind": "corrupt"}])) == []
        by_hand = planned(records, parse_filter_spec({"filter": {"class": "corrupt"}}))
        assert taken(by_hand) == [1]

    def test_another_device(self) -> None:
        records = [record(1, "corrupt", "short", device=2)]
        result = plan(records, [{"kind": "corrupt"}])
        assert (taken(result), list(result.summary.held_back)) == ([], ["other_device"])


class TestLimits:
    @pytest.mark.parametrize(
        ("limits", "count", "word"),
        [
            ({"max_records": 3}, 3, "max_records"),
            ({"max_bytes": 10 * KIB}, 2, "max_bytes"),
            ({"max_fraction": 0.4}, 4, "max_fraction"),
            ({"max_records": 3, "max_fraction": 0.2}, 2, "max_fraction"),
            ({"max_records": 10}, 10, None),
        ],
    )
    def test_cut_the_list_and_are_named(self, limits: dict[str, Any], count: int, word: str | None) -> None:
        records = [record(n, "corrupt", "short") for n in range(10)]
        result = plan(records, [{"kind": "corrupt"}], limits=limits)
        assert (len(taken(result)), result.summary.limited) == (count, word)


class TestWarnings:
    def told(self, records: list[Record], select: list[dict[str, Any]], **more: Any) -> str:
        known = facts(records, **more)
        spec = parse_spec({"select": select})
        return "\n".join(warnings_for(spec, known, planned(records, spec, known).summary, NOW))

    def test_a_quiet_plan_warns_of_nothing(self) -> None:
        records = [record(1, "corrupt", "short"), *(record(n) for n in range(2, 10))]
        assert self.told(records, [{"kind": "corrupt"}]) == ""

    def test_records_computed_behind_wrong_ones_are_not_forgotten(self) -> None:
        """RULES C8."""
        wrong = [record(1, "incompatible", "other_layout"), record(2, "unverified", "derived")]
        others = [record(n) for n in range(3, 12)]
        told = self.told([*wrong, *others], [{"kind": "incompatible"}], derived=1)
        assert "1 record may have been computed behind the wrong ones" in told
        assert "this plan leaves it" in told
        assert "Plan a cleanup on the page of the store" in told
        other_size = [record(1, "incompatible", "other_size"), record(2, "unverified", "derived"), *others]
        assert "this plan leaves it" in self.told(other_size, [{"kind": "incompatible"}], derived=1)
        both = [{"kind": "incompatible"}, {"kind": "derived"}]
        assert "computed behind" not in self.told([*wrong, *others], both, derived=1)
        damaged = [record(1, "corrupt", "short"), *others]
        assert "computed behind" not in self.told(damaged, [{"kind": "corrupt"}], derived=1)

    def test_what_is_cleared_behind_wrong_records_is_told_before(self) -> None:
        """RULES R4: the GPU cache of an engine is reset for everybody."""
        others = [record(n) for n in range(2, 12)]
        wrong = [record(1, "incompatible", "other_layout"), *others]
        incompatible = [{"kind": "incompatible"}]
        told = self.told(wrong, incompatible, engines=(("vllm-a", True), ("vllm-b", None)))
        assert "resets the whole GPU prefix cache (L0) of vllm-a, vllm-b, for everybody" in told
        told = self.told(wrong, incompatible, engines=(("vllm-a", False),))
        assert "vllm-a has no reset of the GPU cache (L0): the run ends insufficient until that engine" in told
        assert "no engine is registered" in self.told(wrong, incompatible)
        assert "L0" not in self.told(wrong, incompatible, engines=(("a", True),), served_now=frozenset({"/m/b"}))
        assert "L0" not in self.told([record(1, "corrupt", "short"), *others], [{"kind": "corrupt"}])

    def test_caches_that_an_earlier_run_left_are_cleared_by_the_next(self) -> None:
        records = [record(1, "corrupt", "short"), *(record(n) for n in range(2, 12))]
        told = self.told(
            records, [{"kind": "corrupt"}], engines=(("vllm-a", True),), open_episodes=frozenset({"-SEP-m-SEP-a"})
        )
        assert "an earlier run that could not clean them" in told
        assert "(L0) of vllm-a" in told

    def test_a_large_share(self) -> None:
        assert "100% of the store" in self.told([record(1, "corrupt", "short")], [{"kind": "corrupt"}])

    def test_a_model_that_was_served_yesterday(self) -> None:
        told = self.told(
            [record(1, "incompatible", "model_not_served", model="/m/b")],
            [{"kind": "incompatible", "reasons": ["model_not_served"]}],
            last_served={"/m/b": NOW - 20 * 3600},
        )
        assert "/m/b is not served right now but was 20 h ago; 1 of its records go" in told

    def test_an_adapter_that_evicts_and_an_old_inventory(self) -> None:
        records = [record(1, "corrupt", "short"), *(record(n) for n in range(2, 10))]
        told = self.told(records, [{"kind": "corrupt"}], adapter_evicts=True, scanned_at=NOW - 5 * DAY)
        assert "evicts by itself" in told
        assert "5 d old" in told

    def test_access_times(self) -> None:
        records = [record(n) for n in range(9)]
        select = [{"kind": "unused", "for": "1h"}]
        assert "raised to 24h" in self.told(records, select)
        assert "keeps no access times" in self.told(
            records, [{"kind": "capacity", "high": "95%", "low": "90%"}], atime="noatime"
        )

    def test_recent_use_is_counted_as_far_as_the_mount_can_tell(self) -> None:
        records = [record(1, "corrupt", "long", used=3600.0), record(2, "corrupt", "long", used=3 * DAY)]
        summary = plan(records, [{"kind": "corrupt"}]).summary
        assert (summary.used_last_day, summary.used_last_week) == ([1, 4 * KIB], [2, 8 * KIB])
        blind = plan(records, [{"kind": "corrupt"}], facts(records, atime="noatime")).summary
        assert blind.used_last_day is None
        assert blind.use_reason is not None


CLASSES = [
    ("current", None),
    ("incompatible", "other_layout"),
    ("incompatible", "model_not_served"),
    ("incompatible", "other_size"),
    ("corrupt", "short"),
    ("corrupt", "empty"),
    ("unreachable", "legacy_name"),
    ("temporary", None),
    ("foreign", None),
    ("unverified", "derived"),
    ("unverified", "layout_unknown"),
]
candidates = st.lists(
    st.builds(
        lambda cls, size, written, used, model, held: (cls, size, written, used, model, held),
        st.sampled_from(CLASSES),
        st.integers(0, 64 * KIB),
        st.floats(0, 60 * DAY),
        st.none() | st.floats(0, 60 * DAY),
        st.sampled_from(["/m/a", "/m/b"]),
        st.sampled_from([None, None, None, "canary", "restored"]),
    ),
    max_size=60,
)
selects = st.lists(
    st.sampled_from(
        [
            {"kind": "incompatible"},
            {"kind": "corrupt"},
            {"kind": "unreachable"},
            {"kind": "derived"},
            {"kind": "temporary", "older_than": "1h"},
            {"kind": "unused", "for": "14d"},
            {"kind": "capacity", "high": "80%", "low": "60%"},
            {"kind": "free_space", "floor": "30%"},
        ]
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda item: item["kind"],
)
protects = st.sampled_from(
    [
        {},
        {"accessed_within": "2d"},
        {"written_within": "5d"},
        {"models": ["/m/b"]},
        {"accessed_within": "9d", "models": ["/m/a"]},
    ]
)
limitss = st.sampled_from([{}, {"max_records": 5}, {"max_bytes": "100KiB"}, {"max_fraction": 0.25}])


class TestProperties:
    @settings(max_examples=300, deadline=None)
    @given(candidates, selects, protects, limitss, st.sampled_from(["relatime", "strict", "noatime"]))
    def test_a_plan_never_breaks_a_rule(
        self, raw: list[Any], select: list[Any], protect: dict[str, Any], limits: dict[str, Any], atime: str
    ) -> None:
        records = [
            record(n, cls, reason, size=size, written=written, used=used, model=model, held=held)
            for n, ((cls, reason), size, written, used, model, held) in enumerate(raw, start=1)
        ]
        by_id = {r.id: r for r in records}
        known = facts(records, atime=atime)
        spec = parse_spec({"select": select, "protect": protect, "limits": limits})
        result = planned(records, spec, known)
        summary = result.summary
        ids = taken(result)
        assert len(ids) == len(set(ids)), "nothing goes twice"
        space: list[int] = []
        for group in result.groups:
            for name, size, mtime, _, atime_ns, inode, ident in group.rows:
                source = by_id[ident or 0]
                assert (name, size, mtime, atime_ns, inode) == (
                    b"r%d" % source.id,
                    source.size,
                    source.mtime_ns,
                    source.atime_ns,
                    1000 + source.id,
                )
                assert (group.cls, group.reason) == (source.cls, source.reason)
                assert source.cls != "foreign"
                assert source.held is None
                assert source.model not in protect.get("models", [])
                assert spec.selects_now(group.why, group.cls, group.reason)
                if group.cls == "temporary":
                    assert group.why == "temporary"
                    assert mtime < (NOW - 3600) * 1e9
                if group.cls == "unverified" and group.reason != "derived":
                    assert group.why in ("unused", "capacity", "free_space")
                if group.why in ("capacity", "free_space"):
                    assert group.action == "delete"
                    space.append(max(atime_ns, mtime) if atime != "noatime" else mtime)
                if group.reason == "other_size" and group.why == "incompatible":
                    assert group.action == "quarantine"
                in_use = group.why in ("unused", "capacity", "free_space") and atime != "noatime"
                if in_use and "accessed_within" in protect:
                    days = 2 if protect["accessed_within"] == "2d" else 9
                    assert max(atime_ns, mtime) <= (NOW - days * DAY) * 1e9
        total = sum(by_id[i].size for i in ids)
        assert (summary.records, summary.bytes) == (len(ids), total)
        assert sum(p[0] for p in summary.by_reason.values()) == len(ids)
        assert sum(p[1] for p in summary.by_reason.values()) == total
        if "max_records" in limits:
            assert len(ids) <= 5
        if "max_bytes" in limits:
            assert total <= 100 * KIB
        if "max_fraction" in limits:
            assert len(ids) <= len(records) * 0.25
        # space is taken by least recent use, and not one record more than needed
        assert space == sorted(space)
        if space and summary.need is not None:
            last = by_id[ids[-1]].size
            assert summary.freed_bytes - -(-last // KIB) * KIB < summary.need.bytes

    @settings(max_examples=100, deadline=None)
    @given(candidates, selects)
    def test_without_limits_everything_selected_goes(self, raw: list[Any], select: list[Any]) -> None:
        records = [
            record(n, cls, reason, size=size, written=written, used=used, model=model)
            for n, ((cls, reason), size, written, used, model, _) in enumerate(raw, start=1)
        ]
        spec = parse_spec({"select": select})
        went = set(taken(planned(records, spec)))
        for r in records:
            if r.cls != "foreign" and r.reason in spec.reasons_of(r.cls):
                assert r.id in went
