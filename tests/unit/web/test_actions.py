"""Every form of every page has its counterpart in the API, and the page shows it as curl."""

from __future__ import annotations

import html
import re

import pytest

from app.web.actions import ACTIONS, NOT_FOR_SHELLS, Command, command_of, commands_in, forms_in
from app.web.routers import page_routers
from tests.support.panel import Panel
from tests.unit.web import pages
from tests.unit.web.test_pages import PLAIN, render

_NAME = re.compile(r"\{\w+\}")


def posted_paths() -> list[str]:
    """The address of every page route that takes a form."""
    found: list[str] = []
    waiting = [("", router) for router in page_routers()]
    while waiting:
        prefix, router = waiting.pop()
        for route in router.routes:
            included = getattr(route, "original_router", None)
            if included is not None:
                waiting.append((prefix + router.prefix, included))
            elif "POST" in (getattr(route, "methods", None) or ()):
                found.append(prefix + str(route.path))  # type: ignore[attr-defined]
    return found


def test_every_form_of_every_page_is_shown_as_curl() -> None:
    """Whoever adds a form adds a line to `app.web.actions`."""
    forms = 0
    for name in PLAIN:
        text = render(name, PLAIN)
        shown = html.unescape(text)
        for path in forms_in(text):
            if path in NOT_FOR_SHELLS:
                continue
            forms += 1
            command = command_of(path)
            assert command is not None, f"{name}: the form that posts to {path} has no action in app.web.actions"
            # Rows of a table show the first one's.
            same = [c for p in forms_in(text) if (c := command_of(p)) and c.title == command.title]
            assert any(f"/api/v1{c.path.removeprefix('/api/v1')}" in shown for c in same), (name, path)
            assert "curl -sS" in shown
    assert forms > 50


@pytest.mark.parametrize("path", posted_paths())
def test_every_route_that_takes_a_form_has_an_action(path: str) -> None:
    if path in NOT_FOR_SHELLS:
        return
    verbs = ("on", "off", "delete", *(("test",) if "notifier" in path else ()))
    for what in verbs if "{what}" in path else ("",):
        concrete = path.replace("{what}", what).replace("{kind}s", "servers")
        assert command_of(_NAME.sub("7", concrete)) is not None, path


def test_every_action_is_one_of_the_api(panel: Panel) -> None:
    known = panel.client("admin").get("/api/v1/openapi.json").json()["paths"]
    routes = {(method.upper(), _NAME.sub("*", path)) for path, methods in known.items() for method in methods}
    for action in ACTIONS:
        for kind in ("servers", "engines", "stores"):
            api = action.api.replace("{kind}", kind)
            path = _NAME.sub("*", "/api/v1" + api.replace("FOLDER", "{folder}").replace("/ID", "/{id}"))
            assert (action.method, path) in routes, action


def test_the_command_is_that_of_this_very_form() -> None:
    assert command_of("/cleanup/policies/12/delete") == Command(
        "Delete the policy", "DELETE", "/api/v1/policies/12", None
    )
    found = command_of("/settings/engines/4")
    assert found is not None
    assert (found.method, found.path) == ("PATCH", "/api/v1/engines/4")
    assert command_of("/alarms/silences/3/end") == Command("End the silence", "DELETE", "/api/v1/silences/3", None)
    assert command_of("/nowhere") is None


def test_behind_a_proxy_and_with_a_query() -> None:
    page = '<form class="x" method="post" action="/tk/acceptance/new?estimate=1"><form method="get" action="/tk/x">'
    assert forms_in(page, "/tk") == ["/acceptance/new"]
    assert [c.path for c in commands_in(page, "/tk")] == ["/api/v1/acceptance-runs"]


def test_what_a_page_shows_itself_is_not_said_twice() -> None:
    name = next(n for n, (template, _) in pages.all_pages().items() if template == "acceptance_start.html")
    text = html.unescape(render(name, PLAIN))
    assert len(re.findall(r"-X POST [^<]*/api/v1/acceptance-runs'?</code>", text)) <= 1
    assert "/api/v1/acceptance-runs" in text
