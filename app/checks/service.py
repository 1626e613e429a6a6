"""The checks service: runs over pairs, what holds now, what changed, and verdicts on texts alone.

A run reads all targets first (network and disk, no session), judges them (pure), then writes one unit of work. Methods
are sync; long work runs by the WorkRunner as kind ``check``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from app.audit.service import AuditService
from app.checks import host, inputs, ledger, reads
from app.checks.assemble import EngineLook, ServerLook, facts_of
from app.checks.commands import check_texts, read_commands
from app.checks.evaluate import counts, evaluate
from app.checks.gather import EngineRequest, ServerRequest, gather
from app.checks.ledger import Pair, PairResult
from app.checks.rules import ALL
from app.checks.schemas import (
    ChangesView,
    CheckPairView,
    CheckRunInput,
    CheckRunView,
    ChecksPage,
    CheckTextsInput,
    CheckView,
    RuleView,
)
from app.checks.tables import CheckInput, CheckResult, CheckRun, CheckSetting
from app.checks.views import finding_view
from app.clock import Clock, parse_iso
from app.database import Database
from app.errors import NotFound
from app.fleet.service import FleetService
from app.fleet.targets import EngineTarget, ServerTarget
from app.paging import parse_id
from app.scheduling.runner import WorkContext, WorkKind, WorkRunner
from app.scheduling.work import ACTIVE_STATES
from app.shapes import Page

WORK_KIND = "check"
#: Without a run for so long, `refresh` makes one.
REFRESH_SECONDS = 3600.0
_BOUNDING = ("unused", "capacity", "free_space")


class Policies(Protocol):
    """What is wanted of the cleanup room: its policies of one store."""

    def list_policies(self, *, page_size: int, page_token: str | None, store_id: int | None = None) -> Page[Any]: ...


class ChecksService:
    """Checks of every server-engine pair. `cleanup` None: no policy is known to bound a store."""

    def __init__(
        self,
        *,
        db: Database,
        clock: Clock,
        runner: WorkRunner,
        audit: AuditService,
        fleet: FleetService,
        cleanup: Policies | None = None,
    ) -> None:
        self._db = db
        self._clock = clock
        self._runner = runner
        self._audit = audit
        self._fleet = fleet
        self._cleanup = cleanup
        runner.register(WorkKind(WORK_KIND, CheckRun, run=self._run))
        fleet.on_forget(_forget)

    # runs

    def start_run(self, body: CheckRunInput, *, actor: str, may_read_files: bool = False) -> CheckRunView:
        """Queues a run. `may_read_files`: the caller may name log files of this host (admins).

        Raises InvalidInput naming the field, NotFound for targets, Forbidden for a path.
        """
        server_id = None if body.server_id is None else parse_id("server", body.server_id)
        engine_id = None if body.engine_id is None else parse_id("engine", body.engine_id)
        if server_id is not None:
            self._fleet.server_target(server_id)
        engine = self._fleet.engine_target(engine_id) if engine_id is not None else None
        texts = inputs.given_texts(body, server_id, engine, may_read_files)
        now = self._clock()
        row = CheckRun(
            created_at=now,
            requested_by=actor,
            server_id=server_id,
            engine_id=engine_id,
            request={"write_probe": body.write_probe},
        )
        with self._db.write() as session:
            for (side, target, kind), text in texts.items():
                inputs.keep_text(session, side, target, kind, text, now, actor)
            self._runner.queue(session, row)
            self._audit.record(
                session,
                actor=actor,
                action="check.start",
                target_kind="check_run",
                target_id=row.id,
                detail={
                    "server_id": body.server_id,
                    "engine_id": body.engine_id,
                    "texts": sorted(k for _, _, k in texts),
                },
            )
        self._runner.submit(WORK_KIND, row.id)
        return self.get_run(row.id)

    def get_run(self, run_id: int) -> CheckRunView:
        """Raises NotFound."""
        with self._db.read() as session:
            row = session.get(CheckRun, run_id)
            if row is None:
                raise NotFound.of("check run", run_id)
            return reads.run_view(row)

    def list_runs(self, *, page_size: int, page_token: str | None) -> Page[CheckRunView]:
        """Newest first."""
        with self._db.read() as session:
            return reads.runs(session, page_size=page_size, page_token=page_token)

    def cancel_run(self, run_id: int, *, actor: str) -> CheckRunView:
        """Asks a run to stop; nothing is written then."""
        self.get_run(run_id)
        self._runner.cancel(WORK_KIND, run_id)
        with self._db.write() as session:
            self._audit.record(session, actor=actor, action="check.cancel", target_kind="check_run", target_id=run_id)
        return self.get_run(run_id)

    def refresh(self) -> None:
        """Starts a run over everything when the last one is an hour old; called by the scheduler."""
        with self._db.read() as session:
            last = session.scalar(select(CheckRun).order_by(CheckRun.id.desc()).limit(1))
        if last is not None and (last.state in ACTIVE_STATES or self._clock() - last.created_at < REFRESH_SECONDS):
            return
        if self._fleet.server_targets() or self._fleet.engine_targets():
            self.start_run(CheckRunInput(), actor="system:checks")

    # reading

    def list_checks(
        self,
        *,
        server_id: int | None = None,
        engine_id: int | None = None,
        verdict: str | None = None,
        page_size: int = 500,
        page_token: str | None = None,
    ) -> ChecksPage:
        """Findings in force, worst first. Raises NotFound for targets that are not there."""
        self._known(server_id, engine_id)
        with self._db.read() as session:
            return reads.present(
                session,
                server_id=server_id,
                engine_id=engine_id,
                verdict=verdict,
                page_size=page_size,
                page_token=page_token,
            )

    def list_pairs(self, *, server_id: int | None = None, engine_id: int | None = None) -> list[CheckPairView]:
        """Every pair that was looked at, the worst first. Raises NotFound for targets that are not there."""
        self._known(server_id, engine_id)
        names = self._names()
        with self._db.read() as session:
            return reads.pairs(session, server_id=server_id, engine_id=engine_id, names=names)

    def history(
        self,
        *,
        server_id: int | None = None,
        engine_id: int | None = None,
        check_id: str | None = None,
        page_size: int,
        page_token: str | None,
    ) -> Page[CheckView]:
        """Every finding that ever held, newest first."""
        with self._db.read() as session:
            return reads.history(
                session,
                server_id=server_id,
                engine_id=engine_id,
                check_id=check_id,
                page_size=page_size,
                page_token=page_token,
            )

    def changes(
        self, *, server_id: int | None = None, engine_id: int | None = None, since: float | None = None
    ) -> ChangesView:
        """What changed since it worked.

        Without `since`: since records last came back right through the server (acceptance), else since the last run
        without a fail, else for the last day.
        """
        self._known(server_id, engine_id)
        reason = "as asked"
        if since is None:
            since, reason = self._worked_at(server_id, engine_id)
        names = self._names()
        with self._db.read() as session:
            return reads.changes(
                session, server_id=server_id, engine_id=engine_id, since=since, reason=reason, names=names
            )

    def rules(self) -> list[RuleView]:
        """The catalogue."""
        return [
            RuleView(id=rule.id, title=rule.title, looks_at=rule.looks_at, why=rule.why, source=rule.source)
            for rule in ALL
        ]

    def check_texts(self, body: CheckTextsInput) -> list[CheckView]:
        """Verdicts on texts alone, worst first. Nothing is kept, nothing is contacted."""
        found = check_texts(
            commands=body.commands,
            environment=body.environment,
            engine_log=body.engine_log,
            server_log=body.server_log,
        )
        return [finding_view(item) for item in found]

    # the work

    def _run(self, context: WorkContext) -> None:
        with self._db.read() as session:
            row = session.get(CheckRun, context.id)
            if row is None:
                return
            server_id, engine_id, request = row.server_id, row.engine_id, dict(row.request)
        context.progress(0, None, "pairs", force=True)
        results = self.look(server_id, engine_id, write_probe=bool(request.get("write_probe", True)))
        context.check_cancel()
        now = self._clock()
        with self._db.write() as session:
            ledger.write(session, results, context.id, now)
            if server_id is None and engine_id is None:
                ledger.end_pairs(session, [item.pair for item in results], now)
            inputs.stamp(session, results)
            ledger.retire(session, now)
            row = session.get_one(CheckRun, context.id)
            row.pairs = len(results)
            row.counts = counts(finding for item in results for finding in item.findings)
        context.progress(len(results), len(results), "pairs", force=True)

    def look(self, server_id: int | None, engine_id: int | None, *, write_probe: bool) -> list[PairResult]:
        """Read and judge the pairs of these targets (None: all). Network and disk; writes nothing."""
        servers = self._fleet.server_targets()
        engines = self._fleet.engine_targets()
        pairs = _pairs(servers, engines, server_id, engine_id)
        wanted_servers = {server for server, _ in pairs if server is not None}
        wanted_engines = {engine for _, engine in pairs if engine is not None}
        # every server's configuration is needed (two on one directory), and every engine of the wanted servers
        needed = [item for item in engines if item.id in wanted_engines or item.server_id in wanted_servers]
        with self._db.read() as session:
            texts = inputs.load_texts(session)
        server_looks, engine_looks = gather(
            [self._server_request(item, texts, probe=item.id in wanted_servers) for item in servers],
            [self._engine_request(item, texts) for item in needed],
            write_probe=write_probe,
        )
        by_server = {
            item.id: replace(look, texts=inputs.of_this_process(look, texts.get(("server", item.id), {})))
            for item, look in zip(servers, server_looks, strict=True)
        }
        by_engine = {
            item.id: replace(look, texts=inputs.of_this_process(look, texts.get(("engine", item.id), {})))
            for item, look in zip(needed, engine_looks, strict=True)
        }
        memory = host.memory()
        results = []
        for server, engine in pairs:
            own = by_server.get(server) if server is not None else None
            mine = by_engine.get(engine) if engine is not None else None
            commands = read_commands("\n".join(text for text in (_commands(own), _commands(mine)) if text))
            facts = facts_of(
                own,
                mine,
                memory=memory,
                engines_of_server=[by_engine[item.id] for item in needed if item.server_id == server and server],
                other_servers=[look for ident, look in by_server.items() if ident != server],
                containers=commands.containers,
                problems=commands.problems,
            )
            results.append(PairResult((server, engine), facts, evaluate(facts)))
        return results

    def _server_request(
        self, target: ServerTarget, texts: Mapping[tuple[str, int], Mapping[str, CheckInput]], *, probe: bool
    ) -> ServerRequest:
        stores = {
            store.server_path.rstrip("/"): (store, self.bounding_policies(store.id))
            for store in self._fleet.store_targets(target.id)
        }
        return ServerRequest(
            name=target.name,
            url=target.url,
            api_key=target.api_key,
            headers=target.headers,
            tls=target.tls,
            stores=stores,
            texts=inputs.texts_of(texts.get(("server", target.id), {})),
            probe=probe,
        )

    @staticmethod
    def _engine_request(
        target: EngineTarget, texts: Mapping[tuple[str, int], Mapping[str, CheckInput]]
    ) -> EngineRequest:
        return EngineRequest(
            name=target.name,
            url=target.url,
            api_key=target.api_key,
            headers=target.headers,
            tls=target.tls,
            texts=inputs.texts_of(texts.get(("engine", target.id), {})),
        )

    def bounding_policies(self, store_id: int) -> tuple[str, ...]:
        """Names of enabled, scheduled policies that keep this store from growing."""
        if self._cleanup is None:
            return ()
        found = self._cleanup.list_policies(page_size=500, page_token=None, store_id=store_id).items
        return tuple(
            policy.name
            for policy in found
            if policy.enabled and policy.schedule and any(item.get("kind") in _BOUNDING for item in policy.select)
        )

    # helpers

    def _names(self) -> dict[tuple[str, int], str]:
        names = {("server", item.id): item.name for item in self._fleet.server_targets()}
        return names | {("engine", item.id): item.name for item in self._fleet.engine_targets()}

    def _known(self, server_id: int | None, engine_id: int | None) -> None:
        if server_id is not None:
            self._fleet.server_target(server_id)
        if engine_id is not None:
            self._fleet.engine_target(engine_id)

    def _worked_at(self, server_id: int | None, engine_id: int | None) -> tuple[float, str]:
        ident = server_id
        if ident is None and engine_id is not None:
            ident = self._fleet.engine_target(engine_id).server_id
        if ident is not None:
            proven = self._fleet.get_server(ident).health.data_path_proven_at
            if proven is not None:
                return parse_iso(proven), "records last came back right then (acceptance)"
        with self._db.read() as session:
            good = reads.last_good(session, server_id, engine_id)
        if good is not None:
            return good, "the last run of the checks without a fail"
        return self._clock() - 86400.0, "no good moment is known: the last day"


def _pairs(
    servers: Sequence[ServerTarget], engines: Sequence[EngineTarget], server_id: int | None, engine_id: int | None
) -> list[Pair]:
    """Every engine with its server, every server without one alone."""
    if server_id is not None and engine_id is not None:
        return [(server_id, engine_id)]
    found: list[Pair] = [(item.server_id, item.id) for item in engines]
    with_engine = {server for server, _ in found}
    found += [(item.id, None) for item in servers if item.id not in with_engine]
    if server_id is not None:
        found = [pair for pair in found if pair[0] == server_id]
    if engine_id is not None:
        found = [pair for pair in found if pair[1] == engine_id]
    return found


def _commands(look: ServerLook | EngineLook | None) -> str:
    return look.texts.commands if look is not None else ""


def _forget(session: Session, kind: str, target_id: int) -> None:
    """A target is deleted: what was found about it goes with it."""
    if kind not in ("server", "engine"):
        return
    column = CheckResult.server_id if kind == "server" else CheckResult.engine_id
    session.execute(delete(CheckResult).where(column == target_id))
    session.execute(delete(CheckSetting).where(CheckSetting.side == kind, CheckSetting.target_id == target_id))
    session.execute(delete(CheckInput).where(CheckInput.side == kind, CheckInput.target_id == target_id))
