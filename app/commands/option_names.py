"""What the services say of a request's fields, said of the options of a command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.errors import FieldError, InvalidInput

_FIELD = re.compile(r"([a-z_]+(?:[.\[][a-z_0-9.\]]*)?): (.+)", re.DOTALL)


@contextmanager
def naming_options(option: Callable[[str], str]) -> Iterator[None]:
    """An InvalidInput raised inside names options instead of fields; `option` says which sets a field."""
    try:
        yield
    except InvalidInput as error:
        fields = error.errors or _of_detail(error.detail)
        if not fields:
            raise
        named = tuple(FieldError(f.field if f.field.startswith("--") else option(f.field), f.message) for f in fields)
        raise InvalidInput("; ".join(f"{f.field}: {f.message}" for f in named), errors=named) from None


def _of_detail(detail: str) -> tuple[FieldError, ...]:
    """A panel elsewhere tells the field at the head of its sentence only."""
    match = _FIELD.fullmatch(detail)
    return (FieldError(match[1], match[2]),) if match else ()
