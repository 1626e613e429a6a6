"""`tierkeeper check --url …`: a running panel looks at its registered targets, and the verdicts are printed here."""

from __future__ import annotations

import time
from dataclasses import dataclass

from app.checks.schemas import CheckView
from app.commands.remote_panel import PanelUnreachable, RemotePanel, named_in, remote_panel
from app.errors import NotFound
from app.fleet.addresses import parse_address

_ACTIVE = ("queued", "running")
_LONGEST_SECONDS = 600.0


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
    with remote_panel(request.url, request.token) as panel:
        return _check(panel, request, pause)


def _check(panel: RemotePanel, request: RemoteRequest, pause: float) -> list[CheckView]:
    texts = {
        name: text
        for name in ("engine_log", "server_log", "environment", "commands")
        if (text := getattr(request, name))
    }
    if request.server is None and request.engine is None and texts:
        return [CheckView.model_validate(item) for item in panel.call("POST", "/checks/texts", json=texts)]
    targets = {
        name: _find(panel, path, kind, wanted)
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


def _find(panel: RemotePanel, path: str, kind: str, wanted: str) -> str:
    """The id of a target by its name, its id or its registered address. Raises NotFound, InvalidInput."""
    known = list(panel.items(path))
    if "://" not in wanted or any(item["name"].casefold() == wanted.casefold() for item in known):
        return named_in(known, kind, wanted)
    key = parse_address(wanted, field=f"--{kind}", allow_link_local=True).key
    for item in known:
        if parse_address(item["url"], allow_link_local=True).key == key:
            return str(item["id"])
    raise NotFound(
        f"no {kind} of that panel has the address {wanted}; register it there, or leave out --url to look at "
        "it from here"
    )
