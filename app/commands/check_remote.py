"""`tierkeeper check --url …`: a running panel looks at its registered targets, and the verdicts are printed here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from app.checks.schemas import CheckView
from app.errors import InvalidInput, NotFound, TierkeeperError
from app.fleet.addresses import parse_address

_ACTIVE = ("queued", "running")
_LONGEST_SECONDS = 600.0


class PanelUnreachable(TierkeeperError):
    """The panel behind --url does not answer as a panel, or its run did not end well."""


@dataclass(frozen=True)
class RemoteRequest:
    """What the panel is asked. Targets by name, id or registered address; texts as they were read, empty for none."""

    url: str
    token: str | None
    server: str | None
    engine: str | None
    engine_log: str = ""
    server_log: str = ""
    environment: str = ""
    commands: str = ""
    write_probe: bool = True


def check_at_panel(request: RemoteRequest, *, pause: float = 0.5) -> list[CheckView]:
    """Have it looked at now, and the verdicts, worst first. Texts alone are judged without contacting a target.

    Raises InvalidInput, NotFound, PanelUnreachable.
    """
    headers = {"Authorization": f"Bearer {request.token}"} if request.token else {}
    try:
        client = httpx.Client(base_url=request.url.rstrip("/") + "/api/v1", headers=headers, timeout=60.0)
    except (httpx.InvalidURL, ValueError) as error:
        raise InvalidInput.field("--url", f"{request.url!r} is not an address: {error}") from None
    with client:
        return _check(_Panel(client), request, pause)


def _check(panel: _Panel, request: RemoteRequest, pause: float) -> list[CheckView]:
    texts = {
        name: text
        for name in ("engine_log", "server_log", "environment", "commands")
        if (text := getattr(request, name))
    }
    if request.server is None and request.engine is None and texts:
        return [CheckView.model_validate(item) for item in panel.call("POST", "/checks/texts", json=texts)]
    targets = {
        name: panel.find(path, kind, wanted)
        for name, path, kind, wanted in (
            ("server_id", "/servers", "server", request.server),
            ("engine_id", "/engines", "engine", request.engine),
        )
        if wanted is not None
    }
    run = panel.call("POST", "/checks/runs", json={**targets, **texts, "write_probe": request.write_probe})
    deadline = time.monotonic() + _LONGEST_SECONDS
    while run["state"] in _ACTIVE:
        if time.monotonic() > deadline:
            raise PanelUnreachable(f"check run {run['id']} did not end within {_LONGEST_SECONDS / 60:.0f} minutes")
        time.sleep(pause)
        run = panel.call("GET", f"/checks/runs/{run['id']}")
    if run["state"] != "succeeded":
        raise PanelUnreachable(f"check run {run['id']} {run['state']}: {run['error'] or 'no reason given'}")
    return [CheckView.model_validate(item) for item in panel.items("/checks", targets)]


class _Panel:
    """A panel, through its API."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def find(self, path: str, kind: str, wanted: str) -> str:
        """A name wins over an id; an address is that of a registered target."""
        known = list(self.items(path, {}))
        for item in known:
            if item["name"].casefold() == wanted.casefold():
                return str(item["id"])
        for item in known:
            if item["id"] == wanted:
                return wanted
        if "://" in wanted:
            key = parse_address(wanted, field=f"--{kind}", allow_link_local=True).key
            for item in known:
                if parse_address(item["url"], allow_link_local=True).key == key:
                    return str(item["id"])
            raise NotFound(
                f"no {kind} of that panel has the address {wanted}; register it there, or leave out --url to look at "
                "it from here"
            )
        raise NotFound.of(kind, wanted)

    def items(self, path: str, params: dict[str, str]) -> Iterator[dict[str, Any]]:
        """All of a list."""
        token: str | None = None
        while True:
            page = self.call(
                "GET", path, params={**params, "page_size": "500", **({"page_token": token} if token else {})}
            )
            yield from page["items"]
            token = page["next_page_token"]
            if token is None:
                return

    def call(self, method: str, path: str, **given: Any) -> Any:
        try:
            answer = self._client.request(method, path, **given)
            body = answer.json()
        except httpx.HTTPError as error:
            raise PanelUnreachable(f"the panel at {self._client.base_url} does not answer: {error}") from None
        except ValueError:
            raise PanelUnreachable(f"what answers at {self._client.base_url} is no panel") from None
        if answer.status_code < 400:
            return body
        told = str(body.get("detail", body))[:500] if isinstance(body, dict) else str(body)[:500]
        if answer.status_code == 404:
            raise NotFound(told)
        if answer.status_code in (400, 422):
            raise InvalidInput(told)
        raise PanelUnreachable(f"the panel answered {answer.status_code}: {told}")
