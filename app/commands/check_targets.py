"""The targets of `tierkeeper check`: registered ones by name or id, and plain addresses with what a panel knows.

An address needs no database. Where the data directory holds one that has a target at this address, its stores with
their policies, and its key, are used; without one the findings say what nobody was asked.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from sqlalchemy.exc import DBAPIError

from app.checks.assemble import Texts
from app.checks.gather import EngineRequest, ServerRequest
from app.commands.context import command_services, peek_services
from app.errors import NotFound
from app.fleet.addresses import Address, parse_address
from app.fleet.context import TargetKind
from app.fleet.targets import EngineTarget
from app.services import Services


def server_request(target: str, texts: Texts, *, field: str = "--server") -> ServerRequest:
    """A cache server by address, name or id. Raises InvalidInput naming `field`, NotFound, NoDatabase."""
    if "://" in target:
        address = parse_address(target, field=field)
        known = None
        with peek_services() as services, suppress(DBAPIError):  # a damaged database is as good as none here
            known = _server_at(services, address) if services is not None else None
        found = known or ServerRequest(name=target, url=address.url)
        return replace(found, name=target, url=address.url, texts=texts)
    with command_services() as services:
        return replace(_known_server(services, _find(services, "server", target, field)), texts=texts)


def engine_request(target: str, texts: Texts, *, field: str = "--engine") -> EngineRequest:
    """An engine by address, name or id. Raises InvalidInput naming `field`, NotFound, NoDatabase."""
    if "://" in target:
        address = parse_address(target, field=field)
        known = None
        with peek_services() as services, suppress(DBAPIError):
            engines = services.fleet.engine_targets() if services is not None else []
            known = next((one for one in engines if _same(one.url, address)), None)
        found = EngineRequest(name=target, url=address.url) if known is None else _known_engine(known)
        return replace(found, name=target, url=address.url, texts=texts)
    with command_services() as services:
        return replace(
            _known_engine(services.fleet.engine_target(_find(services, "engine", target, field))), texts=texts
        )


def _find(services: Services, kind: TargetKind, target: str, field: str) -> int:
    """The registered target of this name or id; what looks like an address that failed is told as one."""
    try:
        return services.fleet.find(kind, target)
    except NotFound:
        if ":" in target or "/" in target:
            parse_address(target, field=field)
        raise


def _server_at(services: Services, address: Address) -> ServerRequest:
    """The registered server at this address, else one without stores: a panel was asked, and knows none."""
    for one in services.fleet.server_targets():
        if _same(one.url, address):
            return _known_server(services, one.id)
    return ServerRequest(name=address.url, url=address.url, stores={})


def _known_server(services: Services, ident: int) -> ServerRequest:
    found = services.fleet.server_target(ident)
    stores = {
        store.server_path.rstrip("/"): (store, services.checks.bounding_policies(store.id))
        for store in services.fleet.store_targets(ident)
    }
    return ServerRequest(
        name=found.name, url=found.url, api_key=found.api_key, headers=found.headers, tls=found.tls, stores=stores
    )


def _known_engine(found: EngineTarget) -> EngineRequest:
    return EngineRequest(name=found.name, url=found.url, api_key=found.api_key, headers=found.headers, tls=found.tls)


def _same(url: str, address: Address) -> bool:
    return parse_address(url, allow_link_local=True).key == address.key
