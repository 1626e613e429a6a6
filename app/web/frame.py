"""What every page route gets: who asks, the services, the templates; and how it answers.

`ViewerFrame`, `OperatorFrame` and `AdminFrame` are dependencies that demand the role. A route is then: the frame, one
service call, `frame.page(…)` or `frame.done(…)`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import RedirectResponse, Response

from app import __version__
from app.alerts.schemas import AlertCounts
from app.api.deps import RequireRole, ServicesDep
from app.auth.service import Principal
from app.errors import FieldError, InvalidInput, TierkeeperError
from app.services import Services
from app.web.contexts import Crumb, NavItem, PageContext, Shell, SignedIn, Toast
from app.web.formats import printable
from app.web.kept import unseal
from app.web.manual import anchor_of, help_path
from app.web.templating import Templates
from app.web.undo import TakeBack, UndoStore
from app.wording import location, plain

THEME_COOKIE = "tierkeeper-theme"
FLASH_COOKIE = "tierkeeper-flash"
THEMES = ("auto", "light", "dark")

#: Only pages that exist.
NAV = (
    NavItem("overview", "Overview", "/", "layout-dashboard", "o"),
    NavItem("servers", "Servers", "/servers", "server", "s"),
    NavItem("engines", "Engines", "/engines", "cpu", "e"),
    NavItem("stores", "Records", "/stores", "hard-drive", "r"),
    NavItem("cleanup", "Cleanup", "/cleanup", "brush-cleaning", "c"),
    NavItem("acceptance", "Acceptance", "/acceptance", "badge-check", "a"),
    NavItem("checks", "Checks", "/checks", "list-checks", "k"),
    NavItem("benchmark", "Benchmark", "/benchmark", "gauge", "b"),
    NavItem("sizing", "Sizing", "/sizing", "memory-stick", "z"),
    NavItem("launch", "Launch", "/launch", "terminal", "l"),
    NavItem("alarms", "Alarms", "/alarms", "bell", "w"),
    NavItem("activity", "Activity", "/activity", "history", "h"),
    NavItem("schedules", "Schedules", "/schedules", "calendar-clock", "d"),
    NavItem("settings", "Settings", "/settings", "settings", ","),
    NavItem("help", "Help", "/help", "book-open", "m"),
)
_TITLES = {item.key: item for item in NAV}

Model = TypeVar("Model", bound=BaseModel)
Values = Mapping[str, list[str]]


def root_path(request: Request) -> str:
    """The prefix that a reverse proxy strips, or empty."""
    return str(request.app.state.root_path)


def local_path(request: Request) -> str:
    """The address of this request as the pages link to it: without the prefix, with the query."""
    path = str(request.scope["path"])  # BehindProxy has taken the prefix off
    query = request.scope.get("query_string", b"").decode("ascii", "replace")
    return f"{path}?{query}" if query else path


def safe_next(path: str) -> str:
    """`path` when it is an address of this panel, else the overview: never a way to another site."""
    good = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if good else "/"


def navigation(counts: AlertCounts | None) -> tuple[NavItem, ...]:
    """The entries of the side bar; the alarms' one says how many fire, in the colour of the worst."""
    if counts is None:
        return NAV
    firing = counts.critical + counts.warning + counts.info
    kind = "bad" if counts.critical else "warn" if counts.warning else "info"
    means = "alarm fires" if firing == 1 else "alarms fire"
    return tuple(
        replace(item, count=firing, kind=kind, count_means=means) if item.key == "alarms" else item for item in NAV
    )


def make_shell(
    request: Request,
    current: str,
    crumbs: tuple[Crumb, ...] = (),
    principal: Principal | None = None,
    counts: AlertCounts | None = None,
) -> Shell:
    """The frame of a page; without a principal it is that of the sign-in and error pages."""
    first = _TITLES.get(current)
    theme = request.cookies.get(THEME_COOKIE, "auto")
    flash = _read_flash(request.cookies.get(FLASH_COOKIE))
    return Shell(
        user=SignedIn(principal.name, principal.role) if principal else None,
        nav=navigation(counts) if principal else (),
        current=current,
        crumbs=(Crumb(first.title, first.path), *crumbs) if first else crumbs,
        path=local_path(request),
        posted="post" + request.scope["path"].replace("/", "-") if request.method == "POST" else "",
        base_url=f"{request.url.scheme}://{request.url.netloc}{root_path(request)}",
        theme=theme if theme in THEMES else "auto",
        toasts=(flash,) if flash else (),
        search=principal is not None,
        help=_help_of(first) if principal else "",
        version=__version__,
    )


def _help_of(place: NavItem | None) -> str:
    if place is None or place.key == "help":
        return "/help"
    return help_path(f"PAGES.md#{anchor_of(place.title)}")


