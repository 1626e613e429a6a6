"""Whole runs over the sandbox: what is measured, and everything that must spoil it."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

import app.benchmark.run
from app.benchmark.fill import Filler
from app.benchmark.schemas import BenchmarkRunView, PhaseView
from app.benchmark.tables import BenchmarkRun, BenchmarkSample
from app.errors import Conflict, InvalidInput, NotFound
from app.fleet.schemas import EnginePatch
from app.sandbox import EngineSpec, Latency
from tests.unit.benchmark.conftest import Panel, PanelMaker, config, with_and_without


def codes(run: BenchmarkRunView, severity: str | None = None) -> list[str]:
    return [f.code for f in run.findings if severity in (None, f.severity)]


def phases(run: BenchmarkRunView, scenario: str = "b") -> list[PhaseView]:
    assert run.result is not None
    found = next(s for s in run.result.scenarios if s.name == scenario)
    return [p for r in found.runs for p in r.phases]


# --- two passes


def test_a_against_b(make_panel: PanelMaker) -> None:
    panel = make_panel(engines=with_and_without(), config=config(latency=Latency(compute_per_token=0.000_6)))
    run = panel.run(baseline_engine_id=panel.engines[1], repeats=2, contexts=3, noise_repeat=True)
    assert (run.state, run.verdict) == ("succeeded", "valid"), run.findings
    result = run.result
    assert result is not None
    assert result.conclusion.kind == "gain", result.conclusion
    assert result.speed_up is not None
    assert result.speed_up.value > 1.5
    assert result.only_the_connector is True
    assert [d.connector for d in result.differences] == [True]
    # Run 0 stands beside the measured ones: 2 × 3 requests count, 9 were made.
    b = next(s for s in result.scenarios if s.name == "b")
    assert [r.repeat for r in b.runs] == [0, 1, 2]
    assert [r.measured for r in b.runs] == [False, True, True]
    assert (b.ttft_ms.runs, b.ttft_ms.requests) == (2, 6)
    assert b.first_run_ttft_ms is not None
    assert b.ttft_ms.low is not None
    assert b.ttft_ms.high is not None
    assert b.ttft_ms.low <= (b.ttft_ms.median or 0) <= b.ttft_ms.high
    # Tokens: 3 of 3.1 chunks of each prompt come back, all from L1; nothing from the emptied GPU cache.
    assert result.tokens is not None
    assert (result.tokens.l0, result.tokens.l1, result.tokens.l2) == (0, 6 * 192, 0)
    assert result.tokens.recomputed == 6 * 8
    assert (result.tokens.reachable, result.tokens.share) == (6 * 192, 1.0)
    a = next(s for s in result.scenarios if s.name == "a")
    assert (a.cache, a.tokens.recomputed, a.tokens.reachable) == ("none", 1200, None)
    # The A/A repeat.
    assert result.noise_floor is not None
    assert (result.noise_floor.scenario, result.noise_floor.runs, result.noise_floor.repeated) == ("a", 2, 1)
    assert [s.name for s in result.scenarios] == ["a", "b", "a2"]
    assert run.progress.done == run.progress.total == 2 * 3 * 6 + 6
    assert run.scope is not None
    assert "tiny-llama" in run.scope.sentence
    assert "emptied between the passes" in run.scope.sentence
    assert run.scope.facts["chunk_size"] == 64


def test_order_alternates_and_every_run_has_a_salt_of_its_own(make_panel: PanelMaker) -> None:
    panel = make_panel(engines=with_and_without())
    run = panel.run(baseline_engine_id=panel.engines[1], repeats=2, contexts=1)
    rows = panel.service.requests(int(run.id), page_size=100, page_token=None).items
    order = [(r.scenario, r.repeat) for r in rows if r.phase == "first"]
    assert order == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    salts = {(r.scenario, r.repeat): r.salt for r in rows}
    assert len(set(salts.values())) == 6
    assert all(s.startswith(run.salt_prefix) for s in salts.values())
    # The same prompts in every run: only then do they compare.
    assert {r.key for r in rows} == {"c0"}


def test_b_alone_says_what_is_missing(panel: Panel) -> None:
    run = panel.run(repeats=2)
    assert run.verdict == "valid"
    assert run.result is not None
    assert run.result.speed_up is None
    assert [s.name for s in run.result.scenarios] == ["b"]
    assert run.result.ttft_ms is not None
    assert run.result.ttft_ms.median is not None


def test_a_link_that_was_only_guessed_is_seen_through(make_panel: PanelMaker) -> None:
    """An engine without a connector is linked to the one server that serves its model: it uses none all the same."""
    panel = make_panel(engines=with_and_without())
    panel.fleet.patch_engine(int(panel.engines[1]), EnginePatch(server_id=panel.servers[0]), actor="tester")
    run = panel.run(baseline_engine_id=panel.engines[1], repeats=1)
    assert run.verdict == "valid", run.findings
    assert run.result is not None
    assert [s.cache for s in run.result.scenarios] == ["none", "lmcache"]
    assert run.result.only_the_connector is True
    assert "no_connector" in codes(run, "note")
    alone = panel.run(engine_id=panel.engines[1], form="accumulation")
    assert codes(alone, "invalid") == ["no_server"]


def test_the_same_engine_as_a_with_a_cache_of_no_use(panel: Panel) -> None:
    run = panel.run(baseline_engine_id=panel.engines[0], repeats=1)
    assert run.verdict == "valid", run.findings
    assert run.result is not None
    a = next(s for s in run.result.scenarios if s.name == "a")
    assert a.cache == "new_salts"
    assert (a.tokens.l0, a.tokens.l1, a.tokens.l2) == (0, 0, 0)
    assert run.result.tokens is not None
    assert run.result.tokens.share == 1.0


def test_pass_two_reads_from_disk_when_l1_is_emptied_of_the_runs_own(panel: Panel) -> None:
    run = panel.run(repeats=1, empty_l1=True)
    assert run.verdict == "valid", run.findings
    assert run.result is not None
    assert run.result.tokens is not None
    assert (run.result.tokens.l1, run.result.tokens.l2) == (0, 3 * 192)
    assert any("L1 emptied" in n for n in phases(run)[0].notes)


def test_use_once_shows_no_gain_and_says_so(make_panel: PanelMaker) -> None:
    panel = make_panel(engines=with_and_without())
    run = panel.run(baseline_engine_id=panel.engines[1], shape="use_once", repeats=2)
    assert run.verdict == "valid", run.findings
    assert run.result is not None
    assert run.result.tokens is not None
    assert (run.result.tokens.l1, run.result.tokens.l2, run.result.tokens.reachable) == (0, 0, 0)
    assert run.result.conclusion.kind in ("no_gain", "undecided")  # never a gain, whatever the machine does
    assert "nothing recurs" in run.result.conclusion.text


@pytest.mark.parametrize("shape", ["one_document", "system_prompt", "multi_turn", "code_base"])
def test_shapes_bring_back_whole_chunks_of_what_they_share(panel: Panel, shape: str) -> None:
    run = panel.run(shape=shape, repeats=1, contexts=2, tokens=400, users=2, turns=3)
    assert run.verdict == "valid", run.findings
    assert run.result is not None
    tokens = run.result.tokens
    assert tokens is not None
    assert tokens.reachable
    assert tokens.share == 1.0, tokens


def test_several_engines_store_on_one_and_read_on_the_others(make_panel: PanelMaker) -> None:
    panel = make_panel(engines=3)
    run = panel.run(repeats=1, reader_engine_ids=panel.engines[1:], contexts=4)
    assert run.verdict == "valid", run.findings
    rows = panel.service.requests(int(run.id), page_size=100, page_token=None).items
    assert {r.engine_name for r in rows if r.phase == "first"} == {"engine-0"}
    assert [r.engine_name for r in rows if r.phase == "second" and r.repeat == 1] == ["engine-1", "engine-2"] * 2
    assert run.result is not None
    assert run.result.tokens is not None
    assert run.result.tokens.share == 1.0
    for when in ("before", "after"):
        readers = run.snapshots["b"][when]["readers"]
        assert [(r["name"], r["version"], r["settings_known"]) for r in readers] == [
            ("engine-1", "0.32.0", True),
            ("engine-2", "0.32.0", True),
        ]


def test_concurrency(panel: Panel) -> None:
    run = panel.run(repeats=1, contexts=6, concurrency=3)
    assert run.verdict == "valid", run.findings
    assert 1 < max(p.peak_concurrency for p in phases(run)) <= 3


def test_prompts_of_ones_own(panel: Panel) -> None:
    texts = [" the cache server keeps the record " * 20, " a prompt of another kind " * 25]
    run = panel.run(texts=texts, repeats=1)
    assert run.verdict == "valid", run.findings
    assert run.request["texts"] == 2
    assert run.result is not None
    assert run.result.tokens is not None
    assert run.result.tokens.share == 1.0


def test_a_server_with_quotas_gets_a_nonce_instead_of_salts(make_panel: PanelMaker) -> None:
    panel = make_panel(config=config(server={"eviction_policy": "IsolatedLRU"}))
    run = panel.run(repeats=1)
    assert run.verdict == "valid", run.findings
    assert run.result is not None
    assert run.result.tokens is not None
    assert run.result.tokens.share == 1.0


# --- request rates


def test_request_rates(make_panel: PanelMaker) -> None:
    panel = make_panel(engines=with_and_without())
    run = panel.run(
        form="request_rate", baseline_engine_id=panel.engines[1], prompts=6, rate=60.0, tokens=150, output_tokens=3
    )
    assert run.verdict == "valid", run.findings
    result = run.result
    assert result is not None
    lines = {(x.scenario, x.metric, x.statistic): x for x in result.reductions}
    assert len(lines) == 2 * 3 * 3
    ttft = lines["b", "ttft", "mean"]
    assert ttft.first is not None
    assert ttft.second is not None
    assert ttft.reduction == pytest.approx((ttft.first - ttft.second) / ttft.first)
    assert lines["b", "itl", "median"].first is not None
    assert result.first_run_cost is not None
    rows = panel.service.requests(int(run.id), page_size=100, page_token=None).items
    second = sorted((r for r in rows if (r.scenario, r.phase) == ("b", "second")), key=lambda r: r.position)
    # Poisson times, the same for both runs of both scenarios, 6 requests in 0.1 s; nobody was sent before his time.
    assert [r.planned_offset_seconds for r in second] == sorted(r.planned_offset_seconds or 0 for r in second)
    assert second[-1].planned_offset_seconds == pytest.approx(0.1)
    assert all(r.offset_seconds >= (r.planned_offset_seconds or 0) - 0.002 for r in second)
    first_of_a = [r.planned_offset_seconds for r in rows if (r.scenario, r.phase) == ("a", "first")]
    assert sorted(x or 0 for x in first_of_a) == [r.planned_offset_seconds for r in second]


# --- the engine's own prefix cache


def test_without_dev_mode_auto_leaves_the_gpu_cache_and_says_so(make_panel: PanelMaker) -> None:
    panel = make_panel(config=config(engine={"dev_mode": False}))
    run = panel.run(repeats=1)
    assert run.verdict == "valid", run.findings
    assert "prefix_cache_left" in codes(run, "warning")
    assert run.result is not None
    assert run.result.tokens is not None
    assert run.result.tokens.l0  # and the tokens say where they came from
    assert run.scope is not None
    assert run.scope.facts["prefix_cache"] == "left"


def test_reset_is_invalid_where_it_cannot_be_had(make_panel: PanelMaker) -> None:
    run = make_panel(config=config(engine={"dev_mode": False})).run(prefix_cache="reset")
    assert run.verdict == "invalid"
    assert codes(run, "invalid") == ["reset_unavailable"]
    assert "VLLM_SERVER_DEV_MODE" in json.dumps(run.model_dump())


def test_a_reset_that_lies_is_found_out(panel: Panel) -> None:
    panel.sandbox.control.misbehave("engine", reset_lies=True)
    run = panel.run(repeats=1, prefix_cache="reset")
    assert run.verdict == "invalid"
    assert "l0_not_empty" in codes(run, "invalid")


def test_off_is_refused_where_it_is_on(panel: Panel) -> None:
    run = panel.run(prefix_cache="off")
    assert run.verdict == "invalid"
    assert codes(run, "invalid") == ["prefix_cache_on"]
    assert run.result is None or run.result.ttft_ms is None or run.result.ttft_ms.median is None


def test_off_is_refused_for_hybrid_models(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where it says that its cache is off: these models do not work without it."""
    read = app.benchmark.run.read_facts

    def hybrid(*given: Any, **named: Any) -> Any:
        return replace(read(*given, **named), hybrid=True, prefix_caching=False)

    monkeypatch.setattr(app.benchmark.run, "read_facts", hybrid)
    run = panel.run(prefix_cache="off")
    assert run.verdict == "invalid"
    assert codes(run, "invalid") == ["hybrid"]
    assert "reset or left" in run.findings[0].fix


