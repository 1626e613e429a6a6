"""Cache servers: rows and views."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from app.clock import iso
from app.fleet.addresses import Address, parse_address
from app.fleet.certificates import check_ca, tls_of, tls_warnings, view_of
from app.fleet.context import (
    FleetContext,
    check_revision,
    integrity_conflict,
    labelled,
    named_page,
    refuse_same_address,
    refuse_taken,
    row_of,
    sent,
    shown,
    taken_names,
)
from app.fleet.live import ServerLive
from app.fleet.naming import check_headers, check_labels, check_name, check_secret, free_name
from app.fleet.schemas import HealthView, L2View, LightView, ServerCreate, ServerPatch, ServerView
from app.fleet.tables import Engine, Server, Store, StoreServer
from app.fleet.targets import ServerTarget
from app.shapes import Page


class Servers:
    """The servers' part of the fleet service."""

    def __init__(self, context: FleetContext) -> None:
        self._context = context

    def create(self, body: ServerCreate, *, actor: str) -> ServerView:
        context = self._context
        address = self._address(body.url)
        name = check_name(body.name) if body.name is not None else None
        now = context.clock()
        try:
            with context.db.write() as session:
                refuse_same_address(session, Server, "server", address.key)
                if name is None:
                    name = free_name(
                        address.default_name, taken_names(session, Server, Engine), f"{address.host}:{address.port}"
                    )
                else:
                    refuse_taken(session, Server, "server", name)
                row = Server(
                    name=name,
                    url=address.url,
                    api_key=check_secret("api_key", body.api_key),
                    headers=check_headers(body.headers),
                    tls_verify=body.tls_verify,
                    tls_ca=check_ca(body.tls_ca),
                    labels=check_labels(body.labels),
                    created_at=now,
                    health_since=now,
                )
                session.add(row)
                session.flush()
                context.audit.record(
                    session,
                    actor=actor,
                    action="server.create",
                    target_kind="server",
                    target_id=row.id,
                    detail=shown({**body.model_dump(), "name": name, "url": address.url}),
                )
        except IntegrityError as error:
            raise integrity_conflict(error, "server") from error
        context.changed("server", row.id)
        return self.get(row.id)

    def get(self, server_id: int) -> ServerView:
        with self._context.db.read() as session:
            row: Server = row_of(session, Server, "server", server_id)
        return self._views([row])[0]

    def page(
        self, *, page_size: int, page_token: str | None, q: str | None, health: str | None, label: str | None = None
    ) -> Page[ServerView]:
        conditions = [Server.health_state == health] if health else []
        if label:
            conditions.append(labelled(Server, label))
        with self._context.db.read() as session:
            rows, token = named_page(
                session,
                Server,
                f"servers|{q}|{health}|{label}",
                page_size=page_size,
                page_token=page_token,
                q=q,
                conditions=conditions,
            )
        return Page(items=self._views(rows), next_page_token=token)

    def patch(self, server_id: int, body: ServerPatch, *, actor: str, if_match: str | None) -> ServerView:
        context = self._context
        values = sent(body, nullable=("api_key", "tls_ca"))
        address = self._address(values["url"]) if "url" in values else None
        try:
            with context.db.write() as session:
                row: Server = row_of(session, Server, "server", server_id)
                check_revision(if_match, row.revision)
                if "name" in values:
                    row.name = check_name(values["name"])
                    refuse_taken(session, Server, "server", row.name, server_id)
                if address is not None and address.url != row.url:
                    refuse_same_address(session, Server, "server", address.key, server_id)
                    row.url = address.url
                    context.moved(session, row, "server", actor=actor)
                if "api_key" in values:
                    row.api_key = check_secret("api_key", values["api_key"])
                if "headers" in values:
                    row.headers = check_headers(values["headers"])
                if "tls_verify" in values:
                    row.tls_verify = values["tls_verify"]
                if "tls_ca" in values:
                    row.tls_ca = check_ca(values["tls_ca"])
                if "labels" in values:
                    row.labels = check_labels(values["labels"])
                row.revision += 1
                context.audit.record(
                    session,
                    actor=actor,
                    action="server.update",
                    target_kind="server",
                    target_id=server_id,
                    detail=shown(values),
                )
        except IntegrityError as error:
            raise integrity_conflict(error, "server") from error
        context.changed("server", server_id)
        return self.get(server_id)

    def mark_data_path(self, server_id: int, at: float, *, right: bool, by: str) -> None:
        with self._context.db.write() as session:
            row: Server = row_of(session, Server, "server", server_id)
            if right and at > (row.data_path_proven_at or 0.0):
                row.data_path_proven_at, row.data_path_proven_by = at, by
            elif not right and at > (row.data_path_wrong_at or 0.0):
                row.data_path_wrong_at, row.data_path_wrong_by = at, by

    def targets(self, server_id: int | None = None) -> list[ServerTarget]:
        with self._context.db.read() as session:
            if server_id is not None:
                rows: Sequence[Server] = [row_of(session, Server, "server", server_id)]
            else:
                rows = session.scalars(select(Server).order_by(Server.id)).all()
        context = self._context
        return [
            ServerTarget(
                r.id,
                r.name,
                r.url,
                context.secret(r.api_key),
                context.secrets(r.headers),
                tls_of(r.tls_verify, r.tls_ca),
            )
            for r in rows
        ]

    def _address(self, url: str) -> Address:
        context = self._context
        return parse_address(url, allow_link_local=context.settings.allow_link_local, resolve=context.resolve)

    def _views(self, rows: Sequence[Server]) -> list[ServerView]:
        ids = [row.id for row in rows]
        engines: dict[int, list[str]] = defaultdict(list)
        stores: dict[int, list[tuple[int, str]]] = defaultdict(list)
        with self._context.db.read() as session:
            for engine_id, server_id in session.execute(
                select(Engine.id, Engine.server_id).where(Engine.server_id.in_(ids)).order_by(Engine.id)
            ):
                if server_id is not None:
                    engines[server_id].append(str(engine_id))
            for server_id, store_id, server_path in session.execute(
                select(StoreServer.server_id, Store.id, Store.server_path)
                .join(Store, Store.id == StoreServer.store_id)
                .where(StoreServer.server_id.in_(ids))
                .order_by(Store.id)
            ):
                stores[server_id].append((store_id, server_path))
        live = self._context.live.servers_live(ids)
        now = self._context.clock()
        return [_view(row, live.get(row.id) or ServerLive(), engines[row.id], stores[row.id], now) for row in rows]


