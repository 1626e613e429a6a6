"""A panel with a real server, a real engine and a fresh store registered, and the steps tests take through its API."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.real.panel import Panel
from tests.real.stack.clients import wait_until
from tests.real.stack.commands import EngineKnobs, ServerKnobs
from tests.real.stack.control import RealStack

ARMS = ["cold", "warm", "external_l1", "external_l2"]


@dataclass(frozen=True)
class Job:
    """The panel with the stack's server, engine and store registered."""

    stack: RealStack
    panel: Panel
    server_id: str
    engine_id: str
    store_id: str
    engine_name: str = "tiny"

    def scan(self) -> dict[str, Any]:
        done = self.panel.work(f"/stores/{self.store_id}/scans")
        assert done["state"] == "succeeded", done
        return done

    def classes(self) -> dict[str, tuple[str, str | None]]:
        """Record name -> class and reason, as the inventory has it."""
        items = self.panel.items(f"/stores/{self.store_id}/records", page_size=100)
        return {item["name"]: (item["class"], item["reason"]) for item in items}

    def accept(self, **changed: Any) -> dict[str, Any]:
        body = {"engine_id": self.engine_id, "arms": ARMS, "profile": "quick", "deadline_seconds": 150} | changed
        return self.panel.work("/acceptance-runs", body, seconds=200)


@contextmanager
def new_job(
    stack: RealStack, folder: str, *, server: dict[str, Any] | None = None, engine: dict[str, Any] | None = None
) -> Iterator[Job]:
    """A fresh store, a fresh server, an engine, and a panel that has seen them before any traffic. Knobs: see
    ServerKnobs and EngineKnobs.
    """
    stack.stop()
    stack.server_knobs = ServerKnobs()
    fresh = Path(tempfile.mkdtemp(prefix=f"{folder}-", dir=stack.directory))
    stack.start(server={"l2_path": fresh} | (server or {}), engine=asdict(EngineKnobs()) | (engine or {}))
    panel = Panel(stack)
    try:
        added = panel.post("/servers", {"name": "real", "url": stack.server.url})
        tiny = panel.post("/engines", {"name": "tiny", "url": stack.engine().url, "server_id": added["id"]})
        store = panel.post("/stores", {"name": "disk", "path": str(fresh), "server_id": added["id"]})
        wait_until("first poll", lambda: panel.get(f"/servers/{added['id']}")["scraped_at"], 20)
        panel.wait_polled(added["id"])
        yield Job(stack, panel, added["id"], tiny["id"], store["id"])
    finally:
        panel.stop()
