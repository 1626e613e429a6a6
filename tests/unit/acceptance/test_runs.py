"""Whole runs against the sandbox: real sockets, real record files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from app.acceptance.schemas import AcceptanceRequest, AcceptanceRunView
from app.acceptance.tables import AcceptanceRun
from app.errors import Conflict, InvalidInput, NotFound, TargetError
from app.lmcache.client import LMCacheClient
from app.lmcache.status import ServerStatus
from app.sandbox import EngineSpec, ServerSpec
from app.vllm.client import CompletionAnswer, CompletionRequest, VLLMClient
from tests.unit.acceptance.conftest import Panel, PanelMaker

ALL_WITHOUT_RESTARTS = [
    "cold",
    "warm",
    "external_l1",
    "external_l2",
    "mixed",
    "shared_prefix",
    "changed_head",
    "cross_engine",
]


def codes(run: AcceptanceRunView) -> set[str]:
    return {f.code for f in run.findings}


def own_files(panel: Panel) -> list[Path]:
    return sorted(p for p in panel.store.glob("*.data") if "@tk-" in p.name)


class TestPass:
    def test_a_healthy_stack_passes(self, panel: Panel) -> None:
        run = panel.run(profile="quick")
        assert (run.state, run.verdict, run.reasons) == ("succeeded", "pass", [])
        arms = {a.name: a for a in run.arms}
        assert list(arms) == ["cold", "warm", "external_l1", "external_l2"]
        cold, warm, l1, l2 = arms.values()
        assert (cold.external_tokens, cold.local_tokens) == (0, 0)
        assert warm.local_tokens and warm.local_tokens > 0 and warm.external_tokens == 0
        for arm in (l1, l2):
            assert arm.external_share == 1.0
            assert arm.expected_external_tokens == sum(n // 64 * 64 for n in (211, 416, 301, 154))
            assert arm.exact_matches == arm.requests == 4
            assert arm.compared_to == "warm"
            assert arm.ttft_ms.count == 4 and arm.ttft_ms.median is not None
            assert arm.logprob is not None and arm.logprob.max_abs_difference == 0.0
        assert (l1.l1_hit_tokens, l1.l2_hit_tokens) == (l1.expected_external_tokens, 0)
        assert (l2.l1_hit_tokens, l2.l2_hit_tokens) == (0, l2.expected_external_tokens)
        light = panel.fleet.get_server(int(panel.server)).health.lights[-1]
        assert (light.value, light.reason) == (
            True,
            f"acceptance run {run.id} of {run.engine_name} read records back right",
        )

    def test_what_was_in_force_is_frozen(self, panel: Panel) -> None:
        run = panel.run()
        frozen = run.frozen
        assert frozen["engine_version"] == "0.32.0"
        assert frozen["chunk_size"] == 64
        assert frozen["layout"]["dtype"] == "bfloat16"
        assert frozen["settings"]["dtype"] == "bfloat16"
        assert len(frozen["prompts"]) == 2
        assert run.evidence["tolerance"]["floor"]["max_abs_nats"] == 0.0
        assert run.evidence["stored"]["on_disk"] == run.evidence["stored"]["expected"]
        assert run.evidence["records"]["checksums"] is True

    def test_prompt_logprobs_are_never_asked_for(self, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
        """They make an engine skip every cache: equal answers would then prove nothing."""
        real, bodies = VLLMClient.complete, []

        async def noted(client: VLLMClient, request: CompletionRequest, **more: Any) -> CompletionAnswer:
            bodies.append(request.body())
            return await real(client, request, **more)

        monkeypatch.setattr(VLLMClient, "complete", noted)
        for api in ("completions", "chat"):
            assert panel.run(api=api).verdict == "pass"
        assert len(bodies) > 20
        assert not [b for b in bodies if "prompt_logprobs" in b or b.get("echo")]

    def test_every_answer_is_kept(self, panel: Panel) -> None:
        run = panel.run()
        page = panel.service.answers(int(run.id), page_size=500, page_token=None)
        by_arm = {a.name: [x for x in page.items if x.arm == a.name and x.repeat == 0] for a in run.arms}
        assert {k: len(v) for k, v in by_arm.items()} == dict.fromkeys(
            ("cold", "warm", "external_l1", "external_l2"), 2
        )
        assert [x.arm for x in page.items if x.repeat == 1] == ["control", "control", "cold", "cold"]
        one, two = by_arm["cold"][0], by_arm["external_l2"][0]
        assert one.token_ids == two.token_ids and len(one.token_ids) > 0
        assert one.salt == two.salt
        first = panel.service.answers(int(run.id), page_size=6, page_token=None)
        second = panel.service.answers(int(run.id), page_size=6, page_token=first.next_page_token)
        assert [*first.items, *second.items] == page.items

    def test_the_data_path_counts_as_proven(self, panel: Panel) -> None:
        assert panel.fleet.get_server(int(panel.server)).health.data_path_proven_at is None
        panel.run()
        assert panel.fleet.get_server(int(panel.server)).health.data_path_proven_at is not None

    def test_steps_tell_the_way(self, panel: Panel) -> None:
        run = panel.run()
        assert [s.name for s in run.steps] == [
            "preflight",
            "prompts",
            "arm:cold",
            "arm:warm",
            "stored",
            "arm:external_l1",
            "arm:external_l2",
            "conclude",
        ]
        assert {s.state for s in run.steps} == {"done"}
        # 4 conditions of 2 prompts, 2 repeated colds, 2 controls, a probe before each condition and the warm-up.
        assert run.progress.done == run.progress.total == 4 * 2 + 2 + 2 + 5

    def test_all_arms_on_two_engines(self, make_panel: PanelMaker) -> None:
        panel = make_panel(engines=2)
        run = panel.run(second_engine_id=panel.engines[1], arms=ALL_WITHOUT_RESTARTS, profile="standard")
        assert run.verdict == "pass", run.reasons
        arms = {a.name: a for a in run.arms}
        assert arms["mixed"].local_tokens and arms["mixed"].external_share == 1.0
        assert arms["changed_head"].external_tokens == 0
        assert arms["shared_prefix"].external_share == 1.0
        assert (arms["shared_prefix"].external_tokens or 0) > 0
        assert arms["cross_engine"].engine == "engine-1"
        assert (arms["cross_engine"].external_tokens or 0) > 0
        assert arms["cross_engine"].compared_to == "cold on engine-1"

    def test_an_engine_without_the_connector_is_a_base_line(self, make_panel: PanelMaker) -> None:
        panel = make_panel(engines=[EngineSpec(), EngineSpec(server=None)])
        run = panel.run(second_engine_id=panel.engines[1], arms=["cold", "warm", "without_cache"])
        assert run.verdict == "pass", run.reasons
        assert run.arms[-1].exact_matches == 2
        assert run.arms[-1].external_tokens == 0

    def test_a_base_line_that_has_a_cache_is_none(self, make_panel: PanelMaker) -> None:
        panel = make_panel(engines=[EngineSpec(), EngineSpec()])
        run = panel.run(second_engine_id=panel.engines[1], arms=["warm", "external_l1", "without_cache"])
        assert run.verdict == "invalid"
        (finding,) = [f for f in run.findings if f.severity == "invalid"]
        assert (finding.code, finding.arm) == ("base_line_cached", "without_cache")
        assert "--kv-transfer-config" in (finding.fix or "")

    def test_the_engine_s_load_before_between_and_after(self, panel: Panel) -> None:
        load = panel.run(arms=["warm"]).evidence["load"]
        assert load["before"] == load["after"] == {"running": 0, "waiting": 0, "kv_usage": 0}
        assert load["between"]["readings"] > 2
        assert (load["between"]["running"], load["between"]["waiting"]) == (0, 0)

    @pytest.mark.parametrize("arm", ["mixed", "shared_prefix"])
    def test_an_arm_for_which_no_prompt_is_long_enough_says_so(self, panel: Panel, arm: str) -> None:
        estimate = panel.service.estimate(
            AcceptanceRequest(engine_id=panel.engines[0], arms=["warm", arm], lengths=[70])  # type: ignore[list-item]
        )
        assert [w for w in estimate.warnings if arm.replace("_", " ") in w]
        run = panel.run(arms=["warm", arm], lengths=[70])
        assert run.verdict == "invalid"
        finding = next(f for f in run.findings if f.severity == "invalid")
        assert (finding.code, finding.arm) == ("no_prompt_fits", arm), run.reasons
        assert "leave" in (finding.fix or "")

    def test_lengths_around_a_chunk(self, panel: Panel) -> None:
        run = panel.run(lengths=[63, 64, 65, 127, 128, 129])
        assert run.verdict == "pass", run.reasons
        arm = {a.name: a for a in run.arms}["external_l1"]
        assert arm.expected_external_tokens == 0 + 64 + 64 + 64 + 128 + 128
        assert (arm.too_short_requests, arm.external_share) == (1, 1.0)

    def test_concurrency(self, panel: Panel) -> None:
        run = panel.run(lengths=[70, 130, 150, 200, 210, 300], concurrency=4)
        assert run.verdict == "pass", run.reasons
        assert {a.requests for a in run.arms} == {6}

    def test_the_whole_standard_profile_over_chat(self, panel: Panel) -> None:
        run = panel.run(profile="standard", api="chat")
        assert run.verdict == "pass", run.reasons
        assert [a.name for a in run.arms] == [
            *("cold", "warm", "external_l1", "external_l2", "shared_prefix", "changed_head")
        ]

    def test_chat(self, panel: Panel) -> None:
        run = panel.run(api="chat")
        assert run.verdict == "pass", run.reasons

    def test_own_prompts_are_sent_and_scored(self, panel: Panel) -> None:
        prompts = [{"prompt": "tell me about the store " * 40, "expected": ".", "score": "regex", "name": "store"}]
        run = panel.run(prompts=prompts)
        assert run.verdict == "pass", run.reasons
        assert run.arms[0].score is not None and run.arms[0].score.scored == 1
        assert run.request["prompts"] == 1
        assert run.prompt_names == {"p01": "store"}

    def test_batches_when_not_all_prompts_fit_the_gpu_cache(self, make_panel: PanelMaker) -> None:
        panel = make_panel(engines=[EngineSpec(l0_blocks=48)])
        run = panel.run(lengths=[200, 300, 310, 320])
        assert run.verdict == "pass", run.reasons
        assert len(run.evidence["probes"]) > 4
        assert {a.requests for a in run.arms} == {4}

    def test_without_a_store_directory_l1_may_be_cleared(self, make_panel: PanelMaker) -> None:
        panel = make_panel(with_store=False)
        assert panel.run(allow_clear_l1=True).verdict == "pass"
        refused = panel.run()
        assert refused.verdict == "invalid"
        assert "l1_not_emptied" in codes(refused)
        assert "allow_clear_l1" in refused.reasons[0]

    def test_an_engine_that_reports_no_cached_tokens_is_judged_by_its_counters(self, make_panel: PanelMaker) -> None:
        panel = make_panel(engines=[EngineSpec(prompt_tokens_details=False, cached_token_stats=False)])
        run = panel.run()
        assert run.verdict == "pass", run.reasons
        assert run.arms[2].evidence_source == "engine_counters"

    def test_an_older_engine_that_answers_a_reset_with_nothing(self, make_panel: PanelMaker) -> None:
        panel = make_panel(engines=[EngineSpec(reset_answers="empty")])
        assert panel.run().verdict == "pass"

    def test_quota_servers_get_a_nonce_instead_of_a_salt(self, make_panel: PanelMaker) -> None:
        panel = make_panel(servers=[ServerSpec(eviction_policy="IsolatedLRU")])
        run = panel.run(allow_clear_l1=True)
        assert run.verdict == "pass", run.reasons
        assert run.evidence["salted"] is False
        # Asked again, a prompt with a nonce comes from the cache: no second cold, no floor.
        assert run.evidence["tolerance"]["floor"] == {"repeats": 0, "max_abs_nats": None, "diverged": 0}
        assert own_files(panel) == []


class TestFail:
    def test_zeroed_records(self, make_panel: PanelMaker) -> None:
        def zero(panel: Panel, n: int) -> None:
            if n == 3:
                for path in own_files(panel):
                    path.write_bytes(bytes(path.stat().st_size))

        run = make_panel(on_reset=zero).run()
        assert run.verdict == "fail"
        assert {"answer_differs", "records_changed"} <= codes(run)
        assert run.arms[2].passed is True
        assert run.arms[3].passed is False
        shown = run.comparisons[-1].divergences[0]
        assert shown.outcome in ("flip", "drift")
        if shown.first_divergence is not None:
            assert shown.first_divergence.top_a[0].text is not None

    def test_one_exponent_bit_of_one_record(self, make_panel: PanelMaker) -> None:
        def flip(panel: Panel, n: int) -> None:
            if n == 3:
                path = next(p for p in own_files(panel) if p.name.endswith("-p02.data"))
                raw = bytearray(path.read_bytes())
                raw[1] ^= 0x40
                path.write_bytes(raw)

        run = make_panel(on_reset=flip).run()
        assert run.verdict == "fail"
        assert run.comparisons[-1].flips + run.comparisons[-1].drifts + run.comparisons[-1].refused >= 1 or (
            "records_changed" in codes(run)
        )

    def test_a_record_of_another_prompt_under_this_key(self, make_panel: PanelMaker) -> None:
        def swap(panel: Panel, n: int) -> None:
            if n == 3:
                by_prompt = {s: [p for p in own_files(panel) if p.name.endswith(f"-{s}.data")] for s in ("p01", "p02")}
                by_prompt["p01"][0].write_bytes(by_prompt["p02"][0].read_bytes())

        assert make_panel(on_reset=swap).run().verdict == "fail"

    def test_an_engine_restarted_with_another_dtype(self, make_panel: PanelMaker) -> None:
        def restart(panel: Panel, n: int) -> None:
            if n == 2:
                panel.sandbox.control.restart("engine", dtype="float16")

        run = make_panel(on_reset=restart).run()
        assert run.verdict == "fail"
        assert {"answer_differs", "layout_changed"} <= codes(run)

    def test_an_engine_that_refuses_in_a_cache_arm(self, make_panel: PanelMaker) -> None:
        def refuse(panel: Panel, n: int) -> None:
            if n == 3:
                panel.sandbox.control.misbehave("engine", status=400, paths="/v1/completions")

        run = make_panel(on_reset=refuse).run()
        assert run.verdict == "fail"
        assert run.arms[3].refused == 2

    def test_truncated_records(self, make_panel: PanelMaker) -> None:
        def truncate(panel: Panel, n: int) -> None:
            if n == 3:
                for path in [p for p in own_files(panel) if p.name.endswith("-p02.data")][:2]:
                    path.write_bytes(path.read_bytes()[:100])

        run = make_panel(on_reset=truncate).run()
        assert run.verdict == "fail"
        assert {"records_changed", "share_too_low"} <= codes(run)


class TestInvalid:
    def test_dev_mode_off(self, make_panel: PanelMaker) -> None:
        run = make_panel(engines=[EngineSpec(dev_mode=False)]).run()
        assert (run.state, run.verdict) == ("succeeded", "invalid")
        assert "VLLM_SERVER_DEV_MODE=1" in run.reasons[0]
        assert run.steps[0].state == "failed"

    def test_a_reset_that_answers_true_and_does_nothing(self, panel: Panel) -> None:
        panel.sandbox.control.misbehave("engine", reset_lies=True)
        run = panel.run()
        assert run.verdict == "invalid"
        assert "reset_had_no_effect" in codes(run)

    def test_a_reset_that_never_succeeds(self, panel: Panel) -> None:
        panel.sandbox.control.misbehave("engine", reset_refuses=True)
        run = panel.run()
        assert run.verdict == "invalid"
        assert "reset_busy" in codes(run)

    @pytest.mark.parametrize("with_store", [True, False])
    def test_a_store_that_never_reaches_l2(self, make_panel: PanelMaker, with_store: bool) -> None:
        panel = make_panel(with_store=with_store)
        panel.sandbox.control.hold_stores()
        run = panel.run(allow_clear_l1=True)
        assert run.verdict == "invalid"
        assert "never_reached_l2" in codes(run)
        assert run.arms[2].name == "external_l1"
        assert run.arms[2].external_share == 1.0

    def test_stores_that_vanish(self, panel: Panel) -> None:
        panel.sandbox.control.misbehave("server", stores_never_complete=True)
        run = panel.run()
        assert run.verdict == "invalid"
        assert "never_reached_l2" in codes(run)

    def test_a_layout_that_changed_with_nothing_read_from_the_cache(self, make_panel: PanelMaker) -> None:
        def restart(panel: Panel, n: int) -> None:
            if n == 2:
                panel.sandbox.control.restart("engine", attention_backend="another", block_size=64)
                for path in own_files(panel):
                    path.unlink()
                panel.sandbox.control.restart("server")

        run = make_panel(on_reset=restart).run(arms=["cold", "warm", "external_l1"])
        assert run.verdict == "invalid", run.reasons
        assert {"layout_changed", "cache_not_used", "engine_restarted"} <= codes(run)
        assert run.arms[2].compared_to == "cold on the restarted engine"

    def test_deleted_records(self, make_panel: PanelMaker) -> None:
        def delete(panel: Panel, n: int) -> None:
            if n == 3:
                for path in own_files(panel):
                    if path.name.endswith("-p02.data"):
                        path.unlink()

        run = make_panel(on_reset=delete).run()
        assert run.verdict == "invalid"
        assert "records_lost" in codes(run)

    def test_a_cache_server_that_lists_no_engine(self, make_panel: PanelMaker) -> None:
        panel = make_panel(engines=[EngineSpec(server=None)])
        run = panel.run()
        assert run.verdict == "invalid"
        assert "engine_not_registered" in codes(run)

    def test_no_metrics_anywhere(self, panel: Panel) -> None:
        panel.sandbox.control.misbehave("server", metrics_missing=True)
        run = panel.run()
        assert run.verdict == "invalid"
        assert "tier_unknown" in codes(run)

    def test_prompts_too_short_to_be_cached(self, panel: Panel) -> None:
        run = panel.run(lengths=[40, 50])
        assert run.verdict == "invalid"
        assert "nothing_expected" in codes(run)

    def test_prompts_longer_than_the_engine_takes(self, panel: Panel) -> None:
        run = panel.run(lengths=[150, 5000])
        assert run.verdict == "invalid"
        assert "prompt_too_long" in codes(run)

    def test_no_l2_adapter(self, make_panel: PanelMaker) -> None:
        run = make_panel(servers=[ServerSpec(l2_enabled=False)], with_store=False).run()
        assert run.verdict == "invalid"
        assert "no_l2" in codes(run)


class TestErrorAndTimeout:
    def test_a_cache_server_that_is_down(self, panel: Panel) -> None:
        panel.sandbox.control.kill("server")
        run = panel.run()
        assert (run.state, run.verdict) == ("succeeded", "invalid")
        assert codes(run) == {"server_unreachable"}
        assert "cache" in run.reasons[0]

    def test_an_engine_that_is_down(self, panel: Panel) -> None:
        panel.sandbox.control.kill("engine")
        assert panel.run().verdict == "error"

    def test_a_cache_server_that_dies_between_the_arms(self, make_panel: PanelMaker) -> None:
        def kill(panel: Panel, n: int) -> None:
            if n == 3:
                panel.sandbox.control.kill("server")

        run = make_panel(on_reset=kill).run()
        assert run.verdict in ("invalid", "error")

    @pytest.mark.parametrize("fault", [{"stream_stops_after": 2}, {"hang": True, "paths": "/v1/completions"}])
    def test_an_engine_that_stops_answering(self, make_panel: PanelMaker, fault: dict[str, object]) -> None:
        def stop(panel: Panel, n: int) -> None:
            if n == 3:
                panel.sandbox.control.misbehave("engine", **fault)

        run = make_panel(on_reset=stop).run(request_timeout_seconds=0.5)
        assert run.verdict == "timeout", run.reasons
        assert "engine_stopped_answering" in codes(run)

    def test_an_engine_that_is_silent_whatever_it_was_asked(
        self, panel: Panel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def silent(*_: object, **__: object) -> None:
            raise TargetError("timeout", "POST http://e/tokenize took longer than 30 s")

        monkeypatch.setattr(VLLMClient, "tokenize", silent)
        run = panel.run()
        assert (run.verdict, codes(run)) == ("timeout", {"engine_stopped_answering"})
        assert "took longer than 30 s" in run.reasons[0] and "request_timeout_seconds" in run.reasons[0]

    def test_a_cache_server_that_falls_silent(self, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
        real, asked = LMCacheClient.status, []

        async def silent(client: LMCacheClient, *known: str) -> ServerStatus:
            asked.append(client)
            if len(asked) > 1:  # the preflight had its answer
                raise TargetError("timeout", "GET http://s/status took longer than 7 s")
            return await real(client, *known)

        monkeypatch.setattr(LMCacheClient, "status", silent)
        run = panel.run()
        assert run.verdict == "timeout"
        assert "server_stopped_answering" in codes(run)
        assert "the cache server cache stopped answering" in run.reasons[0]

    def test_a_stream_that_is_cut_off(self, panel: Panel) -> None:
        panel.sandbox.control.misbehave("engine", stream_cut_after=2)
        assert panel.run().verdict == "error"

    def test_the_deadline_of_the_run(self, panel: Panel) -> None:
        panel.sandbox.control.misbehave("engine", slow_seconds=0.3, paths="/v1/completions")
        run = panel.run(deadline_seconds=1.0)
        assert run.verdict == "timeout", run.reasons
        assert "deadline" in codes(run)

    def test_an_engine_that_wants_a_key(self, panel: Panel) -> None:
        panel.sandbox.control.misbehave("engine", status=401, paths="/v1/completions,/tokenize")
        run = panel.run()
        assert run.verdict == "error"
        assert "401" in run.reasons[0]


class TestLife:
    def test_cancel_within_two_seconds(self, make_panel: PanelMaker) -> None:
        panel = make_panel(threads=True)
        panel.sandbox.control.misbehave("engine", slow_seconds=30, paths="/v1/completions")
        run = panel.run()
        assert run.state in ("queued", "running")
        time.sleep(0.3)
        began = time.monotonic()
        panel.service.cancel(int(run.id), actor="tester")
        ended = panel.service.get(int(run.id), wait=10)
        assert time.monotonic() - began < 2
        assert (ended.state, ended.verdict) == ("cancelled", None)
        assert {s.state for s in ended.steps} <= {"done", "skipped"}

    def test_one_active_run_a_server(self, make_panel: PanelMaker) -> None:
        panel = make_panel(threads=True, engines=2)
        panel.sandbox.control.misbehave("engine/0", slow_seconds=30, paths="/v1/completions")
        run = panel.run()
        with pytest.raises(Conflict, match="active"):
            panel.run()
        with pytest.raises(Conflict):
            panel.run(engine_id=panel.engines[1])
        panel.service.cancel(int(run.id), actor="tester")
        panel.service.get(int(run.id), wait=10)

    def test_a_long_poll_returns_at_the_end(self, make_panel: PanelMaker) -> None:
        panel = make_panel(threads=True)
        run = panel.run()
        ended = panel.service.get(int(run.id), wait=30)
        assert ended.verdict == "pass"

    def test_a_fault_of_ours_is_an_error_never_a_pass(self, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: object, **__: object) -> None:
            raise RuntimeError("boom")

        monkeypatch.setattr("app.acceptance.run.prepare", broken)
        run = panel.run()
        assert (run.state, run.verdict) == ("failed", "error")
        assert "boom" in run.reasons[0]

    def test_history_newest_first_with_filters(self, panel: Panel) -> None:
        first, second = panel.run(), panel.run()
        page = panel.service.list_runs(page_size=1, page_token=None)
        assert [r.id for r in page.items] == [second.id]
        rest = panel.service.list_runs(page_size=1, page_token=page.next_page_token)
        assert [r.id for r in rest.items] == [first.id]
        assert panel.service.list_runs(page_size=10, page_token=None, verdict="fail").items == []

    def test_forgotten_targets_leave_the_history(self, panel: Panel) -> None:
        run = panel.run()
        panel.fleet.delete_engine(int(panel.engines[0]), actor="tester")
        again = panel.service.get(int(run.id))
        assert (again.engine_id, again.engine_name) == (None, "engine-0")

    def test_memory_holds_no_answers_after_the_run(self, panel: Panel) -> None:
        panel.run()
        with panel.db.read() as session:
            row = session.get(AcceptanceRun, 1)
            assert row is not None
            assert "token_ids" not in str(row.arms)


class TestBadInput:
    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"engine_id": "99"}, "engine_id"),
            ({"engine_id": "x"}, "engine_id"),
            ({"second_engine_id": "99"}, "second_engine_id"),
            ({"second_engine_id": "1"}, "second_engine_id"),
            ({"arms": ["cross_engine"]}, "second_engine_id"),
            ({"arms": ["restarted_engine"]}, "restart_hook_id"),
            ({"prompts": [{"prompt": "x", "expected": "(", "score": "regex"}]}, "prompts[0].score"),
            ({"prompts": [{"prompt": "x", "score": "exact"}]}, "prompts[0].score"),
            ({"prompts": [{"prompt": "x"}], "lengths": [64]}, "lengths"),
            ({"prompts": [{"prompt": "x"}], "mode": "score"}, "prompts"),
        ],
    )
    def test_names_the_field_and_starts_nothing(self, panel: Panel, fields: dict[str, object], field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            panel.run(**fields)
        assert field in [e.field for e in caught.value.errors]
        assert panel.service.list_runs(page_size=10, page_token=None).items == []

    def test_an_engine_without_a_server(self, make_panel: PanelMaker) -> None:
        panel = make_panel()
        panel.fleet.delete_server(int(panel.server), actor="tester")
        with pytest.raises(InvalidInput, match="no cache server"):
            panel.run()

    def test_unknown_runs(self, panel: Panel) -> None:
        with pytest.raises(NotFound):
            panel.service.get(7)
        with pytest.raises(NotFound):
            panel.service.cancel(7, actor="x")
        run = panel.run(arms=["cold", "warm"])
        with pytest.raises(NotFound):
            panel.service.report(int(run.id), "exe")

    def test_a_request_refuses_what_it_does_not_know(self) -> None:
        for wrong in ({"engine_id": 1}, {"engine_id": "1", "arms": []}, {"engine_id": "1", "typo": True}):
            with pytest.raises(ValueError):
                AcceptanceRequest.model_validate(wrong)
