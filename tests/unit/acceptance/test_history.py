"""What changed since the last pass, two runs side by side, and what a run would take."""

from __future__ import annotations

from typing import Any

import pytest

from app.acceptance.estimate import estimate
from app.acceptance.history import differences, facts_now, latest
from app.acceptance.requests import check
from app.acceptance.schemas import AcceptanceRequest
from app.acceptance.tables import AcceptanceRun
from app.errors import Conflict, NotFound
from app.fleet.load_schemas import EngineLoadView
from app.fleet.schemas import EngineFactsView, EngineView, L2View, LayoutView, ServerView
from tests.unit.acceptance.conftest import Panel, PanelMaker

FROZEN: dict[str, Any] = {
    "model": "tiny-llama",
    "model_root": "/models/tiny-llama",
    "engine_version": "0.32.0",
    "server_version": "0.5.6",
    "layout_fingerprint": "aaaa",
    "chunk_size": 64,
    "settings": {"dtype": "bfloat16", "block_size": 32, "kv_cache_dtype": None},
}


class TestDifferences:
    def test_equal_facts_differ_in_nothing(self) -> None:
        assert differences(FROZEN, FROZEN) == []

    def test_what_one_side_does_not_know_is_no_difference(self) -> None:
        assert differences(FROZEN, {**FROZEN, "engine_version": None, "settings": {}}) == []

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"engine_version": "0.33.0"}, "engine_version"),
            ({"layout_fingerprint": "bbbb"}, "layout_fingerprint"),
            ({"settings": {"dtype": "float16"}}, "settings.dtype"),
        ],
    )
    def test_each_change_is_named(self, changes: dict[str, Any], field: str) -> None:
        assert [d.field for d in differences(FROZEN, {**FROZEN, **changes})] == [field]


def engine_view(panel: Panel, **changes: Any) -> EngineView:
    """The engine as polls would show it."""
    told = {
        "version": "0.32.0",
        "model_names": ["tiny-llama"],
        "model_roots": ["/models/tiny-llama"],
        "polled_at": "2026-11-30T08:00:00.000Z",
        "facts": EngineFactsView(dtype="bfloat16", block_size=32),
    }
    view = panel.fleet.get_engine(int(panel.engines[0]))
    health = view.health.model_copy(update={"state": "healthy"})
    return view.model_copy(update={"health": health, **told, **changes})


def server_view(panel: Panel, fingerprint: str, **changes: Any) -> ServerView:
    layout = LayoutView(
        model_name="/models/tiny-llama",
        world_size=1,
        chunk_size=64,
        bytes_per_token=512,
        dtype="bfloat16",
        attention_backend=None,
        tokens_per_block=32,
        object_groups=[],
        fingerprint=fingerprint,
        live=True,
        contexts=1,
        first_seen=None,
        last_seen=None,
    )
    view = panel.fleet.get_server(int(panel.server))
    return view.model_copy(update={"layouts": [layout], "chunk_size": 64, **changes})


