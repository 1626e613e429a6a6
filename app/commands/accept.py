"""`tierkeeper accept`: one acceptance run, waited for, with a one-line verdict and an exit status for pipelines.

On the data directory the run is carried out in this process, beside a running panel or without one; with a URL and a
token the panel there carries it out. Ctrl-C cancels the run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml
from pydantic import ValidationError

from app.acceptance.own_prompts import as_prompts, json_lines, prompts_in
from app.acceptance.schemas import AcceptanceRequest, ToleranceInput
from app.commands.context import COMMAND_PRINCIPAL, command_services
from app.commands.files import MOST_PROMPTS, read_named
from app.commands.lists import numbers_of, parts_of
from app.commands.option_names import naming_options
from app.commands.panel_link import say_where
from app.commands.remote_panel import RemotePanel, remote_panel
from app.errors import FieldError, InvalidInput
from app.printable import say
from app.services import Services
from app.wording import location

EXIT_PASS, EXIT_NOT_PASSED, EXIT_TROUBLE = 0, 1, 3
_EXIT = {
    "pass": EXIT_PASS,
    "pass_with_near_ties": EXIT_PASS,
    "fail": EXIT_NOT_PASSED,
    "invalid": EXIT_NOT_PASSED,
    "timeout": EXIT_NOT_PASSED,
}
_ACTIVE = ("queued", "running")
_WAIT_SECONDS = 20.0
_CALL_SECONDS = 90.0
_REPORTS = {".json": "json", ".xml": "xml", ".html": "html", ".md": "md"}


@dataclass(frozen=True)
class AcceptOptions:
    """The command's options. `url` and `token` choose the panel; without them the data directory is used."""

    engine: str
    second_engine: str | None = None
    profile: str = "quick"
    arms: str | None = None
    prompts: Path | None = None
    api: str = "completions"
    mode: str | None = None
    lengths: str | None = None
    concurrency: int = 1
    deadline: float | None = None
    request_timeout: float | None = None
    tolerance: str | None = None
    allow_clear_l1: bool = False
    keep_records: bool = False
    restart_hook: str | None = None
    report: tuple[Path, ...] = ()
    as_json: bool = False
    url: str | None = None
    token: str | None = None


class Runs(Protocol):
    """Where the run takes place: this process or a panel."""

    def engine_id(self, name_or_id: str) -> str: ...

    def start(self, body: dict[str, Any]) -> dict[str, Any]: ...

    def wait(self, run_id: str, seconds: float) -> dict[str, Any]: ...

    def cancel(self, run_id: str) -> None: ...

    def report(self, run_id: str, form: str) -> str: ...


def accept(options: AcceptOptions) -> int:
    """Runs the test, prints the verdict (or the run as JSON), writes the reports; returns the exit status.

    Raises InvalidInput and NotFound for what the caller got wrong, other TierkeeperErrors for what cannot be reached.
    """
    for path in options.report:
        if path.suffix not in _REPORTS:
            raise InvalidInput.field("--report", f"{path} must end in {', '.join(_REPORTS)}")
    body = request_body(options)
    with _where(options) as runs:
        body["engine_id"] = runs.engine_id(options.engine)
        if options.second_engine is not None:
            body["second_engine_id"] = runs.engine_id(options.second_engine)
        _check(body)
        with naming_options(option):
            started = runs.start(body)
        run = _to_the_end(runs, started)
        for path in options.report:
            _write(path, runs.report(run["id"], _REPORTS[path.suffix]))
    if options.as_json:
        print(json.dumps(run, indent=2))
    else:
        say(one_line(run))
        for reason in run["reasons"]:
            say(f"  {reason}", file=sys.stderr)
        say_where("  the run", options.url, f"/acceptance/runs/{run['id']}", matters=exit_status(run) != EXIT_PASS)
    return exit_status(run)


def exit_status(run: Mapping[str, Any]) -> int:
    """0 for a pass, 1 for fail, invalid and timeout, 3 for error, cancelled and interrupted."""
    return _EXIT.get(run["verdict"] or "", EXIT_TROUBLE)


def one_line(run: Mapping[str, Any]) -> str:
    """``fail: engine-a (run 12, 41.3 s): external_l2: 3 of 4 answers differ…``"""
    word = run["verdict"] or run["state"]
    seconds = f", {run['duration_seconds']:.1f} s" if run["duration_seconds"] is not None else ""
    told = run["headline"] or run["error"] or ""
    return f"{word}: {run['engine_name']} (run {run['id']}{seconds}){': ' + told if told else ''}"


def request_body(options: AcceptOptions) -> dict[str, Any]:
    """The body of POST /acceptance-runs but for the engines' ids. Raises InvalidInput naming the option."""
    body: dict[str, Any] = {
        "engine_id": "0",
        "profile": options.profile,
        "api": options.api,
        "concurrency": options.concurrency,
        "allow_clear_l1": options.allow_clear_l1,
        "remove_records": not options.keep_records,
    }
    if options.arms is not None:
        body["arms"] = parts_of("--arms", options.arms, "warm,external_l1")
    if options.mode is not None:
        body["mode"] = options.mode
    if options.lengths is not None:
        body["lengths"] = numbers_of("--lengths", options.lengths, "63,64,65")
    if options.deadline is not None:
        body["deadline_seconds"] = options.deadline
    if options.request_timeout is not None:
        body["request_timeout_seconds"] = options.request_timeout
    if options.tolerance is not None:
        body["tolerance"] = _tolerance(options.tolerance)
    if options.restart_hook is not None:
        body["restart_hook_id"] = options.restart_hook
    if options.prompts is not None:
        body["prompts"] = read_prompts(options.prompts)
    _check(body)
    return body


