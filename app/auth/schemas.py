"""Users and tokens as the API shows and takes them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from app.shapes import ApiModel, InputModel

Role = Literal["viewer", "operator", "admin"]
RANK = {"viewer": 0, "operator": 1, "admin": 2}


class UserView(ApiModel):
    id: str
    username: str
    role: str
    disabled: bool
    created_at: str


class UserInput(InputModel):
    username: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]*$")
    password: str = Field(min_length=8, max_length=1024)
    role: Role


class UserPatch(InputModel):
    password: str | None = Field(None, min_length=8, max_length=1024)
    role: Role | None = None
    disabled: bool | None = None


class SessionView(ApiModel):
    """One signed-in browser of a user."""

    created_at: str
    last_seen_at: str
    address: str | None


class TokenView(ApiModel):
    """A token without its secret."""

    id: str
    name: str
    role: str
    created_at: str
    created_by: str
    last_used_at: str | None
    expires_at: str | None


class NewTokenView(TokenView):
    """The one answer that shows the secret."""

    token: str


class TokenInput(InputModel):
    name: str = Field(min_length=1, max_length=64)
    role: Role
    expires_in_days: float | None = Field(None, gt=0, le=3650)
