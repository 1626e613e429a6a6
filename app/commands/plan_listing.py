"""The records of a plan as `tierkeeper plan` shows them: what would go, and why each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from app.printable import printable
from app.sizes import disk_size

#: Records shown without --all.
SHOWN = 30
#: Columns where there is no terminal to ask.
WIDTH = 100
_SHORTEST = 24
_HEAD = ("record", "bytes", "class", "taken by", "last used")


def chosen(records: Iterable[Mapping[str, Any]], *, everything: bool) -> list[Mapping[str, Any]]:
    """The records to show, in the order in which they would go."""
    return list(records if everything else islice(records, SHOWN))


def lines(items: list[Mapping[str, Any]], total: int, *, width: int = WIDTH) -> list[str]:
    """A table that fits the width (names lose their middle), and how many records it leaves out."""
    if not items:
        return []
    rows = [_HEAD, *(_row(item) for item in items)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    room = width - sum(widths[1:]) - 2 * (len(_HEAD) - 1)
    widths[0] = min(widths[0], max(room, _SHORTEST))
    rows = [(_middle(row[0], widths[0]), *row[1:]) for row in rows]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if any("…" in row[0] for row in rows[1:]):
        table.append("names are shortened to fit; --json has them whole")
    more = total - len(items)
    return [*table, *([f"… and {more} more; --all lists every one"] if more > 0 else [])]


def _middle(name: str, width: int) -> str:
    """The name without its middle: what tells records apart stands at its end."""
    if len(name) <= width:
        return name
    head = width // 4
    return f"{name[:head]}…{name[-(width - head - 1) :]}"


def _row(item: Mapping[str, Any]) -> tuple[str, ...]:
    what = item["class"] + (f"/{item['reason']}" if item["reason"] else "")
    used = max(item["accessed_at"], item["modified_at"])
    why = item["why"] + (" (delete)" if item["action"] == "delete" else "")
    return printable(item["name"]), disk_size(item["size_bytes"]), what, why, used[:19] + "Z"
