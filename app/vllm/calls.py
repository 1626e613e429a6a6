"""The panel's only way to an engine: an allow-list of calls, each bounded.

`ALLOWED` is everything that is ever sent. Dev mode opens more (sleep, weights, rpc); none of it is touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

import httpx

from app.errors import TargetError
from app.vllm.completions import AnswerBuilder, CompletionAnswer, CompletionRequest
from app.vllm.facts import EngineFacts, parse_server_info
from app.vllm.metrics import EngineLoad, EngineMetrics, engine_load, engine_metrics
from app.wire import fields
from app.wire.exposition import parse_metrics
from app.wire.sse import EventParser
from app.wire.tls import SYSTEM, Tls
from app.wire.transport import MAX_BYTES, Answer, TargetHttp, bounded
from app.wire.troubles import describe_error

ALLOWED: Final = (
    ("GET", "/health"),
    ("GET", "/version"),
    ("GET", "/v1/models"),
    ("GET", "/metrics"),
    ("GET", "/server_info"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
)
MAX_STREAM = 64 * 2**20
#: How long the first `/server_info` of a process may take on a busy host; later ones come at once.
_INFO_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """``/health``: 200 is alive, 503 a dead engine behind a living front end."""

    ok: bool
    reason: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One served model: `id` is its name in requests, `root` what was loaded (LMCache's model name)."""

    id: str
    root: str | None
    max_model_len: int | None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class ResetAnswer:
    """`done`: the engine says it emptied its prefix cache. `busy`: blocks are in use, ask again. `unavailable`: no such
    call (dev mode off). `unknown`: an older engine that answers nothing whatever happened; only the effect tells."""

    state: Literal["done", "busy", "unavailable", "unknown"]
    detail: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """A tokenized text."""

    ids: tuple[int, ...]
    max_model_len: int | None