@dataclass(frozen=True)
class Frame:
    """One request of somebody who is signed in."""

    request: Request
    services: Services
    principal: Principal
    templates: Templates

    @property
    def undo(self) -> UndoStore:
        """Changes that can be taken back."""
        store: UndoStore = self.request.app.state.undo
        return store

    @property
    def actor(self) -> str:
        """How the audit trail names who asks."""
        return self.principal.actor

    def page(
        self,
        template: str,
        context: Callable[..., PageContext],
        current: str,
        *crumbs: Crumb,
        status: int = 200,
        **fields: Any,
    ) -> Response:
        """Renders `context(shell, **fields)`. Toasts are shown once."""
        shell = make_shell(self.request, current, crumbs, self.principal, self.services.alerts.counts())
        response = self.templates.response(self.request, template, context(shell=shell, **fields), status=status)
        if shell.toasts:
            response.delete_cookie(FLASH_COOKIE, path=root_path(self.request) or "/")
        return response

    def done(
        self,
        path: str,
        text: str = "",
        *,
        kind: str = "ok",
        link: tuple[str, str] | None = None,
        undo: tuple[TakeBack, str] | None = None,
    ) -> Response:
        """303 to a page of ours, with a toast that says what was done; `link` is (path, title), `undo` (what takes it
        back, the toast that says so)."""
        response = RedirectResponse(root_path(self.request) + path, 303)
        if text:
            key = ""
            if undo is not None:
                key = self.undo.keep(undo[0], path=path, said=undo[1], principal=self.principal)
            flash = json.dumps(
                {"k": kind, "t": text[:600], "p": link[0] if link else "", "l": link[1] if link else "", "u": key}
            )
            response.set_cookie(
                FLASH_COOKIE,
                base64.urlsafe_b64encode(flash.encode()).decode(),
                max_age=60,
                path=root_path(self.request) or "/",
                httponly=True,
                samesite="lax",
                secure=self.services.settings.secure_cookies,
            )
        return response

    def refused(self, path: str, error: TierkeeperError) -> Response:
        """Back to a page whose button could not do what it says, with the reason."""
        return self.done(path, error.detail, kind="bad")


def _read_flash(cookie: str | None) -> Toast | None:
    if not cookie:
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(cookie))
        link = str(found["p"])
        return Toast(
            str(found["k"]), str(found["t"]), safe_next(link) if link else "", str(found["l"]), str(found.get("u", ""))
        )
    except (ValueError, KeyError, TypeError, binascii.Error):
        return None


def _frame(role: str) -> Callable[..., Frame]:
    required = RequireRole(role)

    # As a default: an annotation naming the local `required` could not be resolved from its text.
    def build(request: Request, services: ServicesDep, principal: Principal = Depends(required)) -> Frame:
        return Frame(request, services, principal, request.app.state.templates)

    return build


ViewerFrame = Annotated[Frame, Depends(_frame("viewer"))]
OperatorFrame = Annotated[Frame, Depends(_frame("operator"))]
AdminFrame = Annotated[Frame, Depends(_frame("admin"))]


async def _form_values(request: Request) -> dict[str, list[str]]:
    form = await request.form()
    values: dict[str, list[str]] = {}
    for name, value in form.multi_items():
        if isinstance(value, str):
            values.setdefault(name, []).append(value)
    return unseal(values)


#: Every field of a posted form, each with all its values.
FormValues = Annotated[dict[str, list[str]], Depends(_form_values)]


def one(values: Values, name: str) -> str | None:
    """The text of a field without the blanks around it; None when it is empty or absent."""
    text = (values.get(name) or [""])[0].strip()
    return text or None


def confirmed(values: Values, word: str) -> None:
    """Raises InvalidInput unless `word` was typed: what a form does cannot be undone."""
    if one(values, "confirm") != word.strip():
        raise InvalidInput.field("confirm", f"type {printable(word)} to confirm; nothing was changed")


def lines(values: Values, name: str) -> list[str]:
    """The lines of a text area that are not empty."""
    return [line.strip() for line in (values.get(name) or [""])[0].splitlines() if line.strip()]


def build_input(model: type[Model], data: Mapping[str, Any]) -> Model:
    """A request body of the API from a form's values. Raises InvalidInput that names each field."""
    try:
        return model(**data)
    except ValidationError as error:
        found = tuple(FieldError(".".join(str(part) for part in location(e)), plain(e)) for e in error.errors())
        raise InvalidInput("; ".join(f"{f.field}: {f.message}" for f in found), errors=found) from None


def pairs(values: Values, name: str, separator: str) -> dict[str, str]:
    """``key=value`` (or ``Name: value``) lines of a text area. Raises InvalidInput for a line without the separator."""
    found = {}
    for line in lines(values, name):
        key, mark, value = line.partition(separator)
        if not mark or not key.strip():
            raise InvalidInput.field(name, f"{line!r} is not of the form key{separator}value, one a line")
        found[key.strip()] = value.strip()
    return found
