"""Ages and sizes as people write them in policies, and back. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_AGE = re.compile(r"([0-9]{1,9})\s*([smhdw])")
_AGE_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST_AGE = 100 * 365 * 86400

_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,6})?)\s*([A-Za-z%]*)")
_DECIMAL = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_BINARY = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "PIB": 2**50}
_LARGEST = 2**62


@dataclass(frozen=True, slots=True)
class Age:
    """A duration as written (`text`) and in seconds."""

    seconds: int
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Amount:
    """A size: either `bytes`, or `fraction` (0..1) of something the field names. `text` as written."""

    bytes: int | None
    fraction: float | None
    text: str

    def of(self, whole: int) -> int:
        """In bytes, where a percentage is of `whole` bytes."""
        return self.bytes if self.bytes is not None else int(whole * (self.fraction or 0.0))

    def __str__(self) -> str:
        return self.text


def parse_age(value: object) -> Age:
    """``10m``, ``24h``, ``14d`` (also s and w). Raises ValueError with a sentence for the user."""
    match = _AGE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not an age; write it as 10m, 24h or 14d")
    seconds = int(match[1]) * _AGE_SECONDS[match[2]]
    if seconds == 0:
        raise ValueError(f"{value!r} is no age at all; leave the field out, or write 10m, 24h or 14d")
    if seconds > _LONGEST_AGE:
        raise ValueError(f"{value!r} is longer than a hundred years; write something like 14d")
    return Age(seconds, f"{int(match[1])}{match[2]}")


def parse_amount(value: object, *, percent: bool = True) -> Amount:
    """Bytes as an integer, ``200GB`` (10⁹), ``200GiB`` (2³⁰), or (where `percent`) ``85%``.

    Raises ValueError with a sentence for the user.
    """
    accepted = "bytes, 200GB (10⁹), 200GiB (2³⁰)" + (" or 85%" if percent else "")
    if isinstance(value, int) and not isinstance(value, bool):
        number, unit, digits, text = float(value), "B", str(value), str(value)
    else:
        match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"{value!r} is not a size; write it as {accepted}")
        number, unit, digits, text = float(match[1]), match[2], match[1], f"{match[1]}{match[2]}"
    if unit == "%":
        if not percent:
            raise ValueError(f"{value!r}: a percentage makes no sense here; write it as {accepted}")
        if not 0 < number <= 100:
            raise ValueError(f"{value!r} is not between 0% and 100%")
        return Amount(None, number / 100, text)
    factor = 1 if unit == "" else _DECIMAL.get(unit.upper()) or _BINARY.get(unit.upper())
    if factor is None:
        hint = f"; say {unit.upper()}B (powers of ten) or {unit.upper()}iB (powers of two)" if unit in "kKMGTP" else ""
        raise ValueError(f"{value!r} has the unit {unit!r}, which is not known{hint}; write it as {accepted}")
    # An integer text must not lose its last digits in a float.
    size = int(digits) * factor if digits.isdecimal() else round(number * factor)
    if size <= 0:
        raise ValueError(f"{value!r} must be more than zero")
    if size > _LARGEST:
        raise ValueError(f"{value!r} is more than any disk holds")
    return Amount(size, None, text)


def human_age(seconds: float) -> str:
    """``45 s``, ``12 min``, ``5 h``, ``3 d``: one unit, rounded down."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds // 86400)} d"
