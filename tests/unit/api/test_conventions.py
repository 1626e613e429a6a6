"""Conventions every route shares: problems, CSRF, idempotency, limits, headers, readiness."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.auth.schemas import TokenInput
from app.errors import Conflict
from app.web import middleware
from tests.support.panel import Panel, running_panel


class TestProcess:
    def test_liveness_and_readiness(self, panel: Panel) -> None:
        client = panel.client(None)
        assert client.get("/livez").json() == {"status": "alive"}
        answer = client.get("/readyz")
        assert answer.status_code == 200
        assert answer.json()["checks"] == {"database": "ok", "migrations": "ok", "scheduler": "ok"}

    def test_metrics_are_prometheus_text(self, panel: Panel) -> None:
        answer = panel.client(None).get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")

    def test_a_second_panel_on_the_same_data_directory_refuses_and_names_the_first(self, panel: Panel) -> None:
        with (
            pytest.raises(Conflict, match="already serves this data directory: process"),
            running_panel(panel.services.settings.data_dir),
        ):
            pass

    def test_metrics_can_be_put_behind_a_token(self, tmp_path: Path) -> None:
        with running_panel(tmp_path / "var", METRICS_TOKEN="scrape-me") as guarded:
            client = guarded.client(None)
            assert client.get("/metrics").status_code == 401
            assert client.get("/metrics", headers={"Authorization": "Bearer scrape-me"}).status_code == 200


class TestBrowserSafety:
    def test_security_headers_are_on_every_answer(self, panel: Panel) -> None:
        client = panel.client(None)
        for path in ("/livez", "/login", "/api/v1/me", "/nothing"):
            headers = client.get(path).headers
            assert "script-src 'self'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"

    @pytest.mark.parametrize(
        ("headers", "allowed"),
        [
            ({"Sec-Fetch-Site": "same-origin"}, True),
            ({"Sec-Fetch-Site": "cross-site"}, False),
            ({"Sec-Fetch-Site": "same-site"}, False),
            ({"Origin": "http://evil.example"}, False),
            ({"Origin": "null"}, False),
            ({}, False),
        ],
    )
    def test_a_session_cookie_works_only_from_our_own_pages(
        self, panel: Panel, headers: dict[str, str], allowed: bool
    ) -> None:
        cookies = dict(panel.browser().cookies)
        with httpx.Client(base_url=panel.url, cookies=cookies) as client:
            answer = client.post("/api/v1/tokens", json={"name": "", "role": "viewer"}, headers=headers)
        assert answer.status_code == (422 if allowed else 403)

    def test_the_cookie_is_http_only_and_a_signed_out_session_is_dead(self, panel: Panel) -> None:
        with httpx.Client(base_url=panel.url, headers={"Origin": panel.url}) as client:
            signed_in = client.post("/login", data={"username": "admin", "password": "correct horse battery"})
            assert "HttpOnly" in signed_in.headers["set-cookie"]
            assert "SameSite=lax" in signed_in.headers["set-cookie"].replace("Lax", "lax")
            cookies = dict(client.cookies)
            assert client.get("/api/v1/me").status_code == 200
            assert client.post("/logout").status_code == 303
        with httpx.Client(base_url=panel.url, cookies=cookies) as replay:
            assert replay.get("/api/v1/me").status_code == 401

    @pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x"])
    def test_no_open_redirect_after_sign_in(self, panel: Panel, target: str) -> None:
        with httpx.Client(base_url=panel.url, headers={"Origin": panel.url}) as client:
            answer = client.post(
                "/login", data={"username": "admin", "password": "correct horse battery", "next": target}
            )
        assert answer.status_code == 303
        assert answer.headers["location"] == "/"

    def test_the_root_without_a_session_leads_to_the_sign_in(self, panel: Panel) -> None:
        answer = panel.client(None).get("/")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")


class TestLimits:
    def test_an_oversized_body_is_refused(self, panel: Panel) -> None:
        answer = panel.client().post("/api/v1/tokens", content=b"x" * (3 * 1024 * 1024))
        assert answer.status_code == 413

    def test_an_oversized_query_is_refused(self, panel: Panel) -> None:
        assert panel.client().get("/api/v1/me", params={"x": "y" * 9000}).status_code == 414

    def test_a_foreign_page_token_is_400(self, panel: Panel) -> None:
        answer = panel.client().get("/api/v1/audit", params={"page_token": "bm90IG91cnM"})
        assert answer.status_code == 400
        assert answer.json()["type"].endswith("bad_page_token")

    def test_a_malformed_body_names_the_field_and_the_value(self, panel: Panel) -> None:
        answer = panel.client().post("/api/v1/tokens", json={"name": "x", "role": "owner", "colour": "red"})
        assert answer.status_code == 422
        problems = {e["field"]: e["message"] for e in answer.json()["errors"]}
        assert "'owner'" in problems["role"]
        assert "colour" in problems

    def test_a_body_that_is_no_json_says_why(self, panel: Panel) -> None:
        answer = panel.client().post(
            "/api/v1/tokens", content=b'{"name": x}', headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 422
        assert answer.json()["errors"] == [{"field": "body", "message": "is no valid JSON (Expecting value)"}]

    @pytest.mark.parametrize("ident", ["0", "99999", "abc", "1e3", "-1", "9" * 40, "%00", "1 or 1=1"])
    def test_an_id_that_names_nothing_is_404_however_formed(self, panel: Panel, ident: str) -> None:
        client = panel.client()
        for family in (
            "servers",
            "engines",
            "stores",
            "policies",
            "cleanup-runs",
            "acceptance-runs",
            "schedules",
            "users",
        ):
            assert client.get(f"/api/v1/{family}/{ident}").status_code == 404, family


class TestIdempotency:
    def test_the_first_answer_is_replayed(self, panel: Panel) -> None:
        client = panel.client()
        body = {"name": "once", "role": "viewer"}
        first = client.post("/api/v1/tokens", json=body, headers={"Idempotency-Key": "k1"})
        again = client.post("/api/v1/tokens", json=body, headers={"Idempotency-Key": "k1"})
        assert first.status_code == again.status_code == 201
        assert first.json() == again.json()
        assert again.headers["idempotent-replayed"] == "true"

    def test_an_answer_is_kept_before_it_is_given(self, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever asks again at once is answered the same, not that the first request is still being served."""
        real = middleware._keep

        def slowly(*args: Any) -> None:
            time.sleep(0.3)
            real(*args)

        monkeypatch.setattr(middleware, "_keep", slowly)
        client = panel.client()
        body = {"name": "slow", "role": "viewer"}
        answers = [
            client.post("/api/v1/tokens", json=body, headers={"Idempotency-Key": "slow"}).status_code for _ in range(2)
        ]
        assert answers == [201, 201]

    def test_another_body_under_the_same_key_is_422(self, panel: Panel) -> None:
        client = panel.client()
        client.post("/api/v1/tokens", json={"name": "a1", "role": "viewer"}, headers={"Idempotency-Key": "k2"})
        other = client.post("/api/v1/tokens", json={"name": "a2", "role": "viewer"}, headers={"Idempotency-Key": "k2"})
        assert other.status_code == 422
        assert other.json()["type"].endswith("idempotency_key_reused")

    def test_a_refused_request_can_be_sent_again(self, panel: Panel) -> None:
        client = panel.client()
        for _ in range(2):
            answer = client.post("/api/v1/tokens", json={"name": "", "role": "x"}, headers={"Idempotency-Key": "k3"})
            assert answer.status_code == 422
            assert answer.json()["type"].endswith("invalid_input")

    def test_keys_of_two_callers_do_not_meet(self, panel: Panel) -> None:
        for name in ("b1", "b2"):
            client = panel.client()
            answer = client.post(
                "/api/v1/tokens", json={"name": name, "role": "viewer"}, headers={"Idempotency-Key": "same"}
            )
            assert answer.json()["name"] == name


