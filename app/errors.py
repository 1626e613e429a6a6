"""One error tree; `app.api.problems` and `app.web.pages` turn it into RFC 9457 problems or pages.

Every error carries a sentence a user can act on: it names the field, the value and the way out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class FieldError:
    """What is wrong with one field of the caller's input.

    `field` is the JSON path as the caller wrote it (``select[0].older_than``), `message` one sentence.
    """

    field: str
    message: str


class TierkeeperError(Exception):
    """Base of all errors of ours. `status` is the HTTP status, `code` a stable machine-readable word."""

    status = 500
    code = "internal_error"
    title = "Something went wrong"

    def __init__(self, detail: str, *, errors: tuple[FieldError, ...] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = errors


class InvalidInput(TierkeeperError):
    """The caller's input cannot be used; nothing was changed."""

    status = 422
    code = "invalid_input"
    title = "The input cannot be used"

    @classmethod
    def field(cls, field: str, message: str) -> InvalidInput:
        """An error about exactly one field."""
        return cls(f"{field}: {message}", errors=(FieldError(field, message),))


class BadToken(TierkeeperError):
    """A page token that this list did not hand out."""

    status = 400
    code = "bad_page_token"
    title = "The page token does not belong to this list"


class NotSignedIn(TierkeeperError):
    status = 401
    code = "not_signed_in"
    title = "Sign in or send a token"


class Forbidden(TierkeeperError):
    status = 403
    code = "forbidden"
    title = "Not allowed"


class NotFound(TierkeeperError):
    """Names nothing, however the id was formed."""

    status = 404
    code = "not_found"
    title = "There is no such thing"

    @classmethod
    def of(cls, kind: str, ident: object) -> NotFound:
        """E.g. ``NotFound.of("store", "17")``."""
        return cls(f"no {kind} has the id {ident!r}")

    @classmethod
    def named(cls, kind: str, wanted: str, known: Iterable[str]) -> NotFound:
        """For what people type: neither a name nor an id; tells the first ten names there are."""
        names = sorted(known)
        told = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        there = f"registered are: {told}" if names else f"no {kind} is registered yet; {_how_to_add(kind)}"
        return cls(f"no {kind} has the name or id {wanted[:80]!r}; {there}")


def _how_to_add(kind: str) -> str:
    """Where one of that kind is made: targets by page or command."""
    ways = {"server": "server URL", "engine": "engine URL", "store": "store DIRECTORY"}
    if kind not in ways:
        return "add it on its page"
    return f"add it under Settings, or with: tierkeeper target add --name NAME {ways[kind]}"


class Conflict(TierkeeperError):
    """The state of things forbids it just now (or the name is taken)."""

    status = 409
    code = "conflict"
    title = "Not possible in the present state"


class TooManyRequests(TierkeeperError):
    status = 429
    code = "too_many_requests"
    title = "Too many attempts"


class TargetError(TierkeeperError):
    """A cache server or engine did not answer as hoped. `kind` says how.

    kind: ``refused`` (connection refused), ``timeout``, ``dns``, ``tls``, ``http`` (an error status),
    ``unreadable`` (the answer cannot be parsed), ``too_large``, ``closed`` (cut off mid-answer).
    `http_status` is the status where there was one.
    """

    status = 502
    code = "target_error"
    title = "The target did not answer as expected"

    def __init__(self, kind: str, detail: str, *, http_status: int | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.http_status = http_status


class StoreError(TierkeeperError):
    """The store's directory cannot be used (missing, unreadable, replaced, locked by another panel)."""

    status = 409
    code = "store_unusable"
    title = "The store cannot be used"
