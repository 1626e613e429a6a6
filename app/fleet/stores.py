"""Stores: rows and views. The rules on directories are in `app.fleet.directories`."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.clock import iso
from app.errors import InvalidInput
from app.fleet import directories
from app.fleet.context import (
    FleetContext,
    check_revision,
    conflict,
    integrity_conflict,
    labelled,
    named_page,
    reference,
    refuse_taken,
    row_of,
    sent,
    shown,
    taken_names,
)
from app.fleet.live import StoreLive
from app.fleet.mounts import place_of
from app.fleet.naming import check_labels, check_name, free_name
from app.fleet.schemas import L2View, StoreCreate, StorePatch, StoreView
from app.fleet.tables import Engine, Server, Store, StoreServer
from app.fleet.targets import StoreTarget
from app.shapes import Page


@dataclass(frozen=True)
class _Servers:
    """What is known of the servers a store is said to belong to."""

    ids: tuple[int, ...]
    adapters: tuple[L2View, ...]  # those with a directory
    models: frozenset[str]


class Stores:
    """The stores' part of the fleet service."""

    def __init__(self, context: FleetContext, home: Path | None = None) -> None:
        self._context = context
        self._home = Path(os.path.realpath(home or Path.home()))

    def create(self, body: StoreCreate, *, actor: str) -> StoreView:
        context = self._context
        name = check_name(body.name) if body.name is not None else None
        labels = check_labels(body.labels)
        temp_dir = None if body.temp_dir is None else directories.check_temp_dir(body.temp_dir)
        servers = self._servers(_server_ids(body.server_ids, body.server_id))
        directory = directories.look(body.path, temp_dir)
        directories.refuse_places(directory.path, data_dir=context.settings.data_dir, home=self._home)
        self._refuse_neighbours(directory)
        server_path = _server_path(body.server_path, directory.path, servers.adapters)
        directories.refuse_unproven(
            directory,
            same=directories.same_directory(directory.path, server_path),
            server_path=server_path,
            known_models=servers.models,
            confirm=body.confirm,
        )
        if temp_dir is None:
            temp_dir = _configured_temp_dir(server_path, servers.adapters)
        now = context.clock()
        try:
            with context.db.write() as session:
                if name is None:
                    folder = Path(directory.path).name
                    name = free_name(folder, taken_names(session, Store), directory.path)
                else:
                    refuse_taken(session, Store, "store", name)
                row = Store(
                    name=name,
                    path=directory.path,
                    server_path=server_path,
                    temp_dir=temp_dir,
                    kind=body.kind,
                    labels=labels,
                    created_at=now,
                )
                session.add(row)
                session.flush()
                session.add_all(StoreServer(store_id=row.id, server_id=server_id) for server_id in servers.ids)
                context.audit.record(
                    session,
                    actor=actor,
                    action="store.create",
                    target_kind="store",
                    target_id=row.id,
                    detail=shown({**body.model_dump(), "name": name, "path": directory.path}),
                )
        except IntegrityError as error:
            raise integrity_conflict(error, "store") from error
        context.changed("store", row.id)
        return self.get(row.id)

    def get(self, store_id: int) -> StoreView:
        with self._context.db.read() as session:
            row: Store = row_of(session, Store, "store", store_id)
        return self._views([row])[0]

    def page(
        self,
        *,
        page_size: int,
        page_token: str | None,
        q: str | None,
        server_id: int | None,
        label: str | None = None,
    ) -> Page[StoreView]:
        conditions = []
        if label:
            conditions.append(labelled(Store, label))
        if server_id is not None:
            conditions.append(Store.id.in_(select(StoreServer.store_id).where(StoreServer.server_id == server_id)))
        with self._context.db.read() as session:
            rows, token = named_page(
                session,
                Store,
                f"stores|{q}|{server_id}|{label}",
                page_size=page_size,
                page_token=page_token,
                q=q,
                conditions=conditions,
            )
        return Page(items=self._views(rows), next_page_token=token)

    def patch(self, store_id: int, body: StorePatch, *, actor: str, if_match: str | None) -> StoreView:
        context = self._context
        values = sent(body, nullable=("temp_dir",))
        target = self.targets(store_id=store_id)[0]
        temp_dir = values.get("temp_dir", target.temp_dir)
        if temp_dir is not None:
            temp_dir = directories.check_temp_dir(temp_dir)
        server_ids, server_path = target.server_ids, target.server_path
        if "server_ids" in values or "server_path" in values:
            # Whose directory it is was proven for the former servers and name: prove it anew.
            given = values.get("server_ids", [str(i) for i in target.server_ids])
            servers = self._servers(_server_ids(given, None))
            server_ids = servers.ids
            server_path = _server_path(values.get("server_path", target.server_path), target.path, servers.adapters)
            directories.refuse_unproven(
                directories.look(target.path, temp_dir),
                same=directories.same_directory(target.path, server_path),
                server_path=server_path,
                known_models=servers.models,
                confirm=body.confirm,
            )
        try:
            with context.db.write() as session:
                row: Store = row_of(session, Store, "store", store_id)
                check_revision(if_match, row.revision)
                if "name" in values:
                    row.name = check_name(values["name"])
                    refuse_taken(session, Store, "store", row.name, store_id)
                if "labels" in values:
                    row.labels = check_labels(values["labels"])
                row.temp_dir, row.server_path = temp_dir, server_path
                _link(session, store_id, server_ids)
                row.revision += 1
                context.audit.record(
                    session,
                    actor=actor,
                    action="store.update",
                    target_kind="store",
                    target_id=store_id,
                    detail=shown(values),
                )
        except IntegrityError as error:
            raise integrity_conflict(error, "store") from error
        context.changed("store", store_id)
        return self.get(store_id)

    def targets(self, *, store_id: int | None = None, server_id: int | None = None) -> list[StoreTarget]:
        with self._context.db.read() as session:
            if store_id is not None:
                rows: Sequence[Store] = [row_of(session, Store, "store", store_id)]
            else:
                query = select(Store).order_by(Store.id)
                if server_id is not None:
                    query = query.join(StoreServer).where(StoreServer.server_id == server_id)
                rows = session.scalars(query).all()
            links = _links(session, [row.id for row in rows])
        check = self._context.store_check
        return [
            StoreTarget(
                id=r.id,
                name=r.name,
                path=r.path,
                server_path=r.server_path,
                temp_dir=r.temp_dir,
                kind=r.kind,
                server_ids=tuple(links[r.id]),
                check=None if check is None else partial(check, r.id),
            )
            for r in rows
        ]

    def _servers(self, ids: list[str]) -> _Servers:
        with self._context.db.read() as session:
            server_ids = tuple(reference(session, Server, "server", text, "server_ids") for text in ids)
            engine_ids = session.scalars(select(Engine.id).where(Engine.server_id.in_(server_ids))).all()
        known = self._context.live.servers_live(server_ids)
        if self._context.refresh is not None:
            for server_id in server_ids:
                if server_id not in known:
                    self._context.refresh(server_id)
            known = self._context.live.servers_live(server_ids)
        live = known.values()
        engines = self._context.live.engines_live(engine_ids).values()
        models = {name for server in live for name in server.model_names}
        models.update(name for engine in engines for name in engine.model_roots)
        adapters = tuple(adapter for server in live for adapter in server.l2 if adapter.base_path)
        return _Servers(tuple(dict.fromkeys(server_ids)), adapters, frozenset(models))

    def _refuse_neighbours(self, directory: directories.Directory) -> None:
        for other in self.targets():
            refuse_neighbour(directory, other)

    def _views(self, rows: Sequence[Store]) -> list[StoreView]:
        with self._context.db.read() as session:
            links = _links(session, [row.id for row in rows])
        live = self._context.live.stores_live([row.id for row in rows])
        return [_view(row, links[row.id], live.get(row.id, StoreLive())) for row in rows]


