"""Shapes of restart hooks towards the outside."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from app.shapes import ApiModel, InputModel, LabelText


class HookAction(InputModel):
    """One way to restart a target: exactly one of a command, a webhook, or a person."""

    argv: Annotated[list[Annotated[str, StringConstraints(max_length=4096)]], Field(min_length=1, max_length=64)] | (
        None
    ) = None
    webhook: Annotated[str, StringConstraints(min_length=1, max_length=2000)] | None = None
    headers: Annotated[dict[str, str], Field(max_length=16)] = Field(default_factory=dict)
    manual: bool = False

    @model_validator(mode="after")
    def _exactly_one(self) -> HookAction:
        if sum((self.argv is not None, self.webhook is not None, self.manual)) != 1:
            raise ValueError("give exactly one of argv (a list of arguments), webhook (an address) or manual: true")
        if self.headers and self.webhook is None:
            raise ValueError("headers belong to a webhook")
        return self


class HookInput(InputModel):
    """Body of POST /hooks: how the server, the engine, or both are restarted."""

    name: Annotated[LabelText, StringConstraints(min_length=1, max_length=120)]
    server: HookAction | None = None
    engine: HookAction | None = None
    timeout_seconds: Annotated[float, Field(ge=1, le=3600)] = 300.0


class HookPatch(InputModel):
    """Body of PATCH /hooks/{id}: only what is sent changes; null takes an action away."""

    name: Annotated[LabelText, StringConstraints(min_length=1, max_length=120)] | None = None
    server: HookAction | None = None
    engine: HookAction | None = None
    timeout_seconds: Annotated[float, Field(ge=1, le=3600)] | None = None


class HookActionView(ApiModel):
    """One way to restart a target; header values never come out."""

    argv: list[str] | None
    webhook: str | None
    header_names: list[str]
    manual: bool


class HookView(ApiModel):
    """One restart hook."""

    id: str
    name: str
    server: HookActionView | None
    engine: HookActionView | None
    timeout_seconds: float
    created_at: str
