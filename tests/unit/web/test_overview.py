"""What the overview says: the worst first, in sentences with evidence, and the token picture."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.acceptance.canary_schemas import CanaryStanding
from app.alerts.schemas import AlertView
from app.fleet.schemas import EngineView, FilesystemView, PrefixCacheView, ServerView
from app.records.facts import REASONS
from app.records.schemas import Count, SummaryView
from app.web import overview, svg, words
from app.web.attention import attention
from app.web.contexts import EngineVerdict, StoreCard
from app.web.growth import Outlook
from app.web.wrong_records import class_line, incompatible_line
from tests.unit.web import acceptance_samples as a
from tests.unit.web import records_samples as k
from tests.unit.web import room_samples as r
from tests.unit.web import samples as s

#: What "Keep it safe" takes, as a filter of the explorer.
SAFE = (
    "/stores/1/records?class=incompatible,unverified,corrupt,unreachable"
    "&reason=other_layout,other_size,declared,derived,empty,short,long,legacy_name"
)


def card(**over: object) -> StoreCard:
    return StoreCard(s.store(), k.summary(clean=True).model_copy(update=over))


def test_wrong_records_come_before_everything_that_is_only_down() -> None:
    wrong = StoreCard(s.store(), k.summary())
    found = attention([s.server(state="degraded")], [], [wrong], [])
    assert found[0].title == "1,204 records on nvme-a would be served as wrong answers"
    assert found[0].path == SAFE
    assert [item.kind for item in found] == sorted((i.kind for i in found), key=["bad", "warn", "info", "ok"].index)


def test_two_counts_of_incompatible_records_are_explained_where_they_differ() -> None:
    """The overview counts what would be served wrong, the store's table every incompatible record."""
    summary = k.summary()
    assert incompatible_line(summary) == "", "all of them would be served"
    summary.by_class["incompatible"] = Count(records=500, bytes=5_000_000)
    summary.by_reason |= {
        "other_layout": Count(records=380, bytes=3_800_000),
        "model_not_served": Count(records=120, bytes=1_200_000),
    }
    line = "380 of the 500 incompatible would be served as wrong answers; "
    line += "120 of a model that nothing serves now are read by no request"
    assert incompatible_line(summary) == line
    found = attention([s.server()], [], [StoreCard(s.store(), summary)], [])[0]
    assert found.title.startswith("380 records")
    assert line in found.detail
    summary.by_reason["other_world_size"] = Count(records=7, bytes=7)
    assert "120 of a model and 7 of a number of ranks that nothing serves now" in incompatible_line(summary)


def test_records_derived_from_wrong_ones_need_somebody_with_the_wrong_ones_and_after_them() -> None:
    """RULES C8: they are served, and nothing proves them right."""
    derived = {"derived": Count(records=148, bytes=2_400_000)}
    summary = k.summary()
    summary.by_reason |= derived
    found = attention([s.server()], [], [StoreCard(s.store(), summary)], [])
    assert "148 more records may be wrong, too: computed behind wrong ones (derived)" in found[0].detail
    assert not [item for item in found if "(derived)" in item.title], "told once"
    clean = k.summary(clean=True)
    clean.by_reason |= derived
    (only,) = attention([s.server()], [], [StoreCard(s.store(), clean)], [])
    assert (only.kind, only.title) == ("warn", "148 records on nvme-a may be wrong (derived)")
    assert only.path == "/stores/1/records?class=unverified&reason=derived"


def test_all_is_well_only_when_nothing_is_wrong() -> None:
    engine = s.engine()
    verdict = EngineVerdict(engine, s.latest("fresh", run=a.acceptance()))
    (only,) = attention([s.server()], [engine], [card()], [verdict])
    assert (only.kind, only.title) == ("ok", "Nothing needs you now")
    assert "passed on 1 of 1" in only.detail
    assert attention([s.server()], [engine], [card()], [verdict], [r.episode("")])[0].kind == "bad"


@pytest.mark.parametrize(
    ("summary", "running", "told"),
    [
        (k.summary(clean=True), None, "The disk is clean. Still waiting for: a restart of qwen-1."),
        (k.summary(clean=True), "42", "Cleanup run #42 is at it; what is left is known when it has ended."),
        (k.summary(), None, "still on the disk, too. Still waiting for: a restart of qwen-1."),
        (k.summary(scanned=False), None, "Whether the disk is clean is not known"),
    ],
)
def test_a_disk_is_called_clean_only_when_it_is(summary: SummaryView, running: str | None, told: str) -> None:
    waiting = r.episode("").model_copy(update={"running_run_id": running})
    items = attention([], [], [StoreCard(s.store(), summary)], [], [waiting])
    (item,) = [item for item in items if item.title.startswith("Caches of")]
    assert told in item.detail
    assert ("The disk is clean" in item.detail) is told.startswith("The disk is clean")
    assert item.path == f"/cleanup/runs/{running or 41}"


