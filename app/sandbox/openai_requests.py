"""Requests of the OpenAI-style API of an engine: bodies in, `Ask` or `ApiError` out. Error texts are vLLM 0.32.0's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.sandbox import tokenizer
from app.sandbox.config import EngineSpec
from app.sandbox.sampling import Sampling

Json = dict[str, Any]
_MAX_LOGPROBS = 20
_BAD_SALT = set("@/\\\0")


class ApiError(Exception):
    """An error answer: HTTP status and the body's `error` object."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, type: str = "BadRequestError"):
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": type, "param": param, "code": status}}

    @classmethod
    def with_value(cls, message: str, param: str, value: object = None) -> ApiError:
        """vLLM appends the parameter (and mostly its value) to the message."""
        shown = f"parameter={param}" if value is None else f"parameter={param}, value={value}"
        return cls(f"{message} ({shown})", param)

    @classmethod
    def invalid(cls, kind: str, field: str, message: str, value: object) -> ApiError:
        """A body of the wrong types."""
        shown = f"'{value}'" if isinstance(value, str) else "'<value>'"
        text = f"{{'type': '{kind}', 'loc': 'body.{field}', 'msg': '{message}', 'input': {shown}}}"
        return cls(f"1 validation error:\n  {text}", f"body.{field}", type="Bad Request")


@dataclass(frozen=True)
class Ask:
    """One request: its prompts as token ids and how the answer is wanted."""

    chat: bool
    prompts: list[list[int]]
    sampling: Sampling
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    stats: bool = False


