"""Names and texts from disks and servers as what can be seen: no control character reaches a page or a terminal. Pure
but for `say`, which is how commands print what is not JSON."""

from __future__ import annotations

from typing import TextIO

NBSP = "\u00a0"  # no-break space: between a number and its unit


def printable(name: str) -> str:
    """A name from disk as one visible line: control and undecodable characters become their escapes."""
    return name if name.isprintable() else _escaped(name, NBSP)


def printable_lines(text: str) -> str:
    """A text of several lines: line breaks and no-break spaces stay, all else that cannot be seen is escaped."""
    return text if text.isprintable() else _escaped(text, "\n" + NBSP)


def say(line: str, *, file: TextIO | None = None) -> None:
    """Prints one line for people, whatever names are in it."""
    print(printable(line), file=file)


def say_lines(text: str, *, file: TextIO | None = None) -> None:
    """Prints a text for people that may have line breaks of its own. Names in it are to be `printable` already where a
    line break in them could be taken for one of ours."""
    print(printable_lines(text), file=file)


def _escaped(text: str, keep: str) -> str:
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )
