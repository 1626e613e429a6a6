"""The `tierkeeper` command. Each command's body lives in `app.commands`; this file names options and exit statuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from app import __version__
from app.auth.schemas import TokenInput, UserInput
from app.errors import InvalidInput, NotFound, TierkeeperError

cli = typer.Typer(
    name="tierkeeper",
    help="Operations panel for LMCache: health, disk inventory, safe cleanup and acceptance tests.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
token_cli = typer.Typer(help="API tokens for programs.", no_args_is_help=True)
user_cli = typer.Typer(help="People who sign in.", no_args_is_help=True)
cli.add_typer(token_cli, name="token")
cli.add_typer(user_cli, name="user")

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tierkeeper {__version__}")
        raise typer.Exit


@cli.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Settings come from the environment or .env, prefix TIERKEEPER_ (docs/SETTINGS.md)."""


@cli.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (TIERKEEPER_HOST).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (TIERKEEPER_PORT); 0 takes a free one.")] = None,
) -> None:
    """Serve the panel."""
    from app.commands.serve import serve as run
    from app.settings import load_settings

    run(load_settings(host=host, port=port))


@cli.command()
def demo(
    host: Annotated[str | None, typer.Option(help="Address to listen on (TIERKEEPER_HOST).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (TIERKEEPER_PORT); 0 takes a free one.")] = None,
) -> None:
    """Serve the panel with the sandbox: a simulated cache server and engine over a real directory."""
    from app.commands.demo import demo as run
    from app.settings import load_settings

    run(load_settings(host=host, port=port))


@cli.command()
def migrate() -> None:
    """Bring the database to this version's schema."""
    from app.commands.context import command_services
    from app.migrate import head_revision

    with command_services():
        print(f"database at {head_revision()}")


@token_cli.command("create")
def token_create(
    name: Annotated[str, typer.Option(help="A name that says who uses it.")],
    role: Annotated[str, typer.Option(help="viewer, operator or admin.")],
    expires_in_days: Annotated[float | None, typer.Option(help="Days until it ends; without it, never.")] = None,
    as_json: Json = False,
) -> None:
    """Make an API token; only the token is printed on stdout."""
    from app.commands.context import COMMAND_PRINCIPAL, command_services

    body = _validated(TokenInput, name=name, role=role, expires_in_days=expires_in_days)
    with command_services() as services:
        view = services.auth.create_token(body, actor=COMMAND_PRINCIPAL.actor)
    print(json.dumps(view.model_dump()) if as_json else view.token)


@user_cli.command("create")
def user_create(
    username: Annotated[str, typer.Option(help="Name to sign in with.")],
    role: Annotated[str, typer.Option(help="viewer, operator or admin.")],
    password_file: Annotated[
        Path | None, typer.Option(help="File with the password; without it you are asked (or stdin is read).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a user."""
    from app.commands.context import COMMAND_PRINCIPAL, command_services

    if password_file is not None:
        try:
            password = password_file.read_text("utf-8").rstrip("\n")
        except OSError as error:
            raise InvalidInput.field("--password-file", f"{password_file} cannot be read ({error.strerror})") from error
    elif sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    body = _validated(UserInput, username=username, role=role, password=password)
    with command_services() as services:
        view = services.auth.create_user(body, actor=COMMAND_PRINCIPAL.actor)
    print(json.dumps(view.model_dump()) if as_json else f"user {view.username} ({view.role}) made")


@cli.command()
def backup(
    target: Annotated[Path, typer.Argument(help="File to write; must not exist.")],
) -> None:
    """Copy the database while the panel runs (SQLite's online backup)."""
    from app.commands.backup import backup as run

    print(run(target))


def _validated(model: type[Any], **values: Any) -> Any:
    """A request body from command options; InvalidInput names the option."""
    from pydantic import ValidationError

    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + "-".join(str(part) for part in first["loc"]).replace("_", "-")
        raise InvalidInput.field(option, f"{first['msg']}") from None


def main() -> None:
    """Entry point: one line on stderr for an error of ours, never a traceback."""
    try:
        cli(standalone_mode=True)
    except TierkeeperError as error:
        print(f"tierkeeper: {error.detail}", file=sys.stderr)
        # Usage errors end 2; what could not be reached or done ends 3.
        sys.exit(2 if isinstance(error, InvalidInput | NotFound) else 3)
    except KeyboardInterrupt:
        sys.exit(3)
