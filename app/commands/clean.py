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
from typing import Any

from pydantic import ValidationError

from app.cleanup.policy import DIRTY_REASONS
from app.cleanup.schemas import FilterPlanInput
from app.commands import plan_listing
from app.commands.clean_desks import LocalDesk, Panel, RemoteDesk
from app.commands.context import command_services, keep_program
from app.commands.option_names import naming_options
from app.commands.panel_link import say_where
from app.commands.remote_panel import remote_panel
from app.errors import FieldError, InvalidInput, TierkeeperError
from app.printable import say
from app.settings import load_settings
from app.sizes import disk_size
from app.wiring import apply_targets_file
from app.wording import location

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
#: Names told of those that failed alike.
_NAMED = 3


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


def plan(options: CleanOptions) -> int:
    """Makes a plan and prints it; returns the exit status: 0 made, 3 not made.

    Raises InvalidInput and NotFound for what the caller got wrong, other TierkeeperErrors for what cannot be reached.
    """
    _check(options, may_run_a_plan=False)
    with _where(options) as panel:
        made = _make_plan(panel, options)
        records = panel.plan_records(made["id"]) if made["state"] == "succeeded" else iter(())
        items = plan_listing.chosen(records, everything=options.everything)
    if made["state"] != "succeeded":
        say(f"plan {made['id']} ended {made['state']}: {made['error'] or 'no reason given'}", file=sys.stderr)
    if options.as_json:
        print(json.dumps({**made, "items": items}, indent=2))
    else:
        _print_plan(made, items)
        say_where("the plan", options.url, f"/cleanup/plans/{made['id']}", matters=made["state"] != "succeeded")
    return EXIT_DONE if made["state"] == "succeeded" else EXIT_TROUBLE


def clean(options: CleanOptions) -> int:
    """Runs a policy, a filter's plan, or a plan made before, and prints what came of it; returns the exit status.

    Where no panel serves, nobody else purges what has waited in quarantine for its time: that is done first.
    0 succeeded or nothing to do, 1 insufficient or stopped at a limit, 3 failed, cancelled or interrupted. Raises as
    `plan`.
    """
    _check(options)
    with _where(options) as panel:
        if due := panel.purge_due():
            say(
                f"purged first: the quarantine of {due} run{'' if due == 1 else 's'}, whose time was over",
                file=sys.stderr,
            )
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
        warnings = panel.get_plan(run["plan_id"])["warnings"] if run["plan_id"] else ()
    for warning in warnings:
        say(f"warning: {warning}", file=sys.stderr)
    if options.as_json:
        print(json.dumps(run, indent=2))
    else:
        _print_run(run)
        say_where("the run", options.url, f"/cleanup/runs/{run['id']}", matters=exit_status(run) != EXIT_DONE)
    return exit_status(run)


def exit_status(run: Mapping[str, Any]) -> int:
    """By the verdict; a run without one did not end by itself."""
    return _EXIT.get(run["verdict"] or "", EXIT_TROUBLE)


def _check(options: CleanOptions, *, may_run_a_plan: bool = True) -> None:
    ways = [("--policy", options.policy), ("--store", options.store), ("--plan", options.plan)]
    chosen = [name for name, value in ways if value]
    for option, text in (*ways, *(("--filter", text) for text in options.filters)):
        if text is not None and any("\ud800" <= c <= "\udfff" for c in text):
            raise InvalidInput.field(option, f"{text!r} is not UTF-8 text")
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
        if name in given:
            message = (
                f"{name!r} is given twice ({given[name]!r} and {value!r}): give it once, with commas between values "
                "where it takes several, such as class=corrupt,unreachable"
            )
            raise InvalidInput.field("--filter", message)
        given[name] = value
    try:
        body: dict[str, Any] = {"filter": given, "removal": options.removal}
        if options.quarantine_for is not None:
            body["quarantine_for"] = None if options.quarantine_for == "ever" else options.quarantine_for
        return FilterPlanInput.model_validate(body)
    except ValidationError as error:
        found = tuple(
            FieldError(_option(str(location(e)[0])), f"{e['msg']} ({e['input']!r})"[:300]) for e in error.errors()
        )
        raise InvalidInput("; ".join(f"{f.field}: {f.message}" for f in found), errors=found) from None


def _option(field: str) -> str:
    """``quarantine_for`` is ``--quarantine-for``; ``filter.class`` is ``--filter class``."""
    name, _, part = field.partition(".")
    return f"--{name.replace('_', '-')}{f' {part}' if part else ''}"


