"""Base shapes of everything that goes over HTTP, and those shared by every kind of long work and every list."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict

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
