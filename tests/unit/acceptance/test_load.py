"""The engine's load around and during a run's requests: read lightly, at the right moment, and told."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import httpx
import pytest

from app.acceptance.arm_findings import arm_findings
from app.acceptance.load import LoadEvidence, Spread
from app.acceptance.load_watch import LoadWatch
from app.acceptance.reports import markdown, render
from app.acceptance.told import evidence_lines, load_lines, spread
from app.errors import TargetError
from app.sandbox import Latency, SandboxConfig
from app.vllm.metrics import EngineLoad
from tests.unit.acceptance.conftest import PACE, PanelMaker
from tests.unit.acceptance.factories import arm, tolerance

#: Slow enough for requests to be seen in flight.
SLOW = SandboxConfig(latency=Latency(base=0.02, decode_per_token=0.004))
BUSY = replace(PACE, load=0.02)


def load_of(running: float, waiting: float = 0.0, usage: float = 0.5, *, own: int = 1) -> LoadEvidence:
    return LoadEvidence().with_reading(EngineLoad(running, waiting, usage), own)


class TestNumbers:
    def test_lowest_mean_and_highest(self) -> None:
        seen = load_of(1, 0, 0.1).with_reading(EngineLoad(3, 1, 0.4), 1).with_reading(EngineLoad(2, 2, 0.1), 1)
        assert (seen.readings, seen.running, seen.waiting) == (3, Spread(3, 1, 2, 3), Spread(3, 0, 1, 2))
        assert seen.kv_usage == Spread(3, 0.1, pytest.approx(0.2), 0.4)  # type: ignore[arg-type]
        assert seen.others == Spread(3, 0, 2, 3)

    def test_batches_add_up_by_their_readings(self) -> None:
        three = load_of(4).with_reading(EngineLoad(4), 1).with_reading(EngineLoad(4), 1)
        both = three.merged(load_of(8))
        assert both.running == Spread(4, 4, 5, 8)
        assert both.kv_usage == Spread(2, 0.5, 0.5, 0.5)  # two of the readings did not tell it

    def test_what_the_engine_does_not_tell_is_unknown_not_zero(self) -> None:
        seen = LoadEvidence().with_reading(EngineLoad(None, None, 0.3), 1)
        assert (seen.readings, seen.running, seen.waiting, seen.others) == (1, None, None, None)
        assert LoadEvidence().with_reading(EngineLoad(), 1) == LoadEvidence()

    def test_our_own_requests_are_not_others(self) -> None:
        assert load_of(4, 1, own=5).others == Spread(1, 0, 0, 0)
        assert load_of(4, 3, own=5).others == Spread(1, 2, 2, 2)


class Reader:
    """Stands for the engine; notes when it was read, in seconds since the start."""

    def __init__(self) -> None:
        self.read_at: list[float] = []
        self.began = 0.0

    def watch(self, every: float, *, answer: EngineLoad | Exception = EngineLoad(1, 0, 0.1)) -> LoadWatch:
        self.began = time.monotonic()

        async def read() -> EngineLoad:
            self.read_at.append(time.monotonic() - self.began)
            await asyncio.sleep(0.005)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return LoadWatch(read, every)


@pytest.fixture
def reader() -> Reader:
    return Reader()


class TestWatch:
    def test_nothing_is_read_before_the_first_token_is_timed(self, reader: Reader) -> None:
        async def go() -> LoadEvidence:
            watch = reader.watch(0.2)
            with watch.arm() as seen:
                async with watch.request(streamed=True) as flight:
                    await asyncio.sleep(0.1)
                    assert reader.read_at == []
                    flight.first_token()
                    await asyncio.sleep(0.05)
                return seen()

        seen = asyncio.run(go())
        assert (seen.readings, seen.running) == (1, Spread(1, 1, 1, 1))
        assert reader.read_at == [pytest.approx(0.1, abs=0.04)]

    def test_a_first_token_that_takes_long_is_watched_seldom(self, reader: Reader) -> None:
        async def go() -> LoadEvidence:
            watch = reader.watch(0.05)
            with watch.arm() as seen:
                async with watch.request(streamed=True):
                    await asyncio.sleep(0.35)
                return seen()

        assert 2 <= asyncio.run(go()).readings <= 3

    def test_at_most_one_reading_in_an_interval_however_many_requests(self, reader: Reader) -> None:
        async def one(watch: LoadWatch) -> None:
            async with watch.request(streamed=True) as flight:
                flight.first_token()
                await asyncio.sleep(0.02)

        async def go() -> None:
            watch = reader.watch(0.1)
            with watch.arm():
                for _ in range(10):
                    await asyncio.gather(*(one(watch) for _ in range(8)))

        asyncio.run(go())
        assert 2 <= len(reader.read_at) <= 4

    def test_the_next_request_meets_no_reading(self, reader: Reader) -> None:
        async def go() -> None:
            watch = reader.watch(0.0)
            with watch.arm():
                async with watch.request(streamed=True) as flight:
                    flight.first_token()
                assert watch._reading is None

        asyncio.run(go())
        assert len(reader.read_at) == 1

    def test_a_reading_that_came_after_the_answer_says_nothing(self, reader: Reader) -> None:
        async def go() -> LoadEvidence:
            watch = reader.watch(0.1)
            with watch.arm() as seen:
                async with watch.request(streamed=True) as flight:
                    flight.first_token()
                return seen()

        assert asyncio.run(go()).readings == 0

    def test_outside_an_arm_nothing_is_read(self, reader: Reader) -> None:
        async def go() -> None:
            watch = reader.watch(0.01)
            async with watch.request(streamed=False):
                await asyncio.sleep(0.06)

        asyncio.run(go())
        assert reader.read_at == []

    def test_an_engine_that_cannot_be_read_disturbs_nothing(self, reader: Reader) -> None:
        async def go() -> LoadEvidence:
            watch = reader.watch(0.01, answer=TargetError("refused", "no"))
            with watch.arm() as seen:
                async with watch.request(streamed=False):
                    await asyncio.sleep(0.06)
                return seen()

        assert asyncio.run(go()).readings == 0
        assert len(reader.read_at) >= 2

    def test_a_cancelled_run_leaves_no_reading_behind(self, reader: Reader) -> None:
        async def go() -> None:
            watch = reader.watch(0.001)

            async def asking() -> None:
                with watch.arm():
                    async with watch.request(streamed=True) as flight:
                        flight.first_token()
                        await asyncio.sleep(0.002)
                        await asyncio.sleep(5)

            task = asyncio.create_task(asking())
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert watch._reading is None
            assert len(asyncio.all_tasks()) == 1

        asyncio.run(go())

    def test_a_request_that_just_ended_may_still_be_counted_by_the_engine(self, reader: Reader) -> None:
        async def go() -> LoadEvidence:
            watch = reader.watch(0.5, answer=EngineLoad(3, 0, 0.1))
            with watch.arm() as seen:
                async with watch.request(streamed=True) as last:
                    for _ in range(2):
                        async with watch.request(streamed=True), watch.request(streamed=True):
                            await asyncio.sleep(0.01)
                    last.first_token()
                    await asyncio.sleep(0.02)
                return seen()

        assert asyncio.run(go()).others == Spread(1, 0, 0, 0)


class TestRuns:
    def test_each_condition_notes_what_the_engine_did_meanwhile(self, make_panel: PanelMaker) -> None:
        run = make_panel(config=SLOW, pace=BUSY).run(arms=["cold", "warm", "external_l1", "mixed"], lengths=[130, 200])
        assert run.verdict == "pass", run.reasons
        assert [a.name for a in run.arms] == ["cold", "warm", "external_l1", "mixed"]
        for one in run.arms:
            assert one.load is not None
            assert one.load.readings >= 1, one.name
            assert one.load.running is not None
            assert one.load.running.high == 1, one.name
            assert one.load.others is not None
            assert one.load.others.high == 0, one.name
            assert one.load.before is not None
            assert (one.load.before.running, one.load.before.waiting) == (0, 0)
        during = run.evidence["load"]["during"]
        assert during["readings"] == sum(a.load.readings for a in run.arms if a.load)
        assert "none of them others'" in dict(evidence_lines(run))["engine load"]

    def test_requests_at_once_are_all_our_own(self, make_panel: PanelMaker) -> None:
        run = make_panel(config=SLOW, pace=BUSY).run(arms=["warm"], concurrency=4, lengths=[70, 80, 90, 100, 110, 120])
        assert run.verdict == "pass", run.reasons
        load = run.arms[0].load
        assert load is not None
        assert load.running is not None
        assert 2 <= load.running.high <= 4
        assert load.others is not None
        assert load.others.high == 0

    def test_requests_of_others_are_said(self, make_panel: PanelMaker) -> None:
        panel = make_panel(config=SLOW, pace=BUSY)
        stop = threading.Event()
        model = httpx.get(f"{panel.sandbox.engine_url}/v1/models").json()["data"][0]["id"]

        def neighbour() -> None:
            body = {"model": model, "prompt": "a neighbour asks " * 20, "max_tokens": 400, "ignore_eos": True}
            while not stop.is_set():
                httpx.post(f"{panel.sandbox.engine_url}/v1/completions", json=body, timeout=30)

        thread = threading.Thread(target=neighbour)
        thread.start()
        try:
            time.sleep(0.1)
            run = panel.run(arms=["warm"])
        finally:
            stop.set()
            thread.join()
        assert run.verdict == "pass", run.reasons
        load = run.arms[0].load
        assert load is not None
        assert load.running is not None
        assert load.running.high == 2
        assert load.others is not None
        assert load.others.high == 1
        told = dict(evidence_lines(run))["engine load"]
        said = [f for f in run.findings if "not the run's" in f.text]
        assert said
        assert {f.severity for f in said} == {"warning"}
        assert "none of them others'" not in told

    def test_reports_and_page_texts(self, make_panel: PanelMaker) -> None:
        run = make_panel(config=SLOW, pace=BUSY).run(arms=["warm"])
        lines = load_lines(run)
        assert [x.arm for x in lines] == ["cold", "warm"]
        assert {(x.waiting, x.others, x.before) for x in lines} == {("0", "none", "0 running and 0 waiting")}
        # An answer that the engine has finished may still be on its way to its client.
        assert {x.running.replace("0–", "").partition(" ")[0] for x in lines} == {"1"}
        text = markdown(run)
        assert "## Engine load" in text
        assert "| cold | 0 running and 0 waiting | " in text
        page = render(run, "html", [])
        assert "<h2>Engine load</h2>" in page
        assert page.count("0 running and 0 waiting") >= 2

    def test_answers_faster_than_a_reading_leave_it_unknown(self, make_panel: PanelMaker) -> None:
        run = make_panel(pace=replace(PACE, load=30.0)).run(arms=["warm"])
        assert run.verdict == "pass", run.reasons
        for one in run.arms:
            assert one.load is not None
            if one.load.readings == 0:
                assert (one.load.running, one.load.others) == (None, None)
                assert "before the engine could be read" in (one.load.reason or "")


def test_what_a_spread_reads_like() -> None:
    assert spread(None) == "?"
    assert spread({"low": 2.0, "mean": 2.0, "high": 2.0}) == "2"
    assert spread({"low": 1.0, "mean": 1.62, "high": 3.0}) == "1–3 (mean 1.6)"
    assert spread({"low": 0.001, "mean": 0.02, "high": 0.04}, percent=True) == "0.1–4.0 % (mean 2.0 %)"


@pytest.mark.parametrize("source", ["request_statistics", "engine_counters"])
def test_others_seen_in_the_engine_never_turn_a_verdict(source: str) -> None:
    plain = arm("external_l1")
    assert plain.totals is not None
    busy = replace(
        plain,
        totals=replace(plain.totals, sources=(source,)),
        load=load_of(4, 1).with_reading(EngineLoad(1, 0, 0.1), 1),
    )
    added = set(arm_findings(busy, tolerance())) - set(arm_findings(replace(busy, load=None), tolerance()))
    assert {(f.severity, f.code) for f in added} == {("warning", "foreign_load")}
    (finding,) = added
    assert (
        "up to 4 of the requests in the engine at once were not the run's, 2.0 on average over 2 readings"
        in finding.text
    )