@pytest.mark.parametrize(("hours", "kind"), [(None, None), (400.0, None), (100.0, "warn"), (12.0, "bad")])
def test_a_disk_that_is_full_soon(hours: float | None, kind: str | None) -> None:
    store = card(full_in_hours=hours, growth_bytes_per_hour=7.4e9)
    steady = replace(store, outlook=Outlook(hours, steady=True))
    kinds = [item.kind for item in attention([], [], [steady], []) if "is full in" in item.title]
    assert kinds == ([kind] if kind else [])
    jumpy = replace(store, outlook=Outlook(hours, soonest=1.0))
    assert not [item for item in attention([], [], [jumpy], []) if "is full in" in item.title]


def test_stores_on_one_file_system_share_its_room() -> None:
    def on(ident: str, device: int | None) -> StoreCard:
        room = FilesystemView(total_bytes=1000 * 10**9, free_bytes=400 * 10**9, device=device)
        return StoreCard(s.store(ident, filesystem=room), k.summary(clean=True))

    def text(*cards: StoreCard) -> str:
        return overview.flow_picture(s.token_flow(), [], [], cards).lanes[2].fill_text.replace("\u00a0", " ")

    assert text(on("1", 7), on("2", 7)) == text(on("1", 7))
    assert text(on("1", 7), on("2", 8)) == "1.20 of 2.00 TB"
    assert text(on("1", None), on("2", None)) == "1.20 of 2.00 TB"


