"""All facts of a moment."""

from __future__ import annotations

from collections.abc import Callable

from app.alerts.facts.acceptance_outcome import acceptance_outcome
from app.alerts.facts.cache_bypassed import cache_bypassed
from app.alerts.facts.canaries import canaries
from app.alerts.facts.cleanup_outcome import cleanup_outcomes
from app.alerts.facts.disk_load import disk_load
from app.alerts.facts.engine_silent import engine_silent
from app.alerts.facts.event_bus import event_bus
from app.alerts.facts.hit_rate import hit_rate
from app.alerts.facts.hit_rate_check import hit_rate_check
from app.alerts.facts.host_memory import host_memory
from app.alerts.facts.in_process import in_process_health, in_process_hit_rate
from app.alerts.facts.l1_thrash import l1_thrash
from app.alerts.facts.l2_impossible import l2_impossible
from app.alerts.facts.layout_change import layout_change
from app.alerts.facts.mixed_layouts import mixed_in_store, mixed_on_server
from app.alerts.facts.outbox import outbox
from app.alerts.facts.panel_sight import panel_sight
from app.alerts.facts.record_classes import derived_records, record_classes
from app.alerts.facts.registration import registration
from app.alerts.facts.requests_hang import requests_hang
from app.alerts.facts.restart_unnoticed import restart_unnoticed
from app.alerts.facts.retrieves_stuck import retrieves_stuck
from app.alerts.facts.schedules import schedule_kept
from app.alerts.facts.scrape_age import store_look_age, target_scrape_age
from app.alerts.facts.server_load import server_load
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
    server_load,
    host_memory,
    mixed_on_server,
    layout_change,
)
OF_ENGINE = (
    engine_health,
    target_scrape_age,
    cache_bypassed,
    requests_hang,
    in_process_health,
    in_process_hit_rate,
    acceptance_outcome,
    canaries,
)
OF_STORE = (
    store_usable,
    store_look_age,
    store_room,
    time_to_full,
    disk_load,
    temporaries,
    record_classes,
    derived_records,
    mixed_in_store,
)


def derive(moment: Moment, failed: Callable[[str, Exception], None]) -> list[Fact]:
    """Every fact of every target, and of the panel itself. `failed` is told of a fact that could not be derived (a bug,
    or values nobody thought of): it is missing then, and the others are there."""
    facts: list[Fact] = []

    def add(make: Callable[..., Fact | list[Fact]], *given: object) -> None:
        try:
            made = make(moment, *given)
        except Exception as error:  # one bad target must not silence all alarms
            failed(getattr(make, "__name__", "?"), error)
        else:
            facts.extend(made if isinstance(made, list) else [made])

    for of_panel in (panel_sight, outbox, shared_directories):
        add(of_panel)
    for server in moment.servers.values():
        for of_server in OF_SERVER:
            add(of_server, server)
    for engine in moment.engines.values():
        for of_engine in OF_ENGINE:
            add(of_engine, engine)
    for store in moment.stores.values():
        for of_store in (*OF_STORE, cleanup_outcomes):
            add(of_store, store)
    for schedule in moment.schedules:
        add(schedule_kept, schedule)
    return facts
