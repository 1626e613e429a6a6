"""Many cache servers and engines behind one port, for `fleet.py`: captured answers whose counters move.

Run as a process of its own: ``python benchmarks/fleet_targets.py [PORT]`` prints its port. Server ``s7`` is at
``/s7/…``, engine ``e7`` at ``/e7/…``; ``/hang/…`` never answers; ``/asked`` tells when each target's ``/metrics`` was
asked, as JSON ``{target: [epoch seconds, …]}``.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections import defaultdict
from pathlib import Path

CAPTURES = Path(__file__).parents[1] / "tests" / "fixtures" / "captures"
TEXT, JSON = "text/plain; version=0.0.4; charset=utf-8", "application/json"
SERVER = {
    "/healthcheck": (JSON, "server-with-engine/healthcheck.json"),
    "/status": (JSON, "server-with-engine/after-traffic.status.json"),
    "/metrics": (TEXT, "server-with-engine/after-traffic.metrics.txt"),
    "/config": (JSON, "server-with-engine/after-traffic.config.json"),
    "/config/adapters": (JSON, "server-with-engine/config_adapters.json"),
    "/version": (JSON, "server-with-engine/version.txt"),
}
ENGINE = {
    "/health": (TEXT, ""),
    "/metrics": (TEXT, "engine/with-lmcache.metrics.txt"),
    "/version": (JSON, "engine/with-lmcache.version.json"),
    "/v1/models": (JSON, "engine/with-lmcache.v1_models.json"),
    "/server_info": (JSON, "engine/with-lmcache.server_info.config_json.json"),
}
#: Counters that grow by this much a second.
GROWING = {
    "lmcache_mp_lookup_requested_tokens_total": 640,
    "lmcache_mp_lookup_hit_tokens_total": 320,
    "lmcache_mp_lookup_hit_l1_tokens_total": 256,
    "lmcache_mp_lookup_hit_l2_tokens_total": 64,
    "vllm:prompt_tokens_by_source_total": 200,
    "process_cpu_seconds_total": 0.2,
}


def _capture(name: str) -> bytes:
    return (CAPTURES / name).read_bytes() if name else b""


class Targets:
    """The answers. Values of growing counters are put into the text at each scrape."""

    def __init__(self) -> None:
        self.began = time.time()
        self.asked: dict[str, list[float]] = defaultdict(list)
        self.bodies = {
            kind: {
                path: (mime, (CAPTURES / name).read_bytes() if name else b"") for path, (mime, name) in routes.items()
            }
            for kind, routes in (("s", SERVER), ("e", ENGINE))
        }
        self.growing = {kind: self._split(bodies["/metrics"][1].decode()) for kind, bodies in self.bodies.items()}

    def _split(self, text: str) -> list[tuple[str, float, float]]:
        """(text before the number, its value, growth a second); the last one has no number."""
        parts: list[tuple[str, float, float]] = []
        kept = ""
        start = re.search(r"^process_start_time_seconds (\S+)$", text, re.MULTILINE)
        for line in text.splitlines(keepends=True):
            name = re.split(r"[{ ]", line, maxsplit=1)[0]
            if name in GROWING:
                head, _, value = line.rstrip("\n").rpartition(" ")
                parts.append((kept + head + " ", float(value), GROWING[name]))
                kept = "\n"
            elif start is not None and name == "process_start_time_seconds":
                kept += f"process_start_time_seconds {self.began - 7200}\n"
            else:
                kept += line
        return [*parts, (kept, 0.0, 0.0)]

    def metrics(self, kind: str) -> bytes:
        passed = time.time() - self.began
        parts = self.growing[kind]
        told = [f"{text}{value + round(passed * growth, 3)}" for text, value, growth in parts[:-1]]
        return ("".join(told) + parts[-1][0]).encode()

    def answer(self, path: str) -> tuple[int, str, bytes]:
        if path == "/asked":
            return 200, JSON, json.dumps(self.asked).encode()
        target, _, rest = path[1:].partition("/")
        found = self.bodies.get(target[:1], {}).get("/" + rest)
        if found is None:
            return 404, JSON, b'{"detail":"Not Found"}'
        if rest == "metrics":
            self.asked[target].append(time.time())
            return 200, TEXT, self.metrics(target[:1])
        return 200, *found


async def serve(port: int) -> None:
    targets = Targets()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                path = line.split()[1].decode().partition("?")[0]
                while (await reader.readline()).strip():
                    pass
                if path.startswith("/hang"):
                    await asyncio.sleep(3600)
                status, kind, body = targets.answer(path)
                head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (ConnectionError, IndexError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", port, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