def _view(
    row: Server, live: ServerLive, engine_ids: list[str], stores: list[tuple[int, str]], now: float
) -> ServerView:
    tls = view_of(row.url, row.tls_verify, row.tls_ca, now)
    return ServerView(
        id=str(row.id),
        name=row.name,
        url=row.url,
        has_api_key=row.api_key is not None,
        header_names=sorted(row.headers),
        tls=tls,
        labels=row.labels,
        revision=row.revision,
        created_at=iso(row.created_at) or "",
        version=live.version,
        instance_id=live.instance_id,
        started_at=iso(live.process_start),
        restarted_at=iso(live.restarted_at),
        chunk_size=live.chunk_size,
        settings=dict(live.settings),
        health=HealthView.model_validate(
            {
                "state": row.health_state,
                "reason": row.health_reason,
                "since": iso(row.health_since),
                "http_up": live.http_up,
                "engine_up": live.engine_up,
                "engines_registered": live.engines_registered,
                "data_path_proven_at": iso(row.data_path_proven_at),
                "lights": _lights(row, live.lights),
            }
        ),
        l1=live.l1,
        hit_rate=live.hit_rate,
        hit_rate_check=live.hit_rate_check,
        layouts=list(live.layouts),
        l2=[_with_store(adapter, stores) for adapter in live.l2],
        load=live.load,
        warnings=[*live.warnings, *tls_warnings(tls)],
        last_error=live.last_error,
        polled_at=iso(live.polled_at),
        scraped_at=iso(live.scraped_at),
        scrape_age_seconds=None if live.scraped_at is None else max(0.0, round(now - live.scraped_at, 3)),
        engine_ids=engine_ids,
        store_ids=[str(store_id) for store_id, _ in stores],
    )


def _lights(row: Server, polled: Sequence[LightView]) -> list[LightView]:
    """All four, in the order in which a request meets them."""
    known = {light.name: light for light in polled}
    names: tuple[Literal["http_up", "engine_up", "engines_registered"], ...]
    names = ("http_up", "engine_up", "engines_registered")
    return [known.get(n) or LightView(name=n, value=None, reason="not polled yet") for n in names] + [_data_path(row)]


def _data_path(row: Server) -> LightView:
    """The fourth light: by the last acceptance run or canary that tells."""
    right, wrong = row.data_path_proven_at, row.data_path_wrong_at
    if wrong is not None and wrong >= (right or 0.0):
        reason = f"{row.data_path_wrong_by or 'a test'} read back something else than the engine computes"
        return LightView(name="data_path", value=False, reason=reason, since=iso(wrong))
    if right is not None:
        reason = f"{row.data_path_proven_by or 'a test'} read records back right"
        return LightView(name="data_path", value=True, reason=reason, since=iso(right))
    reason = "no acceptance run and no canary has read records back yet"
    return LightView(name="data_path", value=None, reason=reason)


def _with_store(adapter: L2View, stores: list[tuple[int, str]]) -> L2View:
    """Which registered store is this adapter's directory, by the name the server gives it."""
    if adapter.base_path is None:
        return adapter
    wanted = adapter.base_path.rstrip("/")
    found = next((store_id for store_id, server_path in stores if server_path.rstrip("/") == wanted), None)
    return adapter.model_copy(update={"store_id": None if found is None else str(found)})
