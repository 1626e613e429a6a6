"""The product as its users have it: `tierkeeper serve` in a process of its own, spoken to over its REST API and its
command line.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.real.stack.clients import wait_until
from tests.real.stack.control import Program, RealStack

PROGRAM = str(Path(sys.executable).parent / "tierkeeper")
#: The code beside these tests, whatever the environment's installed package points to.
OWN_CODE = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
ENDED = {"succeeded", "failed", "cancelled", "interrupted"}
POLL_SECONDS = 1


class Panel:
    """A running panel with a data directory of its own, an admin's token, and no targets yet."""

    def __init__(self, stack: RealStack) -> None:
        self.stack = stack
        self.url = f"http://127.0.0.1:{stack.free_port()}"
        self.data_dir = Path(tempfile.mkdtemp(prefix="panel-", dir=stack.directory))
        self._environment = OWN_CODE | {
            "TIERKEEPER_DATA_DIR": str(self.data_dir),
            "TIERKEEPER_PORT": self.url.rpartition(":")[2],
            "TIERKEEPER_POLL_SECONDS": str(POLL_SECONDS),
            "TIERKEEPER_ADMIN_PASSWORD": "correct horse battery staple",
        }
        made = self.command("token", "create", "--name", "real", "--role", "admin")
        assert made.returncode == 0, made.stderr
        assert len(made.stdout.split()) == 1, f"only the token belongs on stdout: {made.stdout!r}"
        self.client = httpx.Client(
            base_url=f"{self.url}/api/v1",
            headers={"Authorization": f"Bearer {made.stdout.strip()}"},
            timeout=240,
            trust_env=False,
        )
        self.program: Program = stack.start_program("panel", [PROGRAM, "serve"], self._environment, self._ready)

    def stop(self) -> None:
        self.client.close()
        self.stack.end_program(self.program)

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=10, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def command(self, *arguments: str, timeout: float = 900) -> subprocess.CompletedProcess[str]:
        """`tierkeeper ARGUMENTS` on the panel's data directory, beside the running panel."""
        env = self.stack.clean_environment() | self._environment
        done = subprocess.run(
            [PROGRAM, *arguments],
            env=env,
            cwd=self.stack.directory,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    # --- the API

    def get(self, path: str, **query: Any) -> Any:
        return self._answered(self.client.get(path, params=query))

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._answered(self.client.post(path, json=body) if body is not None else self.client.post(path))

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        return self._answered(self.client.patch(path, json=body))

    def items(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """All items of a list, page by page."""
        token: str | None = None
        while True:
            page = self.get(path, **query, **({"page_token": token} if token else {}))
            yield from page["items"]
            token = page["next_page_token"]
            if token is None:
                return

    def work(self, path: str, body: dict[str, Any] | None = None, *, seconds: float = 180) -> dict[str, Any]:
        """Starts long work with POST and follows its Location until it has ended."""
        started = self.client.post(path, json=body) if body is not None else self.client.post(path)
        assert started.status_code == 202, (started.status_code, started.text)
        return self.ended(started.headers["Location"], seconds=seconds)

    def ended(self, location: str, *, seconds: float = 180) -> dict[str, Any]:
        """The resource at `location` once its state is final."""
        where = httpx.URL(self.url).join(location)
        last: dict[str, Any] = {}

        def over() -> bool:
            nonlocal last
            last = self._answered(self.client.get(where))
            return last["state"] in ENDED

        wait_until(f"end of {location}", over, seconds, every=0.3)
        return last

    @staticmethod
    def _answered(response: httpx.Response) -> Any:
        assert response.status_code in (200, 201, 202), (response.request.method, response.url, response.text)
        return response.json()

    def wait_polled(self, server_id: str, polls: int = 2) -> None:
        """Waits until the panel has read the server that many times from now on."""
        seen = None

        def newer() -> bool:
            return bool(self.get(f"/servers/{server_id}")["scraped_at"] != seen)

        for _ in range(polls):
            seen = self.get(f"/servers/{server_id}")["scraped_at"]
            wait_until("the next poll", newer, 20, every=0.2)
