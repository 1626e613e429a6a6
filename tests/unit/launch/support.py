"""Forms for tests, and readers of what was written: shell, compose and unit files back into words."""

from __future__ import annotations

import re
import shlex
from typing import Any

import yaml

from app.commands.launch import checker
from app.launch.schemas import LaunchInput, LaunchView
from app.launch.service import LaunchService

MODEL = "/models/Qwen2.5-7B"


def form(**changes: Any) -> LaunchInput:
    """A form; `server`, `engine`, `store`, `images`, `units` are dicts of changed fields."""
    server = {"l1_gib": 20.0, **changes.pop("server", {})}
    if "store" in changes:
        server["store"] = changes.pop("store")
    engine = {"model": MODEL, **changes.pop("engine", {})}
    return LaunchInput.model_validate({"server": server, "engine": engine, **changes})


def generate(body: LaunchInput | None = None, **changes: Any) -> LaunchView:
    return LaunchService(check=checker).generate(body or form(**changes))


def text_of(view: LaunchView, name: str) -> str:
    return next(item.text for item in view.files if item.name == name)


def shell_words(text: str) -> list[str]:
    """The words a shell would run: the last command of a script without its assignments."""
    words = shlex.split(text.replace("\\\n", " "))
    while "=" in words[0] and not words[0].startswith("-"):
        words.pop(0)
    return words


def compose_words(view: LaunchView, service: str, name: str = "compose.yaml") -> list[str]:
    """What compose would run: interpolation undone."""
    found = yaml.safe_load(text_of(view, name))["services"][service]
    return [str(word).replace("$$", "$") for word in [*found["entrypoint"], *found["command"]]]


def unit_words(text: str) -> list[str]:
    """ExecStart= as systemd splits it: quotes, C escapes, %% and $$."""
    joined = text.replace("\\\n", " ")
    line = next(line for line in joined.splitlines() if line.startswith("ExecStart="))
    words: list[str] = []
    for match in re.finditer(r'"((?:[^"\\]|\\.)*)"|(\S+)', line.removeprefix("ExecStart=")):
        raw = match[1] if match[1] is not None else match[2]
        raw = re.sub(r"\\(.)", r"\1", raw) if match[1] is not None else raw
        words.append(raw.replace("%%", "%").replace("$$", "$"))
    return words
