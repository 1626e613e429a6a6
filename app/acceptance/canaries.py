"""The canary service: keep prompts of a passed run, read them back, show their history."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.acceptance import canary_rows as rows
from app.acceptance.canary_schemas import CanaryInput, CanaryRunInput, CanaryRunView, CanaryStanding, CanaryView
from app.acceptance.canary_work import CanaryInput as WorkInput
from app.acceptance.canary_work import CanaryWork
from app.acceptance.execution import watched
from app.acceptance.ports import Audit, Fleet, RecordRemover
from app.acceptance.prompts import SALT_PREFIX
from app.acceptance.requests import DEFAULT_REQUEST_TIMEOUT, engine_of
from app.acceptance.run import Openers
from app.acceptance.stack import Pace
from app.acceptance.tables import (
    AcceptanceRun,
    Canary,
    CanaryRun,
)
from app.clock import Clock
from app.database import Database, insert_ignore
from app.errors import Conflict, InvalidInput, NotFound, TierkeeperError
from app.fleet.schemas import EngineView, ServerView
from app.paging import decode_cursor, encode_cursor, parse_id
from app.records.tables import RecordHold
from app.scheduling.runner import WorkContext, WorkKind, WorkRunner
from app.scheduling.schemas import Page
from app.scheduling.service import StartedWork
from app.scheduling.work import ACTIVE_STATES

WORK_KIND = "canary"
#: Cleanup leaves alone what is held for this reason (app.cleanup.adapters reads the word).
HOLD_REASON = "canary"


class CanaryService:
    """Canaries and their readings-back. The work runs in worker threads."""

    def __init__(
        self,
        *,
        db: Database,
        clock: Clock,
        runner: WorkRunner,
        audit: Audit,
        fleet: Fleet,
        remover: RecordRemover | None = None,
        pace: Pace | None = None,
        openers: Openers | None = None,
    ) -> None:
        self._db = db
        self._clock = clock
        self._runner = runner
        self._audit = audit
        self._fleet = fleet
        self._remover = remover
        self._pace = pace or Pace()
        self._openers = openers or Openers()
        runner.register(WorkKind(WORK_KIND, CanaryRun, run=self._execute))

    # starting

    def keep(self, body: CanaryInput, *, actor: str) -> CanaryRunView:
        """Queues the keeping of a passed run's prompts. Raises InvalidInput; Conflict while the server is busy."""
        try:
            run_id = parse_id("acceptance run", body.run_id)
        except NotFound:
            run_id = -1
        with self._db.read() as session:
            run = session.get(AcceptanceRun, run_id) if run_id >= 0 else None
        if run is None:
            raise InvalidInput.field("run_id", f"no acceptance run has the id {body.run_id[:80]!r}")
        if run.verdict not in ("pass", "pass_with_near_ties"):
            raise InvalidInput.field("run_id", f"run {run.id} did not pass; canaries are kept from a passed run only")
        if run.engine_id is None or run.server_id is None:
            raise InvalidInput.field("run_id", "its engine or its cache server was forgotten")
        row = self._new(run.engine_id, run.server_id, "create", actor)
        row.source_run_id = run.id
        row.count = body.count
        return self._submit(row, actor, "canary.keep", {"run": run.id, "count": body.count})

    def check(self, body: CanaryRunInput, *, actor: str) -> CanaryRunView:
        """Queues a reading-back of an engine's canaries. Raises InvalidInput; Conflict while the server is busy."""
        engine = engine_of(self._fleet, "engine_id", body.engine_id)
        with self._db.read() as session:
            known = list(session.scalars(select(Canary.id).where(Canary.engine_id == engine.id).order_by(Canary.id)))
        wanted = known if body.canary_ids is None else [_known(c, known) for c in body.canary_ids]
        if not wanted:
            raise InvalidInput.field(
                "engine_id", f"engine {engine.name!r} has no canaries yet; keep some of a passed run"
            )
        if engine.server_id is None:
            raise InvalidInput.field("engine_id", f"engine {engine.name!r} is linked to no cache server")
        row = self._new(engine.id, engine.server_id, "check", actor)
        row.canary_ids = wanted
        row.reason = body.reason
        return self._submit(row, actor, "canary.check", {"engine": engine.name, "reason": body.reason})

    def notice(self, engine_id: int, reason: str) -> CanaryRunView | None:
        """Something happened (restart, upgrade, cleanup): reads the engine's canaries back unless it has none or the
        server is busy with another test."""
        try:
            return self.check(CanaryRunInput(engine_id=str(engine_id), reason=reason), actor="system")
        except (InvalidInput, Conflict):
            return None

    def _new(self, engine_id: int, server_id: int, purpose: str, actor: str) -> CanaryRun:
        return CanaryRun(
            created_at=self._clock(),
            requested_by=actor,
            engine_id=engine_id,
            server_id=server_id,
            purpose=purpose,
            run_key=f"c{secrets.token_hex(5)}",
            basis=basis_of(self._fleet.get_engine(engine_id), self._fleet.get_server(server_id)),
        )

    def _submit(self, row: CanaryRun, actor: str, action: str, detail: dict[str, Any]) -> CanaryRunView:
        self._runner.recover()
        try:
            with self._db.write() as session:
                busy = session.scalar(
                    select(AcceptanceRun.id).where(
                        AcceptanceRun.server_id == row.server_id, AcceptanceRun.state.in_(sorted(ACTIVE_STATES))
                    )
                )
                if busy is not None:
                    raise Conflict(f"acceptance run {busy} is active on this cache server; wait for it or cancel it")
                self._runner.queue(session, row)
                self._audit.record(
                    session, actor=actor, action=action, target_kind="canary_run", target_id=row.id, detail=detail
                )
        except IntegrityError:
            raise Conflict("the canaries of this engine are being worked on; wait for that") from None
        self._runner.submit(WORK_KIND, row.id)
        return self.get_run(row.id)

    def cancel(self, run_id: int, *, actor: str) -> CanaryRunView:
        """Asks canary work to stop."""
        self.get_run(run_id)
        self._runner.cancel(WORK_KIND, run_id)
        return self.get_run(run_id)

    # looking

    def get(self, canary_id: int) -> CanaryView:
        """One canary with its history, newest last. NotFound."""
        with self._db.read() as session:
            row = session.get(Canary, canary_id)
            if row is None:
                raise NotFound.of("canary", canary_id)
            return rows.view(row, rows.history(session, [row.id]).get(row.id, []))

    def list_canaries(
        self, *, page_size: int, page_token: str | None, engine_id: int | None = None
    ) -> Page[CanaryView]:
        """Oldest first, with their histories."""
        name = f"canaries|{engine_id}"
        query = select(Canary).order_by(Canary.id).limit(page_size + 1)
        if engine_id is not None:
            query = query.where(Canary.engine_id == engine_id)
        if page_token:
            query = query.where(Canary.id > decode_cursor(name, page_token)[0])
        with self._db.read() as session:
            found = list(session.scalars(query))
            more = len(found) > page_size
            found = found[:page_size]
            history = rows.history(session, [r.id for r in found])
        return Page(
            items=[rows.view(r, history.get(r.id, [])) for r in found],
            next_page_token=encode_cursor(name, [found[-1].id]) if more else None,
        )

    def standing(self) -> dict[str, CanaryStanding]:
        """How the canaries of each engine stand, by its id; an engine without any is left out."""
        with self._db.read() as session:
            return rows.standing(session)

    def get_run(self, run_id: int) -> CanaryRunView:
        """One keeping or reading-back. NotFound."""
        with self._db.read() as session:
            row = session.get(CanaryRun, run_id)
            if row is None:
                raise NotFound.of("canary run", run_id)
            return rows.run_view(row, rows.checks_of(session, run_id))

    def list_runs(self, *, page_size: int, page_token: str | None, engine_id: int | None = None) -> Page[CanaryRunView]:
        """Newest first."""
        name = f"canary_runs|{engine_id}"
        query = select(CanaryRun).order_by(CanaryRun.id.desc()).limit(page_size + 1)
        if engine_id is not None:
            query = query.where(CanaryRun.engine_id == engine_id)
        if page_token:
            query = query.where(CanaryRun.id < decode_cursor(name, page_token)[0])
        with self._db.read() as session:
            found = list(session.scalars(query))
            more = len(found) > page_size
            found = found[:page_size]
            items = [rows.run_view(r, rows.checks_of(session, r.id)) for r in found]
        return Page(items=items, next_page_token=encode_cursor(name, [found[-1].id]) if more else None)

    def forget(self, canary_id: int, *, actor: str) -> None:
        """Forgets a canary and releases its records; they stay on disk for a cleanup to take. NotFound."""
        with self._db.write() as session:
            row = session.get(Canary, canary_id)
            if row is None:
                raise NotFound.of("canary", canary_id)
            for record in row.records:
                session.execute(
                    delete(RecordHold).where(
                        RecordHold.store_id == record["store_id"],
                        RecordHold.name == _bytes(record["name"]),
                        RecordHold.reason.like(f"{HOLD_REASON}%"),
                    )
                )
            session.delete(row)
            self._audit.record(
                session,
                actor=actor,
                action="canary.forget",
                target_kind="canary",
                target_id=canary_id,
                detail={"name": row.name, "records": len(row.records)},
            )

    # working

    def _execute(self, context: WorkContext) -> None:
        given = self._input(context.id)
        work = CanaryWork(given, self._clock, pace=self._pace, openers=self._openers)
        asyncio.run(watched(work.main, context.cancelled))
        result, now = work.result, self._clock()
        with self._db.write() as session:
            row = session.get(CanaryRun, context.id)
            assert row is not None
            row.outcome = result.outcome
            row.findings = [f.to_json() for f in result.findings]
            if row.purpose == "create":
                row.canary_ids = [self._add(session, row, made, now) for made in result.made]
            for canary_id, verdict, reading in result.checks:
                rows.write_check(session, row.id, canary_id, verdict, reading, now)
        if result.outcome in ("ok", "wrong"):
            by = f"canary run {context.id} of {given.engine.name}"
            self._fleet.mark_data_path(given.server.id, now, right=result.outcome == "ok", by=by)
        if given.check:
            self._clean_up(given, context)
        if result.outcome == "error":
            raise TierkeeperError(result.findings[0].text if result.findings else "the canaries could not be read back")

    def _clean_up(self, given: WorkInput, context: WorkContext) -> None:
        """The colds of a check have served; what cannot be removed stays for the store's own policies."""
        if self._remover is None:
            return
        for store in given.stores:
            try:
                self._remover.remove_salted(
                    store.id, f"{SALT_PREFIX}{given.run_key}-", actor="system", cancelled=context.cancelled
                )
            except TierkeeperError:
                continue

    def _add(self, session: Session, run: CanaryRun, made: Mapping[str, Any], now: float) -> int:
        canary = Canary(
            **made,
            engine_id=run.engine_id,
            server_id=run.server_id,
            run_id=run.source_run_id,
            created_at=now,
            created_by=run.requested_by,
        )
        session.add(canary)
        session.flush()
        holds = [
            {
                "store_id": r["store_id"],
                "name": _bytes(r["name"]),
                "reason": f"{HOLD_REASON} {canary.id}",
                "actor": run.requested_by,
                "at": now,
            }
            for r in made["records"]
        ]
        if holds:
            insert_ignore(session, RecordHold.__table__, holds)  # type: ignore[arg-type]
        return canary.id

    def _input(self, run_id: int) -> WorkInput:
        with self._db.read() as session:
            row = session.get(CanaryRun, run_id)
            assert row is not None
            if row.engine_id is None or row.server_id is None:
                raise TierkeeperError("the engine or its cache server was forgotten")
            keep = rows.candidates(session, row.source_run_id, row.count) if row.purpose == "create" else ()
            kept = rows.kept(session, row.canary_ids) if row.purpose == "check" else ()
        return WorkInput(
            run_key=row.run_key,
            engine=self._fleet.engine_target(row.engine_id),
            server=self._fleet.server_target(row.server_id),
            stores=tuple(s for s in self._fleet.store_targets(row.server_id) if s.kind == "lmcache_fs"),
            request_timeout=DEFAULT_REQUEST_TIMEOUT,
            keep=keep,
            check=kept,
        )

    # schedules

    def fire(self, engine_id: int, options: Mapping[str, Any], actor: str) -> StartedWork | None:
        """One firing of a canary schedule."""
        run = self.check(CanaryRunInput(engine_id=str(engine_id), reason="schedule"), actor=actor)
        return StartedWork(WORK_KIND, int(run.id))

    def check_schedule(self, engine_id: int, options: Mapping[str, Any]) -> None:
        """Raises NotFound when there is no such engine, InvalidInput for options (there are none)."""
        self._fleet.engine_target(engine_id)
        if options:
            raise InvalidInput.field(f"options.{sorted(options)[0]}", "canary checks have no options")


def _known(text: str, known: Sequence[int]) -> int:
    try:
        canary_id = parse_id("canary", text)
    except NotFound:
        canary_id = -1
    if canary_id not in known:
        raise InvalidInput.field("canary_ids", f"{text[:80]!r} is no canary of this engine")
    return canary_id


def basis_of(engine: EngineView, server: ServerView) -> dict[str, Any]:
    """What tells a restart or an upgrade of either; None where polls do not know it."""
    return {
        "engine_started": engine.started_at,
        "server_started": server.started_at,
        "engine_version": engine.version,
        "server_version": server.version,
    }


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
