"""Pure ASGI middleware, one concern each. Order, outermost first (docs/ARCHITECTURE.md):

(`BehindProxy` and `AllowedHosts` of `app.web.proxy` stand around and between these.)

| class           | concern                                                                             |
|-----------------|-------------------------------------------------------------------------------------|
| RequestContext  | request id, client address for the audit trail, one access log line                  |
| SecurityHeaders | CSP 'self', no sniffing, no framing, no referrer, no caching of answers              |
| RequestLimits   | size of bodies, queries and header sets                                              |
| SameOrigin      | CSRF: unsafe methods with a session cookie must come from our own pages              |
| Idempotency     | Idempotency-Key on API POSTs                                                         |
"""

from __future__ import annotations

import hashlib
import secrets
import time
from urllib.parse import urlsplit

import anyio.to_thread
import structlog
from sqlalchemy import delete, select, update
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.deps import authenticate, forwarded_name, session_cookie_name
from app.api.problems import respond
from app.api.tables import IdempotentAnswer
from app.audit.service import client_address
from app.database import insert_ignore
from app.services import Services

log = structlog.get_logger()

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_BODY = 2 * 1024 * 1024
MAX_QUERY = 8 * 1024
MAX_HEADERS = 32 * 1024
_BODY_TOO_LARGE = f"the body is larger than {MAX_BODY} bytes"
KEEP_ANSWERS_SECONDS = 86400.0
CSP = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class RequestContext:
    """Request id on logs and answers; the client's address for the audit trail."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = secrets.token_hex(8)
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        client = scope.get("client")
        reset = client_address.set(client[0] if client else None)
        started = time.perf_counter()
        status = 500

        async def remember(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["server-timing"] = f"app;dur={(time.perf_counter() - started) * 1000:.1f}"
            await send(message)

        try:
            await self.app(scope, receive, remember)
        finally:
            client_address.reset(reset)
            seconds = time.perf_counter() - started
            level = log.debug if status < 400 else log.info
            level("request", method=scope["method"], path=scope["path"], status=status, ms=round(seconds * 1000, 1))


class SecurityHeaders:
    """The same headers on every answer; answers are not cached unless a route says so."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self.app(scope, receive, add)


class _TooLarge(HTTPException):
    """More of a body came than is taken."""


class RequestLimits:
    """Refuses oversized requests before anything reads them."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        problem = self._problem(scope)
        if problem:
            request = Request(scope)
            status, title, detail = problem
            await respond(request, status, "too_large", title, detail, ())(scope, receive, send)
            return
        received = 0

        async def count() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > MAX_BODY:
                    raise _TooLarge(413, _BODY_TOO_LARGE)  # a chunked body has no length to refuse up front
            return message

        try:
            await self.app(scope, count, send)
        except _TooLarge:  # read by a middleware, outside the application's own error handlers
            await respond(Request(scope), 413, "too_large", "Content Too Large", _BODY_TOO_LARGE, ())(
                scope, receive, send
            )

    @staticmethod
    def _problem(scope: Scope) -> tuple[int, str, str] | None:
        if len(scope.get("query_string", b"")) > MAX_QUERY:
            return 414, "URI Too Long", f"the query is longer than {MAX_QUERY} bytes"
        if sum(len(k) + len(v) for k, v in scope["headers"]) > MAX_HEADERS:
            return 431, "Request Header Fields Too Large", f"the headers are larger than {MAX_HEADERS} bytes"
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            return 413, "Content Too Large", _BODY_TOO_LARGE
        return None


class SameOrigin:
    """Cross-site request forgery: unsafe methods must come from our own origin.

    Sec-Fetch-Site decides where browsers send it (https and localhost); else Origin must name this host (plain-http
    intranets). With neither header a request is let through only when nothing signs it in by itself: no session cookie,
    no name given by a proxy. Scripts send tokens.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        if request.headers.get("authorization", "").lower().startswith("bearer ") or self._ours(request):
            await self.app(scope, receive, send)
            return
        detail = "this request did not come from the panel's own pages; use an API token for scripts"
        await respond(request, 403, "cross_site", "Not allowed", detail, ())(scope, receive, send)

    @staticmethod
    def _ours(request: Request) -> bool:
        services = request.app.state.services
        site = request.headers.get("sec-fetch-site")
        if site is not None:
            return site in ("same-origin", "none")
        origin = request.headers.get("origin")
        if origin is not None:
            # The scheme is not compared: behind a TLS proxy ours is http while the browser's is https. Where cookies
            # are bound to https no page of ours was read over http.
            parts = urlsplit(origin)
            by_http = services.settings.secure_cookies and parts.scheme != "https"
            return not by_http and parts.netloc.lower() == request.headers.get("host", "").lower()
        signs_itself_in = session_cookie_name(services) in request.cookies or forwarded_name(request, services)
        return not signs_itself_in


