"""How values become words. Pure functions; everything a page prints goes through here.

Conventions of the pages: memory in GiB (2^30), disk and transfer in GB (10^9), always with the unit; shares with one
decimal; times relative to the clock with the exact time beside them. ``None`` is "unknown", never 0.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from app.clock import iso, parse_iso
from app.printable import NBSP as NBSP
from app.printable import printable as printable
from app.printable import printable_lines as printable_lines

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")


def significant(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits, never in exponent form: 15.1, 1.92, 38.0, 984."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    rounded = round(value, decimals)
    # 9.996 rounds up to 10.00: one decimal less then.
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))) and decimals:
        decimals -= 1
    return f"{rounded:,.{decimals}f}"


def _scaled(value: float, base: int, units: tuple[str, ...]) -> tuple[str, str]:
    power = 0
    scaled = abs(float(value))
    while scaled >= base and power < len(units) - 1:
        scaled /= base
        power += 1
    # 999.7 kB would print as "1,000 kB".
    if power and power < len(units) - 1 and float(significant(scaled).replace(",", "")) >= base:
        scaled /= base
        power += 1
    number = f"{int(value)}" if power == 0 else significant(math.copysign(scaled, value))
    return number, units[power]


def memory_parts(value: float) -> tuple[str, str]:
    """Number and unit of a size in memory: ``("15.1", "GiB")``."""
    return _scaled(value, 1024, _BINARY)


def disk_parts(value: float) -> tuple[str, str]:
    """Number and unit of a size on disk: ``("1.92", "TB")``."""
    return _scaled(value, 1000, _DECIMAL)


def memory(value: float | None) -> str:
    """``15.1 GiB``; "unknown" for None."""
    return "unknown" if value is None else NBSP.join(memory_parts(value))


def disk(value: float | None) -> str:
    """``1.92 TB``; "unknown" for None."""
    return "unknown" if value is None else NBSP.join(disk_parts(value))


def rate(value: float | None) -> str:
    """Bytes per second as ``412 MB/s``."""
    return "unknown" if value is None else disk(value) + "/s"


def exact_bytes(value: float | None) -> str:
    """``1,920,000,000 bytes``: for titles."""
    return "unknown" if value is None else f"{int(value):,} bytes"


def count(value: float | None) -> str:
    """Whole numbers with thousands separators."""
    return "unknown" if value is None else f"{round(value):,}"


def quantity(value: float, name: str = "") -> str:
    """A number of a rule or a fact as people write it: never with an exponent. `name` tells moments (``known_at``)."""
    if name.endswith("_at") and value > 1e9:
        return exact(iso(value))
    if value == round(value):
        return f"{value:,.0f}"
    text = f"{value:,.4g}"
    return f"{value:,.0f}" if "e+" in text else f"{value:.10f}".rstrip("0") if "e-" in text else text


def in_unit(value: float, unit: str) -> str:
    """A sample of a series in the unit of its chart."""
    if unit == "ratio":
        return percent(value)
    if unit in ("bytes", "disk"):
        return memory(value) if unit == "bytes" else disk(value)
    if unit == "bytes_per_second":
        return rate(value)
    if unit == "seconds":
        return duration(value)
    if unit == "bool":
        return "yes" if value else "no"
    what = unit.removesuffix("_per_second").replace("_", " ")
    # Below a hundred every digit counts: 0.02 cores are not none.
    number = decimal(value) if abs(value) < 100 else compact(value)
    return f"{number} {what}/s" if unit.endswith("_per_second") else f"{number} {what}".strip()


def compact(value: float | None) -> str:
    """``4.21 M``; below 10,000 the exact number."""
    if value is None:
        return "unknown"
    if abs(value) < 10_000:
        return f"{round(value):,}"
    return NBSP.join(_scaled(value, 1000, ("", "k", "M", "G", "T", "P")))


def percent(value: float | None, digits: int = 1) -> str:
    """A ratio (0..1) as ``58.3 %``. What is not quite 0 or 100 is never printed as if it were."""
    if value is None:
        return "unknown"
    shown = round(value * 100, digits)
    step = 10**-digits
    if value > 0 and shown == 0:
        return f"<{NBSP}{step:g}{NBSP}%"
    if value < 1 and shown == 100:
        shown = 100 - step
    text = f"{shown:.{digits}f}"
    if shown in (0.0, 100.0):
        text = f"{shown:.0f}"
    return f"{text}{NBSP}%"


def decimal(value: float | None, digits: int = 3) -> str:
    """A plain number with `digits` significant digits, trailing zeros of a fraction kept out."""
    if value is None:
        return "unknown"
    text = significant(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: float | None) -> str:
    """``34 ms``, ``8.2 s``, ``2 m 07 s``, ``3 h 12 m``, ``3.4 d``."""
    if seconds is None:
        return "unknown"
    sign, s = ("-", -seconds) if seconds < 0 else ("", seconds)
    if s == 0:
        return f"0{NBSP}s"
    if s < 1e-3:
        text = f"{significant(s * 1e6, 2)}{NBSP}µs"
    elif s < 0.9995:
        text = f"{significant(s * 1e3, 3)}{NBSP}ms"
    elif s < 10:
        text = f"{s:.1f}{NBSP}s"
    elif s < 60:
        text = f"{min(round(s), 59)}{NBSP}s"
    elif s < 3600:
        text = f"{int(s // 60)}{NBSP}m" + (f" {int(s % 60):02d}{NBSP}s" if int(s % 60) else "")
    elif s < 86400:
        minutes = int(s % 3600 // 60)
        text = f"{int(s // 3600)}{NBSP}h" + (f" {minutes:02d}{NBSP}m" if minutes else "")
    else:
        text = f"{decimal(s / 86400, 2 if s < 864000 else 3)}{NBSP}d"
    return sign + text


def milliseconds(value: float | None) -> str:
    """A time given in milliseconds, with three significant digits: ``655 ms``, ``1,279 ms``."""
    if value is None:
        return "unknown"
    return f"{value:,.0f}{NBSP}ms" if abs(value) >= 1000 else f"{significant(value)}{NBSP}ms"


def relative(moment: str | None, now: float) -> str:
    """An RFC 3339 time relative to `now`: ``now``, ``2 m ago``, ``in 6 d 23 h``, ``12 Nov``.

    An age is in whole units that have passed; what lies ahead is a promise, and is given to the nearest next smaller
    unit: what goes in a minute less than seven days goes in 7 d, not in 6. (As `words` in static/js/app.js.)
    """
    if moment is None:
        return "never"
    s = now - parse_iso(moment)
    if abs(s) < 1.5:
        return "now"
    if s < 0:
        return f"in {_ahead(-s)}" if -s < 14 * 86400 else day(moment, now)
    if s < 60:
        text = f"{s:.0f}{NBSP}s"
    elif s < 3600:
        text = f"{s // 60:.0f}{NBSP}m"
    elif s < 86400:
        text = f"{s // 3600:.0f}{NBSP}h"
    elif s < 14 * 86400:
        text = f"{s // 86400:.0f}{NBSP}d"
    else:
        return day(moment, now)
    return f"{text} ago"


def _ahead(s: float) -> str:
    if s < 90:
        return f"{round(s)}{NBSP}s"
    minutes, hours = round(s / 60), round(s / 3600)
    if minutes < 60:
        return f"{minutes}{NBSP}m"
    whole, part, units = (*divmod(minutes, 60), "hm") if minutes < 24 * 60 else (*divmod(hours, 24), "dh")
    return f"{whole}{NBSP}{units[0]}" + (f"{NBSP}{part}{NBSP}{units[1]}" if part else "")


def exact(moment: str | None) -> str:
    """``Mon 30 Nov 2026, 08:15:02 UTC``."""
    if moment is None:
        return "never"
    return _utc(moment).strftime("%a %-d %b %Y, %H:%M:%S UTC")


def moment_input(seconds: float) -> str:
    """UTC to the minute, as a field of a form wants a time: ``2026-11-30T08:12``."""
    return (iso(seconds) or "")[:16]


def zoned(moment: str | None, timezone: str, *, short: bool = False) -> str:
    """``Mon 30 Nov 2026, 09:15 Europe/Berlin (CET)``: a firing as its schedule means it; `short`: ``… 09:15 CET``."""
    if moment is None:
        return "never"
    try:
        at = _utc(moment).astimezone(ZoneInfo(timezone))
    except (ZoneInfoNotFoundError, ValueError):
        return exact(moment)
    named = timezone if at.tzname() in (None, timezone) else f"{timezone} ({at.tzname()})"
    if short:
        named = at.tzname() or timezone
    return at.strftime("%a %-d %b %Y, %H:%M ") + named


def clock_time(moment: str | None) -> str:
    """``08:15`` (UTC)."""
    return "never" if moment is None else _utc(moment).strftime("%H:%M")


def day(moment: str, now: float) -> str:
    """``30 Nov``, with the year when it is another one."""
    at = _utc(moment)
    this_year = datetime.fromtimestamp(now, UTC).year
    return at.strftime("%-d %b" if at.year == this_year else "%-d %b %Y")


def day_title(moment: str, now: float) -> str:
    """``Today``, ``Yesterday`` or the day, for headings between events."""
    days = datetime.fromtimestamp(now, UTC).date().toordinal() - _utc(moment).date().toordinal()
    return {0: "Today", 1: "Yesterday"}.get(days, day(moment, now))


def plural(number: float | None, one: str, many: str | None = None) -> str:
    """``1 record``, ``1,204 records``; "unknown records" for None."""
    word = one if number == 1 else (many or one + "s")
    return f"{count(number)} {word}"


def words(code: str) -> str:
    """A machine word for people: ``other_layout`` to "other layout"."""
    return code.replace("_", " ")


def middle(text: str, keep: int = 8) -> str:
    """A long hash with its middle left out: ``3fa91c02…9be1``."""
    return text if len(text) <= 2 * keep + 1 else f"{text[:keep]}…{text[-keep // 2 :]}"


def ends(text: str, room: int = 40) -> str:
    """A long name, path or salt with its middle left out: what tells it from its like stands at its end."""
    head = room // 3
    return text if len(text) <= room else f"{text[:head]}…{text[head + 1 - room :]}"


def split_at_difference(text: str, other: str) -> tuple[str, str, str]:
    """`text` as (what it shares with `other`, the first word that differs, the rest); an empty word: it ends."""
    same = next((i for i, (x, y) in enumerate(zip(text, other, strict=False)) if x != y), min(len(text), len(other)))
    # Back to the start of the word, unless the difference is white space itself.
    while same and not text[same - 1].isspace() and same < len(text) and not text[same].isspace():
        same -= 1
    end = same
    while end < len(text) and (end == same or not text[end].isspace()):
        end += 1
    return text[:same], text[same:end], text[end:]


def seconds_between(start: str, end: str) -> float:
    """Seconds from one RFC 3339 time to another."""
    return parse_iso(end) - parse_iso(start)


def _utc(moment: str) -> datetime:
    return datetime.fromtimestamp(parse_iso(moment), UTC)
