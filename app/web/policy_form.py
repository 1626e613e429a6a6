"""A cleanup policy as a form and back. Pure.

`values_of` fills the form from a policy (or a preset), `body_of` makes the API's body from what was posted and says
which field of the form each JSON path came from, so that errors stand beside what was typed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.cleanup.policy import SPACE_KINDS
from app.cleanup.schemas import PolicyView
from app.cleanup.service_policies import check_text
from app.errors import Conflict, FieldError, InvalidInput
from app.web.forms import FormState
from app.web.frame import Model, Values, build_input, lines, one

FIELDS = (
    "name",
    "store_id",
    "take",
    "temporary_older_than",
    "incompatible_reasons",
    "corrupt_reasons",
    "unused_for",
    "unused_age_only",
    "capacity_high",
    "capacity_low",
    "free_space_floor",
    "protect_accessed_within",
    "protect_written_within",
    "protect_models",
    "max_bytes",
    "max_records",
    "max_percent",
    "removal",
    "quarantine_for",
    "schedule",
    "timezone",
    "enabled",
    "blackouts",
)
#: What the form calls its fields, for what is said on top of it.
LABELS = {
    "name": "name",
    "store_id": "store",
    "take": "what goes",
    "temporary_older_than": "temporary files older than",
    "incompatible_reasons": "reasons of incompatible records",
    "corrupt_reasons": "reasons of corrupt records",
    "unused_for": "records not used for",
    "unused_age_only": "by age of writing only",
    "capacity_high": "high mark",
    "capacity_low": "low mark",
    "free_space_floor": "keep free",
    "protect_accessed_within": "read within",
    "protect_written_within": "written within",
    "protect_models": "models that never go",
    "max_bytes": "bytes of one run",
    "max_records": "records of one run",
    "max_percent": "share of the store",
    "removal": "how",
    "quarantine_for": "keep in quarantine for",
    "schedule": "schedule",
    "timezone": "time zone",
    "enabled": "the schedule is on",
    "blackouts": "not between",
}
#: Kinds in the order in which the form shows them, which is the order of `select`.
KINDS = ("incompatible", "derived", "corrupt", "unreachable", "temporary", "unused", "capacity", "free_space")

_WINDOW = re.compile(r"blackouts\[(\d+)\]")
_EMPTY: dict[str, Any] = {"removal": "quarantine", "timezone": "UTC", "enabled": True}


def empty_form(store_id: str = "") -> FormState:
    """A new policy with nothing chosen."""
    return FormState.of(_EMPTY | {"store_id": store_id}, fields=FIELDS)


def form_of_view(policy: PolicyView) -> FormState:
    """The form of a policy that exists."""
    body = policy.model_dump()
    return FormState.of(values_of(body), fields=FIELDS)


def body_of_view(policy: PolicyView) -> dict[str, Any]:
    """What would make the policy what it is now, without its store."""
    body, _ = body_of({name: list(texts) for name, texts in form_of_view(policy).values.items()})
    del body["store_id"]
    return body


def form_of_preset(policy: Mapping[str, Any], store_id: str = "") -> FormState:
    """The form of a preset; the schedule of one that deletes is off until somebody has seen its dry run."""
    body = {"store_id": store_id, **policy, "enabled": policy.get("enabled", True) and not deletes(policy)}
    return FormState.of(values_of(body), fields=FIELDS)


def deletes(body: Mapping[str, Any]) -> bool:
    """Whether a policy deletes anything for good: all that it takes, or what goes for room."""
    return body["removal"] == "delete" or any(item["kind"] in SPACE_KINDS for item in body["select"])


def needs_a_new_look(before: PolicyView, body: Mapping[str, Any]) -> bool:
    """Whether a changed policy deletes and takes other records than before, or at other times."""
    if not body["schedule"] or not deletes(body):
        return False
    old = body_of_view(before)
    names = ("select", "protect", "limits", "removal", "schedule", "timezone", "blackouts")
    return any(old[name] != body[name] for name in names)


def values_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Plain form values of a policy's JSON."""
    values: dict[str, Any] = dict.fromkeys(FIELDS)
    values |= _EMPTY
    for name in ("name", "store_id", "removal", "quarantine_for", "schedule"):
        values[name] = body.get(name) or values.get(name)
    values["timezone"] = body.get("timezone") or "UTC"
    values["enabled"] = body.get("enabled", True)
    take = []
    for item in body.get("select") or []:
        take.append(item["kind"])
        match item["kind"]:
            case "temporary":
                values["temporary_older_than"] = item.get("older_than")
            case "unused":
                values["unused_for"], values["unused_age_only"] = item.get("for"), bool(item.get("age_only"))
            case "capacity":
                values["capacity_high"], values["capacity_low"] = item.get("high"), item.get("low")
            case "free_space":
                values["free_space_floor"] = item.get("floor")
            case "incompatible" | "corrupt" as kind:
                values[f"{kind}_reasons"] = item.get("reasons") or []
    values["take"] = take
    protect, limits = body.get("protect") or {}, body.get("limits") or {}
    values["protect_accessed_within"] = protect.get("accessed_within")
    values["protect_written_within"] = protect.get("written_within")
    values["protect_models"] = "\n".join(protect.get("models") or [])
    values["max_bytes"], values["max_records"] = limits.get("max_bytes"), limits.get("max_records")
    fraction = limits.get("max_fraction")
    values["max_percent"] = None if fraction is None else f"{fraction * 100:g}"
    values["blackouts"] = "\n".join(
        f"{b['start']}-{b['end']} {','.join(str(d) for d in b.get('days') or [])}".strip()
        for b in body.get("blackouts") or []
    )
    return values


