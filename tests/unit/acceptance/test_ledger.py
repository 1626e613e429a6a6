"""What pages of counters must hold of a run before they are taken for its beginning."""

from __future__ import annotations

from app.acceptance.counters import EngineCounters
from app.acceptance.ledger import EngineLedger, ServerLedger
from app.lmcache.metrics import ServerMetrics, parse_metrics, server_metrics

CHUNK = 64


def page(lookups: dict[str, int], loads: dict[str, int] | None = None, *, boot: str = "a") -> ServerMetrics:
    """A server's page: looked-up tokens and loaded chunks by salt."""
    lines = [f'target_info{{service_instance_id="{boot}"}} 1']
    lines += [
        f'lmcache_mp_lookup_requested_tokens_total{{cache_salt="{s}",model_name="m"}} {n}' for s, n in lookups.items()
    ]
    lines += [
        f'lmcache_mp_num_chunks_loaded_total{{cache_salt="{s}",model_name="m",worker_id="1"}} {n}'
        for s, n in (loads or {}).items()
    ]
    return server_metrics(parse_metrics("\n".join(lines) + "\n"))


class TestEngine:
    def test_a_page_from_before_the_last_request_does_not_hold_it(self) -> None:
        ledger = EngineLedger(EngineCounters(1000.0, process_start=1.0))
        ledger.tokens = 300
        assert not ledger.holds(EngineCounters(1299.0, process_start=1.0))
        assert ledger.holds(EngineCounters(1300.0, process_start=1.0))
        assert ledger.holds(EngineCounters(9000.0, process_start=1.0))  # others' besides

    def test_what_cannot_be_told_is_not_waited_for(self) -> None:
        ledger = EngineLedger(EngineCounters())
        ledger.tokens = 300
        assert ledger.holds(EngineCounters())

    def test_another_process_counts_from_the_beginning(self) -> None:
        ledger = EngineLedger(EngineCounters(1000.0, process_start=1.0))
        ledger.tokens = 300
        assert ledger.holds(EngineCounters(5.0, process_start=2.0))
        ledger.tokens += 10
        assert not ledger.holds(EngineCounters(14.0, process_start=2.0))
        assert ledger.holds(EngineCounters(15.0, process_start=2.0))


class TestServer:
    def holds(self, ledger: ServerLedger, now: ServerMetrics, *salts: str, by_salt: bool = True) -> bool:
        return ledger.holds(now, salts, by_salt=by_salt, chunk_size=CHUNK)

    def test_only_these_salts_are_waited_for(self) -> None:
        ledger = ServerLedger(page({"other": 640}))
        ledger.asked("one", 128, 0)
        ledger.asked("two", 64, 0)
        assert not self.holds(ledger, page({"other": 9999}), "one")
        assert self.holds(ledger, page({"one": 128}), "one")
        assert not self.holds(ledger, page({"one": 128}), "one", "two")
        assert self.holds(ledger, page({}), "three")

    def test_loads_come_after_their_lookups(self) -> None:
        ledger = ServerLedger(page({}, {"one": 0}))
        ledger.asked("one", 128, 127)
        assert not self.holds(ledger, page({"one": 128}, {"one": 1}), "one")
        assert self.holds(ledger, page({"one": 128}, {"one": 2}), "one")
        assert self.holds(ledger, page({"one": 128}), "one")  # this server does not count them

    def test_without_salts_everybodys_are_taken_from_the_beginning_on(self) -> None:
        ledger = ServerLedger(page({"": 640}))
        ledger.asked("one", 128, 0)
        assert not self.holds(ledger, page({"": 767}), by_salt=False)
        assert self.holds(ledger, page({"": 768}), by_salt=False)

    def test_a_server_that_was_restarted_forgets(self) -> None:
        ledger = ServerLedger(page({}))
        ledger.asked("one", 128, 0)
        assert self.holds(ledger, page({}, boot="b"), "one")
        ledger.asked("one", 64, 0)
        assert not self.holds(ledger, page({}, boot="b"), "one")
        assert self.holds(ledger, page({"one": 64}, boot="b"), "one")
