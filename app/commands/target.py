"""`tierkeeper target`: servers, engines and stores registered, listed, changed and forgotten from the command line.

A running panel takes a new target up within one poll interval; without one it is there at the next start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from app.commands.context import COMMAND_PRINCIPAL, command_services
from app.errors import InvalidInput
from app.fleet.schemas import (
    EngineCreate,
    EnginePatch,
    EngineView,
    ServerCreate,
    ServerPatch,
    ServerView,
    StoreCreate,
    StorePatch,
    StoreView,
)
from app.printable import printable, say
from app.services import Services
from app.wording import location

Kind = Literal["server", "engine", "store"]
KINDS: tuple[Kind, ...] = ("server", "engine", "store")


@dataclass(frozen=True)
class AddOptions:
    """What was given. `servers` are names or ids; `labels` and `headers` are NAME=VALUE; the key is read from a
    variable, so that it stands in no process list and no shell history."""

    kind: Kind
    address: str
    name: str | None = None
    servers: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    api_key_env: str | None = None
    tls_ca: str | None = None
    tls_verify: bool = True
    server_path: str | None = None
    confirm: bool = False


@dataclass(frozen=True)
class ChangeOptions:
    """What was given to change `target` (a name or an id); what is empty stays as it is, the labels not named too."""

    kind: Kind
    target: str
    name: str | None = None
    address: str | None = None
    servers: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    drop_labels: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    api_key_env: str | None = None


def kind_of(text: str) -> Kind:
    """Raises InvalidInput for anything but a kind of target."""
    for kind in KINDS:
        if text == kind:
            return kind
    raise InvalidInput.field("KIND", f"{text!r} is no kind of target; use {', '.join(KINDS)}")


def add(options: AddOptions, *, as_json: bool = False) -> None:
    """Registers one target and prints its id and name. Raises InvalidInput that names the option."""
    labels, headers = pairs(options.labels, "--label"), pairs(options.headers, "--header")
    if options.kind == "store" and (headers or options.api_key_env or options.tls_ca or not options.tls_verify):
        raise InvalidInput.field("--header", "a store is a directory of this host: it takes no header, key or CA")
    if options.kind == "engine" and len(options.servers) > 1:
        raise InvalidInput.field("--server", "an engine uses one cache server")
    if options.kind == "server" and options.servers:
        raise InvalidInput.field("--server", "is for engines and stores")
    key = key_of(options.api_key_env)
    with command_services(create=True) as services:
        ids = [str(services.fleet.find("server", name)) for name in options.servers]
        view: ServerView | EngineView | StoreView
        reached: dict[str, Any] = {"url": options.address, "name": options.name, "labels": labels}
        reached |= {
            "api_key": key,
            "headers": headers,
            "tls_ca": ca_of(options.tls_ca),
            "tls_verify": options.tls_verify,
        }
        actor = COMMAND_PRINCIPAL.actor
        if options.kind == "server":
            view = services.fleet.create_server(_body(ServerCreate, reached), actor=actor)
        elif options.kind == "engine":
            body = _body(EngineCreate, {**reached, "server_id": ids[0] if ids else None})
            view = services.fleet.create_engine(body, actor=actor)
        else:
            values: dict[str, Any] = {"path": options.address, "name": options.name, "labels": labels}
            values |= {"server_ids": ids or None, "server_path": options.server_path, "confirm": options.confirm}
            view = services.fleet.create_store(_body(StoreCreate, values), actor=actor)
    print(view.model_dump_json() if as_json else printable(f"{options.kind} {view.id}: {view.name}"))


def show(kind: Kind | None, *, label: str | None = None, as_json: bool = False) -> None:
    """Prints all targets (those with a label, as NAME=VALUE), one a line, or as JSON by kind."""
    with command_services() as services:
        found = {each: _all(services, each, label) for each in KINDS if kind in (None, each)}
    if as_json:
        print(
            json.dumps({f"{each}s": [view.model_dump(mode="json") for view in views] for each, views in found.items()})
        )
        return
    for each, views in found.items():
        for view in views:
            where = view.path if isinstance(view, StoreView) else view.url
            labels = " ".join(f"{k}={v}" for k, v in sorted(view.labels.items()))
            print("\t".join(map(printable, (f"{each} {view.id}", view.name, where, labels))).rstrip())


def forget(kind: Kind, name: str) -> None:
    """Forgets one target with its history; what it is itself is left alone."""
    with command_services() as services:
        ident = services.fleet.find(kind, name)
        actor = COMMAND_PRINCIPAL.actor
        if kind == "server":
            services.fleet.delete_server(ident, actor=actor)
        elif kind == "engine":
            services.fleet.delete_engine(ident, actor=actor)
        else:
            services.fleet.delete_store(ident, actor=actor)
    say(f"{kind} {ident} forgotten")


def change(options: ChangeOptions, *, as_json: bool = False) -> None:
    """Changes what was given of one target and prints it. Raises InvalidInput that names the option."""
    kind = options.kind
    if kind == "store" and (options.address or options.headers or options.api_key_env):
        raise InvalidInput.field("--address", "a store keeps its directory, and takes no header and no key")
    if options.servers and (kind == "server" or (kind == "engine" and len(options.servers) > 1)):
        raise InvalidInput.field("--server", "an engine uses one cache server, a store one or several")
    with command_services() as services:
        ident = services.fleet.find(kind, options.target)
        values = _changed(services, options, _get(services, kind, ident))
        if not values:
            raise InvalidInput.field("--label", "nothing to change was given; name at least one option")
        fleet, actor = services.fleet, COMMAND_PRINCIPAL.actor
        view: ServerView | EngineView | StoreView
        if kind == "server":
            view = fleet.patch_server(ident, _body(ServerPatch, values), actor=actor)
        elif kind == "engine":
            view = fleet.patch_engine(ident, _body(EnginePatch, values), actor=actor)
        else:
            view = fleet.patch_store(ident, _body(StorePatch, values), actor=actor)
    print(view.model_dump_json() if as_json else printable(f"{kind} {view.id}: {view.name}"))


def _changed(services: Services, options: ChangeOptions, view: ServerView | EngineView | StoreView) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if options.labels or options.drop_labels:
        missing = [name for name in options.drop_labels if name not in view.labels]
        if missing:
            raise InvalidInput.field("--drop-label", f"{view.name} has no label {missing[0][:60]!r}")
        kept = {name: value for name, value in view.labels.items() if name not in options.drop_labels}
        values["labels"] = kept | pairs(options.labels, "--label")
    if options.servers:
        ids = [str(services.fleet.find("server", name)) for name in options.servers]
        values |= {"server_id": ids[0]} if options.kind == "engine" else {"server_ids": ids}
    if options.headers:
        values["headers"] = pairs(options.headers, "--header")
    given = {"name": options.name, "url": options.address, "api_key": key_of(options.api_key_env)}
    return values | {name: value for name, value in given.items() if value is not None}


def _get(services: Services, kind: Kind, ident: int) -> ServerView | EngineView | StoreView:
    fleet = services.fleet
    if kind == "server":
        return fleet.get_server(ident)
    return fleet.get_engine(ident) if kind == "engine" else fleet.get_store(ident)


def _all(services: Services, kind: Kind, label: str | None) -> list[Any]:
    lists: dict[Kind, Callable[..., Any]] = {
        "server": services.fleet.list_servers,
        "engine": services.fleet.list_engines,
        "store": services.fleet.list_stores,
    }
    found: list[Any] = []
    token: str | None = None
    while True:
        page = lists[kind](page_size=500, page_token=token, label=label)
        found += page.items
        token = page.next_page_token
        if token is None:
            return found


def ca_of(given: str | None) -> str | None:
    """The absolute path. Not resolved: mounted secrets are links that are replaced when they change."""
    return str(Path.cwd() / given) if given else None


def pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """NAME=VALUE as a mapping. Raises InvalidInput naming the option."""
    found: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise InvalidInput.field(option, f"{item[:60]!r} is not NAME=VALUE")
        found[name.strip()] = value
    return found


def key_of(variable: str | None) -> str | None:
    """The API key in the variable. Raises InvalidInput where it is not set."""
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise InvalidInput.field("--api-key-env", f"the variable {variable} is not set")
    return os.environ[variable]


def _body(model: type[BaseModel], values: dict[str, Any]) -> Any:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(location(first)[0]).replace("_", "-") if location(first) else "ADDRESS"
        raise InvalidInput.field("ADDRESS" if option in ("--url", "--path") else option, first["msg"]) from None
