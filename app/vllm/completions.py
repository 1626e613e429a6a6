"""Completion requests and what becomes of them: the bodies sent, and answers put together from events or a whole body.

Measured on vLLM 0.32: an answer with ``stream`` never holds ``kv_transfer_params``, so the split of cached tokens into
the engine's own and LMCache's comes only without it; with it there is ``usage.prompt_tokens_details.cached_tokens``,
their sum. Numbers that are not finite come as ``null`` in a stream and as HTTP 400 without one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.errors import TargetError
from app.wire import fields
from app.wire.troubles import describe_error, describe_value

TOKEN_ID = "token_id:"  # noqa: S105 - how vLLM prints a token when asked for ids
MAX_TOKENS_KEPT = 200_000


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One request. `prompt` is text or token ids; `messages` (chat) is used instead where given.

    `logprobs` is the number of candidates per token (vLLM allows 20 by default), None for none. `tokens_as_ids` has
    tokens and candidates printed as ``token_id:12``: as texts, tokens of half a character are all ``""`` and candidates
    overwrite each other. `kv_stats` asks the connector for its split (answered only with ``stream=False``).
    `deadline_seconds` bounds the whole answer.
    """

    model: str
    prompt: str | Sequence[int] | None = None
    messages: Sequence[Mapping[str, object]] | None = None
    max_tokens: int = 16
    temperature: float = 0.0
    seed: int | None = 0
    logprobs: int | None = 5
    cache_salt: str | None = None
    ignore_eos: bool = False
    return_token_ids: bool = True
    tokens_as_ids: bool = True
    kv_stats: bool = True
    stream: bool = True
    stop: Sequence[str] = ()
    extra: Mapping[str, object] = field(default_factory=dict)
    deadline_seconds: float = 120.0

    @property
    def path(self) -> str:
        """The call that takes it."""
        return "/v1/chat/completions" if self.messages is not None else "/v1/completions"

    def body(self) -> dict[str, object]:
        """The JSON body. Raises ValueError where neither or both of prompt and messages are given."""
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        body: dict[str, object] = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": self.stream,
            "ignore_eos": self.ignore_eos,
            "return_token_ids": self.return_token_ids,
        }
        if self.messages is not None:
            body["messages"] = [dict(message) for message in self.messages]
            if self.logprobs is not None:
                body |= {"logprobs": True, "top_logprobs": self.logprobs}
        else:
            body["prompt"] = self.prompt if isinstance(self.prompt, str) else list(self.prompt or ())
            if self.logprobs is not None:
                body["logprobs"] = self.logprobs
        if self.logprobs is not None and self.tokens_as_ids:
            body["return_tokens_as_token_ids"] = True
        if self.seed is not None:
            body["seed"] = self.seed
        if self.cache_salt:
            body["cache_salt"] = self.cache_salt
        if self.stop:
            body["stop"] = list(self.stop)
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        if self.kv_stats:
            body["kv_transfer_params"] = {"cached_token_stats": {}}
        return body | dict(self.extra)


@dataclass(frozen=True, slots=True)
class EngineRefusal:
    """The engine's own error: an HTTP status of 400 or more, or an error event inside a stream (then its ``code``)."""

    status: int
    message: str
    type: str | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class KVStats:
    """What the connector says of one request, in tokens.

    `num_lmcache_cached_tokens` is what LMCache holds of the prompt even where the engine's own cache served it;
    `num_lmcache_extra_cached_tokens` what LMCache really supplied.
    """

    num_vllm_cached_tokens: int
    num_lmcache_cached_tokens: int
    num_lmcache_extra_cached_tokens: int


