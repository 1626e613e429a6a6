"""Pressure of the panel's own host, from files as the kernel writes them, up to what is stored and shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.telemetry.host import DiskCounters, Disks, disk_counters, disk_rates, memory_stalled_seconds
from app.telemetry.rates import CounterPoint, base_for, increments
from tests.unit.telemetry.support import Bench, captured_engine, captured_server


def test_memory_pressure_is_the_total_of_the_line_some(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "memory").write_text(
        "some avg10=1.00 avg60=0.50 avg300=0.10 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    )
    assert memory_stalled_seconds(tmp_path) == (2.5, None)


@pytest.mark.parametrize(("text", "says"), [(None, "PSI is off"), ("", "no line"), ("some avg10=x", "no line")])
def test_a_kernel_without_memory_pressure_says_so(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "pressure").mkdir()
        (tmp_path / "pressure" / "memory").write_text(text)
    value, reason = memory_stalled_seconds(tmp_path)
    assert value is None
    assert says in str(reason)


def test_the_device_below_a_directory(tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    line = f"{os.major(number)} {os.minor(number)} vda 100 1 2048 500 40 2 4096 800 0 1200 1300 0 0 0 0"
    (tmp_path / "diskstats").write_text(f" 7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n{line}\n")
    found, reason = disk_counters(str(tmp_path), tmp_path)
    assert reason is None
    assert found == DiskCounters("vda", 100, 2048 * 512, 0.5, 40, 4096 * 512, 0.8, 1.2)
    (tmp_path / "diskstats").write_text(" 7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n")
    assert disk_counters(str(tmp_path), tmp_path)[1] == (
        "no block device of this host is below it (a network, overlay or memory file system)"
    )


def counters(n: int, device: str = "vda") -> DiskCounters:
    return DiskCounters(device, 10.0 * n, 1e6 * n, 0.5 * n, 0.0, 0.0, 0.0, 2.0 * n)


def test_rates_between_two_looks() -> None:
    rates = disk_rates(counters(1), counters(3), 10.0)
    assert rates is not None
    assert (rates.read_bytes_per_second, rates.write_bytes_per_second) == (2e5, 0.0)
    assert (rates.read_latency_seconds, rates.write_latency_seconds) == (0.05, None)
    assert (rates.requests, rates.busy_ratio) == (20.0, 0.4)
    assert rates.increments() == {
        "disk_read_bytes": 2e6,
        "disk_written_bytes": 0.0,
        "disk_busy_seconds": 4.0,
        "disk_reads": 20.0,
        "disk_read_seconds": 1.0,
    }


def test_another_device_a_reset_and_a_long_gap_give_no_rate() -> None:
    assert disk_rates(counters(1), counters(2, "vdb"), 10.0) is None
    assert disk_rates(counters(2), counters(1), 10.0) is None
    disks = Disks()
    assert disks.take(1, 100.0, counters(1), 35.0) is None
    assert disks.take(1, 110.0, counters(2), 35.0) is not None
    assert disks.take(1, 200.0, counters(3), 35.0) is None
    assert disks.take(1, 210.0, None, 35.0) is None
    assert disks.take(1, 220.0, counters(4), 35.0) is None


def test_the_hosts_counter_goes_on_over_restarts_and_boots_of_the_server() -> None:
    before = CounterPoint(100.0, ("a", 10.0), {"memory_stalled_seconds": 5.0, "x": 5.0})
    after = CounterPoint(110.0, ("b", 105.0), {"memory_stalled_seconds": 6.0, "x": 2.0})
    assert increments(before, after) == {"memory_stalled_seconds": 1.0, "x": 2.0}
    young = base_for(None, after, 10.0, 900.0)
    assert young is not None
    assert increments(young, after) == {"memory_stalled_seconds": None, "x": 2.0}


class TestServersAndEngines:
    async def test_what_a_hit_costs_and_what_the_process_uses(self, bench: Bench) -> None:
        fake = captured_server()
        server_id = bench.add_server(fake)
        bench.clock.now += 3600
        await bench.poller.poll_all_once()
        before = bench.fleet.get_server(server_id).load
        assert before.cpu_cores is None
        assert before.shares_host is False
        assert before.reason == "this server does not run on the panel's host"

        def value(name: str) -> float:
            text = fake.answers["/metrics"][2].decode()  # type: ignore[index]
            return float(next(line for line in text.splitlines() if line.startswith(name)).rpartition(" ")[2])

        fake.set_metric("/metrics", "process_cpu_seconds_total", value("process_cpu_seconds_total") + 4)
        fake.set_metric("/metrics", "process_resident_memory_bytes", 3e9)
        for name, more in (
            ("lmcache_mp_num_finished_retrieves_total", 20),
            ("lmcache_mp_l0_l1_load_throughput_GB_per_second_sum", 30.0),
            ("lmcache_mp_l0_l1_load_throughput_GB_per_second_count", 10),
        ):
            fake.set_metric("/metrics", name, value(name) + more)
        await bench.tick()
        load = bench.fleet.get_server(server_id).load
        assert (load.seconds, load.resident_bytes) == (10.0, 3_000_000_000)
        assert load.cpu_cores == pytest.approx(0.4)
        assert load.retrieves_per_second == 2.0
        assert load.l1_load_bytes_per_second == pytest.approx(3e9)
        moment = bench.fleet.get_server(server_id).polled_at
        assert load.l1_loaded_at == moment
        await bench.tick()
        later = bench.fleet.get_server(server_id).load
        assert (later.retrieves_per_second, later.l1_loaded_at) == (0.0, moment)  # no load since: the last one's speed
        assert later.l1_load_bytes_per_second == pytest.approx(3e9)

        def points(metric: str) -> list[float | None]:
            return [v for _, v in bench.telemetry.samples("server", server_id, metric, step=1.0).points]

        assert points("cpu_cores") == [pytest.approx(0.4), 0.0]
        assert points("l1_load_bytes_per_second") == [pytest.approx(3e9)]
        assert points("retrieves_per_second") == [2.0, 0.0]
        assert points("memory_pressure_ratio") == []

    async def test_a_server_on_this_host_is_seen_beside_its_pressure(self, bench: Bench) -> None:
        server_id = bench.add_server(captured_server(), url="http://127.0.0.1:18080")
        await bench.poller.poll_all_once()
        await bench.tick()
        load = bench.fleet.get_server(server_id).load
        assert load.shares_host is True
        if memory_stalled_seconds()[0] is None:
            assert "PSI" in str(load.reason)
        else:
            assert load.memory_pressure_ratio is not None
            assert load.reason is None

    async def test_the_time_of_an_engines_look_ups(self, bench: Bench) -> None:
        fake = captured_engine()
        engine_id = bench.add_engine(fake)
        fake.set_metric("/metrics", "vllm:lmcache_mp_lookup_duration_seconds_sum", 1.0)
        fake.set_metric("/metrics", "vllm:lmcache_mp_lookup_duration_seconds_count", 100)
        bench.clock.now += 3600
        await bench.poller.poll_all_once()
        fake.set_metric("/metrics", "vllm:lmcache_mp_lookup_duration_seconds_sum", 1.5)
        fake.set_metric("/metrics", "vllm:lmcache_mp_lookup_duration_seconds_count", 110)
        await bench.tick()
        load = bench.fleet.get_engine(engine_id).load
        assert load.lookup_seconds == pytest.approx(0.05)
        assert load.looked_up_at is not None
