"""The overview, the welcome page that stands in for it while nothing is registered, and the style page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.errors import TierkeeperError
from app.fleet.probe_schemas import ProbeRequest
from app.fleet.schemas import EngineCreate, EngineView, ServerCreate, ServerView, StoreView
from app.services import Services
from app.web import formats, overview
from app.web.attention import attention
from app.web.contexts import (
    Crumb,
    EngineVerdict,
    Event,
    Hop,
    NextCleanup,
    OverviewPage,
    RateNow,
    StoreCard,
    Trend,
)
from app.web.first_run import first_steps
from app.web.forms import FormState
from app.web.frame import AdminFrame, FormValues, Frame, ViewerFrame, build_input, make_shell, one
from app.web.growth import outlook
from app.web.reach import REACH_FIELDS, reach_of_form
from app.web.settings_contexts import WelcomePage
from app.web.style_page import style_page

router = APIRouter()

WINDOW = 3600.0
#: Servers whose history is drawn on the overview; the busiest ones when there are more.
DRAWN_SERVERS = 8
SHOWN_EVENTS = 9


def store_cards(services: Services, stores: Sequence[StoreView]) -> list[StoreCard]:
    """Stores with their summaries."""
    summaries = [services.records.summary(int(store.id)) for store in stores]
    return [StoreCard(s, summary, outlook(summary)) for s, summary in zip(stores, summaries, strict=True)]


def engine_verdicts(services: Services, engines: Sequence[EngineView]) -> list[EngineVerdict]:
    """How the acceptance of each engine stands."""
    latest = services.acceptance.latest_for_engines(engines)
    canaries = services.acceptance.canaries.standing()
    return [EngineVerdict(engine, latest[engine.id], canaries.get(engine.id)) for engine in engines]


def events_of(services: Services, servers: Sequence[ServerView], limit: int) -> tuple[Event, ...]:
    """What happened lately: health, restarts, layouts, cleanups, runs, alarms; newest first."""
    changes = services.telemetry.health_changes(page_size=limit, page_token=None).items
    runs = services.cleanup.list_runs(page_size=limit, page_token=None).items
    tests = services.acceptance.list_runs(page_size=limit, page_token=None).items
    alarms = services.alerts.list_alerts(page_size=limit, page_token=None, fired=True).items
    return overview.newest(
        [
            *(overview.health_event(change) for change in changes),
            *overview.restart_events(servers),
            *overview.layout_events(servers),
            *(overview.cleanup_event(run) for run in runs),
            *(overview.acceptance_event(run) for run in tests),
            *(event for alarm in alarms for event in overview.alarm_events(alarm)),
        ],
        limit,
    )


def hit_rate_trend(services: Services, servers: Sequence[ServerView], events: Sequence[Event]) -> Trend:
    """Shares of the looked-up tokens found in L1 and L2 over the last hour, of all drawn servers together."""
    busiest = sorted(servers, key=lambda s: s.hit_rate.requested_tokens or 0, reverse=True)[:DRAWN_SERVERS]
    metrics = [f"{name}_tokens_per_second" for name in ("requested", "l1_hit", "l2_hit")]
    found = services.telemetry.sparklines("server", [int(s.id) for s in busiest], metrics, seconds=WINDOW)
    asked, l1, l2 = ([_sum(values) for values in zip(*series.values(), strict=True)] for series in found)
    layers = [("l1", _shares(l1, asked)), ("l2", _shares(l2, asked))]
    return overview.trend((), WINDOW, events, services.clock(), layers)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _shares(found: Sequence[float | None], asked: Sequence[float | None]) -> list[float | None]:
    return [a / b if a is not None and b else None for a, b in zip(found, asked, strict=True)]


def hops(services: Services, servers: Sequence[ServerView]) -> tuple[Hop, ...]:
    """How fast what is stored moves down the tiers, over the last five minutes."""
    if not servers:
        return ()
    metrics = (
        "requested_tokens_per_second", "l1_written_per_second", "l2_store_bytes_per_second", "l1_evicted_per_second"
    )  # fmt: skip
    found = services.telemetry.lately("server", [int(s.id) for s in servers], metrics, seconds=300.0)
    asked, stored, written, evicted = (_sum(list(values.values())) for values in found)
    return (
        _hop("looked up in L1 and L2", "asked", asked, "tokens/s"),
        _hop("stored", "store", stored, "chunks/s"),
        _hop("written", "spill", written, ""),
        _hop("evicted from L1", "evict", evicted, "chunks/s"),
    )


def _hop(text: str, way: str, speed: float | None, unit: str) -> Hop:
    if speed is None:
        return Hop(text, None, "not counted yet", way)
    number = formats.compact(speed) if speed >= 100 else formats.decimal(speed, 2)
    return Hop(text, f"{number} {unit}" if unit else formats.rate(speed), "", way, moves=speed > 0)


def hit_rate_now(servers: Sequence[ServerView]) -> RateNow:
    """The hit rate of all servers together and, where there is none, why."""
    known = [s.hit_rate for s in servers if s.hit_rate.state == "value" and s.hit_rate.requested_tokens]
    if known:
        asked = sum(h.requested_tokens or 0 for h in known)

        def part(shares: Sequence[float | None]) -> float | None:
            if None in shares:
                return None
            return sum((x or 0.0) * (h.requested_tokens or 0) for x, h in zip(shares, known, strict=True)) / asked

        return RateNow(
            sum(h.hit_tokens or 0 for h in known) / asked,
            l1_share=part([h.l1_share for h in known]),
            l2_share=part([h.l2_share for h in known]),
            window_seconds=max((h.window_seconds for h in known if h.window_seconds is not None), default=None),
        )
    return RateNow(None, "no traffic" if any(s.hit_rate.state == "no_traffic" for s in servers) else "unknown")


def l1_trend(services: Services, server: ServerView | None) -> tuple[Trend, float | None]:
    """How full the L1 of a server was over the last hour, and chunks evicted a second over its last five minutes."""
    if server is None:
        return overview.trend((), WINDOW), None
    ident = int(server.id)
    used, evicted = (
        series.get(ident, [])
        for series in services.telemetry.sparklines(
            "server", [ident], ("l1_usage_ratio", "l1_evicted_per_second"), seconds=WINDOW
        )
    )
    lately = [v for v in evicted[-5:] if v is not None]
    return overview.trend(used, WINDOW), sum(lately) / len(lately) if lately else None


def next_cleanup(services: Services) -> NextCleanup | None:
    """The policy that fires next; one without a schedule when there is no other."""
    policies = services.cleanup.list_policies(page_size=100, page_token=None).items
    scheduled = [p for p in policies if p.enabled and p.next_firings]
    # Without a time: one that runs by itself tells more than one that does not.
    rest = sorted(policies, key=lambda p: not (p.enabled and p.schedule))
    chosen = min(scheduled, key=lambda p: p.next_firings[0], default=rest[0] if rest else None)
    if chosen is None:
        return None
    at = chosen.next_firings[0] if chosen in scheduled else None
    on_change = chosen.enabled and chosen.schedule == "@layout-change"
    return NextCleanup(chosen.id, chosen.name, chosen.store_name, at, chosen.last_run, on_change, chosen.timezone)


@router.get("/")
def overview_page(frame: ViewerFrame, group: Annotated[str, Query(max_length=200)] = "") -> Response:
    services = frame.services
    servers = services.fleet.list_servers(page_size=500, page_token=None).items
    engines = services.fleet.list_engines(page_size=500, page_token=None).items
    stores = services.fleet.list_stores(page_size=500, page_token=None).items
    if not servers and not engines and not stores and frame.principal.may("admin"):
        return _welcome(frame, FormState.of(dict.fromkeys(REACH_FIELDS), fields=REACH_FIELDS))
    cards = store_cards(services, stores)
    verdicts = engine_verdicts(services, engines)
    events = events_of(services, servers, SHOWN_EVENTS)
    fullest = overview.fullest_l1(servers)
    l1_hour, l1_evicted = l1_trend(services, fullest)
    keys = overview.group_keys([*servers, *engines])
    group = group if group in keys else ""
    return frame.page(
        "overview.html",
        OverviewPage,
        "overview",
        attention=attention(servers, engines, cards, verdicts, services.cleanup.episodes(), services.alerts.active()),
        flow=overview.flow_picture(
            services.telemetry.token_flow(None), servers, engines, cards, hops(services, servers)
        ),
        servers=servers,
        engines=engines,
        stores=cards,
        fullest_l1=fullest,
        l1_trend=l1_hour,
        l1_evicted=l1_evicted,
        tightest_store=overview.tightest_store(cards),
        verdicts=verdicts,
        hit_rate=hit_rate_trend(services, servers, events),
        hit_rate_now=hit_rate_now(servers),
        next_cleanup=next_cleanup(services),
        events=events,
        first_steps=first_steps(servers, engines, cards, verdicts) if frame.principal.may("operator") else (),
        group_keys=keys,
        group=group,
        server_groups=overview.groups(servers, group),
        engine_groups=overview.groups(engines, group),
    )


def _welcome(frame: Frame, form: FormState, probe: object = None, status: int = 200) -> Response:
    return frame.page("welcome.html", WelcomePage, "overview", form=form, probe=probe, status=status)


@router.get("/welcome")
def welcome_page(frame: AdminFrame) -> Response:
    return _welcome(frame, FormState.of(dict.fromkeys(REACH_FIELDS), fields=REACH_FIELDS))


@router.post("/welcome")
def welcome(frame: AdminFrame, values: FormValues) -> Response:
    """Asks an address what it is, or adds it as what it was found to be."""
    fleet = frame.services.fleet
    typed = one(values, "url") or ""
    if typed and "://" not in typed:  # a newcomer pastes what the log says: 127.0.0.1:8080
        values = {**values, "url": [f"http://{typed}"]}
    form = FormState(values=values, fields=frozenset(REACH_FIELDS))
    try:
        data = reach_of_form(values)
        probe = fleet.probe(build_input(ProbeRequest, data))
        if one(values, "step") != "add" or probe.register_as is None:
            return _welcome(frame, form, probe)
        data["url"] = probe.suggested_url or data["url"]
        if probe.register_as == "server":
            server = fleet.create_server(build_input(ServerCreate, data), actor=frame.actor)
            return frame.done(
                f"/settings/stores/new?server_id={server.id}", f"{server.name} was added. Now the store it names."
            )
        engine = fleet.create_engine(build_input(EngineCreate, data), actor=frame.actor)
        return frame.done(f"/engines/{engine.id}", f"{engine.name} was added.")
    except TierkeeperError as error:
        return _welcome(frame, form.failed(error), status=error.status)


@router.get("/style")
def style(frame: ViewerFrame) -> Response:
    shell = make_shell(frame.request, "settings", (Crumb("Style"),), frame.principal)
    return frame.templates.response(frame.request, "style.html", style_page(shell, frame.services.clock))