# --- honesty


def test_a_server_that_stops_half_way_makes_the_run_invalid(make_panel: PanelMaker) -> None:
    def stop(panel: Panel, number: int) -> None:
        if number == 6:  # warm-up, pass 1 of run 0, then in the middle of pass 2
            panel.sandbox.control.kill("server")

    run = make_panel(on_request=stop).run(repeats=1)
    assert (run.state, run.verdict) == ("succeeded", "invalid"), run.findings
    assert codes(run, "invalid")[0] == "server_gone"
    assert "cache-0" in (run.headline or "")
    assert run.result is not None
    assert run.result.speed_up is None
    assert run.result.conclusion.kind == "none"


def test_a_server_restarted_half_way_makes_the_run_invalid(make_panel: PanelMaker) -> None:
    def restart(panel: Panel, number: int) -> None:
        if number == 6:
            panel.sandbox.control.restart("server")

    run = make_panel(on_request=restart).run(repeats=1)
    assert run.verdict == "invalid"
    assert "server_restarted" in codes(run, "invalid")


def test_an_engine_restarted_half_way_makes_the_run_invalid(make_panel: PanelMaker) -> None:
    def restart(panel: Panel, number: int) -> None:
        if number == 6:
            panel.sandbox.control.restart("engine")

    run = make_panel(on_request=restart).run(repeats=1)
    assert run.verdict == "invalid"
    assert {"engine_restarted", "engine_gone"} & set(codes(run, "invalid"))