class TestLatest:
    def test_never_tested(self, panel: Panel) -> None:
        view = panel.service.latest_for_engine(int(panel.engines[0]))
        assert (view.state, view.last_run, view.last_pass) == ("never", None, None)
        with pytest.raises(NotFound):
            panel.service.latest_for_engine(99)

    def test_fresh_until_something_changes(self, panel: Panel) -> None:
        run = panel.run()
        fingerprint = run.frozen["layout_fingerprint"]
        ok = server_view(panel, fingerprint)
        same = engine_view(panel, facts=EngineFactsView(settings=run.frozen["settings"]))
        assert latest(same, ok, run, run).state == "fresh"
        fresh = latest(engine_view(panel), server_view(panel, fingerprint), run, run)
        assert (fresh.state, fresh.changed) == ("fresh", [])
        for engine, server in (
            (engine_view(panel, version="0.33.0"), server_view(panel, fingerprint)),
            (engine_view(panel, facts=EngineFactsView(dtype="float16")), server_view(panel, fingerprint)),
            (engine_view(panel, facts=EngineFactsView(settings={"tokenizer": "another"})), ok),
            (engine_view(panel, facts=EngineFactsView(settings={"enforce_eager": False})), ok),
            (engine_view(panel), server_view(panel, "ffff")),
            (engine_view(panel), server_view(panel, fingerprint, version="0.5.7")),
        ):
            stale = latest(engine, server, run, run)
            assert stale.state == "stale"
            assert "changed since the last pass" in stale.reason

    def test_a_failed_run_after_the_pass_is_stale(self, panel: Panel) -> None:
        run = panel.run()
        failed = run.model_copy(update={"id": "2", "verdict": "fail"})
        server = server_view(panel, run.frozen["layout_fingerprint"])
        view = latest(engine_view(panel), server, failed, run, failed)
        assert (view.state, view.reason, view.changed) == ("stale", "run 2 after the last pass ended fail", [])

    @pytest.mark.parametrize("verdict", ["invalid", "error", "timeout"])
    def test_a_run_that_proves_nothing_takes_nothing_back(self, panel: Panel, verdict: str) -> None:
        run = panel.run()
        nothing = run.model_copy(update={"id": "3", "verdict": verdict})
        server = server_view(panel, run.frozen["layout_fingerprint"])
        view = latest(engine_view(panel), server, nothing, run, run, 1)
        assert (view.state, view.last_run, view.last_verdict, view.without_verdict) == ("fresh", nothing, run, 1)

    def test_later_runs_without_a_verdict_do_not_mask_a_failure(self, panel: Panel) -> None:
        first = panel.run()
        with panel.db.write() as session:
            row = session.get(AcceptanceRun, int(first.id))
            assert row is not None
            row.verdict = "fail"
            kept = {c.key: getattr(row, c.key) for c in AcceptanceRun.__table__.columns if c.key != "id"}
            for number, verdict in enumerate(("invalid", "error"), 1):
                session.add(AcceptanceRun(**kept | {"verdict": verdict, "id": row.id + number, "run_key": verdict}))
        view = panel.service.latest_for_engine(int(panel.engines[0]))
        assert view.last_verdict is not None
        assert (view.last_verdict.verdict, view.without_verdict, view.last_pass) == ("fail", 2, None)
        assert view.last_run is not None
        assert view.last_run.verdict == "error"
        engines = panel.fleet.list_engines(page_size=100, page_token=None).items
        assert panel.service.latest_for_engines(engines)[panel.engines[0]] == view

    def test_a_list_says_of_each_engine_what_its_own_page_says(self, panel: Panel) -> None:
        run = panel.run()
        engines = panel.fleet.list_engines(page_size=100, page_token=None).items
        found = panel.service.latest_for_engines(engines)
        assert found == {engine.id: panel.service.latest_for_engine(int(engine.id)) for engine in engines}
        passed = found[panel.engines[0]].last_pass
        assert passed is not None
        assert passed.id == run.id

    def test_an_engine_nobody_has_read_is_unknown(self, panel: Panel) -> None:
        panel.run()
        assert panel.service.latest_for_engine(int(panel.engines[0])).state == "unknown"

    def test_two_live_layouts_prove_no_change(self, panel: Panel) -> None:
        server = server_view(panel, "aaaa")
        both = server.model_copy(update={"layouts": [*server.layouts, *server_view(panel, "bbbb").layouts]})
        assert facts_now(engine_view(panel), both)["layout_fingerprint"] is None


class TestCompare:
    def test_the_same_prompts_answered_the_same(self, panel: Panel) -> None:
        one, two = panel.run(), panel.run()
        view = panel.service.compare(int(one.id), int(two.id))
        assert view.same_prompts
        assert view.differences == []
        assert [c.arm for c in view.comparisons] == ["cold", "warm", "external_l1", "external_l2"]
        assert all(c.exact_matches == 2 and c.flips == 0 for c in view.comparisons)
        assert view.arms[0]["ttft_median_change"] is not None

    def test_another_dtype_shows_in_facts_and_answers(self, panel: Panel) -> None:
        one = panel.run()
        panel.sandbox.control.restart("engine", dtype="float16")
        two = panel.run()
        view = panel.service.compare(int(one.id), int(two.id))
        assert {"layout_fingerprint", "settings.dtype"} <= {d.field for d in view.differences}
        assert (view.comparisons[0].max_abs_difference or 0) > 0

    def test_other_prompts_are_not_compared(self, panel: Panel) -> None:
        one, two = panel.run(), panel.run(lengths=[100])
        view = panel.service.compare(int(one.id), int(two.id))
        assert not view.same_prompts
        assert view.comparisons == []

    def test_runs_that_have_not_ended(self, make_panel: PanelMaker) -> None:
        panel = make_panel(threads=True)
        one = panel.service.get(int(panel.run().id), wait=30)
        panel.sandbox.control.misbehave("engine", slow_seconds=30, paths="/v1/completions")
        two = panel.run()
        with pytest.raises(Conflict, match="not ended"):
            panel.service.compare(int(one.id), int(two.id))
        panel.service.cancel(int(two.id), actor="t")
        panel.service.get(int(two.id), wait=10)


