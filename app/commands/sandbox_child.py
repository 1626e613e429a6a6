"""The sandbox as a process of its own: ``python -m app.commands.sandbox_child DIRECTORY SINCE``.

Prints one JSON line (URLs, store, what was seeded), then serves with traffic until its standard input ends, which it
does when the panel that started it dies, however it dies.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from app.sandbox import Sandbox, TrafficShape, demo_specs


async def _main(directory: Path, since: float) -> None:
    servers, engines, config = demo_specs(since)
    fresh = not (directory / "l2").exists()
    async with Sandbox(directory, servers=servers, engines=engines, config=config) as sandbox:
        seeded = sandbox.seed_demo() if fresh else None
        sandbox.prime(60)
        print(
            json.dumps(
                {
                    "servers": sandbox.server_urls,
                    "engines": sandbox.engine_urls,
                    "control": sandbox.control_url,
                    "store": str(sandbox.store_path),
                    "epochs": [
                        {
                            "model": epoch.model_path,
                            "dtype": epoch.layout.dtype,
                            "start": epoch.start,
                            "end": epoch.end,
                        }
                        for epoch in (seeded.epochs if seeded else [])
                    ],
                    "files": seeded.counts if seeded else {},
                }
            ),
            flush=True,
        )
        traffic = sandbox.traffic(TrafficShape())
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, sys.stdin.read)
        traffic.stop()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), float(sys.argv[2])))