def test_an_engine_that_goes_away_makes_the_run_invalid(make_panel: PanelMaker) -> None:
    def kill(panel: Panel, number: int) -> None:
        if number == 6:
            panel.sandbox.control.kill("engine")

    run = make_panel(on_request=kill).run(repeats=1)
    assert (run.state, run.verdict) == ("succeeded", "invalid")
    assert codes(run, "invalid") == ["engine_gone"]
    # What came until then is kept, the request that failed too.
    assert [(p.requests, p.failed) for p in phases(run)] == [(3, 0), (2, 1)]


def test_foreign_requests_at_the_engine_make_the_run_invalid(make_panel: PanelMaker) -> None:
    def foreign(panel: Panel, number: int) -> None:
        if number == 6:
            from app.sandbox.sampling import Sampling

            world = panel.sandbox.sandbox.world
            with world.lock:
                world.engines[0].generate(list(range(262, 400)), Sampling(max_tokens=1), world.now())

    run = make_panel(on_request=foreign).run(repeats=1)
    assert run.verdict == "invalid"
    assert set(codes(run, "invalid")) == {"foreign_traffic"}
    assert "138 prompt tokens" in json.dumps([f.text for f in run.findings])


def test_foreign_lookups_at_the_server_make_the_run_invalid(make_panel: PanelMaker) -> None:
    def foreign(panel: Panel, number: int) -> None:
        if number == 6:
            from app.sandbox.sampling import Sampling

            world = panel.sandbox.sandbox.world
            with world.lock:
                world.engines[1].generate(list(range(262, 400)), Sampling(max_tokens=1), world.now())

    run = make_panel(engines=2, on_request=foreign).run(repeats=1)
    assert run.verdict == "invalid"
    assert "1 lookup at the cache server" in json.dumps([f.text for f in run.findings])