def refuse_neighbour(directory: directories.Directory, other: StoreTarget) -> None:
    """Raises Conflict where the directory is another store, or one lies inside the other."""
    # Bound elsewhere, a folder of a store has a path that says nothing of it.
    place, theirs = place_of(directory.path) or ("", ""), place_of(other.path) or ("", "")
    bound = place[0] != "" and place[0] == theirs[0]
    is_it = directory.path == other.path or _inode(other.path) == (directory.device, directory.inode)
    if is_it or (bound and place == theirs):
        raise conflict("path", f"{directory.path!r} is already registered as the store {other.name!r}")
    if directories.is_inside(directory.path, other.path) or (bound and directories.is_inside(place[1], theirs[1])):
        raise conflict("path", f"{directory.path!r} lies inside the store {other.name!r} ({other.path}); use that one")
    if directories.is_inside(other.path, directory.path) or (bound and directories.is_inside(theirs[1], place[1])):
        raise conflict(
            "path", f"{directory.path!r} holds the store {other.name!r} ({other.path}); give a directory beside it"
        )


def _inode(path: str) -> tuple[int, int] | None:
    """A directory mounted at two places has one inode."""
    try:
        facts = Path(path).stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def _server_ids(server_ids: list[str] | None, server_id: str | None) -> list[str]:
    if server_ids is not None and server_id is not None:
        raise InvalidInput.field("server_id", "give either server_ids or server_id, not both")
    return server_ids if server_ids is not None else [] if server_id is None else [server_id]


