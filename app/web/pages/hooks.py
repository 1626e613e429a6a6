"""Restart hooks: how a cache server and an engine are restarted for the restart conditions of a run."""

from __future__ import annotations

import shlex
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from app.acceptance.hook_schemas import HookInput
from app.api.deps import parse_id
from app.errors import InvalidInput, TierkeeperError
from app.web.acceptance_contexts import HooksPage
from app.web.contexts import Crumb
from app.web.forms import FormState
from app.web.frame import AdminFrame, FormValues, Frame, Values, ViewerFrame, build_input, confirmed, one, pairs

router = APIRouter(prefix="/acceptance/hooks")
HERE = "/acceptance/hooks"
TARGETS = ("server", "engine")
FIELDS = ("name", "timeout_seconds", *(f"{t}_{part}" for t in TARGETS for part in ("kind", "does", "headers")))


def _page(frame: Frame, form: FormState | None = None, status: int = 200) -> Response:
    empty = {"timeout_seconds": "300", "server_kind": "", "engine_kind": ""}
    return frame.page(
        "acceptance_hooks.html",
        HooksPage,
        "acceptance",
        Crumb("Restart hooks"),
        status=status,
        hooks=frame.services.acceptance.hooks.list_hooks(page_size=500, page_token=None).items,
        form=form or FormState.of(empty, fields=FIELDS),
    )


@router.get("")
def hooks_page(frame: ViewerFrame) -> Response:
    return _page(frame)


@router.post("")
def create(frame: AdminFrame, values: FormValues) -> Response:
    form = FormState(values=values, fields=frozenset(FIELDS))
    try:
        body = build_input(HookInput, _body(values))
        if body.server is None and body.engine is None:
            raise InvalidInput.field("server_kind", "say how the server, the engine, or both are restarted")
        hook = frame.services.acceptance.hooks.create(body, actor=frame.actor)
    except TierkeeperError as error:
        return _page(frame, form.failed(error, _RENAMED), error.status)
    return frame.done(HERE, f"{hook.name} was added.")


#: Where a field of the API is typed on the page.
_RENAMED = {
    t if not part else f"{t}.{part}": f"{t}_{where}"
    for t in TARGETS
    for part, where in (("", "kind"), ("argv", "does"), ("webhook", "does"), ("headers", "headers"))
}


def _body(values: Values) -> dict[str, Any]:
    body: dict[str, Any] = {"name": one(values, "name") or ""}
    seconds = one(values, "timeout_seconds")
    if seconds is not None:
        try:
            body["timeout_seconds"] = float(seconds)
        except ValueError:
            raise InvalidInput.field("timeout_seconds", f"{seconds!r} is not a number of seconds") from None
    for target in TARGETS:
        action = _action(values, target)
        if action is not None:
            body[target] = action
    return body


def _action(values: Values, target: str) -> dict[str, Any] | None:
    kind, does = one(values, f"{target}_kind"), one(values, f"{target}_does")
    if kind is None:
        if does is not None:
            raise InvalidInput.field(f"{target}_kind", "say whether this is a command or a webhook")
        return None
    if kind == "manual":
        return {"manual": True}
    if does is None:
        what = "the command and its arguments" if kind == "command" else "the address"
        raise InvalidInput.field(f"{target}_does", f"give {what}")
    if kind == "webhook":
        return {"webhook": does, "headers": pairs(values, f"{target}_headers", ":")}
    try:
        # Words as a shell would cut them; no shell ever sees them.
        return {"argv": shlex.split(does)}
    except ValueError as error:
        raise InvalidInput.field(f"{target}_does", f"cannot be cut into words: {error}") from None


@router.post("/{hook_id}/delete")
def delete(frame: AdminFrame, hook_id: str, values: FormValues) -> Response:
    """Needs the name typed: its secret headers cannot be brought back."""
    hooks, ident = frame.services.acceptance.hooks, parse_id("hook", hook_id)
    try:
        confirmed(values, hooks.get(ident).name)
        hooks.delete(ident, actor=frame.actor)
    except TierkeeperError as error:
        return frame.refused(HERE, error)
    return frame.done(HERE, "The hook was deleted.")