def test_a_share_that_cannot_be_told_is_told_as_bounds() -> None:
    flow = s.token_flow()
    levels = [
        level
        if level.level in ("l0", "recomputed")
        else level.model_copy(update={"share": None, "tokens": None, "least_tokens": 421_000, "most_tokens": 842_000})
        for level in flow.levels
    ]
    total = 4_210_000
    picture = overview.flow_picture(
        flow.model_copy(update={"levels": levels, "total_tokens": total, "external_tokens": total // 2}), [], [], []
    )
    assert [lane.between.replace("\u00a0", " ") for lane in picture.lanes] == ["", "10–20 %", "10–20 %", ""]
    assert "50 % from memory or disk" in picture.sentence.replace("\u00a0", " ")


def test_a_store_never_scanned_asks_for_its_scan_and_is_not_called_clean() -> None:
    (only,) = attention([], [], [StoreCard(s.store(), k.summary(scanned=False))], [])
    assert "has not been scanned yet" in only.title
    broken = StoreCard(s.store(usable=False, usable_reason="permission denied"), k.summary(scanned=False))
    (only,) = attention([], [], [broken], [])
    assert (only.kind, only.detail) == ("bad", "permission denied")


def test_a_failed_acceptance_and_a_stale_one() -> None:
    engine = s.engine()
    failed = EngineVerdict(engine, s.latest("fresh", run=a.acceptance(verdict="fail")))
    stale = EngineVerdict(engine, s.latest("stale", run=a.acceptance(), reason="dtype changed"))
    assert attention([], [], [], [failed])[0].title == "qwen-1 failed its acceptance test"
    assert attention([], [], [], [stale])[0].detail == "dtype changed"
    assert overview.stale_word(stale.latest).text == "stale"
    assert overview.stale_word(failed.latest).text == "fail"
    assert overview.stale_word(s.latest("never")).text == "never tested"


def test_the_token_picture_says_what_it_draws() -> None:
    picture = overview.flow_picture(s.token_flow(), [s.server()], [s.engine()], [card()])
    assert [lane.tier for lane in picture.lanes] == list(svg.TIERS)
    assert picture.sentence.replace("\u00a0", " ") == (
        "Of 4.21 M prompt tokens: 28 % from the GPU, 41 % from memory, 17 % from disk, 14 % from computing again."
    )
    l1 = picture.lanes[1]
    assert l1.fill == pytest.approx(0.755)
    assert l1.mark == 0.8
    assert "15.1 of 20.0" in l1.fill_text


def test_the_token_picture_of_nothing_known_draws_nothing() -> None:
    picture = overview.flow_picture(s.token_flow("unknown"), [], [], [])
    assert picture.shares == {}
    assert all(lane.share is None and lane.tokens is None for lane in picture.lanes)
    assert "no engine answers" in picture.sentence
    idle = overview.flow_picture(s.token_flow("no_traffic"), [], [], [])
    assert idle.total_tokens == 0


def test_the_fullest_and_the_tightest_are_chosen() -> None:
    low, high = s.server("1", "low", usage=0.2), s.server("2", "high", usage=0.79)
    unknown = s.server("3", "silent", usage=None)
    assert overview.fullest_l1([low, unknown, high]) is high
    assert overview.fullest_l1([unknown]) is unknown
    assert overview.fullest_l1([]) is None
    soon = card(full_in_hours=10.0)
    assert overview.tightest_store([card(), soon]) is soon
    assert overview.tightest_store([]) is None


def test_events_are_newest_first_and_pinned_where_they_belong() -> None:
    old = overview.health_event(s.change("1", "lmc-a", None, "healthy", "", 1800))
    new = overview.cleanup_event(r.run())
    assert overview.newest([old, new], 5) == (new, old)
    trend = overview.trend((), 3600, [old], s.NOW)
    assert trend.pins[0].x == pytest.approx(50)
    assert overview.trend((), 60, [old], s.NOW).pins == ()


def test_a_run_in_one_line() -> None:
    line = overview.run_line(a.acceptance()).replace("\u00a0", " ")
    assert line == "100 % back from disk, first token 1.82× as fast as cold"
    assert overview.run_line(s.run_view()) == "quick profile"


def test_every_class_and_reason_has_its_words() -> None:
    assert set(words.CLASS) == set(REASONS)
    assert set(words.CLASS_ORDER) == set(REASONS)
    assert {reason for reasons in REASONS.values() for reason in reasons} <= set(words.REASON)


def test_a_state_of_a_later_version_is_shown_without_judgement() -> None:
    shown = words.word(words.VERDICT, "brand_new_state")
    assert (shown.kind, shown.text) == ("none", "brand new state")
    assert words.word(words.WORK, None).text == "not yet"


def alarm(rule: str = "wrong_records", kind: str = "store", **over: object) -> AlertView:
    return s.made(
        AlertView,
        {
            "id": "7",
            "rule": rule,
            "title": "Wrong records are on disk",
            "severity": "critical",
            "state": "firing",
            "target_kind": kind,
            "target_id": "1",
            "target_name": "nvme-a",
            "part": "",
            "sentence": "12 records of nvme-a are wrong",
            "value": 12.0,
            "limit": 1.0,
            "unit": "records",
            "evidence": {},
            "since": s.ago(600),
            "fired_at": s.ago(600),
            "acknowledged_at": None,
            "acknowledged_by": None,
            "note": None,
            "resolved_at": None,
            "checked_at": s.ago(5),
            "explained_by": None,
            "silenced_by": None,
            "means": "",
            "action": "",
            "page": "/stores/1",
            "docs": "ALARMS.md",
            "runbook": "RUNBOOKS.md",
        }
        | over,
    )


def test_wrong_records_stay_told_while_they_cannot_be_judged() -> None:
    """The server is away, so the summary calls every record unverified; the alarm knows better."""
    undecided = StoreCard(s.store(), k.summary(clean=True))
    evidence = {
        "known_at": s.NOW - 600,
        "last_known": " when last known 14:00; since then server lmc-a does not answer",
    }
    first = attention([], [], [undecided], [], alerts=[alarm(evidence=evidence)])[0]
    assert first.title == "12 records on nvme-a would be served as wrong answers"
    assert first.detail == (
        "When last known, Mon 30 Nov 2026, 13:55:00 UTC. "
        "Since then server lmc-a does not answer, so classes cannot be decided."
    )
    assert first.path == SAFE


def test_every_alarm_that_fires_is_told_and_none_twice() -> None:
    wrong = StoreCard(s.store(), k.summary())
    before = attention([s.server(state="unreachable")], [], [wrong], [])
    alarms = [alarm(), alarm("server_unreachable", "server"), alarm("dead_records", value=1.0)]
    assert attention([s.server(state="unreachable")], [], [wrong], [], alerts=alarms) == before
    found = attention([], [], [], [], alerts=[alarm("l1_thrash", "server", title="L1 churns", severity="warning")])
    assert [(a.kind, a.title, a.path) for a in found] == [("warn", "L1 churns: nvme-a", "/alarms/7")]
    assert attention([], [], [], [], alerts=[alarm("l1_thrash", silenced_by="silence 3")])[0].kind == "ok"


def test_runs_that_prove_nothing_mask_no_verdict() -> None:
    engine = s.engine()
    failed, nothing = a.acceptance(verdict="fail"), a.acceptance("9", verdict="invalid")
    latest = s.latest("never", run=failed).model_copy(
        update={"last_run": nothing, "last_verdict": failed, "without_verdict": 2}
    )
    (only,) = attention([], [], [], [EngineVerdict(engine, latest)])
    assert (only.kind, only.title) == ("bad", "qwen-1 failed its acceptance test")
    assert only.detail.endswith("Since then 2 runs proved nothing.")
    assert only.path == f"/acceptance/runs/{failed.id}"
    assert overview.stale_word(latest).text == "fail"
    passed = a.acceptance()
    latest = latest.model_copy(update={"state": "fresh", "last_verdict": passed, "last_pass": passed})
    (only,) = attention([], [], [], [EngineVerdict(engine, latest)])
    assert only.kind == "info"
    assert "changed since" not in only.title
    assert overview.stale_word(latest).text == "pass"


def test_an_alarm_is_on_the_timeline_when_it_fired_and_when_it_was_over() -> None:
    fired = alarm(fired_at="2026-11-30T10:00:00.000Z", resolved_at=None, explained_by=None)
    (event,) = overview.alarm_events(fired)
    assert (event.what, event.at, event.path) == ("alarm", fired.fired_at, f"/alarms/{fired.id}")
    assert fired.title in event.text
    over = fired.model_copy(update={"resolved_at": "2026-11-30T11:00:00.000Z"})
    assert [(e.at, e.kind) for e in overview.alarm_events(over)] == [
        (fired.fired_at, event.kind),
        (over.resolved_at, "ok"),
    ]
    # What never fired, and what another alarm tells, is not told.
    assert overview.alarm_events(fired.model_copy(update={"fired_at": None})) == []
    assert overview.alarm_events(fired.model_copy(update={"explained_by": "7"})) == []


def test_targets_are_grouped_by_what_tells_them_apart() -> None:
    def labelled(ident: str, **labels: str) -> ServerView:
        return s.server(ident, f"lmc-{ident}").model_copy(update={"labels": labels})

    a1, b1, b2, rest = (
        labelled("1", zone="a", site="x"),
        labelled("2", zone="b", site="x"),
        labelled("3", zone="b", site="x", gpu="h100"),
        labelled("4", site="x"),
    )
    servers = [b1, a1, rest, b2]
    assert overview.group_keys(servers) == ("gpu", "zone")  # all have the one site
    assert overview.group_keys([]) == ()
    assert [(title, [t.id for t in members]) for title, members in overview.groups(servers, "zone")] == [
        ("zone=a", ["1"]),
        ("zone=b", ["2", "3"]),
        ("without zone", ["4"]),
    ]
    assert overview.groups(servers, "") == ()
    down = s.server("5", state="unreachable")
    assert overview.group_line([a1, down, b1], "server") == "3 servers, 1 unreachable"
    assert overview.group_line([a1], "server") == "1 server, all healthy"


def test_the_engine_that_recomputes_most_is_told_where_one_stands_out() -> None:
    def engine(ident: str, share: float | None) -> EngineView:
        return s.engine(ident).model_copy(update={"prefix_cache": PrefixCacheView(recomputed_share=share)})

    assert overview.most_recomputed([engine("1", 0.10), engine("2", 0.40), engine("3", None)]) == "2"
    assert overview.most_recomputed([engine("1", 0.38), engine("2", 0.40)]) == ""
    assert overview.most_recomputed([engine("1", 0.9)]) == overview.most_recomputed([]) == ""


def test_canaries_are_told_by_the_worst() -> None:
    def told(**outcomes: int) -> tuple[str, str]:
        standing = CanaryStanding(kept=sum(outcomes.values()), outcomes=outcomes, checked_at=None)  # type: ignore[arg-type]
        word, line = overview.canary_line(standing)
        return word.kind, line

    assert told(ok=3) == ("ok", "3 canaries came back right")
    assert told(ok=1) == ("ok", "1 canary came back right")
    assert told(ok=1, wrong=1, lost=2) == ("bad", "2 lost, 1 wrong of 4 canaries")
    assert told(ok=1, never=2) == ("none", "2 of 3 canaries not read back yet")


def test_every_class_that_is_not_current_is_named_in_a_stores_line() -> None:
    counts = {name: Count(records=n, bytes=n) for n, name in enumerate(("foreign", *REASONS), start=1) if n > 1}
    assert class_line(counts) == "3 incompatible, 4 corrupt, 5 unreachable, 7 unverified, 6 temporary"
    assert class_line({"current": Count(records=5, bytes=1), "corrupt": Count(records=0, bytes=0)}) == "all current"