def test_a_token_name_is_taken_once(panel: Panel) -> None:
    panel.services.auth.create_token(TokenInput(name="taken", role="viewer"), actor="t")
    with pytest.raises(Conflict):
        panel.services.auth.create_token(TokenInput(name="taken", role="viewer"), actor="t")


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "/stores/1/plans", {"filter": {"q": "\ud800"}}, "filter.q"),
        ("POST", "/stores/1/plans", {"filter": {"\ud800": "x"}}, r"filter.\ud800"),
        ("POST", "/stores/1/holds/release", {"names": ["a", "\udfff"]}, "names[1]"),
        ("POST", "/policies", {"name": "p", "store_id": "1", "protect": {"models": ["\ud800"]}}, "protect.models[0]"),
        ("POST", "/servers", {"url": "http://127.0.0.1:1", "labels": {"a": "\ud800"}}, "labels.a"),
        ("POST", "/servers", {"\ud800": 1}, r"\ud800"),
        ("POST", "/silences", {"reason": "\ud83d"}, "reason"),
    ],
)
def test_half_a_surrogate_pair_is_refused_before_anything_is_stored(
    panel: Panel, method: str, path: str, body: dict[str, object], field: str
) -> None:
    """JSON can spell what no answer can send: stored once, it would break every list that shows it."""
    client = panel.client()
    answer = client.request(
        method, f"/api/v1{path}", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422, answer.text
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    for listed in ("/audit", "/plans", "/policies", "/servers"):
        assert client.get(f"/api/v1{listed}").status_code == 200
