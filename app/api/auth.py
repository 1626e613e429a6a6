"""Users, tokens, the audit trail: /users, /tokens, /audit, /me."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.api.deps import Admin, PageQuery, ServicesDep, Viewer, parse_id
from app.api.responses import BODY, NOT_FOUND, READ
from app.audit.service import AuditView
from app.auth.schemas import NewTokenView, SessionView, TokenInput, TokenView, UserInput, UserPatch, UserView
from app.shapes import ApiModel, Page

router = APIRouter(tags=["access"])


class WhoAmI(ApiModel):
    """The caller as the panel sees it."""

    name: str
    role: str
    kind: str


@router.get("/me", responses=READ)
def whoami(principal: Viewer) -> WhoAmI:
    """Who is asking, and with which role."""
    return WhoAmI(name=principal.name, role=principal.role, kind=principal.kind)


@router.get("/users", responses=READ)
def list_users(services: ServicesDep, principal: Admin) -> Page[UserView]:
    """All users, with their roles."""
    return services.auth.list_users()


@router.post("/users", status_code=201, responses=BODY)
def create_user(body: UserInput, response: Response, services: ServicesDep, principal: Admin) -> UserView:
    """Adds a user with a role and a password."""
    view = services.auth.create_user(body, actor=principal.actor)
    response.headers["Location"] = f"/api/v1/users/{view.id}"
    return view


@router.get("/users/{user_id}", responses=NOT_FOUND)
def get_user(user_id: str, services: ServicesDep, principal: Admin) -> UserView:
    """One user: name, role, and whether sign-in is allowed."""
    return services.auth.get_user(parse_id("user", user_id))


@router.patch("/users/{user_id}", responses=BODY)
def patch_user(user_id: str, body: UserPatch, services: ServicesDep, principal: Admin) -> UserView:
    """Changes role, password or whether they may sign in; their sessions end where it must."""
    return services.auth.update_user(parse_id("user", user_id), body, actor=principal.actor)


@router.delete("/users/{user_id}", status_code=204, responses=BODY)
def delete_user(user_id: str, services: ServicesDep, principal: Admin) -> None:
    """Removes a user and ends their sessions. The last admin cannot be removed."""
    services.auth.delete_user(parse_id("user", user_id), actor=principal.actor)


@router.get("/users/{user_id}/sessions", responses=NOT_FOUND)
def list_sessions(user_id: str, services: ServicesDep, principal: Admin) -> Page[SessionView]:
    """Where this user is signed in."""
    return services.auth.list_sessions(parse_id("user", user_id))


@router.delete("/users/{user_id}/sessions", status_code=204, responses=NOT_FOUND)
def end_sessions(user_id: str, services: ServicesDep, principal: Admin) -> None:
    """Signs the user out everywhere."""
    services.auth.end_sessions(parse_id("user", user_id), actor=principal.actor)


@router.get("/tokens", responses=READ)
def list_tokens(services: ServicesDep, principal: Admin) -> Page[TokenView]:
    """All API tokens, with when each was last used; never the tokens themselves."""
    return services.auth.list_tokens()


@router.post("/tokens", status_code=201, responses=BODY)
def create_token(body: TokenInput, services: ServicesDep, principal: Admin) -> NewTokenView:
    """Makes an API token. It is in this answer only: just its hash is kept."""
    return services.auth.create_token(body, actor=principal.actor)


@router.delete("/tokens/{token_id}", status_code=204, responses=NOT_FOUND)
def delete_token(token_id: str, services: ServicesDep, principal: Admin) -> None:
    """Revokes a token at once."""
    services.auth.delete_token(parse_id("token", token_id), actor=principal.actor)


@router.get("/audit", responses=READ)
def list_audit(
    services: ServicesDep,
    principal: Admin,
    paging: PageQuery,
    target_kind: Annotated[str | None, Query(max_length=64)] = None,
    target_id: Annotated[str | None, Query(max_length=64)] = None,
    action: Annotated[str | None, Query(max_length=64)] = None,
) -> Page[AuditView]:
    """Every change: who, from where, what, when. Newest first."""
    return services.audit.list_events(
        page_size=paging.page_size,
        page_token=paging.page_token,
        target_kind=target_kind,
        target_id=target_id,
        action=action,
    )
