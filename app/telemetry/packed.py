"""Numbers under names, kept small: marks of a trail and slices of a window hold the same names again and again.

A dict of eighty floats takes 8 kB; four hundred targets with fifty marks each, two such dicts a mark, would be 300 MB.
Here the names are held once a trail (or window), and a number takes eight bytes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping

#: Names in their order, and where each stands.
Names = dict[str, int]
_ABSENT = math.nan


class Packed(Mapping[str, float | None]):
    """A mapping that cannot be changed. NaN stands for None, so numbers that are NaN cannot be packed (`pack`)."""

    __slots__ = ("_names", "_numbers")

    def __init__(self, names: Names, numbers: array[float]) -> None:
        self._names, self._numbers = names, numbers

    @property
    def names(self) -> Names:
        return self._names

    def __getitem__(self, name: str) -> float | None:
        number = self._numbers[self._names[name]]
        return None if number != number else number

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def unpacked(self) -> dict[str, float | None]:
        """As a dict of its own, faster than name by name."""
        return {name: None if n != n else n for name, n in zip(self._names, self._numbers, strict=True)}


def pack(values: Mapping[str, float | None], like: Mapping[str, float | None] | None) -> Mapping[str, float | None]:
    """The same numbers, packed; the names are those of `like` where they are the same ones in the same order.

    What holds a NaN stays as it is: it would come back as None.
    """
    numbers = array("d", [_ABSENT if value is None else value for value in values.values()])
    unknown = sum(value is None for value in values.values())
    if sum(map(math.isnan, numbers)) != unknown:
        return values
    if isinstance(like, Packed) and len(like) == len(values) and all(map(str.__eq__, like.names, values)):
        return Packed(like.names, numbers)
    return Packed({name: place for place, name in enumerate(values)}, numbers)


def plain(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """As a dict of its own, packed or not."""
    return values.unpacked() if isinstance(values, Packed) else dict(values)
