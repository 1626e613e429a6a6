"""Whether something of a store hangs on what the panel knows of its directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cleanup.tables import CleanupIntent, CleanupRun, QuarantineJob
from app.cleanup.waiting import is_tied
from app.scheduling.work import RUNNING, SUCCEEDED
from tests.unit.records.room import Room


@pytest.mark.parametrize(
    ("state", "waiting", "job", "open_intent", "tied"),
    [
        (SUCCEEDED, 0, SUCCEEDED, False, False),
        (RUNNING, 0, SUCCEEDED, False, True),
        (SUCCEEDED, 3, SUCCEEDED, False, True),
        (SUCCEEDED, 0, RUNNING, False, True),
        (SUCCEEDED, 0, SUCCEEDED, True, True),
    ],
)
def test_what_ties_a_store(tmp_path: Path, state: str, waiting: int, job: str, open_intent: bool, tied: bool) -> None:
    room = Room(tmp_path)
    try:
        with room.db.write() as session:
            session.add(
                CleanupRun(
                    id=1,
                    store_id=1,
                    folder="r1",
                    state=state,
                    waiting_records=waiting,
                    created_at=0,
                    requested_by="test",
                )
            )
            session.flush()
            session.add(QuarantineJob(run_id=1, kind="purge", state=job, created_at=0, requested_by="test"))
            settled = None if open_intent else 1.0
            session.add(CleanupIntent(run_id=1, kind="remove", plan_id=1, first_seq=1, opened_at=0, settled_at=settled))
        assert is_tied(room.db, 1) is tied
        assert is_tied(room.db, 2) is False
    finally:
        room.close()
