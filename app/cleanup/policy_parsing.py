"""From the JSON of a policy or of a filter plan to a `PolicySpec`. Pure.

`parse_spec` takes select, protect, limits, removal, quarantine_for and blackouts, and raises InvalidInput that names
every bad field by its JSON path. Rules: CONTRACT "Cleanup", RULES C5, R6.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.cleanup.policy import DEFAULT_REASONS, REASONS, Blackout, Limits, PolicySpec, Protect, Select
from app.cleanup.quantities import Age, Amount, parse_age, parse_amount
from app.errors import FieldError, InvalidInput

_FIELDS: dict[str, frozenset[str]] = {
    "incompatible": frozenset({"reasons"}),
    "corrupt": frozenset({"reasons"}),
    "unreachable": frozenset({"reasons"}),
    "derived": frozenset(),
    "temporary": frozenset({"older_than"}),
    "unused": frozenset({"for", "age_only"}),
    "capacity": frozenset({"high", "low"}),
    "free_space": frozenset({"floor"}),
}
DEFAULT_TEMPORARY_AGE = Age(3600, "1h")


class _Problems:
    """Collects what is wrong, so that the user sees all of it at once."""

    def __init__(self) -> None:
        self.found: list[FieldError] = []

    def add(self, path: str, message: str) -> None:
        self.found.append(FieldError(path, message))

    def age(self, path: str, value: object) -> Age | None:
        try:
            return parse_age(value)
        except ValueError as error:
            self.add(path, str(error))
            return None

    def amount(self, path: str, value: object, *, percent: bool = True) -> Amount | None:
        try:
            return parse_amount(value, percent=percent)
        except ValueError as error:
            self.add(path, str(error))
            return None

    def unknown(self, path: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)
                self.add(
                    f"{path}.{name}", f"there is no such field here; the nearest is {near[0]}" if near else "unknown"
                )

    def check(self) -> None:
        if self.found:
            raise InvalidInput("; ".join(f"{e.field}: {e.message}" for e in self.found), errors=tuple(self.found))


def parse_filter_spec(body: Mapping[str, Any]) -> PolicySpec:
    """The spec of a plan from a filter: `body` has `filter` (checked by the inventory), `removal` and the like.

    Raises InvalidInput naming each bad field.
    """
    problems = _Problems()
    wait = body.get("quarantine_for")
    spec = PolicySpec(
        select=(),
        protect=_protect(problems, body.get("protect")),
        limits=_limits(problems, body.get("limits")),
        removal=str(body.get("removal", "quarantine")),
        quarantine_for=None if wait is None else problems.age("quarantine_for", wait),
        filters=dict(body["filter"]),
    )
    problems.check()
    return spec


def parse_spec(body: Mapping[str, Any], *, filesystem_bytes: int | None = None) -> PolicySpec:
    """The checked form of a policy's JSON. `filesystem_bytes` (if known) catches sizes above the disk.

    Raises InvalidInput naming each bad field.
    """
    problems = _Problems()
    raw = body.get("select")
    selects: list[Select] = []
    if not isinstance(raw, list) or not raw:
        problems.add("select", f"choose at least one kind of record to remove: {', '.join(_FIELDS)}")
        raw = []
    seen: dict[str, int] = {}
    for index, item in enumerate(raw):
        parsed = _select(problems, f"select[{index}]", item, filesystem_bytes)
        if parsed is None:
            continue
        if parsed.kind in seen:
            problems.add(
                f"select[{index}].kind", f"select[{seen[parsed.kind]}] is of the kind {parsed.kind} too; say it once"
            )
        seen.setdefault(parsed.kind, index)
        selects.append(parsed)
    removal = body.get("removal", "quarantine")
    if removal not in ("quarantine", "delete"):
        problems.add("removal", f"{removal!r} is neither quarantine nor delete")
    wait = body.get("quarantine_for")
    spec = PolicySpec(
        select=tuple(selects),
        protect=_protect(problems, body.get("protect")),
        limits=_limits(problems, body.get("limits")),
        removal=str(removal),
        quarantine_for=None if wait is None else problems.age("quarantine_for", wait),
        blackouts=_blackouts(problems, body.get("blackouts")),
    )
    problems.check()
    return spec


def _select(problems: _Problems, path: str, item: object, disk: int | None) -> Select | None:
    if not isinstance(item, Mapping):
        problems.add(path, f'{item!r} is not an object such as {{"kind": "corrupt"}}')
        return None
    kind = item.get("kind")
    if not isinstance(kind, str) or kind not in _FIELDS:
        near = difflib.get_close_matches(str(kind), list(_FIELDS), n=1, cutoff=0.0)[0]
        problems.add(f"{path}.kind", f"{kind!r} is not one of {', '.join(_FIELDS)}; the nearest is {near}")
        return None
    given = {k: v for k, v in item.items() if k != "kind"}
    known = sorted(_FIELDS[kind])
    if known:
        problems.unknown(path, given, known)
    else:
        for name in given:
            problems.add(f"{path}.{name}", f"the kind {kind} takes no fields")
    if kind in REASONS:
        return Select(kind, reasons=_reasons(problems, path, kind, given))
    if kind == "temporary":
        age = (
            problems.age(f"{path}.older_than", given["older_than"]) if "older_than" in given else DEFAULT_TEMPORARY_AGE
        )
        return Select(kind, age=age)
    if kind == "unused":
        if "for" not in given:
            problems.add(f"{path}.for", "say for how long a record must have been unused, such as 14d")
            return None
        age_only = given.get("age_only", False)
        if not isinstance(age_only, bool):
            problems.add(f"{path}.age_only", f"{age_only!r} is neither true nor false")
        return Select(kind, age=problems.age(f"{path}.for", given["for"]), age_only=bool(age_only))
    if kind == "capacity":
        return _capacity(problems, path, given, disk)
    if kind == "free_space":
        return _free_space(problems, path, given, disk)
    return Select(kind)


def _reasons(problems: _Problems, path: str, kind: str, given: Mapping[str, Any]) -> frozenset[str]:
    if given.get("reasons") is None:
        return DEFAULT_REASONS[kind]
    reasons = given["reasons"]
    if not isinstance(reasons, list) or not reasons:
        problems.add(f"{path}.reasons", f"give a list of {', '.join(REASONS[kind])}, or leave it out")
        return frozenset()
    for index, reason in enumerate(reasons):
        if reason not in REASONS[kind]:
            problems.add(f"{path}.reasons[{index}]", f"{reason!r} is not one of {', '.join(REASONS[kind])}")
    return frozenset(r for r in reasons if isinstance(r, str))


def _capacity(problems: _Problems, path: str, given: Mapping[str, Any], disk: int | None) -> Select | None:
    for name in ("high", "low"):
        if name not in given:
            problems.add(
                f"{path}.{name}", "capacity needs high (where it starts) and low (where it stops), such as 85%, 70%"
            )
    if not {"high", "low"} <= set(given):
        return None
    high, low = problems.amount(f"{path}.high", given["high"]), problems.amount(f"{path}.low", given["low"])
    if high is None or low is None:
        return None
    both = f"low {low} and high {high}"
    if (high.bytes is None) != (low.bytes is None):
        message = f"{both}: give both in percent (of the file system) or both as sizes (of the store)"
    elif (low.bytes or low.fraction or 0) >= (high.bytes or high.fraction or 0):
        message = f"{both}: low must be below high"
    elif disk is not None and high.bytes is not None and high.bytes > disk:
        message = f"high {high} is more than the file system holds ({disk} bytes), so that {both} could never act"
    else:
        return Select("capacity", high=high, low=low)
    problems.add(f"{path}.low", message)
    problems.add(f"{path}.high", message)
    return None


def _free_space(problems: _Problems, path: str, given: Mapping[str, Any], disk: int | None) -> Select | None:
    if "floor" not in given:
        problems.add(f"{path}.floor", "say how much must stay free, such as 200GiB or 10%")
        return None
    floor = problems.amount(f"{path}.floor", given["floor"])
    if floor is None:
        return None
    if (floor.fraction or 0) >= 1 or (disk is not None and floor.of(disk) >= disk):
        size = "" if disk is None else f" ({disk} bytes)"
        message = f"floor {floor} is not below the size of the store's file system{size}; it could never be reached"
        problems.add(f"{path}.floor", message)
        problems.add("store_id", message)
        return None
    return Select("free_space", floor=floor)


def _protect(problems: _Problems, raw: object) -> Protect:
    if raw is None:
        return Protect()
    if not isinstance(raw, Mapping):
        problems.add("protect", f'{raw!r} is not an object such as {{"accessed_within": "24h"}}')
        return Protect()
    problems.unknown("protect", raw, ["accessed_within", "written_within", "models"])
    ages = {
        name: problems.age(f"protect.{name}", raw[name])
        for name in ("accessed_within", "written_within")
        if raw.get(name) is not None
    }
    models = raw.get("models") or []
    if not isinstance(models, list) or not all(isinstance(m, str) and m for m in models):
        problems.add("protect.models", f"{models!r} is not a list of model names")
        models = []
    return Protect(ages.get("accessed_within"), ages.get("written_within"), tuple(models))


def _limits(problems: _Problems, raw: object) -> Limits:
    if raw is None:
        return Limits()
    if not isinstance(raw, Mapping):
        problems.add("limits", f'{raw!r} is not an object such as {{"max_records": 10000}}')
        return Limits()
    problems.unknown("limits", raw, ["max_bytes", "max_records", "max_fraction"])
    size = raw.get("max_bytes")
    count = raw.get("max_records")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or not 0 < count < 2**53):
        problems.add("limits.max_records", f"{count!r} is not a whole number above zero")
        count = None
    return Limits(
        None if size is None else problems.amount("limits.max_bytes", size, percent=False),
        count,
        _fraction(problems, raw.get("max_fraction")),
    )


def _fraction(problems: _Problems, value: object) -> float | None:
    if value is None:
        return None
    number: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    elif isinstance(value, str) and re.fullmatch(r"\d{1,3}(\.\d+)?\s*%", value):
        number = float(value.rstrip("% ")) / 100
    if number is None or not 0 < number <= 1:
        problems.add("limits.max_fraction", f"{value!r} is not a share above 0 and up to 1, such as 0.3")
        return None
    return number


def _blackouts(problems: _Problems, raw: object) -> tuple[Blackout, ...]:
    found: list[Blackout] = []
    for index, item in enumerate(raw if isinstance(raw, list) else []):
        path = f"blackouts[{index}]"
        if not isinstance(item, Mapping):
            problems.add(path, 'write a window as {"start": "08:00", "end": "20:00", "days": [1, 2, 3, 4, 5]}')
            continue
        problems.unknown(path, item, ["start", "end", "days"])
        start, end = (_minutes(problems, f"{path}.{name}", item.get(name)) for name in ("start", "end"))
        days = item.get("days") or []
        if not isinstance(days, list) or not all(isinstance(d, int) and 0 <= d <= 7 for d in days):
            problems.add(f"{path}.days", f"{days!r} is not a list of week days 0 to 6, where 0 is Sunday")
            days = []
        if start is not None and end is not None:
            found.append(Blackout(start, end, frozenset(d % 7 for d in days)))
    return tuple(found)


def _minutes(problems: _Problems, path: str, value: object) -> int | None:
    match = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", value) if isinstance(value, str) else None
    if match is None:
        problems.add(path, f"{value!r} is not a time of day such as 08:00")
        return None
    return int(match[1]) * 60 + int(match[2])