def parse(body: object, spec: EngineSpec, *, chat: bool) -> Ask:
    """Read a request body. Raises `ApiError`."""
    if not isinstance(body, dict):
        raise ApiError.invalid("dict_type", "body", "Input should be a valid dictionary", body)
    model = body.get("model")
    if model is not None and model != spec.served_model_name:
        message = f"The model `{model}` does not exist. Valid aliases: {spec.served_model_name}."
        raise ApiError(message, "model", status=404, type="NotFoundError")
    stream = _flag(body, "stream")
    options = body.get("stream_options") or {}
    if options and not stream:
        raise ApiError.with_value("Stream options can only be defined when `stream=True`.", "stream_options")
    if body.get("prompt_logprobs") is not None and stream:
        raise ApiError.with_value("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
    prompts = [_chat_prompt(body)] if chat else _prompts(body)
    for prompt in prompts:
        _check_prompt(prompt, spec)
    params = body.get("kv_transfer_params")
    return Ask(
        chat=chat,
        prompts=prompts,
        sampling=_sampling(body, spec, max(map(len, prompts)), chat=chat),
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        return_token_ids=_flag(body, "return_token_ids"),
        tokens_as_ids=_flag(body, "return_tokens_as_token_ids"),
        stats=isinstance(params, dict) and "cached_token_stats" in params,
    )


def _flag(body: Json, name: str) -> bool:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise ApiError.invalid("bool_parsing", name, "Input should be a valid boolean", value)


def _integer(body: Json, name: str) -> int | None:
    value = body.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ApiError.invalid("int_parsing", name, "Input should be a valid integer", value)


def _sampling(body: Json, spec: EngineSpec, longest: int, *, chat: bool) -> Sampling:
    temperature = body.get("temperature")
    if temperature is not None and (isinstance(temperature, bool) or not isinstance(temperature, int | float)):
        raise ApiError.invalid("float_parsing", "temperature", "Input should be a valid number", temperature)
    if temperature is not None and temperature < 0:
        message = f"temperature must be non-negative, got {float(temperature)}."
        raise ApiError.with_value(message, "temperature", float(temperature))
    room = spec.max_model_len - longest
    limit = _integer(body, "max_completion_tokens") if chat else None
    limit = _integer(body, "max_tokens") if limit is None else limit
    if limit is not None and limit < 1:
        raise ApiError.with_value(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
    if limit is not None and limit > spec.max_model_len:
        message = f"max_tokens={limit} cannot be greater than max_model_len={spec.max_model_len}. "
        raise ApiError.with_value(message + "Please request fewer output tokens.", "max_tokens", limit)
    return Sampling(
        max_tokens=min(limit if limit is not None else (room if chat else 16), max(1, room)),
        temperature=1.0 if temperature is None else float(temperature),
        top_logprobs=_top_logprobs(body, chat=chat),
        ignore_eos=_flag(body, "ignore_eos"),
        min_tokens=_integer(body, "min_tokens") or 0,
        seed=_integer(body, "seed"),
        salt=_salt(body),
        prompt_logprobs=_integer(body, "prompt_logprobs"),
    )


def _top_logprobs(body: Json, *, chat: bool) -> int | None:
    if chat:
        wanted = _integer(body, "top_logprobs")
        if not _flag(body, "logprobs"):
            if wanted:
                message = "when using `top_logprobs`, `logprobs` must be set to true."
                raise ApiError.with_value(message, "top_logprobs")
            return None
        wanted = wanted or 0
    else:
        wanted = _integer(body, "logprobs")
    if wanted is not None and not 0 <= wanted <= _MAX_LOGPROBS:
        message = f"Requested sample logprobs of {wanted}, which is greater than max allowed: {_MAX_LOGPROBS}"
        raise ApiError.with_value(message, "logprobs", wanted)
    return wanted


def _salt(body: Json) -> str:
    salt = body.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not salt:
        raise ApiError.with_value("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if len(salt) > 128 or _BAD_SALT & set(salt):
        message = "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL."
        raise ApiError.with_value(message, "cache_salt")
    return salt


def _prompts(body: Json) -> list[list[int]]:
    prompt = body.get("prompt")
    if prompt is None or prompt == "":
        raise ApiError.with_value("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if prompt == []:
        raise ApiError("You must pass at least one prompt")
    if isinstance(prompt, str):
        return [tokenizer.encode(prompt)]
    if isinstance(prompt, list):
        if all(isinstance(p, str) for p in prompt):
            return [tokenizer.encode(p) for p in prompt]
        if all(isinstance(p, int) for p in prompt):
            return [prompt]
        if all(isinstance(p, list) and all(isinstance(t, int) for t in p) for p in prompt):
            return prompt
    raise ApiError.invalid("list_type", "prompt", "Input should be a valid list", prompt)


def _chat_prompt(body: Json) -> list[int]:
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise ApiError.invalid("list_type", "messages", "Input should be a valid list", messages)
    if not messages:
        raise ApiError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    return tokenizer.chat_tokens([_message(m) for m in messages])


def _message(message: object) -> tuple[str, str]:
    if not isinstance(message, dict):
        raise ApiError.invalid("dict_type", "messages.0", "Input should be a valid dictionary", message)
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(message.get("role", "user")), str(content)


def _check_prompt(prompt: Sequence[int], spec: EngineSpec) -> None:
    if not prompt:
        raise ApiError("You must pass at least one prompt")
    for token in prompt:
        if not 0 <= token < tokenizer.VOCABULARY:
            raise ApiError(f"Token id {token} is out of vocabulary")
    if len(prompt) >= spec.max_model_len:
        message = (
            f"This model's maximum context length is {spec.max_model_len} tokens. However, your prompt contains "
            f"{len(prompt)} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt."
        )
        raise ApiError.with_value(message, "input_tokens", len(prompt))


def tokenize(body: object, spec: EngineSpec) -> Json:
    """`POST /tokenize`."""
    if not isinstance(body, dict) or ("prompt" not in body and "messages" not in body):
        raise ApiError("2 validation errors:\n  prompt, messages: Field required", "body.prompt", type="Bad Request")
    ask = parse({**body, "max_tokens": 1}, replace(spec, max_model_len=1 << 30), chat="messages" in body)
    tokens = ask.prompts[0]
    names = [tokenizer.token_text(t).replace(" ", "Ġ") for t in tokens]
    return {
        "count": len(tokens),
        "max_model_len": spec.max_model_len,
        "tokens": tokens,
        "token_strs": names if body.get("return_token_strs") else None,
    }
