"""The `tierkeeper` command. Each command's body lives in `app.commands`; this file names options and exit statuses."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from app import __version__, cli_tools
from app.cli_options import Filters, Json, PasswordFile, QuarantineFor, Removal, Token, Url
from app.cli_targets import target_cli
from app.errors import InvalidInput, NotFound, TierkeeperError
from app.printable import say_lines

cli = typer.Typer(
    name="tierkeeper",
    help="Operations panel for LMCache: health, disk inventory, safe cleanup and acceptance tests.",
    no_args_is_help=True,
    rich_markup_mode=None,  # its boxes cut the names of options off at 80 columns
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
token_cli = typer.Typer(help="API tokens for programs.", no_args_is_help=True)
user_cli = typer.Typer(help="People who sign in.", no_args_is_help=True)
cli.add_typer(token_cli, name="token")
cli.add_typer(user_cli, name="user")
cli.add_typer(target_cli, name="target")
for command in (cli_tools.check, cli_tools.size, cli_tools.launch, cli_tools.bench):
    cli.command()(command)


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
    fault: Annotated[
        str | None,
        typer.Option(help="Let the sandbox do something wrong: l2-garbage, reset-lies, stores-stuck, same-answers."),
    ] = None,
) -> None:
    """Serve the panel with the sandbox: a simulated cache server and engine over a real directory."""
    from app.commands.demo import demo as run
    from app.settings import load_settings

    run(load_settings(host=host, port=port), fault=fault)


@cli.command()
def migrate() -> None:
    """Bring the database to this version's schema."""
    from app.commands.context import command_services
    from app.migrate import head_revision

    with command_services(create=True):
        print(f"database at {head_revision()}")


@token_cli.command("create")
def token_create(
    name: Annotated[str, typer.Option(help="A name that says who uses it.")],
    role: Annotated[str, typer.Option(help="viewer, operator or admin.")],
    expires_in_days: Annotated[float | None, typer.Option(help="Days until it ends; without it, never.")] = None,
    as_json: Json = False,
) -> None:
    """Make an API token; only the token is printed on stdout."""
    from app.auth.schemas import TokenInput
    from app.commands.context import COMMAND_PRINCIPAL, command_services

    body = _validated(TokenInput, name=name, role=role, expires_in_days=expires_in_days)
    with command_services(create=True) as services:
        view = services.auth.create_token(body, actor=COMMAND_PRINCIPAL.actor)
    print(json.dumps(view.model_dump()) if as_json else view.token)


