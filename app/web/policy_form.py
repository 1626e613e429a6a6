"""A cleanup policy as a form and back. Pure.

`values_of` fills the form from a policy (or a preset), `body_of` makes the API's body from what was posted and says
which field of the form each JSON path came from, so that errors stand beside what was typed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.cleanup.schemas import PolicyView
from app.errors import InvalidInput
from app.web.forms import FormState
from app.web.frame import Values, lines, one

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
#: Kinds in the order in which the form shows them, which is the order of `select`.
KINDS = ("incompatible", "derived", "corrupt", "unreachable", "temporary", "unused", "capacity", "free_space")

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
    """The form of a preset."""
    return FormState.of(values_of({"store_id": store_id, **policy}), fields=FIELDS)


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


def body_of(values: Values) -> tuple[dict[str, Any], dict[str, str]]:
    """(JSON body of POST /policies, JSON path -> field of the form). Raises InvalidInput for what is no JSON at all."""
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
        found["max_records"] = _number("max_records", text, int)
    if text := one(values, "max_percent"):
        found["max_fraction"] = _number("max_percent", text.removesuffix("%").strip(), float) / 100
    return found or None


def _number(field: str, text: str, kind: type[int] | type[float]) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise InvalidInput.field(field, f"{text!r} is not a number") from None


def _blackout(line: str) -> dict[str, Any]:
    window, _, days = line.partition(" ")
    start, mark, end = window.partition("-")
    if not mark:
        raise InvalidInput.field("blackouts", f"{line!r} is not of the form 08:00-20:00 or 08:00-20:00 1,2,3")
    try:
        return {"start": start, "end": end, "days": [int(day) for day in days.replace(",", " ").split()]}
    except ValueError:
        raise InvalidInput.field("blackouts", f"{days!r} are not days; write 0 (Sunday) to 6, as in 1,2,3") from None
