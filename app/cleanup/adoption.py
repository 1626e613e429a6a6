"""Making a run of a quarantine folder that this panel's database does not know, by its manifest (R3)."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from typing import Any

from sqlalchemy import insert, select, update

from app.audit.service import AuditService
from app.cleanup.chunks import ChunkWriter, read_chunk
from app.cleanup.disk import StoreRoot, signed, store_root
from app.cleanup.journal import recount
from app.cleanup.lock import StoreLock
from app.cleanup.plan import Group
from app.cleanup.ports import Inventory
from app.cleanup.quarantine import folder_path, list_folders, read_manifest
from app.cleanup.removal import look
from app.cleanup.tables import CleanupRun, Plan, PlanChunk
from app.clock import Clock, parse_iso
from app.database import Database
from app.errors import Conflict, NotFound
from app.fleet.targets import StoreTarget
from app.scheduling.work import SUCCEEDED


def adopt(
    db: Database,
    clock: Clock,
    audit: AuditService,
    inventory: Inventory,
    store: StoreTarget,
    folder: str,
    *,
    owner: str,
    actor: str,
) -> int:
    """The id of the new run. Only files that are what the manifest says are taken over.

    Raises NotFound, StoreError, Conflict.
    """
    with db.read() as session:
        known = session.scalar(select(CleanupRun.id).where(CleanupRun.folder == folder))
    if known is not None:
        raise Conflict(f"{folder} is of cleanup run {known}, which this panel knows")
    with (
        store_root(inventory, store) as root,
        StoreLock(root, owner=owner, work=f"taking over {folder}", clock=clock),
    ):
        folders = [f for f in list_folders(root) if f == folder or re.fullmatch(re.escape(folder) + r"\.\d{1,3}", f)]
        if folder not in folders:
            raise NotFound(f"the quarantine of {store.name} has no folder {folder[:200]!r}")
        header, _ = read_manifest(root, folder_path(folder))
        run_id, plan_id = _rows(db, clock, audit, store, folder, header, actor)
        writer_seq = 1
        for part in folders:
            round_no = int(part.rpartition(".")[2]) if "." in part else 1
            writer_seq = _take_over(db, clock, root, part, plan_id, writer_seq, round_no)
        tally = recount(db, run_id, plan_id)
        with db.write() as session:
            plan = session.get(Plan, plan_id)
            if plan is not None:
                plan.records, plan.bytes = tally.removed_records, tally.removed_bytes
            session.execute(
                update(CleanupRun)
                .where(CleanupRun.id == run_id)
                .values(
                    planned_records=tally.removed_records - tally.added_records,
                    planned_bytes=tally.removed_bytes - tally.added_bytes,
                )
            )
    return run_id


def _rows(
    db: Database,
    clock: Clock,
    audit: AuditService,
    store: StoreTarget,
    folder: str,
    header: dict[str, Any],
    actor: str,
) -> tuple[int, int]:
    now = clock()
    started = _moment(header.get("started_at")) or now
    policy = header.get("policy")
    work = {
        "state": SUCCEEDED,
        "created_at": started,
        "started_at": started,
        "finished_at": now,
        "requested_by": actor,
    }
    with db.write() as session:
        plan = Plan(
            store_id=store.id,
            policy_name=policy[:120] if isinstance(policy, str) else None,
            origin="quarantine",
            body={"filter": {}},
            removal="quarantine",
            **work,
        )
        session.add(plan)
        session.flush()
        run = CleanupRun(
            store_id=store.id,
            policy_name=plan.policy_name,
            plan_id=plan.id,
            folder=folder,
            verdict="succeeded",
            notes=["Taken over from a folder that another panel left in quarantine."],
            purge_after=_moment(header.get("purge_after")),
            **work,
        )
        session.add(run)
        session.flush()
        audit.record(
            session,
            actor=actor,
            action="quarantine.adopt",
            target_kind="cleanup_run",
            target_id=run.id,
            detail={"store_id": store.id, "folder": folder},
        )
        return run.id, plan.id


def _take_over(
    db: Database, clock: Clock, root: StoreRoot, folder: str, plan_id: int, first_seq: int, round_no: int
) -> int:
    """Chunks of one folder's files, all in quarantine; returns the first free number after them."""
    writer = ChunkWriter(plan_id, first_seq=first_seq, round_no=round_no)
    rows: list[dict[str, Any]] = []
    for group in _groups(root, folder):
        rows.extend(writer.add(group))
    rows.extend(writer.rest())
    for row in rows:
        with db.write() as session:
            session.execute(insert(PlanChunk), [row])
        chunk = read_chunk(db, plan_id, row["first_seq"])
        if chunk is not None:
            chunk.set([(item.seq, "quarantined", None, None) for item in chunk.rows], clock())
            with db.write() as session:
                chunk.save(session)
    return first_seq + sum(int(row["records"]) for row in rows)


def _groups(root: StoreRoot, folder: str) -> Iterator[Group]:
    """What the manifest tells of and the disk confirms."""
    path = folder_path(folder)
    seen: set[bytes] = set()
    _, entries = read_manifest(root, path)
    for entry in entries:
        if entry.name in seen:
            continue
        found = look(root, entry.name, path)
        if found is None or not stat.S_ISREG(found.st_mode):
            continue
        if (found.st_size, found.st_mtime_ns, signed(found.st_ino)) != (entry.size, entry.mtime_ns, entry.inode):
            continue
        seen.add(entry.name)
        row = (entry.name, entry.size, entry.mtime_ns, entry.ctime_ns, entry.atime_ns, entry.inode, None)
        yield Group(entry.cls, entry.reason, entry.why, "quarantine", root.device, [row])


def _moment(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        return parse_iso(value)
    except (ValueError, OverflowError):
        return None