class VLLMClient:
    """One engine over HTTP. Async context manager; calls raise TargetError for trouble with the target.

    Timeouts in seconds; completions have their own deadline. `api_key` goes as a bearer token. `connections`: requests
    under way at once.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        connect_timeout: float = 2.0,
        read_timeout: float = 5.0,
        max_bytes: int = MAX_BYTES,
        tls: Tls = SYSTEM,
        transport: httpx.AsyncBaseTransport | None = None,
        connections: int = 64,
    ) -> None:
        self._http = TargetHttp(
            base_url,
            api_key=api_key,
            headers=headers,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            max_bytes=max_bytes,
            tls=tls,
            transport=transport,
            connections=connections,
        )
        self.base_url = self._http.base_url

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        payload: object = None,
        deadline: float | None = None,
    ) -> Answer:
        if (method, path) not in ALLOWED:
            raise RuntimeError(f"{method} {path} is not a call the panel makes")
        return await self._http.fetch(method, path, params=params, payload=payload, deadline=deadline)

    async def health(self) -> EngineHealth:
        """``/health``. Statuses other than 200 and 503 raise TargetError."""
        answer = await self._call("GET", "/health")
        if answer.status == 503:
            said = describe_error(503, answer.body)
            return EngineHealth(False, "the engine core is dead" if said == "no explanation" else said, answer.seconds)
        answer.ok()
        return EngineHealth(True, None, answer.seconds)

    async def version(self) -> str:
        """The engine's version, ``0.32.0``."""
        answer = (await self._call("GET", "/version")).ok()
        text = fields.text(fields.mapping(answer.json()).get("version"), limit=200)
        if not text:
            raise TargetError("unreadable", f"{answer.where} tells no version", http_status=answer.status)
        return text

    async def models(self) -> list[ModelCard]:
        """``/v1/models``, base models and adapters."""
        answer = (await self._call("GET", "/v1/models")).ok()
        data = fields.mapping(answer.json()).get("data")
        if not isinstance(data, list):
            raise TargetError("unreadable", f"{answer.where} is not a list of models", http_status=answer.status)
        cards: list[ModelCard] = []
        for item in data[:1000]:
            value = fields.mapping(item)
            name = fields.text(value.get("id"))
            if name:
                cards.append(
                    ModelCard(
                        id=name,
                        root=fields.text(value.get("root")),
                        max_model_len=fields.count(value.get("max_model_len")),
                        parent=fields.text(value.get("parent")),
                    )
                )
        return cards

    async def metrics(self) -> EngineMetrics:
        """``/metrics``, classic text or OpenMetrics."""
        answer = (await self._call("GET", "/metrics")).ok()
        with answer.reading():
            return engine_metrics(parse_metrics(answer.body, answer.content_type))

    async def load(self) -> EngineLoad:
        """What the engine is busy with, from ``/metrics``; nothing else of it is looked at."""
        answer = (await self._call("GET", "/metrics")).ok()
        with answer.reading():
            return engine_load(answer.body, answer.content_type)

    async def server_info(self) -> EngineFacts | None:
        """The engine's configuration, None where it has no such call (404: dev mode off).

        The first answer of a process takes seconds: vLLM collects facts of the host for it (it lists every package).
        """
        answer = await self._call("GET", "/server_info", params={"config_format": "json"}, deadline=_INFO_SECONDS)
        if answer.status == 404:
            return None
        if answer.status in (
            422,
            500,
        ):  # the JSON form fails on configurations that hold odd objects; the text does not
            answer = await self._call("GET", "/server_info", deadline=_INFO_SECONDS)
        body = answer.ok().json()
        with answer.reading():
            return parse_server_info(body)

    async def reset_prefix_cache(self, *, deadline: float = 15.0) -> ResetAnswer:
        """Ask the engine once to empty its own prefix cache; LMCache's tiers are never touched (``reset_external``)."""
        answer = await self._call("POST", "/reset_prefix_cache", params={"reset_external": "false"}, deadline=deadline)
        if answer.status in (404, 405):
            return ResetAnswer(
                "unavailable", "this engine has no /reset_prefix_cache: start it with VLLM_SERVER_DEV_MODE=1"
            )
        answer.ok()
        if not answer.body.strip():
            return ResetAnswer("unknown", "this engine answers a reset without saying whether it happened")
        success = fields.mapping(answer.json()).get("success")
        if success is True:
            return ResetAnswer("done", "the prefix cache was emptied")
        if success is False:
            return ResetAnswer("busy", "blocks are in use by requests or transfers")
        return ResetAnswer("unknown", "the answer to the reset says neither true nor false")

    async def tokenize(
        self, text: str, *, model: str | None = None, messages: Sequence[Mapping[str, object]] | None = None
    ) -> Tokens:
        """Token ids of a text, or of chat messages after the chat template. 404 where the engine does not offer it."""
        payload: dict[str, object] = {"prompt": text} if messages is None else {"messages": list(messages)}
        if model is not None:
            payload["model"] = model
        answer = (await self._call("POST", "/tokenize", payload=payload, deadline=30.0)).ok()
        value = fields.mapping(answer.json())
        ids = [fields.count(item) for item in fields.sequence(value.get("tokens"))]
        known = tuple(item for item in ids if item is not None)
        if not isinstance(value.get("tokens"), list) or len(known) != len(ids):
            raise TargetError("unreadable", f"{answer.where} is not a list of tokens")
        return Tokens(known, fields.count(value.get("max_model_len")))

    async def detokenize(self, ids: Sequence[int], *, model: str | None = None) -> str:
        """The text of token ids."""
        payload: dict[str, object] = {"tokens": list(ids)}
        if model is not None:
            payload["model"] = model
        answer = (await self._call("POST", "/detokenize", payload=payload, deadline=30.0)).ok()
        text = fields.text(fields.mapping(answer.json()).get("prompt"), limit=MAX_BYTES)
        if text is None:
            raise TargetError("unreadable", f"{answer.where} is not a text")
        return text

    async def complete(
        self, request: CompletionRequest, *, on_first_token: Callable[[], None] | None = None
    ) -> CompletionAnswer:
        """Send a completion and wait for the whole answer. `on_first_token` is called when its time has been taken.

        What the engine itself refuses (4xx, 5xx, an error inside the stream) is an answer with `error`. Raises
        TargetError for trouble on the way: ``timeout`` past the request's deadline, ``closed`` for an answer cut off,
        ``too_large``, ``refused`` and so on. Cancelling the task closes the connection, on which the engine aborts.
        """
        builder = AnswerBuilder()
        path, body = request.path, request.body()
        deadline = request.deadline_seconds
        await self._http.prepare()
        began = time.perf_counter()

        def sending() -> None:
            nonlocal began
            began = time.perf_counter()

        async with self._http.open(
            "POST", path, payload=body, deadline=deadline, read_timeout=deadline, on_sending=sending
        ) as response:
            status = response.status_code
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if status >= 300:
                builder.refuse(status, b"".join([chunk async for chunk in bounded(response, self._http.max_bytes)]))
            elif kind == "text/event-stream":
                parser = EventParser()
                async for chunk in bounded(response, MAX_STREAM):
                    at = time.perf_counter() - began
                    timed = builder.first_token_at is not None
                    for event in parser.feed(chunk):
                        builder.event(event, at)
                    if not timed and builder.first_token_at is not None and on_first_token is not None:
                        on_first_token()
                    if builder.done:
                        break
                else:
                    for event in parser.finish():
                        builder.event(event, time.perf_counter() - began)
                if not builder.finished:
                    raise TargetError("closed", f"POST {self.base_url}{path}: the stream ended before the answer did")
            else:
                raw = b"".join([chunk async for chunk in bounded(response, MAX_STREAM)])
                value = fields.loads(raw, f"the answer to POST {self.base_url}{path}")
                if not isinstance(value, dict) or not ("choices" in value or "error" in value):
                    raise TargetError("unreadable", f"POST {self.base_url}{path} did not answer with a completion")
                builder.take(value)
            total = time.perf_counter() - began
        return builder.answer(http_status=status, total_seconds=total)

    async def chat(self, request: CompletionRequest) -> CompletionAnswer:
        """As `complete`, for a request with `messages`."""
        if request.messages is None:
            raise ValueError("a chat needs messages")
        return await self.complete(request)
