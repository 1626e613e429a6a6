"""Cron text as Debian's cron reads it (0 and 7 are Sunday; day-of-month OR weekday; daylight saving handled).

APScheduler's own cron reading differs in all three, so its trigger is replaced by one around cronsim.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.base import BaseTrigger
from cronsim import CronSim, CronSimError

from app.errors import InvalidInput


def validate_cron(text: str, *, field: str = "cron") -> str:
    """The text, if five fields that fire at some time. Raises InvalidInput naming `field` otherwise."""
    cleaned = " ".join(text.split())
    if len(cleaned.split(" ")) != 5:
        raise InvalidInput.field(
            field,
            f"{text!r} needs five fields (minute hour day month weekday), such as '0 3 * * *' for 03:00 every day",
        )
    try:
        next(CronSim(cleaned, datetime(2026, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        raise InvalidInput.field(field, f"{text!r} is not cron text: {error}; try '0 3 * * *'") from error
    except StopIteration:
        raise InvalidInput.field(field, f"{text!r} never fires; check day and month") from None
    return cleaned


def validate_timezone(name: str, *, field: str = "timezone") -> str:
    """An IANA time zone name. Raises InvalidInput otherwise."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, IsADirectoryError):
        raise InvalidInput.field(
            field, f"{name!r} is not a time zone; use UTC or a name such as Europe/Berlin"
        ) from None
    return name


def next_firings(cron: str, timezone: str, after: float, count: int = 3) -> list[float]:
    """The next `count` firing times after `after`, epoch seconds."""
    simulator = CronSim(cron, datetime.fromtimestamp(after, ZoneInfo(timezone)))
    found: list[float] = []
    for moment in simulator:
        found.append(moment.timestamp())
        if len(found) == count:
            break
    return found


def last_due(cron: str, timezone: str, after: float, now: float) -> float | None:
    """The latest firing time in (after, now], or None. Looks back at most 32 days, so a long sleep costs little."""
    found = due_between(cron, timezone, after, now)
    return found[-1] if found else None


def due_between(cron: str, timezone: str, after: float, now: float) -> list[float]:
    """All firing times in (after, now] of the last 32 days, oldest first."""
    found: list[float] = []
    start = max(after, now - 32 * 86400)
    for moment in CronSim(cron, datetime.fromtimestamp(start, ZoneInfo(timezone))):
        if moment.timestamp() > now:
            break
        found.append(moment.timestamp())
    return found


class DebianCronTrigger(BaseTrigger):  # type: ignore[misc]
    """APScheduler trigger over cronsim."""

    def __init__(self, cron: str, timezone: str) -> None:
        self.cron = cron
        self.zone = ZoneInfo(timezone)

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> Any:
        """Next time after the previous firing (or after now)."""
        base = (previous_fire_time or now - timedelta(microseconds=1)).astimezone(self.zone)
        return next(CronSim(self.cron, base), None)
