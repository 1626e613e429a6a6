"""What the pages of the settings, the first run and the search show: one frozen dataclass a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.auth.schemas import NewTokenView, SessionView, TokenView, UserView
from app.fleet.probe_schemas import ProbeView
from app.fleet.schemas import EngineView, ServerView, StoreView
from app.web.contexts import PageContext
from app.web.forms import FormState


@dataclass(frozen=True)
class SettingsPage(PageContext):
    """settings.html: targets, users, tokens (`tab`)."""

    tab: str
    servers: Sequence[ServerView]
    engines: Sequence[EngineView]
    stores: Sequence[StoreView]
    users: Sequence[UserView]
    tokens: Sequence[TokenView]
    new_token: NewTokenView | None
    form: FormState
    sessions: Mapping[str, Sequence[SessionView]]  # by user id: those that are not over
    sandbox: Sequence[str] = ()


@dataclass(frozen=True)
class TargetFormPage(PageContext):
    """target_form.html: add or change a server, an engine or a store."""

    kind: str  # server | engine | store
    target: ServerView | EngineView | StoreView | None
    form: FormState
    servers: Sequence[ServerView]
    probe: ProbeView | None
    proposals: Sequence[tuple[str, str]] = ()  # stores: (directory, server name)


@dataclass(frozen=True)
class WelcomePage(PageContext):
    """welcome.html: nothing is registered yet."""

    form: FormState
    probe: ProbeView | None


@dataclass(frozen=True)
class Found:
    """One result of a search."""

    what: str
    icon: str
    title: str
    detail: str
    path: str


@dataclass(frozen=True)
class SearchPage(PageContext):
    """search.html"""

    q: str
    found: Sequence[Found]