def checked(model: type[Model], body: Mapping[str, Any]) -> Model:
    """The API's body. Raises InvalidInput with all that is wrong: what its shape hides from the service, too."""
    try:
        return build_input(model, body)
    except InvalidInput as shape:
        found = list(shape.errors)
        try:
            check_text(body)
        except InvalidInput as text:
            named = {error.field.partition("[")[0].partition(".")[0] for error in found}
            found += [e for e in text.errors if e.field.partition("[")[0].partition(".")[0] not in named]
        raise InvalidInput("; ".join(f"{e.field}: {e.message}" for e in found), errors=tuple(found)) from None


def refused(form: FormState, error: InvalidInput | Conflict, paths: Mapping[str, str]) -> FormState:
    """The form with what is wrong with it, in its own words."""
    return form.failed(in_words_of_the_form(error, form.values), paths)


def in_words_of_the_form(
    error: InvalidInput | Conflict, values: Mapping[str, Sequence[str]]
) -> InvalidInput | Conflict:
    """The same error where the API counts otherwise than the form: its share is a fraction, the form's a percentage,
    and hours are lines of text here."""
    typed = (values.get("max_percent") or [""])[0].strip().removesuffix("%").strip()
    told = f"{typed} % is not a share of the store: write a number above 0 and up to 100"
    windows = [line.strip() for line in (values.get("blackouts") or [""])[0].splitlines() if line.strip()]
    found: list[FieldError] = []
    for each in error.errors:
        if each.field == "limits.max_fraction":
            found.append(FieldError(each.field, told))
        elif number := _WINDOW.match(each.field):
            line = windows[int(number[1])] if int(number[1]) < len(windows) else ""
            message = f"{line!r} is not of the form 08:00-20:00 or 08:00-20:00 1,2,3 (days 0 to 6, 0 is Sunday)"
            found.append(FieldError("blackouts", message))
        else:
            found.append(each)
    error.errors = tuple(dict.fromkeys(found))
    return error


def posted_form(values: Values) -> FormState:
    """What was posted, to be shown again."""
    return FormState(values=values, fields=frozenset(FIELDS), labels=LABELS)


def body_of(values: Values) -> tuple[dict[str, Any], dict[str, str]]:
    """(JSON body of POST /policies, JSON path -> field of the form). What is no number goes along as it was typed, for
    the API to refuse together with all else."""
    chosen = [kind for kind in KINDS if kind in values.get("take", [])]
    select: list[dict[str, Any]] = []
    paths = {"select": "take", "limits.max_bytes": "max_bytes", "limits.max_records": "max_records"}
    paths |= {
        "limits.max_fraction": "max_percent",
        "protect.accessed_within": "protect_accessed_within",
        "protect.written_within": "protect_written_within",
        "protect.models": "protect_models",
    }
    for index, kind in enumerate(chosen):
        item, fields = _select_item(kind, values)
        select.append(item)
        paths[f"select[{index}]"] = "take"
        paths |= {f"select[{index}].{key}": field for key, field in fields.items()}
    body = {
        "name": one(values, "name") or "",
        "store_id": one(values, "store_id") or "",
        "enabled": bool(values.get("enabled")),
        "schedule": one(values, "schedule"),
        "timezone": one(values, "timezone") or "UTC",
        "select": select,
        "protect": _protect(values),
        "limits": _limits(values),
        "removal": one(values, "removal") or "quarantine",
        "quarantine_for": one(values, "quarantine_for"),
        "blackouts": [_blackout(line) for line in lines(values, "blackouts")],
    }
    return body, paths


def _select_item(kind: str, values: Values) -> tuple[dict[str, Any], dict[str, str]]:
    item: dict[str, Any] = {"kind": kind}
    fields: dict[str, str] = {"reasons": f"{kind}_reasons"}
    if kind in ("incompatible", "corrupt") and values.get(f"{kind}_reasons"):
        item["reasons"] = list(values[f"{kind}_reasons"])
    elif kind == "temporary":
        item["older_than"] = one(values, "temporary_older_than") or "1h"
        fields["older_than"] = "temporary_older_than"
    elif kind == "unused":
        item |= {"for": one(values, "unused_for") or "", "age_only": bool(values.get("unused_age_only"))}
        fields |= {"for": "unused_for", "age_only": "unused_age_only"}
    elif kind == "capacity":
        item |= {"high": one(values, "capacity_high") or "", "low": one(values, "capacity_low") or ""}
        fields |= {"high": "capacity_high", "low": "capacity_low"}
    elif kind == "free_space":
        item["floor"] = one(values, "free_space_floor") or ""
        fields["floor"] = "free_space_floor"
    return item, fields


def _protect(values: Values) -> dict[str, Any] | None:
    found: dict[str, Any] = {
        key: text for key in ("accessed_within", "written_within") if (text := one(values, f"protect_{key}"))
    }
    if models := lines(values, "protect_models"):
        found["models"] = models
    return found or None


def _limits(values: Values) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    if text := one(values, "max_bytes"):
        found["max_bytes"] = int(text) if text.isdecimal() else text
    if text := one(values, "max_records"):
        found["max_records"] = _number(text, int)
    if text := one(values, "max_percent"):
        share = _number(text.removesuffix("%").strip(), float)
        found["max_fraction"] = share if isinstance(share, str) else share / 100
    return found or None


def _number(text: str, kind: type[int] | type[float]) -> Any:
    try:
        return kind(text)
    except ValueError:
        return text


def _blackout(line: str) -> dict[str, Any]:
    window, _, days = line.partition(" ")
    start, mark, end = window.partition("-")
    numbers = [_number(day, int) for day in days.replace(",", " ").split()]
    return {"start": start, "end": end if mark else "", "days": numbers}
