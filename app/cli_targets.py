"""`tierkeeper target …`: names and options (added to `app.cli`); the bodies are in `app.commands.target`."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli_options import Json

target_cli = typer.Typer(
    help="Probe, register, list, change and forget cache servers, engines and stores.", no_args_is_help=True
)
Kind = Annotated[str, typer.Argument(help="server, engine or store.")]
Named = Annotated[str, typer.Argument(help="Name or id.")]
Headers = Annotated[list[str] | None, typer.Option("--header", help="NAME=VALUE sent with every call.")]
KeyEnv = Annotated[str | None, typer.Option(help="Variable that holds the API key.")]
TlsCa = Annotated[str | None, typer.Option(help="PEM file of the only CA whose certificates count.")]
NoVerify = Annotated[bool, typer.Option("--no-tls-verify", help="Believe whatever answers there.")]


@target_cli.command("probe")
def target_probe(
    address: Annotated[str, typer.Argument(help="URL to look at.")],
    header: Headers = None,
    api_key_env: KeyEnv = None,
    tls_ca: TlsCa = None,
    no_tls_verify: NoVerify = False,
    as_json: Json = False,
) -> None:
    """Say what answers at an address, and what to enter instead. Saves nothing; exit 0 where it can be registered."""
    from app.commands.target import AddOptions
    from app.commands.target_probe import probe

    options = AddOptions(
        kind="server",
        address=address,
        headers=tuple(header or ()),
        api_key_env=api_key_env,
        tls_ca=tls_ca,
        tls_verify=not no_tls_verify,
    )
    raise typer.Exit(probe(options, as_json=as_json))


@target_cli.command("add")
def target_add(
    kind: Kind,
    address: Annotated[str, typer.Argument(help="URL of a server or engine; directory of a store.")],
    name: Annotated[str | None, typer.Option(help="Default: from the address.")] = None,
    server: Annotated[list[str] | None, typer.Option(help="Cache server of an engine or store, by name or id.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, such as zone=b; may be repeated.")] = None,
    header: Headers = None,
    api_key_env: KeyEnv = None,
    tls_ca: TlsCa = None,
    no_tls_verify: NoVerify = False,
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
    label: Annotated[str | None, typer.Option(help="NAME=VALUE: only those with this label.")] = None,
    as_json: Json = False,
) -> None:
    """List what is registered."""
    from app.commands.target import kind_of, show

    show(None if kind is None else kind_of(kind), label=label, as_json=as_json)


@target_cli.command("change")
def target_change(
    kind: Kind,
    name: Named,
    rename: Annotated[str | None, typer.Option(help="Its new name.")] = None,
    address: Annotated[str | None, typer.Option(help="Its new URL; a store keeps its directory.")] = None,
    server: Annotated[list[str] | None, typer.Option(help="Cache server of an engine or store, by name or id.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE to set; its other labels stay.")] = None,
    drop_label: Annotated[list[str] | None, typer.Option(help="NAME of a label to take away.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; those given replace all.")] = None,
    api_key_env: KeyEnv = None,
    as_json: Json = False,
) -> None:
    """Change what is given of one target; its history stays."""
    from app.commands.target import ChangeOptions, change, kind_of

    options = ChangeOptions(
        kind=kind_of(kind),
        target=name,
        name=rename,
        address=address,
        servers=tuple(server or ()),
        labels=tuple(label or ()),
        drop_labels=tuple(drop_label or ()),
        headers=tuple(header or ()),
        api_key_env=api_key_env,
    )
    change(options, as_json=as_json)


@target_cli.command("forget")
def target_forget(kind: Kind, name: Named) -> None:
    """Forget one target and its history; the target itself is left alone."""
    from app.commands.target import forget, kind_of

    forget(kind_of(kind), name)
