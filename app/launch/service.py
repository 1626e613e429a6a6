"""Launch commands for routes, pages and the command. Reads a registered pair where one is named; runs nothing.

Every generated set is judged by the checks room through a port, so that the two rooms stay apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.errors import InvalidInput
from app.fleet.clients import engine_client, server_client
from app.fleet.service import FleetService
from app.launch import words
from app.launch.pair import filled, registered_fingerprint
from app.launch.plan import Place, make_plan
from app.launch.render import SERVER_NAME, Plans, files
from app.launch.schemas import LaunchCheckView, LaunchInput, LaunchView
from app.lmcache.client import ServerReading, poll_server
from app.paging import parse_id
from app.vllm.client import EngineReading, poll_engine

#: Verdicts on a text that holds commands or a compose file: objects with the fields of `LaunchCheckView`.
Checker = Callable[[str], Sequence[Any]]
#: What starts scenario B, form by form.
_SETS = (
    ("server.sh", "engine.sh"),
    ("docker-start.sh",),
    ("compose.yaml",),
    ("lmcache-server.service", "vllm.service"),
)


class LaunchService:
    """Launch commands. `check` judges what was generated; `fleet` None: no registered pair is known."""

    def __init__(self, *, check: Checker, fleet: FleetService | None = None) -> None:
        self._check = check
        self._fleet = fleet

    def generate(self, body: LaunchInput) -> LaunchView:
        """Both scenarios in every form. Raises InvalidInput naming the field, NotFound for ids."""
        server, engine = self._read(body)
        body, taken = filled(body, server, engine)
        registered = registered_fingerprint(body, server)
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
            checks=self._verdicts(texts),
            notes=[*taken, *host.notes],
        )

    def _verdicts(self, texts: Mapping[str, str]) -> list[LaunchCheckView]:
        """Verdicts on scenario B in every form it is written in, each finding once."""
        found: dict[tuple[str, str, str], LaunchCheckView] = {}
        for names in _SETS:
            for item in self._check("\n".join(texts[name] for name in names)):
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
                async with server_client(server) as client:
                    first = await poll_server(client)
            if engine is not None:
                async with engine_client(engine) as other:
                    second = await poll_engine(other)
            return first, second

        return asyncio.run(read())


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
