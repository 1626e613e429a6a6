"""Reading of TARGETS_FILE, whose format `app.fleet.targets_file` tells: bounded YAML, checked whole, the line of each
field kept, so that every error names the file, the line and the field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from app.errors import FieldError, InvalidInput, TierkeeperError
from app.fleet.schemas import CaText, Headers, Labels, Name, PathText, Secret, Url
from app.shapes import InputModel
from app.wording import location

MAX_BYTES = 2**20
_MAX_DEPTH = 20


class Reached(InputModel):
    """How a server or engine is reached."""

    name: Name
    url: Url
    api_key: Secret | None = None
    api_key_env: Name | None = None
    headers: Headers | None = None
    tls_verify: bool | None = None
    tls_ca: CaText | None = None
    labels: Labels | None = None


class DeclaredServer(Reached):
    """One entry of `servers:`."""


class DeclaredEngine(Reached):
    """One entry of `engines:`."""

    server: Name | None = None


class DeclaredStore(InputModel):
    """One entry of `stores:`."""

    name: Name
    path: PathText
    servers: list[Name] | None = None
    server_path: PathText | None = None
    temp_dir: PathText | None = None
    labels: Labels | None = None
    confirm: bool = False


class Declared(InputModel):
    """The whole file."""

    servers: list[DeclaredServer] = Field(default_factory=list)
    engines: list[DeclaredEngine] = Field(default_factory=list)
    stores: list[DeclaredStore] = Field(default_factory=list)
    policies: list[dict[str, Any]] = Field(default_factory=list)


def read(path: Path) -> tuple[Declared, Mapping[str, int]]:
    """The declarations, and the line of every field (``servers[0].url`` → 3). Raises InvalidInput."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidInput.field("TARGETS_FILE", f"{path} is larger than {MAX_BYTES} bytes")
        text = path.read_text("utf-8")
    except OSError as error:
        raise InvalidInput.field("TARGETS_FILE", f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput.field("TARGETS_FILE", f"{path} is not UTF-8 text") from error
    lines: dict[str, int] = {}
    values = _parse(path, text, lines)
    if values is None:
        return Declared(), lines
    if not isinstance(values, dict):
        raise InvalidInput.field("TARGETS_FILE", f"{path} must hold servers:, engines:, stores: or policies:")
    values = {key: item for key, item in values.items() if item is not None}
    try:
        declared = Declared.model_validate(values)
    except ValidationError as error:
        found = [_schema_error(path, lines, problem) for problem in error.errors()]
        raise InvalidInput("; ".join(f"{e.field}: {e.message}" for e in found), errors=tuple(found)) from None
    _refuse_doubles(path, lines, declared)
    return declared, lines


class Located:
    """Gives the errors raised inside the file, the line and the field they are about."""

    def __init__(self, path: Path, lines: Mapping[str, int], where: str) -> None:
        self._path = path
        self._lines = lines
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, TierkeeperError):
            return
        fields = error.errors or (FieldError("", error.detail),)
        located = tuple(
            _located(self._path, self._lines, f"{self._where}.{f.field}" if f.field else self._where, f.message)
            for f in fields
        )
        raise type(error)("; ".join(f"{f.field}: {f.message}" for f in located), errors=located) from error


def _located(path: Path, lines: Mapping[str, int], where: str, message: str) -> FieldError:
    known = where
    while known not in lines and ("." in known or "[" in known):
        known = known[: max(known.rfind("."), known.rfind("["))]
    line = lines.get(known)
    return FieldError(f"{path.name}{f' line {line}' if line else ''}, {where}", message)


def _schema_error(path: Path, lines: Mapping[str, int], problem: Any) -> FieldError:
    where = ""
    for part in location(problem):
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else str(part)
    message = {
        "missing": "is missing",
        "extra_forbidden": "is not a field of this section",
    }.get(problem["type"], problem["msg"])
    return _located(path, lines, where, message)


def _refuse_doubles(path: Path, lines: Mapping[str, int], declared: Declared) -> None:
    for section in ("servers", "engines", "stores"):
        seen: dict[str, int] = {}
        for index, entry in enumerate(getattr(declared, section)):
            first = seen.setdefault(entry.name.casefold(), index)
            if first != index:
                error = _located(
                    path,
                    lines,
                    f"{section}[{index}].name",
                    f"{entry.name!r} is declared twice (first in line {lines.get(f'{section}[{first}]', '?')})",
                )
                raise InvalidInput(f"{error.field}: {error.message}", errors=(error,))


def _parse(path: Path, text: str, lines: dict[str, int]) -> object:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else _value(loader, node, "", lines, 0)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise InvalidInput.field("TARGETS_FILE", f"{path.name}{where}: not YAML: {problem}") from error
    finally:
        loader.dispose()


def _value(loader: yaml.SafeLoader, node: yaml.Node, where: str, lines: dict[str, int], depth: int) -> object:
    """The plain value of a node, noting the line of each. Nesting is bounded (anchors can refer to themselves)."""
    line = node.start_mark.line + 1
    lines[where] = line
    if depth > _MAX_DEPTH:
        raise yaml.constructor.ConstructorError(None, None, "it nests too deeply", node.start_mark)
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is no name", key_node.start_mark)
            if key in result:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands here twice", key_node.start_mark)
            result[key] = _value(loader, value_node, f"{where}.{key}" if where else key, lines, depth + 1)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, item, f"{where}[{n}]", lines, depth + 1) for n, item in enumerate(node.value)]
    value: object = loader.construct_object(node)
    return value
