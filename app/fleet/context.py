"""What the parts of the fleet service share: dependencies, hooks, and small helpers on rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import structlog
from pydantic import BaseModel
from sqlalchemy import delete, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app import secret_files
from app.audit.service import AuditService
from app.clock import Clock
from app.database import Database
from app.errors import Conflict, InvalidInput, NotFound
from app.fleet.addresses import Resolver, address_key, system_resolver
from app.fleet.live import LiveSource, NothingKnown
from app.fleet.tables import Engine, HealthChange, Server, Store
from app.paging import decode_cursor, encode_cursor, parse_id
from app.settings import Settings

log = structlog.get_logger()

TargetKind = Literal["server", "engine", "store"]
#: Called in the unit of work that forgets a target, before its row goes; may raise Conflict.
ForgetHook = Callable[[Session, TargetKind, int], None]
#: Called in the unit of work that gives a target another address: what was read there is no longer about it.
MovedHook = Callable[[Session, TargetKind, int], None]
#: Called after the commit that added a target or changed how it is reached.
ChangeHook = Callable[[TargetKind, int], None]
#: Raises where an opened directory is not that of the store with this id.
StoreCheck = Callable[[int, Any], object]
#: Polls one server now, in the calling thread, whether it answers or not.
Refresh = Callable[[int], None]

Row = TypeVar("Row", Server, Engine, Store)
TABLES: dict[TargetKind, type[Server] | type[Engine] | type[Store]] = {
    "server": Server,
    "engine": Engine,
    "store": Store,
}


@dataclass
class FleetContext:
    """Dependencies of the fleet service."""

    db: Database
    clock: Clock
    settings: Settings
    audit: AuditService
    resolve: Resolver = system_resolver
    live: LiveSource = field(default_factory=NothingKnown)
    refresh: Refresh | None = None
    forget_hooks: list[ForgetHook] = field(default_factory=list)
    moved_hooks: list[MovedHook] = field(default_factory=list)
    change_hooks: list[ChangeHook] = field(default_factory=list)
    store_check: StoreCheck | None = None

    def changed(self, kind: TargetKind, target_id: int) -> None:
        for hook in self.change_hooks:
            hook(kind, target_id)

    def secret(self, stored: str | None) -> str | None:
        """A secret as it is sent: ``file:/run/secrets/x`` is read now. None, and a log line, where it cannot be."""
        if stored is None or not secret_files.is_reference(stored):
            return stored
        try:
            return secret_files.read(stored, "api_key", inside=self.settings.secrets_dir) or None
        except InvalidInput as error:
            log.error("secret_file.unreadable", reason=error.detail)
            return None

    def secrets(self, stored: Mapping[str, str]) -> dict[str, str]:
        """Request headers as they are sent; one whose file cannot be read is left out."""
        found = {name: self.secret(value) for name, value in stored.items()}
        return {name: value for name, value in found.items() if value is not None}

    def forget(self, kind: TargetKind, target_id: int, *, actor: str) -> None:
        """Deletes the row after every hook agreed. Touches nothing outside the database."""
        with self.db.write() as session:
            row = row_of(session, TABLES[kind], kind, target_id)
            for hook in self.forget_hooks:
                hook(session, kind, target_id)
            if kind != "store":
                session.execute(
                    delete(HealthChange).where(HealthChange.target_kind == kind, HealthChange.target_id == target_id)
                )
            if kind == "server":
                session.execute(
                    update(Engine).where(Engine.server_id == target_id).values(server_id=None, server_link="none")
                )
            self.audit.record(
                session,
                actor=actor,
                action=f"{kind}.delete",
                target_kind=kind,
                target_id=target_id,
                detail={"name": row.name},
            )
            session.delete(row)
        self.changed(kind, target_id)

    def moved(self, session: Session, row: Server | Engine, kind: TargetKind, *, actor: str) -> None:
        """The target has another address: its state is unknown until the first poll there."""
        now = self.clock()
        reason = "the address was changed; not polled there yet"
        if row.health_state != "unknown":
            session.add(
                HealthChange(
                    target_kind=kind,
                    target_id=row.id,
                    old_state=row.health_state,
                    new_state="unknown",
                    reason=reason,
                    at=now,
                    by=actor,
                )
            )
            row.health_since = now
        row.health_state, row.health_reason = "unknown", reason
        row.candidate_state, row.candidate_count = None, 0
        for hook in self.moved_hooks:
            hook(session, kind, row.id)


def row_of(session: Session, table: type[Any], kind: TargetKind, target_id: int) -> Any:
    """The row, or NotFound."""
    row = session.get(table, target_id)
    if row is None:
        raise NotFound.of(kind, target_id)
    return row


def reference(session: Session, table: type[Any], kind: TargetKind, text: str, field_name: str) -> int:
    """The row id behind an id in a request body. Raises InvalidInput naming the field."""
    try:
        target_id = parse_id(kind, text)
    except NotFound:
        target_id = -1
    if target_id < 0 or session.get(table, target_id) is None:
        raise InvalidInput.field(field_name, f"no {kind} has the id {text[:80]!r}")
    return target_id


def taken_names(session: Session, *tables: type[Server] | type[Engine] | type[Store]) -> list[str]:
    return [name for table in tables for name in session.scalars(select(table.name))]


def refuse_taken(session: Session, table: type[Any], kind: str, name: str, own_id: int | None = None) -> None:
    """Raises Conflict where another row has the name, letter case aside."""
    for row_id, other in session.execute(select(table.id, table.name)):
        if row_id != own_id and other.casefold() == name.casefold():
            raise conflict("name", f"another {kind} is already called {other!r}; choose another name")


def refuse_same_address(session: Session, table: type[Any], kind: str, key: str, own_id: int | None = None) -> None:
    """Raises Conflict where another row has the address."""
    for row_id, name, url in session.execute(select(table.id, table.name, table.url)):
        if row_id != own_id and address_key(url) == key:
            raise conflict("url", f"{url} is already registered as the {kind} {name!r}")


def conflict(field_name: str, message: str) -> Conflict:
    """A Conflict that names its field."""
    from_field = InvalidInput.field(field_name, message)
    return Conflict(from_field.detail, errors=from_field.errors)


def check_revision(if_match: str | None, revision: int) -> None:
    """If-Match of PATCH. Raises Conflict where somebody else changed the target meanwhile."""
    if if_match is None or if_match.strip() == "*":
        return
    tags = {tag.strip().removeprefix("W/").strip('"') for tag in if_match.split(",")}
    if str(revision) not in tags:
        raise conflict("If-Match", f"it was changed meanwhile (it is at revision {revision}); read it again first")


def sent(body: BaseModel, nullable: Collection[str] = ()) -> dict[str, Any]:
    """What a PATCH body really holds. Raises InvalidInput for a null where null means nothing."""
    values = {name: getattr(body, name) for name in body.model_fields_set}
    for name, value in values.items():
        if value is None and name not in nullable:
            raise InvalidInput.field(name, "cannot be null; leave it out to keep it as it is")
    return values


def named_page(
    session: Session,
    table: type[Row],
    list_name: str,
    *,
    page_size: int,
    page_token: str | None,
    q: str | None,
    conditions: Collection[Any] = (),
) -> tuple[list[Row], str | None]:
    """One page of targets by name, and the token of the next one."""
    wanted = list(conditions)
    if q:
        address: Any = Store.path if table is Store else getattr(table, "url")  # noqa: B009
        wanted.append(or_(table.name.icontains(q, autoescape=True), address.icontains(q, autoescape=True)))
    if page_token:
        wanted.append(table.name > decode_cursor(list_name, page_token)[0])
    query = select(table).where(*wanted).order_by(table.name).limit(page_size + 1)
    rows: list[Row] = list(session.scalars(query))
    more = len(rows) > page_size
    rows = rows[:page_size]
    return rows, encode_cursor(list_name, [rows[-1].name]) if more else None


def labelled(table: type[Any], label: str) -> Any:
    """The condition that a target has this label. Raises InvalidInput naming ``label``."""
    key, equals, value = label.partition("=")
    if not equals or not key:
        raise InvalidInput.field("label", f"{label[:80]!r} is not KEY=VALUE")
    return table.labels[key].as_string() == value


def labels_in_use(session: Session, table: type[Any]) -> list[tuple[str, int]]:
    """Labels as KEY=VALUE, by name, with how many targets have each."""
    found = Counter(
        f"{key}={value}" for labels in session.scalars(select(table.labels)) for key, value in labels.items()
    )
    return sorted(found.items())


def shown(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request body for the audit trail: header values may be secrets."""
    return {k: sorted(v) if k == "headers" and isinstance(v, dict) else v for k, v in body.items() if v is not None}


def integrity_conflict(error: IntegrityError, kind: str) -> Conflict:
    """Two requests at once for the same name or address: the second loses."""
    what = "url" if "url" in str(error.orig) else "path" if "path" in str(error.orig) else "name"
    return conflict(what, f"another {kind} with this {what} was added at the same moment")
