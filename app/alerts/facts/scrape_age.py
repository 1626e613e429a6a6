"""How old the values are that are shown of a target."""

from __future__ import annotations

from app.alerts.inputs import EngineInput, Moment, ServerInput, StoreInput
from app.alerts.model import Fact, Subject


def _age(key: str, subject: Subject, at: float | None, created_at: float, now: float, interval: float) -> Fact:
    since = at if at is not None else created_at
    return Fact(
        key,
        subject,
        {"seconds": max(0.0, now - since), "interval": interval, "ever": float(at is not None)},
    )


def target_scrape_age(moment: Moment, target: ServerInput | EngineInput) -> Fact:
    """Rule: now − the time at which all values were last true (before the first: since it was added)."""
    return _age(
        f"{target.subject.kind}_scrape_age",
        target.subject,
        target.scraped_at,
        target.created_at,
        moment.now,
        moment.interval,
    )


def store_look_age(moment: Moment, store: StoreInput) -> Fact:
    """Rule: now − the last look at the directory."""
    at = store.checked_at
    return _age("store_look_age", store.subject, at, store.created_at, moment.now, moment.interval)
