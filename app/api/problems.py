"""Errors on the way out: RFC 9457 problem+json for the API, a page (through `app.state.error_page`) for browsers."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app.api.deps import SIGN_IN, authenticate
from app.database import trouble
from app.errors import FieldError, NotSignedIn, TierkeeperError
from app.wording import location, sentence

log = structlog.get_logger()

PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}


def install(app: FastAPI) -> None:
    """Registers the one handler for our tree, and those for what frameworks raise."""

    @app.exception_handler(TierkeeperError)
    def _ours(request: Request, error: TierkeeperError) -> Response:
        return respond(request, error.status, error.code, error.title, error.detail, error.errors)

    @app.exception_handler(RequestValidationError)
    def _invalid(request: Request, error: RequestValidationError) -> Response:
        # A body is read before the route asks who sent it: strangers are not told what is wrong with theirs.
        if is_api(request) and authenticate(request, request.app.state.services) is None:
            return _ours(request, NotSignedIn(SIGN_IN))
        # A damaged page token or size is in the query; only what the caller sent is named.
        found = tuple(FieldError(_where(e), sentence(e)) for e in error.errors())
        detail = "; ".join(f"{f.field}: {f.message}" for f in found)
        return respond(request, 422, "invalid_input", "The input cannot be used", detail, found)

    @app.exception_handler(HTTPException)
    def _http(request: Request, error: HTTPException) -> Response:
        stranger = error.status_code == 400 and is_api(request)
        if stranger and authenticate(request, request.app.state.services) is None:
            return _ours(request, NotSignedIn(SIGN_IN))
        title = HTTPStatus(error.status_code).phrase
        detail = error.detail if error.detail and error.detail != title else _DETAILS.get(error.status_code, title)
        code = title.lower().replace(" ", "_").replace("-", "_")
        response = respond(request, error.status_code, code, title, detail, ())
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(ClientDisconnect)
    def _gone(_request: Request, _error: ClientDisconnect) -> Response:
        return Response(status_code=400)  # nobody is there to read it, and it is no crash of ours

    @app.exception_handler(DBAPIError)
    def _database(request: Request, error: DBAPIError) -> Response:
        return _bug(request, error)

    @app.exception_handler(Exception)
    def _bug(request: Request, error: Exception) -> Response:
        # Middleware stands outside of the handler above: what it meets arrives here as well.
        found = trouble(error) if isinstance(error, DBAPIError) else None
        if found is not None:
            log.error("database.unusable", path=request.url.path, error=found)
            return respond(request, 503, "database_unusable", "The database cannot be used just now", found, ())
        log.error("request.crashed", path=request.url.path, error=repr(error))
        detail = "an error of the panel itself; its log has the details under this request's id"
        return respond(request, 500, "internal_error", "Something went wrong", detail, ())


_DETAILS = {404: "there is nothing at this address", 405: "this address does not take that method"}


def is_api(request: Request) -> bool:
    """Whether the caller wants JSON: API paths and the unauthenticated machine endpoints."""
    path = request.scope.get("path", "")
    return (path.startswith("/api/") and path != "/api/docs") or path in ("/livez", "/readyz", "/metrics")


def respond(
    request: Request, status: int, code: str, title: str, detail: str, errors: tuple[FieldError, ...]
) -> Response:
    """One error as problem+json, as a page, or as a redirect to the sign-in for people who are not signed in."""
    page = getattr(request.app.state, "error_page", None)
    if not is_api(request) and page is not None:
        if status == NotSignedIn.status and request.method in ("GET", "HEAD"):
            return _to_login(request)
        rendered: Response = page(request, status, title, detail, errors)
        return rendered
    body: dict[str, Any] = {
        "type": f"urn:tierkeeper:problem:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "instance": request.scope.get("path", ""),
    }
    if errors:
        body["errors"] = [{"field": e.field, "message": e.message} for e in errors]
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse(body, status, headers=headers, media_type="application/problem+json")


def _to_login(request: Request) -> Response:
    root = request.app.state.root_path
    path = request.scope.get("path", "/")
    query = request.scope.get("query_string", b"").decode("ascii", "replace")
    target = path + (f"?{query}" if query else "")
    if request.headers.get("hx-request"):
        # A fragment must not be replaced by the sign-in form: the whole page goes there.
        return Response(status_code=204, headers={"HX-Redirect": f"{root}/login"})
    suffix = "" if target == "/" else f"?next={quote(target, safe='')}"
    return RedirectResponse(f"{root}/login{suffix}", 303)


def _where(error: Mapping[str, Any]) -> str:
    """The field; of a body that is no JSON at all the location is a character's number, which names nothing."""
    if error["type"] == "json_invalid":
        return "body"
    return _path(location(error))


def _path(location: tuple[Any, ...]) -> str:
    parts = list(location)
    if parts and parts[0] in ("body", "query", "path", "header", "cookie") and len(parts) > 1:
        parts = parts[1:]
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "body"
