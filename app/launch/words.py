"""What may stand in a command line. Everything that is generated goes through here; nothing hostile comes out.

Refused rather than escaped: control characters, words that a program would take for an option, paths that leave their
place. What is left is quoted for its target by `shell`, `compose` or `systemd`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from app.errors import InvalidInput

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.\-]{0,253}[A-Za-z0-9])?|\[?[0-9A-Fa-f:]{2,45}\]?")
_IMAGE = re.compile(r"[a-z0-9]+(?:[._\-/][a-z0-9]+)*(?::[0-9]{1,5}(?:/[a-z0-9]+(?:[._\-/][a-z0-9]+)*)?)?"
                    r"(?::[A-Za-z0-9_][A-Za-z0-9._\-]{0,127})?(?:@sha256:[0-9a-f]{64})?")  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,119}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,119}")
_OPTION = re.compile(r"--[a-z0-9][a-z0-9\-.]{0,79}(?:=.{0,1000})?")
_USER = re.compile(r"[a-z_][a-z0-9_\-]{0,31}")
#: Options that are generated; a second one would win silently.
_GENERATED = """
--model --served-model-name --host --port --dtype --kv-cache-dtype --max-model-len --max-num-seqs --block-size
--tensor-parallel-size --gpu-memory-utilization --enable-prefix-caching --no-enable-prefix-caching
--enable-prompt-tokens-details --mamba-cache-mode --max-num-batched-tokens --kv-transfer-config
"""
GENERATED = frozenset(_GENERATED.split())


def plain(field: str, value: str) -> str:
    """A text without control characters that is not taken for an option."""
    if not value or any(ord(char) < 32 or ord(char) == 127 for char in value) or _odd(value):
        raise InvalidInput.field(field, f"{value[:80]!r} is empty or has control characters in it")
    if value.startswith("-"):
        raise InvalidInput.field(field, f"{value[:80]!r} begins with a dash and would be taken for an option")
    return value


def _odd(value: str) -> bool:
    """Lone surrogates, line separators and marks that turn the writing direction: nobody sees them in a terminal."""
    return any(
        0xD800 <= ord(char) <= 0xDFFF or char in "\u2028\u2029\u0085" or 0x202A <= ord(char) <= 0x202E
        or 0x2066 <= ord(char) <= 0x2069
        for char in value
    )  # fmt: skip


def path(field: str, value: str) -> str:
    """An absolute path in its plain form."""
    plain(field, value)
    parts = value.split("/")
    if not value.startswith("/") or "." in parts or ".." in parts or "//" in value or value == "/":
        raise InvalidInput.field(field, f"{value[:80]!r} must be an absolute path without . and ..")
    if ":" in value or "," in value:
        raise InvalidInput.field(field, f"{value[:80]!r} holds a colon or a comma, which a mount cannot have")
    return value.rstrip("/")


def folder(field: str, value: str) -> str:
    """One folder inside another."""
    if not _NAME.fullmatch(value.removeprefix(".")) or value in (".", ".."):
        raise InvalidInput.field(field, f"{value[:80]!r} must be one folder's name, such as .tmp")
    return value


def host(field: str, value: str) -> str:
    """A host name or address."""
    if not _HOST.fullmatch(value):
        raise InvalidInput.field(field, f"{value[:80]!r} is no host name and no address")
    return value


def image(field: str, value: str) -> str:
    """A container image."""
    if not _IMAGE.fullmatch(value):
        raise InvalidInput.field(field, f"{value[:80]!r} is no image name such as lmcache/standalone:v0.5.6")
    return value


def name(field: str, value: str) -> str:
    """An identifier of letters, digits, dots, dashes and underscores."""
    if not _NAME.fullmatch(value):
        raise InvalidInput.field(field, f"{value[:80]!r} may hold letters, digits, dots, dashes and underscores only")
    return value


def user(field: str, value: str) -> str:
    if not _USER.fullmatch(value):
        raise InvalidInput.field(field, f"{value[:80]!r} is no user name")
    return value


def variables(field: str, values: Mapping[str, str]) -> dict[str, str]:
    """Environment variables: proper names, values without control characters."""
    found: dict[str, str] = {}
    for key, value in values.items():
        if not _VARIABLE.fullmatch(key):
            raise InvalidInput.field(field, f"{key[:80]!r} is no name of a variable")
        if len(value) > 4000 or any(ord(char) < 32 or ord(char) == 127 for char in value) or _odd(value):
            raise InvalidInput.field(f"{field}.{key}", "is too long or has control characters in it")
        found[key] = value
    return found


def further(field: str, words: Sequence[str]) -> list[str]:
    """Further options: each begins with ``--``, or follows one that does; none that is generated already."""
    found: list[str] = []
    after_option = False
    for place, word in enumerate(words):
        where = f"{field}[{place}]"
        if word.startswith("-"):
            if not _OPTION.fullmatch(word) or any(ord(char) < 32 for char in word) or _odd(word):
                raise InvalidInput.field(
                    where, f"{word[:80]!r} is no option; write --name, and its value as the next word"
                )
            if word.split("=", 1)[0] in GENERATED:
                raise InvalidInput.field(where, f"{word.split('=', 1)[0]} is generated; use its own field")
            after_option = "=" not in word
        else:
            if not after_option:
                raise InvalidInput.field(where, f"{word[:80]!r} follows no option: it would be taken for the model")
            plain(where, word)
            after_option = False
        found.append(word)
    return found


def shell_line(words: Sequence[str]) -> str:
    """A command for a POSIX shell, one option a line."""
    lines: list[str] = []
    current: list[str] = []
    for word in words:
        if word.startswith("--") and current:
            lines.append(" ".join(current))
            current = []
        current.append(shlex.quote(word))
    lines.append(" ".join(current))
    return " \\\n  ".join(lines)


def systemd_word(word: str) -> str:
    """One word of ExecStart=: quoted, with systemd's own expansions (% and $) switched off."""
    escaped = word.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[A-Za-z0-9_./:=@+,%\-]+", escaped):
        return escaped
    inner = escaped.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inner}"'


def systemd_variable(key: str, value: str) -> str:
    """One Environment= assignment."""
    inner = value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'Environment="{key}={inner}"'


def compose_word(word: str) -> str:
    """A word of a compose file: ``$`` would be interpolated."""
    return word.replace("$", "$$")