class TestEstimate:
    def estimate(self, panel: Panel, **fields: Any) -> Any:
        return panel.service.estimate(AcceptanceRequest(engine_id=panel.engines[0], **fields))

    def test_counts_requests_and_tokens(self, panel: Panel) -> None:
        view = self.estimate(panel, lengths=[100, 200])
        # 4 arms of 2 prompts, 2 repeated colds, a probe before each arm and the warm-up; no prompt has a whole chunk.
        assert (view.prompts, view.requests) == (2, 4 * 2 + 2 + 5)
        assert view.prompt_tokens > 4 * 300
        assert view.seconds is None
        assert any("GPU prefix cache" in d for d in view.disturbs)
        assert any("chunk size" in w for w in view.warnings)

    def of(self, panel: Panel, engine: EngineView, server: ServerView, **fields: Any) -> Any:
        request = AcceptanceRequest(engine_id=panel.engines[0], **fields)
        _, _, frozen = check(request, panel.fleet)
        return estimate(frozen, engine, server, [])

    def test_before_the_first_run_bytes_and_time_come_from_what_polls_know(self, panel: Panel) -> None:
        load = EngineLoadView(prefill_tokens_per_second=1000.0, decode_tokens_per_second=50.0)
        server = server_view(panel, "aaaa", polled_at="2026-11-30T08:00:00.000Z")
        server = server.model_copy(
            update={
                "l1": server.l1.model_copy(update={"capacity_bytes": 10_000_000}),
                "l2": [
                    L2View(
                        adapter="fs",
                        base_path="/kv",
                        usage_bytes=None,
                        max_capacity_bytes=None,
                        evicts=False,
                        store_id=None,
                    )
                ],
            }
        )
        view = self.of(panel, engine_view(panel, load=load), server, lengths=[100, 200])
        # cold 64 + 192, the same again for the noise and as controls; warm-up and probe of 145 + 16 tokens: 128 each
        assert view.stored_tokens == 3 * (64 + 192) + 2 * 128
        assert view.l1_bytes == view.l2_bytes == view.stored_tokens * 512
        assert view.l1_share == pytest.approx(view.l1_bytes / 10_000_000)
        assert view.answer_tokens == view.requests * 16
        assert view.seconds == pytest.approx(view.prompt_tokens / 1000 + view.answer_tokens / 50 + 5)
        assert "1,000 prompt tokens a second" in view.seconds_from
        assert (view.bytes_reason, view.seconds_reason) == (None, None)

    def test_what_cannot_be_known_is_unknown_with_its_reason_never_zero(self, panel: Panel) -> None:
        view = self.estimate(panel, lengths=[100, 200])
        assert view.stored_tokens > 0  # computed without any reading
        assert (view.l1_bytes, view.l2_bytes, view.l1_share, view.seconds) == (None, None, None, None)
        assert "no KV layout" in view.bytes_reason
        assert view.seconds_reason.startswith("until the first run")
        idle = EngineLoadView(prefill_tokens_per_second=None, decode_tokens_per_second=80.0)
        assert self.of(panel, engine_view(panel, load=idle), server_view(panel, "aaaa"), lengths=[100]).seconds is None

    def test_a_server_without_l2_takes_nothing_there(self, panel: Panel) -> None:
        polled = server_view(panel, "aaaa", polled_at="2026-11-30T08:00:00.000Z", l2=[])
        view = self.of(panel, engine_view(panel), polled, lengths=[100, 200], arms=["cold", "warm"])
        assert (view.l2_bytes, view.l1_bytes) == (0, view.stored_tokens * 512)

    def test_what_is_promised_for_the_store_is_what_a_run_writes(self, panel: Panel) -> None:
        promised = self.of(panel, engine_view(panel), server_view(panel, "aaaa"))
        run = panel.run(profile="quick", remove_records=False)
        assert run.verdict == "pass", run.reasons
        written = sum(f.stat().st_size for f in panel.store.rglob("*.data"))
        layout = run.frozen["layout"]
        per_token = layout["bytes_per_token"] * layout["world_size"]
        assert written <= promised.stored_tokens * per_token
        assert written >= 0.8 * promised.stored_tokens * per_token

    def test_learns_its_time_from_the_last_pass(self, panel: Panel) -> None:
        panel.run()
        assert self.estimate(panel).seconds > 5.0

    def test_says_whom_it_disturbs(self, panel: Panel) -> None:
        assert any("whole L1" in d for d in self.estimate(panel, allow_clear_l1=True).disturbs)
        assert self.estimate(panel, arms=["cold", "warm"]).disturbs == []

    def test_starts_nothing(self, panel: Panel) -> None:
        self.estimate(panel)
        assert panel.service.list_runs(page_size=5, page_token=None).items == []


class TestSchedule:
    def test_a_schedule_starts_a_run(self, panel: Panel) -> None:
        panel.service.check_schedule(int(panel.engines[0]), {"lengths": [150]})
        started = panel.service.fire(int(panel.engines[0]), {"lengths": [150]}, "schedule")
        assert started is not None
        assert panel.service.get(started.id).verdict == "pass"

    def test_options_that_make_no_request(self, panel: Panel) -> None:
        with pytest.raises(Exception, match=r"options\.profile"):
            panel.service.check_schedule(int(panel.engines[0]), {"profile": "huge"})
        with pytest.raises(NotFound):
            panel.service.check_schedule(99, {})