def _tolerance(text: str) -> dict[str, float]:
    """``max_abs_nats=0.05,max_score_drop=0.1`` as the body's object; bounds are checked with the rest of it."""
    names = ", ".join(ToleranceInput.model_fields)
    found: dict[str, float] = {}
    for part in parts_of("--tolerance", text, "max_abs_nats=0.05,max_score_drop=0.1"):
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            number = float(value)
        except ValueError:
            raise InvalidInput.field("--tolerance", f"{part!r} is not NAME=NUMBER; names are {names}") from None
        if name not in ToleranceInput.model_fields:
            raise InvalidInput.field("--tolerance", f"{name!r} is none of {names}")
        if name in found:
            raise InvalidInput.field("--tolerance", f"{name!r} is given twice in {text!r}; give it once")
        found[name] = number
    return found


def _check(body: Mapping[str, Any]) -> None:
    try:
        AcceptanceRequest.model_validate(body)
    except ValidationError as error:
        found = tuple(
            FieldError(option(str(location(e)[0])), f"{e['msg']} ({e['input']!r})"[:300]) for e in error.errors()
        )
        raise InvalidInput("; ".join(f"{f.field}: {f.message}" for f in found), errors=found) from None


#: Fields of the request whose option has another name.
_OPTIONS = {
    "deadline_seconds": "--deadline",
    "request_timeout_seconds": "--request-timeout",
    "restart_hook_id": "--restart-hook",
    "second_engine_id": "--second-engine",
    "engine_id": "--engine",
    "remove_records": "--keep-records",
}


def option(field: str) -> str:
    """The option that sets this field of the request: ``tolerance.max_abs_nats`` is set by ``--tolerance``."""
    name = field.split(".")[0].split("[")[0]
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """Prompts from a JSON or YAML list, JSON lines, or one a line: texts, or objects as `prompts` of
    POST /acceptance-runs.

    Raises InvalidInput for a file that cannot be read or holds something else.
    """
    text = read_named(path, "--prompts", most=MOST_PROMPTS)
    if path.suffix in (".yaml", ".yml"):
        try:
            return as_prompts(yaml.safe_load(text), "--prompts")
        except yaml.YAMLError as error:
            raise InvalidInput.field("--prompts", f"{path} is no YAML: {error}") from None
    if path.suffix == ".json":
        try:
            return as_prompts(json.loads(text), "--prompts")
        except ValueError as error:
            raise InvalidInput.field("--prompts", f"{path} is no JSON: {error}") from None
    return json_lines(text, "--prompts") if path.suffix == ".jsonl" else prompts_in(text, field="--prompts")


def _to_the_end(runs: Runs, run: dict[str, Any]) -> dict[str, Any]:
    """Waits for the run's end; Ctrl-C cancels it and waits for that."""
    try:
        while run["state"] in _ACTIVE:
            run = runs.wait(run["id"], _WAIT_SECONDS)
    except KeyboardInterrupt:
        say("cancelling the run …", file=sys.stderr)
        runs.cancel(run["id"])
        while run["state"] in _ACTIVE:
            run = runs.wait(run["id"], _WAIT_SECONDS)
    return run


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise InvalidInput.field("--report", f"{path} cannot be written: {error.strerror}") from None


@contextmanager
def _where(options: AcceptOptions) -> Iterator[Runs]:
    if options.url is not None:
        with remote_panel(options.url, options.token, timeout=_CALL_SECONDS) as panel:
            yield _Remote(panel)
    else:
        with command_services() as services:
            services.runner.start()
            try:
                yield _Local(services)
            finally:
                services.runner.stop()


class _Local:
    """Runs in this process, on the data directory."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def engine_id(self, name_or_id: str) -> str:
        return str(self._services.fleet.find("engine", name_or_id))

    def start(self, body: dict[str, Any]) -> dict[str, Any]:
        request = AcceptanceRequest.model_validate(body)
        return self._services.acceptance.start(request, actor=COMMAND_PRINCIPAL.actor).model_dump()

    def wait(self, run_id: str, seconds: float) -> dict[str, Any]:
        return self._services.acceptance.get(int(run_id), wait=seconds).model_dump()

    def cancel(self, run_id: str) -> None:
        self._services.acceptance.cancel(int(run_id), actor=COMMAND_PRINCIPAL.actor)

    def report(self, run_id: str, form: str) -> str:
        return self._services.acceptance.report(int(run_id), form)[0]


class _Remote:
    """Runs at a panel, through its API."""

    def __init__(self, panel: RemotePanel) -> None:
        self._panel = panel

    def engine_id(self, name_or_id: str) -> str:
        return self._panel.find("/engines", "engine", name_or_id)

    def start(self, body: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._panel.call("POST", "/acceptance-runs", json=body)
        return found

    def wait(self, run_id: str, seconds: float) -> dict[str, Any]:
        found: dict[str, Any] = self._panel.call("GET", f"/acceptance-runs/{run_id}", params={"wait": str(seconds)})
        return found

    def cancel(self, run_id: str) -> None:
        self._panel.call("POST", f"/acceptance-runs/{run_id}/cancel")

    def report(self, run_id: str, form: str) -> str:
        return self._panel.text(f"/acceptance-runs/{run_id}/report.{form}")
