"""Gathers what the rooms know of a pair and has it judged. Reads only; asks no target."""

from __future__ import annotations

from collections.abc import Sequence

from app.acceptance.service import AcceptanceService
from app.checks.service import ChecksService
from app.clock import Clock, iso, parse_iso
from app.errors import NotFound
from app.fleet.schemas import EngineView, ServerView
from app.fleet.service import FleetService
from app.readiness import parts, reports
from app.readiness.facts import DiskFacts, Point, SoakFacts
from app.readiness.schemas import PartKey, PartView, ReadinessView
from app.records.service import RecordsService
from app.shapes import Page
from app.telemetry.service import PolledKind, TelemetryService

SOAK_WINDOW = 7 * 86_400.0
SOAK_STEP = 300.0
_DOWN = ("unreachable", "unhealthy")
_MOST = 500


class ReadinessService:
    """Readiness of every engine with its cache server."""

    def __init__(
        self,
        *,
        clock: Clock,
        fleet: FleetService,
        telemetry: TelemetryService,
        records: RecordsService,
        acceptance: AcceptanceService,
        checks: ChecksService,
    ) -> None:
        self._clock = clock
        self._fleet = fleet
        self._telemetry = telemetry
        self._records = records
        self._acceptance = acceptance
        self._checks = checks

    def list_readiness(self, *, page_size: int, page_token: str | None) -> Page[ReadinessView]:
        """Every engine, in the order of the fleet's list."""
        page = self._fleet.list_engines(page_size=page_size, page_token=page_token)
        return Page(items=[self._judge(engine) for engine in page.items], next_page_token=page.next_page_token)

    def of_engine(self, engine_id: int) -> ReadinessView:
        """One engine with its cache server. NotFound."""
        return self._judge(self._fleet.get_engine(engine_id))

    def report(self, engine_id: int, form: str) -> tuple[str, str]:
        """(body, media type) of json | md | html. NotFound for other forms."""
        if form not in reports.FORMS:
            raise NotFound(f"there is no report.{form[:20]}; take one of {', '.join(reports.FORMS)}")
        return reports.render(self.of_engine(engine_id), form), reports.FORMS[form]

    def _judge(self, engine: EngineView) -> ReadinessView:
        now = self._clock()
        server = self._server(engine)
        ident = int(engine.id)
        page = self._checks.list_checks(
            server_id=None if server is None else int(server.id), engine_id=ident, page_size=_MOST
        )
        tested = parts.correctness(self._acceptance.latest_for_engine(ident))
        kept = self._acceptance.canaries.list_canaries(page_size=_MOST, page_token=None, engine_id=ident).items
        checked = None if page.checked_at is None else parse_iso(page.checked_at)
        judged = [
            tested,
            parts.canaries(kept, started=_started(engine, server)),
            parts.soak(self._soak(engine, server, now), now),
            parts.disk(self._disks(server)),
            parts.settings(page),
            parts.scope(page.items, checked, tested),
        ]
        state, sentence = parts.overall(judged)
        if server is None:
            state, sentence = "unknown", "it is linked to no cache server, so there is no pair to judge"
        paths = _paths(engine, server)
        return ReadinessView(
            engine_id=engine.id,
            engine_name=engine.name,
            server_id=None if server is None else server.id,
            server_name=None if server is None else server.name,
            state=state,
            sentence=sentence,
            scope=parts.scope_of(page.items),
            parts=[
                PartView(
                    key=p.key,
                    title=parts.TITLES[p.key],
                    state=p.state,
                    text=p.text,
                    at=iso(p.at),
                    age_seconds=None if p.at is None else max(0.0, now - p.at),
                    action=p.action,
                    path=paths[p.key],
                )
                for p in judged
            ],
            judged_at=iso(now) or "",
            report_urls={form: f"/api/v1/engines/{engine.id}/readiness/report.{form}" for form in reports.FORMS},
        )

    def _server(self, engine: EngineView) -> ServerView | None:
        if engine.server_id is None:
            return None
        try:
            return self._fleet.get_server(int(engine.server_id))
        except NotFound:
            return None

    # soak

    def _soak(self, engine: EngineView, server: ServerView | None, now: float) -> SoakFacts:
        if server is None:
            return SoakFacts(SOAK_WINDOW, SOAK_STEP)
        outages = self._outages("server", int(server.id), now) + self._outages("engine", int(engine.id), now)
        return SoakFacts(
            window=SOAK_WINDOW,
            step=SOAK_STEP,
            up_server=self._points("server", int(server.id), "up", now),
            up_engine=self._points("engine", int(engine.id), "up", now),
            started=_started(engine, server),
            restarts=self._restarts(server, engine, now),
            outages=sorted(outages),
            failures=self._failures(int(server.id)),
            memory_server=self._points("server", int(server.id), "resident_bytes", now),
            memory_engine=self._points("engine", int(engine.id), "resident_bytes", now),
        )

    def _points(self, kind: PolledKind, ident: int, metric: str, now: float) -> list[Point]:
        found = self._telemetry.samples(kind, ident, metric, start=now - SOAK_WINDOW, end=now, step=SOAK_STEP)
        return [(parse_iso(at), value) for at, value in found.points]

    def _outages(self, kind: PolledKind, ident: int, now: float) -> list[tuple[float, str]]:
        """(when it was left, what it was) of every state in the window in which the target did not serve.

        One that lasts ends now.
        """
        changes = self._telemetry.health_changes(page_size=200, page_token=None, target_kind=kind, target_id=ident)
        found: list[tuple[float, str]] = []
        ended = now
        for change in changes.items:  # newest first: the one before ends where this one began
            began = parse_iso(change.at)
            if change.new_state in _DOWN and ended >= now - SOAK_WINDOW:
                found.append((ended, f"{kind} {change.new_state}: {change.reason}"))
            ended = began
        return found

    def _restarts(self, server: ServerView, engine: EngineView, now: float) -> int | None:
        """Process starts within the window, as the server's observations saw them."""
        seen = self._telemetry.observations([int(server.id)], since=now - SOAK_WINDOW)
        servers = {o.process_start for o in seen if o.process_start is not None}
        engines = {o.engine_starts.get(engine.id) for o in seen} - {None}
        if not servers and not engines:
            return None
        return sum(max(0, len(starts) - 1) for starts in (servers, engines))

    def _failures(self, server_id: int) -> float | None:
        snapshot = self._telemetry.snapshot("server", server_id)
        if snapshot is None:
            return None
        counters = snapshot.memory.get("counters") or {}
        value = (counters.get("values") or {}).get("l2_load_failures")
        return float(value) if isinstance(value, int | float) else None

    # disk

    def _disks(self, server: ServerView | None) -> list[DiskFacts]:
        if server is None:
            return []
        evicting = {a.store_id: a.evicts for a in server.l2}
        return [self._disk(store_id, evicting.get(store_id)) for store_id in server.store_ids]

    def _disk(self, store_id: str, evicts: bool | None) -> DiskFacts:
        ident = int(store_id)
        summary = self._records.summary(ident)
        return DiskFacts(
            store_id=store_id,
            name=self._fleet.get_store(ident).name,
            scanned_at=None if summary.scanned_at is None else parse_iso(summary.scanned_at),
            growth_per_hour=summary.growth_bytes_per_hour,
            full_in_hours=summary.full_in_hours,
            bounded_by=self._checks.bounding_policies(ident),
            evicts=evicts,
            reason=summary.growth_reason,
        )


def _started(engine: EngineView, server: ServerView | None) -> float | None:
    """When the younger of the two began; None where one of them is not known."""
    starts: Sequence[str | None] = (engine.started_at, server.started_at if server is not None else None)
    known = [parse_iso(s) for s in starts if s is not None]
    return max(known, default=None)


def _paths(engine: EngineView, server: ServerView | None) -> dict[PartKey, str]:
    store = server.store_ids[0] if server is not None and server.store_ids else None
    pair = f"engine_id={engine.id}" + (f"&server_id={server.id}" if server is not None else "")
    return {
        "correctness": f"/acceptance?engine_id={engine.id}",
        "canaries": f"/acceptance/canaries?engine_id={engine.id}",
        "soak": f"/engines/{engine.id}",
        "disk": f"/stores/{store}" if store is not None else "/stores",
        "checks": f"/checks?{pair}",
        "scope": f"/checks?{pair}",
    }
