"""Answers and stream events of the OpenAI-style API of an engine, shaped as vLLM 0.32.0 shapes them.

Per-request cache statistics (`kv_transfer_params`) come only with answers that are not streamed, as there; a NaN is a
400 in an answer and a null in a stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.sandbox import tokenizer
from app.sandbox.config import EngineSpec
from app.sandbox.openai_requests import ApiError, Ask
from app.sandbox.sampling import Generation, Step

Json = dict[str, Any]


@dataclass(frozen=True)
class Head:
    """What all parts of one answer share."""

    id: str
    created: int
    fingerprint: str


def answer(ask: Ask, head: Head, spec: EngineSpec, results: Sequence[Generation]) -> Json:
    """The whole answer. Raises `ApiError` where a log-probability is no JSON number."""
    if ask.sampling.top_logprobs is not None and any(math.isnan(s.logprob) for r in results for s in r.steps):
        raise ApiError("Out of range float values are not JSON compliant")
    stats = None
    if ask.stats and spec.cached_token_stats and spec.server is not None:
        stats = {
            "cached_token_stats": {
                "num_vllm_cached_tokens": results[0].local,
                "num_lmcache_cached_tokens": results[0].lmcache_cached,
                "num_lmcache_extra_cached_tokens": results[0].lmcache_extra,
            }
        }
    common: Json = {
        "id": head.id,
        "object": "chat.completion" if ask.chat else "text_completion",
        "created": head.created,
        "model": spec.served_model_name,
        "choices": [_choice(ask, index, result) for index, result in enumerate(results)],
        "service_tier": None,
        "system_fingerprint": head.fingerprint,
        "usage": _usage(ask, spec, results, details=True),
    }
    if ask.chat:
        prompt_ids = list(results[0].prompt) if ask.return_token_ids else None
        common |= {"prompt_logprobs": _prompt_logprobs(results[0]), "prompt_token_ids": prompt_ids, "prompt_text": None}
    return {**common, "kv_transfer_params": stats, "ec_transfer_params": None, "metrics": None}


def _choice(ask: Ask, index: int, result: Generation) -> Json:
    ids = result.tokens if ask.return_token_ids else None
    end = {"finish_reason": result.finish_reason, "stop_reason": None, "token_ids": ids}
    if ask.chat:
        message = {
            "role": "assistant",
            "content": tokenizer.decode(result.tokens),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        logprobs = _chat_logprobs(ask, result.steps)
        return {"index": index, "message": message, "logprobs": logprobs, **end, "routed_experts": None}
    return {
        "index": index,
        "text": tokenizer.decode(result.tokens),
        "logprobs": _text_logprobs(ask, result.steps, 0),
        **end,
        "prompt_logprobs": _prompt_logprobs(result),
        "prompt_token_ids": list(result.prompt) if ask.return_token_ids else None,
        "routed_experts": None,
    }


def _name(ask: Ask, token: int) -> str:
    return f"token_id:{token}" if ask.tokens_as_ids else tokenizer.token_text(token)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _text_logprobs(ask: Ask, steps: Sequence[Step], offset: int) -> Json | None:
    if ask.sampling.top_logprobs is None:
        return None
    offsets = []
    for step in steps:
        offsets.append(offset)
        offset += len(_name(ask, step.token))
    return {
        "text_offset": offsets,
        "token_logprobs": [_number(step.logprob) for step in steps],
        "tokens": [_name(ask, step.token) for step in steps],
        "top_logprobs": [{_name(ask, t): _number(p) for t, p in _alternatives(step)} for step in steps],
    }


def _alternatives(step: Step) -> list[tuple[int, float]]:
    return list(step.top) or [(step.token, step.logprob)]


def _chat_logprobs(ask: Ask, steps: Sequence[Step]) -> Json | None:
    if ask.sampling.top_logprobs is None:
        return None

    def entry(token: int, logprob: float) -> Json:
        return {
            "token": _name(ask, token),
            "logprob": _number(logprob),
            "bytes": list(tokenizer.token_text(token).encode()),
        }

    top = ask.sampling.top_logprobs
    rows = [
        {**entry(s.token, s.logprob), "top_logprobs": [entry(t, p) for t, p in s.top] if top else []} for s in steps
    ]
    return {"content": rows}


def _prompt_logprobs(result: Generation) -> list[Json | None] | None:
    if result.prompt_logprobs is None:
        return None
    return [None, *(_prompt_row(row) for row in result.prompt_logprobs)]


def _prompt_row(row: Sequence[tuple[int, float, int]]) -> Json:
    return {
        str(token): {"logprob": _number(value), "rank": rank, "decoded_token": tokenizer.token_text(token)}
        for token, value, rank in row
    }


def _usage(ask: Ask, spec: EngineSpec, results: Sequence[Generation], *, details: bool) -> Json:
    prompt = sum(len(r.prompt) for r in results)
    generated = sum(len(r.steps) for r in results)
    usage: Json = {"prompt_tokens": prompt, "total_tokens": prompt + generated, "completion_tokens": generated}
    cached: Json | None = None
    if spec.prompt_tokens_details:
        size = spec.layout.block_size
        created = sum(max(0, len(r.prompt) // size * size - r.cached) for r in results) if ask.chat else None
        cached = {"cached_tokens": sum(r.cached for r in results)}
        if details or created is not None:
            cached["created_cache_tokens"] = created
        if details:
            cached["multimodal_tokens"] = None
    if details:
        return {**usage, "prompt_tokens_details": cached, "completion_tokens_details": None}
    return usage if cached is None else {**usage, "prompt_tokens_details": cached}


# --- streams --------------------------------------------------------------------------------------------------------


def stream_events(ask: Ask, head: Head, spec: EngineSpec, results: Sequence[Generation]) -> Iterator[tuple[int, Json]]:
    """Events with the number of the token each carries (0 for those that carry none)."""
    envelope = {
        "id": head.id,
        "object": "chat.completion.chunk" if ask.chat else "text_completion",
        "created": head.created,
        "model": spec.served_model_name,
    }
    for index, result in enumerate(results):
        if ask.chat:
            first = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
            ids = list(result.prompt) if ask.return_token_ids else None
            choices = [{**first, "finish_reason": None}]
            yield 0, {**envelope, "choices": choices, "prompt_token_ids": ids, "prompt_text": None}
        make: Callable[[Ask, int, Generation, int], Json] = _chat_delta if ask.chat else _text_delta
        for number in range(1, len(result.steps) + 1):
            event: Json = {**envelope, "choices": [make(ask, index, result, number)]}
            if ask.continuous_usage:
                prompt = len(result.prompt)
                usage = {"prompt_tokens": prompt, "total_tokens": prompt + number, "completion_tokens": number}
                event["usage"] = usage
            elif number == len(result.steps) and not ask.include_usage:
                event["system_fingerprint"] = head.fingerprint
            yield number, event
    if ask.include_usage:
        usage = _usage(ask, spec, results, details=False)
        yield 0, {**envelope, "choices": [], "usage": usage, "system_fingerprint": head.fingerprint}


def _delta_text(result: Generation, number: int) -> str:
    """Text that token `number` adds: parts of a character wait until it is whole."""
    before = tokenizer.decode(result.tokens[: number - 1]).rstrip("�")
    after = tokenizer.decode(result.tokens[:number])
    return after[len(before) :] if number == len(result.steps) else after.rstrip("�")[len(before) :]


def _text_delta(ask: Ask, index: int, result: Generation, number: int) -> Json:
    step = result.steps[number - 1]
    offset = sum(len(_name(ask, s.token)) for s in result.steps[: number - 1])
    return {
        "index": index,
        "text": _delta_text(result, number),
        "logprobs": _text_logprobs(ask, [step], offset),
        "finish_reason": result.finish_reason if number == len(result.steps) else None,
        "stop_reason": None,
        "prompt_token_ids": list(result.prompt) if ask.return_token_ids and number == 1 else None,
        "token_ids": [step.token] if ask.return_token_ids else None,
    }


def _chat_delta(ask: Ask, index: int, result: Generation, number: int) -> Json:
    step = result.steps[number - 1]
    last = number == len(result.steps)
    delta: Json = {
        "index": index,
        "delta": {"content": _delta_text(result, number)},
        "logprobs": _chat_logprobs(ask, [step]),
        "finish_reason": result.finish_reason if last else None,
    }
    if last:
        delta["stop_reason"] = None
    return {**delta, "token_ids": [step.token] if ask.return_token_ids else None}
