"""Comma-separated values of options. A part that is missing is a slip of the hand: it is refused, not skipped."""

from __future__ import annotations

from app.errors import InvalidInput


def parts_of(option: str, text: str, example: str) -> list[str]:
    """The parts of ``a, b, c``. Raises InvalidInput naming the option, the value and how it is written."""
    parts = [part.strip() for part in text.split(",")]
    if all(parts):
        return parts
    if not any(parts):
        raise InvalidInput.field(option, f"{text!r} names nothing; write {option} {example}, or leave {option} out")
    place = parts.index("") + 1
    raise InvalidInput.field(
        option, f"{text!r} has nothing at place {place} of {len(parts)}; write {option} {example}, without empty parts"
    )


def numbers_of(option: str, text: str, example: str) -> list[int]:
    """Whole numbers of ``1,2,3``. Raises InvalidInput naming the option, the value and how it is written."""
    found: list[int] = []
    for part in parts_of(option, text, example):
        # Digits alone: int() would take 1_000 and digits of other scripts too.
        if not (part.isascii() and part.isdigit()):
            raise InvalidInput.field(option, f"{part!r} in {text!r} is no whole number; write {option} {example}")
        found.append(int(part))
    return found
