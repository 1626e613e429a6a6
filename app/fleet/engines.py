"""Engines: rows, views, and the guess which server an engine belongs to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from app.clock import iso
from app.errors import InvalidInput
from app.fleet.addresses import Address, parse_address
from app.fleet.certificates import check_ca, tls_of, tls_warnings, view_of
from app.fleet.context import (
    FleetContext,
    check_revision,
    integrity_conflict,
    labelled,
    named_page,
    reference,
    refuse_same_address,
    refuse_taken,
    row_of,
    sent,
    shown,
    taken_names,
)
from app.fleet.live import EngineLive
from app.fleet.naming import check_headers, check_labels, check_name, check_secret, free_name
from app.fleet.schemas import EngineCreate, EnginePatch, EngineView, EnteredFacts, HealthView
from app.fleet.tables import Engine, Server
from app.fleet.targets import EngineTarget
from app.shapes import Page


class Engines:
    """The engines' part of the fleet service."""

    def __init__(self, context: FleetContext) -> None:
        self._context = context

    def create(self, body: EngineCreate, *, actor: str) -> EngineView:
        context = self._context
        address = self._address(body.url)
        name = check_name(body.name) if body.name is not None else None
        now = context.clock()
        try:
            with context.db.write() as session:
                refuse_same_address(session, Engine, "engine", address.key)
                if name is None:
                    name = free_name(
                        address.default_name, taken_names(session, Server, Engine), f"{address.host}:{address.port}"
                    )
                else:
                    refuse_taken(session, Engine, "engine", name)
                server_id = None
                if body.server_id is not None:
                    server_id = reference(session, Server, "server", body.server_id, "server_id")
                row = Engine(
                    name=name,
                    url=address.url,
                    server_id=server_id,
                    server_link="none" if server_id is None else "given",
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
                    action="engine.create",
                    target_kind="engine",
                    target_id=row.id,
                    detail=shown({**body.model_dump(), "name": name, "url": address.url}),
                )
        except IntegrityError as error:
            raise integrity_conflict(error, "engine") from error
        context.changed("engine", row.id)
        return self.get(row.id)

    def get(self, engine_id: int) -> EngineView:
        with self._context.db.read() as session:
            row: Engine = row_of(session, Engine, "engine", engine_id)
        return self._views([row])[0]

    def page(
        self,
        *,
        page_size: int,
        page_token: str | None,
        q: str | None,
        health: str | None,
        server_id: int | None,
        label: str | None = None,
    ) -> Page[EngineView]:
        conditions = [Engine.health_state == health] if health else []
        if label:
            conditions.append(labelled(Engine, label))
        if server_id is not None:
            conditions.append(Engine.server_id == server_id)
        with self._context.db.read() as session:
            rows, token = named_page(
                session,
                Engine,
                f"engines|{q}|{health}|{server_id}|{label}",
                page_size=page_size,
                page_token=page_token,
                q=q,
                conditions=conditions,
            )
        return Page(items=self._views(rows), next_page_token=token)

    def patch(self, engine_id: int, body: EnginePatch, *, actor: str, if_match: str | None) -> EngineView:
        context = self._context
        values = sent(body, nullable=("api_key", "tls_ca", "server_id", "entered_facts"))
        address = self._address(values["url"]) if "url" in values else None
        live = context.live.engines_live([engine_id]).get(engine_id, EngineLive())
        try:
            with context.db.write() as session:
                row: Engine = row_of(session, Engine, "engine", engine_id)
                check_revision(if_match, row.revision)
                if "name" in values:
                    row.name = check_name(values["name"])
                    refuse_taken(session, Engine, "engine", row.name, engine_id)
                if address is not None and address.url != row.url:
                    refuse_same_address(session, Engine, "engine", address.key, engine_id)
                    row.url = address.url
                    context.moved(session, row, "engine", actor=actor)
                if "server_id" in values:
                    given = values["server_id"]
                    row.server_id = None if given is None else reference(session, Server, "server", given, "server_id")
                    row.server_link = "none" if given is None else "given"
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
                if "entered_facts" in values:
                    _enter_facts(row, values["entered_facts"], live)
                row.revision += 1
                context.audit.record(
                    session,
                    actor=actor,
                    action="engine.update",
                    target_kind="engine",
                    target_id=engine_id,
                    detail=shown(body.model_dump(exclude_unset=True)),
                )
        except IntegrityError as error:
            raise integrity_conflict(error, "engine") from error
        context.changed("engine", engine_id)
        return self.get(engine_id)

    def targets(self, *, engine_id: int | None = None, server_id: int | None = None) -> list[EngineTarget]:
        with self._context.db.read() as session:
            if engine_id is not None:
                rows: Sequence[Engine] = [row_of(session, Engine, "engine", engine_id)]
            else:
                query = select(Engine).order_by(Engine.id)
                if server_id is not None:
                    query = query.where(Engine.server_id == server_id)
                rows = session.scalars(query).all()
        return [
            EngineTarget(
                r.id,
                r.name,
                r.url,
                r.server_id,
                self._context.secret(r.api_key),
                self._context.secrets(r.headers),
                dict(r.entered_facts),
                r.entered_for_process_start,
                tls_of(r.tls_verify, r.tls_ca),
            )
            for r in rows
        ]

    def relink(self, engine_models: Mapping[int, Collection[str]], server_models: Mapping[int, Collection[str]]) -> int:
        """Guesses anew for engines without a given server; returns how many links changed.

        `engine_models`: model roots and names each engine serves; `server_models`: model names each server registers
        now. Engines missing from the first keep their link: an engine that is away says nothing.
        """
        with self._context.db.read() as session:
            rows = session.execute(
                select(Engine.id, Engine.server_id).where(
                    Engine.server_link != "given", Engine.id.in_(list(engine_models))
                )
            ).all()
        wanted: dict[int, int | None] = {}
        for engine_id, server_id in rows:
            link = guess_server(engine_models[engine_id], server_models, server_id)
            if link != server_id:
                wanted[engine_id] = link
        if not wanted:
            return 0
        with self._context.db.write() as session:
            for engine_id, link in wanted.items():
                row = session.get(Engine, engine_id)
                if row is None or row.server_link == "given" or (link and session.get(Server, link) is None):
                    continue
                row.server_id, row.server_link = link, "none" if link is None else "guessed"
        return len(wanted)

    def _address(self, url: str) -> Address:
        context = self._context
        return parse_address(url, allow_link_local=context.settings.allow_link_local, resolve=context.resolve)

    def _views(self, rows: Sequence[Engine]) -> list[EngineView]:
        live = self._context.live.engines_live([row.id for row in rows])
        now = self._context.clock()
        return [_view(row, live.get(row.id) or EngineLive(), now) for row in rows]


