"""The poller over captured answers: what is stored, what is kept when a scrape fails, restarts, facts, links."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from app.fleet.schemas import EnginePatch, ServerPatch, StoreCreate
from app.telemetry.seats import Seat, tick_after
from app.telemetry.tables import SampleRaw, Series, Snapshot
from tests.unit.telemetry.support import TEXT, Bench, FakeTarget, captured_engine, captured_server

REFUSED = httpx.ConnectError("connection refused")
SLOW = httpx.ReadTimeout("too slow")


def points(bench: Bench, server_id: int, metric: str) -> list[float | None]:
    return [value for _, value in bench.telemetry.samples("server", server_id, metric, step=1.0).points]


class TestServer:
    async def test_shows_what_the_server_says(self, bench: Bench) -> None:
        fake = captured_server()
        fake.date = lambda: bench.clock.now - 3
        server_id = bench.add_server(fake)
        await bench.poller.poll_all_once()
        view = bench.fleet.get_server(server_id)
        manager = fake.json("/status")["storage_manager"]["l1_manager"]
        assert view.l1.used_bytes == manager["memory_used_bytes"]
        assert view.l1.capacity_bytes == manager["memory_total_bytes"]
        assert view.l1.object_count == manager["total_object_count"]
        assert (view.l1.trigger_watermark, view.l1.eviction_ratio, view.l1.eviction_policy) == (0.8, 0.99, "LRU")
        assert (view.version, view.chunk_size) == ("0.5.6-g3e11e108", 64)
        assert view.health.state == "healthy"
        assert view.health.since == view.polled_at
        # The process is 60 s old: everything it counted lies in the window.
        rate = view.hit_rate
        assert (rate.state, rate.hit_tokens, rate.requested_tokens) == ("value", 3840, 5760)
        assert rate.value == 3840 / 5760
        assert (rate.l1_share, rate.l2_share) == (2880 / 5760, 960 / 5760)
        layout = view.layouts[0]
        assert (layout.model_name, layout.dtype, layout.bytes_per_token) == ("/models/tiny-llama", "bfloat16", 512)
        assert layout.live
        adapter = view.l2[0]
        assert (adapter.adapter, adapter.base_path, adapter.relative_tmp_dir) == ("fs", "/srv/kv/l2", ".tmp")
        assert (adapter.usage_bytes, adapter.evicts, adapter.max_capacity_bytes) == (983040, False, None)

    async def test_old_counts_of_an_old_process_are_no_rate(self, bench: Bench) -> None:
        server_id = bench.add_server(captured_server())
        bench.clock.now += 3600
        await bench.poller.poll_all_once()
        rate = bench.fleet.get_server(server_id).hit_rate
        assert (rate.state, rate.reason) == ("unknown", "one reading so far: a rate needs two polls")
        await bench.tick()
        rate = bench.fleet.get_server(server_id).hit_rate
        assert (rate.state, rate.requested_tokens, rate.window_seconds) == ("no_traffic", 0, 10.0)

    async def test_increments_are_sampled(self, bench: Bench) -> None:
        fake = captured_server()
        server_id = bench.add_server(fake)
        bench.clock.now += 3600
        await bench.poller.poll_all_once()
        fake.set_metric("/metrics", "lmcache_mp_lookup_requested_tokens_total", 5760 + 640)
        fake.set_metric("/metrics", "lmcache_mp_lookup_hit_tokens_total", 3840 + 320)
        fake.set_metric("/metrics", "lmcache_mp_lookup_hit_l1_tokens_total", 2880 + 320)
        fake.set_metric("/metrics", "lmcache_mp_l1_evicted_chunks_total", 45 + 20)
        fake.set_metric("/metrics", "lmcache_mp_l1_write_chunks_total", 45 + 30)
        fake.set_metric("/metrics", "lmcache_mp_l2_usage_bytes", 983040 + 327680)
        await bench.tick()
        assert points(bench, server_id, "hit_rate") == [0.5]
        assert points(bench, server_id, "l1_hit_rate") == [0.5]
        assert points(bench, server_id, "l2_hit_rate") == [0.0]
        assert points(bench, server_id, "requested_tokens_per_second") == [64.0]
        assert points(bench, server_id, "l1_evicted_per_second") == [2.0]
        assert points(bench, server_id, "l1_written_per_second") == [3.0]
        assert points(bench, server_id, "l2_store_bytes_per_second") == [32768.0]
        assert points(bench, server_id, "up") == [1.0, 1.0]
        assert points(bench, server_id, "l1_used_bytes") == [0.0, 0.0]

    async def test_a_restart_counts_from_zero_and_is_told(self, bench: Bench) -> None:
        fake = captured_server()
        server_id = bench.add_server(fake)
        bench.clock.now += 3600
        await bench.poller.poll_all_once()
        started = bench.clock.now + 4
        fake.set_metric("/metrics", "process_start_time_seconds", started)
        fake.set_metric("/metrics", "lmcache_mp_lookup_requested_tokens_total", 128)
        fake.set_metric("/metrics", "lmcache_mp_lookup_hit_tokens_total", 64)
        await bench.tick()
        view = bench.fleet.get_server(server_id)
        assert (view.hit_rate.hit_tokens, view.hit_rate.requested_tokens) == (64, 128)
        assert view.restarted_at == view.started_at != None  # noqa: E711
        rows = bench.telemetry.observations([server_id])
        assert [row.process_start for row in rows] == [1795964196.33, started]

    async def test_restarted_inside_the_heartbeat_is_told_though_all_else_is_green(self, bench: Bench) -> None:
        fake, engine = captured_server(), captured_engine()
        server_id = bench.add_server(fake)
        bench.add_engine(engine, server_id=server_id)
        bench.clock.now += 3600
        await bench.poller.poll_all_once()
        status = fake.json("/status")
        status["cache_context_meta"] = {}
        status["registered_gpu_ids"] = []
        status["worker_liveness"]["tracked_instances"] = 0
        fake.set_json("/status", status)
        fake.set_metric("/metrics", "process_start_time_seconds", bench.clock.now + 4)
        fake.set_metric("/metrics", "target_info", None)
        for _ in range(2):
            await bench.tick()
        health = bench.fleet.get_server(server_id).health
        assert (health.state, health.http_up, health.engine_up) == ("degraded", True, True)
        assert health.engines_registered == 0
        assert "restarted 16 s ago" in health.reason
        assert "1 of its engines run" in health.reason

    async def test_no_metrics_by_otlp_is_told_and_degrades_nothing(self, bench: Bench) -> None:
        fake = captured_server()
        config = fake.json("/config")
        config["observability"]["otlp_endpoint"] = "http://collector:4317"
        fake.set_json("/config", config)
        del fake.answers["/metrics"]
        server_id = bench.add_server(fake)
        await bench.poller.poll_all_once()
        view = bench.fleet.get_server(server_id)
        assert (view.health.state, view.hit_rate.state) == ("healthy", "unknown")
        assert "http://collector:4317" in (view.hit_rate.reason or "")
        assert view.l1.capacity_bytes == 268435456
        assert view.scrape_age_seconds == 0.0
        row = bench.telemetry.observations([server_id])[0]
        assert (row.ok, row.engine_ids, row.process_start) == (True, None, None)

    async def test_resident_memory_is_sampled_as_the_processes_tell_it(self, bench: Bench) -> None:
        fake, engine = captured_server(), captured_engine()
        fake.set_metric("/metrics", "process_resident_memory_bytes", 685_670_400)
        engine.set_metric("/metrics", "process_resident_memory_bytes", 612_300_000)
        server_id = bench.add_server(fake)
        engine_id = bench.add_engine(engine, server_id=server_id)
        await bench.poller.poll_all_once()
        assert points(bench, server_id, "resident_bytes") == [685_670_400]
        found = bench.telemetry.samples("engine", engine_id, "resident_bytes")
        assert ([value for _, value in found.points if value is not None], found.unit) == ([612_300_000], "bytes")

    async def test_metrics_without_the_split(self, bench: Bench) -> None:
        fake = captured_server()
        fake.set_metric("/metrics", "lmcache_mp_lookup_hit_l1_tokens_total", None)
        fake.set_metric("/metrics", "lmcache_mp_lookup_hit_l2_tokens_total", None)
        server_id = bench.add_server(fake)
        await bench.poller.poll_all_once()
        rate = bench.fleet.get_server(server_id).hit_rate
        assert (rate.value, rate.l1_share, rate.l2_share) == (3840 / 5760, None, None)
        assert points(bench, server_id, "l1_hit_rate") == []

    async def test_series_that_appear_with_the_first_traffic(self, bench: Bench) -> None:
        fake = captured_server()
        names = ("requested", "hit", "hit_l1", "hit_l2")
        full = fake.answers["/metrics"]
        for name in names:
            fake.set_metric("/metrics", f"lmcache_mp_lookup_{name}_tokens_total", None)
        server_id = bench.add_server(fake)
        bench.clock.now += 3600
        await bench.poller.poll_all_once()
        await bench.tick()
        assert bench.fleet.get_server(server_id).hit_rate.state == "no_traffic"
        fake.answers["/metrics"] = full
        await bench.tick()
        rate = bench.fleet.get_server(server_id).hit_rate
        assert (rate.value, rate.requested_tokens) == (3840 / 5760, 5760)

    async def test_a_hostile_status_is_an_unreadable_answer(self, bench: Bench) -> None:
        fake = captured_server()
        fake.answers["/status"] = (200, "text/html", b"<html>nginx</html>")
        server_id = bench.add_server(fake)
        await bench.poller.poll_all_once()
        view = bench.fleet.get_server(server_id)
        assert view.health.state == "degraded"
        assert "/status" in view.health.reason
        assert view.l1.used_bytes is None
        assert view.scraped_at is None
        assert not bench.telemetry.observations([server_id])[0].ok


class TestTrouble:
    async def test_last_values_stay_with_their_age(self, bench: Bench) -> None:
        fake = captured_server()
        server_id = bench.add_server(fake)
        await bench.poller.poll_all_once()
        good = dict(fake.answers)
        for path in good:
            fake.answers[path] = REFUSED
        await bench.tick()
        view = bench.fleet.get_server(server_id)
        assert view.health.state == "healthy"  # one lost poll is no outage
        assert (view.health.http_up, view.scrape_age_seconds) == (False, 10.0)
        await bench.tick()
        view = bench.fleet.get_server(server_id)
        assert view.health.state == "unreachable"
        assert "connection refused" in view.health.reason
        assert (view.l1.capacity_bytes, view.scrape_age_seconds) == (268435456, 20.0)
        assert view.hit_rate.value == 3840 / 5760
        assert points(bench, server_id, "up") == [1.0, 0.0, 0.0]
        assert points(bench, server_id, "l1_used_bytes") == [0.0]
        fake.answers = good
        await bench.tick()
        await bench.tick()
        changes = bench.telemetry.health_changes(page_size=10, page_token=None).items
        assert [c.new_state for c in changes] == ["healthy", "unreachable", "healthy"]
        assert changes[0].target_name == "cache"
        rows = bench.telemetry.observations([server_id])
        assert [(row.ok, row.polls) for row in rows] == [(True, 1), (False, 2), (True, 2)]

    async def test_slow_is_not_down(self, bench: Bench) -> None:
        fake = captured_server()
        server_id = bench.add_server(fake)
        await bench.poller.poll_all_once()
        fake.answers["/status"] = SLOW
        for _ in range(2):
            await bench.tick()
        assert bench.fleet.get_server(server_id).health.state == "healthy"
        await bench.tick()
        view = bench.fleet.get_server(server_id)
        assert (view.health.state, view.health.http_up) == ("degraded", True)
        assert view.l1.capacity_bytes == 268435456
        assert view.scrape_age_seconds == 30.0

    async def test_after_a_long_silence_the_first_poll_sets_the_state(self, bench: Bench) -> None:
        fake = captured_server()
        server_id = bench.add_server(fake)
        await bench.poller.poll_all_once()
        fake.answers = dict.fromkeys(fake.answers, REFUSED)
        await bench.tick(3600)
        assert bench.fleet.get_server(server_id).health.state == "unreachable"

    async def test_increments_over_a_gap_are_not_invented(self, bench: Bench) -> None:
        fake = captured_server()
        server_id = bench.add_server(fake)
        bench.clock.now += 3600
        await bench.poller.poll_all_once()
        fake.set_metric("/metrics", "lmcache_mp_lookup_requested_tokens_total", 1e6)
        await bench.tick(600)
        assert points(bench, server_id, "requested_tokens_per_second") == []
        assert bench.fleet.get_server(server_id).hit_rate.state == "unknown"

    async def test_a_restarted_panel_goes_on_where_it_ended(self, bench: Bench) -> None:
        fake = captured_server()
        server_id = bench.add_server(fake)
        bench.clock.now += 3600
        await bench.poller.poll_all_once()
        fake.set_metric("/metrics", "lmcache_mp_lookup_requested_tokens_total", 5760 + 64)
        await bench.tick()
        before = bench.fleet.get_server(server_id)
        bench.poller = bench.new_poller()
        fake.set_metric("/metrics", "lmcache_mp_lookup_requested_tokens_total", 5760 + 128)
        await bench.tick(30)
        view = bench.fleet.get_server(server_id)
        assert (before.hit_rate.requested_tokens, view.hit_rate.requested_tokens) == (64, 128)
        assert view.layouts[0].first_seen == before.layouts[0].first_seen
        assert len(bench.telemetry.observations([server_id])) == 1

    async def test_two_pollers_count_nothing_twice(self, bench: Bench) -> None:
        """A command polls beside a serving panel."""
        fake = captured_server()
        server_id = bench.add_server(fake)
        bench.clock.now += 3600
        await bench.poller.poll_all_once()
        other = bench.new_poller()
        fake.set_metric("/metrics", "lmcache_mp_lookup_requested_tokens_total", 5760 + 64)
        bench.clock.now += 5
        await other.poll_all_once()
        await bench.tick(5)
        with bench.db.read() as session:
            series = session.scalar(select(Series.id).where(Series.metric == "requested_tokens"))
            total = session.scalar(select(func.sum(SampleRaw.value)).where(SampleRaw.series_id == series))
        assert total == 64
        assert [row.polls for row in bench.telemetry.observations([server_id])] == [3]


class TestEngine:
    async def test_shows_what_the_engine_says_and_finds_its_server(self, bench: Bench) -> None:
        server_id = bench.add_server(captured_server())
        engine_id = bench.add_engine(captured_engine())
        await bench.poller.poll_all_once()
        await bench.tick()
        view = bench.fleet.get_engine(engine_id)
        assert (view.server_id, view.server_link) == (str(server_id), "guessed")
        assert (view.version, view.model_names, view.max_model_len) == ("0.32.0", ["tiny-llama"], 4096)
        assert (view.health.state, view.reset_available, view.connector) == ("healthy", True, True)
        assert (view.running, view.waiting, view.preemptions) == (0, 0, 0)
        # 512 blocks of 32 tokens of 512 bytes; the 1 GiB it was given is overridden.
        assert (view.l0.capacity_tokens, view.l0.capacity_bytes) == (16384, 16384 * 512)
        assert view.prefix_cache.local_hit_rate == 1984 / 6000
        assert view.prefix_cache.external_hit_rate == 1920 / 4016
        # Of the 4,016 asked for, and of all: what pages show adds up.
        assert view.prefix_cache.external_share == 1920 / 6000
        assert view.prefix_cache.recomputed_share == 2096 / 6000
        assert (view.facts.dtype, view.facts.kv_cache_dtype, view.facts.block_size) == ("bfloat16", "auto", 32)
        server = bench.fleet.get_server(server_id)
        assert server.layouts[0].kv_cache_dtype == "auto"
        assert (server.hit_rate_check.state, server.hit_rate_check.external_tokens) == ("agree", 1920)
        row = bench.telemetry.observations([server_id])[-1]
        assert row.engine_starts == {str(engine_id): 1795964199.83}
        assert next(iter(row.contexts.values()))["kv_cache_dtype"] == "auto"

    async def test_two_servers_with_its_model_leave_it_unlinked(self, bench: Bench) -> None:
        bench.add_server(captured_server(), "http://one:8080")
        engine_id = bench.add_engine(captured_engine())
        await bench.poller.poll_all_once()
        assert bench.fleet.get_engine(engine_id).server_link == "guessed"
        bench.add_server(captured_server(), "http://two:8080")
        await bench.tick()
        view = bench.fleet.get_engine(engine_id)
        assert (view.server_id, view.server_link) == (None, "none")

    async def test_a_given_server_is_never_guessed_away(self, bench: Bench) -> None:
        bench.add_server(captured_server(), "http://one:8080")
        other = FakeTarget({})
        given = bench.add_server(other, "http://two:8080")
        engine_id = bench.add_engine(captured_engine(), server_id=given)
        await bench.poller.poll_all_once()
        view = bench.fleet.get_engine(engine_id)
        assert (view.server_id, view.server_link) == (str(given), "given")

    async def test_entered_facts_hold_for_the_process_that_ran(self, bench: Bench) -> None:
        fake = captured_engine(dev_mode=False)
        engine_id = bench.add_engine(fake)
        body = EnginePatch.model_validate({"entered_facts": {"dtype": "bfloat16"}})
        with pytest.raises(Exception, match="does not know when it started"):
            bench.fleet.patch_engine(engine_id, body, actor="test")
        await bench.poller.poll_all_once()
        view = bench.fleet.get_engine(engine_id)
        assert (view.reset_available, view.facts.dtype, view.facts.kv_cache_dtype) == (False, None, "auto")
        bench.fleet.patch_engine(engine_id, body, actor="test")
        await bench.tick()
        view = bench.fleet.get_engine(engine_id)
        assert (view.facts.dtype, view.facts.sources["dtype"]) == ("bfloat16", "entered by hand")
        assert view.entered_facts_valid is True
        fake.set_metric("/metrics", "process_start_time_seconds", bench.clock.now + 1)
        await bench.tick()
        view = bench.fleet.get_engine(engine_id)
        assert (view.facts.dtype, view.entered_facts_valid) == (None, False)
        assert "former process" in view.warnings[0]

    async def test_entered_facts_can_be_taken_back(self, bench: Bench) -> None:
        engine_id = bench.add_engine(captured_engine(dev_mode=False))
        await bench.poller.poll_all_once()
        entered = EnginePatch.model_validate({"entered_facts": {"dtype": "float16"}})
        bench.fleet.patch_engine(engine_id, entered, actor="test")
        await bench.tick()
        assert bench.fleet.get_engine(engine_id).facts.dtype == "float16"
        bench.fleet.patch_engine(engine_id, EnginePatch.model_validate({"entered_facts": None}), actor="test")
        await bench.tick()
        assert bench.fleet.get_engine(engine_id).facts.dtype is None

    async def test_a_dead_core_behind_a_living_front_end(self, bench: Bench) -> None:
        fake = captured_engine()
        fake.answers["/health"] = (503, "text/plain", b"")
        engine_id = bench.add_engine(fake)
        await bench.poller.poll_all_once()
        health = bench.fleet.get_engine(engine_id).health
        assert (health.state, health.http_up) == ("unhealthy", True)

    async def test_prompt_tokens_of_an_engine_without_the_sources_metric(self, bench: Bench) -> None:
        fake = captured_engine()
        fake.set_metric("/metrics", "vllm:prompt_tokens_by_source_total", None)
        server_id = bench.add_server(captured_server())
        bench.add_engine(fake, server_id=server_id)
        await bench.poller.poll_all_once()
        levels = {level.level: level.tokens for level in bench.telemetry.token_flow(server_id).levels}
        assert levels == {"l0": 1984, "l1": None, "l2": None, "recomputed": 2096}


class TestTokenFlow:
    async def test_levels_add_up_and_the_tier_is_not_guessed(self, bench: Bench) -> None:
        """Captured: two prompts, each cold, warm, and after a reset: once from L1, once from L2. The warm ones were
        looked up too (2,880 tokens in L1, 960 in L2) and served by the GPU: from one scrape nobody can tell which."""
        server_id = bench.add_server(captured_server())
        bench.add_engine(captured_engine(), server_id=server_id)
        await bench.poller.poll_all_once()
        flow = bench.telemetry.token_flow(server_id)
        assert {level.level: level.tokens for level in flow.levels} == {
            "l0": 1984,
            "l1": None,
            "l2": None,
            "recomputed": 2096,
        }
        bounds = {level.level: (level.least_tokens, level.most_tokens) for level in flow.levels}
        assert (bounds["l1"], bounds["l2"]) == ((960, 1920), (0, 960))
        assert "of 1,920 tokens from the cache server, 0 to 960 came from L2" in (flow.levels[2].reason or "")
        assert (flow.state, flow.total_tokens, flow.external_tokens, flow.engines) == ("value", 6000, 1920, 1)
        assert bench.telemetry.token_flow(None).total_tokens == 6000

    async def test_without_the_split_the_tiers_are_unknown_but_not_the_rest(self, bench: Bench) -> None:
        fake = captured_server()
        fake.set_metric("/metrics", "lmcache_mp_lookup_hit_l1_tokens_total", None)
        fake.set_metric("/metrics", "lmcache_mp_lookup_hit_l2_tokens_total", None)
        server_id = bench.add_server(fake)
        bench.add_engine(captured_engine(), server_id=server_id)
        await bench.poller.poll_all_once()
        levels = {level.level: level for level in bench.telemetry.token_flow(server_id).levels}
        assert (levels["l1"].state, levels["l1"].tokens) == ("unknown", None)
        assert "before 0.5.5" in (levels["l2"].reason or "")
        assert levels["l0"].tokens == 1984

    async def test_without_engines_or_traffic(self, bench: Bench) -> None:
        server_id = bench.add_server(captured_server())
        await bench.poller.poll_all_once()
        flow = bench.telemetry.token_flow(server_id)
        assert (flow.state, flow.levels[0].tokens) == ("unknown", None)
        assert "no engine of this server" in (flow.reason or "")
        bench.add_engine(captured_engine(), server_id=server_id)
        bench.clock.now += 3600
        await bench.poller.poll_all_once()
        assert bench.telemetry.token_flow(server_id).state == "unknown"
        await bench.tick()
        flow = bench.telemetry.token_flow(server_id)
        assert (flow.state, flow.total_tokens, flow.levels[0].share) == ("no_traffic", 0, None)


class TestTargetsThatChange:
    async def test_a_moved_server_starts_afresh(self, bench: Bench) -> None:
        server_id = bench.add_server(captured_server())
        await bench.poller.poll_all_once()
        other = captured_server()
        other.set_metric("/metrics", "lmcache_mp_lookup_requested_tokens_total", 9e6)
        bench.targets["http://elsewhere:8080"] = other
        bench.fleet.patch_server(server_id, ServerPatch(url="http://elsewhere:8080"), actor="test")
        view = bench.fleet.get_server(server_id)
        assert (view.health.state, view.l1.used_bytes, view.polled_at) == ("unknown", None, None)
        await bench.tick(3600)
        assert bench.fleet.get_server(server_id).hit_rate.state == "unknown"

    async def test_a_forgotten_server_leaves_nothing_behind(self, bench: Bench) -> None:
        server_id = bench.add_server(captured_server())
        engine_id = bench.add_engine(captured_engine(), server_id=server_id)
        await bench.poller.poll_all_once()
        bench.fleet.delete_server(server_id, actor="test")
        bench.fleet.delete_engine(engine_id, actor="test")
        assert bench.telemetry.snapshot("server", server_id) is None
        assert bench.telemetry.observations([server_id]) == []
        assert bench.telemetry.health_changes(page_size=10, page_token=None).items == []
        assert bench.telemetry.retire() is False
        with bench.db.read() as session:
            for table in (Series, SampleRaw, Snapshot):
                assert session.scalar(select(func.count()).select_from(table)) == 0
        await bench.tick()

    async def test_a_poll_of_a_target_deleted_meanwhile_is_dropped(self, bench: Bench) -> None:
        server_id = bench.add_server(captured_server())

        def delete_meanwhile(request: httpx.Request) -> httpx.Response:
            if bench.fleet.server_targets():
                bench.fleet.delete_server(server_id, actor="test")
            return httpx.Response(404)

        bench.targets["http://cache:8080"].transport = lambda: httpx.MockTransport(delete_meanwhile)  # type: ignore[method-assign]
        await bench.poller.poll_all_once()
        assert bench.telemetry.snapshot("server", server_id) is None

    async def test_a_store_is_looked_at(self, bench: Bench) -> None:
        directory = bench.settings.data_dir.parent / "l2"
        directory.mkdir()
        store_id = int(bench.fleet.create_store(StoreCreate(path=str(directory)), actor="test").id)
        assert bench.fleet.get_store(store_id).usable is None
        await bench.poller.poll_all_once()
        view = bench.fleet.get_store(store_id)
        assert view.usable is True
        assert (view.filesystem.free_bytes or 0) > 0
        directory.rmdir()
        await bench.tick()
        view = bench.fleet.get_store(store_id)
        assert (view.usable, view.usable_reason) == (False, "the directory is gone (or its mount is)")
        ups = [v for _, v in bench.telemetry.samples("store", store_id, "up", step=1.0).points]
        assert ups == [1.0, 0.0]


class Hanging:
    """A transport that answers when told."""

    def __init__(self) -> None:
        self.asked = 0
        self.release = asyncio.Event()

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        await self.release.wait()
        return httpx.Response(200, headers={"content-type": TEXT}, content=b"")


class TestTicks:
    @given(st.floats(0, 1e6), st.floats(0, 1e4), st.floats(1, 3600))
    def test_the_next_one_is_always_ahead_and_on_the_same_grid(self, due: float, late: float, interval: float) -> None:
        found = tick_after(due, due + late, interval)
        steps = (found - due) / interval
        assert found > due + late
        assert steps == pytest.approx(round(steps), abs=1e-3)
        assert found - (due + late) <= interval * 1.001

    def test_a_late_tick_is_made_up_for(self) -> None:
        assert tick_after(100.0, 100.0, 10.0) == 110.0
        assert tick_after(100.0, 100.7, 10.0) == 110.0
        assert tick_after(100.0, 110.0, 10.0) == 120.0
        assert tick_after(100.0, 137.0, 10.0) == 140.0


class TestRunning:
    async def test_a_hanging_server_delays_no_other_and_is_not_asked_twice(self, tmp_path: Path) -> None:
        bench = Bench(tmp_path, poll_seconds=1.0)
        bench.poller._interval = 0.1  # real time: ten ticks a second
        bench.add_server(captured_server(), "http://good:8080")
        hanging = Hanging()
        fake = captured_server()
        fake.transport = lambda: httpx.MockTransport(hanging.answer)  # type: ignore[method-assign]
        hung = bench.add_server(fake, "http://hung:8080")
        stop = asyncio.Event()
        running = asyncio.create_task(bench.poller.run(stop))
        await _until(lambda: _polls(bench, 1) >= 4)
        assert hanging.asked == 3  # health, status and metrics, once
        assert bench.telemetry.snapshot("server", hung) is None
        # What is added while it runs is polled without waiting for the next tick.
        bench.poller._interval = 60.0
        await asyncio.sleep(0.2)
        late = await asyncio.to_thread(bench.add_server, captured_server(), "http://late:8080")
        await _until(lambda: bench.telemetry.snapshot("server", late) is not None)
        # From another thread's loop the running poller does the work.
        await asyncio.to_thread(lambda: asyncio.run(bench.poller.poll_server_now(late)))
        hanging.release.set()
        await _until(lambda: bench.telemetry.snapshot("server", hung) is not None)
        stop.set()
        await running
        bench.db.dispose()

    async def test_stopping_writes_what_was_read(self, bench: Bench) -> None:
        server_id = bench.add_server(captured_server())
        stop = asyncio.Event()
        running = asyncio.create_task(bench.poller.run(stop))
        seats = bench.poller._seats
        await _until(lambda: ("server", server_id) in seats.all and _read(seats.all["server", server_id]))
        stop.set()
        await running
        assert bench.telemetry.snapshot("server", server_id) is not None


def _read(seat: Seat) -> bool:
    return seat.memory is not None and seat.memory.polled_at is not None


def _polls(bench: Bench, server_id: int) -> int:
    with bench.db.read() as session:
        series = select(Series.id).where(Series.metric == "up", Series.target_id == server_id)
        bench.clock.now += 0.011  # samples of one millisecond would be one
        return session.scalar(select(func.count()).where(SampleRaw.series_id.in_(series))) or 0


async def _until(done: object) -> None:
    assert callable(done)
    async with asyncio.timeout(10):
        while not done():  # noqa: ASYNC110  (what it waits for is rows in a database)
            await asyncio.sleep(0.01)
