"""Base shapes of everything that goes over HTTP, and those shared by every kind of long work and every list."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

T = TypeVar("T")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text[:80]!r} has invisible or control characters in it; use one line of plain text")
    return text


#: One line of text for people: names and labels. It ends up in lists, terminals and log lines.
LabelText = Annotated[str, AfterValidator(_printable)]


class ApiModel(BaseModel):
    """Base of every response shape: a field nobody declared is a bug."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)


class InputModel(BaseModel):
    """Base of every request body: unknown fields and lax coercions (false for 0, "1" for 1) are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _all_text(cls, raw: Any) -> Any:
        """JSON can spell half of a surrogate pair: nothing that holds one can be sent again, once it is stored."""
        broken = _not_text(raw)
        if broken is not None:
            raise PydanticCustomError(
                "not_text",
                "is no valid text: half of a surrogate pair, or a byte that is no UTF-8, stands in it",
                {"at": list(broken)},
            )
        return raw


def _not_text(value: Any) -> tuple[str | int, ...] | None:
    """Where in a JSON value a text, or the name of a field, cannot be encoded; None where all can."""
    left: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while left:
        at, part = left.pop()
        if isinstance(part, str):
            if not _encodes(part):
                return at
        elif isinstance(part, dict):
            for name in part:
                if isinstance(name, str) and not _encodes(name):
                    return (*at, ascii(name)[1:-1])
            left += [((*at, name), inner) for name, inner in part.items()]
        elif isinstance(part, list | tuple):
            left += [((*at, number), inner) for number, inner in enumerate(part)]
    return None


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Progress(ApiModel):
    """How far long work is. `total` is null while it is not known."""

    done: int
    total: int | None
    unit: str


class WorkView(ApiModel):
    """The part every kind of long work shows. Times are RFC 3339 UTC."""

    id: str
    state: str
    progress: Progress
    error: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    requested_by: str


class Page(ApiModel, Generic[T]):
    """One page of a list."""

    items: list[T]
    next_page_token: str | None
