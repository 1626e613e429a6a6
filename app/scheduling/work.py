"""Long work: a row with a state, a progress and a cancel flag; a crash leaves `interrupted`, never a lie.

Rooms declare a table class with `WorkColumns` (scan, plan, cleanup run, acceptance run …) and register a runner
with the `WorkRunner`. A row is created `queued` by a service, through `WorkRunner.queue`, claimed by a guarded UPDATE
(rowcount 0 = somebody else has it), run in a worker thread, and ends in one of the terminal states. A command beside a
running panel uses the same runner in its own process: claims make that safe.
"""

from __future__ import annotations

from sqlalchemy import Index  # noqa: F401  (re-exported for tables that index their state)
from sqlalchemy.orm import Mapped, mapped_column

QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED, INTERRUPTED = (
    "queued",
    "running",
    "succeeded",
    "failed",
    "cancelled",
    "interrupted",
)
ACTIVE_STATES = frozenset({QUEUED, RUNNING})
TERMINAL_STATES = frozenset({SUCCEEDED, FAILED, CANCELLED, INTERRUPTED})


class Skipped(Exception):
    """A firing that is not to start now (a blackout window, say); its text is why. Raised by what a schedule fires."""


class WorkColumns:
    """Columns every kind of long work has. Times are epoch seconds UTC."""

    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(default=QUEUED, index=True)
    progress_done: Mapped[int] = mapped_column(default=0)
    progress_total: Mapped[int | None] = mapped_column(default=None)
    progress_unit: Mapped[str] = mapped_column(default="")
    error: Mapped[str | None] = mapped_column(default=None)
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[float]
    started_at: Mapped[float | None] = mapped_column(default=None)
    finished_at: Mapped[float | None] = mapped_column(default=None)
    requested_by: Mapped[str] = mapped_column(default="system")
    # The process that queued it, then the one that runs it (`owners.py`), so that anybody can tell that it is gone.
    owner: Mapped[str | None] = mapped_column(default=None)
    heartbeat_at: Mapped[float | None] = mapped_column(default=None)
