"""The rules of classification one by one: timelines (C2, C3), owners (C5), sizes (C6), names (C7), laundering (C8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from app.lmcache.layouts import KVLayout, ObjectGroup
from app.lmcache.object_keys import ObjectKey, format_name, parse_name
from app.records.alarms import layout_alarms
from app.records.classify import Context, RecordOwner, Sample, ServerState, classify, learn_sizes
from app.records.facts import FileFact
from app.records.history import FOREVER, ServerHistory, build_history, from_json, to_json
from app.records.hits import Covered, first_possible_hit
from app.records.polls import PollSpan
from app.records.sizes import forms, prove_size
from app.records.timeline import NS, Cleared, build_timeline
from tests.unit.records.world import LAYOUTS, MODEL, POLL, layout

BF16, FP16, BIG = LAYOUTS
ENCODED = MODEL.replace("/", "-SEP-")
DAY = 86_400.0
NOW = 1_000_000.0


def span(start: float, end: float, contexts: Mapping[str, KVLayout], **changed: object) -> PollSpan:
    given: dict[str, object] = {
        "instance_id": "i1",
        "raw_start": 1.0,
        "process_start": 1.0,
        "lmcache_version": "0.5.6",
        "drained": True,
        "reap_timeout": 120.0,
        "engine_starts": {"1": None},
    }
    return PollSpan(start, end, contexts=contexts, **{**given, **changed})  # type: ignore[arg-type]


def history(*spans: PollSpan) -> ServerHistory:
    return build_history(spans, gap_limit=3 * POLL)


def context(
    servers: Mapping[int, Sequence[PollSpan]] | Sequence[PollSpan],
    *,
    now: float = NOW,
    samples: Sequence[Sample] = (),
    healthy: bool = True,
    version: tuple[int, ...] | None = (0, 5, 6),
    starts: float | None = 1.0,
    fresh: bool = True,
    **options: object,
) -> Context:
    by_server = servers if isinstance(servers, Mapping) else {1: servers}
    timeline = build_timeline(
        {ident: history(*spans) for ident, spans in by_server.items()},
        now=now,
        poll_seconds=POLL,
        hits=lambda _model, _start, _end: None,
        **options,  # type: ignore[arg-type]
    )
    states = {ident: ServerState(healthy, fresh, version, starts) for ident in by_server}
    base = Context(round(now * NS), round(POLL * NS), timeline, servers=states, fresh=fresh)
    return replace(base, sizes=learn_sizes(samples, base, (4096,)))


def judge(
    ctx: Context,
    mtime: float,
    *,
    size: int = 32768,
    group: int | None = 0,
    rank: int = 0x01000100,
    model: str = MODEL,
    folder: str = "",
) -> tuple[str, str | None]:
    name = folder + format_name(ObjectKey(model, rank, group, bytes(32)))
    fact = FileFact(name.encode(), size, round(mtime * NS), 0, 0, 1, 1, 1, 0o100644)
    found = classify(fact, parse_name(name), ctx)
    return found.cls, found.reason


def alarms(ctx: Context) -> tuple[str, ...]:
    return layout_alarms(ctx.timeline, now=ctx.now / NS, poll_seconds=POLL)


def sample(count: int, mtime: float, size: int | None = 32768, *, group: int = 0) -> Sample:
    return Sample(RecordOwner(ENCODED, 0x01000100, group, False), round(mtime * NS), size, count)


CURRENT = ("current", None)
GAP = ("unverified", "observation_gap")
BEFORE = ("unverified", "before_first_seen")
MIXED = ("unverified", "mixed_layouts")
UNKNOWN = ("unverified", "layout_unknown")
OTHER = ("incompatible", "other_layout")


class TestTimelines:
    def test_a_long_gap_closes_by_the_same_process_contexts_and_ids(self) -> None:
        spans = [span(0, 1000, {"a": BF16}), span(500_000, NOW, {"a": BF16})]
        assert judge(context(spans), 250_000) == CURRENT

    @pytest.mark.parametrize(
        "changed",
        [
            {"instance_id": "i2"},
            {"instance_id": None, "raw_start": None},
            {"raw_start": 400_000.0},
            {"engine_ids": frozenset({"guest"})},
            {"engine_ids": None},
            {"contexts": {"b": BF16}},
        ],
    )
    def test_a_gap_that_does_not_close(self, changed: dict[str, object]) -> None:
        after = span(500_000, NOW, {"a": BF16})
        spans = [span(0, 1000, {"a": BF16}), replace(after, **changed)]  # type: ignore[arg-type]
        ctx = context(spans)
        assert judge(ctx, 250_000) == GAP
        assert judge(ctx, 900) == CURRENT
        assert judge(ctx, 600_000) == CURRENT

    def test_after_a_gap_certainty_reaches_back_to_the_process_starts(self) -> None:
        again = span(
            500_000,
            NOW,
            {"b": FP16},
            instance_id="i2",
            raw_start=300_000.0,
            process_start=300_000.0,
            engine_starts={"1": 350_000.0},
            engine_ids=frozenset({"b"}),
        )
        ctx = context([span(0, 1000, {"a": BF16}), again])
        assert judge(ctx, 500) == OTHER
        assert judge(ctx, 349_000) == GAP
        assert judge(ctx, 360_000) == CURRENT

    def test_a_layout_ends_when_the_queue_is_empty(self) -> None:
        spans = [
            span(0, 1000, {"a": BF16}),
            span(1010, 2000, {"b": FP16}, drained=False),
            span(2010, NOW, {"b": FP16}, drained=True),
        ]
        ctx = context(spans)
        assert judge(ctx, 1500) == MIXED
        assert judge(ctx, 2030) == CURRENT

    def test_a_server_that_does_not_tell_its_queue_leaves_doubt_until_it_restarts(self) -> None:
        spans = [
            span(0, 1000, {"a": BF16}, drained=None, engine_ids=frozenset({"a"})),
            span(1010, 5000, {"b": FP16}, drained=None, engine_ids=frozenset({"a", "b"})),
            span(
                5010,
                NOW,
                {"c": FP16},
                drained=None,
                engine_ids=frozenset({"c"}),
                instance_id="i2",
                raw_start=5002.0,
                process_start=5002.0,
            ),
        ]
        ctx = context(spans)
        assert (judge(ctx, 3000), judge(ctx, 5500)) == (MIXED, CURRENT)
        silent = context([replace(item, engine_ids=frozenset()) for item in spans])
        assert (judge(silent, 3000), judge(silent, 5500)) == (BEFORE, GAP), "nothing says whose chunks are queued"

    def test_old_and_new_stand_side_by_side_after_a_restart(self) -> None:
        spans = [
            span(0, 1000, {"a": BF16}),
            span(1010, 1130, {"a": BF16, "b": FP16}),
            span(1140, NOW, {"b": FP16}),
        ]
        ctx = context(spans)
        assert (judge(ctx, 500), judge(ctx, 1070), judge(ctx, 2000)) == (OTHER, MIXED, CURRENT)
        during = context(spans[:2], now=1130.0)
        assert judge(during, 500) == MIXED, "live until the server drops it"
        assert alarms(during) == ()

    def test_mixed_layouts_are_an_alarm_after_the_reap_timeout_and_two_polls(self) -> None:
        spans = [span(0, 1000, {"a": BF16}), span(1010, 1200, {"a": BF16, "b": FP16})]
        assert alarms(context(spans, now=1149.0)) == ()
        assert "mixed layouts" in alarms(context(spans, now=1200.0))[0]

    def test_a_rollback_makes_the_first_records_good_again(self) -> None:
        spans = [span(0, 1000, {"a": BF16}), span(1010, 2000, {"b": FP16}), span(2010, NOW, {"c": BF16})]
        ctx = context(spans)
        assert (judge(ctx, 500), judge(ctx, 1500), judge(ctx, 3000)) == (CURRENT, OTHER, CURRENT)

    def test_two_servers_on_one_directory(self) -> None:
        ctx = context({1: [span(0, NOW, {"a": BF16})], 2: [span(500_000, NOW, {"b": BF16})]})
        assert judge(ctx, 250_000) == BEFORE, "the second one may have written before it was polled"
        assert judge(ctx, 600_000) == CURRENT
        other = context({1: [span(0, NOW, {"a": BF16})], 2: [span(0, NOW, {"b": FP16})]})
        assert judge(other, 500_000) == MIXED

    def test_one_engine_over_two_servers_is_a_critical_alarm(self) -> None:
        pair = replace(BF16, world_size=2)
        ctx = context({1: [span(0, NOW, {"a": pair})], 2: [span(0, NOW, {"b": pair})]})
        assert judge(ctx, 500_000, rank=0x02000200) == MIXED
        assert alarms(ctx)[0].startswith("critical")

    def test_an_engine_that_is_away_is_not_replaced(self) -> None:
        spans = [span(0, 1000, {"a": BF16}), span(1010, NOW, {})]
        short = context([spans[0], span(1010, 2000, {})], now=2000.0)
        assert judge(short, 500) == CURRENT
        gone = context(spans)
        assert gone.timeline.of((ENCODED, 1)).absent_seconds > 7 * DAY
        assert judge(gone, 500) == ("incompatible", "model_not_served")

    def test_without_polls_nothing_is_known(self) -> None:
        assert judge(context({}, healthy=False), 500) == UNKNOWN
        assert judge(context([PollSpan(0, NOW, ok=False)]), 500) == UNKNOWN

    def test_what_no_poll_has_followed_yet_waits(self) -> None:
        ctx = context([span(0, NOW, {"a": BF16})])
        assert (judge(ctx, NOW - 5), judge(ctx, NOW - 11)) == (GAP, CURRENT)
        assert judge(ctx, NOW + 60) == ("unverified", "future_mtime")

    def test_dtype_and_chunk_size_must_be_known(self) -> None:
        dark = replace(BF16, dtype=None, kv_cache_dtype=None, groups=())
        assert judge(context([span(0, NOW, {"a": dark})]), 500_000) == UNKNOWN
        later = [span(0, 1000, {"a": dark}), span(1010, NOW, {"a": BF16})]
        assert judge(context(later), 500) == CURRENT, "a running process cannot change: what is learnt later was true"

    def test_a_history_survives_as_json(self) -> None:
        made = history(span(0, 1000, {"a": BF16}), span(1010, 1200, {"b": FP16}))
        kept = from_json(to_json(made), 5000.0)
        assert [(p.layout, p.start, p.end) for p in kept.presences] == [
            (p.layout, p.start, 5000.0 if p.end == FOREVER else p.end) for p in made.presences
        ]
        assert max(u.end for u in kept.unknowns) == 5000.0


class TestOwners:
    def test_another_world_size(self) -> None:
        ctx = context([span(0, NOW, {"a": BF16})])
        assert judge(ctx, 500_000, rank=0x02000200) == ("incompatible", "other_world_size")
        assert judge(context([span(NOW - DAY, NOW, {"a": BF16})]), NOW - 1000, rank=0x02000200) == UNKNOWN

    def test_a_model_nobody_serves(self) -> None:
        ctx = context([span(0, NOW, {"a": BF16})])
        assert judge(ctx, 500_000, model="other") == ("incompatible", "model_not_served")

    def test_an_object_group_that_is_gone(self) -> None:
        ctx = context([span(0, NOW, {"a": BF16})])
        assert judge(ctx, 500_000, group=3) == ("incompatible", "unknown_object_group")
        assert judge(ctx, 500_000, group=0) == CURRENT
        two = replace(BF16, groups=(*BF16.groups, ObjectGroup(3, 2, 32, 32, "bfloat16", False)))
        recent = [span(0, NOW - DAY, {"a": two}), span(NOW - DAY + 10, NOW, {"b": BF16})]
        assert judge(context(recent), 500_000, group=3)[1] != "unknown_object_group"

    @pytest.mark.parametrize("options", [{"healthy": False}, {"fresh": False}])
    def test_all_servers_must_be_healthy_and_just_polled(self, options: dict[str, bool]) -> None:
        ctx = context([span(0, NOW, {"a": BF16})], **options)  # type: ignore[arg-type]
        assert judge(ctx, 500_000, model="other") == UNKNOWN


class TestNames:
    def test_temporary_forms_come_first(self) -> None:
        ctx = context([span(0, NOW, {"a": BF16})])
        assert judge(ctx, 500_000, size=0, folder=".tmp/") == ("temporary", None)

    def test_a_legacy_name_is_unreachable_only_if_every_server_is_new_and_younger(self) -> None:
        spans = [span(0, NOW, {"a": BF16})]
        known = context(spans, starts=600_000.0)
        assert judge(known, 500_000, group=None) == ("unreachable", "legacy_name")
        assert judge(known, 599_995, group=None) == UNKNOWN
        assert judge(known, 700_000, group=None) == UNKNOWN
        for doubt in ({"version": (0, 4, 6)}, {"version": None}, {"starts": None}, {"fresh": False}):
            options: dict[str, object] = {"starts": 600_000.0, **doubt}
            ctx = context(spans, **options)  # type: ignore[arg-type]
            assert judge(ctx, 500_000, group=None) == UNKNOWN

    def test_an_empty_legacy_record_is_empty(self) -> None:
        assert judge(context([span(0, NOW, {"a": BF16})], starts=None), 500_000, size=0, group=None)[1] == "empty"


class TestSizes:
    def test_empty_needs_ten_minutes(self) -> None:
        ctx = context([span(0, NOW, {"a": BF16})])
        assert judge(ctx, NOW - 500, size=0) == CURRENT
        assert judge(ctx, NOW - 601, size=0) == ("corrupt", "empty")

    @pytest.mark.parametrize(("good", "bad", "proven"), [(19, 0, False), (20, 0, True), (95, 5, True), (94, 6, False)])
    def test_twenty_records_and_95_percent_prove_a_size(self, good: int, bad: int, proven: bool) -> None:
        samples = [sample(good, 500_000)] + ([sample(bad, 500_000, 99)] if bad else [])
        ctx = context([span(0, NOW, {"a": BF16})], samples=samples)
        assert judge(ctx, 500_000, size=10_000) == (("corrupt", "short") if proven else CURRENT)
        assert judge(ctx, 500_000, size=40_000) == (("corrupt", "long") if proven else CURRENT)
        for size in (32768, 32776, 32768 + 4096):
            assert judge(ctx, 500_000, size=size) == CURRENT

    def test_where_most_disagree_with_the_layout_the_size_is_unknown(self) -> None:
        ctx = context([span(0, NOW, {"a": BF16})], samples=[sample(500, 500_000, 30_000)])
        assert judge(ctx, 500_000, size=10_000) == CURRENT

    @pytest.mark.parametrize("serde", [None, '{"type":"cachegen"}'])
    def test_a_serde_changes_sizes(self, serde: str | None) -> None:
        odd = replace(BF16, serde=serde)
        ctx = context([span(0, NOW, {"a": odd})], samples=[sample(500, 500_000)])
        assert judge(ctx, 500_000, size=10_000) == CURRENT

    def test_without_a_size_in_the_layout_a_hundred_of_99_percent_prove_it(self) -> None:
        two = replace(BF16, groups=(*BF16.groups, ObjectGroup(1, 2, 32, 32, "bfloat16", False)))
        for count, size, proven in ((100, 6400, True), (99, 6400, False), (100, 6401, False)):
            ctx = context([span(0, NOW, {"a": two})], samples=[sample(count, 500_000, size, group=1)])
            assert judge(ctx, 500_000, size=6000, group=1) == (("corrupt", "short") if proven else CURRENT)

    def test_another_size_of_unknown_origin(self) -> None:
        spans = [span(500_000, NOW, {"a": BF16})]
        enough = context(spans, samples=[sample(100, 600_000)])
        assert judge(enough, 400_000, size=65_536) == ("incompatible", "other_size")
        assert judge(enough, 400_000, size=32_776) == BEFORE
        assert judge(context(spans, samples=[sample(99, 600_000)]), 400_000, size=65_536) == BEFORE
        assert judge(enough, NOW - 1, size=65_536) == GAP, "it may be of a layout that no poll has shown yet"
        stale = context(spans, samples=[sample(100, 600_000)], fresh=False)
        assert judge(stale, 400_000, size=65_536) == BEFORE

    def test_forms(self) -> None:
        assert forms(10_000, (4096,)) == {10_000, 10_008, 12_288, 14_096, 16_384}
        evidence = prove_size(BF16, 0, {32768: 30, 5: 1}, 0, (4096,))
        assert (evidence.expected, evidence.records) == (32768, 31)
        assert prove_size(BF16, 0, {32768: 30}, 5, (4096,)).expected is None, "sizes not told apart count against"
        assert prove_size(BF16, 0, {}, 0, (4096,)).expected is None


class TestLaundering:
    SPANS = (span(0, 1000, {"a": BF16}), span(1010, NOW, {"b": FP16}))

    def judged(self, first_hit: float | None, *cleared: Cleared, mtime: float = 500_000) -> tuple[str, str | None]:
        timeline = build_timeline(
            {1: history(*self.SPANS)},
            now=NOW,
            poll_seconds=POLL,
            cleared=cleared,
            hits=lambda _model, start, end: (
                None if first_hit is None or not start <= first_hit <= end else max(start, first_hit)
            ),
        )
        return judge(Context(round(NOW * NS), round(POLL * NS), timeline), mtime)

    def test_from_the_first_hit_until_the_clearing(self) -> None:
        derived = ("unverified", "derived")
        assert self.judged(None) == CURRENT
        assert self.judged(400_000) == derived
        assert self.judged(600_000) == CURRENT
        assert self.judged(400_000, Cleared(ENCODED, None, 450_000)) == CURRENT
        assert self.judged(400_000, Cleared(ENCODED, 1, 550_000)) == derived
        cleared, reopened = Cleared(ENCODED, None, 410_000), Cleared(ENCODED, None, 390_000, reopened=True)
        assert self.judged(400_000, cleared, reopened) == CURRENT
        assert self.judged(440_000, cleared, Cleared(ENCODED, None, 430_000, reopened=True)) == derived
        assert self.judged(440_000, cleared, Cleared("other", None, 430_000, reopened=True)) == CURRENT
        assert self.judged(400_000, Cleared(ENCODED, 2, 450_000)) == derived
        assert self.judged(400_000, Cleared("other", None, 450_000)) == derived

    def test_an_upgrade_is_no_change_of_layout(self) -> None:
        old, new = layout(version="0.5.2", shape="a"), layout(version="0.5.5", shape="b")
        spans = [span(0, 1000, {"a": old}), span(1010, NOW, {"b": new})]
        timeline = build_timeline({1: history(*spans)}, now=NOW, poll_seconds=POLL)
        ctx = Context(round(NOW * NS), round(POLL * NS), timeline)
        assert (judge(ctx, 500), judge(ctx, 500_000)) == (UNKNOWN, CURRENT)
        same = [span(0, 1000, {"a": layout(version="0.5.2")}), span(1010, NOW, {"b": layout(version="0.5.5")})]
        timeline = build_timeline({1: history(*same)}, now=NOW, poll_seconds=POLL)
        assert judge(Context(round(NOW * NS), round(POLL * NS), timeline), 500) == CURRENT

    def test_hits_where_samples_are_missing(self) -> None:
        steady = [Covered(at, at + 10, 0.0) for at in range(0, 100, 10)]
        assert first_possible_hit(steady, 5, 95) is None
        assert first_possible_hit([*steady[:5], Covered(50, 60, 7.0)], 5, 60) == 50
        assert first_possible_hit(steady[:3] + steady[6:], 5, 95) == 30, "no sample counts as a hit"
        assert first_possible_hit(steady, 5, 500) == 100
        assert first_possible_hit([], 5, 95) == 5
        assert first_possible_hit([Covered(0, 10, 3.0)], 8, 9) == 8
