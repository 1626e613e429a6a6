"""Services for a command on the data directory, beside a running panel or without one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from app import data_dir, migrate
from app.auth.service import Principal
from app.clock import system_clock
from app.commands.serve import configure_logging
from app.errors import InvalidInput, TierkeeperError
from app.services import Services
from app.settings import Settings, load_settings
from app.wiring import build_services

#: Who commands act as in the audit trail.
COMMAND_PRINCIPAL = Principal("command", "admin", "system")


class NoDatabase(InvalidInput):
    """The data directory is not one of a panel: most commands have nothing to work on there."""


@contextmanager
def command_services(*, create: bool = False) -> Iterator[Services]:
    """Services over the data directory, migrated; long work runs in the calling thread (claims keep it single).

    Without `create` the database must be there: a command in the wrong directory must not make an empty panel of it.
    Raises NoDatabase, InvalidInput, Conflict.
    """
    settings = load_settings()
    if not create:
        _require_database(settings)
    # To stderr (stdout is the command's result), and without the daily news of a server.
    configure_logging("WARNING" if settings.log_level == "INFO" else settings.log_level)
    data_dir.prepare(settings.data_dir)
    services = build_services(settings, system_clock)
    try:
        migrate.upgrade(services.db, settings.data_dir)
        yield services
    finally:
        services.db.dispose()


def keep_program() -> None:
    """Takes what the start has made out of the garbage collector's sight: it stays anyway.

    Work over many records makes the collector look at everything again and again: with the whole program in its way
    that was a tenth to a quarter of the CPU of removing 100,000 records. `serve` does the same when it listens.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def peek_services() -> Iterator[Services | None]:
    """Services over the data directory for a command that can do without: None where there is no database of this
    version, or the settings cannot be used. Nothing is made and nothing is migrated.
    """
    try:
        settings = load_settings()
        _require_database(settings)
        configure_logging("WARNING" if settings.log_level == "INFO" else settings.log_level)
        services = build_services(settings, system_clock)
    except (TierkeeperError, OSError):
        yield None
        return
    try:
        yield services if _current(services) else None
    finally:
        services.db.dispose()


def _current(services: Services) -> bool:
    try:
        return migrate.current_revision(services.db) == migrate.head_revision()
    except DBAPIError:
        return False


def _require_database(settings: Settings) -> None:
    url = make_url(settings.sqlalchemy_url)
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return
    path = Path(str(url.database))
    if path.is_file():
        return
    name, value = (
        ("TIERKEEPER_DATABASE_URL", settings.database_url)
        if settings.database_url
        else ("TIERKEEPER_DATA_DIR", str(settings.data_dir))
    )
    raise NoDatabase.field(
        name,
        f"{value!r} holds no database of a panel ({path} does not exist); run this where the panel runs or set "
        f"{name}, use --url and --token where the command has them, or make a new panel with: tierkeeper migrate, and "
        "register what it is to look after with: tierkeeper target add --name NAME server URL, then "
        "tierkeeper target add --name NAME --server NAME store DIRECTORY",
    )
