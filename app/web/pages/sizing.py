"""Sizing: what a token takes, what fits where, when loading pays; and where two prompts part."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from app.errors import InvalidInput, NotFound, TargetError
from app.services import Services
from app.sizing.schemas import PrefixInput, SizingInput
from app.sizing.service import SizingService
from app.web.forms import FormState
from app.web.frame import FormValues, Frame, OperatorFrame, Values, ViewerFrame, build_input, one
from app.web.setup_contexts import SizingPage
from app.wording import json_trouble

router = APIRouter(prefix="/sizing")

#: Memory is entered in GiB, disk in GB, as the pages print them.
GIB, GB = 2**30, 10**9
FIELDS = (
    "config", "server_id", "model_name", "bytes_per_token", "kv_cache_dtype", "tensor_parallel", "pipeline_parallel",
    "engine_id",
    "chunk_size", "l0_gib", "l0_tokens", "l1_gib", "l2_gb", "contexts", "tokens", "shared_tokens", "order",
    "retention_days", "tokens_per_second", "prefill", "l2_rate",
)  # fmt: skip
PREFIX_FIELDS = ("first", "second", "prefix_engine_id", "prefix_chunk")
#: JSON path of the API -> field of the form.
ALIASES = {
    "model.config": "config", "model.server_id": "server_id", "model.model_name": "model_name", "model": "config",
    "model.bytes_per_token": "bytes_per_token", "model.tensor_parallel": "tensor_parallel",
    "model.pipeline_parallel": "pipeline_parallel",
    "model.kv_cache_dtype": "kv_cache_dtype", "working_set.contexts": "contexts", "working_set.tokens": "tokens",
    "tiers.l1_bytes": "l1_gib", "tiers.l2_bytes": "l2_gb", "tiers.l0_bytes": "l0_gib",
    "retention.seconds": "retention_days", "speed.prefill_tokens_per_second": "prefill",
}  # fmt: skip
PREFIX_ALIASES = {"engine_id": "prefix_engine_id", "chunk_size": "prefix_chunk"}
_DEFAULTS = {"tensor_parallel": "1", "pipeline_parallel": "1", "kv_cache_dtype": "auto", "order": "cyclic"}


def _sizing(services: Services) -> SizingService:
    found: SizingService = services.sizing
    return found


def _page(frame: Frame, *, status: int = 200, **fields: Any) -> Response:
    fleet = frame.services.fleet
    fields.setdefault("form", FormState.of(_DEFAULTS, fields=FIELDS))
    fields.setdefault("prefix_form", FormState.of({}, fields=PREFIX_FIELDS))
    return frame.page(
        "sizing.html",
        SizingPage,
        "sizing",
        status=status,
        servers=fleet.list_servers(page_size=500, page_token=None).items,
        engines=fleet.list_engines(page_size=500, page_token=None).items,
        **fields,
    )


@router.get("")
def sizing_page(frame: ViewerFrame) -> Response:
    return _page(frame)


@router.post("")
def size(frame: OperatorFrame, values: FormValues) -> Response:
    """Computes and shows; saves nothing."""
    form = FormState(values=values, fields=frozenset(FIELDS))
    try:
        result = _sizing(frame.services).size(build_input(SizingInput, _body(values)))
    except (InvalidInput, NotFound, TargetError) as error:
        return _page(frame, form=form.failed(error, ALIASES), status=error.status)
    return _page(frame, form=form, result=result)


@router.post("/prefix")
def prefix(frame: OperatorFrame, values: FormValues) -> Response:
    """Compares two prompts; saves nothing."""
    form = FormState(values=values, fields=frozenset(PREFIX_FIELDS))
    try:
        body: dict[str, Any] = {name: _prompt(values, name) for name in ("first", "second")}
        body["engine_id"] = one(values, "prefix_engine_id")
        body["chunk_size"] = _whole(values, "prefix_chunk")
        result = _sizing(frame.services).compare_prompts(build_input(PrefixInput, body))
    except (InvalidInput, NotFound, TargetError) as error:
        return _page(frame, prefix_form=form.failed(error, PREFIX_ALIASES), status=error.status)
    return _page(frame, prefix_form=form, prefix=result)


def _body(values: Values) -> dict[str, Any]:
    model: dict[str, Any] = {
        "kv_cache_dtype": one(values, "kv_cache_dtype") or "auto",
        "tensor_parallel": _whole(values, "tensor_parallel") or 1,
        "pipeline_parallel": _whole(values, "pipeline_parallel") or 1,
        "model_name": one(values, "model_name"),
        "server_id": one(values, "server_id"),
        "bytes_per_token": _whole(values, "bytes_per_token"),
    }
    text = one(values, "config")
    if text is not None:
        try:
            model["config"] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInput.field("config", f"{json_trouble(error)}; paste the whole config.json") from None
        if not isinstance(model["config"], dict):
            raise InvalidInput.field("config", "is no JSON object; paste the model's config.json")
    tiers = {
        "l0_bytes": _bytes(values, "l0_gib", GIB),
        "l0_tokens": _whole(values, "l0_tokens"),
        "l1_bytes": _bytes(values, "l1_gib", GIB),
        "l2_bytes": _bytes(values, "l2_gb", GB),
    }
    body: dict[str, Any] = {
        "model": model,
        "chunk_size": _whole(values, "chunk_size"),
        "tiers": {name: value for name, value in tiers.items() if value is not None},
        "engine_id": one(values, "engine_id"),
    }
    contexts, tokens = _whole(values, "contexts"), _whole(values, "tokens")
    if (contexts is None) != (tokens is None):
        raise InvalidInput.field("contexts" if contexts is None else "tokens", "contexts and tokens go together")
    if contexts is not None:
        body["working_set"] = {
            "contexts": contexts,
            "tokens": tokens,
            "shared_tokens": _whole(values, "shared_tokens"),
            "order": one(values, "order") or "cyclic",
        }
    days = _number(values, "retention_days")
    if days is not None:
        body["retention"] = {"seconds": days * 86400, "tokens_per_second": _number(values, "tokens_per_second")}
    rate = _number(values, "l2_rate")
    speed = {
        "prefill_tokens_per_second": _number(values, "prefill"),
        "l2_bytes_per_second": None if rate is None else rate * 1e9,
    }
    body["speed"] = {name: value for name, value in speed.items() if value is not None}
    return body


def _prompt(values: Values, name: str) -> dict[str, Any]:
    """Token ids where the text is only numbers and commas, else the text."""
    text = (values.get(name) or [""])[0]
    bare = text.replace(",", " ").replace("[", " ").replace("]", " ").split()
    if bare and all(word.isascii() and word.isdecimal() and len(word) < 11 for word in bare):
        return {"token_ids": [int(word) for word in bare]}
    if not text.strip():
        raise InvalidInput.field(name, "is empty; paste a prompt or its token ids")
    return {"text": text}


def _whole(values: Values, name: str) -> int | None:
    value = _number(values, name)
    if value is None:
        return None
    if not value.is_integer():
        raise InvalidInput.field(name, f"{value:g} is no whole number")
    return int(value)


def _number(values: Values, name: str) -> float | None:
    text = one(values, name)
    if text is None:
        return None
    try:
        value = float(text.replace(",", "").replace(" ", ""))
    except ValueError:
        raise InvalidInput.field(name, f"{text[:40]!r} is no number") from None
    if not 0 <= value < 1e18:
        raise InvalidInput.field(name, f"{text[:40]!r} is out of range")
    return value


def _bytes(values: Values, name: str, unit: int) -> int | None:
    value = _number(values, name)
    return None if value is None else int(value * unit)