def _make_plan(panel: Panel, options: CleanOptions) -> dict[str, Any]:
    if options.policy is not None:
        made = panel.plan_policy(panel.policy_id(options.policy))
    else:
        store_id, body = panel.store_id(options.store or ""), filter_body(options)
        with naming_options(_option):
            made = panel.plan_filter(store_id, body)
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
            say("cancelling …", file=sys.stderr)
            panel.cancel(kind, work["id"])
    return work


def _records(number: int) -> str:
    return f"{number} record{'' if number == 1 else 's'}"


def _print_plan(made: Mapping[str, Any], items: list[Mapping[str, Any]]) -> None:
    if made["state"] != "succeeded":
        return
    say(f"plan {made['id']}: {_records(made['records'])}, {disk_size(made['bytes'])} would go")
    for reason, count in sorted(made["by_reason"].items(), key=lambda pair: -pair[1]["bytes"]):
        say(f"  {reason}: {_records(count['records'])}, {disk_size(count['bytes'])}")
    for reason, count in sorted(made["held_back"].items()):
        say(f"  stays ({reason}): {_records(count['records'])}, {disk_size(count['bytes'])}")
    if made["leaves"]:
        free = made["leaves"]["free_bytes"]
        told = "free space unknown" if free is None else f"{disk_size(free)} free"
        say(f"  leaves {_records(made['leaves']['records'])}, {disk_size(made['leaves']['bytes'])}; {told}")
    width = shutil.get_terminal_size((plan_listing.WIDTH, 0)).columns
    for line in plan_listing.lines(items, made["records"], width=width - 2):
        say(f"  {line}")
    if made["policy_id"] is not None and DIRTY_REASONS & made["by_reason"].keys():
        say("  a policy that takes derived records adds, while it runs, what was computed behind these")
    for warning in made["warnings"]:
        say(f"warning: {warning}", file=sys.stderr)
    if made["records"]:
        say(f"to carry it out until {made['expires_at']}: tierkeeper clean --plan {made['id']}")


def _print_run(run: Mapping[str, Any]) -> None:
    word = run["verdict"] or run["state"]
    freed = run["freed_bytes_measured"]
    told = ""
    if freed is not None and not run["deleted_bytes"]:
        told = "; no space was freed (quarantine frees none)" if run["in_quarantine"]["records"] else ""
    elif freed is not None:
        change = "more" if freed >= 0 else "less"
        whose = "others' writes and the panel's own files included"
        told = f"; the file system has {disk_size(abs(freed))} {change} free than before, {whose}"
    removed = run["removed"]
    say(f"{word}: run {run['id']} removed {_records(removed['records'])}, {disk_size(removed['bytes'])}{told}")
    for reason, count in sorted(run["by_reason"].items(), key=lambda pair: -pair[1]["bytes"]):
        say(f"  {reason}: {_records(count['records'])}, {disk_size(count['bytes'])}")
    for reason, number in sorted(run["skipped"].items()):
        say(f"  skipped ({reason}): {number}")
    if run["in_quarantine"]["records"]:
        say(f"  in quarantine: {_records(run['in_quarantine']['records'])}, {run['quarantine_folder']}; {_purged(run)}")
    for line in _failures(run):
        say(line, file=sys.stderr)
    for note in (*run["notes"], *([run["error"]] if run["error"] and run["error"] not in run["notes"] else [])):
        say(note, file=sys.stderr)


def _failures(run: Mapping[str, Any]) -> Iterator[str]:
    """What could not be removed, one line for each error: thousands of files of one kind fail alike."""
    alike: dict[tuple[str, int | None], list[str]] = {}
    for item in run["failed"]:
        alike.setdefault((item["message"], item["errno"]), []).append(item["name"])
    for (message, number), names in alike.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"failed: {message} (errno {number}): {', '.join(map(repr, names[:_NAMED]))}{more}"
    if unnamed := run["failed_total"] - len(run["failed"]):
        yield f"failed: {unnamed} more, which the list of the run's records has"


def _purged(run: Mapping[str, Any]) -> str:
    if run["purge_after"] is None:
        return "kept until somebody purges it (on the run's page, or POST /api/v1/cleanup-runs/ID/purge)"
    return f"purged after {run['purge_after']} by a panel that serves, else by the next tierkeeper clean"


@contextmanager
def _where(options: CleanOptions) -> Iterator[Panel]:
    if options.url is not None:
        with remote_panel(options.url, options.token) as panel:
            yield RemoteDesk(panel)
        return
    # What is declared needs no panel to have been here before: the manifest under deploy/ has none.
    declared = load_settings().targets_file is not None
    with command_services(create=declared) as services:
        apply_targets_file(services)
        keep_program()
        services.runner.start()
        try:
            yield LocalDesk(services)
        finally:
            services.runner.stop()
