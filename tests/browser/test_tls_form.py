"""A cache server whose certificate only its own authority vouches for: added, changed and understood by forms."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.authorities import Authority
from tests.support.panel import ADMIN_PASSWORD, running_panel
from tests.unit.wire.raw_http import capture

pytestmark = pytest.mark.timeout(600)

ANSWERS = {
    "/": b'{"status":"ok","service":"LMCache HTTP API"}',
    "/healthcheck": b'{"status":"healthy"}',
    "/status": capture("server-with-engine/after-traffic.status.json"),
    "/version": b'"0.5.6"',
}


class Answering(BaseHTTPRequestHandler):
    """A cache server; it notes the keys that came along."""

    keys: ClassVar[set[str | None]] = set()

    def do_GET(self) -> None:
        self.keys.add(self.headers.get("Authorization"))
        body = ANSWERS.get(self.path, b'{"detail":"Not Found"}')
        self.send_response(200 if self.path in ANSWERS else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def rack() -> Authority:
    return Authority.made("rack CA")


@pytest.fixture(scope="module")
def secure(rack: Authority) -> Iterator[str]:
    """The address of a cache server that shows a certificate of `rack`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    # The handshake is the handler's: a connection that only listens must not hold up the others.
    server.socket = rack.serving().wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    with running_panel(tmp_path / "var", POLL_SECONDS="3600") as panel:
        context = browser.new_context(base_url=panel.url, reduced_motion="reduce")
        page = context.new_page()
        page.goto("/login")
        page.get_by_label("Name").fill("admin")
        page.get_by_label("Password").fill(ADMIN_PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(re.compile(r"/(?!login)"))
        yield page
        context.close()


def test_its_own_authority_as_text_as_a_file_and_nobody(
    page: Page, secure: str, rack: Authority, tmp_path: Path
) -> None:
    probe = page.locator(".notice:not(#connection)").first
    page.goto("/settings/servers/new")
    page.locator("#url").fill(secure)
    page.locator("#name").fill("behind TLS")
    page.locator("#api_key").fill("s3cret-key")
    page.locator("#labels").fill("rack=7")
    # The system knows no such authority: what to do is said, and nothing typed is lost.
    page.get_by_role("button", name="What answers there?").click()
    expect(probe).to_contain_text("give the CA that signed its certificate")
    expect(page.locator("#name")).to_have_value("behind TLS")
    expect(page.get_by_text("Kept as you typed it")).to_be_visible()
    # Text that is no certificate: the error stands beside its field, and everything else stays.
    page.locator("#tls_ca").fill("-----BEGIN CERTIFICATE-----\nnot base64\n-----END CERTIFICATE-----")
    page.get_by_role("button", name="Add it").click()
    expect(page.locator("#form-errors")).to_contain_text("own CA. Nothing was changed")
    expect(page.locator("#tls_ca-err")).to_contain_text("holds no certificate that can be read")
    expect(page.locator("#tls_ca")).to_have_value(re.compile("not base64"))
    expect(page.locator("#labels")).to_have_value("rack=7")
    # The right one, asked before it is added.
    page.locator("#tls_ca").fill(rack.pem)
    page.get_by_role("button", name="What answers there?").click()
    expect(probe).to_contain_text("An LMCache cache server")
    page.get_by_role("button", name="Add it").click()
    expect(page.locator("h1")).to_contain_text("behind TLS")
    expect(page.locator(".facts")).to_contain_text("TLS verified by its own CA: CN=rack CA, valid until")
    assert "Bearer s3cret-key" in Answering.keys
    # The same as a file of the panel's host.
    file = tmp_path / "rack.pem"
    page.get_by_role("link", name="Change").click()
    page.locator("#tls_ca").fill(str(file))
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#tls_ca-err")).to_contain_text(f"the file '{file}' cannot be read")
    file.write_text(rack.pem)
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#toasts")).to_contain_text("Saved")
    expect(page.locator(".facts")).to_contain_text("TLS verified by its own CA: CN=rack CA")
    # The saved key goes along with a question from its form.
    Answering.keys.clear()
    page.get_by_role("link", name="Change").click()
    expect(page.locator("#tls_ca")).to_have_value(str(file))
    page.get_by_role("button", name="What answers there?").click()
    expect(probe).to_contain_text("An LMCache cache server")
    assert "Bearer s3cret-key" in Answering.keys
    # Nobody's.
    page.get_by_label("Do not verify its certificate").check()
    page.locator("#tls_ca").fill("")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".facts")).to_contain_text("TLS not verified")
    expect(page.get_by_text("Its certificate is NOT verified")).to_be_visible()


def test_the_very_first_address_can_have_its_own_authority(page: Page, secure: str, rack: Authority) -> None:
    page.goto("/welcome")
    page.locator("#url").fill(secure)
    page.get_by_role("button", name="What answers there?").click()
    expect(page.locator(".notice:not(#connection)").first).to_contain_text("give the CA")
    # What is missing is open at once.
    page.locator("#tls_ca").fill(rack.pem)
    page.get_by_role("button", name="What answers there?").click()
    page.get_by_role("button", name="Add this cache server").click()
    expect(page.locator("#toasts")).to_contain_text("was added")
    page.goto("/servers/1")
    expect(page.locator(".facts")).to_contain_text("TLS verified by its own CA: CN=rack CA")
