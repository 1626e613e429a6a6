"""`tierkeeper size`: bytes of a token, what fits where, and when loading pays; from a config.json or a server."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from app.clock import system_clock
from app.commands.files import MOST_CONFIG, read_named
from app.errors import InvalidInput
from app.lmcache.client import LMCacheClient
from app.printable import say
from app.sizing.schemas import SizingInput, SizingView
from app.sizing.service import SizingService
from app.wording import json_trouble, location, sentence

GIB = 2**30
_MOST_GIB = 2**30  # an EiB


@dataclass(frozen=True)
class SizeOptions:
    """What the command was given. Sizes in GiB, retention in seconds; `config` is a file, ``-`` is stdin."""

    config: str | None = None
    server: str | None = None
    model: str | None = None
    engine: str | None = None
    bytes_per_token: int | None = None
    kv_cache_dtype: str = "auto"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    chunk_size: int | None = None
    l0_gib: float | None = None
    l0_tokens: int | None = None
    l1_gib: float | None = None
    l2_gib: float | None = None
    contexts: int | None = None
    tokens: int | None = None
    unordered: bool = False
    retention_seconds: float | None = None
    tokens_per_second: float | None = None
    prefill: float | None = None
    as_json: bool = False


def size_command(options: SizeOptions) -> int:
    """Prints the sizing; returns the exit status 0. Raises InvalidInput naming the option, TargetError (exit 3)."""
    body = _body(options)
    if options.server is None and options.engine is None:
        view = SizingService(clock=system_clock).size(body)
    elif options.server is not None and "://" in options.server:
        view = _of_address(options, body)
    else:
        view = _of_names(options, body)
    if options.as_json:
        print(json.dumps(view.model_dump(mode="json"), indent=2 if sys.stdout.isatty() else None))
    else:
        _print(view)
    return 0


def _body(options: SizeOptions) -> SizingInput:
    if (options.contexts is None) != (options.tokens is None):
        raise InvalidInput.field("--contexts", "goes with --tokens: so many contexts of so many tokens each")
    _unused(options)
    model: dict[str, Any] = {
        "kv_cache_dtype": options.kv_cache_dtype,
        "tensor_parallel": options.tensor_parallel,
        "pipeline_parallel": options.pipeline_parallel,
    }
    if options.config is not None:
        model["config"] = _config(options.config)
    elif options.bytes_per_token is not None:
        model["bytes_per_token"] = options.bytes_per_token
    elif options.server is not None or options.engine is not None:
        model["server_id"], model["model_name"] = "0", options.model
    else:
        raise InvalidInput.field("--config", "give --config FILE, --server, or --bytes-per-token")
    tiers = {
        "l0_bytes": _gib("--l0-gib", options.l0_gib),
        "l0_tokens": options.l0_tokens,
        "l1_bytes": _gib("--l1-gib", options.l1_gib),
        "l2_bytes": _gib("--l2-gib", options.l2_gib),
    }
    body: dict[str, Any] = {
        "model": model,
        "chunk_size": options.chunk_size,
        "tiers": {name: value for name, value in tiers.items() if value is not None},
        "speed": {} if options.prefill is None else {"prefill_tokens_per_second": options.prefill},
    }
    if options.contexts is not None:
        order = "unordered" if options.unordered else "cyclic"
        body["working_set"] = {"contexts": options.contexts, "tokens": options.tokens, "order": order}
    if options.retention_seconds is not None:
        body["retention"] = {
            "seconds": options.retention_seconds,
            "tokens_per_second": options.tokens_per_second,
        }
    try:
        return SizingInput.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput.field(".".join(str(part) for part in location(first)), sentence(first)) from None


def _unused(options: SizeOptions) -> None:
    """Refuses what would be given and not looked at."""
    source = "--config" if options.config is not None else "--server" if options.server is not None else None
    if options.bytes_per_token is not None and source is not None:
        text = f"{options.bytes_per_token} is not used beside {source}, which tells it; give one of them"
        raise InvalidInput.field("--bytes-per-token", text)
    if options.tokens_per_second is not None and options.retention_seconds is None:
        text = f"{options.tokens_per_second:g} goes with --retention-days: it says how much is kept so long"
        raise InvalidInput.field("--tokens-per-second", text)
    if options.unordered and options.contexts is None:
        raise InvalidInput.field("--unordered", "goes with --contexts and --tokens, whose order it tells")


def _of_address(options: SizeOptions, body: SizingInput) -> SizingView:
    """A server by its plain address: no database."""
    import asyncio

    from app.fleet.addresses import parse_address
    from app.lmcache.client import poll_server
    from app.sizing import advice
    from app.sizing.measured import measured_of
    from app.sizing.service import layout_view, model_view

    address = parse_address(options.server or "", field="--server").url

    async def read() -> Any:
        async with LMCacheClient(address) as client:
            return await poll_server(client)

    reading = asyncio.run(read())
    model = model_view(body.model) if body.model.config is not None else layout_view(body.model, reading)
    return advice.view(body, model, measured_of(reading, None, model, system_clock()))


def _of_names(options: SizeOptions, body: SizingInput) -> SizingView:
    """Registered targets by name or id."""
    from app.commands.context import command_services

    with command_services() as services:
        fleet = services.fleet
        engine_id = None if options.engine is None else str(fleet.find("engine", options.engine))
        server_id = None if options.server is None else str(fleet.find("server", options.server))
        if server_id is None and engine_id is not None:
            linked = fleet.engine_target(int(engine_id)).server_id
            server_id = None if linked is None else str(linked)
        update: dict[str, Any] = {"engine_id": engine_id}
        if body.model.server_id is not None:
            if server_id is None:
                raise InvalidInput.field(
                    "--server", f"the engine {options.engine!r} belongs to no server; give --server"
                )
            update["model"] = body.model.model_copy(update={"server_id": server_id})
        return SizingService(clock=system_clock, fleet=fleet).size(body.model_copy(update=update))


def _config(path: str) -> Any:
    text = read_named(path, "--config", most=MOST_CONFIG)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput.field("--config", f"{path} {json_trouble(error)}") from None


def _gib(option: str, value: float | None) -> int | None:
    if value is None:
        return None
    if not 0 <= value <= _MOST_GIB:
        raise InvalidInput.field(option, f"{value:g} is not between 0 and {_MOST_GIB:,} GiB")
    return int(value * GIB)


def _print(view: SizingView) -> None:
    model = view.model
    say(f"{model.name or 'model'} ({model.source})")
    say(f"  {model.bytes_per_token:,} bytes a token, {model.rank_bytes_per_token:,} on one rank")
    if model.state_bytes_per_request:
        say(f"  {model.state_bytes_per_request:,} bytes of state a request; N = {model.block_tokens} tokens")
    for note in model.notes:
        say(f"  note: {note}")
    for tier in view.tiers:
        say(f"{tier.tier}: {tier.tokens:,} tokens; {tier.sentence}")
    say(f"chunk size: {view.chunk.suggested} ({view.chunk.why})")
    if view.chunk.given_fits is False:
        say(f"  the present one, {view.chunk.given}, does not fit the block size")
    if view.l1 is not None:
        size = "none" if view.l1.suggested_bytes is None else f"{view.l1.suggested_bytes / GIB:.2f} GiB"
        say(f"L1: {size} ({view.l1.why})")
    if view.disk is not None:
        size = (
            "not known"
            if view.disk.bytes is None
            else f"{view.disk.bytes / 1e9:,.1f} GB in {view.disk.records:,} files"
        )
        say(f"disk: {size} ({view.disk.why})")
    for item in view.break_even:
        say(f"{item.path} ({item.bytes_per_second / 1e9:.2f} GB/s, {item.origin}): {item.sentence}")
    for missing in view.missing:
        say(f"missing: {missing}")
