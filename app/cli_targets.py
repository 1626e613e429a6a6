"""`tierkeeper target …`: names and options (added to `app.cli`); the bodies are in `app.commands.target`."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli_options import Json

target_cli = typer.Typer(help="Register, list and forget cache servers, engines and stores.", no_args_is_help=True)
Kind = Annotated[str, typer.Argument(help="server, engine or store.")]


@target_cli.command("add")
def target_add(
    kind: Kind,
    address: Annotated[str, typer.Argument(help="URL of a server or engine; directory of a store.")],
    name: Annotated[str | None, typer.Option(help="Default: from the address.")] = None,
    server: Annotated[list[str] | None, typer.Option(help="Cache server of an engine or store, by name or id.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, such as zone=b; may be repeated.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="NAME=VALUE sent with every call.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Variable that holds the API key.")] = None,
    tls_ca: Annotated[str | None, typer.Option(help="PEM file of the only CA whose certificates count.")] = None,
    no_tls_verify: Annotated[bool, typer.Option("--no-tls-verify", help="Believe whatever answers there.")] = False,
    server_path: Annotated[str | None, typer.Option(help="What its servers call the store's directory.")] = None,
    confirm: Annotated[bool, typer.Option(help="Vouch for a directory whose files cannot prove what it is.")] = False,
    as_json: Json = False,
) -> None:
    """Register one target."""
    from app.commands.target import AddOptions, add, kind_of

    options = AddOptions(
        kind=kind_of(kind),
        address=address,
        name=name,
        servers=tuple(server or ()),
        labels=tuple(label or ()),
        headers=tuple(header or ()),
        api_key_env=api_key_env,
        tls_ca=tls_ca,
        tls_verify=not no_tls_verify,
        server_path=server_path,
        confirm=confirm,
    )
    add(options, as_json=as_json)


@target_cli.command("list")
def target_list(
    kind: Annotated[str | None, typer.Argument(help="server, engine or store; all without it.")] = None,
    as_json: Json = False,
) -> None:
    """List what is registered."""
    from app.commands.target import kind_of, show

    show(None if kind is None else kind_of(kind), as_json=as_json)


@target_cli.command("forget")
def target_forget(kind: Kind, name: Annotated[str, typer.Argument(help="Name or id.")]) -> None:
    """Forget one target and its history; the target itself is left alone."""
    from app.commands.target import forget, kind_of

    forget(kind_of(kind), name)