def _server_path(given: str | None, path: str, adapters: Sequence[L2View]) -> str:
    """What the servers call the directory: given, or what their configuration says, or the path itself.

    Raises InvalidInput where the servers are known to write elsewhere.
    """
    configured = list(dict.fromkeys(os.path.normpath(a.base_path) for a in adapters if a.base_path))
    listed = ", ".join(repr(c) for c in configured)
    if given is not None:
        server_path = directories.check_server_path(given)
        if configured and server_path not in configured:
            raise InvalidInput.field(
                "server_path", f"{server_path!r} is not a directory its servers are configured for; those are {listed}"
            )
        return server_path
    for candidate in configured:
        if directories.same_directory(path, candidate):
            return candidate
    if len(configured) > 1:
        raise InvalidInput.field("server_path", f"its servers write to {listed}: say which of them this directory is")
    return configured[0] if configured else path


def _configured_temp_dir(server_path: str, adapters: Sequence[L2View]) -> str | None:
    for adapter in adapters:
        if adapter.base_path and os.path.normpath(adapter.base_path) == server_path and adapter.relative_tmp_dir:
            try:
                return directories.check_temp_dir(adapter.relative_tmp_dir)
            except InvalidInput:
                return None  # the server's word is no reason to look outside the store
    return None


def _links(session: Session, store_ids: Sequence[int]) -> dict[int, list[int]]:
    links: dict[int, list[int]] = defaultdict(list)
    for store_id, server_id in session.execute(
        select(StoreServer.store_id, StoreServer.server_id)
        .where(StoreServer.store_id.in_(store_ids))
        .order_by(StoreServer.id)
    ):
        links[store_id].append(server_id)
    return links


def _link(session: Session, store_id: int, server_ids: Sequence[int]) -> None:
    rows = session.scalars(select(StoreServer).where(StoreServer.store_id == store_id)).all()
    for row in rows:
        if row.server_id not in server_ids:
            session.delete(row)
    present = {row.server_id for row in rows}
    session.add_all(StoreServer(store_id=store_id, server_id=i) for i in server_ids if i not in present)


def _view(row: Store, server_ids: list[int], live: StoreLive) -> StoreView:
    return StoreView(
        id=str(row.id),
        name=row.name,
        path=row.path,
        server_path=row.server_path,
        server_ids=[str(server_id) for server_id in server_ids],
        temp_dir=row.temp_dir,
        kind=row.kind,
        labels=row.labels,
        revision=row.revision,
        created_at=iso(row.created_at) or "",
        usable=live.usable,
        usable_reason=live.usable_reason,
        checked_at=iso(live.checked_at),
        filesystem=live.filesystem,
        disk=live.disk,
    )
