"""`tierkeeper plan` and `tierkeeper clean`: a dry run, and a cleanup waited for, with exit statuses for cron.

On the data directory the work is done in this process, beside a running panel or without one (claims and the store's
lock keep it single); with a URL and a token the panel there does it. Ctrl-C cancels: what is in quarantine stays there.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from pydantic import ValidationError

from app.cleanup.policy import DIRTY_REASONS
from app.cleanup.schemas import FilterPlanInput
from app.commands import plan_listing
from app.commands.accept import PanelUnreachable
from app.commands.context import COMMAND_PRINCIPAL, command_services
from app.errors import Conflict, FieldError, InvalidInput, NotFound, TierkeeperError
from app.services import Services
from app.sizes import disk_size

EXIT_DONE, EXIT_NOT_REACHED, EXIT_TROUBLE = 0, 1, 3
_EXIT = {
    "succeeded": EXIT_DONE,
    "nothing_to_do": EXIT_DONE,
    "insufficient": EXIT_NOT_REACHED,
    "stopped_at_limit": EXIT_NOT_REACHED,
    "failed": EXIT_TROUBLE,
}
_ACTIVE = ("queued", "running")
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class CleanOptions:
    """Options of both commands. `policy`, or `store` with `filters` (``class=corrupt``); `plan` for `clean` alone.

    `url` and `token` choose the panel; without them the data directory is used.
    """

    policy: str | None = None
    store: str | None = None
    filters: tuple[str, ...] = ()
    removal: str = "quarantine"
    quarantine_for: str | None = None  # a filter plan; "ever" until it is purged; None: the API's default
    plan: str | None = None
    everything: bool = False  # plan: list every record
    as_json: bool = False
    url: str | None = None
    token: str | None = None


class Panel(Protocol):
    """Where the work is done: this process or a panel. Answers are as the API gives them."""

    def policy_id(self, name_or_id: str) -> str: ...

    def store_id(self, name_or_id: str) -> str: ...

    def plan_policy(self, policy_id: str) -> dict[str, Any]: ...

    def plan_filter(self, store_id: str, body: FilterPlanInput) -> dict[str, Any]: ...

    def run_policy(self, policy_id: str) -> dict[str, Any]: ...

    def run_plan(self, plan_id: str) -> dict[str, Any]: ...

    def get_plan(self, plan_id: str) -> dict[str, Any]: ...

    def get_run(self, run_id: str) -> dict[str, Any]: ...

    def cancel(self, kind: str, work_id: str) -> None: ...

    def plan_records(self, plan_id: str) -> Iterator[dict[str, Any]]: ...


def plan(options: CleanOptions) -> int:
    """Makes a plan and prints it; returns the exit status: 0 made, 3 not made.

    Raises InvalidInput and NotFound for what the caller got wrong, other TierkeeperErrors for what cannot be reached.
    """
    _check(options, may_run_a_plan=False)
    with _where(options) as panel:
        made = _make_plan(panel, options)
        records = panel.plan_records(made["id"]) if made["state"] == "succeeded" else iter(())
        items = plan_listing.chosen(records, everything=options.everything)
    if options.as_json:
        print(json.dumps({**made, "items": items}, indent=2))
    else:
        _print_plan(made, items)
    return EXIT_DONE if made["state"] == "succeeded" else EXIT_TROUBLE


def clean(options: CleanOptions) -> int:
    """Runs a policy, a filter's plan, or a plan made before, and prints what came of it; returns the exit status.

    0 succeeded or nothing to do, 1 insufficient or stopped at a limit, 3 failed, cancelled or interrupted. Raises as
    `plan`.
    """
    _check(options)
    with _where(options) as panel:
        if options.plan is not None:
            run = panel.run_plan(options.plan)
        elif options.policy is not None:
            run = panel.run_policy(panel.policy_id(options.policy))
        else:
            made = _make_plan(panel, options)
            if made["state"] != "succeeded":
                raise TierkeeperError(f"plan {made['id']} ended {made['state']}: {made['error'] or 'no reason given'}")
            run = panel.run_plan(made["id"])
        run = _to_the_end(panel, "cleanup", run, panel.get_run)
    if options.as_json:
        print(json.dumps(run, indent=2))
    else:
        _print_run(run)
    return exit_status(run)


def exit_status(run: Mapping[str, Any]) -> int:
    """By the verdict; a run without one did not end by itself."""
    return _EXIT.get(run["verdict"] or "", EXIT_TROUBLE)


def _check(options: CleanOptions, *, may_run_a_plan: bool = True) -> None:
    ways = [("--policy", options.policy), ("--store", options.store), ("--plan", options.plan)]
    chosen = [name for name, value in ways if value]
    if options.policy and options.store:
        message = "a policy has a store of its own: leave --store out, or leave --policy out and give --filter"
        raise InvalidInput.field("--store", message)
    if len(chosen) != 1:
        names = "--policy NAME, or --store NAME with --filter" + (", or --plan ID" if may_run_a_plan else "")
        raise InvalidInput.field(chosen[1] if chosen else "--policy", f"give one of {names}")
    if options.store is not None and not options.filters:
        raise InvalidInput.field("--filter", "say which records of the store, for instance --filter class=corrupt")
    if options.store is None and options.quarantine_for is not None:
        raise InvalidInput.field("--quarantine-for", "goes with --filter; a policy and a plan have their own")
    if options.store is None and options.filters:
        raise InvalidInput.field("--filter", "goes with --store; a policy says by itself what it takes")


def filter_body(options: CleanOptions) -> FilterPlanInput:
    """The body of POST /stores/{id}/plans. Raises InvalidInput naming the option."""
    given: dict[str, Any] = {}
    for text in options.filters:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise InvalidInput.field("--filter", f"{text!r} is not written as name=value, such as class=corrupt")
        given[name] = value
    try:
        body: dict[str, Any] = {"filter": given, "removal": options.removal}
        if options.quarantine_for is not None:
            body["quarantine_for"] = None if options.quarantine_for == "ever" else options.quarantine_for
        return FilterPlanInput.model_validate(body)
    except ValidationError as error:
        found = tuple(FieldError(f"--{e['loc'][0]}", f"{e['msg']} ({e['input']!r})"[:300]) for e in error.errors())
        raise InvalidInput("; ".join(f"{f.field}: {f.message}" for f in found), errors=found) from None


def _make_plan(panel: Panel, options: CleanOptions) -> dict[str, Any]:
    if options.policy is not None:
        made = panel.plan_policy(panel.policy_id(options.policy))
    else:
        made = panel.plan_filter(panel.store_id(options.store or ""), filter_body(options))
    return _to_the_end(panel, "plan", made, panel.get_plan)


def _to_the_end(panel: Panel, kind: str, work: dict[str, Any], look: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Waits for the end; Ctrl-C cancels and waits for that."""
    asked = False
    while work["state"] in _ACTIVE:
        try:
            time.sleep(_POLL_SECONDS)
            work = look(work["id"])
        except KeyboardInterrupt:
            if asked:
                raise
            asked = True
            print("cancelling …", file=sys.stderr)
            panel.cancel(kind, work["id"])
    return work


