"""What one poll of a cache server and of an engine costs this process in CPU, beside a bare httpx fetch of the same.

Run: ``python benchmarks/poll_cost.py [--polls N] [--json]``. The targets are a subprocess that serves the captured
answers over loopback, so only our own CPU is counted (``time.process_time``). Exit status 1 if a poll of a target costs
more than the budget of 10 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection

import httpx
from fleet_targets import CAPTURES, ENGINE, JSON, SERVER

from app.lmcache.client import LMCacheClient, poll_server
from app.lmcache.metrics import parse_metrics, server_metrics
from app.lmcache.status import parse_status
from app.vllm.client import VLLMClient, poll_engine
from app.vllm.metrics import engine_metrics

BUDGET_MS = 10.0


def serve(routes: dict[str, tuple[str, str]], ready: Connection) -> None:
    """Serve captures until killed; sends the port."""
    bodies = {path: (kind, (CAPTURES / name).read_bytes() if name else b"") for path, (kind, name) in routes.items()}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            kind, body = bodies.get(self.path.partition("?")[0], (JSON, b"{}"))
            head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            self.wfile.write(head + body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ready.send(server.server_address[1])
    server.serve_forever()


def start(routes: dict[str, tuple[str, str]]) -> tuple[multiprocessing.Process, str]:
    """A target in a process of its own, and its address."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve, args=(routes, theirs), daemon=True)
    process.start()
    return process, f"http://127.0.0.1:{ours.recv()}"


async def cpu_ms(run: Callable[[], Awaitable[object]], polls: int) -> float:
    """Median CPU of this process for one run, in milliseconds."""
    await run()
    costs: list[float] = []
    for _ in range(polls):
        began = time.process_time()
        await run()
        costs.append((time.process_time() - began) * 1000)
    return statistics.median(costs)


def parse_cost_ms(run: Callable[[], object], rounds: int = 200) -> float:
    costs: list[float] = []
    for _ in range(rounds):
        began = time.process_time()
        run()
        costs.append((time.process_time() - began) * 1000)
    return statistics.median(costs)


async def bare(url: str, paths: tuple[str, ...]) -> Callable[[], Awaitable[object]]:
    client = httpx.AsyncClient(trust_env=False, verify=False)

    async def fetch() -> object:
        return await asyncio.gather(*(client.get(url + path) for path in paths))

    return fetch


async def measure(server_url: str, engine_url: str, polls: int) -> dict[str, float]:
    """All figures, in milliseconds of CPU."""
    found: dict[str, float] = {}
    fetch_server = await bare(server_url, ("/healthcheck", "/status", "/metrics"))
    fetch_engine = await bare(engine_url, ("/health", "/metrics"))
    found["server, bare fetch of the same three answers"] = await cpu_ms(fetch_server, polls)
    async with LMCacheClient(server_url) as client:
        reading = await poll_server(client)
        found["server, whole poll"] = await cpu_ms(lambda: poll_server(client, reading), polls)
        found["server, whole poll of a new boot"] = await cpu_ms(lambda: poll_server(client), polls)
    found["engine, bare fetch of the same two answers"] = await cpu_ms(fetch_engine, polls)
    async with VLLMClient(engine_url) as engine:
        seen = await poll_engine(engine)
        found["engine, whole poll"] = await cpu_ms(lambda: poll_engine(engine, seen), polls)
        found["engine, whole poll of a new process"] = await cpu_ms(lambda: poll_engine(engine), polls)
    status = (CAPTURES / SERVER["/status"][1]).read_bytes()
    metrics = (CAPTURES / SERVER["/metrics"][1]).read_bytes()
    engine_text = (CAPTURES / ENGINE["/metrics"][1]).read_bytes()
    found["server, parsing alone"] = parse_cost_ms(
        lambda: (parse_status(json.loads(status)), server_metrics(parse_metrics(metrics)))
    )
    found["engine, parsing alone"] = parse_cost_ms(lambda: engine_metrics(parse_metrics(engine_text)))
    return found


def main() -> int:
    """Print the table; 1 if a poll is over its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--polls", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    targets = [start(SERVER), start(ENGINE)]
    try:
        found = asyncio.run(measure(targets[0][1], targets[1][1], options.polls))
    finally:
        for process, _ in targets:
            process.kill()
            process.join()
    ratios = {
        "server poll / bare fetch": found["server, whole poll"] / found["server, bare fetch of the same three answers"],
        "engine poll / bare fetch": found["engine, whole poll"] / found["engine, bare fetch of the same two answers"],
    }
    worst = max(found["server, whole poll"], found["engine, whole poll"])
    if options.json:
        print(json.dumps({"cpu_ms": found, "ratios": ratios, "budget_ms": BUDGET_MS, "within": worst <= BUDGET_MS}))
    else:
        print(f"CPU of one poll on {platform.machine()}, Python {platform.python_version()}, median of {options.polls}")
        for name, value in found.items():
            print(f"  {name:<46} {value:7.2f} ms")
        for name, value in ratios.items():
            print(f"  {name:<46} {value:7.2f} x")
        print(f"  budget for a target {BUDGET_MS:g} ms: {'kept' if worst <= BUDGET_MS else 'EXCEEDED'}")
    return 0 if worst <= BUDGET_MS else 1


if __name__ == "__main__":
    sys.exit(main())
