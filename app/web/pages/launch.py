"""Launch commands: a form, and the sets that are generated from it. Runs nothing, saves nothing."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from app.errors import InvalidInput, NotFound
from app.launch.schemas import LaunchInput
from app.launch.service import LaunchService
from app.services import Services
from app.web.forms import FormState
from app.web.frame import FormValues, Frame, OperatorFrame, Values, ViewerFrame, build_input, lines, one, pairs
from app.web.setup_contexts import LaunchPage

router = APIRouter(prefix="/launch")

FIELDS = (
    "model", "served_model_name", "device", "l1_gib", "chunk_size", "base_path", "adapter", "capacity_gib", "dtype",
    "kv_cache_dtype", "max_model_len", "block_size", "hybrid_block_tokens", "tensor_parallel", "port", "http_port",
    "engine_port", "workers", "transfer_mode", "dev_mode", "isolated", "use_odirect", "per_layout", "server_image",
    "engine_image", "extra_args", "environment", "server_id", "engine_id",
)  # fmt: skip
#: JSON path of the API -> field of the form.
ALIASES = {
    "server.port": "port", "server.http_port": "http_port", "engine.port": "engine_port",
    "server.store.base_path": "base_path", "server.store.adapter": "adapter",
    "server.store.capacity_gib": "capacity_gib", "images.server": "server_image", "images.engine": "engine_image",
    **{f"server.{name}": name for name in ("l1_gib", "chunk_size", "workers", "transfer_mode")},
    **{
        f"engine.{name}": name
        for name in (
            "model", "served_model_name", "dtype", "kv_cache_dtype", "max_model_len", "block_size",
            "hybrid_block_tokens", "tensor_parallel", "extra_args", "environment",
        )
    },
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {"adapter": "fs", "use_odirect": True, "per_layout": True}


def _launch(services: Services) -> LaunchService:
    found: LaunchService = services.launch
    return found


def _page(frame: Frame, *, status: int = 200, **fields: Any) -> Response:
    fleet = frame.services.fleet
    fields.setdefault("form", FormState.of(_DEFAULTS, fields=FIELDS))
    return frame.page(
        "launch.html",
        LaunchPage,
        "launch",
        status=status,
        servers=fleet.list_servers(page_size=500, page_token=None).items,
        engines=fleet.list_engines(page_size=500, page_token=None).items,
        **fields,
    )


@router.get("")
def launch_page(frame: ViewerFrame) -> Response:
    return _page(frame)


@router.post("")
def generate(frame: OperatorFrame, values: FormValues) -> Response:
    """Shows what would be started."""
    form = FormState(values=values, fields=frozenset(FIELDS))
    try:
        result = _launch(frame.services).generate(build_input(LaunchInput, _body(values)))
    except (InvalidInput, NotFound) as error:
        return _page(frame, form=form.failed(error, ALIASES), status=error.status)
    return _page(frame, form=form, result=result)


def _body(values: Values) -> dict[str, Any]:
    """The API's body: a field that was left empty is not sent, so that a registered pair can fill it."""
    server: dict[str, Any] = _given(values, {"chunk_size": int, "workers": int, "port": int, "http_port": int})
    if one(values, "l1_gib"):
        server["l1_gib"] = _number(values, "l1_gib", float)
    if one(values, "transfer_mode"):
        server["transfer_mode"] = one(values, "transfer_mode")
    store: dict[str, Any] = {"use_odirect": "use_odirect" in values, "per_layout": "per_layout" in values}
    for name in ("base_path", "adapter"):
        if one(values, name):
            store[name] = one(values, name)
    if one(values, "capacity_gib"):
        store["capacity_gib"] = _number(values, "capacity_gib", float)
    server["store"] = store
    engine: dict[str, Any] = _given(
        values,
        {
            "max_model_len": int,
            "block_size": int,
            "hybrid_block_tokens": int,
            "tensor_parallel": int,
            "served_model_name": str,
            "dtype": str,
            "kv_cache_dtype": str,
        },
    )
    if one(values, "model"):
        engine["model"] = one(values, "model")
    if one(values, "engine_port"):
        engine["port"] = _number(values, "engine_port", int)
    engine["dev_mode"] = "dev_mode" in values
    engine["extra_args"] = lines(values, "extra_args")
    engine["environment"] = pairs(values, "environment", "=")
    images: dict[str, Any] = {"isolated": "isolated" in values}
    if one(values, "server_image"):
        images["server"] = one(values, "server_image")
    if one(values, "engine_image"):
        images["engine"] = one(values, "engine_image")
    body: dict[str, Any] = {"server": server, "engine": engine, "images": images}
    for name in ("device", "server_id", "engine_id"):
        if one(values, name):
            body[name] = one(values, name)
    return body


def _given(values: Values, kinds: dict[str, type]) -> dict[str, Any]:
    return {
        name: one(values, name) if kind is str else _number(values, name, kind)
        for name, kind in kinds.items()
        if one(values, name) is not None
    }


def _number(values: Values, name: str, kind: type) -> Any:
    text = one(values, name)
    if text is None:
        raise InvalidInput.field(name, "is needed")
    try:
        return kind(text)
    except ValueError:
        raise InvalidInput.field(name, f"{text[:40]!r} is no number") from None