def ask_engine(panel: Panel, number: int) -> None:
    """138 prompt tokens of somebody else."""
    from app.sandbox.sampling import Sampling

    world = panel.sandbox.sandbox.world
    with world.lock:
        world.engines[number].generate(list(range(262, 400)), Sampling(max_tokens=1), world.now())


def test_others_prompts_between_two_passes_of_an_engine_make_the_run_invalid(make_panel: PanelMaker) -> None:
    """No pass of A goes on meanwhile, so no pass of A can have counted them."""
    panel = make_panel(
        engines=with_and_without(), on_request=lambda panel, number: ask_engine(panel, 1) if number == 10 else None
    )
    run = panel.run(repeats=1, baseline_engine_id=panel.engines[1])
    assert run.verdict == "invalid"
    assert codes(run, "invalid") == ["foreign_traffic"]
    assert run.reasons == [
        "others sent 138 prompt tokens to the engine engine-1 between its passes, before A, run 1, pass 1"
    ]


def test_others_prompts_after_the_last_pass_of_an_engine_make_the_run_invalid(make_panel: PanelMaker) -> None:
    panel = make_panel(
        engines=with_and_without(), on_request=lambda panel, number: ask_engine(panel, 0) if number == 26 else None
    )
    run = panel.run(repeats=1, baseline_engine_id=panel.engines[1])
    assert run.verdict == "invalid"
    assert len(run.reasons) == 2
    assert "138 prompt tokens to the engine engine-0 between its passes, before the end of the run" in run.reasons[0]
    assert "1 lookup at the cache server cache-0 between the passes, before the end of the run" in run.reasons[1]


