"""Restart hooks as rows: list, create, change, forget."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.acceptance.hook_schemas import HookAction, HookActionView, HookInput, HookPatch, HookView
from app.acceptance.ports import Audit
from app.acceptance.tables import AcceptanceRun, RestartHook
from app.clock import Clock, iso
from app.database import Database
from app.errors import Conflict, InvalidInput, NotFound
from app.fleet.addresses import parse_address
from app.paging import decode_cursor, encode_cursor
from app.scheduling.schemas import Page
from app.scheduling.work import ACTIVE_STATES
from app.settings import Settings


class HookService:
    """Restart hooks. Commands run as the panel's user, so only administrators may write them."""

    def __init__(self, *, db: Database, clock: Clock, settings: Settings, audit: Audit) -> None:
        self._db = db
        self._clock = clock
        self._settings = settings
        self._audit = audit

    def create(self, body: HookInput, *, actor: str) -> HookView:
        """Raises InvalidInput for an action that cannot work, Conflict for a taken name."""
        if body.server is None and body.engine is None:
            raise InvalidInput.field("server", "give an action for the server, the engine, or both")
        now = self._clock()
        row = RestartHook(
            name=body.name,
            server_action=self._stored(body.server, "server"),
            engine_action=self._stored(body.engine, "engine"),
            timeout_seconds=body.timeout_seconds,
            created_at=now,
            updated_at=now,
        )
        try:
            with self._db.write() as session:
                session.add(row)
                session.flush()
                self._record(session, actor, "hook.create", row)
        except IntegrityError:
            raise Conflict(f"a hook is already called {body.name!r}; choose another name") from None
        return _view(row)

    def get(self, hook_id: int) -> HookView:
        """Raises NotFound."""
        with self._db.read() as session:
            return _view(self._row(session, hook_id))

    def list_hooks(self, *, page_size: int, page_token: str | None) -> Page[HookView]:
        """Oldest first."""
        query = select(RestartHook).order_by(RestartHook.id).limit(page_size + 1)
        if page_token:
            query = query.where(RestartHook.id > decode_cursor("hooks", page_token)[0])
        with self._db.read() as session:
            rows = list(session.scalars(query))
        more = len(rows) > page_size
        rows = rows[:page_size]
        return Page(
            items=[_view(r) for r in rows], next_page_token=encode_cursor("hooks", [rows[-1].id]) if more else None
        )

    def patch(self, hook_id: int, body: HookPatch, *, actor: str) -> HookView:
        """Only what was sent changes. Raises NotFound, InvalidInput, Conflict."""
        sent = body.model_fields_set
        try:
            with self._db.write() as session:
                row = self._row(session, hook_id)
                if body.name is not None:
                    row.name = body.name
                if "server" in sent:
                    row.server_action = self._stored(body.server, "server")
                if "engine" in sent:
                    row.engine_action = self._stored(body.engine, "engine")
                if body.timeout_seconds is not None:
                    row.timeout_seconds = body.timeout_seconds
                if row.server_action is None and row.engine_action is None:
                    raise InvalidInput.field("server", "would leave the hook without any action; delete it instead")
                row.updated_at = self._clock()
                row.revision += 1
                session.flush()
                self._record(session, actor, "hook.update", row)
        except IntegrityError:
            raise Conflict(f"a hook is already called {body.name!r}; choose another name") from None
        return _view(row)

    def delete(self, hook_id: int, *, actor: str) -> None:
        """Raises NotFound; Conflict while a run uses it."""
        with self._db.write() as session:
            row = self._row(session, hook_id)
            active = session.scalars(select(AcceptanceRun).where(AcceptanceRun.state.in_(sorted(ACTIVE_STATES))))
            if any(r.request.get("restart_hook_id") == str(hook_id) for r in active):
                raise Conflict("an acceptance run uses this hook just now; wait for it or cancel it")
            self._record(session, actor, "hook.delete", row)
            session.delete(row)

    def _row(self, session: Session, hook_id: int) -> RestartHook:
        row = session.get(RestartHook, hook_id)
        if row is None:
            raise NotFound.of("hook", hook_id)
        return row

    def _stored(self, action: HookAction | None, field: str) -> dict[str, Any] | None:
        if action is None:
            return None
        if action.webhook is not None:
            parts = urlsplit(action.webhook)
            try:
                origin = f"{parts.scheme}://{parts.netloc}"
            except ValueError:
                origin = action.webhook
            parse_address(origin, field=f"{field}.webhook", allow_link_local=self._settings.allow_link_local)
        if action.argv is not None and (not action.argv[0].strip() or any("\0" in a for a in action.argv)):
            raise InvalidInput.field(f"{field}.argv", "must begin with a program and hold no NUL")
        return action.model_dump(exclude_defaults=True)

    def _record(self, session: Session, actor: str, action: str, row: RestartHook) -> None:
        self._audit.record(
            session,
            actor=actor,
            action=action,
            target_kind="hook",
            target_id=row.id,
            detail={
                "name": row.name,
                "server": _named(row.server_action),
                "engine": _named(row.engine_action),
            },
        )


def _named(action: dict[str, Any] | None) -> Any:
    """An action without the values of its headers."""
    return None if action is None else {k: v for k, v in action.items() if k != "headers"}


def _view(row: RestartHook) -> HookView:
    return HookView(
        id=str(row.id),
        name=row.name,
        server=_action_view(row.server_action),
        engine=_action_view(row.engine_action),
        timeout_seconds=row.timeout_seconds,
        created_at=iso(row.created_at) or "",
    )


def _action_view(action: dict[str, Any] | None) -> HookActionView | None:
    if action is None:
        return None
    return HookActionView(
        argv=action.get("argv"),
        webhook=action.get("webhook"),
        header_names=sorted(action.get("headers") or ()),
        manual=bool(action.get("manual")),
    )
