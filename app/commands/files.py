"""Files a person names on the command line: read whole, and never more than they can sensibly hold."""

from __future__ import annotations

import sys
from pathlib import Path

from app.errors import InvalidInput
from app.sizes import disk_size

#: A ShareGPT-style file of prompts has some 650 MB; a model's config.json a few kB.
MOST_PROMPTS = 2**30
MOST_CONFIG = 16 * 2**20


def read_named(path: str | Path, option: str, *, most: int) -> str:
    """The UTF-8 text of a file, a pipe or (``-``) the standard input.

    Raises InvalidInput naming the option: what cannot be read, is no UTF-8, or goes on beyond `most` bytes.
    """
    try:
        if str(path) == "-":
            raw = sys.stdin.buffer.read(most + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(most + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInput.field(option, f"{path} cannot be read ({why})") from None
    if len(raw) > most:
        raise InvalidInput.field(option, f"{path} has more than {disk_size(most)}, the most that is read")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput.field(option, f"{path} cannot be read: it is no UTF-8 text ({error.reason})") from None
