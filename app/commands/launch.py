"""`tierkeeper launch`: command lines, containers and unit files for one server-engine pair, judged by the checks."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from app.checks.commands import check_texts
from app.checks.views import finding_view
from app.errors import InvalidInput
from app.launch.schemas import LaunchInput, LaunchView
from app.launch.service import LaunchService
from app.wording import json_trouble, location, sentence

FORMS = ("shell", "docker", "compose", "systemd")


@dataclass(frozen=True)
class LaunchOptions:
    """What the command was given. `form` is a JSON file with the body of POST /launch-commands, which the other options
    override; `output` a folder to write the files into.
    """

    model: str | None = None
    l1_gib: float | None = None
    base_path: str | None = None
    chunk_size: int | None = None
    hybrid_block_tokens: int | None = None
    tensor_parallel: int | None = None
    device: str | None = None
    server: str | None = None
    engine: str | None = None
    form: str | None = None
    only: str | None = None
    output: str | None = None
    as_json: bool = False


def launch_command(options: LaunchOptions) -> int:
    """Prints or writes the files. Exit status: 0, or 1 where a check fails. Raises InvalidInput naming the option."""
    if options.only is not None and options.only not in FORMS:
        raise InvalidInput.field("--form", f"{options.only!r} is none of {', '.join(FORMS)}")
    view = _generate(options)
    if options.as_json:
        print(json.dumps(view.model_dump(mode="json"), indent=2 if sys.stdout.isatty() else None))
    elif options.output is not None:
        _write(view, options)
    else:
        _print(view, options.only or "shell")
    return 1 if any(item.verdict == "fail" for item in view.checks) else 0


def checker(text: str) -> list[Any]:
    """The checks room's verdicts on generated text."""
    return [finding_view(item) for item in check_texts(commands=text)]


def _generate(options: LaunchOptions) -> LaunchView:
    body = _body(options)
    if options.server is None and options.engine is None:
        return LaunchService(check=checker).generate(body)
    from app.commands.context import command_services

    with command_services() as services:
        update: dict[str, Any] = {}
        if options.server is not None:
            update["server_id"] = str(services.fleet.find("server", options.server))
        if options.engine is not None:
            update["engine_id"] = str(services.fleet.find("engine", options.engine))
        return LaunchService(check=checker, fleet=services.fleet).generate(body.model_copy(update=update))


def _body(options: LaunchOptions) -> LaunchInput:
    body: dict[str, Any] = {}
    if options.form is not None:
        try:
            text = sys.stdin.read() if options.form == "-" else Path(options.form).read_text("utf-8")
            body = json.loads(text)
        except OSError as error:
            raise InvalidInput.field("--from", f"{options.form} cannot be read ({error.strerror})") from error
        except (ValueError, RecursionError) as error:
            raise InvalidInput.field("--from", f"{options.form} {json_trouble(error)}") from None
        if not isinstance(body, dict):
            raise InvalidInput.field("--from", "must be a JSON object, as POST /launch-commands takes it")
    for side, name, value in (
        ("engine", "model", options.model),
        ("engine", "hybrid_block_tokens", options.hybrid_block_tokens),
        ("engine", "tensor_parallel", options.tensor_parallel),
        ("server", "l1_gib", options.l1_gib),
        ("server", "chunk_size", options.chunk_size),
    ):
        if value is not None:
            body.setdefault(side, {})[name] = value
    if options.base_path is not None:
        body.setdefault("server", {}).setdefault("store", {})["base_path"] = options.base_path
    if options.device is not None:
        body["device"] = options.device
    pair = any((options.server, options.engine, body.get("server_id"), body.get("engine_id")))
    if not pair and "model" not in body.get("engine", {}):
        raise InvalidInput.field("--model", "is needed: the model's path or name")
    if not pair and "l1_gib" not in body.get("server", {}):
        raise InvalidInput.field("--l1-gib", "is needed: how much memory the cache may take (tierkeeper size says it)")
    try:
        return LaunchInput.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput.field(".".join(str(part) for part in location(first)), sentence(first)) from None


def _print(view: LaunchView, form: str) -> None:
    for item in view.files:
        if item.form == form:
            print(f"# ---- {item.name} (scenario {item.scenario}): {item.how}\n{item.text}")
    _verdicts(view)


def _write(view: LaunchView, options: LaunchOptions) -> None:
    folder = Path(options.output or ".")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for item in view.files:
            if options.only in (None, item.form):
                path = folder / item.name
                path.write_text(item.text, "utf-8")
                if path.suffix == ".sh":
                    path.chmod(0o755)
                print(path)
    except OSError as error:
        raise InvalidInput.field("--output", f"{folder} cannot be written ({error.strerror})") from error
    _verdicts(view)


def _verdicts(view: LaunchView) -> None:
    for note in view.notes:
        print(f"# note: {note}", file=sys.stderr)
    for item in view.checks:
        if item.verdict in ("fail", "warn"):
            print(f"# {item.verdict}: {item.title}: {item.evidence}. {item.fix}", file=sys.stderr)