@user_cli.command("create")
def user_create(
    username: Annotated[str, typer.Option(help="Name to sign in with.")],
    role: Annotated[str, typer.Option(help="viewer, operator or admin.")],
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Make a user."""
    from app.auth.schemas import UserInput
    from app.commands.context import COMMAND_PRINCIPAL, command_services

    body = _validated(UserInput, username=username, role=role, password=_password(password_file))
    with command_services(create=True) as services:
        view = services.auth.create_user(body, actor=COMMAND_PRINCIPAL.actor)
    print(json.dumps(view.model_dump()) if as_json else f"user {view.username} ({view.role}) made")


@user_cli.command("password")
def user_password(
    username: Annotated[str, typer.Option(help="Whose password, e.g. admin.")],
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Set a user's password (a forgotten one, say); the user is signed out everywhere."""
    from app.auth.schemas import UserPatch
    from app.commands.context import COMMAND_PRINCIPAL, command_services

    with command_services() as services:
        user_id = services.auth.user_id(username)
        body = _validated(UserPatch, password=_password(password_file))
        view = services.auth.update_user(user_id, body, actor=COMMAND_PRINCIPAL.actor)
    print(json.dumps(view.model_dump()) if as_json else f"password of {view.username} set; signed out everywhere")


def _password(file: Path | None) -> str:
    """From a file, else asked for twice, else the first line of stdin."""
    if file is not None:
        try:
            return file.read_text("utf-8").rstrip("\n")
        except OSError as error:
            raise InvalidInput.field("--password-file", f"{file} cannot be read ({error.strerror})") from error
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
    return sys.stdin.readline().rstrip("\n")


@cli.command()
def scan(
    target: Annotated[str, typer.Argument(metavar="STORE|DIRECTORY", help="A store by name or id, or a directory.")],
    gentle: Annotated[bool, typer.Option(help="Go easy on a slow mount.")] = False,
    accept_directory: Annotated[
        bool,
        typer.Option(
            "--accept-directory",
            help="Another directory than at the last scan lies at the store's path, and it is the store now.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Scan a store, or a directory that is no store, and print its summary."""
    from app.commands.scan import scan_command

    raise typer.Exit(scan_command(target, as_json=as_json, gentle=gentle, accept_directory=accept_directory))


@cli.command()
def plan(
    policy: Annotated[str | None, typer.Option(help="Policy by name or id.")] = None,
    store: Annotated[str | None, typer.Option(help="Store by name or id, with --filter.")] = None,
    filters: Filters = None,
    removal: Removal = "quarantine",
    quarantine_for: QuarantineFor = None,
    everything: Annotated[bool, typer.Option("--all", help="List every record, not only the first.")] = False,
    url: Url = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show what a policy or a filter would remove, record by record (nothing is touched)."""
    from app.commands.clean import CleanOptions
    from app.commands.clean import plan as run

    options = CleanOptions(
        policy=policy,
        store=store,
        filters=tuple(filters or ()),
        removal=removal,
        quarantine_for=quarantine_for,
        everything=everything,
        as_json=as_json,
        url=url,
        token=token,
    )
    raise typer.Exit(run(options))


@cli.command()
def clean(
    policy: Annotated[str | None, typer.Option(help="Policy by name or id.")] = None,
    store: Annotated[str | None, typer.Option(help="Store by name or id, with --filter.")] = None,
    filters: Filters = None,
    plan_id: Annotated[str | None, typer.Option("--plan", help="A plan made before, by id.")] = None,
    removal: Removal = "quarantine",
    quarantine_for: QuarantineFor = None,
    url: Url = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Run a policy, a plan, or a filter. Exit: 0 done, 1 goal not reached, 3 trouble."""
    from app.commands.clean import CleanOptions
    from app.commands.clean import clean as run

    options = CleanOptions(
        policy=policy,
        store=store,
        filters=tuple(filters or ()),
        removal=removal,
        quarantine_for=quarantine_for,
        plan=plan_id,
        as_json=as_json,
        url=url,
        token=token,
    )
    raise typer.Exit(run(options))


@cli.command()
def accept(
    engine: Annotated[str, typer.Option(help="Engine by name or id.")],
    second_engine: Annotated[str | None, typer.Option(help="A second engine (cross_engine, without_cache).")] = None,
    profile: Annotated[str, typer.Option(help="quick, standard or thorough.")] = "quick",
    arms: Annotated[str | None, typer.Option(help="Comma-separated arms; default: the profile's.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Your own prompts: JSON, YAML, JSON lines, or one a line.")
    ] = None,
    api: Annotated[str, typer.Option(help="completions or chat.")] = "completions",
    mode: Annotated[str | None, typer.Option(help="exact, near_tie or score; default: by the model's layout.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Comma-separated prompt lengths in tokens.")] = None,
    concurrency: Annotated[int, typer.Option(help="Requests at a time.")] = 1,
    deadline: Annotated[float | None, typer.Option(help="Seconds after which the run ends as timeout.")] = None,
    request_timeout: Annotated[float | None, typer.Option(help="Seconds that one answer may take (120).")] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(help="max_abs_nats, near_tie_gap_nats, min_external_share, max_score_drop as NAME=NUMBER, …"),
    ] = None,
    allow_clear_l1: Annotated[bool, typer.Option(help="Allow clearing the whole L1 of the server.")] = False,
    keep_records: Annotated[bool, typer.Option(help="Leave the run's own records on disk.")] = False,
    restart_hook: Annotated[str | None, typer.Option(help="Restart hook by id, for the restart arms.")] = None,
    report: Annotated[
        list[Path] | None, typer.Option(help="Write a report; the ending chooses .json, .xml (JUnit), .html or .md.")
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Run one acceptance test. Exit: 0 pass, 1 fail, invalid or timeout, 3 error."""
    from app.commands.accept import AcceptOptions
    from app.commands.accept import accept as run

    options = AcceptOptions(
        engine=engine,
        second_engine=second_engine,
        profile=profile,
        arms=arms,
        prompts=prompts,
        api=api,
        mode=mode,
        lengths=lengths,
        concurrency=concurrency,
        deadline=deadline,
        request_timeout=request_timeout,
        tolerance=tolerance,
        allow_clear_l1=allow_clear_l1,
        keep_records=keep_records,
        restart_hook=restart_hook,
        report=tuple(report or ()),
        as_json=as_json,
        url=url,
        token=token,
    )
    raise typer.Exit(run(options))


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

    from app.wording import location

    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + "-".join(str(part) for part in location(first)).replace("_", "-")
        raise InvalidInput.field(option, f"{first['msg']}") from None


def main() -> None:
    """Entry point: one line on stderr for an error of ours or of the system below us, never a traceback."""
    import structlog

    # Until a command has set its logging up: reading the settings may have something to say, and stdout is the result.
    structlog.configure(logger_factory=lambda *_args: structlog.PrintLogger(sys.stderr))
    try:
        cli(standalone_mode=True)
    except TierkeeperError as error:
        say_lines(f"tierkeeper: {error.detail}", file=sys.stderr)
        # Usage errors end 2; what could not be reached or done ends 3.
        sys.exit(2 if isinstance(error, InvalidInput | NotFound) else 3)
    except KeyboardInterrupt:
        sys.exit(3)
    except BrokenPipeError:
        # Whoever read us has had enough, as `head` does; nothing may be written any more, also at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(3)
    except Exception as error:
        from app.commands.trouble import told

        line = told(error)
        if line is None:
            raise
        say_lines(f"tierkeeper: {line}", file=sys.stderr)
        sys.exit(3)