def test_stores_in_flight_are_told(panel: Panel) -> None:
    panel.sandbox.control.hold_stores()
    run = panel.run(repeats=1)
    assert "stores_in_flight" in codes(run, "warning")
    stored = phases(run)[0].stored
    assert stored is not None
    assert stored.drained is False
    assert "still in flight" in stored.text


def test_files_counted_while_stores_are_in_flight_are_told(panel: Panel) -> None:
    panel.sandbox.control.hold_stores()
    run = panel.run(form="accumulation", contexts=2, tokens=200)
    assert "stores_in_flight" in codes(run, "warning")


def test_stores_that_drained_are_told_too(panel: Panel) -> None:
    stored = phases(panel.run(repeats=1))[0].stored
    assert stored is not None
    assert (stored.drained, stored.chunks_expected, stored.chunks_in_l2) == (True, 9, 9)


def test_refused_requests_make_the_run_invalid(make_panel: PanelMaker) -> None:
    def refuse(panel: Panel, number: int) -> None:
        if number in (6, 7):
            panel.sandbox.control.misbehave("engine", status=500 if number == 6 else None, paths="/v1/completions")
        if number == 7:
            panel.sandbox.control.behave("engine")

    run = make_panel(on_request=refuse).run(repeats=1)
    assert run.verdict == "invalid"
    assert "requests_failed" in codes(run, "invalid")
    assert "1 of 3 requests failed" in json.dumps([f.text for f in run.findings])


def test_another_model_on_the_other_side_is_invalid(make_panel: PanelMaker) -> None:
    other = EngineSpec(server=None, model_path="/models/other", served_model_name="other")
    panel = make_panel(engines=[EngineSpec(server=0), other])
    run = panel.run(baseline_engine_id=panel.engines[1])
    assert codes(run, "invalid") == ["other_model"]


def test_another_version_on_the_other_side_is_listed(make_panel: PanelMaker) -> None:
    panel = make_panel(engines=[EngineSpec(server=0), EngineSpec(server=None, version="0.31.0")])
    run = panel.run(
        baseline_engine_id=panel.engines[1], repeats=1, image="a:1", baseline_image="b:1", hardware="2 cores"
    )
    assert run.verdict == "valid"
    assert run.result is not None
    assert run.result.only_the_connector is False
    named = {(d.part, d.field): (d.a, d.b) for d in run.result.differences if not d.connector}
    assert named["engine", "version"] == ("0.31.0", "0.32.0")
    assert named["label", "image"] == ("b:1", "a:1")
    assert "differences" in codes(run, "warning")
    assert run.scope is not None
    assert "2 cores" in run.scope.sentence


