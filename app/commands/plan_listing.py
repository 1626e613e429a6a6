"""The records of a plan as `tierkeeper plan` shows them: what would go, and why each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from app.sizes import disk_size

#: Records shown without --all.
SHOWN = 30
_HEAD = ("record", "bytes", "class", "taken by", "last used")


def chosen(records: Iterable[Mapping[str, Any]], *, everything: bool) -> list[Mapping[str, Any]]:
    """The records to show, in the order in which they would go."""
    return list(records if everything else islice(records, SHOWN))


def lines(items: list[Mapping[str, Any]], total: int) -> list[str]:
    """A table, and how many records it leaves out."""
    if not items:
        return []
    rows = [_HEAD, *(_row(item) for item in items)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    more = total - len(items)
    return [*table, *([f"… and {more} more; --all lists every one"] if more > 0 else [])]


def _row(item: Mapping[str, Any]) -> tuple[str, ...]:
    what = item["class"] + (f"/{item['reason']}" if item["reason"] else "")
    used = max(item["accessed_at"], item["modified_at"])
    why = item["why"] + (" (delete)" if item["action"] == "delete" else "")
    return item["name"], disk_size(item["size_bytes"]), what, why, used[:19] + "Z"