@dataclass(frozen=True, slots=True)
class CompletionAnswer:
    """One answer, whole. The token tuples run in parallel; they are empty where the engine reports none.

    `ttft_seconds`: from sending until the first event that carries a generated token, None without ``stream``.
    `token_logprobs` in nats, None where the engine gave no finite number (`non_finite`). `top_logprobs` maps tokens as
    printed (``token_id:12``, else text). `cached_tokens` = the engine's own and the connector's together.
    `event_seconds`: from sending until each event that carried a choice, empty text included (a part of a character is
    a token too); the gaps between them are the inter-token latencies. Empty without ``stream``.
    """

    http_status: int
    error: EngineRefusal | None
    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]
    top_logprobs: tuple[Mapping[str, float], ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    kv_stats: KVStats | None
    ttft_seconds: float | None
    total_seconds: float
    non_finite: bool
    malformed_events: int = 0
    request_id: str | None = None
    system_fingerprint: str | None = None
    event_seconds: tuple[float, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the engine answered at all, with finite numbers."""
        return self.error is None and not self.non_finite


def token_id_of(token: str) -> int | None:
    """12 for ``token_id:12``, None for a token printed as text."""
    return fields.whole_number_text(token.removeprefix(TOKEN_ID)) if token.startswith(TOKEN_ID) else None


class AnswerBuilder:
    """Puts one answer together from parsed JSON: each event of a stream, or the one body."""

    def __init__(self) -> None:
        self.done = False
        self.malformed = 0
        self.first_token_at: float | None = None
        self.event_times: list[float] = []
        self._texts: list[str] = []
        self._ids: list[int] = []
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._top: list[Mapping[str, float]] = []
        self._prompt_ids: tuple[int, ...] = ()
        self._finish: str | None = None
        self._usage: Mapping[str, object] = {}
        self._stats: KVStats | None = None
        self._error: EngineRefusal | None = None
        self._non_finite = False
        self._request_id: str | None = None
        self._system: str | None = None

    @property
    def finished(self) -> bool:
        """Whether the engine said that the answer is complete (or that it failed)."""
        return self.done or self._finish is not None or self._error is not None

    def event(self, data: bytes, at: float) -> None:
        """One event of a stream that came `at` seconds after sending. Malformed ones are counted and skipped."""
        if data.strip() == b"[DONE]":
            self.done = True
            return
        try:
            value = fields.loads(data, "an event of the stream")
        except TargetError:
            self.malformed += 1
            return
        if not isinstance(value, dict):
            self.malformed += 1
            return
        carried = self.take(value)
        if value.get("choices"):
            self.event_times.append(at)
        if carried and self.first_token_at is None:
            self.first_token_at = at

    def take(self, value: Mapping[str, object]) -> bool:
        """Add one JSON object; True if it carried a generated token."""
        if value.get("error") is not None:
            self.refuse(fields.count(fields.mapping(value.get("error")).get("code")) or 500, value)
            return False
        self._request_id = self._request_id or fields.text(value.get("id"), limit=200)
        self._system = fields.text(value.get("system_fingerprint"), limit=200) or self._system
        if isinstance(value.get("usage"), dict):
            self._usage = fields.mapping(value.get("usage"))
        self._stats = _kv_stats(value.get("kv_transfer_params")) or self._stats
        self._prompt_ids = self._prompt_ids or _ids(value.get("prompt_token_ids"))
        carried = False
        for item in fields.sequence(value.get("choices")):
            choice = fields.mapping(item)
            if (fields.count(choice.get("index")) or 0) == 0:
                carried = self._choice(choice) or carried
        return carried

    def _choice(self, choice: Mapping[str, object]) -> bool:
        self._prompt_ids = self._prompt_ids or _ids(choice.get("prompt_token_ids"))
        self._finish = fields.text(choice.get("finish_reason"), limit=100) or self._finish
        message = fields.mapping(choice.get("delta") or choice.get("message"))
        parts = [choice.get("text"), message.get("reasoning"), message.get("reasoning_content"), message.get("content")]
        texts = [fields.clean_text(part) for part in parts if isinstance(part, str) and part]
        ids = _ids(choice.get("token_ids"))
        before = len(self._tokens)
        logprobs = fields.mapping(choice.get("logprobs"))
        if isinstance(logprobs.get("content"), list):
            self._chat_logprobs(fields.sequence(logprobs.get("content")))
        else:
            self._text_logprobs(logprobs)
        tokens = self._tokens[before:]
        if not ids and tokens:
            printed = [token_id_of(token) for token in tokens]
            ids = tuple(known for known in printed if known is not None) if None not in printed else ()
        self._texts.extend(texts)
        self._ids.extend(ids)
        if max(len(self._ids), len(self._tokens), len(self._texts)) > MAX_TOKENS_KEPT:
            raise TargetError("too_large", f"the engine answered with more than {MAX_TOKENS_KEPT} tokens")
        return bool(texts or ids or tokens)

    def _text_logprobs(self, logprobs: Mapping[str, object]) -> None:
        tokens = fields.sequence(logprobs.get("tokens"))
        values = fields.sequence(logprobs.get("token_logprobs"))
        candidates = fields.sequence(logprobs.get("top_logprobs"))
        for index, token in enumerate(tokens):
            top: dict[str, float] = {}
            raw = candidates[index] if index < len(candidates) else None
            for name, value in fields.mapping(raw).items():
                self._candidate(top, name, value)
            self._token(token, values[index] if index < len(values) else None, top)

    def _chat_logprobs(self, content: list[object]) -> None:
        for item in content:
            value = fields.mapping(item)
            top: dict[str, float] = {}
            for candidate in fields.sequence(value.get("top_logprobs")):
                entry = fields.mapping(candidate)
                name = entry.get("token")
                if isinstance(name, str) and name not in top:
                    self._candidate(top, name, entry.get("logprob"))
            self._token(value.get("token"), value.get("logprob"), top)

    def _candidate(self, top: dict[str, float], name: str, value: object) -> None:
        known = fields.number(value)
        if known is None:
            self._non_finite = True
        else:
            top[fields.clean_text(name)] = known

    def _token(self, token: object, value: object, top: dict[str, float]) -> None:
        logprob = fields.number(value)
        if logprob is None:
            self._non_finite = True
        self._tokens.append(fields.clean_text(token) if isinstance(token, str) else "")
        self._logprobs.append(logprob)
        self._top.append(top)

    def refuse(self, status: int, value: Mapping[str, object] | bytes) -> None:
        """Note the engine's own error: `value` is its body, parsed or not."""
        said = describe_error(status, value) if isinstance(value, bytes) else describe_value(value)
        try:
            parsed = fields.mapping(fields.loads(value, "") if isinstance(value, bytes) else value)
        except TargetError:
            parsed = {}
        error = fields.mapping(parsed.get("error")) or parsed
        self._error = EngineRefusal(
            status=status,
            message=said,
            type=fields.text(error.get("type"), limit=200),
            param=fields.text(error.get("param"), limit=200),
        )

    def answer(self, *, http_status: int, total_seconds: float) -> CompletionAnswer:
        """What has come so far as an answer."""
        details = fields.mapping(self._usage.get("prompt_tokens_details"))
        message = self._error.message.lower() if self._error is not None else ""
        return CompletionAnswer(
            http_status=http_status,
            error=self._error,
            text="".join(self._texts),
            token_ids=tuple(self._ids),
            tokens=tuple(self._tokens),
            token_logprobs=tuple(self._logprobs),
            top_logprobs=tuple(self._top),
            prompt_token_ids=self._prompt_ids,
            finish_reason=self._finish,
            prompt_tokens=fields.count(self._usage.get("prompt_tokens")),
            completion_tokens=fields.count(self._usage.get("completion_tokens")),
            cached_tokens=fields.count(details.get("cached_tokens")),
            kv_stats=self._stats,
            ttft_seconds=self.first_token_at,
            total_seconds=total_seconds,
            non_finite=self._non_finite or "out of range float" in message,
            malformed_events=self.malformed,
            request_id=self._request_id,
            system_fingerprint=self._system,
            event_seconds=tuple(self.event_times),
        )


def _ids(value: object) -> tuple[int, ...]:
    """Token ids; nothing at all if one of them is none (half a list would be another answer)."""
    known: list[int] = []
    for item in fields.sequence(value):
        number = fields.count(item)
        if number is None:
            return ()
        known.append(number)
    return tuple(known)


def _kv_stats(value: object) -> KVStats | None:
    stats = fields.mapping(fields.mapping(value).get("cached_token_stats"))
    own = fields.count(stats.get("num_vllm_cached_tokens"))
    held = fields.count(stats.get("num_lmcache_cached_tokens"))
    extra = fields.count(stats.get("num_lmcache_extra_cached_tokens"))
    if own is None or held is None:
        return None
    return KVStats(own, held, max(0, held - own) if extra is None else extra)


def finite(values: Sequence[float | None]) -> bool:
    """Whether all numbers are there and finite."""
    return all(value is not None and math.isfinite(value) for value in values)
