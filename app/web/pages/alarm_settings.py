"""Silences, maintenance windows and notifiers; part of the pages of alarms."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from app.alerts.schemas import (
    MatcherInput,
    MatcherView,
    NotifierInput,
    NotifierPatch,
    SilenceInput,
    WindowInput,
    WindowPatch,
)
from app.api.deps import parse_id
from app.errors import Conflict, InvalidInput, NotFound
from app.services import Services
from app.web.alarm_contexts import AlarmNotifiersPage, AlarmQuietPage
from app.web.contexts import Crumb
from app.web.forms import FormState
from app.web.frame import AdminFrame, FormValues, Frame, OperatorFrame, Values, ViewerFrame, build_input, one, pairs

router = APIRouter()

SILENCE_FIELDS = ("rule", "target", "hours", "comment", "severity")
WINDOW_FIELDS = ("name", "window_target", "cron", "timezone", "minutes", "labels")
NOTIFIER_FIELDS = ("notifier_name", "kind", "url", "headers", "min_severity", "send_resolved")
_MOST = 500


def targets_of(services: Services) -> list[tuple[str, str]]:
    """(``server:3``, its name) of everything that can be watched."""
    fleet = services.fleet
    return [
        *((f"server:{s.id}", f"server {s.name}") for s in fleet.list_servers(page_size=_MOST, page_token=None).items),
        *((f"engine:{e.id}", f"engine {e.name}") for e in fleet.list_engines(page_size=_MOST, page_token=None).items),
        *((f"store:{s.id}", f"store {s.name}") for s in fleet.list_stores(page_size=_MOST, page_token=None).items),
    ]


def _matcher(values: Values, *, target: str = "target") -> dict[str, Any]:
    """The matcher that a form's fields describe."""
    kind, _, ident = (one(values, target) or "").partition(":")
    return {
        "rules": [one(values, "rule")] if one(values, "rule") else [],
        "severities": [one(values, "severity")] if one(values, "severity") else [],
        "targets": [{"kind": kind, "id": ident}] if kind else [],
        "labels": pairs(values, "labels", "="),
    }


def _matcher_of(view: MatcherView) -> MatcherInput:
    """A matcher as it is entered, from one as it is shown (which adds the targets' names)."""
    shown = view.model_dump()
    shown["targets"] = [{"kind": t["kind"], "id": t["id"]} for t in shown["targets"]]
    return MatcherInput(**{name: shown[name] for name in MatcherInput.model_fields})


def number_of(values: Values, name: str, factor: float = 1.0) -> float | None:
    """A number typed into a form, times a factor (hours to seconds). Raises InvalidInput."""
    text = one(values, name)
    if text is None:
        return None
    try:
        return float(text.replace(",", "")) * factor
    except ValueError:
        raise InvalidInput.field(name, f"{text!r} is not a number") from None


# ---- quiet ----


def _quiet_page(
    frame: Frame, silence: FormState | None = None, window: FormState | None = None, status: int = 200
) -> Response:
    alerts = frame.services.alerts
    query = frame.request.query_params
    begun = {"hours": "2", "rule": query.get("rule", ""), "target": query.get("target", "")}
    return frame.page(
        "alarms_quiet.html",
        AlarmQuietPage,
        "alarms",
        Crumb("Silences and windows"),
        status=status,
        silences=alerts.quiet.list_silences(page_size=100, page_token=None).items,
        windows=alerts.quiet.list_windows(page_size=_MOST, page_token=None).items,
        silence_form=silence or FormState.of(begun, fields=SILENCE_FIELDS),
        window_form=window or FormState.of({"timezone": "UTC", "minutes": "60"}, fields=WINDOW_FIELDS),
        rules=[(rule.id, rule.title) for rule in alerts.rules.list_rules().items],
        targets=targets_of(frame.services),
    )


@router.get("/quiet")
def quiet_page(frame: ViewerFrame) -> Response:
    return _quiet_page(frame)


@router.post("/silences")
def add_silence(frame: OperatorFrame, values: FormValues) -> Response:
    form = FormState(values=values, fields=frozenset(SILENCE_FIELDS))
    try:
        hours = number_of(values, "hours", 3600.0)
        body = {"matcher": _matcher(values), "comment": one(values, "comment") or "", "seconds": hours}
        silence = frame.services.alerts.quiet.create_silence(build_input(SilenceInput, body), actor=frame.actor)
    except (InvalidInput, NotFound) as error:
        aliases = {"seconds": "hours", "ends_at": "hours"}
        return _quiet_page(frame, silence=form.failed(error, aliases), status=error.status)
    quiet = frame.services.alerts.quiet
    return frame.done(
        "/alarms/quiet",
        f"Silence {silence.id} is in force.",
        undo=(lambda actor: quiet.end_silence(int(silence.id), actor=actor), "The silence is over."),
    )


@router.post("/silences/{silence_id}/end")
def end_silence(frame: OperatorFrame, silence_id: str) -> Response:
    quiet, ident = frame.services.alerts.quiet, parse_id("silence", silence_id)
    before = quiet.get_silence(ident)
    quiet.end_silence(ident, actor=frame.actor)
    body = SilenceInput(
        matcher=_matcher_of(before.matcher),
        comment=before.comment,
        # What has begun goes on from now: a start in the past is no start.
        starts_at=before.starts_at if before.state == "waiting" else None,
        ends_at=before.ends_at,
    )
    undo = (lambda actor: quiet.create_silence(body, actor=actor), "The silence is in force again.")
    return frame.done("/alarms/quiet", "The silence is over.", undo=undo if before.state != "over" else None)


