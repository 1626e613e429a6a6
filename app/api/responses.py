"""Declared error answers, so that the OpenAPI document tells the whole truth."""

from __future__ import annotations

from typing import Any

PROBLEM_REF = "#/components/schemas/Problem"

Responses = dict[int | str, dict[str, Any]]


def problem(description: str) -> dict[str, Any]:
    """One error answer of the OpenAPI document."""
    return {"description": description, "content": {"application/problem+json": {"schema": {"$ref": PROBLEM_REF}}}}


#: The error answers that many routes share; `app.api.document` declares each once.
SHARED: Responses = {
    400: problem("The request cannot be read, or its page token belongs to another list"),
    401: problem("Not signed in"),
    403: problem("The role does not allow it, or the request came from another site"),
    404: problem("There is no such thing"),
    413: problem("The body is too large"),
    414: problem("The query is too long"),
    421: problem("The panel is not served under this host name"),
    422: problem("The input cannot be used"),
    431: problem("The headers are too large"),
    503: problem("The database cannot be used just now: locked, full, read-only or damaged"),
}
#: Of the whole API.
ALWAYS = frozenset(SHARED)
#: Of every address: what the middleware may answer before any route is asked.
ANYWHERE = frozenset({400, 413, 414, 421, 431})

#: What a route declares beyond those: nothing where it only reads …
READ: Responses = {}
NOT_FOUND: Responses = {}
#: … and these where it changes something.
BODY: Responses = {
    409: problem("Not possible in the present state"),
    429: problem("Too many attempts"),
}
