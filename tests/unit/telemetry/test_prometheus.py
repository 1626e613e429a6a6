"""History from before the panel's own: what is asked of a Prometheus, what becomes of its answers and its failures."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from app.settings import load_settings
from app.telemetry.metrics import CATALOGUE
from app.telemetry.prometheus import Prometheus, merged, query_of
from tests.unit.telemetry.support import Bench, captured_server

DAY = 86400.0


class Fake:
    """A Prometheus: answers every range query with `body`, or one point for each step."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.body: bytes | None = None
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                fake.asked.append({k: v[0] for k, v in parse_qs(parts.query).items()} | {"path": parts.path})
                fake.headers.append({k.lower(): v for k, v in self.headers.items()})
                body = fake.body if fake.body is not None else fake.points()
                self.send_response(fake.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def points(self) -> bytes:
        ask = self.asked[-1]
        at, step = float(ask["start"]), float(ask["step"])
        values = []
        while at <= float(ask["end"]):
            values.append([at, str(at % 1000)])
            at += step
        result = [{"metric": {}, "values": values}]
        return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def fake() -> Iterator[Fake]:
    made = Fake()
    yield made
    made.close()


def month(bench: Bench, fake: Fake | None) -> int:
    """A server that the panel has polled for a minute, ending now."""
    if fake is not None:
        bench.telemetry.prometheus = Prometheus(fake.url, "secret")
    server_id = bench.add_server(captured_server())

    async def poll() -> None:
        for _ in range(6):
            await bench.tick()

    asyncio.run(poll())
    return server_id


class TestSamples:
    def test_what_is_older_than_our_history_comes_from_prometheus(self, bench: Bench, fake: Fake) -> None:
        server_id = month(bench, fake)
        now = bench.clock.now
        view = bench.telemetry.samples("server", server_id, "l1_usage_ratio", start=now - 10 * DAY, step=3600)
        assert view.older is not None
        assert (view.older.state, view.older.source) == ("value", "prometheus")
        ask = fake.asked[-1]
        assert ask["path"] == "/api/v1/query_range"
        assert ask["query"] == 'sum(avg_over_time(lmcache_mp_l1_usage_ratio{instance="cache:8080"}[3600s]))'
        assert fake.headers[-1]["authorization"] == "Bearer secret"
        values = [value for _, value in view.points]
        # A bucket holds what Prometheus says at its end; the last one is the panel's own.
        assert float(ask["start"]) % 3600 == 0
        assert values[0] == float(ask["start"]) % 1000
        assert None not in values
        assert values[-1] == 0.0
        times = [at for at, _ in view.points]
        assert times == sorted(set(times))

    def test_a_question_within_our_own_history_asks_nobody(self, bench: Bench, fake: Fake) -> None:
        server_id = month(bench, fake)
        view = bench.telemetry.samples("server", server_id, "l1_usage_ratio", start=bench.clock.now - 40, step=20)
        assert (view.older, fake.asked) == (None, [])

    def test_without_a_prometheus_the_gap_stays(self, bench: Bench) -> None:
        server_id = month(bench, None)
        view = bench.telemetry.samples("server", server_id, "l1_usage_ratio", start=bench.clock.now - DAY, step=3600)
        assert view.older is None
        assert view.points[0][1] is None

    @pytest.mark.parametrize(
        ("status", "body", "says"),
        [
            (400, b'{"status":"error","error":"bad query"}', "bad query"),
            (200, b'{"status":"error","error":"query timed out"}', "query timed out"),
            (503, b"<html>gateway</html>", "503"),
            (200, b"not json", "JSON"),
            (200, b'{"status":"success","data":{"result":[{"values":[[1]]}]}}', "no matrix of one series"),
            (200, b'{"status":"success","data":{"result":[{"values":[]},{"values":[]}]}}', "no matrix of one series"),
        ],
    )
    def test_a_failure_is_unknown_with_its_reason(
        self, bench: Bench, fake: Fake, status: int, body: bytes, says: str
    ) -> None:
        server_id = month(bench, fake)
        fake.status, fake.body = status, body
        view = bench.telemetry.samples("server", server_id, "hit_rate", start=bench.clock.now - DAY, step=3600)
        assert view.older is not None
        assert view.older.state == "unknown"
        assert says in str(view.older.reason)
        assert view.points[0][1] is None

    def test_nobody_there(self, bench: Bench, fake: Fake) -> None:
        server_id = month(bench, fake)
        fake.close()
        view = bench.telemetry.samples("server", server_id, "hit_rate", start=bench.clock.now - DAY, step=3600)
        assert view.older is not None
        assert view.older.state == "unknown"

    def test_not_a_number_is_a_gap_and_no_series_is_nothing(self, bench: Bench, fake: Fake) -> None:
        server_id = month(bench, fake)
        start = bench.clock.now - DAY
        fake.body = b'{"status":"success","data":{"resultType":"matrix","result":[]}}'
        assert bench.telemetry.samples("server", server_id, "hit_rate", start=start, step=3600).older.state == "nothing"  # type: ignore[union-attr]
        at = start // 3600 * 3600 + 3600
        values = json.dumps([[at, "NaN"], [at + 3600, "0.5"]])
        fake.body = f'{{"status":"success","data":{{"resultType":"matrix","result":[{{"values":{values}}}]}}}}'.encode()
        view = bench.telemetry.samples("server", server_id, "hit_rate", start=start, step=3600)
        assert [value for _, value in view.points][:3] == [None, 0.5, None]

    def test_a_metric_that_nobody_exports(self, bench: Bench, fake: Fake) -> None:
        server_id = month(bench, fake)
        view = bench.telemetry.samples("server", server_id, "poll_seconds", start=bench.clock.now - DAY, step=3600)
        assert view.older is not None
        assert (view.older.state, view.older.reason) == ("nothing", "Prometheus has no series like it")
        assert fake.asked == []


class TestQueries:
    def test_each_query_is_about_a_metric_of_the_catalogue(self) -> None:
        asked = 0
        for kind, metrics in CATALOGUE.items():
            for metric in metrics:
                query = query_of(kind, metric, "http://cache:8080", "rack 1", 300)
                if query is not None:
                    asked += 1
                    assert "$" not in query
                    assert "[300s]" in query
                    assert query.count("(") == query.count(")")
        assert asked >= 20

    def test_names_are_quoted_and_the_panels_own_series_are_second(self) -> None:
        query = query_of("server", "l1_used_bytes", "https://cache.example/lm", 'a"b\\c', 60)
        assert query == (
            'sum(avg_over_time(lmcache_mp_l1_memory_usage_bytes{instance="cache.example:443"}[60s])) or '
            'sum(avg_over_time(tierkeeper_l1_used_bytes{target="a\\"b\\\\c"}[60s]))'
        )

    def test_points_of_our_own_win(self) -> None:
        assert merged([(20.0, None), (30.0, 3.0)], [(10.0, 1.0), (20.0, 2.0), (30.0, 9.0)]) == [
            (10.0, 1.0),
            (20.0, 2.0),
            (30.0, 3.0),
        ]


class TestKept:
    async def test_a_spike_survives_its_mean(self, bench: Bench) -> None:
        server = captured_server()
        server_id = bench.add_server(server)
        bench.clock.now = bench.clock.now // 3600 * 3600
        for used in (0, 0, 900, 0, 0, 0):
            server.set_metric("/metrics", "lmcache_mp_l2_usage_bytes", used)
            await bench.tick()
        view = bench.telemetry.samples(
            "server", server_id, "l2_usage_bytes", start=bench.clock.now - 60, end=bench.clock.now + 1, step=300
        )
        assert view.points[-1][1] == 150.0
        assert view.highest is not None
        assert view.lowest is not None
        assert (view.lowest[-1], view.highest[-1]) == (0.0, 900.0)
        assert len(view.highest) == len(view.points)

    def test_settings_that_contradict_each_other(self, tmp_path: Path) -> None:
        with pytest.raises(Exception, match="KEEP_5M_DAYS"):
            load_settings({"TIERKEEPER_KEEP_RAW_HOURS": "720", "TIERKEEPER_KEEP_5M_DAYS": "2"})
        kept = load_settings({"TIERKEEPER_KEEP_RAW_HOURS": "24", "TIERKEEPER_PROMETHEUS_URL": "http://p:9090/"})
        assert (kept.keep_raw_hours, kept.prometheus_url) == (24.0, "http://p:9090")
