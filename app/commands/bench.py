"""`tierkeeper bench`: one benchmark run, waited for, with its conclusion, its tables and an exit status for pipelines.

On the data directory the run is carried out in this process, beside a running panel or without one; with a URL and a
token the panel there carries it out. Ctrl-C cancels the run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from app.benchmark.exports import FORMS as EXPORTS
from app.benchmark.prompt_files import parse_prompts
from app.benchmark.schemas import BenchmarkInput
from app.benchmark.verdict import Finding, by_kind
from app.commands.context import COMMAND_PRINCIPAL, command_services
from app.commands.files import MOST_PROMPTS, read_named
from app.commands.lists import numbers_of
from app.commands.panel_link import say_where
from app.commands.remote_panel import RemotePanel, remote_panel
from app.errors import FieldError, InvalidInput
from app.printable import say, say_lines
from app.services import Services

EXIT_VALID, EXIT_INVALID, EXIT_TROUBLE = 0, 1, 3
_EXIT = {"valid": EXIT_VALID, "invalid": EXIT_INVALID}
_ACTIVE = ("queued", "running")
_WAIT_SECONDS = 20.0
_CALL_SECONDS = 90.0


@dataclass(frozen=True)
class BenchOptions:
    """The command's options. `fields`: those of POST /benchmark-runs that were given. `export`: files to write."""

    engine: str
    baseline_engine: str | None = None
    readers: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    prompts_file: Path | None = None
    export: tuple[Path, ...] = ()
    tables: bool = False
    as_json: bool = False
    url: str | None = None
    token: str | None = None


class Runs(Protocol):
    """Where the run takes place: this process or a panel."""

    def engine_id(self, name_or_id: str) -> str: ...

    def start(self, body: dict[str, Any]) -> dict[str, Any]: ...

    def wait(self, run_id: str, seconds: float) -> dict[str, Any]: ...

    def cancel(self, run_id: str) -> None: ...

    def export(self, run_id: str, form: str) -> Iterator[str]: ...


def bench(options: BenchOptions) -> int:
    """Runs the benchmark, prints its conclusion (or the run as JSON), writes the exports; returns the exit status.

    Raises InvalidInput and NotFound for what the caller got wrong, other TierkeeperErrors for what cannot be reached.
    """
    for path in options.export:
        if path.suffix.lstrip(".") not in EXPORTS:
            raise InvalidInput.field("--export", f"{path} must end in {', '.join('.' + form for form in EXPORTS)}")
    body = {name: value for name, value in options.fields.items() if value is not None}
    if options.prompts_file is not None:
        body["texts"] = read_prompts(options.prompts_file, limit=body.get("prompts") or 1024)
    _check({"engine_id": "0", **body})
    with _where(options) as runs:
        body["engine_id"] = runs.engine_id(options.engine)
        if options.baseline_engine is not None:
            body["baseline_engine_id"] = runs.engine_id(options.baseline_engine)
        if options.readers:
            body["reader_engine_ids"] = [runs.engine_id(name) for name in options.readers]
        run = _to_the_end(runs, runs.start(body))
        for path in options.export:
            _write(path, runs.export(run["id"], path.suffix.lstrip(".")))
        tables = "".join(runs.export(run["id"], "txt")) if options.tables else ""
    if options.as_json:
        print(json.dumps(run, indent=2))
    else:
        if tables:
            say_lines(tables)
        say(one_line(run))
        if run["scope"] is not None and not tables:  # the tables begin with it
            say(run["scope"]["sentence"])
        for kind in by_kind(Finding(**finding) for finding in run["findings"]):
            if kind[0].severity != "note":
                more = f" (and {len(kind) - 1} more of this kind)" if len(kind) > 1 else ""
                say(f"  {kind[0].told(more)}", file=sys.stderr)
        say_where("  the run", options.url, f"/benchmark/runs/{run['id']}", matters=exit_status(run) != 0)
    return exit_status(run)


