"""Processor, memory and disk: told beside the engines attached, and unknown where nobody can know."""

from __future__ import annotations

from dataclasses import replace

from app.alerts.catalogue import RULES
from app.alerts.facts.disk_load import disk_load
from app.alerts.facts.host_memory import host_memory
from app.alerts.facts.server_load import server_load
from app.alerts.inputs import Moment, ServerInput, StoreInput
from app.alerts.model import Fact, Verdict
from app.alerts.trail import Trail
from app.telemetry.rates import CounterPoint

NOW = 1_796_000_000.0
SERVER = ServerInput(id=1, name="cache-a", url="http://127.0.0.1:8080", engines_registered=3, resident_bytes=2e9)
DISK = {"device": "nvme0n1", "seconds": 10.0, "requests": 500.0, "busy_ratio": 0.97, "reason": None}


def judged(rule: str, fact: Fact) -> Verdict:
    return RULES[rule].verdict(fact, RULES[rule].defaults)


def counted(name: str, a_second: float | None, *, restart_at: int | None = None) -> Moment:
    """A server whose counter `name` grew by so much a second for ten minutes."""
    trail = Trail()
    for n in range(61):
        boot = "a" if restart_at is None or n < restart_at else "b"
        value = None if a_second is None else 1_000_000 + 10 * n * a_second
        trail.add(CounterPoint(NOW - 600 + 10 * n, (boot, None), {name: value}), 10.0)
    return Moment(now=NOW, interval=10.0, servers={1: replace(SERVER, shares_host=True, trail=trail)})


def test_a_server_at_the_end_of_its_processor() -> None:
    moment = counted("cpu_seconds", 1.2)
    verdict = judged("server_saturated", server_load(moment, moment.servers[1]))
    assert verdict.holds
    assert verdict.sentence.startswith("cache-a used 1.20 cores in ")
    assert verdict.sentence.endswith("and holds 1.9 GiB of memory, with 3 engines attached")


def test_a_server_with_processor_to_spare() -> None:
    moment = counted("cpu_seconds", 0.33)
    assert judged("server_saturated", server_load(moment, moment.servers[1])).holds is False
    silent = counted("cpu_seconds", None)
    verdict = judged("server_saturated", server_load(silent, silent.servers[1]))
    assert verdict.holds is None


def test_a_host_that_is_short_of_memory() -> None:
    for restart_at in (None, 45):  # the host's counter goes on when the server restarts
        moment = counted("memory_stalled_seconds", 0.2, restart_at=restart_at)
        verdict = judged("host_memory_pressure", host_memory(moment, moment.servers[1]))
        assert verdict.holds, restart_at
        assert "waited for memory in 20.0 %" in verdict.sentence
        assert "3 engines attached" in verdict.sentence


def test_a_host_with_memory_to_spare() -> None:
    moment = counted("memory_stalled_seconds", 0.001)
    assert judged("host_memory_pressure", host_memory(moment, moment.servers[1])).holds is False


def test_a_server_on_another_host_tells_nothing_of_ours() -> None:
    moment = counted("memory_stalled_seconds", 0.5)
    elsewhere = replace(moment.servers[1], shares_host=False)
    fact = host_memory(moment, elsewhere)
    assert fact.unknown == "the panel does not run on this server's host"


def looked(**disk: object) -> Fact:
    store = StoreInput(id=7, name="kv", path="/srv/kv", server_path="/srv/kv", server_ids=(1,), disk={**DISK, **disk})
    return disk_load(Moment(now=NOW, interval=10.0, servers={1: SERVER}), store)


def test_a_slow_disk() -> None:
    verdict = judged("disk_slow", looked(read_latency_seconds=0.4, write_latency_seconds=None))
    assert verdict.holds
    assert verdict.sentence == (
        "nvme0n1: a read took 400 ms on average, busy 97.0 % of the time, with 3 engines attached"
    )


def test_a_quick_disk_and_an_idle_one() -> None:
    quick = judged("disk_slow", looked(read_latency_seconds=0.002, write_latency_seconds=0.001))
    assert quick.holds is False
    few = judged("disk_slow", looked(read_latency_seconds=0.4, write_latency_seconds=None, requests=2.0))
    assert few.holds is False
    idle = looked(read_latency_seconds=None, write_latency_seconds=None, requests=0.0)
    assert idle.quiet == "its device had nothing to do"
    network = looked(seconds=None, reason="no block device of this host is below it")
    assert network.unknown == "no block device of this host is below it"
