"""`tierkeeper check`: the settings to verify of one server-engine pair, or of texts before anything is started.

Plain addresses need no database and no running panel (where there is one that knows them, its stores, policies and keys
count); names and ids are looked up in the data directory. With a URL and a token the panel there looks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.checks import host
from app.checks.assemble import ENGINE_MARKER, SERVER_MARKER, Texts
from app.checks.commands import check_texts
from app.checks.direct import check_targets
from app.checks.schemas import CheckView
from app.checks.views import finding_view
from app.commands.check_remote import RemoteRequest, check_at_panel
from app.commands.check_targets import engine_request, server_request
from app.commands.panel_link import say_where
from app.errors import InvalidInput
from app.printable import say, say_lines

_MARKS = {"fail": "FAIL", "warn": "warn", "unknown": "  ? ", "ok": " ok "}


@dataclass(frozen=True)
class CheckOptions:
    """What the command was given. Files are paths, ``-`` is stdin. `url` and `token` choose a running panel."""

    server: str | None = None
    engine: str | None = None
    also: tuple[str, ...] = ()
    log: str | None = None
    server_log: str | None = None
    environment: str | None = None
    commands: str | None = None
    write_probe: bool = True
    all_verdicts: bool = False
    as_json: bool = False
    url: str | None = None
    token: str | None = None


def check_command(options: CheckOptions) -> int:
    """Prints the verdicts, worst first. Exit status: 0 no fail, 1 any fail, 3 a target does not answer.

    Raises InvalidInput for options that cannot be used.
    """
    engine_log = _log(options.log, "--log", ENGINE_MARKER)
    server_log = _log(options.server_log, "--server-log", SERVER_MARKER)
    environment = _text(options.environment, "--environment")
    commands = _text(options.commands, "--commands")
    if options.url is not None:
        return _at_panel(
            options,
            RemoteRequest(
                url=options.url,
                token=options.token,
                server=options.server,
                engine=options.engine,
                engine_log=engine_log,
                server_log=server_log,
                environment=environment,
                commands=commands,
                write_probe=options.write_probe,
            ),
        )
    if options.server is None and options.engine is None:
        if not (engine_log or server_log or environment or commands):
            raise InvalidInput.field("--server", "give --server URL, --engine URL, or texts (--commands, --log, …)")
        found = check_texts(commands=commands, environment=environment, engine_log=engine_log, server_log=server_log)
        views = [finding_view(item) for item in found]
        _print(views, options)
        return _status(views)
    server = None if options.server is None else server_request(options.server, Texts(log=server_log))
    engine = (
        None
        if options.engine is None
        else engine_request(options.engine, Texts(log=engine_log, environment=environment))
    )
    result = check_targets(
        server,
        engine,
        others=[server_request(item, Texts(), field="--also") for item in options.also],
        commands=commands,
        write_probe=options.write_probe,
    )
    views = [finding_view(item) for item in result.findings]
    _print(views, options)
    return _silent(result.unreachable) or _status(views)


def _at_panel(options: CheckOptions, request: RemoteRequest) -> int:
    if options.also:
        raise InvalidInput.field("--also", "is for plain addresses: a panel compares all of its servers anyway")
    views = check_at_panel(request)
    _print(views, options)
    if not options.as_json:
        say_where("the checks", request.url, "/checks", matters=False)
    silent = [item.subject for item in views if item.id == "reachable" and item.effective == "no answer"]
    return _silent(silent) or _status(views)


def _silent(names: Sequence[str]) -> int:
    if names:
        say(f"tierkeeper: no answer from {', '.join(names)}", file=sys.stderr)
    return 3 if names else 0


def _status(views: Sequence[CheckView]) -> int:
    return 1 if any(item.verdict == "fail" for item in views) else 0


def _text(path: str | None, option: str) -> str:
    if path is None:
        return ""
    if path == "-":
        return sys.stdin.read()
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError as error:
        raise InvalidInput.field(option, f"{path} cannot be read ({error.strerror})") from error


def _log(path: str | None, option: str, marker: bytes) -> str:
    if path is None or path == "-":
        return _text(path, option)
    try:
        return host.read_log(Path(path), marker)
    except OSError as error:
        raise InvalidInput.field(option, f"{path} cannot be read ({error.strerror or error})") from error


def _print(views: Sequence[CheckView], options: CheckOptions) -> None:
    if options.as_json:
        shown = [item.model_dump(mode="json", exclude=_NOT_KEPT) for item in views]
        print(json.dumps({"checks": shown}, indent=2 if sys.stdout.isatty() else None))
        return
    hidden = 0
    for item in views:
        if item.verdict == "ok" and not options.all_verdicts:
            hidden += 1
            continue
        say(f"{_MARKS[item.verdict]}  {item.title}  [{item.id}: {item.subject}]")
        say_lines(f"      {item.evidence}")
        if item.configured is not None or item.effective is not None:
            read = f" (read from {item.origin})" if item.origin else ""
            say(f"      set: {item.configured or 'not told'}; in force: {item.effective or 'not told'}{read}")
        if item.fix:
            say_lines(f"      fix: {item.fix}")
    if hidden:
        say(f"{hidden} checks are ok (--all shows them)")


#: Of a kept finding only.
_NOT_KEPT = {"server_id", "engine_id", "since", "checked_at"}
