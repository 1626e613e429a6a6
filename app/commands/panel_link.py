"""Where people see what a command did: a whole address where one is known, else which panel to open."""

from __future__ import annotations

import sys

from app.data_dir import serving_at
from app.printable import say
from app.settings import load_settings


def say_where(what: str, url: str | None, path: str, *, matters: bool) -> None:
    """Says on standard error where `what` is looked at. Where no address is known that is said only if it `matters`."""
    settings = load_settings()
    known = url or settings.public_url or serving_at(settings.data_dir)
    if known or matters:
        say(f"{what}: {panel_link(known, path)}", file=sys.stderr)


def panel_link(known: str | None, path: str) -> str:
    """A page of the panel at a known address; else its path, whose panel has it, and how the address becomes known."""
    if known:
        return f"{known.rstrip('/')}{path}"
    return (
        f"{path} in the panel of the data directory {load_settings().data_dir.resolve()}, which does not serve now: "
        "start it with tierkeeper serve, or set TIERKEEPER_PUBLIC_URL to where people reach it"
    )
