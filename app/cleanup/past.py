"""What plans, runs, restores and purges had to do with one record: rows of its past."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import select

from app.cleanup.chunks import Chunk, read_chunk_of
from app.cleanup.items import ItemRow
from app.cleanup.name_index import plans_naming
from app.cleanup.selection import ItemFilter
from app.cleanup.tables import CleanupRun, Plan, QuarantineJob
from app.clock import iso
from app.database import Database
from app.records.schemas import PastView

#: The plans that are told of, newest first.
PLANS_TOLD = 50
_MOVED = frozenset({"quarantined", "restored", "purged", "left_behind"})
#: Why a run left a record where it was.
_LEFT = {
    "planned": "the run ended before its turn",
    "open": "the run was cut off at it, and what became of it is not settled",
    "vanished": "it was not there any more",
    "changed": "it was not the file that was planned",
    "used": "it had been read since the plan",
    "reclassified": "its class was another one by then",
    "held": "it was on hold",
    "linked": "it had more than one name",
    "not_regular": "it was no regular file",
    "other_device": "it lay on another device",
    "failed": "it could not be moved",
    "in_place": "it was put back when the run was interrupted",
}


class _Told(NamedTuple):
    """One record of one plan with what became of the plan. `jobs`: restores and purges of its run, oldest first."""

    plan: Plan
    run: CleanupRun | None
    jobs: Sequence[QuarantineJob]
    chunk: Chunk
    item: ItemRow


def past_of_name(db: Database, store_id: int, name: bytes) -> list[PastView]:
    """Every plan that named a record and is still kept, and what its run, restores and purges did to it."""
    named = plans_naming(db, store_id, name)
    if not named:
        return []
    plan_ids = sorted({plan_id for plan_id, _ in named})[-PLANS_TOLD:]
    with db.read() as session:
        plans = {row.id: row for row in session.scalars(select(Plan).where(Plan.id.in_(plan_ids)))}
        runs = {row.plan_id: row for row in session.scalars(select(CleanupRun).where(CleanupRun.plan_id.in_(plan_ids)))}
        jobs: dict[int, list[QuarantineJob]] = {}
        of_runs = QuarantineJob.run_id.in_([run.id for run in runs.values()])
        for job in session.scalars(select(QuarantineJob).where(of_runs).order_by(QuarantineJob.id)):
            jobs.setdefault(job.run_id, []).append(job)
    found: list[PastView] = []
    earlier = len({plan_id for plan_id, _ in named}) - len(plan_ids)
    for plan_id, seq in named:
        plan, chunk = plans.get(plan_id), read_chunk_of(db, plan_id, seq) if plan_id in plans else None
        if plan is None or chunk is None:
            continue
        run = runs.get(plan_id)
        told = _Told(plan, run, jobs.get(run.id, []) if run else [], chunk, chunk.rows[seq - chunk.first_seq])
        found += _events(told, earlier=earlier if plan_id == plan_ids[0] else 0)
    return found


def _events(told: _Told, *, earlier: int) -> list[PastView]:
    plan, run, item = told.plan, told.run, told.item
    events: list[PastView] = []
    kind = item.cls if item.reason is None else f"{item.cls} ({_spaced(item.reason)})"
    if item.round > 1:
        events.append(_event(plan.created_at, "named by a run", f"written again while it went on; {kind}", run, plan))
    elif plan.origin != "quarantine":
        why = "" if item.why == item.cls else f", for {_spaced(item.why)}"
        detail = f"to {'be deleted' if item.action == 'delete' else 'go to quarantine'} as {kind}{why}; {_of(plan)}"
        if earlier:
            detail += f"; {earlier} earlier plans named it too"
        events.append(_event(plan.finished_at or plan.created_at, "planned", detail, plan, plan))
    if run is None:
        return events
    state = told.chunk.state_of(item.seq - told.chunk.first_seq)
    times = told.chunk.times
    note = told.chunk.notes.get(item.seq - told.chunk.first_seq)
    reached = run.started_at or run.created_at
    if plan.origin == "quarantine":
        events.append(_event(run.created_at, "moved to quarantine", f"by another panel, as {kind}", run, run))
        events.append(_event(run.finished_at or reached, "taken over", "with the folder it waits in", run, run))
    elif state in _MOVED:
        events.append(_event(times.get("quarantined", reached), "moved to quarantine", _trigger(run), run, run))
    elif state == "deleted":
        events.append(_event(times.get("deleted", reached), "deleted", _trigger(run), run, run))
    elif run.finished_at is not None or state != "planned":
        left = _LEFT.get(state, _spaced(state)) + (f" ({note.detail})" if note is not None and note.detail else "")
        events.append(_event(times.get(state, run.finished_at or reached), "left where it was", left, run, run))
    job = _job_of(told, {"restored": "restore", "purged": "purge"}.get(state))
    if job is not None:
        word = "put back" if state == "restored" else "purged for good"
        detail = f"from the quarantine of run {run.id}, {_part(job)}"
        events.append(_event(times.get(state, job.finished_at or job.created_at), word, detail, run, job))
    return events


def _job_of(told: _Told, kind: str | None) -> QuarantineJob | None:
    """The restore or purge that took the record: the first of its kind that chose it, since after it nothing waits."""
    return next((job for job in told.jobs if job.kind == kind and ItemFilter.of(job.selection).takes(told.item)), None)


def _event(
    at: float, what: str, detail: str, of: Plan | CleanupRun | None, by: Plan | CleanupRun | QuarantineJob
) -> PastView:
    kind = "plan" if isinstance(of, Plan) else "cleanup_run" if of is not None else None
    return PastView(
        at=iso(at) or "",
        what=what,
        detail=detail,
        source=by.requested_by,
        ref_kind=kind,
        ref_id=None if of is None else str(of.id),
    )


def _of(plan: Plan) -> str:
    if plan.policy_name is not None:
        return f"the policy {plan.policy_name}"
    return "the records of a test" if plan.origin == "housekeeping" else "a filter"


def _trigger(run: CleanupRun) -> str:
    words = {
        "hand": "a run by hand",
        "schedule": "a run of the schedule",
        "layout_change": "a run after a change of layout",
        "housekeeping": "a run that clears up after a test",
    }
    said = words.get(run.trigger, run.trigger)
    return said if run.policy_name is None else f"{said}, of the policy {run.policy_name}"


def _part(job: QuarantineJob) -> str:
    return "with part of it" if job.selection else "with all of it"


def _spaced(word: str) -> str:
    return word.replace("_", " ")