class Idempotency:
    """Idempotency-Key on API POSTs: the first answer is replayed; another body is 422; a running first one 409."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = Headers(scope=scope).get("idempotency-key") if scope["type"] == "http" else None
        if key is None or scope["method"] != "POST" or not scope["path"].startswith("/api/v1/"):
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        services: Services = scope["app"].state.services
        if not key.strip() or len(key) > 255:
            detail = "Idempotency-Key must have 1 to 255 characters"
            await respond(request, 400, "bad_idempotency_key", "Bad Request", detail, ())(scope, receive, send)
            return
        principal = await anyio.to_thread.run_sync(authenticate, request, services)
        if principal is None:
            await self.app(scope, receive, send)  # the route itself answers 401
            return
        body = await request.body()
        key_hash = hashlib.sha256(f"{principal.actor}\0{key}".encode()).hexdigest()
        request_hash = hashlib.sha256(scope["path"].encode() + b"\0" + body).hexdigest()
        stored = await anyio.to_thread.run_sync(_claim, services, key_hash, request_hash)
        if stored is not None:
            await _replay(request, stored, request_hash, send)
            return
        await self._first(scope, body, services, key_hash, send)

    async def _first(self, scope: Scope, body: bytes, services: Services, key_hash: str, send: Send) -> None:
        start: Message = {}
        chunks: list[bytes] = []
        held: list[Message] = []
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if sent:
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def hold(message: Message) -> None:
            nonlocal start
            held.append(message)
            if message["type"] == "http.response.start":
                start = message
            else:
                chunks.append(message.get("body", b""))

        try:
            await self.app(scope, receive, hold)
        finally:
            status = start.get("status", 500)
            headers = Headers(raw=start.get("headers", []))
            await anyio.to_thread.run_sync(_keep, services, key_hash, status, headers, b"".join(chunks))
        # Only now: whoever has the answer may send the request again at once, and is given the same one.
        for message in held:
            await send(message)


def _claim(services: Services, key_hash: str, request_hash: str) -> IdempotentAnswer | None:
    """None when this request is the first; else the row of the first one."""
    now = services.clock()
    table = IdempotentAnswer.__table__
    row = {"key_hash": key_hash, "request_hash": request_hash, "created_at": now}
    with services.db.write() as session:
        session.execute(delete(IdempotentAnswer).where(IdempotentAnswer.created_at < now - KEEP_ANSWERS_SECONDS))
        if insert_ignore(session, table, [row]):  # type: ignore[arg-type]
            return None
        return session.scalar(select(IdempotentAnswer).where(IdempotentAnswer.key_hash == key_hash))


def _keep(services: Services, key_hash: str, status: int, headers: Headers, body: bytes) -> None:
    """Keeps a good answer; a refused request may be sent again under the same key."""
    this = IdempotentAnswer.key_hash == key_hash
    with services.db.write() as session:
        if status >= 300:
            session.execute(delete(IdempotentAnswer).where(this))
            return
        session.execute(
            update(IdempotentAnswer)
            .where(this)
            .values(
                status=status, location=headers.get("location"), content_type=headers.get("content-type"), body=body
            )
        )


async def _replay(request: Request, stored: IdempotentAnswer, request_hash: str, send: Send) -> None:
    if stored.request_hash != request_hash:
        detail = "Idempotency-Key was used before with another body or address; use a new key"
        response = respond(request, 422, "idempotency_key_reused", "The input cannot be used", detail, ())
        await response(request.scope, request.receive, send)
        return
    if stored.status is None:
        detail = "the first request with this Idempotency-Key is still being served; ask again in a moment"
        response = respond(request, 409, "first_request_running", "Conflict", detail, ())
        await response(request.scope, request.receive, send)
        return
    headers = [(b"idempotent-replayed", b"true")]
    if stored.content_type:
        headers.append((b"content-type", stored.content_type.encode("latin-1")))
    if stored.location:
        headers.append((b"location", stored.location.encode("latin-1")))
    await send({"type": "http.response.start", "status": stored.status, "headers": headers})
    await send({"type": "http.response.body", "body": stored.body or b""})
