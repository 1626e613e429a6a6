"""Declared error answers, so that the OpenAPI document tells the whole truth."""

from __future__ import annotations

from typing import Any

from app.api.problems import PROBLEM_SCHEMA

Responses = dict[int | str, dict[str, Any]]


def problem(description: str) -> dict[str, Any]:
    """One error answer of the OpenAPI document."""
    return {"description": description, "content": {"application/problem+json": {"schema": PROBLEM_SCHEMA}}}


_ALWAYS: Responses = {
    401: problem("Not signed in"),
    403: problem("The role does not allow it"),
    422: problem("The input cannot be used"),
}
#: Lists and single things without an id in the path.
READ: Responses = {**_ALWAYS, 400: problem("The page token does not belong to this list")}
#: Things named by an id.
NOT_FOUND: Responses = {**_ALWAYS, 400: problem("Bad request"), 404: problem("There is no such thing")}
#: Requests that change something.
BODY: Responses = {
    **NOT_FOUND,
    409: problem("Not possible in the present state"),
    413: problem("The body is too large"),
    429: problem("Too many attempts"),
}
