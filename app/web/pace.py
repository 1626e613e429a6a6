"""How fast long work goes and how long it will take, from what it has done since it started. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from app.clock import parse_iso
from app.shapes import WorkView
from app.web import formats

#: Before that, the first answers say more about starting than about the work.
_SETTLED_SECONDS = 2.0
_SETTLED_SHARE = 0.02


@dataclass(frozen=True)
class Pace:
    """Words beside a progress bar; empty where nothing can be said yet."""

    speed: str = ""
    left: str = ""


def pace(work: WorkView, now: float) -> Pace:
    """The mean speed since the start, and the time left at that speed (a promise of neither)."""
    done, total = work.progress.done, work.progress.total
    if work.state != "running" or work.started_at is None or done <= 0:
        return Pace()
    elapsed = now - parse_iso(work.started_at)
    if elapsed < 1.0:
        return Pace()
    per_second = done / elapsed
    speed = _speed(per_second, work.progress.unit)
    if getattr(work, "waiting_for", None):  # it stands still until somebody does something
        return Pace(speed, "waits for you")
    if total is None or elapsed < _SETTLED_SECONDS or done < _SETTLED_SHARE * total:
        return Pace(speed)
    if done >= total:
        return Pace(speed, "finishing")
    return Pace(speed, f"about {_rounded((total - done) / per_second)} left")


def _speed(per_second: float, unit: str) -> str:
    what = unit.split(" ")[0]  # "records planned" goes by records
    slow = per_second < 0.5
    speed = per_second * 60 if slow else per_second
    number = formats.compact(speed) if speed >= 100 else formats.decimal(speed, 2)
    return f"{number} {what.removesuffix('s') if number == '1' else what}{' a minute' if slow else '/s'}"


def _rounded(seconds: float) -> str:
    """A guess is not told to the second."""
    if seconds >= 90:
        seconds = round(seconds / 60) * 60
    elif seconds >= 20:
        seconds = round(seconds / 5) * 5
    return formats.duration(max(1.0, float(round(seconds))) if seconds < 90 else seconds).replace(".0", "")
