"""Every button's counterpart in the API, so that each page shows its actions for a shell. Pure.

A page's layout looks for the forms in its content and shows the commands below it: whoever adds a form adds a line
here, and a test fails until then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from html import unescape
from typing import Any
from urllib.parse import unquote


@dataclass(frozen=True)
class Action:
    """What a form does. `page` and `api` are addresses with the same names in braces; `body` is an example."""

    page: str
    title: str
    method: str
    api: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Command:
    """One action of a page, for `curl`."""

    title: str
    method: str
    path: str
    body: Mapping[str, Any] | None


#: Forms about the session of a browser, which nothing else has.
NOT_FOR_SHELLS = frozenset({"/login", "/logout", "/undo"})
_MATCHER = {"rules": ["server_unreachable"]}
_POLICY = {"name": "nightly", "store_id": "1", "schedule": "17 3 * * *", "select": [{"kind": "incompatible"}]}
_SERVER, _STORE = {"url": "http://127.0.0.1:8080"}, {"path": "/srv/kv", "server_ids": ["1"]}

ACTIONS: tuple[Action, ...] = (
    Action("/welcome", "Add a cache server", "POST", "/servers", _SERVER),
    Action("/engines/{id}/facts", "Enter facts", "PATCH", "/engines/{id}", {"entered_facts": {"dtype": "bfloat16"}}),
    Action("/stores/{id}/scans", "Scan", "POST", "/stores/{id}/scans"),
    Action(
        "/stores/{id}/directory",
        "Say that this directory is the store now",
        "POST",
        "/stores/{id}/directory",
        {"found": "2049:131"},
    ),
    Action("/scans/{id}/cancel", "Stop the scan", "POST", "/scans/{id}/cancel"),
    Action(
        "/stores/{id}/epochs",
        "Declare or adopt",
        "POST",
        "/stores/{id}/epochs",
        {"kind": "declare", "reason": "weights changed"},
    ),
    Action("/stores/{id}/epochs/{epoch}/undo", "Take it back", "DELETE", "/stores/{id}/epochs/{epoch}"),
    Action("/stores/{id}/plans", "Plan a removal", "POST", "/stores/{id}/plans", {"filter": {"class": "incompatible"}}),
    Action("/stores/{id}/holds/release", "Release holds", "POST", "/stores/{id}/holds/release"),
    Action("/stores/{id}/quarantine/adopt", "Take over", "POST", "/stores/{id}/quarantine/FOLDER/adopt"),
    Action("/cleanup/policies/new", "Create a policy", "POST", "/policies", _POLICY),
    Action("/cleanup/policies/{id}/edit", "Change the policy", "PATCH", "/policies/{id}", {"enabled": False}),
    Action("/cleanup/policies/{id}/pause", "Pause its schedule", "PATCH", "/policies/{id}", {"enabled": False}),
    Action("/cleanup/policies/{id}/resume", "Turn its schedule on", "PATCH", "/policies/{id}", {"enabled": True}),
    Action("/cleanup/policies/{id}/delete", "Delete the policy", "DELETE", "/policies/{id}"),
    Action("/cleanup/policies/{id}/plans", "Dry run", "POST", "/policies/{id}/plans"),
    Action("/cleanup/policies/{id}/runs", "Run it", "POST", "/policies/{id}/runs"),
    Action("/cleanup/plans/{id}/cancel", "Stop planning", "POST", "/plans/{id}/cancel"),
    Action("/cleanup/plans/{id}/runs", "Carry the plan out", "POST", "/plans/{id}/runs"),
    Action("/cleanup/runs/{id}/cancel", "Stop the run", "POST", "/cleanup-runs/{id}/cancel"),
    Action("/cleanup/runs/{id}/restore", "Put back", "POST", "/cleanup-runs/{id}/restore"),
    Action("/cleanup/runs/{id}/purge", "Purge", "POST", "/cleanup-runs/{id}/purge"),
    Action("/acceptance/new", "Start a run", "POST", "/acceptance-runs", {"engine_id": "1", "profile": "quick"}),
    Action("/acceptance/runs/{id}/continue", "Go on", "POST", "/acceptance-runs/{id}/continue"),
    Action("/acceptance/runs/{id}/cancel", "Stop the run", "POST", "/acceptance-runs/{id}/cancel"),
    Action("/acceptance/runs/{id}/canaries", "Keep as canaries", "POST", "/canaries", {"run_id": "1"}),
    Action("/acceptance/canaries/check", "Read canaries back", "POST", "/canaries/runs", {"engine_id": "1"}),
    Action("/acceptance/canaries/{id}/delete", "Forget the canary", "DELETE", "/canaries/{id}"),
    Action(
        "/acceptance/hooks",
        "Add a restart hook",
        "POST",
        "/hooks",
        {"name": "systemd", "engine": {"argv": ["systemctl", "restart", "vllm"]}},
    ),
    Action("/acceptance/hooks/{id}/delete", "Delete the hook", "DELETE", "/hooks/{id}"),
    Action("/checks/runs", "Check now", "POST", "/checks/runs", {}),
    Action(
        "/checks/texts",
        "Judge texts",
        "POST",
        "/checks/texts",
        {"server": "lmcache server --l1-size-gb 20"},
    ),
    Action("/benchmark/new", "Start a benchmark", "POST", "/benchmark-runs", {"engine_id": "1", "form": "two_pass"}),
    Action("/benchmark/runs/{id}/cancel", "Stop the benchmark", "POST", "/benchmark-runs/{id}/cancel"),
    Action("/sizing", "Compute", "POST", "/sizing", {"model": {"bytes_per_token": 57344}}),
    Action("/sizing/prefix", "Compare two prompts", "POST", "/sizing/prefix", {"a": {"text": "…"}, "b": {"text": "…"}}),
    Action("/launch", "Make commands", "POST", "/launch-commands", {"engine": {"model": "/models/a"}}),
    Action("/alarms/rules/{id}", "Change the rule", "PATCH", "/alert-rules/{id}", {"enabled": False}),
    Action(
        "/alarms/rules/{id}/overrides",
        "Set it for one target",
        "POST",
        "/alert-rules/{id}/overrides",
        {"target_kind": "store", "target_id": "1", "severity": "info"},
    ),
    Action(
        "/alarms/rules/{id}/overrides/{override}/delete",
        "Take it back",
        "DELETE",
        "/alert-rules/{id}/overrides/{override}",
    ),
    Action(
        "/alarms/silences", "Silence", "POST", "/silences", {"matcher": _MATCHER, "comment": "rollout", "seconds": 3600}
    ),
    Action("/alarms/silences/{id}/end", "End the silence", "DELETE", "/silences/{id}"),
    Action(
        "/alarms/windows",
        "Add a window",
        "POST",
        "/maintenance-windows",
        {"name": "sunday", "matcher": _MATCHER, "cron": "0 2 * * 0", "duration_seconds": 3600},
    ),
    Action("/alarms/windows/{id}/on", "Switch it on", "PATCH", "/maintenance-windows/{id}", {"enabled": True}),
    Action("/alarms/windows/{id}/off", "Switch it off", "PATCH", "/maintenance-windows/{id}", {"enabled": False}),
    Action("/alarms/windows/{id}/delete", "Delete the window", "DELETE", "/maintenance-windows/{id}"),
    Action(
        "/alarms/notifiers",
        "Add a notifier",
        "POST",
        "/notifiers",
        {"name": "on call", "kind": "webhook", "url": "https://hooks.example/alarm"},
    ),
    Action("/alarms/notifiers/{id}/test", "Send a test", "POST", "/notifiers/{id}/test"),
    Action("/alarms/notifiers/{id}/on", "Switch it on", "PATCH", "/notifiers/{id}", {"enabled": True}),
    Action("/alarms/notifiers/{id}/off", "Switch it off", "PATCH", "/notifiers/{id}", {"enabled": False}),
    Action("/alarms/notifiers/{id}/delete", "Delete the notifier", "DELETE", "/notifiers/{id}"),
    Action("/alarms/{id}/acknowledge", "Acknowledge", "POST", "/alerts/{id}/acknowledge", {"note": "on it"}),
    Action(
        "/schedules",
        "Create a schedule",
        "POST",
        "/schedules",
        {"name": "scan", "kind": "scan", "target_id": "1", "cron": "0 4 * * *"},
    ),
    Action("/schedules/{id}/run", "Run it now", "POST", "/schedules/{id}/run-now"),
    Action("/schedules/{id}/pause", "Pause", "POST", "/schedules/{id}/pause"),
    Action("/schedules/{id}/resume", "Go on", "POST", "/schedules/{id}/resume"),
    Action("/schedules/{id}/delete", "Delete the schedule", "DELETE", "/schedules/{id}"),
    Action("/settings/sandbox/delete", "Forget a simulated server", "DELETE", "/servers/ID"),
    Action(
        "/settings/users",
        "Add a user",
        "POST",
        "/users",
        {"username": "rosa", "password": "a long one", "role": "viewer"},
    ),
    Action("/settings/users/{id}", "Change the user", "PATCH", "/users/{id}", {"role": "operator"}),
    Action("/settings/users/{id}/sessions/delete", "Sign the user out everywhere", "DELETE", "/users/{id}/sessions"),
    Action("/settings/users/{id}/delete", "Delete the user", "DELETE", "/users/{id}"),
    Action("/settings/tokens", "Make a token", "POST", "/tokens", {"name": "pipeline", "role": "operator"}),
    Action("/settings/tokens/{id}/delete", "Revoke the token", "DELETE", "/tokens/{id}"),
    Action("/settings/servers/new", "Add a cache server", "POST", "/servers", _SERVER),
    Action("/settings/engines/new", "Add an engine", "POST", "/engines", {"url": "http://127.0.0.1:8000"}),
    Action("/settings/stores/new", "Add a store", "POST", "/stores", _STORE),
    Action("/settings/{kind}/{id}", "Change it", "PATCH", "/{kind}/{id}", {"name": "better"}),
    Action("/settings/{kind}/{id}/delete", "Forget it", "DELETE", "/{kind}/{id}"),
)

#: A command that a page names itself: what it shows, or a form with what it holds.
_NAMED = re.compile(r'<template data-curl="([^"]*)">([^<]*)</template>')
_SHOWN = re.compile(r"-X (\w+) [^<]*?(/api/v1/[^\s'\"<?&]*)[^<]*</template>")
_FORM = re.compile(r"<form\b[^>]*>")
_METHOD_POST = re.compile(r'\bmethod="post"', re.IGNORECASE)
_TARGET = re.compile(r'\baction="([^"]*)"')


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Action], ...]:
    # Fixed words before names: /alarms/silences/3/end is no alarm of the id "silences".
    ordered = sorted(ACTIONS, key=lambda a: (a.page.count("{"), a.page.count("/")))
    return tuple((re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", a.page)), a) for a in ordered)


def command_of(path: str) -> Command | None:
    """The API's way of posting a form to `path` (without prefix and query)."""
    for pattern, action in _patterns():
        found = pattern.fullmatch(path)
        if found is not None:
            api = action.api.format(**found.groupdict())
            return Command(action.title, action.method, f"/api/v1{api}", action.body)
    return None


def forms_in(content: str, prefix: str = "") -> list[str]:
    """Where the forms of a page post to, each once, without the prefix of a proxy and the query."""
    found: dict[str, None] = {}
    for tag in _FORM.findall(content):
        target = _TARGET.search(tag)
        if _METHOD_POST.search(tag) and target is not None:
            path = unquote(unescape(target.group(1)).split("?")[0])
            found[path.removeprefix(prefix)] = None
    return list(found)


def curls_in(content: str) -> list[tuple[str, str]]:
    """The commands that a page names itself, as (title, command), each once."""
    return list(dict.fromkeys((unescape(title), unescape(text)) for title, text in _NAMED.findall(content)))


def commands_in(content: str, prefix: str = "") -> list[Command]:
    """The actions of a page, each kind once: what can be done to every row of a table is shown for the first."""
    shown = set(_SHOWN.findall(content))
    found: dict[tuple[str, str], Command] = {}
    for path in forms_in(content, prefix):
        command = command_of(path)
        if command is not None and (command.method, command.path) not in shown:
            found.setdefault((command.title, command.method), command)
    return list(found.values())
