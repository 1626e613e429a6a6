"""Jobs that are code, such as roll-ups, and a database that another process holds: they come again by themselves."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from sqlalchemy.exc import DBAPIError

from app.database import trouble

log = structlog.get_logger()


def told_in_a_line(name: str, job: Callable[[], object]) -> Callable[[], None]:
    """The job; where the database cannot be used just now, its log is one line and no traceback of ours."""

    def run() -> None:
        try:
            job()
        except DBAPIError as error:
            why = trouble(error)
            if why is None:
                raise
            log.warning("job.put_off", job=name, why=why)

    return run
