"""Secrets that live in files (`file:/run/secrets/name`), as Kubernetes and Docker mount them: read when used."""

from __future__ import annotations

from pathlib import Path

from app.errors import InvalidInput

PREFIX = "file:"
MAX_BYTES = 16 * 1024


def is_reference(text: str | None) -> bool:
    """Whether a secret is given by the name of a file."""
    return text is not None and text.startswith(PREFIX)


def read(reference: str, field: str, *, inside: Path | None = None) -> str:
    """The first line of the file. Raises InvalidInput naming `field` for one that cannot be read.

    inside: the only directory whose files may be named. Whoever may enter an API key must not be able to send any file
    of this machine to a server of theirs.
    """
    path = Path(reference.removeprefix(PREFIX))
    try:
        real = path.resolve(strict=True)
        if inside is not None and not real.is_relative_to(inside.resolve()):
            raise InvalidInput.field(field, f"{str(path)!r} is outside of {str(inside)!r}, where secrets are")
        with real.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise InvalidInput.field(field, f"the file {str(path)!r} cannot be read ({why})") from error
    if len(raw) > MAX_BYTES:
        raise InvalidInput.field(field, f"the file {str(path)!r} is larger than {MAX_BYTES} bytes: no secret is")
    return raw.decode("utf-8", "replace").partition("\n")[0].strip()
