"""Launch commands for routes, pages and the command. Reads a registered pair where one is named; runs nothing.

Every generated set is judged by the checks room through a port, so that the two rooms stay apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from app.errors import InvalidInput
from app.fleet.service import FleetService
from app.launch import words
from app.launch.plan import Place, Plan, make_plan
from app.launch.render import SERVER_NAME, Plans, files
from app.launch.schemas import LaunchCheckView, LaunchInput, LaunchView
from app.lmcache.client import LMCacheClient, ServerReading, poll_server
from app.lmcache.layouts import KVLayout
from app.paging import parse_id
from app.vllm.client import EngineReading, VLLMClient, poll_engine

#: Verdicts on a text that holds commands or a compose file: objects with the fields of `LaunchCheckView`.
Checker = Callable[[str], Sequence[Any]]


class LaunchService:
    """Launch commands. `check` judges what was generated; `fleet` None: no registered pair is known."""

    def __init__(self, *, check: Checker, fleet: FleetService | None = None) -> None:
        self._check = check
        self._fleet = fleet

    def generate(self, body: LaunchInput) -> LaunchView:
        """Both scenarios in every form. Raises InvalidInput naming the field, NotFound for ids."""
        server, engine = self._read(body)
        body, taken = filled(body, server, engine)
        registered = _registered(body, server)
        host = make_plan(body, registered=registered)
        container = make_plan(body, registered=registered, place=_container_place(body))
        _check_images(body)
        written = files(body, Plans(host, container))
        texts = {item.name: item.text for item in written}
        return LaunchView(
            server_argv=["lmcache", *host.server],
            engine_argv_a=["vllm", *host.engine_a],
            engine_argv_b=["vllm", *host.engine_b],
            difference=list(host.connector),
            server_environment=host.server_environment,
            engine_environment=host.engine_environment,
            base_path=host.base_path,
            fingerprint=host.fingerprint,
            fingerprint_of=host.fingerprint_of,
            files=written,
            checks=self._verdicts(host, texts["compose.yaml"]),
            notes=[*taken, *host.notes],
        )

    def _verdicts(self, plan: Plan, compose: str) -> list[LaunchCheckView]:
        """Verdicts on the shell commands of scenario B and on the compose file, each finding once."""
        shell = "\n".join(
            words.shell_line([*(f"{name}={value}" for name, value in environment.items()), *argv])
            for environment, argv in (
                (plan.server_environment, ["lmcache", *plan.server]),
                (plan.engine_environment, ["vllm", *plan.engine_b]),
            )
        )
        found: dict[tuple[str, str, str], LaunchCheckView] = {}
        for text in (shell, compose):
            for item in self._check(text):
                view = LaunchCheckView.model_validate(item, from_attributes=True)
                found.setdefault((view.id, view.verdict, view.evidence), view)
        order = ("fail", "warn", "unknown", "ok")
        return sorted(found.values(), key=lambda view: order.index(view.verdict))

    def _read(self, body: LaunchInput) -> tuple[ServerReading | None, EngineReading | None]:
        if body.server_id is None and body.engine_id is None:
            return None, None
        if self._fleet is None:
            raise InvalidInput.field("server_id", "registered targets are not known here")
        engine = self._fleet.engine_target(parse_id("engine", body.engine_id)) if body.engine_id is not None else None
        ident = (
            parse_id("server", body.server_id) if body.server_id is not None else engine.server_id if engine else None
        )
        server = self._fleet.server_target(ident) if ident is not None else None

        async def read() -> tuple[ServerReading | None, EngineReading | None]:
            first = second = None
            if server is not None:
                async with LMCacheClient(server.url, api_key=server.api_key, headers=server.headers) as client:
                    first = await poll_server(client)
            if engine is not None:
                async with VLLMClient(engine.url, api_key=engine.api_key, headers=engine.headers) as other:
                    second = await poll_engine(other)
            return first, second

        return asyncio.run(read())


def filled(
    body: LaunchInput, server: ServerReading | None, engine: EngineReading | None
) -> tuple[LaunchInput, list[str]]:
    """The form with what runs at the registered pair in the places that were left open, and sentences about it."""
    notes: list[str] = []
    server_changes: dict[str, Any] = {}
    engine_changes: dict[str, Any] = {}
    config = server.config if server is not None else None
    if config is not None:
        _take(server_changes, notes, "server", body.server.model_fields_set, {
            "chunk_size": config.chunk_size,
            "transfer_mode": config.supported_transfer_mode,
            "watermark": config.trigger_watermark,
            "workers": config.max_workers,
            "port": config.message_port,
            "http_port": config.http_port,
        })  # fmt: skip
    facts = engine.facts if engine is not None else None
    if facts is not None:
        dtype = facts.dtype
        _take(engine_changes, notes, "engine", body.engine.model_fields_set, {
            "dtype": dtype,
            "kv_cache_dtype": facts.kv_cache_dtype,
            "max_model_len": facts.max_model_len,
            "max_num_seqs": facts.max_num_seqs,
            "block_size": facts.block_size,
            "tensor_parallel": facts.tensor_parallel_size,
            "served_model_name": facts.served_model_name,
        })  # fmt: skip
    update = {
        "server": body.server.model_copy(update=server_changes),
        "engine": body.engine.model_copy(update=engine_changes),
    }
    return body.model_copy(update=update), notes


def _take(changes: dict[str, Any], notes: list[str], side: str, given: set[str], values: dict[str, Any]) -> None:
    for name, value in values.items():
        if value is not None and name not in given:
            changes[name] = value
            notes.append(f"{side}.{name} = {value} as it runs now")


def _registered(body: LaunchInput, server: ServerReading | None) -> str | None:
    """The fingerprint of the live layout of this model, where these commands would keep it."""
    if server is None:
        return None
    found: list[KVLayout] = [layout for layout in server.layouts().values() if layout.model_name == body.engine.model]
    if len({layout.fingerprint for layout in found}) != 1:
        return None
    layout = found[0]
    same_chunk = body.server.chunk_size in (None, layout.chunk_size)
    same_dtype = body.engine.dtype in ("auto", layout.dtype)
    return layout.fingerprint if same_chunk and same_dtype else None


def _container_place(body: LaunchInput) -> Place | None:
    """In a network of their own the containers bind all interfaces of it and call each other by name."""
    if not body.images.isolated:
        return None
    everywhere = "0.0.0.0"  # noqa: S104
    return Place(server_host=everywhere, http_host=everywhere, connect_host=SERVER_NAME)


def _check_images(body: LaunchInput) -> None:
    images = body.images
    words.image("images.server", images.server)
    words.image("images.engine", images.engine)
    for name, value in (("server_program", images.server_program), ("engine_program", images.engine_program)):
        if "/" in value:
            words.path(f"images.{name}", value)
        else:
            words.name(f"images.{name}", value)
