"""Targets, users and tokens: adding, changing, forgetting."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import parse_id
from app.auth.schemas import NewTokenView, TokenInput, UserInput, UserPatch
from app.errors import InvalidInput, NotFound, TierkeeperError
from app.fleet.probe_schemas import ProbeView
from app.fleet.schemas import (
    EngineCreate,
    EnginePatch,
    EngineView,
    ServerCreate,
    ServerPatch,
    ServerView,
    StoreCreate,
    StorePatch,
    StoreView,
)
from app.services import Services
from app.web.contexts import Crumb
from app.web.forms import FormState
from app.web.frame import AdminFrame, FormValues, Frame, Values, ViewerFrame, build_input, confirmed, one, pairs
from app.web.reach import probe_request, tls_of_form
from app.web.settings_contexts import SettingsPage, TargetFormPage

router = APIRouter(prefix="/settings")

Kind = Literal["server", "engine", "store"]
Target = ServerView | EngineView | StoreView
FIELDS = {
    "server": ("url", "name", "api_key", "headers", "tls_ca", "tls_unverified", "labels"),
    "engine": ("url", "name", "server_id", "api_key", "headers", "tls_ca", "tls_unverified", "labels"),
    "store": ("path", "name", "server_ids", "server_path", "temp_dir", "labels", "confirm"),
}
_PATHS = {"server": "/servers", "engine": "/engines", "store": "/stores"}
_USER_FIELDS = ("username", "password", "role")
_TOKEN_FIELDS = ("name", "role", "expires_in_days")


# ---- the tabs ----


def _settings(
    frame: Frame, tab: str, form: FormState, *, status: int = 200, new_token: NewTokenView | None = None
) -> Response:
    services, targets = frame.services, tab == "targets"
    users = services.auth.list_users().items if tab == "users" else []
    return frame.page(
        "settings.html",
        SettingsPage,
        "settings",
        *(() if targets else (Crumb("Users" if tab == "users" else "API tokens"),)),
        status=status,
        tab=tab,
        servers=services.fleet.list_servers(page_size=500, page_token=None).items if targets else [],
        engines=services.fleet.list_engines(page_size=500, page_token=None).items if targets else [],
        stores=services.fleet.list_stores(page_size=500, page_token=None).items if targets else [],
        users=users,
        sessions={user.id: services.auth.list_sessions(int(user.id)).items for user in users},
        tokens=services.auth.list_tokens().items if tab == "tokens" else [],
        new_token=new_token,
        form=form,
        sandbox=[t.name for t in services.fleet.sandbox_targets()] if targets else [],
    )


@router.get("")
def settings_page(frame: ViewerFrame) -> Response:
    return _settings(frame, "targets", FormState())


@router.post("/sandbox/delete")
def remove_sandbox(frame: AdminFrame) -> Response:
    """Forgets the simulated targets; `tierkeeper demo` then stops the simulation and takes its files away."""
    try:
        gone = frame.services.fleet.forget_sandbox(actor=frame.actor)
    except TierkeeperError as error:
        return frame.refused("/settings", error)
    return frame.done("/", f"The sandbox is gone ({len(gone)} targets)." if gone else "There was no sandbox.")


# ---- users ----


def _user_form() -> FormState:
    return FormState.of({"role": "viewer"}, fields=_USER_FIELDS)


@router.get("/users")
def users_page(frame: AdminFrame) -> Response:
    return _settings(frame, "users", _user_form())


@router.post("/users")
def create_user(frame: AdminFrame, values: FormValues) -> Response:
    form = FormState(values=values, fields=frozenset(_USER_FIELDS))
    # A password may begin or end with a blank.
    body = {
        "username": one(values, "username") or "",
        "password": (values.get("password") or [""])[0],
        "role": one(values, "role"),
    }
    try:
        user = frame.services.auth.create_user(build_input(UserInput, body), actor=frame.actor)
    except TierkeeperError as error:
        return _settings(frame, "users", form.failed(error), status=error.status)
    return frame.done("/settings/users", f"{user.username} can sign in now.")


@router.post("/users/{user_id}")
def change_user(frame: AdminFrame, user_id: str, values: FormValues) -> Response:
    body: dict[str, Any] = {}
    if role := one(values, "role"):
        body["role"] = role
    if disabled := one(values, "disabled"):
        body["disabled"] = disabled == "yes"
    auth, ident = frame.services.auth, parse_id("user", user_id)
    before = next((u for u in auth.list_users().items if u.id == user_id), None)
    try:
        user = auth.update_user(ident, build_input(UserPatch, body), actor=frame.actor)
    except NotFound:
        raise
    except TierkeeperError as error:
        return frame.refused("/settings/users", error)
    undo = None
    if before is not None:
        was = UserPatch(**{name: getattr(before, name) for name in body})
        undo = (lambda actor: auth.update_user(ident, was, actor=actor), f"{user.username} is as before.")
    return frame.done("/settings/users", f"{user.username} was changed.", undo=undo)


@router.post("/users/{user_id}/delete")
def delete_user(frame: AdminFrame, user_id: str, values: FormValues) -> Response:
    """Needs the name typed: a password cannot be brought back."""
    auth, ident = frame.services.auth, parse_id("user", user_id)
    try:
        confirmed(values, auth.get_user(ident).username)
        auth.delete_user(ident, actor=frame.actor)
    except NotFound:
        raise
    except TierkeeperError as error:
        return frame.refused("/settings/users", error)
    return frame.done("/settings/users", "The user was deleted.")


@router.post("/users/{user_id}/sessions/delete")
def end_sessions(frame: AdminFrame, user_id: str) -> Response:
    """Signs the user out everywhere. Whoever does it to themselves signs in again."""
    auth, ident = frame.services.auth, parse_id("user", user_id)
    user, open_ones = auth.get_user(ident), len(auth.list_sessions(ident).items)
    auth.end_sessions(ident, actor=frame.actor)
    said = f"{user.username} was signed out everywhere ({open_ones} session{'s'[: open_ones != 1]})."
    return frame.done("/settings/users", said)


# ---- tokens ----


def _token_form() -> FormState:
    return FormState.of({"role": "viewer"}, fields=_TOKEN_FIELDS)


@router.get("/tokens")
def tokens_page(frame: AdminFrame) -> Response:
    return _settings(frame, "tokens", _token_form())


@router.post("/tokens")
def create_token(frame: AdminFrame, values: FormValues) -> Response:
    """Makes a token; its secret is in this one answer (no redirect: it must be in no address and no cookie)."""
    form = FormState(values=values, fields=frozenset(_TOKEN_FIELDS))
    try:
        days = one(values, "expires_in_days")
        body: dict[str, Any] = {"name": one(values, "name") or "", "role": one(values, "role")}
        if days:
            body["expires_in_days"] = _days(days)
        token = frame.services.auth.create_token(build_input(TokenInput, body), actor=frame.actor)
    except TierkeeperError as error:
        return _settings(frame, "tokens", form.failed(error), status=error.status)
    return _settings(frame, "tokens", _token_form(), status=201, new_token=token)


def _days(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInput.field("expires_in_days", f"{text!r} is not a number of days") from None


@router.post("/tokens/{token_id}/delete")
def delete_token(frame: AdminFrame, token_id: str, values: FormValues) -> Response:
    """Needs the name typed: a secret cannot be brought back."""
    auth, ident = frame.services.auth, parse_id("token", token_id)
    name = next((token.name for token in auth.list_tokens().items if token.id == str(ident)), None)
    if name is not None:  # else it is gone, which the service says
        try:
            confirmed(values, name)
        except InvalidInput as error:
            return frame.refused("/settings/tokens", error)
    auth.delete_token(ident, actor=frame.actor)
    return frame.done("/settings/tokens", "The token was revoked.")


# ---- targets ----


def _get(services: Services, kind: Kind, ident: str) -> Target:
    number = parse_id(kind, ident)
    if kind == "server":
        return services.fleet.get_server(number)
    return services.fleet.get_engine(number) if kind == "engine" else services.fleet.get_store(number)


def _target_form(
    frame: Frame,
    kind: Kind,
    form: FormState,
    *,
    target: Target | None = None,
    probe: ProbeView | None = None,
    status: int = 200,
) -> Response:
    services = frame.services
    servers = services.fleet.list_servers(page_size=500, page_token=None).items if kind != "server" else []
    proposals = [
        (l2.base_path, s.name) for s in servers for l2 in s.l2 if kind == "store" and l2.base_path and not l2.store_id
    ]
    return frame.page(
        "target_form.html",
        TargetFormPage,
        "settings",
        Crumb(target.name if target else f"Add {'an' if kind == 'engine' else 'a'} {kind}"),
        status=status,
        kind=kind,
        target=target,
        form=form,
        servers=servers,
        probe=probe,
        proposals=proposals,
    )


def _form_of(kind: Kind, target: Target) -> FormState:
    values: dict[str, Any] = {"name": target.name, "labels": "\n".join(f"{k}={v}" for k, v in target.labels.items())}
    if isinstance(target, StoreView):
        values |= {"server_ids": target.server_ids, "server_path": target.server_path, "temp_dir": target.temp_dir}
    else:
        values |= {"url": target.url, "tls_ca": target.tls.ca, "tls_unverified": not target.tls.verify}
    if isinstance(target, EngineView) and target.server_link == "given":
        values["server_id"] = target.server_id
    return FormState.of(values, fields=FIELDS[kind])


def _body(kind: Kind, values: Values, *, new: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"labels": pairs(values, "labels", "=")}
    for field in FIELDS[kind]:
        if field in ("labels", "headers", "server_ids", "confirm", "tls_ca", "tls_unverified"):
            continue
        text = one(values, field)
        # Left out means: as it is (a key), or by default (everything of a new target).
        if text is not None or (not new and field in ("server_id", "temp_dir")):
            body[field] = text
    if headers := pairs(values, "headers", ":"):
        body["headers"] = headers
    if kind != "store":
        body |= tls_of_form(values)
    if kind == "store":
        body |= {"server_ids": list(values.get("server_ids", [])), "confirm": "confirm" in values}
    return body


@router.get("/{kind}s/new")
def new_target_page(
    frame: AdminFrame,
    kind: Kind,
    path: Annotated[str, Query(max_length=4096)] = "",
    server_id: Annotated[str, Query(max_length=40)] = "",
) -> Response:
    values: dict[str, Any] = {"path": path, "server_ids": [server_id] if server_id else []}
    if kind == "store" and server_id and not path:
        ident = parse_id("server", server_id)
        server = frame.services.fleet.get_server(ident)
        if server.scraped_at is None:
            frame.services.fleet.refresh_server(ident)
            server = frame.services.fleet.get_server(ident)
        found = next((l2 for l2 in server.l2 if l2.base_path and not l2.store_id), None)
        if found:
            values |= {"path": found.base_path, "temp_dir": found.relative_tmp_dir}
    return _target_form(frame, kind, FormState.of(values, fields=FIELDS[kind]))


@router.post("/{kind}s/new")
def add_target(frame: AdminFrame, kind: Kind, values: FormValues) -> Response:
    fleet = frame.services.fleet
    form = FormState(values=values, fields=frozenset(FIELDS[kind]))
    try:
        if "probe" in values:
            return _target_form(frame, kind, form, probe=fleet.probe(probe_request(values)))
        body = _body(kind, values, new=True)
        added: Target
        notice: str | None = None
        if kind == "server":
            server = build_input(ServerCreate, body)
            added, notice = fleet.create_server(server, actor=frame.actor), fleet.advice("server", server)
        elif kind == "engine":
            engine = build_input(EngineCreate, body)
            added, notice = fleet.create_engine(engine, actor=frame.actor), fleet.advice("engine", engine)
        else:
            added = fleet.create_store(build_input(StoreCreate, body), actor=frame.actor)
    except TierkeeperError as error:
        return _target_form(frame, kind, form.failed(error), status=error.status)
    if notice:
        link = (f"/settings/{kind}s/{added.id}", "Change the address")
        return frame.done(f"{_PATHS[kind]}/{added.id}", notice, kind="warn", link=link)
    text = f"{added.name} was added."
    if isinstance(added, StoreView) and added.usable is not False:
        frame.services.records.start_scan(int(added.id), actor=frame.actor)
        text += " Its first scan is under way."
    return frame.done(f"{_PATHS[kind]}/{added.id}", text)


@router.get("/{kind}s/{target_id}")
def target_page(frame: AdminFrame, kind: Kind, target_id: str) -> Response:
    target = _get(frame.services, kind, target_id)
    return _target_form(frame, kind, _form_of(kind, target), target=target)


@router.post("/{kind}s/{target_id}")
def change_target(frame: AdminFrame, kind: Kind, target_id: str, values: FormValues) -> Response:
    fleet = frame.services.fleet
    target = _get(frame.services, kind, target_id)
    form = FormState(values=values, fields=frozenset(FIELDS[kind]))
    try:
        if "probe" in values:
            saved = None if isinstance(target, StoreView) else (kind, int(target.id))
            probe = fleet.probe(probe_request(values), saved=saved)
            return _target_form(frame, kind, form, target=target, probe=probe)
        body = _body(kind, values, new=False)
        if kind == "server":
            fleet.patch_server(int(target.id), build_input(ServerPatch, body), actor=frame.actor)
        elif kind == "engine":
            fleet.patch_engine(int(target.id), build_input(EnginePatch, body), actor=frame.actor)
        else:
            fleet.patch_store(int(target.id), build_input(StorePatch, body), actor=frame.actor)
    except TierkeeperError as error:
        return _target_form(frame, kind, form.failed(error), target=target, status=error.status)
    return frame.done(f"{_PATHS[kind]}/{target.id}", "Saved.")


@router.post("/{kind}s/{target_id}/delete")
def forget_target(frame: AdminFrame, kind: Kind, target_id: str, values: FormValues) -> Response:
    """The panel forgets it; nothing outside is touched. Needs the name typed."""
    fleet = frame.services.fleet
    target = _get(frame.services, kind, target_id)
    here = f"/settings/{kind}s/{target.id}"
    try:
        confirmed(values, target.name)
    except InvalidInput as error:
        return frame.refused(here, error)
    forget = {"server": fleet.delete_server, "engine": fleet.delete_engine, "store": fleet.delete_store}[kind]
    try:
        forget(int(target.id), actor=frame.actor)
    except TierkeeperError as error:
        return frame.refused(here, error)
    return frame.done("/settings", f"{target.name} was forgotten.")