def _print_plan(made: Mapping[str, Any], items: list[Mapping[str, Any]]) -> None:
    if made["state"] != "succeeded":
        print(f"plan {made['id']} {made['state']}: {made['error'] or ''}")
        return
    print(f"plan {made['id']}: {made['records']} records, {disk_size(made['bytes'])} would go")
    for reason, count in sorted(made["by_reason"].items(), key=lambda pair: -pair[1]["bytes"]):
        print(f"  {reason}: {count['records']} records, {disk_size(count['bytes'])}")
    for reason, count in sorted(made["held_back"].items()):
        print(f"  stays ({reason}): {count['records']} records, {disk_size(count['bytes'])}")
    if made["leaves"]:
        free = made["leaves"]["free_bytes"]
        told = "free space unknown" if free is None else f"{disk_size(free)} free"
        print(f"  leaves {made['leaves']['records']} records, {disk_size(made['leaves']['bytes'])}; {told}")
    width = shutil.get_terminal_size((plan_listing.WIDTH, 0)).columns
    for line in plan_listing.lines(items, made["records"], width=width - 2):
        print(f"  {line}")
    if DIRTY_REASONS & made["by_reason"].keys():
        print("  a policy that takes derived records adds, while it runs, what was computed behind these")
    for warning in made["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    if made["records"]:
        print(f"to carry it out until {made['expires_at']}: tierkeeper clean --plan {made['id']}")


def _print_run(run: Mapping[str, Any]) -> None:
    word = run["verdict"] or run["state"]
    freed = run["freed_bytes_measured"]
    told = "" if freed is None else f", free space {'+' if freed >= 0 else '−'}{disk_size(abs(freed))}"
    removed = run["removed"]
    print(f"{word}: run {run['id']} removed {removed['records']} records, {disk_size(removed['bytes'])}{told}")
    for reason, count in sorted(run["by_reason"].items(), key=lambda pair: -pair[1]["bytes"]):
        print(f"  {reason}: {count['records']} records, {disk_size(count['bytes'])}")
    for reason, number in sorted(run["skipped"].items()):
        print(f"  skipped ({reason}): {number}")
    if run["in_quarantine"]["records"]:
        print(f"  in quarantine: {run['in_quarantine']['records']} records, {run['quarantine_folder']}")
    for item in run["failed"]:
        print(f"failed: {item['name']!r}: {item['message']} (errno {item['errno']})", file=sys.stderr)
    for note in (*run["notes"], *([run["error"]] if run["error"] and run["error"] not in run["notes"] else [])):
        print(note, file=sys.stderr)


@contextmanager
def _where(options: CleanOptions) -> Iterator[Panel]:
    if options.url is not None:
        headers = {"Authorization": f"Bearer {options.token}"} if options.token else {}
        try:
            client = httpx.Client(base_url=options.url.rstrip("/") + "/api/v1", headers=headers, timeout=60.0)
        except (httpx.InvalidURL, ValueError) as error:
            raise InvalidInput.field("--url", f"{options.url!r} is not an address: {error}") from None
        with client:
            yield _Remote(client)
        return
    with command_services() as services:
        services.runner.start()
        try:
            yield _Local(services)
        finally:
            services.runner.stop()


class _Local:
    """The data directory."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._cleanup = services.cleanup

    def policy_id(self, name_or_id: str) -> str:
        return str(self._cleanup.find_policy(name_or_id))

    def store_id(self, name_or_id: str) -> str:
        return str(self._services.fleet.find("store", name_or_id))

    def plan_policy(self, policy_id: str) -> dict[str, Any]:
        return self._cleanup.start_policy_plan(int(policy_id), actor=COMMAND_PRINCIPAL.actor).model_dump()

    def plan_filter(self, store_id: str, body: FilterPlanInput) -> dict[str, Any]:
        return self._cleanup.start_filter_plan(int(store_id), body, actor=COMMAND_PRINCIPAL.actor).model_dump()

    def run_policy(self, policy_id: str) -> dict[str, Any]:
        return self._cleanup.start_policy_run(int(policy_id), actor=COMMAND_PRINCIPAL.actor).model_dump()

    def run_plan(self, plan_id: str) -> dict[str, Any]:
        if not plan_id.isdecimal():
            raise NotFound.of("plan", plan_id)
        return self._cleanup.start_run(int(plan_id), actor=COMMAND_PRINCIPAL.actor).model_dump()

    def get_plan(self, plan_id: str) -> dict[str, Any]:
        return self._cleanup.get_plan(int(plan_id)).model_dump()

    def get_run(self, run_id: str) -> dict[str, Any]:
        return self._cleanup.get_run(int(run_id)).model_dump()

    def plan_records(self, plan_id: str) -> Iterator[dict[str, Any]]:
        token: str | None = None
        while True:
            page = self._cleanup.plan_records(int(plan_id), page_size=500, page_token=token)
            yield from (item.model_dump(by_alias=True) for item in page.items)
            token = page.next_page_token
            if token is None:
                return

    def cancel(self, kind: str, work_id: str) -> None:
        if kind == "plan":
            self._cleanup.cancel_plan(int(work_id), actor=COMMAND_PRINCIPAL.actor)
        else:
            self._cleanup.cancel_run(int(work_id), actor=COMMAND_PRINCIPAL.actor)


class _Remote:
    """A panel, through its API."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def policy_id(self, name_or_id: str) -> str:
        return self._find("policies", "policy", name_or_id)

    def store_id(self, name_or_id: str) -> str:
        return self._find("stores", "store", name_or_id)

    def plan_policy(self, policy_id: str) -> dict[str, Any]:
        return self._call("POST", f"/policies/{policy_id}/plans")

    def plan_filter(self, store_id: str, body: FilterPlanInput) -> dict[str, Any]:
        return self._call("POST", f"/stores/{store_id}/plans", json=body.model_dump())

    def run_policy(self, policy_id: str) -> dict[str, Any]:
        return self._call("POST", f"/policies/{policy_id}/runs")

    def run_plan(self, plan_id: str) -> dict[str, Any]:
        return self._call("POST", f"/plans/{plan_id}/runs")

    def get_plan(self, plan_id: str) -> dict[str, Any]:
        return self._call("GET", f"/plans/{plan_id}")

    def get_run(self, run_id: str) -> dict[str, Any]:
        return self._call("GET", f"/cleanup-runs/{run_id}")

    def cancel(self, kind: str, work_id: str) -> None:
        self._call("POST", f"/{'plans' if kind == 'plan' else 'cleanup-runs'}/{work_id}/cancel")

    def plan_records(self, plan_id: str) -> Iterator[dict[str, Any]]:
        return self._items(f"/plans/{plan_id}/records")

    def _items(self, path: str) -> Iterator[dict[str, Any]]:
        """All of a list."""
        token: str | None = None
        while True:
            params = {"page_size": "500", **({"page_token": token} if token else {})}
            page = self._call("GET", path, params=params)
            yield from page["items"]
            token = page["next_page_token"]
            if token is None:
                return

    def _find(self, path: str, kind: str, name_or_id: str) -> str:
        """A name wins over an id, as in every command."""
        ids: set[str] = set()
        for item in self._items(f"/{path}"):
            if item["name"] == name_or_id:
                return str(item["id"])
            ids.add(item["id"])
        if name_or_id in ids:
            return name_or_id
        raise NotFound.of(kind, name_or_id)

    def _call(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        try:
            answer = self._client.request(method, path, **given)
            body = answer.json()
        except httpx.HTTPError as error:
            raise PanelUnreachable(f"the panel at {self._client.base_url} does not answer: {error}") from None
        except ValueError:
            raise PanelUnreachable(f"what answers at {self._client.base_url} is no panel") from None
        if answer.status_code < 400 and isinstance(body, dict):
            return body
        told = str(body.get("detail", body))[:500] if isinstance(body, dict) else str(body)[:500]
        if answer.status_code == 404:
            raise NotFound(told)
        if answer.status_code in (400, 422):
            raise InvalidInput(told)
        if answer.status_code == 409:
            raise Conflict(told)
        raise PanelUnreachable(f"the panel answered {answer.status_code}: {told}")
