"""What reverse proxies change about a request, put right before anything reads it; and the host names we answer to.

| class        | concern                                                                                        |
|--------------|------------------------------------------------------------------------------------------------|
| BehindProxy  | the prefix a proxy serves us under; client address and scheme, believed of listed proxies only   |
| AllowedHosts | requests for other host names are refused (DNS rebinding against the panel itself)              |
"""

from __future__ import annotations

from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.problems import respond
from app.settings import Settings

#: Probes and scrapers come by address: what they read is open anyway.
_ANY_HOST = frozenset({"/livez", "/readyz", "/metrics"})


class BehindProxy:
    """Outermost. Afterwards `scope["path"]` never has the prefix, `scope["client"]` is who really asks.

    The prefix may or may not have been stripped by the proxy; both are understood.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._prefix = settings.root_path
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = dict(scope)
            self._strip(scope)
            peer = (scope.get("client") or ("", 0))[0]
            trusted = self._settings.is_trusted_proxy(peer)
            scope["state"] = {**scope.get("state", {}), "trusted_proxy": trusted}
            if trusted:
                self._believe(scope, Headers(scope=scope))
        await self.app(scope, receive, send)

    def _strip(self, scope: Scope) -> None:
        path = scope["path"]
        if self._prefix and (path == self._prefix or path.startswith(self._prefix + "/")):
            scope["path"] = path[len(self._prefix) :] or "/"
            raw = scope.get("raw_path")
            if raw is not None and raw.startswith(self._prefix.encode()):
                scope["raw_path"] = raw[len(self._prefix) :] or b"/"

    def _believe(self, scope: Scope, headers: Headers) -> None:
        for hop in reversed([h.strip() for v in headers.getlist("x-forwarded-for") for h in v.split(",")]):
            address = _address(hop)
            if address is None:
                break  # whatever stands before an unreadable hop cannot be believed either
            scope["client"] = (address, 0)
            if not self._settings.is_trusted_proxy(address):
                break
        scheme = headers.get("x-forwarded-proto", "").strip().lower()
        if scheme in ("http", "https"):
            scope["scheme"] = scheme


def _address(text: str) -> str | None:
    """One hop of X-Forwarded-For: an address, perhaps with a port."""
    bare = text.strip('"')
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        return str(ip_address(bare))
    except ValueError:
        return None


class AllowedHosts:
    """421 for a host name that ALLOWED_HOSTS does not list; without that setting every name is served."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _ANY_HOST:
            host = Headers(scope=scope).get("host", "")
            if not self._settings.is_allowed_host(host):
                detail = f"the panel is not served as {host[:100]!r}; add that name to TIERKEEPER_ALLOWED_HOSTS"
                answer = respond(Request(scope), 421, "unknown_host", "Misdirected Request", detail, ())
                await answer(scope, receive, send)
                return
        await self.app(scope, receive, send)