def test_prompts_that_do_not_fit_are_refused_before_the_first_request(panel: Panel) -> None:
    run = panel.run(tokens=5000)
    assert codes(run, "invalid") == ["prompt_too_long"]
    assert panel.service.requests(int(run.id), page_size=10, page_token=None).items == []


def test_an_engine_that_is_not_there_is_an_error(make_panel: PanelMaker) -> None:
    panel = make_panel()
    panel.sandbox.control.kill("engine")
    run = panel.run()
    assert (run.state, run.verdict) == ("failed", "error")
    assert run.error
    assert "engine-0" in run.error


def test_a_deadline_is_an_invalid_run(panel: Panel) -> None:
    panel.sandbox.control.misbehave("engine", slow_seconds=0.3, paths="/v1/completions")
    run = panel.run(contexts=20, deadline_seconds=1.0)
    assert run.verdict == "invalid"
    assert "deadline" in codes(run, "invalid")


# --- the other forms


def test_accumulation_counts_files_against_the_layout(panel: Panel) -> None:
    run = panel.run(form="accumulation", contexts=4, tokens=200)
    assert run.verdict == "valid", run.findings
    assert run.result is not None
    files = run.result.files
    assert files is not None
    assert (files.requests, files.files, files.files_per_request, files.expected_per_request) == (4, 12, 3.0, 3)
    assert files.bytes == 12 * 64 * 512
    assert "⌊200 ÷ 64⌋ × 1 groups × 1 ranks" in files.expectation


def test_lookups_at_several_numbers_of_records_leave_nothing_behind(panel: Panel) -> None:
    before = sorted(p.name for p in panel.store.iterdir())
    run = panel.run(form="lookup", lookup={"records": [60, 120], "lookups": 3, "allow_fill": True}, tokens=100)
    assert run.verdict == "valid", run.findings
    assert run.result is not None
    assert [p.records for p in run.result.lookups][1:] == [60, 120]
    assert all(p.mean_ms is not None for p in run.result.lookups)
    after = sorted(p.name for p in panel.store.iterdir())
    assert not [n for n in after if "-fill" in n]
    assert [n for n in after if n not in before and run.salt_prefix not in n] == []


def test_more_records_than_inodes_are_refused_before_one_is_written(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Filler, "short_of", lambda self, total: 50)
    run = panel.run(form="lookup", lookup={"records": [150], "lookups": 2, "allow_fill": True}, tokens=100)
    assert run.verdict == "error"
    assert codes(run, "error") == ["no_inodes"]
    assert "lacks 50 inodes for 150 records" in run.reasons[0]


def test_filling_needs_to_be_allowed(panel: Panel) -> None:
    run = panel.run(form="lookup", lookup={"records": [60], "lookups": 2}, tokens=100)
    assert run.result is not None
    assert len(run.result.lookups) == 1
    assert not [p for p in panel.store.iterdir() if "-fill" in p.name]


def test_a_crash_of_a_lookup_run_is_tidied_up(panel: Panel) -> None:
    from app.benchmark.fill import Filler

    run = panel.run(form="lookup", lookup={"records": [40], "lookups": 2}, tokens=100)
    key = run.salt_prefix.removeprefix("tk-").rstrip("-")
    filler = Filler(panel.fleet.store_targets()[0], "/models/tiny-llama", 1 << 24 | 1 << 8, f"tk-{key}-fill")
    filler.fill(30)
    stranger = panel.store / next(p.name for p in panel.store.iterdir() if "-fill" in p.name).replace("-fill", "-else")
    stranger.touch()
    panel.service._runner._kinds["benchmark"].recover(int(run.id))  # type: ignore[misc]
    assert not [p for p in panel.store.iterdir() if "-fill" in p.name]
    assert stranger.exists()


