"""Trails, states, causes, matchers, tuning: the rules behind alarms, without a database."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.alerts.catalogue import RULES, rules_by_fact
from app.alerts.causes import explanation, in_order, related
from app.alerts.facts.derive import derive
from app.alerts.facts.shared_directory import shared_directories
from app.alerts.inputs import Adapter, EngineInput, LiveLayout, Moment, ServerInput, StoreInput
from app.alerts.layout_log import LayoutLog, distinct
from app.alerts.matching import AlarmFacts, Matcher, Quiet, at_least, silenced_by
from app.alerts.model import PANEL, Fact, Subject, Verdict, percent, some, span
from app.alerts.plan import Condition, Known, judge, plan
from app.alerts.states import Standing, advance, begin
from app.alerts.trail import Trail
from app.alerts.tuning import Change, Tuning, check_thresholds
from app.errors import InvalidInput
from app.lmcache.layouts import KVLayout
from app.telemetry.rates import CounterPoint

NOW = 1_796_000_000.0


def point(at: float, boot: str = "a", start: float | None = None, **values: float | None) -> CounterPoint:
    return CounterPoint(at, (boot, start), values)


class TestTrail:
    def test_a_window_is_what_was_counted_in_it(self) -> None:
        trail = Trail()
        for n in range(60):
            trail.add(point(NOW + 10 * n, c=float(n)), 10.0)
        window = trail.window(300, NOW + 590, 10.0)
        assert window.seconds == pytest.approx(300, abs=30)
        assert window.grown("c") == window.seconds / 10

    def test_restarts_and_resets_lose_nothing(self) -> None:
        trail = Trail()
        for n, (boot, value) in enumerate([("a", 0.0), ("a", 5.0), ("b", 2.0), ("b", 4.0), ("b", 1.0)]):
            trail.add(point(NOW + 10 * n, boot, c=value), 10.0)
        assert trail.window(300, NOW + 40, 10.0).grown("c") == 5 + 2 + 2 + 1

    def test_a_young_process_is_counted_from_its_boot(self) -> None:
        trail = Trail()
        trail.add(point(NOW, start=NOW - 60, c=7.0), 10.0)
        window = trail.window(300, NOW, 10.0)
        assert (window.grown("c"), window.seconds) == (7.0, 60.0)
        old = Trail()
        old.add(point(NOW, start=NOW - 90000, c=7.0), 10.0)
        assert not old.window(300, NOW, 10.0).known
        assert "needs two" in old.window(300, NOW, 10.0).reason

    def test_what_was_not_read_for_a_while_is_not_known(self) -> None:
        trail = Trail()
        trail.add(point(NOW, c=1.0), 10.0)
        trail.add(point(NOW + 10, c=2.0), 10.0)
        assert trail.window(300, NOW + 100, 10.0).grown("c") is None
        assert "90 s ago" in trail.window(300, NOW + 100, 10.0).reason
        trail.add(point(NOW + 200, c=9.0), 10.0)  # when that happened nobody knows
        assert trail.window(300, NOW + 200, 10.0).grown("c") is None

    def test_a_series_that_comes_and_goes_is_not_known_then(self) -> None:
        trail = Trail()
        for n, value in enumerate([1.0, None, 3.0]):
            trail.add(point(NOW + 10 * n, c=value, d=float(n)), 10.0)
        assert trail.window(300, NOW + 20, 10.0).grown("c") is None
        assert trail.window(300, NOW + 20, 10.0).grown("d") == 2.0
        assert trail.window(300, NOW + 20, 10.0).grown("never") is None

    def test_a_model_that_is_told_apart_only_now_is_not_counted_from_its_whole_past(self) -> None:
        trail = Trail()
        name = "hits|model|/m/a|requested"
        trail.add(point(NOW, c=100.0), 10.0)
        trail.add(CounterPoint(NOW + 10, ("a", None), {"c": 100.0, name: 5000.0}), 10.0)
        trail.add(CounterPoint(NOW + 20, ("a", None), {"c": 100.0, name: 5064.0}), 10.0)
        assert trail.window(300, NOW + 20, 10.0).grown(name) is None
        assert trail.window(10, NOW + 20, 10.0).grown(name) == 64.0

    def test_the_same_scrape_counts_once_and_a_clock_set_back_begins_anew(self) -> None:
        trail = Trail()
        for _ in range(3):
            trail.add(point(NOW, c=1.0), 10.0)
        trail.add(point(NOW + 10, c=4.0), 10.0)
        trail.add(point(NOW + 10, c=4.0), 10.0)
        assert trail.window(300, NOW + 10, 10.0).grown("c") == 3.0
        trail.add(point(NOW - 86400, c=5.0), 10.0)
        assert not trail.window(300, NOW - 86400, 10.0).known

    @given(
        st.lists(st.tuples(st.booleans(), st.integers(0, 50)), min_size=30, max_size=300), st.sampled_from([1, 10, 60])
    )
    def test_it_stays_small_and_a_whole_hour_adds_up(self, story: list[tuple[bool, int]], interval: int) -> None:
        trail = Trail()
        value, boot, at = 0.0, 0, NOW
        happened: list[tuple[float, float]] = []
        for restart, grown in story:
            boot, value = (boot + 1, 0.0) if restart else (boot, value)
            value += grown
            trail.add(point(at, str(boot), c=value), float(interval))
            happened.append((at, float(grown)))
            at += interval
        assert len(trail._marks) < 90
        last = at - interval
        for seconds in (60.0, 300.0, 3600.0):
            window = trail.window(seconds, last, float(interval))
            if window.known:
                start = last - window.seconds
                # A restart between two marks that were thinned out loses nothing: sums are kept at every scrape.
                assert window.grown("c") == sum(g for when, g in happened if when > start + 1e-6)


class TestStates:
    def test_it_waits_and_fires(self) -> None:
        standing = begin(NOW, 60, explained=False)
        assert standing.state == "pending"
        for n in range(1, 6):
            standing = step(standing, True, NOW + 10 * n)
        assert standing.state == "pending"
        assert step(standing, True, NOW + 60).state == "firing"
        assert begin(NOW, 0, explained=False).state == "firing"

    def test_what_goes_away_before_its_time_never_fired(self) -> None:
        standing = step(begin(NOW, 60, explained=False), False, NOW + 10)
        assert (standing.state, standing.reason) == ("resolved", "it went away before it fired")

    def test_unknown_changes_nothing(self) -> None:
        for state in ("pending", "firing", "acknowledged"):
            standing = Standing(state, NOW)  # type: ignore[arg-type]
            assert step(standing, None, NOW + 5000) == standing

    def test_it_ends_only_after_it_has_been_gone_for_a_while(self) -> None:
        standing = Standing("firing", NOW)
        standing = step(standing, False, NOW + 100)
        assert standing.state == "firing"
        standing = step(standing, True, NOW + 120)  # back again: its end begins anew
        assert standing.clear_since is None
        standing = step(standing, False, NOW + 140)
        assert step(standing, False, NOW + 190).state == "firing"
        assert step(standing, False, NOW + 200).state == "resolved"

    def test_an_explained_one_waits_for_its_cause_to_end(self) -> None:
        standing = begin(NOW, 0, explained=True)
        assert standing.state == "pending"
        for n in range(100):
            standing = step(standing, True, NOW + 10 * n, explained=True)
        assert standing.state == "pending"
        standing = step(standing, True, NOW + 1000)
        assert standing.state == "pending"  # its own minute begins now
        assert step(standing, True, NOW + 1060).state == "firing"

    def test_a_gap_between_evaluations_is_no_time_it_held(self) -> None:
        standing = begin(NOW, 60, explained=False)
        standing = step(standing, True, NOW + 4000, gap=True)
        assert (standing.state, standing.holds_since) == ("pending", NOW + 4000)

    @given(st.lists(st.sampled_from([True, False, None]), max_size=60))
    def test_states_only_go_forward(self, story: list[bool | None]) -> None:
        order = ["pending", "firing", "resolved"]
        standing = begin(NOW, 30, explained=False)
        for n, holds in enumerate(story):
            after = step(standing, holds, NOW + 10 * (n + 1), wait=30)
            assert order.index(after.state) >= order.index(standing.state)
            if after.state == "resolved":
                break
            standing = after


def step(
    standing: Standing,
    holds: bool | None,
    now: float,
    *,
    wait: float = 60,
    explained: bool = False,
    gap: bool = False,
) -> Standing:
    return advance(standing, holds, now, wait_seconds=wait, clear_seconds=60, explained=explained, gap=gap)


SERVER = ServerInput(id=1, name="cache", url="http://h:1", labels={"team": "a"}, health_state="healthy", http_up=True)
ENGINE = EngineInput(id=7, name="gpu", url="http://h:2", server_id=1, health_state="healthy", http_up=True)
STORE = StoreInput(id=3, name="disk", path="/kv", server_path="/kv", server_ids=(1,))
MOMENT = Moment(NOW, 10.0, servers={1: SERVER}, engines={7: ENGINE}, stores={3: STORE})


class TestCauses:
    def test_every_cause_is_a_rule_and_none_explains_itself_in_a_circle(self) -> None:
        assert {cause.rule for rule in RULES.values() for cause in rule.causes} <= set(RULES)
        order = in_order(RULES)
        assert sorted(order) == sorted(RULES)
        for rule in RULES.values():
            assert all(order.index(cause.rule) < order.index(rule.id) for cause in rule.causes)

    def test_relations(self) -> None:
        assert related(MOMENT, ENGINE.subject, "server") == [("server", 1)]
        assert related(MOMENT, SERVER.subject, "engines") == [("engine", 7)]
        assert related(MOMENT, SERVER.subject, "stores") == [("store", 3)]
        assert related(MOMENT, ENGINE.subject, "stores") == [("store", 3)]
        assert related(MOMENT, STORE.subject, "servers") == [("server", 1)]
        assert related(MOMENT, STORE.subject, "panel") == [PANEL.key]
        assert related(MOMENT, Subject("engine", 99, "gone"), "server") == []

    def test_only_the_cause_of_the_same_target_counts(self) -> None:
        rule = RULES["stores_failing"]
        assert explanation(MOMENT, rule, SERVER.subject, {("server_unreachable", ("server", 2))}) is None
        here = ("server_unreachable", ("server", 1))
        assert explanation(MOMENT, rule, SERVER.subject, {here}) == here
        full = ("store_full", ("store", 3))
        assert explanation(MOMENT, rule, SERVER.subject, {full}) == full

    def test_a_pending_cause_holds_others_back_only_when_it_is_about_to_fire(self) -> None:
        def told(wait: float) -> list[str]:
            conditions = [
                condition("mixed_layouts", SERVER.subject, wait_seconds=wait),
                condition("acceptance_failed", ENGINE.subject),
            ]
            return [f"{o.key[0]}:{o.after.state}" for o in plan(MOMENT, conditions, {})]

        assert told(120) == ["mixed_layouts:pending", "acceptance_failed:pending"]
        assert told(3600) == ["mixed_layouts:pending", "acceptance_failed:firing"]

    def test_what_is_not_watched_any_more_ends(self) -> None:
        key = ("server_unreachable", "server", 9, "")
        known = {key: Known(4, Standing("firing", NOW - 100), NOW - 10)}
        (outcome,) = plan(MOMENT, [], known)
        assert (outcome.after.state, outcome.after.reason) == ("resolved", "it is not watched any more")


def condition(rule_id: str, subject: Subject, *, holds: bool = True, wait_seconds: float | None = None) -> Condition:
    rule = RULES[rule_id]
    fact = Fact(rule.fact, subject)
    return Condition(rule, fact, Verdict(holds, "x", wait_seconds=wait_seconds), Tuning().of(rule, subject))


class TestMatching:
    ALARM = AlarmFacts("stores_failing", "critical", frozenset({("store", 3), ("server", 1)}), {"team": "a"})

    @pytest.mark.parametrize(
        ("matcher", "meant"),
        [
            (Matcher(), True),
            (Matcher(rules=frozenset({"stores_failing", "l1_thrash"})), True),
            (Matcher(rules=frozenset({"l1_thrash"})), False),
            (Matcher(severities=frozenset({"warning"})), False),
            (Matcher(targets=frozenset({("server", 1)})), True),
            (Matcher(targets=frozenset({("server", 2), ("engine", 3)})), False),
            (Matcher(labels={"team": "a"}), True),
            (Matcher(labels={"team": "a", "site": "x"}), False),
        ],
    )
    def test_conditions_all_hold(self, matcher: Matcher, meant: bool) -> None:
        assert matcher.matches(self.ALARM) is meant
        assert Matcher.from_json(matcher.to_json()) == matcher

    def test_quiet_times(self) -> None:
        once = Quiet("silence 1", Matcher(), NOW, NOW + 60)
        assert [once.in_force(NOW + s) for s in (-1, 0, 59, 60)] == [False, True, True, False]
        # 1796000000 is 2026-11-30 00:53:20 UTC.
        nightly = Quiet("window n", Matcher(), cron="0 1 * * *", timezone="UTC", seconds=3600)
        start = NOW + 400.0
        assert [nightly.in_force(start + s) for s in (-1, 0, 3599, 3600)] == [False, True, True, False]
        berlin = Quiet("window b", Matcher(), cron="0 2 * * *", timezone="Europe/Berlin", seconds=3600)
        assert berlin.in_force(start)
        over = Quiet("window o", Matcher(), ends_at=NOW - 9000, cron="0 1 * * *", timezone="UTC", seconds=3600)
        assert not over.in_force(start + 5)
        assert silenced_by(self.ALARM, [once]) == "silence 1"

    def test_severities_have_an_order(self) -> None:
        assert at_least("critical", "warning")
        assert at_least("warning", "warning")
        assert not at_least("info", "warning")


class TestTuning:
    def test_layers(self) -> None:
        rule = RULES["free_space_low"]
        tuning = Tuning(
            {rule.id: Change(severity="critical", thresholds={"share": 0.2, "unknown": 1.0})},
            {(rule.id, "store", 3): Change(enabled=False, thresholds={"share": 0.5}), ("x", "store", 3): Change()},
        )
        everywhere, here = tuning.of(rule, Subject("store", 4, "")), tuning.of(rule, STORE.subject)
        assert (everywhere.enabled, everywhere.severity, everywhere.limits) == (True, "critical", {"share": 0.2})
        assert (here.enabled, here.severity, here.limits) == (False, "critical", {"share": 0.5})

    def test_thresholds_are_checked(self) -> None:
        rule = RULES["free_space_low"]
        check_thresholds(rule, {"share": 0.5})
        with pytest.raises(InvalidInput, match="has no such threshold"):
            check_thresholds(rule, {"floor": 0.5})
        with pytest.raises(InvalidInput, match="is not from 0 to 1"):
            check_thresholds(rule, {"share": 1.5})


def layout(dtype: str | None = "bfloat16", chunk: int | None = 64, model: str = "/m", world: int = 1) -> KVLayout:
    return KVLayout(model_name=model, world_size=world, chunk_size=chunk, dtype=dtype, kv_cache_dtype="auto")


class TestLayouts:
    def test_what_one_side_does_not_tell_proves_no_difference(self) -> None:
        unknown = LiveLayout(layout(dtype=None), 1)
        known, other = LiveLayout(layout(), 2), LiveLayout(layout("float16"), 1)
        assert [x.contexts for x in distinct([unknown, known])] == [3]
        assert distinct([unknown, known])[0].layout.dtype == "bfloat16"
        assert len(distinct([known, other])) == 2

    def test_changes(self) -> None:
        log = LayoutLog()
        log.feed(10, [layout(dtype=None)])
        log.feed(20, [layout()])  # only told more exactly
        log.feed(30, [])  # the engine is away
        log.feed(40, [layout()])
        assert log.last_change is None
        log.feed(50, [layout(), layout("float16")])
        assert log.last_change is not None
        assert (log.last_change.at, log.last_change.fields) == (50, ("dtype: bfloat16 → float16",))
        log.feed(60, [layout("float16")])  # the old one was reaped
        assert log.last_change.at == 50
        log.feed(70, [layout()])  # and back
        assert log.last_change.at == 70
        log.feed(80, [layout(), layout(model="/other")])  # another model is no change of this one
        assert log.last_change.at == 70

    def test_an_engine_whose_workers_are_spread_over_two_servers(self) -> None:
        def moment(first: int, second: int) -> Moment:
            servers = {
                n: ServerInput(
                    id=n,
                    name=f"s{n}",
                    url=f"http://h{n}:1",
                    health_state="healthy",
                    http_up=True,
                    adapters=[Adapter("fs", "/kv")],
                    layouts=[LiveLayout(layout(world=4), count)],
                )
                for n, count in ((1, first), (2, second))
            }
            return Moment(NOW, 10.0, servers=servers, stores={3: StoreInput(3, "disk", "/kv", "/kv", (1, 2))})

        split = RULES["split_engine"]
        (fact,) = shared_directories(moment(2, 2))
        assert split.verdict(fact, split.defaults).holds is True
        (fact,) = shared_directories(moment(4, 4))  # two whole engines
        assert split.verdict(fact, split.defaults).holds is False


def fail(what: str, error: Exception) -> None:
    raise AssertionError(what) from error


class TestCatalogue:
    def test_a_target_nobody_thought_of_silences_no_other(self) -> None:
        broken = replace(SERVER, id=2, health_since="never")  # type: ignore[arg-type]
        told: list[str] = []
        moment = Moment(NOW, 10.0, servers={2: broken, 1: SERVER})
        facts = derive(moment, lambda what, error: told.append(what))
        assert told == ["server_health"]
        assert [f.subject.id for f in facts if f.key == "server_health"] == [1]
        nothing = Fact("store_room", STORE.subject, {"free": None})
        conditions = judge([nothing], Tuning(), lambda what, error: told.append(what))
        assert {c.verdict.holds for c in conditions} == {None}
        assert told[1:] == ["store_full", "free_space_low"]

    def test_every_fact_is_judged_by_a_rule_and_every_rule_judges_a_fact(self) -> None:
        empty = Moment(NOW, 10.0, servers={1: SERVER}, engines={7: ENGINE}, stores={3: STORE})
        made = {fact.key for fact in derive(empty, fail)} | {"outbox", "cleanup_outcome", "schedule_kept"}
        assert set(rules_by_fact()) == made

    def test_nothing_is_wrong_where_nothing_is_known(self) -> None:
        """Before the first poll not one rule may hold: unknown is never bad."""
        servers = {1: ServerInput(id=1, name="s", url="http://h:1", created_at=NOW)}
        engines = {7: EngineInput(id=7, name="e", url="http://h:2", server_id=1, created_at=NOW)}
        stores = {3: StoreInput(3, "disk", "/kv", "/kv", (1,), created_at=NOW)}
        moment = Moment(NOW, 10.0, servers=servers, engines=engines, stores=stores)
        by_fact = rules_by_fact()
        for fact in derive(moment, fail):
            for rule in by_fact[fact.key]:
                assert rule.verdict(fact, rule.defaults).holds is not True, (rule.id, fact)

    def test_texts_are_whole_sentences_and_limits_make_sense(self) -> None:
        for rule in RULES.values():
            for text in (rule.means, rule.action):
                assert text[0].isupper() or text[0] in "'/", (rule.id, text)
                assert text.rstrip()[-1] in ".)?", (rule.id, text)
                assert "  " not in text
            for limit in rule.limits.values():
                assert limit.lowest <= limit.default <= limit.highest


def test_numbers_for_sentences() -> None:
    assert [span(s) for s in (7, 127, 3 * 3600 + 600, 4 * 86400 + 7200)] == ["7 s", "2 m 07 s", "3 h 10 m", "4 d 2 h"]
    assert [percent(r) for r in (0.0, 0.0004, 0.125, 0.9995, 1.0)] == [
        "0.0 %",
        "under 0.1 %",
        "12.5 %",
        "over 99.9 %",
        "100.0 %",
    ]
    assert some(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
