"""The OpenAPI document: what the framework knows of each route, and the error answers that every route shares.

The shared ones are declared once, as components that each operation refers to: 150 operations with a dozen problems
each would make a megabyte of document and seconds of work. Making it is still work, so it happens in a worker thread,
at the first request, once.
"""

from __future__ import annotations

import json
import threading
from typing import Any

from fastapi import APIRouter, FastAPI, Response

from app.api.problems import PROBLEM_SCHEMA
from app.api.responses import ALWAYS, ANYWHERE, PROBLEM_REF, SHARED

#: What a query or path parameter means wherever it occurs, for those whose route does not say it.
_PARAMETERS = {
    "a": "id of the first of the two runs",
    "b": "id of the second of the two runs",
    "action": "the action as the audit names it, such as policy.create",
    "arm": "only answers of this arm",
    "experiment": "only runs of this published experiment",
    "folder": "name of the folder in the store's quarantine",
    "form": "the form of what is asked for",
    "kind": "only of this kind",
    "phase": "only requests of this pass or phase",
    "points": "at most so many points; older ones are thinned",
    "prompt": "only answers to this prompt, by its number in the run",
    "rule": "only of this rule",
    "scenario": "A (without the cache) or B (with it)",
    "severity": "only of this severity",
    "state": "only in this state",
    "target_kind": "only of this kind of target",
    "verdict": "only with this verdict",
    "window_seconds": "over so many seconds until now",
}


def install(app: FastAPI) -> None:
    """Replaces the application's document by ours and adds the open route that serves it."""
    plain = app.openapi
    lock = threading.Lock()
    ready: list[bytes] = []

    def openapi() -> dict[str, Any]:
        with lock:
            if app.openapi_schema is None:
                _share(plain())
            assert app.openapi_schema is not None
            return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    router = APIRouter()

    @router.get("/api/v1/openapi.json", include_in_schema=False)
    def document() -> Response:
        if not ready:
            ready.append(_packed(openapi()))
        return Response(ready[0], media_type="application/json")

    app.include_router(router)


def _packed(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _share(document: dict[str, Any]) -> None:
    components = document.setdefault("components", {})
    components.setdefault("schemas", {})[PROBLEM_REF.rsplit("/", 1)[-1]] = PROBLEM_SCHEMA
    components["responses"] = {f"Problem{status}": answer for status, answer in SHARED.items()}
    for path, operations in document["paths"].items():
        statuses = ALWAYS if path.startswith("/api/v1/") else ANYWHERE
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                _describe(parameter)
            for status in statuses:
                # FastAPI declares its own 422, in a shape that we do not answer with.
                if status == 422 or str(status) not in operation["responses"]:
                    operation["responses"][str(status)] = {"$ref": f"#/components/responses/Problem{status}"}
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)


def _describe(parameter: dict[str, Any]) -> None:
    """Gives a parameter that its route does not explain the words that hold everywhere."""
    name = parameter["name"]
    if "description" in parameter:
        return
    if name in _PARAMETERS:
        parameter["description"] = _PARAMETERS[name]
    elif name.endswith("_id"):
        parameter["description"] = f"id of the {name.removesuffix('_id').replace('_', ' ')}, as lists give it"