def test_restart_form_waits_for_whoever_restarts(make_panel: PanelMaker) -> None:
    panel = make_panel(threads=True)
    ended = threading.Event()

    def somebody() -> None:
        """Restarts the engine each time the run begins to wait for it."""
        waiting = False
        while not ended.wait(0.02):
            with panel.db.read() as session:
                stage = session.scalar(select(BenchmarkRun.stage).order_by(BenchmarkRun.id.desc()).limit(1))
            asked = "waiting for somebody to restart the engine engine-0" in (stage or "")
            if asked and not waiting:
                panel.sandbox.control.restart("engine")
            waiting = asked

    helper = threading.Thread(target=somebody)
    helper.start()
    try:
        run = panel.run(form="restart", contexts=2, restart={"target": "engine", "wait_seconds": 10})
        run = panel.service.get(int(run.id), wait=30)
    finally:
        ended.set()
        helper.join()
    assert run.verdict == "valid", run.findings
    named = {p.name: p for p in phases(run)}
    assert list(named) == ["cold_start", "with_records", "empty_store"]
    assert named["cold_start"].tokens.external == 0
    assert named["with_records"].tokens.share == 1.0
    assert named["empty_store"].tokens.external == 0
    assert run.result is not None
    assert run.result.conclusion.kind in ("gain", "no_gain")


def test_restart_by_nobody_is_invalid(make_panel: PanelMaker) -> None:
    panel = make_panel()
    run = panel.run(form="restart", contexts=1, restart={"target": "engine", "wait_seconds": 1})
    assert run.verdict == "invalid"
    assert codes(run, "invalid") == ["not_restarted"]


# --- around a run


def test_what_cannot_be_is_refused_by_name(panel: Panel) -> None:
    for fields, name in (
        ({"engine_id": "77"}, "engine_id"),
        ({"baseline_engine_id": "x"}, "baseline_engine_id"),
        ({"reader_engine_ids": ["99"]}, "reader_engine_ids"),
        ({"form": "restart"}, "restart"),
        ({"form": "lookup"}, "lookup"),
        ({"form": "accumulation", "baseline_engine_id": panel.engines[0]}, "baseline_engine_id"),
        ({"texts": ["x"], "shape": "use_once"}, "shape"),
        ({"contexts": 100_000, "repeats": 50}, "contexts"),
        ({"form": "restart", "restart": {"hook_id": "4"}}, "restart.hook_id"),
    ):
        with pytest.raises(InvalidInput) as refused:
            panel.run(**fields)
        assert refused.value.errors[0].field.startswith(name), fields


def test_one_run_at_a_time_on_the_same_targets(make_panel: PanelMaker) -> None:
    panel = make_panel(engines=2)
    with panel.db.write() as session:
        session.add(
            BenchmarkRun(
                created_at=1.0,
                engine_id=int(panel.engines[1]),
                server_id=int(panel.servers[0]),
                engine_name="engine-1",
                run_key="abc",
                form="two_pass",
                shape="repeat",
                deadline_seconds=1.0,
                state="running",
                owner=panel.runner.owner,
            )
        )
    with pytest.raises(Conflict, match="active on the same targets"):
        panel.run()


def test_cancelling_ends_within_two_seconds_and_in_no_verdict(make_panel: PanelMaker) -> None:
    panel = make_panel(threads=True)
    panel.sandbox.control.misbehave("engine", slow_seconds=0.2, paths="/v1/completions")
    run = panel.run(contexts=200, repeats=1)
    while not panel.service.get(int(run.id)).progress.done and not panel.service.get(int(run.id)).stage:
        pass
    panel.service.cancel(int(run.id), actor="tester")
    ended = panel.service.get(int(run.id), wait=5)
    assert (ended.state, ended.verdict) == ("cancelled", None)


