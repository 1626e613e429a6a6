"""Cache servers, engines and stores: registering, changing, forgetting, and the views that join the last readings.

Validation (which may look at the disk or the resolver) happens before the unit of work; rows and their audit entry are
written in one. Other rooms use the targets, `find` and the hooks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Literal

import structlog
from sqlalchemy import select

from app.audit.service import AuditService
from app.clock import Clock
from app.database import Database
from app.errors import NotFound, TierkeeperError
from app.fleet import probes
from app.fleet.addresses import Resolver, parse_address, system_resolver
from app.fleet.certificates import check_ca, tls_of
from app.fleet.context import (
    TABLES,
    ChangeHook,
    FleetContext,
    ForgetHook,
    MovedHook,
    Refresh,
    StoreCheck,
    TargetKind,
    labels_in_use,
)
from app.fleet.engines import Engines
from app.fleet.live import LiveSource, NothingKnown
from app.fleet.naming import check_headers, check_secret
from app.fleet.probe_schemas import ProbeRequest, ProbeView
from app.fleet.sandbox import SandboxTarget, addresses, forget_sandbox, sandbox_targets
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
from app.fleet.servers import Servers
from app.fleet.stores import Stores
from app.fleet.targets import EngineTarget, ServerTarget, StoreTarget
from app.paging import parse_id
from app.settings import Settings
from app.shapes import Page

log = structlog.get_logger()


class FleetService:
    """All targets. Methods raise InvalidInput, Conflict and NotFound; nothing is half done."""

    def __init__(
        self,
        *,
        db: Database,
        clock: Clock,
        settings: Settings,
        audit: AuditService,
        live: LiveSource | None = None,
        resolve: Resolver = system_resolver,
    ) -> None:
        self._db = db
        self._context = FleetContext(
            db=db, clock=clock, settings=settings, audit=audit, resolve=resolve, live=live or NothingKnown()
        )
        self._servers = Servers(self._context)
        self._engines = Engines(self._context)
        self._stores = Stores(self._context)

    # wiring

    def attach_live(self, source: LiveSource) -> None:
        """Gives the views their readings (TelemetryService does this itself)."""
        self._context.live = source

    def attach_refresh(self, refresh: Refresh) -> None:
        """Lets a store be judged by what its servers say although they were only just added (the poller does this)."""
        self._context.refresh = refresh

    def on_forget(self, hook: ForgetHook) -> None:
        """Called in the unit of work that deletes: rooms drop their rows, or refuse with Conflict while work runs."""
        self._context.forget_hooks.append(hook)

    def on_moved(self, hook: MovedHook) -> None:
        """Called in the unit of work that changes an address: what was read there is no longer about the target."""
        self._context.moved_hooks.append(hook)

    def on_change(self, hook: ChangeHook) -> None:
        """Called after a commit that added, changed or removed a target (the poller polls at once)."""
        self._context.change_hooks.append(hook)

    def on_open_store(self, check: StoreCheck) -> None:
        """Every store's target carries this check of its directory from now on."""
        self._context.store_check = check

    def refresh_server(self, server_id: int) -> None:
        """Polls a server now, in the calling thread: who has just added it wants to see what it says."""
        if self._context.refresh is not None:
            self._context.refresh(server_id)

    # servers

    def create_server(self, body: ServerCreate, *, actor: str) -> ServerView:
        """Saves it whether it answers or not; it is polled within a second."""
        return self._servers.create(body, actor=actor)

    def get_server(self, server_id: int) -> ServerView:
        return self._servers.get(server_id)

    def list_servers(
        self,
        *,
        page_size: int,
        page_token: str | None,
        q: str | None = None,
        health: str | None = None,
        label: str | None = None,
    ) -> Page[ServerView]:
        """By name. `q` is part of the name or URL, `health` one state, `label` one label as KEY=VALUE."""
        return self._servers.page(page_size=page_size, page_token=page_token, q=q, health=health, label=label)

    def patch_server(self, server_id: int, body: ServerPatch, *, actor: str, if_match: str | None = None) -> ServerView:
        """`if_match` is the revision the caller last read (Conflict when it is not the present one)."""
        return self._servers.patch(server_id, body, actor=actor, if_match=if_match)

    def delete_server(self, server_id: int, *, actor: str) -> None:
        """Forgets it; touches nothing outside. Its engines and stores stay."""
        self._context.forget("server", server_id, actor=actor)

    def mark_data_path(self, server_id: int, at: float, *, right: bool, by: str) -> None:
        """Acceptance says: at this time records came back right, or wrong, through this server. `by` begins a sentence
        ("acceptance run 7"). Neither time ever moves backwards."""
        self._servers.mark_data_path(server_id, at, right=right, by=by)

    # engines

    def create_engine(self, body: EngineCreate, *, actor: str) -> EngineView:
        """Saves it whether it answers or not; without a server it is linked once exactly one registers its model."""
        return self._engines.create(body, actor=actor)

    def get_engine(self, engine_id: int) -> EngineView:
        return self._engines.get(engine_id)

    def list_engines(
        self,
        *,
        page_size: int,
        page_token: str | None,
        q: str | None = None,
        health: str | None = None,
        server_id: int | None = None,
        label: str | None = None,
    ) -> Page[EngineView]:
        """By name. `server_id`: only those linked to this server; `label`: only those with it, as KEY=VALUE."""
        return self._engines.page(
            page_size=page_size, page_token=page_token, q=q, health=health, server_id=server_id, label=label
        )

    def labels(self, kind: TargetKind) -> list[tuple[str, int]]:
        """The labels that targets of this kind have, as KEY=VALUE with how many have it: their groups."""
        with self._db.read() as session:
            return labels_in_use(session, TABLES[kind])

    def patch_engine(self, engine_id: int, body: EnginePatch, *, actor: str, if_match: str | None = None) -> EngineView:
        return self._engines.patch(engine_id, body, actor=actor, if_match=if_match)

    def delete_engine(self, engine_id: int, *, actor: str) -> None:
        self._context.forget("engine", engine_id, actor=actor)

    def relink_engines(
        self, engine_models: Mapping[int, Collection[str]], server_models: Mapping[int, Collection[str]]
    ) -> int:
        """Telemetry says what engines serve and servers register; guesses links anew, returns how many changed."""
        return self._engines.relink(engine_models, server_models)

    # stores

    def create_store(self, body: StoreCreate, *, actor: str) -> StoreView:
        """Raises InvalidInput or Conflict by the rules of `app.fleet.directories`."""
        return self._stores.create(body, actor=actor)

    def get_store(self, store_id: int) -> StoreView:
        return self._stores.get(store_id)

    def list_stores(
        self,
        *,
        page_size: int,
        page_token: str | None,
        q: str | None = None,
        server_id: int | None = None,
        label: str | None = None,
    ) -> Page[StoreView]:
        """By name. `server_id`: only those this server uses; `label`: only those with it, as KEY=VALUE."""
        return self._stores.page(page_size=page_size, page_token=page_token, q=q, server_id=server_id, label=label)

    def patch_store(self, store_id: int, body: StorePatch, *, actor: str, if_match: str | None = None) -> StoreView:
        return self._stores.patch(store_id, body, actor=actor, if_match=if_match)

    def delete_store(self, store_id: int, *, actor: str) -> None:
        """Forgets it; no file is touched."""
        self._context.forget("store", store_id, actor=actor)

    # the sandbox

    def sandbox_targets(self) -> list[SandboxTarget]:
        """The simulated targets of `tierkeeper demo` that are registered."""
        return sandbox_targets(self._context)

    def forget_sandbox(self, *, actor: str) -> list[SandboxTarget]:
        """Forgets all of them. Raises Conflict where work on one is still running."""
        return forget_sandbox(self._context, actor=actor)

    def addresses(self) -> frozenset[str]:
        """Every address and directory that is registered."""
        return addresses(self._context)

    # probes

    def probe(self, body: ProbeRequest, *, saved: tuple[TargetKind, int] | None = None) -> ProbeView:
        """What answers at an address and what to enter instead. Network: call it in a worker thread. Saves nothing.

        `saved`: the target whose form asks; its key and headers are used where none are given, for its own address
        only (they go nowhere else).
        """
        context = self._context
        address = parse_address(body.url, allow_link_local=context.settings.allow_link_local, resolve=context.resolve)
        api_key = context.secret(check_secret("api_key", body.api_key))
        headers = context.secrets(check_headers(body.headers))
        if saved is not None:
            target = self.server_target(saved[1]) if saved[0] == "server" else self.engine_target(saved[1])
            if target.url == address.url:
                api_key, headers = api_key or target.api_key, headers or dict(target.headers)
        tls = tls_of(body.tls_verify, check_ca(body.tls_ca))
        return probes.judge(address, asyncio.run(probes.find(address, api_key=api_key, headers=headers, tls=tls)))

    def advice(self, kind: Literal["server", "engine"], body: ServerCreate | EngineCreate) -> str | None:
        """What to enter instead, where something else than a server (engine) answers at an address that was just
        saved; None where it is one or nothing answers: it may be down just now. Network; never raises."""
        try:
            reached = body.model_dump(include={"url", "api_key", "headers", "tls_verify", "tls_ca"})
            found = self.probe(ProbeRequest.model_validate(reached))
        except TierkeeperError as error:
            log.info("fleet.no_advice", reason=error.detail)
            return None
        if found.kind == "nothing" or found.register_as == kind:
            return None
        what = {"server": "a cache server", "engine": "an engine"}[kind]
        known = found.title[:1].lower() + found.title[1:]
        urls = [url for url in found.suggested_urls if url != found.url]
        instead = f" Enter {' or '.join(urls[:3])} instead." if urls else ""
        other = {"server": "a cache server", "engine": "an engine", None: None}[found.register_as]
        way = f" Add this address as {other}, and forget it here." if other else ""
        return f"It was saved, but this is no address of {what}: {known}. {found.detail}{instead}{way}"

    # for other rooms

    def server_target(self, server_id: int) -> ServerTarget:
        return self._servers.targets(server_id)[0]

    def server_targets(self) -> list[ServerTarget]:
        return self._servers.targets()

    def engine_target(self, engine_id: int) -> EngineTarget:
        return self._engines.targets(engine_id=engine_id)[0]

    def engine_targets(self, server_id: int | None = None) -> list[EngineTarget]:
        """All engines, or those of one server."""
        return self._engines.targets(server_id=server_id)

    def store_target(self, store_id: int) -> StoreTarget:
        return self._stores.targets(store_id=store_id)[0]

    def store_targets(self, server_id: int | None = None) -> list[StoreTarget]:
        """All stores, or those that one server uses."""
        return self._stores.targets(server_id=server_id)

    def address(self, kind: TargetKind, target_id: int) -> tuple[str, str]:
        """(URL or path, name) of a target. Raises NotFound."""
        if kind == "store":
            store = self.store_target(target_id)
            return store.path, store.name
        target = self.server_target(target_id) if kind == "server" else self.engine_target(target_id)
        return target.url, target.name

    def find(self, kind: TargetKind, name_or_id: str) -> int:
        """The row id of a target named or numbered so (a name wins). Raises NotFound."""
        table = TABLES[kind]
        with self._db.read() as session:
            known = {int(ident): name for ident, name in session.execute(select(table.id, table.name))}
        for ident, name in known.items():
            if name.casefold() == name_or_id.casefold():
                return ident
        with suppress(NotFound):
            if (target_id := parse_id(kind, name_or_id)) in known:
                return target_id
        raise NotFound.named(kind, name_or_id, known.values())

    def find_named(self, kind: TargetKind, name: str) -> int:
        """The row id of the target of this name, letter case aside. Raises NotFound."""
        table = TABLES[kind]
        with self._db.read() as session:
            for target_id, other in session.execute(select(table.id, table.name)):
                if other.casefold() == name.casefold():
                    return int(target_id)
        raise NotFound(f"no {kind} is named {name[:80]!r}")

    def normalise_url(self, url: str) -> str:
        """The normal form in which an address is stored. Raises InvalidInput naming ``url``."""
        return parse_address(url, allow_link_local=self._context.settings.allow_link_local).url