@router.post("/windows")
def add_window(frame: AdminFrame, values: FormValues) -> Response:
    form = FormState(values=values, fields=frozenset(WINDOW_FIELDS))
    try:
        body = {
            "name": one(values, "name") or "",
            "matcher": _matcher({k: v for k, v in values.items() if k != "rule"}, target="window_target"),
            "cron": one(values, "cron"),
            "timezone": one(values, "timezone") or "UTC",
            "duration_seconds": number_of(values, "minutes", 60.0),
        }
        window = frame.services.alerts.quiet.create_window(build_input(WindowInput, body), actor=frame.actor)
    except (InvalidInput, Conflict) as error:
        return _quiet_page(
            frame, window=form.failed(error, {"duration_seconds": "minutes", "starts_at": "cron"}), status=error.status
        )
    return frame.done("/alarms/quiet", f"{window.name} was created.")


@router.post("/windows/{window_id}/{what}")
def change_window(frame: AdminFrame, window_id: str, what: str) -> Response:
    quiet = frame.services.alerts.quiet
    ident = parse_id("maintenance window", window_id)
    if what == "delete":
        before = quiet.get_window(ident)
        quiet.delete_window(ident, actor=frame.actor)
        names = WindowInput.model_fields.keys() - {"matcher"}
        body = WindowInput(matcher=_matcher_of(before.matcher), **{name: getattr(before, name) for name in names})
        return frame.done(
            "/alarms/quiet",
            f"{before.name} was deleted.",
            undo=(lambda actor: quiet.create_window(body, actor=actor), f"{before.name} is there again."),
        )
    if what not in ("on", "off"):
        raise NotFound.of("page", what[:40])
    on = what == "on"
    window = quiet.patch_window(ident, WindowPatch(enabled=on), actor=frame.actor)
    return frame.done(
        "/alarms/quiet",
        f"{window.name} is switched {what}.",
        undo=(
            lambda actor: quiet.patch_window(ident, WindowPatch(enabled=not on), actor=actor),
            f"{window.name} is switched {'off' if on else 'on'} again.",
        ),
    )


# ---- messages ----


def _notifiers_page(frame: Frame, form: FormState | None = None, status: int = 200) -> Response:
    notifiers = frame.services.alerts.notifiers
    begun = {"kind": "apprise", "min_severity": "warning", "send_resolved": True}
    return frame.page(
        "alarms_notifiers.html",
        AlarmNotifiersPage,
        "alarms",
        Crumb("Notifiers"),
        status=status,
        notifiers=notifiers.list_notifiers(page_size=_MOST, page_token=None).items,
        messages=notifiers.list_messages(page_size=30, page_token=None).items,
        form=form or FormState.of(begun, fields=NOTIFIER_FIELDS),
    )


@router.get("/notifiers")
def notifiers_page(frame: ViewerFrame) -> Response:
    return _notifiers_page(frame)


@router.post("/notifiers")
def add_notifier(frame: AdminFrame, values: FormValues) -> Response:
    # What is secret is not shown again, whatever is wrong with the rest.
    shown = {name: value for name, value in values.items() if name not in ("url", "headers")}
    form = FormState(values=shown, fields=frozenset(NOTIFIER_FIELDS))
    try:
        body = {
            "name": one(values, "notifier_name") or "",
            "kind": one(values, "kind") or "",
            "url": one(values, "url") or "",
            "headers": pairs(values, "headers", ":"),
            "min_severity": one(values, "min_severity") or "warning",
            "send_resolved": bool(values.get("send_resolved")),
        }
        notifier = frame.services.alerts.notifiers.create(build_input(NotifierInput, body), actor=frame.actor)
    except (InvalidInput, Conflict) as error:
        return _notifiers_page(frame, form.failed(error, {"name": "notifier_name"}), error.status)
    return frame.done("/alarms/notifiers", f"{notifier.name} was added. Send it a test.")


@router.post("/notifiers/{notifier_id}/{what}")
def change_notifier(frame: AdminFrame, notifier_id: str, what: str) -> Response:
    notifiers = frame.services.alerts.notifiers
    ident = parse_id("notifier", notifier_id)
    if what == "test":
        result = notifiers.test(ident, actor=frame.actor)
        text = (
            f"The test was delivered ({result.detail})." if result.delivered else f"The test failed: {result.detail}."
        )
        return frame.done("/alarms/notifiers", text, kind="ok" if result.delivered else "bad")
    if what == "delete":
        notifiers.delete(ident, actor=frame.actor)
        return frame.done("/alarms/notifiers", "The notifier was deleted.")
    if what not in ("on", "off"):
        raise NotFound.of("page", what[:40])
    on = what == "on"
    view = notifiers.patch(ident, NotifierPatch(enabled=on), actor=frame.actor)
    return frame.done(
        "/alarms/notifiers",
        f"{view.name} is switched {what}.",
        undo=(
            lambda actor: notifiers.patch(ident, NotifierPatch(enabled=not on), actor=actor),
            f"{view.name} is switched {'off' if on else 'on'} again.",
        ),
    )