def test_every_request_is_kept_and_exported(panel: Panel) -> None:
    run = panel.run(repeats=1, contexts=2, output_tokens=3)
    with panel.db.read() as session:
        assert session.query(BenchmarkSample).count() == 8
    page = panel.service.requests(int(run.id), page_size=5, page_token=None)
    rest = panel.service.requests(int(run.id), page_size=5, page_token=page.next_page_token)
    assert len(page.items) + len(rest.items) == 8
    assert rest.next_page_token is None
    one = page.items[0]
    assert one.ttft_ms is not None
    assert one.e2el_ms is not None
    assert len(one.itl_ms) == 2
    assert one.ttft_ms + sum(one.itl_ms) == pytest.approx(one.e2el_ms, abs=0.01)
    csv, media = panel.service.export(int(run.id), "csv")
    text = "".join(csv)
    assert media.startswith("text/csv")
    assert len(text.splitlines()) == 9
    jsonl = "".join(panel.service.export(int(run.id), "jsonl")[0]).splitlines()
    assert [json.loads(line)["key"] for line in jsonl] == ["c0", "c1"] * 4
    assert json.loads("".join(panel.service.export(int(run.id), "json")[0]))["verdict"] == "valid"
    assert "| scenario | run | pass |" in "".join(panel.service.export(int(run.id), "md")[0])
    with pytest.raises(NotFound):
        panel.service.export(int(run.id), "exe")
    strips = panel.service.strips(int(run.id))
    assert set(strips) == {("b", 0, "first"), ("b", 0, "second"), ("b", 1, "first"), ("b", 1, "second")}


def test_tables_have_the_shape_of_vllm_bench_serve(panel: Panel) -> None:
    run = panel.run(form="request_rate", prompts=3, rate=50.0)
    text = "".join(panel.service.export(int(run.id), "txt")[0])
    first = "=" * 12 + " Serving Benchmark Result "
    head, _, rest = text.partition(first)
    assert run.scope is not None
    assert head.splitlines()[0].endswith(": valid")
    assert run.scope.sentence in head, "numbers without what they hold for"
    table = (first + rest).split("=" * 50)[0].splitlines()
    assert table[0] == "============ Serving Benchmark Result ============"
    names = [line[:40].strip() for line in table[1:]]
    assert names[:4] == [
        "Successful requests:",
        "Failed requests:",
        "Request rate configured (RPS):",
        "Benchmark duration (s):",
    ]
    assert "---------------Time to First Token----------------" in table
    assert "-----Time per Output Token (excl. 1st token)------" in table
    assert "---------------Inter-token Latency----------------" in table
    for name in ("Mean TTFT (ms):", "Median TPOT (ms):", "P99 ITL (ms):"):
        line = next(x for x in table if x.startswith(name))
        float(line[40:])


def test_two_runs_side_by_side(make_panel: PanelMaker) -> None:
    panel = make_panel(engines=with_and_without())
    slow = panel.run(engine_id=panel.engines[1], repeats=2)
    fast = panel.run(repeats=2)
    found = panel.service.compare(int(slow.id), int(fast.id))
    assert found.speed_up is not None
    assert found.warnings == []
    row = found.rows[0]
    assert row.a is not None
    assert row.b is not None
    assert row.ratio == pytest.approx(row.a / row.b)
    assert {d.field for d in found.differences} == {"cache server"}
    other = panel.run(repeats=1, tokens=150)
    assert any("tokens" in w for w in panel.service.compare(int(fast.id), int(other.id)).warnings)


def test_estimate(make_panel: PanelMaker) -> None:
    panel = make_panel(engines=with_and_without())
    from app.benchmark.schemas import BenchmarkInput

    body = {"engine_id": panel.engines[0], "baseline_engine_id": panel.engines[1], "contexts": 10, "tokens": 300}
    found = panel.service.estimate(BenchmarkInput.model_validate(body))
    assert found.requests == (2 * 4 + 1) * 20
    assert found.prompt_tokens == found.requests * 300
    assert found.working_set_tokens == 3000
    assert found.seconds is None
    assert found.disturbs


def test_records_are_removed_afterwards(make_panel: PanelMaker) -> None:
    removed: list[tuple[int, str]] = []

    class Remover:
        def remove_salted(self, store_id: int, salt_prefix: str, *, actor: str) -> Any:
            from app.acceptance.ports import Removal

            removed.append((store_id, salt_prefix))
            return Removal(3, 100, 0)

    run = make_panel(remover=Remover()).run(repeats=1)
    assert removed == [(1, run.salt_prefix)]
    assert "records_left" not in codes(run)
