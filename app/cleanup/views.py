"""Rows as the outside sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from app.cleanup.chunks import Chunk
from app.cleanup.items import ItemRow
from app.cleanup.policy import PolicySpec, cron_of
from app.cleanup.presets import describe
from app.cleanup.schemas import (
    BlackoutView,
    Count,
    EpisodeView,
    FailedItem,
    GoalView,
    ItemView,
    LeavesView,
    LimitsView,
    Origin,
    PlanView,
    PolicyView,
    ProtectView,
    QuarantineJobView,
    RecentUseView,
    Removal,
    RunBrief,
    RunView,
    SeenView,
    StepView,
    Trigger,
    Verdict,
)
from app.cleanup.selection import item_id
from app.cleanup.tables import CleanupEpisode, CleanupRun, Plan, Policy, QuarantineJob
from app.clock import iso, iso_ns
from app.lmcache.object_keys import decode_model, parse_name
from app.records.facts import display_name
from app.scheduling.cron import next_firings
from app.scheduling.schemas import Progress
from app.scheduling.work import TERMINAL_STATES, WorkColumns
from app.sizes import disk_size


def work_fields(row: WorkColumns) -> dict[str, Any]:
    """The part that every kind of long work shows."""
    return {
        "id": str(row.id),
        "state": row.state,
        "progress": Progress(done=row.progress_done, total=row.progress_total, unit=row.progress_unit),
        "error": row.error,
        "created_at": iso(row.created_at) or "",
        "started_at": iso(row.started_at),
        "finished_at": iso(row.finished_at),
        "requested_by": row.requested_by,
    }


def count(pair: Any) -> Count:
    """[records, bytes] as stored."""
    return Count(records=int(pair[0]), bytes=int(pair[1]))


def counts(stored: Mapping[str, Any]) -> dict[str, Count]:
    """{word: [records, bytes]} as stored."""
    return {word: count(pair) for word, pair in stored.items()}


def policy_view(
    row: Policy, spec: PolicySpec, *, store_name: str, last: CleanupRun | None, paused: bool, now: float
) -> PolicyView:
    """A policy with its sentence, firings (none while paused) and last run. A paused schedule is not enabled."""
    cron = cron_of(row.schedule)
    upcoming = next_firings(cron, row.timezone, now) if cron is not None and row.enabled and not paused else []
    body = row.body
    return PolicyView(
        id=str(row.id),
        name=row.name,
        store_id=str(row.store_id),
        store_name=store_name,
        enabled=row.enabled and not paused,
        schedule=row.schedule,
        timezone=row.timezone,
        select=list(body["select"]),
        protect=ProtectView(**(body.get("protect") or {})),
        limits=LimitsView(**(body.get("limits") or {})),
        removal=cast(Removal, row.removal),
        quarantine_for=row.quarantine_for,
        blackouts=[BlackoutView(**b) for b in body.get("blackouts") or []],
        summary=describe(spec),
        next_firings=[iso(t) or "" for t in upcoming],
        last_run=None if last is None else run_brief(last),
        created_at=iso(row.created_at) or "",
        updated_at=iso(row.updated_at) or "",
    )


def run_brief(row: CleanupRun) -> RunBrief:
    """A run in one line."""
    return RunBrief(
        id=str(row.id),
        state=row.state,
        verdict=cast(Verdict | None, row.verdict),
        finished_at=iso(row.finished_at),
        removed=Count(records=row.removed_records, bytes=row.removed_bytes),
    )


def plan_view(row: Plan, *, store_name: str, run_id: int | None, now: float) -> PlanView:
    """A plan; its numbers are there once it is made."""
    made = row.expires_at is not None
    leaves, use, goal = row.leaves, row.recent_use, row.goal
    return PlanView(
        **work_fields(row),
        store_id=str(row.store_id),
        store_name=store_name,
        policy_id=None if row.policy_id is None else str(row.policy_id),
        policy_name=row.policy_name,
        origin=cast(Origin, row.origin),
        quarantine_for=row.quarantine_for,
        filter=row.body.get("filter"),
        removal=cast(Removal, row.removal),
        records=row.records,
        bytes=row.bytes,
        by_reason=counts(row.by_reason),
        leaves=LeavesView(**leaves) if made and leaves else None,
        held_back=counts(row.held_back),
        recent_use=RecentUseView(
            last_day=None if use["last_day"] is None else count(use["last_day"]),
            last_week=None if use["last_week"] is None else count(use["last_week"]),
            reason=use["reason"],
        )
        if made and use
        else None,
        goal=GoalView(
            needed_bytes=goal["needed_bytes"],
            planned_bytes=goal["planned_bytes"],
            shortfall_bytes=goal["shortfall_bytes"],
            sentences=goal["sentences"],
        )
        if goal
        else None,
        limited=row.limited,
        warnings=row.warnings,
        expires_at=iso(row.expires_at),
        expired=row.expires_at is not None and now > row.expires_at,
        scanned_at=iso(row.scanned_at),
        run_id=None if run_id is None else str(run_id),
        seen=SeenView(**seen) if (seen := row.body.get("seen")) else None,
    )


def item_view(chunk: Chunk, row: ItemRow) -> ItemView:
    """One record of a plan, its name taken apart as far as it parses."""
    parsed = parse_name(row.name)
    index = row.seq - chunk.first_seq
    state = chunk.state_of(index)
    number, detail = chunk.notes.get(index) or (None, None)
    return ItemView(
        id=item_id(row.seq),
        record_id=None if row.record_id is None else str(row.record_id),
        name=display_name(row.name),
        class_=row.cls,
        reason=row.reason,
        why=row.why,
        action=cast(Removal, row.action),
        model_name=None if parsed is None else decode_model(parsed.model),
        kv_rank=None if parsed is None else parsed.kv_rank,
        world_size=None if parsed is None else parsed.key.world_size,
        rank=None if parsed is None else parsed.key.rank,
        object_group_id=None if parsed is None else parsed.object_group_id,
        chunk_hash=None if parsed is None else parsed.chunk_hash.hex(),
        cache_salt=None if parsed is None else parsed.cache_salt,
        size_bytes=row.size,
        modified_at=iso_ns(row.mtime_ns) or "",
        accessed_at=iso_ns(row.atime_ns) or "",
        round=row.round,
        state=state,
        errno=number,
        detail=detail,
        changed_at=iso(chunk.times.get(state)),
    )


def run_view(row: CleanupRun, *, store_name: str) -> RunView:
    """A run with what it planned, did and left."""
    measured = None
    if row.free_bytes_before is not None and row.free_bytes_after is not None:
        measured = row.free_bytes_after - row.free_bytes_before
    planned = Count(records=row.planned_records, bytes=row.planned_bytes)
    done = row.removed_records + sum(row.skipped.values()) + row.failed_total
    return RunView(
        **work_fields(row),
        store_id=str(row.store_id),
        store_name=store_name,
        policy_id=None if row.policy_id is None else str(row.policy_id),
        policy_name=row.policy_name,
        plan_id=None if row.plan_id is None else str(row.plan_id),
        trigger=cast(Trigger, row.trigger),
        verdict=cast(Verdict | None, row.verdict),
        notes=row.notes,
        steps=[StepView(**{**step, "at": iso(step["at"])}) for step in row.steps],
        planned=planned,
        added=Count(records=row.added_records, bytes=row.added_bytes),
        removed=Count(records=row.removed_records, bytes=row.removed_bytes),
        not_reached=max(planned.records + row.added_records - done, 0),
        by_reason=counts(row.by_reason),
        skipped=row.skipped,
        failed=[FailedItem(**item) for item in row.failed],
        failed_total=row.failed_total,
        free_bytes_before=row.free_bytes_before,
        free_bytes_after=row.free_bytes_after,
        freed_bytes_measured=measured,
        deleted_bytes=row.deleted_bytes,
        freed_note=None if measured is None else freed_note(measured, row.deleted_bytes),
        quarantine_folder=f".tierkeeper/quarantine/{row.folder}",
        in_quarantine=Count(records=row.waiting_records, bytes=row.waiting_bytes),
        restored_records=row.restored_records,
        purged=Count(records=row.purged_records, bytes=row.purged_bytes),
        purge_after=iso(row.purge_after) if row.waiting_records or row.state not in TERMINAL_STATES else None,
    )


#: A difference of free space this small needs no explanation (bytes).
_NOISE = 2**20


def freed_note(measured: int, deleted: int) -> str:
    """What the measured difference of free space says, beside what the run deleted. Bytes.

    The file system is others', too: whatever they wrote or deleted meanwhile is in the difference.
    """
    own = f"the run deleted {disk_size(deleted)}" if deleted else "the run deleted nothing (quarantine frees nothing)"
    gap = measured - deleted
    if abs(gap) <= max(_NOISE, deleted // 20):
        return own
    # The panel's database and the run's manifest may lie there, too.
    who = "others" if gap > 0 else "others, or the panel's own files on this file system,"
    others = f"{who} {'freed' if gap > 0 else 'wrote'} about {disk_size(abs(gap))} meanwhile"
    return f"{own}; {others}, so the difference says little of the run"


def job_view(row: QuarantineJob, *, store_id: int) -> QuarantineJobView:
    """A restore or a purge."""
    measured = row.free_bytes_before is not None and row.free_bytes_after is not None
    return QuarantineJobView(
        **work_fields(row),
        run_id=str(row.run_id),
        store_id=str(store_id),
        kind=cast(Literal["restore", "purge"], row.kind),
        records=row.records,
        bytes=row.bytes,
        skipped=row.skipped,
        failed=[FailedItem(**item) for item in row.failed],
        failed_total=row.failed_total,
        freed_bytes_measured=(row.free_bytes_after or 0) - (row.free_bytes_before or 0) if measured else None,
    )


def episode_view(row: CleanupEpisode, running: int | None = None) -> EpisodeView:
    """An episode. `running`: the run that is at work on its store."""
    return EpisodeView(
        id=str(row.id),
        store_id=str(row.store_id),
        model_name=decode_model(row.model_name),
        opened_at=iso(row.opened_at) or "",
        waiting_for=row.waiting_for,
        run_ids=[str(i) for i in row.run_ids],
        closed_at=iso(row.closed_at),
        closed_by_run_id=None if row.closed_by_run_id is None else str(row.closed_by_run_id),
        running_run_id=None if running is None else str(running),
    )
