"""A running panel as the commands see it: `--url` and `--token`, through its HTTP API (docs/API.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from app.errors import Conflict, InvalidInput, NotFound, TierkeeperError

#: As the problem documents of the API mean them; every other status is trouble with the panel.
_MEANT: Mapping[int, type[TierkeeperError]] = {
    400: InvalidInput,
    404: NotFound,
    409: Conflict,
    413: InvalidInput,
    422: InvalidInput,
}


class PanelUnreachable(TierkeeperError):
    """The panel behind --url does not answer as a panel, or its work did not end well."""

    status = 502
    code = "panel_unreachable"
    title = "The panel cannot be reached"


@contextmanager
def remote_panel(url: str, token: str | None, *, timeout: float = 60.0) -> Iterator[RemotePanel]:
    """The panel at `url`; `timeout` in seconds a call, longer than its long polls. Raises InvalidInput."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        client = httpx.Client(base_url=url.rstrip("/") + "/api/v1", headers=headers, timeout=timeout)
    except (httpx.InvalidURL, ValueError) as error:
        raise InvalidInput.field("--url", f"{url!r} is not an address: {error}") from None
    with client:
        yield RemotePanel(client)


class RemotePanel:
    """Calls raise NotFound, InvalidInput and Conflict as the panel tells them, and PanelUnreachable for all else."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def call(self, method: str, path: str, **given: Any) -> Any:
        """The answer's JSON."""
        answer = self._ask(method, path, **given)
        try:
            return answer.json()
        except ValueError:
            raise PanelUnreachable(f"what answers at {self._client.base_url} is no panel") from None

    def text(self, path: str) -> str:
        """The answer to a GET as it stands: reports and exports."""
        return self._ask("GET", path).text

    def items(self, path: str, params: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """All of a list, page after page."""
        token: str | None = None
        while True:
            asked = {**(params or {}), "page_size": "500", **({"page_token": token} if token else {})}
            page = self.call("GET", path, params=asked)
            yield from page["items"]
            token = page["next_page_token"]
            if token is None:
                return

    def find(self, path: str, kind: str, wanted: str) -> str:
        """The id of what a list names or numbers so; a name wins, as in every command. Raises NotFound."""
        return named_in(list(self.items(path)), kind, wanted)

    def _ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, path, **given)
        except httpx.HTTPError as error:
            raise PanelUnreachable(f"the panel at {self._client.base_url} does not answer: {error}") from None
        if answer.status_code < 400:
            return answer
        told = _problem(answer)
        meant = _MEANT.get(answer.status_code)
        raise meant(told) if meant else PanelUnreachable(f"the panel answered {answer.status_code}: {told}")


def named_in(known: list[dict[str, Any]], kind: str, wanted: str) -> str:
    """The id of the one of this name (letter case aside), or of this id. Raises NotFound, naming those there are."""
    for item in known:
        if item["name"].casefold() == wanted.casefold():
            return str(item["id"])
    for item in known:
        if str(item["id"]) == wanted:
            return wanted
    raise NotFound.named(kind, wanted, (str(item["name"]) for item in known))


def _problem(answer: httpx.Response) -> str:
    """The sentence of a problem document, or the beginning of whatever it is."""
    try:
        return str(answer.json()["detail"])[:500]
    except (ValueError, KeyError, TypeError):
        return answer.text[:300]
