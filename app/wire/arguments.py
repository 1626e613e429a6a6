"""Command lines as people paste them: shell lines, ``docker run``, unit files; taken apart, never run.

Only quoting and line continuations are honoured; variables and substitutions stay as they are written.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from app.wire import fields

MAX_LINES = 2000
MAX_TOKENS = 4000


@dataclass(frozen=True)
class Options:
    """Options of one command: name without dashes, dashes inside as underscores -> its values in order.

    A switch has the single value ``"true"``; ``--no-x`` is x with ``"false"``. `positional` is what is no option.
    """

    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    positional: tuple[str, ...] = ()

    def text(self, name: str) -> str | None:
        """The last value given."""
        return self.values[name][-1] if name in self.values else None

    def number(self, name: str) -> float | None:
        raw = self.text(name)
        try:
            return None if raw is None else fields.number(float(raw))
        except ValueError:
            return None

    def count(self, name: str) -> int | None:
        """A whole number as vLLM reads it: ``8k`` is 8,000, ``8K`` 8,192."""
        raw = self.text(name)
        if raw is None:
            return None
        factor = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}.get(raw[-1:], 1)
        number = raw[:-1] if factor > 1 else raw
        try:
            value = float(number) * factor
        except ValueError:
            return None
        return fields.count(value)

    def flag(self, name: str) -> bool | None:
        raw = self.text(name)
        return None if raw is None else raw.strip().lower() in ("true", "1", "yes", "on", "")

    def plain(self) -> dict[str, str]:
        """Every option with its last value."""
        return {name: values[-1] for name, values in self.values.items()}


def read_options(tokens: Sequence[str]) -> Options:
    """Take the tokens after the program apart. ``--a=b``, ``--a b``, ``--a``, ``--no-a`` and short ``-x v``."""
    values: dict[str, list[str]] = {}
    positional: list[str] = []
    index = 0
    tokens = tokens[:MAX_TOKENS]
    while index < len(tokens):
        word = tokens[index]
        index += 1
        if not word.startswith("-") or len(word) == 1 or _is_number(word):
            positional.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if equals:
            values.setdefault(name, []).append(value)
        elif index < len(tokens) and (not tokens[index].startswith("-") or _is_number(tokens[index])):
            values.setdefault(name, []).append(tokens[index])
            index += 1
        elif word.startswith("--no-"):
            values.setdefault(name.removeprefix("no_"), []).append("false")
        else:
            values.setdefault(name, []).append("true")
    return Options({name: tuple(items) for name, items in values.items()}, tuple(positional))


def command_lines(text: str) -> Iterator[list[str]]:
    """The commands of a text, one token list a command. Raises ValueError for quotes that never close."""
    for number, line in enumerate(_logical_lines(text), 1):
        try:
            tokens = shlex.split(line, comments=True)
        except ValueError as error:
            raise ValueError(f"command {number} cannot be read ({error}): {line[:80]!r}") from None
        if tokens:
            yield tokens


def leading_variables(tokens: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """``A=1 B=2 env C=3 program …`` -> ({A, B, C}, [program, …])."""
    found: dict[str, str] = {}
    rest = list(tokens)
    while rest and (rest[0] in ("env", "exec", "nohup", "setsid", "sudo", "export") or _is_assignment(rest[0])):
        first = rest.pop(0)
        if _is_assignment(first):
            name, _, value = first.partition("=")
            found[name] = value
    return found, rest


def _logical_lines(text: str) -> Iterator[str]:
    parts: list[str] = []
    for raw in text.splitlines()[:MAX_LINES]:
        line = raw.rstrip()
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        parts.append(line)
        whole = "\n".join(parts) if _open_quote(" ".join(parts)) else " ".join(parts)
        if _open_quote(whole):
            continue  # JSON over several lines inside quotes
        yield whole
        parts = []
    if any(part.strip() for part in parts):
        yield " ".join(parts)


def _open_quote(text: str) -> bool:
    quote = ""
    escaped = False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#":
            return False
    return bool(quote)


def _is_assignment(token: str) -> bool:
    name, equals, _ = token.partition("=")
    return bool(equals) and name.isidentifier()


def _is_number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True
