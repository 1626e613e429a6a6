"""The HTTP front of an engine: thin, but for the time that answers take and the ways in which streams break."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from app.sandbox import engine_views
from app.sandbox.engine import Engine, EngineHangs
from app.sandbox.misbehaviour import ASGIApp, KeptPage, Message, Receive, Send, until_disconnect
from app.sandbox.openai_answers import Head, answer, stream_events
from app.sandbox.openai_requests import ApiError, Ask, parse, tokenize
from app.sandbox.sampling import Generation
from app.sandbox.tokenizer import decode
from app.sandbox.world import World

_UNCOUNTED = ("/health", "/metrics", "/load", "/ping", "/version", "/server_info")


def create_engine_app(world: World, engine: Engine) -> ASGIApp:
    """The application of one engine."""
    front = _Front(world, engine)
    routes = [
        Route("/health", front.health, methods=["GET"]),
        Route("/ping", front.health, methods=["GET", "POST"]),
        Route("/version", front.version, methods=["GET"]),
        Route("/load", front.load, methods=["GET"]),
        Route("/metrics", front.metrics, methods=["GET"]),
        Route("/v1/models", front.models, methods=["GET"]),
        Route("/tokenize", front.tokenize, methods=["POST"]),
        Route("/detokenize", front.detokenize, methods=["POST"]),
        Route("/v1/completions", front.completions, methods=["POST"]),
        Route("/v1/chat/completions", front.chat, methods=["POST"]),
        Route("/server_info", front.server_info, methods=["GET"]),
        Route("/reset_prefix_cache", front.reset, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _not_found, 405: _not_found, ApiError: _api_error})
    return _Counting(app, world, engine)


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return JSONResponse({"detail": getattr(error, "detail", "Not Found")}, status)


async def _api_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return JSONResponse(error.body, error.status)


async def _body(request: Request) -> Any:
    if "json" not in request.headers.get("content-type", ""):
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise ApiError(message, type="Bad Request")
    try:
        return json.loads(await request.body())
    except ValueError:
        message = "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.1', 'msg': 'JSON decode error'}"
        raise ApiError(message, "body.1", type="Bad Request") from None


class _Front:
    def __init__(self, world: World, engine: Engine) -> None:
        self._world = world
        self._engine = engine
        self._seats: asyncio.Semaphore | None = None
        self._page = KeptPage(engine.faults)

    # --- probes and operator's calls ---

    async def health(self, request: Request) -> Response:
        return Response()

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": self._engine.spec.version})

    async def load(self, request: Request) -> Response:
        return JSONResponse({"server_load": self._engine.running + self._engine.waiting})

    def metrics(self, request: Request) -> Response:
        if self._engine.faults.metrics_missing:
            return JSONResponse({"detail": "Not Found"}, 404)
        with self._world.lock:
            text = self._page.text(lambda: engine_views.metrics_text(self._engine, self._world.now()))
        return PlainTextResponse(text, media_type="text/plain; version=1.0.0")

    def models(self, request: Request) -> Response:
        with self._world.lock:
            return JSONResponse(engine_views.models(self._engine, self._world.now()))

    def server_info(self, request: Request) -> Response:
        if not self._engine.spec.dev_mode:
            return JSONResponse({"detail": "Not Found"}, 404)
        return JSONResponse(engine_views.server_info(self._engine))

    def reset(self, request: Request) -> Response:
        if not self._engine.spec.dev_mode:
            return JSONResponse({"detail": "Not Found"}, 404)
        value = request.query_params.get("reset_external", "false").lower()
        if value not in {"true", "1", "false", "0"}:
            raise ApiError("1 validation error:\n  reset_external: bool_parsing", "query.reset_external")
        with self._world.lock:
            now = self._world.now()
            done = self._engine.reset_prefix_cache(external=value in {"true", "1"}, now=now)
        if self._engine.spec.reset_answers == "empty":
            return Response()
        return JSONResponse({"success": done})

    async def tokenize(self, request: Request) -> Response:
        return JSONResponse(tokenize(await _body(request), self._engine.spec))

    async def detokenize(self, request: Request) -> Response:
        body = await _body(request)
        tokens = body.get("tokens") if isinstance(body, dict) else None
        if not isinstance(tokens, list) or not all(isinstance(t, int) and 0 <= t < 512 for t in tokens):
            raise ApiError.invalid("list_type", "tokens", "Input should be a valid list", tokens)
        return JSONResponse({"prompt": decode(tokens)})

    # --- answers ---

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, chat=False)

    async def chat(self, request: Request) -> Response:
        return await self._answer(request, chat=True)

    async def _answer(self, request: Request, *, chat: bool) -> Response:
        engine = self._engine
        ask = parse(await _body(request), engine.spec, chat=chat)
        prefix = "chatcmpl-" if chat else "cmpl-"
        fingerprint = f"vllm-{engine.spec.version}-{engine.fingerprint}"
        head = Head(prefix + self._world.new_id(64), int(self._world.now()), fingerprint)
        if ask.stream:
            return StreamingResponse(self._stream(ask, head), media_type="text/event-stream")
        try:
            async with _Seat(self, ask):
                results = await self._generate(ask)
                await _pause(sum(r.prefill_seconds + r.decode_seconds for r in results))
        except EngineHangs:
            await until_disconnect(request.receive)
            return Response(status_code=499)
        return JSONResponse(answer(ask, head, engine.spec, results))

    async def _generate(self, ask: Ask) -> list[Generation]:
        def run() -> list[Generation]:
            with self._world.lock:
                now = self._world.now()
                return [self._engine.generate(prompt, ask.sampling, now) for prompt in ask.prompts]

        return await asyncio.to_thread(run)

    async def _stream(self, ask: Ask, head: Head) -> AsyncIterator[bytes]:
        engine, faults = self._engine, self._engine.faults
        async with _Seat(self, ask):
            try:
                results = await self._generate(ask)
            except EngineHangs:
                await asyncio.Event().wait()
                return
            await _pause(sum(result.prefill_seconds for result in results))
            for number, event in stream_events(ask, head, engine.spec, results):
                if number > 1:
                    await _pause(engine.latency.decode_per_token)
                if number and faults.stream_stops_after is not None and number > faults.stream_stops_after:
                    await asyncio.Event().wait()
                if number and faults.stream_cut_after is not None and number > faults.stream_cut_after:
                    raise ConnectionAbortedError("cut on purpose")
                if number and faults.stream_loses_after is not None and number > faults.stream_loses_after:
                    continue
                yield b"data: " + json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
            yield b"data: [DONE]\n\n"

    # --- seats ---

    def seats(self) -> asyncio.Semaphore:
        """As many requests run at once as the engine has sequences; others wait."""
        if self._seats is None:
            self._seats = asyncio.Semaphore(self._engine.spec.max_num_seqs)
        return self._seats


class _Seat:
    """One request's time in the engine: waiting, then running and holding blocks."""

    def __init__(self, front: _Front, ask: Ask) -> None:
        self._front = front
        size = front._engine.spec.layout.block_size
        self._blocks = sum(-(-len(p) // size) for p in ask.prompts)
        self._boot = front._engine.boot

    async def __aenter__(self) -> None:
        engine = self._front._engine
        engine.waiting += 1
        try:
            await self._front.seats().acquire()
        finally:
            self._change(waiting=-1)
        self._change(running=1, blocks=self._blocks)

    async def __aexit__(self, *_: object) -> None:
        self._change(running=-1, blocks=-self._blocks)
        self._front.seats().release()

    def _change(self, *, waiting: int = 0, running: int = 0, blocks: int = 0) -> None:
        """Counts of a process that was restarted meanwhile are not ours any more."""
        engine = self._front._engine
        if engine.boot == self._boot:
            engine.waiting += waiting
            engine.running += running
            engine.blocks_in_use += blocks


async def _pause(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)


class _Counting:
    """The middleware: checks the API key, counts requests, sizes and durations by handler."""

    def __init__(self, app: ASGIApp, world: World, engine: Engine) -> None:
        self._app = app
        self._world = world
        self._engine = engine

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._allowed(scope):
            await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)
            return
        if scope["type"] != "http" or scope["path"] in _UNCOUNTED:
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status, sent = 500, 0

        async def counting(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        size = int(dict(scope["headers"]).get(b"content-length", b"0") or 0)
        try:
            await self._app(scope, receive, counting)
        finally:
            handler = "none" if status == 404 else scope["path"]
            seconds = time.perf_counter() - started
            with self._world.lock:
                engine_views.count_http(self._engine, handler, scope["method"], status, size, sent, seconds)

    def _allowed(self, scope: Any) -> bool:
        """With an API key, what lies below /v1 wants it; probes, metrics and the reset do not."""
        key = self._engine.spec.api_key
        if key is None or not scope["path"].startswith("/v1"):
            return True
        scheme, _, token = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        return bool(scheme.lower() == b"bearer" and hmac.compare_digest(token, key.encode()))