def guess_server(
    models: Collection[str], server_models: Mapping[int, Collection[str]], current: int | None
) -> int | None:
    """The server that is the only one registering one of these models.

    None where several do: a wrong link would reset the wrong engine. Where none does (the engine may be away from its
    server just now), what was guessed before stays.
    """
    names = set(models)
    found = [server_id for server_id, registered in server_models.items() if names & set(registered)]
    if not found:
        return current
    return found[0] if len(found) == 1 else None


def _enter_facts(row: Engine, facts: EnteredFacts | None, live: EngineLive) -> None:
    if facts is None or not facts.model_dump(exclude_none=True):
        row.entered_facts, row.entered_for_process_start = {}, None
        return
    if live.process_start is None:
        raise InvalidInput.field(
            "entered_facts",
            "what is entered holds for the engine process that runs now, and the panel does not know when it started "
            "(the engine does not answer, or its /metrics has no process_start_time_seconds); try again once it does",
        )
    row.entered_facts = facts.model_dump(exclude_none=True)
    row.entered_for_process_start = live.process_start


def _view(row: Engine, live: EngineLive, now: float) -> EngineView:
    valid = None
    if row.entered_facts:
        valid = None if live.process_start is None else row.entered_for_process_start == live.process_start
    tls = view_of(row.url, row.tls_verify, row.tls_ca, now)
    return EngineView(
        id=str(row.id),
        name=row.name,
        url=row.url,
        server_id=None if row.server_id is None else str(row.server_id),
        server_link=row.server_link,
        has_api_key=row.api_key is not None,
        header_names=sorted(row.headers),
        tls=tls,
        labels=row.labels,
        revision=row.revision,
        created_at=iso(row.created_at) or "",
        version=live.version,
        model_names=list(live.model_names),
        model_roots=list(live.model_roots),
        max_model_len=live.max_model_len,
        started_at=iso(live.process_start),
        health=HealthView.model_validate(
            {
                "state": row.health_state,
                "reason": row.health_reason,
                "since": iso(row.health_since),
                "http_up": live.http_up,
            }
        ),
        l0=live.l0,
        running=live.running,
        waiting=live.waiting,
        preemptions=live.preemptions,
        prefix_cache=live.prefix_cache,
        reset_available=live.reset_available,
        reset_reason=live.reset_reason,
        connector=live.connector,
        facts=live.facts,
        entered_facts=row.entered_facts,
        entered_facts_valid=valid,
        load=live.load,
        in_process=live.in_process,
        warnings=[*live.warnings, *tls_warnings(tls)],
        last_error=live.last_error,
        polled_at=iso(live.polled_at),
        scraped_at=iso(live.scraped_at),
        scrape_age_seconds=None if live.scraped_at is None else max(0.0, round(now - live.scraped_at, 3)),
    )
