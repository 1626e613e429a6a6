"""Who may come in, from where, for how long: proxies, host names, prefixes, sessions, limits."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from app.auth.schemas import UserInput
from app.errors import InvalidInput
from app.settings import load_settings
from tests.support.panel import ADMIN_PASSWORD, Panel, running_panel


class Clock:
    def __init__(self, now: float = 1_796_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Iterator[Panel]:
    """Behind a proxy on 127.0.0.1 that signs people in; served under a prefix, as two names."""
    with running_panel(
        tmp_path_factory.mktemp("access") / "var",
        clock=clock,
        POLL_SECONDS="3600",
        ROOT_PATH="/tierkeeper",
        ALLOWED_HOSTS="127.0.0.1,*.panel.example",
        TRUSTED_PROXIES="127.0.0.1,192.0.2.0/24",
        FORWARD_AUTH_HEADER="Remote-User",
    ) as found:
        found.services.auth.create_user(UserInput(username="olga", password="long enough", role="operator"), actor="t")
        yield found


def as_person(panel: Panel, name: str, **headers: str) -> httpx.Client:
    return httpx.Client(base_url=panel.url, headers={"Remote-User": name, **headers}, timeout=30)


class TestForwardedSignIn:
    def test_an_account_of_that_name_has_its_own_role(self, panel: Panel) -> None:
        with as_person(panel, "olga") as client:
            assert client.get("/api/v1/me").json() == {"name": "olga", "role": "operator", "kind": "user"}

    def test_a_stranger_has_the_role_of_the_setting(self, panel: Panel) -> None:
        with as_person(panel, "zoe@example.org") as client:
            assert client.get("/api/v1/me").json() == {"name": "zoe@example.org", "role": "viewer", "kind": "proxy"}
            assert client.get("/servers").status_code == 200

    def test_no_name_and_two_names_are_nobody(self, panel: Panel) -> None:
        with httpx.Client(base_url=panel.url) as client:
            assert client.get("/api/v1/me").status_code == 401
            assert (
                client.get("/api/v1/me", headers=[("Remote-User", "olga"), ("Remote-User", "admin")]).status_code == 401
            )
            assert client.get("/api/v1/me", headers={"Remote-User": "x" * 200}).status_code == 401

    def test_a_disabled_account_stays_out(self, panel: Panel) -> None:
        user = panel.services.auth.create_user(
            UserInput(username="gone", password="long enough", role="admin"), actor="t"
        )
        panel.client().patch(f"/api/v1/users/{user.id}", json={"disabled": True})
        with as_person(panel, "gone") as client:
            assert client.get("/api/v1/me").status_code == 401

    @pytest.mark.parametrize(
        ("headers", "status"),
        [({}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403), ({"Sec-Fetch-Site": "same-origin"}, 404)],
    )
    def test_another_site_cannot_act_for_a_person_the_proxy_knows(
        self, panel: Panel, headers: dict[str, str], status: int
    ) -> None:
        with as_person(panel, "olga", **headers) as client:
            assert client.post("/api/v1/stores/9/scans").status_code == status

    def test_the_trail_names_the_person_and_their_own_address(self, panel: Panel) -> None:
        panel.services.auth.create_user(UserInput(username="root", password="long enough", role="admin"), actor="t")
        headers = {"X-Forwarded-For": "6.6.6.6, 198.51.100.7, 192.0.2.9", "Sec-Fetch-Site": "same-origin"}
        with as_person(panel, "root", **headers) as client:
            made = client.post("/api/v1/tokens", json={"name": "by-proxy", "role": "viewer"})
        assert made.status_code == 201
        row = panel.services.audit.list_events(page_size=1, page_token=None, action="token.create").items[0]
        # What stands left of the first hop that is no proxy of ours was written by the client.
        assert (row.actor, row.address) == ("user:root", "198.51.100.7")

    def test_only_listed_proxies_are_believed(self, tmp_path: Path) -> None:
        with running_panel(
            tmp_path / "var", TRUSTED_PROXIES="192.0.2.1", FORWARD_AUTH_HEADER="Remote-User", POLL_SECONDS="3600"
        ) as direct:
            with as_person(direct, "admin", **{"X-Forwarded-For": "192.0.2.1"}) as client:
                assert client.get("/api/v1/me").status_code == 401
            direct.browser()
            row = direct.services.audit.list_events(page_size=1, page_token=None, action="session.create").items[0]
            assert row.address == "127.0.0.1"

    @pytest.mark.parametrize(
        ("values", "named"),
        [
            ({"FORWARD_AUTH_HEADER": "Remote-User"}, "TRUSTED_PROXIES"),
            ({"FORWARD_AUTH_HEADER": "Cookie", "TRUSTED_PROXIES": "10.0.0.1"}, "every client may send"),
            ({"TRUSTED_PROXIES": "10.0.0.0/33"}, "10.0.0.0/33"),
            ({"ALLOWED_HOSTS": "https://panel.example"}, "https://panel.example"),
        ],
    )
    def test_settings_that_would_let_anybody_in_are_refused(self, values: dict[str, str], named: str) -> None:
        with pytest.raises(InvalidInput, match=named):
            load_settings({f"TIERKEEPER_{name}": value for name, value in values.items()})


class TestHostNames:
    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("a.panel.example", 401),
            ("A.PANEL.example:8090", 401),
            ("panel.example", 421),
            ("a.b.panel.example", 421),
            ("evil.example", 421),
            ("evilpanel.example", 421),
            ("", 421),
        ],
    )
    def test_only_listed_names_are_served(self, panel: Panel, host: str, status: int) -> None:
        answer = httpx.get(f"{panel.url}/api/v1/me", headers={"Host": host})
        assert answer.status_code == status
        assert answer.headers["content-security-policy"]

    def test_probes_come_by_address(self, panel: Panel) -> None:
        for path in ("/livez", "/readyz", "/metrics"):
            assert httpx.get(panel.url + path, headers={"Host": "10.1.2.3"}).status_code == 200


class TestPrefix:
    @pytest.mark.parametrize("prefix", ["", "/tierkeeper"])
    def test_stripped_by_the_proxy_or_not(self, panel: Panel, prefix: str) -> None:
        with as_person(panel, "olga") as client:
            assert client.get(f"{prefix}/api/v1/me").status_code == 200
            assert client.get(f"{prefix}/servers").status_code == 200
            page = client.get(f"{prefix}/").text
            assert 'href="/tierkeeper/servers"' in page
        with httpx.Client(base_url=panel.url) as client:
            away = client.get(f"{prefix}/servers?q=x")
            assert (away.status_code, away.headers["location"]) == (303, "/tierkeeper/login?next=%2Fservers%3Fq%3Dx")
            static = page.partition('href="/tierkeeper/static/')[2].partition('"')[0]
            assert client.get(f"{prefix}/static/{static}").status_code == 200

    def test_the_document_names_it(self, panel: Panel) -> None:
        document = httpx.get(f"{panel.url}/tierkeeper/api/v1/openapi.json", timeout=300).json()
        assert document["servers"] == [{"url": "/tierkeeper"}]

    def test_a_path_that_only_begins_like_it_is_another(self, panel: Panel) -> None:
        assert httpx.get(f"{panel.url}/tierkeeperx/livez").status_code in (303, 404)


class TestSessions:
    def test_pages_that_renew_themselves_keep_nobody_signed_in(self, tmp_path: Path) -> None:
        clock = Clock()
        with running_panel(tmp_path / "var", clock=clock, POLL_SECONDS="3600", SESSION_IDLE_SECONDS="600") as panel:
            touched, left = panel.browser(), panel.browser()
            for _ in range(3):
                clock.now += 250
                for headers in ({"Tierkeeper-Poll": "1"}, {"Accept": "text/event-stream"}):
                    left.get("/api/v1/me", headers=headers)
                assert touched.get("/api/v1/me").status_code == 200
            assert left.get("/api/v1/me", headers={"Tierkeeper-Poll": "1"}).status_code == 401
            assert touched.get("/api/v1/me", headers={"Tierkeeper-Poll": "1"}).status_code == 200

    def test_the_parts_that_renew_themselves_say_so(self, panel: Panel) -> None:
        with as_person(panel, "olga") as client:
            page = client.get("/servers").text
        parts = [tag for tag in page.split("<") if "hx-trigger" in tag]
        assert parts
        assert all("Tierkeeper-Poll" in tag for tag in parts)

    def test_signing_in_again_ends_the_session_before(self, panel: Panel) -> None:
        with httpx.Client(base_url=panel.url, headers={"Origin": panel.url}) as client:
            form = {"username": "admin", "password": ADMIN_PASSWORD}
            first, second = (
                client.post("/login", data=form, headers={"Cookie": cookie}).headers["set-cookie"].split(";")[0]
                for cookie in [""]
                for _ in range(2)
            )
            third = client.post("/login", data=form, headers={"Cookie": first}).headers["set-cookie"].split(";")[0]
            assert len({first, second, third}) == 3
            status = [client.get("/api/v1/me", headers={"Cookie": c}).status_code for c in (first, second, third)]
        assert status == [401, 200, 200]

    def test_an_admin_sees_and_ends_the_sessions_of_a_user(self, tmp_path: Path) -> None:
        with running_panel(tmp_path / "var", POLL_SECONDS="3600") as panel:
            user = panel.services.auth.create_user(
                UserInput(username="olga", password="long enough", role="operator"), actor="t"
            )
            olga, admin = panel.browser("olga", "long enough"), panel.client()
            listed = admin.get(f"/api/v1/users/{user.id}/sessions").json()["items"]
            assert [session["address"] for session in listed] == ["127.0.0.1"]
            assert admin.delete(f"/api/v1/users/{user.id}/sessions").status_code == 204
            assert olga.get("/api/v1/me").status_code == 401
            assert admin.get(f"/api/v1/users/{user.id}/sessions").json()["items"] == []
            actions = [e.action for e in panel.services.audit.list_events(page_size=9, page_token=None).items]
            assert "session.revoke" in actions


class TestLimits:
    @pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}])
    def test_a_body_without_a_length_is_refused_when_it_grows_too_large(
        self, panel: Panel, headers: dict[str, str]
    ) -> None:
        def endless() -> Iterator[bytes]:
            for _ in range(48):
                yield b" " * 65536

        answer = panel.client().post("/api/v1/tokens", content=endless(), headers=headers)
        assert answer.status_code == 413
        assert answer.json()["type"].endswith("too_large") or answer.json()["title"] == "Content Too Large"

    @pytest.mark.parametrize("told", [True, False])
    def test_a_client_that_goes_on_sending_hears_why_it_is_refused(self, panel: Panel, told: bool) -> None:
        """A connection closed under a client that sends is a broken pipe to it, and the answer is lost."""
        body = b" " * (24 * 1024 * 1024)
        address = urlsplit(panel.url)
        for _ in range(3):
            connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)
            with contextlib.closing(connection):
                connection.request(
                    "POST", "/api/v1/tokens", body if told else iter([body]), encode_chunked=not told,
                    headers={"Content-Length": str(len(body))} if told else {"Transfer-Encoding": "chunked"},
                )  # fmt: skip
                answer = connection.getresponse()
                assert answer.status == 413
                assert "larger than" in json.load(answer)["detail"]

    def test_too_many_headers(self, panel: Panel) -> None:
        answer = panel.client().get("/api/v1/me", headers={f"X-{n}": "y" * 900 for n in range(50)})
        assert answer.status_code in (400, 431)


def test_secure_cookies_behind_a_proxy_that_ends_tls(tmp_path: Path) -> None:
    """The browser speaks https to the proxy, the proxy http to the panel: the cookie is bound to host and https, comes
    back, and goes at the end."""
    environment = {"SECURE_COOKIES": "true", "TRUSTED_PROXIES": "127.0.0.1", "PUBLIC_URL": "https://panel.example"}
    told = {"Host": "panel.example", "X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7"}
    with (
        running_panel(tmp_path / "var", POLL_SECONDS="3600", **environment) as panel,
        httpx.Client(base_url=panel.url, headers={**told, "Origin": "https://panel.example"}) as client,
    ):
        answer = client.post("/login", data={"username": "admin", "password": ADMIN_PASSWORD})
        assert answer.status_code == 303, answer.text
        cookie = answer.headers["set-cookie"]
        name, _, rest = cookie.partition("=")
        assert name == "__Host-tierkeeper"
        parts = {part.strip().lower() for part in rest.split(";")[1:]}
        assert {"secure", "httponly", "path=/", "samesite=lax"} <= parts
        assert not any(part.startswith("domain") for part in parts)
        sent = {"Cookie": f"{name}={rest.split(';')[0]}"}
        assert client.get("/", headers=sent).status_code == 200
        # The plain name is nobody's session: what an attacker beside us sets over http is not looked at.
        plain = {"Cookie": f"tierkeeper={rest.split(';')[0]}"}
        assert client.get("/", headers=plain).status_code == 303
        # Its own pages may change things; those of the plain-http address may not.
        wrong = client.post("/logout", headers={**sent, "Origin": "http://panel.example"})
        assert wrong.status_code == 403
        assert client.get("/", headers=sent).status_code == 200
        gone = client.post("/logout", headers=sent)
        assert gone.status_code == 303
        assert "__Host-tierkeeper=" in gone.headers["set-cookie"]
        assert "secure" in gone.headers["set-cookie"].lower()
        assert client.get("/", headers=sent).status_code == 303
