"""All facts of a moment."""

from __future__ import annotations

from app.alerts.facts.acceptance_outcome import acceptance_outcome
from app.alerts.facts.cache_bypassed import cache_bypassed
from app.alerts.facts.canaries import canaries
from app.alerts.facts.cleanup_outcome import cleanup_outcomes
from app.alerts.facts.engine_silent import engine_silent
from app.alerts.facts.event_bus import event_bus
from app.alerts.facts.hit_rate import hit_rate
from app.alerts.facts.hit_rate_check import hit_rate_check
from app.alerts.facts.l1_thrash import l1_thrash
from app.alerts.facts.l2_impossible import l2_impossible
from app.alerts.facts.layout_change import layout_change
from app.alerts.facts.mixed_layouts import mixed_in_store, mixed_on_server
from app.alerts.facts.outbox import outbox
from app.alerts.facts.panel_sight import panel_sight
from app.alerts.facts.record_classes import record_classes
from app.alerts.facts.registration import registration
from app.alerts.facts.requests_hang import requests_hang
from app.alerts.facts.restart_unnoticed import restart_unnoticed
from app.alerts.facts.retrieves_stuck import retrieves_stuck
from app.alerts.facts.schedules import schedule_kept
from app.alerts.facts.scrape_age import store_look_age, target_scrape_age
from app.alerts.facts.shared_directory import shared_directories
from app.alerts.facts.store_room import store_room, store_usable, time_to_full
from app.alerts.facts.stores_failing import stores_failing
from app.alerts.facts.target_health import engine_health, server_health
from app.alerts.facts.temporaries import temporaries
from app.alerts.facts.writes_never_read import writes_never_read
from app.alerts.inputs import Moment
from app.alerts.model import Fact

OF_SERVER = (
    server_health,
    target_scrape_age,
    registration,
    restart_unnoticed,
    engine_silent,
    event_bus,
    hit_rate,
    hit_rate_check,
    l1_thrash,
    stores_failing,
    l2_impossible,
    writes_never_read,
    retrieves_stuck,
    mixed_on_server,
    layout_change,
)
OF_ENGINE = (engine_health, target_scrape_age, cache_bypassed, requests_hang, acceptance_outcome, canaries)
OF_STORE = (
    store_usable,
    store_look_age,
    store_room,
    time_to_full,
    temporaries,
    record_classes,
    mixed_in_store,
)


def derive(moment: Moment) -> list[Fact]:
    """Every fact of every target, and of the panel itself."""
    facts = [panel_sight(moment), *outbox(moment), *shared_directories(moment)]
    for server in moment.servers.values():
        facts += [fact(moment, server) for fact in OF_SERVER]
    for engine in moment.engines.values():
        facts += [fact(moment, engine) for fact in OF_ENGINE]
    for store in moment.stores.values():
        facts += [fact(moment, store) for fact in OF_STORE]
        facts += cleanup_outcomes(moment, store)
    facts += [schedule_kept(moment, schedule) for schedule in moment.schedules]
    return facts
