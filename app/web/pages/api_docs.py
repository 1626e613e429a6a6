"""/api/docs: the API to read, made from the same OpenAPI document that programs get. No script, so CSP stays 'self'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from app.web.contexts import Crumb, PageContext
from app.web.frame import ViewerFrame

router = APIRouter(prefix="/api/docs")

_METHODS = ("get", "post", "patch", "put", "delete")


@dataclass(frozen=True)
class Parameter:
    """One parameter or body field: `type` in words, `note` its description or bounds."""

    name: str
    where: str
    type: str
    required: bool
    note: str


@dataclass(frozen=True)
class Operation:
    """One method of one address."""

    anchor: str
    method: str
    path: str
    summary: str
    description: str
    parameters: tuple[Parameter, ...]
    answers: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Family:
    """The operations of one tag."""

    name: str
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class ApiDocsPage(PageContext):
    """api_docs.html"""

    families: tuple[Family, ...]


@router.get("")
def api_docs_page(frame: ViewerFrame) -> Response:
    document = frame.request.app.openapi()
    return frame.page("api_docs.html", ApiDocsPage, "", Crumb("API"), families=families(document))


def families(document: Mapping[str, Any]) -> tuple[Family, ...]:
    """The OpenAPI document as what the page shows, by tag in the order of first appearance."""
    found: dict[str, list[Operation]] = {}
    for path, methods in document.get("paths", {}).items():
        for method in _METHODS:
            spec = methods.get(method)
            if spec is not None:
                tag = (spec.get("tags") or ["other"])[0]
                found.setdefault(tag, []).append(_operation(document, path, method, spec))
    return tuple(Family(name, tuple(operations)) for name, operations in found.items())


def _operation(document: Mapping[str, Any], path: str, method: str, spec: Mapping[str, Any]) -> Operation:
    summary, description = (" ".join((spec.get(name) or "").split()) for name in ("summary", "description"))
    return Operation(
        anchor=spec.get("operationId", f"{method}-{path}"),
        method=method.upper(),
        path=path,
        summary=summary,
        description=description,
        parameters=(*_parameters(document, spec), *_body(document, spec)),
        answers=tuple(sorted(_answers(document, spec))),
    )


def _answers(document: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for status, answer in spec.get("responses", {}).items():
        shared = answer.get("$ref")
        found = document["components"]["responses"][shared.rsplit("/", 1)[-1]] if shared else answer
        yield status, found.get("description", "")


def _parameters(document: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Parameter]:
    for parameter in spec.get("parameters", ()):
        schema = parameter.get("schema", {})
        note = parameter.get("description") or schema.get("description") or ""
        yield Parameter(
            parameter["name"], parameter["in"], _type(document, schema), bool(parameter.get("required")), note
        )


def _body(document: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Parameter]:
    content = spec.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = _resolved(document, content.get("schema", {}))
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        yield Parameter(name, "body", _type(document, field), name in required, field.get("description", ""))


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    options = schema.get("anyOf")
    if options:
        schema = next((option for option in options if option.get("type") != "null"), schema)
    reference = schema.get("$ref")
    if not reference:
        return schema
    found: Mapping[str, Any] = document["components"]["schemas"][reference.rsplit("/", 1)[-1]]
    return found


def _type(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """A schema in a few words: ``string``, ``one of quick, standard``, ``list of string``."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(document, option) for option in schema["anyOf"]))
    if "$ref" in schema:
        resolved = _resolved(document, schema)
        return _type(document, resolved) if "enum" in resolved else str(schema["$ref"]).rsplit("/", 1)[-1]
    if "enum" in schema:
        return "one of " + ", ".join(str(value) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(document, schema.get('items', {}))}"
    return str(schema.get("type", "any"))
