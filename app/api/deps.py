"""What routes depend on: the services, who asks (one mechanism for every route), paging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query, Request

from app.audit.service import client_address
from app.auth.service import Principal
from app.errors import Forbidden, NotSignedIn
from app.paging import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, parse_id
from app.services import Services

__all__ = ["Admin", "Operator", "PageQuery", "Services", "ServicesDep", "Viewer", "parse_id"]


def get_services(request: Request) -> Services:
    """The services wired in `app.main`."""
    services: Services = request.app.state.services
    return services


SIGN_IN = "sign in at /login, or send 'Authorization: Bearer TOKEN' with a valid token"
#: Sent by what a page asks without anybody having touched it.
POLL_HEADER = "tierkeeper-poll"

ServicesDep = Annotated[Services, Depends(get_services)]


def session_cookie_name(services: Services) -> str:
    """`__Host-` binds the cookie to this host and to https; browsers refuse it over plain http."""
    return "__Host-tierkeeper" if services.settings.secure_cookies else "tierkeeper"


def authenticate(request: Request, services: Services) -> Principal | None:
    """Who asks, by bearer token first, else by session cookie; None when neither is good."""
    address = client_address.get()
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, token = header.partition(" ")
        return services.auth.token_principal(token.strip(), address) if scheme.lower() == "bearer" else None
    name = forwarded_name(request, services)
    if name is not None:
        return services.auth.forwarded_principal(name, address)
    cookie = request.cookies.get(session_cookie_name(services))
    return services.auth.session_principal(cookie, address, active=not _by_itself(request)) if cookie else None


def forwarded_name(request: Request, services: Services) -> str | None:
    """Whom the proxy in front of us has signed in; only of listed proxies, only where the setting names a header."""
    header = services.settings.forward_auth_header
    if header is None or not getattr(request.state, "trusted_proxy", False):
        return None
    found = request.headers.getlist(header)
    return found[0].strip() or None if len(found) == 1 else None


def _by_itself(request: Request) -> bool:
    """Whether a page asks on its own (live parts, charts, event streams): that keeps nobody signed in."""
    return POLL_HEADER in request.headers or "text/event-stream" in request.headers.get("accept", "")


class RequireRole:
    """Dependency: the principal, if it has at least `role`. A test walks all routes looking for one of these."""

    def __init__(self, role: str) -> None:
        self.role = role

    def __call__(self, request: Request, services: ServicesDep) -> Principal:
        principal = authenticate(request, services)
        if principal is None:
            raise NotSignedIn(SIGN_IN)
        if not principal.may(self.role):
            raise Forbidden(f"this needs the role {self.role}; {principal.name} has {principal.role}")
        request.state.principal = principal
        return principal


Viewer = Annotated[Principal, Depends(RequireRole("viewer"))]
Operator = Annotated[Principal, Depends(RequireRole("operator"))]
Admin = Annotated[Principal, Depends(RequireRole("admin"))]


@dataclass(frozen=True)
class Paging:
    """Size and opaque start of one page."""

    page_size: int
    page_token: str | None


def _paging(
    page_size: Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE, description="rows a page")] = DEFAULT_PAGE_SIZE,
    page_token: Annotated[str | None, Query(max_length=2000, description="next_page_token of the page before")] = None,
) -> Paging:
    return Paging(page_size, page_token or None)


PageQuery = Annotated[Paging, Depends(_paging)]