def restart_of(target: str | None, hook_id: str | None) -> dict[str, Any] | None:
    """The `restart` of a request from two options; None without either."""
    if target is None and hook_id is None:
        return None
    return {"target": target or "both", "hook_id": hook_id}


def lookup_of(records: str | None, *, allow_fill: bool) -> dict[str, Any] | None:
    """The `lookup` of a request from ``1000,10000``. Raises InvalidInput."""
    if records is None:
        return None
    return {"records": numbers_of("--records", records, "1000,10000"), "allow_fill": allow_fill}


def exit_status(run: Mapping[str, Any]) -> int:
    """0 for a valid run, whatever it measured, 1 for an invalid one, 3 for error, cancelled and interrupted."""
    return _EXIT.get(run["verdict"] or "", EXIT_TROUBLE)


def one_line(run: Mapping[str, Any]) -> str:
    """``valid: engine-a (run 12, 41.3 s): The cache pays: 1.95 times as fast. …``"""
    word = run["verdict"] or run["state"]
    seconds = f", {run['duration_seconds']:.1f} s" if run["duration_seconds"] is not None else ""
    told = run["headline"] or run["error"] or ""
    return f"{word}: {run['engine_name']} (run {run['id']}{seconds}){': ' + told if told else ''}"


def read_prompts(path: Path, *, limit: int) -> list[str]:
    """The first prompts of a file, as `parse_prompts` reads it. Raises InvalidInput for anything else."""
    raw = read_named(path, "--prompts-file", most=MOST_PROMPTS)
    try:
        return parse_prompts(raw, limit=limit)
    except ValueError as error:
        raise InvalidInput.field("--prompts-file", f"{path} {error}") from None


def _check(body: Mapping[str, Any]) -> None:
    try:
        BenchmarkInput.model_validate(body)
    except ValidationError as error:
        found = tuple(
            FieldError(f"--{str(e['loc'][0]).replace('_', '-')}", f"{e['msg']} ({e['input']!r})"[:300])
            for e in error.errors()
        )
        raise InvalidInput("; ".join(f"{f.field}: {f.message}" for f in found), errors=found) from None


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


def _write(path: Path, pieces: Iterator[str]) -> None:
    try:
        with path.open("w", encoding="utf-8") as target:
            target.writelines(pieces)
    except OSError as error:
        raise InvalidInput.field("--export", f"{path} cannot be written: {error.strerror}") from None


@contextmanager
def _where(options: BenchOptions) -> Iterator[Runs]:
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
        request = BenchmarkInput.model_validate(body)
        return self._services.benchmark.start(request, actor=COMMAND_PRINCIPAL.actor).model_dump(mode="json")

    def wait(self, run_id: str, seconds: float) -> dict[str, Any]:
        return self._services.benchmark.get(int(run_id), wait=seconds).model_dump(mode="json")

    def cancel(self, run_id: str) -> None:
        self._services.benchmark.cancel(int(run_id), actor=COMMAND_PRINCIPAL.actor)

    def export(self, run_id: str, form: str) -> Iterator[str]:
        return self._services.benchmark.export(int(run_id), form)[0]


class _Remote:
    """Runs at a panel, through its API."""

    def __init__(self, panel: RemotePanel) -> None:
        self._panel = panel

    def engine_id(self, name_or_id: str) -> str:
        return self._panel.find("/engines", "engine", name_or_id)

    def start(self, body: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._panel.call("POST", "/benchmark-runs", json=body)
        return found

    def wait(self, run_id: str, seconds: float) -> dict[str, Any]:
        found: dict[str, Any] = self._panel.call("GET", f"/benchmark-runs/{run_id}", params={"wait": str(seconds)})
        return found

    def cancel(self, run_id: str) -> None:
        self._panel.call("POST", f"/benchmark-runs/{run_id}/cancel")

    def export(self, run_id: str, form: str) -> Iterator[str]:
        yield self._panel.text(f"/benchmark-runs/{run_id}/export.{form}")
