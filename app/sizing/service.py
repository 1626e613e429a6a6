"""Sizing for routes, pages and the command: gathers what was measured, then computes. Nothing is stored.

Network calls happen here only, never in a session; without ids nothing is asked and everything comes from the input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from app.clock import Clock
from app.errors import InvalidInput, TargetError
from app.fleet.clients import engine_client, server_client
from app.fleet.service import FleetService
from app.fleet.targets import EngineTarget
from app.lmcache.client import ServerReading, poll_server
from app.lmcache.layouts import KVLayout, common_multiple
from app.paging import parse_id
from app.sizing import advice, prefix
from app.sizing.kv_bytes import Parallel, kv_bytes
from app.sizing.measured import measured_of
from app.sizing.model_shape import read_config
from app.sizing.schemas import (
    ModelInput,
    ModelView,
    PartView,
    PrefixInput,
    PrefixView,
    PromptInput,
    SegmentView,
    SizingInput,
    SizingView,
)
from app.vllm.client import EngineReading, VLLMClient, poll_engine

_SHOWN_TOKENS = 60


@dataclass(frozen=True)
class _Readings:
    server: ServerReading | None = None
    engine: EngineReading | None = None


class SizingService:
    """Sizing. `fleet` None: only what needs no registered target (the command with a pasted configuration)."""

    def __init__(self, *, clock: Clock, fleet: FleetService | None = None) -> None:
        self._clock = clock
        self._fleet = fleet

    def size(self, body: SizingInput) -> SizingView:
        """Raises InvalidInput naming the field, NotFound for ids, TargetError where a layout cannot be read."""
        readings = self._read(body)
        model = self._model(body.model, readings.server)
        measured = measured_of(readings.server, readings.engine, model, self._clock())
        return advice.view(body, model, measured)

    def compare_prompts(self, body: PrefixInput) -> PrefixView:
        """Where two prompts part. Texts are tokenized by the engine. Raises InvalidInput and TargetError."""
        engine = self._engine_target(body.engine_id)
        needs_engine = any(item.text is not None for item in (body.first, body.second))
        if needs_engine and engine is None:
            raise InvalidInput.field("engine_id", "is needed to tokenize texts; or give token_ids")
        for name, item in (("first", body.first), ("second", body.second)):
            if (item.text is None) == (item.token_ids is None):
                raise InvalidInput.field(name, "needs either text or token_ids")
            if any(token < 0 or token >= 2**31 for token in item.token_ids or ()):
                raise InvalidInput.field(f"{name}.token_ids", "holds a number that is no token id")
        chunk, origin = self._chunk_of(body, engine)
        return asyncio.run(_compare(body, engine, chunk, origin))

    # inside

    def _read(self, body: SizingInput) -> _Readings:
        server_id, engine_id = body.model.server_id, body.engine_id
        if server_id is None and engine_id is None:
            return _Readings()
        fleet = self._known_fleet()
        engine = fleet.engine_target(parse_id("engine", engine_id)) if engine_id is not None else None
        ident = parse_id("server", server_id) if server_id is not None else engine.server_id if engine else None
        server = fleet.server_target(ident) if ident is not None else None

        async def read() -> _Readings:
            server_reading = engine_reading = None
            if server is not None:
                async with server_client(server) as client:
                    server_reading = await poll_server(client)
            if engine is not None:
                async with engine_client(engine) as other:
                    engine_reading = await poll_engine(other)
            return _Readings(server_reading, engine_reading)

        return asyncio.run(read())

    def _model(self, given: ModelInput, server: ServerReading | None) -> ModelView:
        sources = [given.config is not None, given.bytes_per_token is not None, given.server_id is not None]
        if sum(sources) != 1:
            raise InvalidInput.field("model", "give exactly one of config, bytes_per_token and server_id")
        if given.config is not None:
            return model_view(given)
        if given.bytes_per_token is not None:
            return _plain_view(given)
        return layout_view(given, server)

    def _chunk_of(self, body: PrefixInput, engine: EngineTarget | None) -> tuple[int, str]:
        if body.chunk_size is not None:
            return body.chunk_size, "as given"
        if engine is not None and engine.server_id is not None:
            server = self._known_fleet().server_target(engine.server_id)

            async def read() -> int | None:
                async with server_client(server) as client:
                    return (await client.status()).chunk_size

            try:
                chunk = asyncio.run(read())
            except TargetError:
                chunk = None
            if chunk:
                return chunk, f"of the cache server {server.name}"
        return 256, "the default of LMCache; the server's own is not known"

    def _engine_target(self, engine_id: str | None) -> EngineTarget | None:
        return None if engine_id is None else self._known_fleet().engine_target(parse_id("engine", engine_id))

    def _known_fleet(self) -> FleetService:
        if self._fleet is None:
            raise InvalidInput.field("server_id", "registered targets are not known here; paste the configuration")
        return self._fleet


def model_view(given: ModelInput) -> ModelView:
    """From a pasted ``config.json``. Raises InvalidInput naming ``model.…``."""
    shape = read_config(given.config or {}, field="model.config")
    try:
        sizes = kv_bytes(
            shape,
            Parallel(given.tensor_parallel, given.pipeline_parallel),
            kv_cache_dtype=given.kv_cache_dtype,
        )
    except InvalidInput as error:
        found = error.errors[0]
        raise InvalidInput.field(f"model.{found.field}", found.message) from None
    notes = list(shape.notes)
    if shape.hybrid:
        notes.append(
            f"hybrid: the chunk size must be a multiple of N = {sizes.block_tokens}, as vLLM computes it for kernel "
            "blocks of 16 tokens; its start-up log has the last word"
        )
    if any(part.kind == "sliding" for part in sizes.parts):
        notes.append(
            "sliding windows: the engine keeps only the window of each request (every token where its hybrid KV cache "
            "manager is off), L1 and L2 keep every token"
        )
    return ModelView(
        name=shape.name,
        source="config.json",
        bytes_per_token=sizes.stored_token_bytes,
        rank_bytes_per_token=sizes.rank_token_bytes,
        records_per_chunk=sizes.record_ranks,
        state_bytes_per_request=sizes.state_bytes,
        block_tokens=sizes.block_tokens,
        max_tokens=shape.max_tokens,
        parts=[
            PartView(
                kind=part.kind,
                layers=part.layers,
                bytes_per_token=part.token_bytes,
                window_tokens=part.window,
                state_bytes=part.state_bytes,
            )
            for part in sizes.parts
        ],
        notes=notes,
    )


def _plain_view(given: ModelInput) -> ModelView:
    each = given.bytes_per_token or 0
    ranks = given.tensor_parallel * given.pipeline_parallel
    return ModelView(
        name=given.model_name or "",
        source="bytes per token as given",
        bytes_per_token=each,
        rank_bytes_per_token=max(1, each // given.tensor_parallel),
        records_per_chunk=ranks,
        state_bytes_per_request=0,
        block_tokens=None,
        max_tokens=None,
        parts=[],
        notes=[],
    )


def layout_view(given: ModelInput, server: ServerReading | None) -> ModelView:
    """From a layout registered at a server. Raises TargetError, or InvalidInput naming ``model.…``."""
    layouts = list(server.layouts().values()) if server is not None else []
    if server is not None and not server.http_up:
        raise TargetError("refused", f"the cache server does not answer: {server.status_reason or 'no answer'}")
    wanted = [item for item in layouts if given.model_name in (None, item.model_name)]
    names = sorted({item.model_name for item in wanted})
    if not wanted:
        known = ", ".join(sorted({item.model_name for item in layouts})) or "none"
        raise InvalidInput.field(
            "model.model_name", f"no such layout is registered at the server (registered: {known})"
        )
    if len(names) > 1:
        raise InvalidInput.field("model.model_name", f"is needed, several are registered: {', '.join(names)}")
    layout = wanted[-1]
    if not layout.bytes_per_token:
        raise InvalidInput.field(
            "model.server_id", f"the layout of {layout.model_name} does not tell its bytes per token"
        )
    # a latent cache is the same on every rank, and one copy of it is stored
    latent = bool(layout.groups) and all(group.is_mla for group in layout.groups)
    pieces = 1 if latent else layout.world_size
    return ModelView(
        name=layout.model_name,
        source="layout registered at the server (/status)",
        bytes_per_token=layout.bytes_per_token * pieces,
        rank_bytes_per_token=layout.bytes_per_token,
        records_per_chunk=pieces * max(1, len(layout.groups)),
        state_bytes_per_request=0,
        block_tokens=_block(layout),
        max_tokens=None,
        parts=[],
        notes=[f"dtype {layout.dtype or 'not told'}, fingerprint {layout.fingerprint}"],
    )


def _block(layout: KVLayout) -> int | None:
    """N: of several groups the least common multiple, of which a chunk must be a multiple."""
    return common_multiple(group.tokens_per_block for group in layout.groups) or layout.tokens_per_block


async def _compare(body: PrefixInput, engine: EngineTarget | None, chunk: int, origin: str) -> PrefixView:
    if engine is None:
        first, second = body.first.token_ids or [], body.second.token_ids or []
        return _prefix_view(prefix.compare(first, second, chunk), origin, None)
    async with engine_client(engine, read_timeout=30.0) as client:
        first = await _tokens(client, body.first)
        second = await _tokens(client, body.second)
        report = prefix.compare(first, second, chunk)
        texts: list[tuple[str | None, str | None]] = []
        for segment in report.segments:
            one = await _text(client, first[segment.first[0] : segment.first[1]][:_SHOWN_TOKENS])
            other = await _text(client, second[segment.second[0] : segment.second[1]][:_SHOWN_TOKENS])
            texts.append((one, other))
    return _prefix_view(report, origin, texts)


async def _tokens(client: VLLMClient, given: PromptInput) -> list[int]:
    if given.text is not None:
        return list((await client.tokenize(given.text)).ids)
    return list(given.token_ids or [])


async def _text(client: VLLMClient, ids: Sequence[int]) -> str | None:
    """The text of tokens, None where the engine does not say."""
    if not ids:
        return ""
    try:
        return await client.detokenize(ids)
    except TargetError:
        return None


def _prefix_view(
    report: prefix.PrefixReport, origin: str, texts: list[tuple[str | None, str | None]] | None
) -> PrefixView:
    return PrefixView(
        first_tokens=report.first_tokens,
        second_tokens=report.second_tokens,
        chunk_size=report.chunk_size,
        chunk_size_origin=origin,
        common_tokens=report.common_tokens,
        common_chunks=report.common_chunks,
        reusable_tokens=report.reusable_tokens,
        reusable_share=report.reusable_share,
        differs_at=report.differs_at,
        segments=[
            SegmentView(
                first_start=segment.first[0],
                first_end=segment.first[1],
                second_start=segment.second[0],
                second_end=segment.second[1],
                equal_after=segment.equal_after,
                first_text=texts[place][0] if texts is not None else None,
                second_text=texts[place][1] if texts is not None else None,
            )
            for place, segment in enumerate(report.segments)
        ],
        gain_tokens=report.gain_tokens,
        sentence=report.sentence,
    )
