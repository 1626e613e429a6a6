"""Services for a command on the data directory, beside a running panel or without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from app import data_dir, migrate
from app.auth.service import Principal
from app.clock import system_clock
from app.commands.serve import configure_logging
from app.services import Services
from app.settings import load_settings
from app.wiring import build_services

#: Who commands act as in the audit trail.
COMMAND_PRINCIPAL = Principal("command", "admin", "system")


@contextmanager
def command_services() -> Iterator[Services]:
    """Services over the data directory, migrated; long work runs in the calling thread (claims keep it single)."""
    settings = load_settings()
    # To stderr (stdout is the command's result), and without the daily news of a server.
    configure_logging("WARNING" if settings.log_level == "INFO" else settings.log_level)
    data_dir.prepare(settings.data_dir)
    services = build_services(settings, system_clock)
    try:
        migrate.upgrade(services.db, settings.data_dir)
        yield services
    finally:
        services.db.dispose()
