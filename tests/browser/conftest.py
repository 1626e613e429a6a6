"""One Chromium for each module of browser tests, and the preview of the pages on a free port."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.unit.web.preview import preview_app

#: A busy machine may take its time; what is there at once costs nothing.
expect.set_options(timeout=60_000)

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason=f"no Chromium at {CHROMIUM}")
    for item in items:
        if "tests/browser" in str(item.path):
            item.add_marker(pytest.mark.browser)
            if item.get_closest_marker("timeout") is None:  # some walk through every page there is
                item.add_marker(pytest.mark.timeout(600))
            if not os.path.exists(CHROMIUM):
                item.add_marker(missing)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Ends with its module: while Playwright lives its loop runs in this thread, and other tests could start none."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def wait_until(ready: Callable[[], bool], seconds: float = 90.0) -> None:
    """Returns as soon as `ready` says so; fails when it never does."""
    until = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.1)


class Preview:
    """The preview server; `stop` makes it go away as a crashed panel would."""

    def __init__(self) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        self.app = preview_app()
        config = uvicorn.Config(
            self.app, host="127.0.0.1", port=self.port, log_level="error", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        until = time.monotonic() + 10
        while not self._server.started:
            assert time.monotonic() < until, "the preview did not start"
            time.sleep(0.02)

    def stop(self) -> None:
        self.app.state.streams.close()
        self._server.should_exit = True
        self._thread.join(10)


@pytest.fixture(scope="session")
def preview() -> Iterator[Preview]:
    server = Preview()
    yield server
    server.stop()


@pytest.fixture
def page(browser: Browser, preview: Preview) -> Iterator[Page]:
    """A page that fails its test when the browser complains (a broken policy, a missing file, a script error)."""
    context = browser.new_context(base_url=preview.url, reduced_motion="reduce")
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.complaints = complaints  # type: ignore[attr-defined]
    yield page
    context.close()
    assert complaints == []
