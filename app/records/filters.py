"""What a query, a page or a policy selects from the inventory, parsed and checked once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from app.errors import InvalidInput
from app.records.facts import REASONS

Order = Literal[
    "modified_at",
    "-modified_at",
    "accessed_at",
    "-accessed_at",
    "size_bytes",
    "-size_bytes",
    "name",
    "-name",
    "certainty",
    "-certainty",
]
ORDERS: tuple[str, ...] = get_args(Order)
DEFAULT_ORDER: Order = "-modified_at"
#: The most certainly wrong first, and among equals the newest.
CERTAIN_FIRST: Order = "-certainty"

_ALL_REASONS = tuple(reason for reasons in REASONS.values() for reason in reasons)
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)?", re.ASCII)
_AGE_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0, None: 1.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGTP]?)(i?)B?", re.ASCII)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


@dataclass(frozen=True)
class RecordFilter:
    """Conditions that all hold. Empty sets and None mean "any". Ages in seconds, sizes in bytes.

    `q` is part of the name; `salt` ``""`` means records without one; `unused_for` is the time since the later of the
    last access and the last write; `models` are names as LMCache uses them (paths).
    """

    classes: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    kv_rank: int | None = None
    salt: str | None = None
    q: str | None = None
    min_size: int | None = None
    older_than: float | None = None
    unused_for: float | None = None
    epoch_id: int | None = None

    @classmethod
    def from_query(cls, query: Mapping[str, object], *, prefix: str = "") -> RecordFilter:
        """From the names and texts of CONTRACT's records list (``class``, ``reason``, ``model``, …).

        ``class``, ``reason`` and ``model`` may hold several, separated by commas (model: a list only). Raises
        InvalidInput naming `prefix` + the field.
        """
        given = {key: value for key, value in query.items() if value is not None and value != ""}
        if query.get("salt") == "":
            given["salt"] = ""
        unknown = sorted(set(given) - _FIELDS)
        if unknown:
            raise InvalidInput.field(f"{prefix}{unknown[0]}", f"is not a filter; use {', '.join(sorted(_FIELDS))}")
        return cls(
            classes=_words(given.get("class"), tuple(REASONS), f"{prefix}class"),
            reasons=_words(given.get("reason"), _ALL_REASONS, f"{prefix}reason"),
            models=_models(given.get("model"), f"{prefix}model"),
            kv_rank=_kv_rank(given.get("kv_rank"), f"{prefix}kv_rank"),
            salt=_text(given.get("salt"), f"{prefix}salt", 128),
            q=_text(given.get("q"), f"{prefix}q", 255),
            min_size=_whole(given, "min_size", prefix),
            older_than=_age(given, "older_than", prefix),
            unused_for=_age(given, "unused_for", prefix),
            epoch_id=_epoch(given.get("epoch"), f"{prefix}epoch"),
        )

    @property
    def mixes_reasons(self) -> bool:
        """Whether classes or reasons were chosen, and what they choose is not all of one kind."""
        if not self.classes and not self.reasons:
            return False
        kinds = [
            reason or name
            for name, reasons in REASONS.items()
            for reason in (reasons or (None,))
            if (not self.classes or name in self.classes) and (not self.reasons or reason in self.reasons)
        ]
        return len(kinds) > 1

    def text(self) -> str:
        """The same text for the same filter, in every process: page tokens are bound to it."""
        parts = [sorted(self.classes), sorted(self.reasons), sorted(self.models), self.kv_rank, self.salt, self.q]
        return repr([*parts, self.min_size, self.older_than, self.unused_for, self.epoch_id])


_FIELDS = frozenset(
    ["class", "reason", "model", "kv_rank", "salt", "q", "min_size", "older_than", "unused_for", "epoch"]
)


def parse_order(text: str | None, *, field: str = "order") -> Order:
    """An order by name; a leading ``-`` turns it round. Raises InvalidInput."""
    if text is None or text == "":
        return DEFAULT_ORDER
    if text not in ORDERS:
        raise InvalidInput.field(field, f"{text!r} is not an order; use one of {', '.join(ORDERS)}")
    return text  # type: ignore[return-value]


def page_order(where: RecordFilter) -> Order:
    """The order of a list that somebody looks at and has not sorted: of mixed kinds, the certainly wrong come first."""
    return CERTAIN_FIRST if where.mixes_reasons else DEFAULT_ORDER


def parse_age(value: object, *, field: str) -> float:
    """Seconds of ``10m``, ``24h``, ``14d`` (also ``s`` and ``w``; a bare number is seconds). Raises InvalidInput."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidInput.field(field, f"{value!r} is not an age such as 10m, 24h or 14d")
    match = _AGE.fullmatch(str(value).strip())
    seconds = float(match[1]) * _AGE_SECONDS[match[2]] if match else -1.0
    if not 0 <= seconds <= 100 * 366 * 86400:
        raise InvalidInput.field(field, f"{value!r} is not an age such as 10m, 24h or 14d")
    return seconds


#: Shown where a size cannot be read: ``kb`` may have meant either.
_SIZES = "10kB (thousands), 10KiB (1024s), 10MB or 10MiB"


def parse_size(value: object, *, field: str) -> int:
    """Bytes of ``4096``, ``10MB`` (10⁶) or ``10MiB`` (2²⁰). Raises InvalidInput."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidInput.field(field, f"{value!r} is not a size such as 4096, {_SIZES}")
    match = _SIZE.fullmatch(str(value).strip())
    if match is None or (match[3] and not match[2]):
        raise InvalidInput.field(field, f"{value!r} is not a size such as 4096, {_SIZES}")
    size = float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].upper()]
    if size >= 2**63:
        raise InvalidInput.field(field, f"{value!r} is larger than any file")
    return int(match[1]) if not match[2] and "." not in match[1] else int(size)


def _words(value: object, known: tuple[str, ...], field: str) -> frozenset[str]:
    if value is None:
        return frozenset()
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise InvalidInput.field(field, f"{value!r} is not a text")
    words = [part.strip() for part in parts]
    for word in words:
        if word not in known:
            raise InvalidInput.field(field, f"{word!r} is not one of {', '.join(known)}")
    return frozenset(words)


def _models(value: object, field: str) -> frozenset[str]:
    if value is None:
        return frozenset()
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise InvalidInput.field(field, f"{value!r} is not a model name")
    return frozenset(parts)


def _kv_rank(value: object, field: str) -> int | None:
    if value is None:
        return None
    try:
        whole = isinstance(value, int) and not isinstance(value, bool)
        number = int(str(value), 0) if whole or str(value).isascii() else -1
    except ValueError:
        number = -1
    if not 0 <= number < 2**32:
        raise InvalidInput.field(field, f"{value!r} is not a rank such as 0x01000100 or 16777472")
    return number


def _text(value: object, field: str, longest: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > longest or "\0" in value:
        raise InvalidInput.field(field, f"must be a text of at most {longest} characters")
    return value


def _whole(given: Mapping[str, object], name: str, prefix: str) -> int | None:
    return parse_size(given[name], field=f"{prefix}{name}") if name in given else None


def _age(given: Mapping[str, object], name: str, prefix: str) -> float | None:
    return parse_age(given[name], field=f"{prefix}{name}") if name in given else None


def _epoch(value: object, field: str) -> int | None:
    if value is None:
        return None
    if not str(value).isascii() or not str(value).isdecimal() or len(str(value)) > 18:
        raise InvalidInput.field(field, f"{value!r} is not an epoch id")
    return int(str(value))
