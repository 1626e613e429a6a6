"""Completions: recorded answers of the real engine, whole and streamed, cut anywhere, broken in every way."""

from __future__ import annotations

import asyncio
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import TargetError
from app.vllm import completions
from app.vllm.client import CompletionAnswer, CompletionRequest, KVStats, VLLMClient, token_id_of
from app.vllm.completions import AnswerBuilder
from tests.unit.vllm.fake_engine import events, recorded, replay
from tests.unit.wire.raw_http import RawServer, capture, chunked, reply
from tests.unit.wire.test_fields import json_values

PROMPT = CompletionRequest("tiny-llama", "hello", deadline_seconds=60)
PATH = "POST /v1/completions"


async def complete(answer: object, request: CompletionRequest = PROMPT) -> CompletionAnswer:
    routes = {f"POST {request.path}": answer}
    async with RawServer(routes) as server, VLLMClient(server.url) as client:  # type: ignore[arg-type]
        return await client.complete(request)


async def error_of(answer: object, request: CompletionRequest = PROMPT) -> TargetError:
    with pytest.raises(TargetError) as caught:
        await complete(answer, request)
    return caught.value


async def test_the_split_of_cached_tokens_comes_with_whole_answers() -> None:
    cold = await complete(replay("stats-1-cold.whole.json"))
    warm = await complete(replay("stats-2-warm.whole.json"))
    external = await complete(replay("stats-3-external.whole.json"))
    assert [answer.kv_stats for answer in (cold, warm, external)] == [
        KVStats(0, 0, 0),
        KVStats(192, 192, 0),
        KVStats(0, 192, 192),
    ]
    assert [answer.cached_tokens for answer in (cold, warm, external)] == [0, 192, 192]
    assert cold.token_ids == warm.token_ids == external.token_ids
    assert len(cold.token_ids) == cold.completion_tokens == 3
    assert cold.prompt_tokens == len(cold.prompt_token_ids) == 200
    assert cold.ttft_seconds is None
    assert cold.ok
    assert cold.finish_reason == "length"


async def test_a_stream_gives_the_sum_only() -> None:
    """What the real engine does: kv_transfer_params are dropped from streams (recorded on 0.32)."""
    for name in ("stats-4-external.stream.json", "stats-5-warm.stream.json"):
        answer = await complete(replay(name))
        assert answer.kv_stats is None
        assert answer.cached_tokens == 192
        assert answer.ttft_seconds is not None
        assert 0 < answer.ttft_seconds <= answer.total_seconds


@pytest.mark.parametrize("piece", [None, 1, 7, 100])
async def test_streamed_and_whole_are_the_same_answer(piece: int | None) -> None:
    whole = await complete(replay("stats-3-external.whole.json"))
    streamed = await complete(replay("stats-4-external.stream.json", piece=piece))
    for name in ("text", "token_ids", "tokens", "token_logprobs", "top_logprobs", "prompt_token_ids", "prompt_tokens"):
        assert getattr(streamed, name) == getattr(whole, name), name
    assert all(token_id_of(token) == known for token, known in zip(whole.tokens, whole.token_ids, strict=True))
    assert all(len(candidates) == 2 for candidates in whole.top_logprobs)


async def test_chat_streamed_and_whole() -> None:
    chat = CompletionRequest("tiny-llama", messages=[{"role": "user", "content": "x"}], deadline_seconds=60)
    whole = await complete(replay("stats-6-chat.whole.json"), chat)
    streamed = await complete(replay("stats-7-chat.stream.json", piece=9), chat)
    for answer in (whole, streamed):
        assert (
            len(answer.token_ids) == len(answer.tokens) == len(answer.token_logprobs) == len(answer.top_logprobs) == 3
        )
        assert answer.prompt_tokens == 12
        assert answer.ok
    assert whole.token_ids == streamed.token_ids
    assert whole.text == streamed.text
    assert whole.kv_stats == KVStats(0, 0, 0)
    assert streamed.ttft_seconds is not None


async def test_an_older_whole_answer_with_tokens_as_texts() -> None:
    body = json.loads(capture("engine/with-lmcache.completion-A-3_after_reset.json"))
    answer = await complete(reply(body))
    assert answer.token_ids[:3] == (395, 375, 464)
    assert answer.tokens[0] == " mem"
    assert answer.cached_tokens == 960
    assert answer.token_logprobs[0] == pytest.approx(-2.2486422061920166)
    assert token_id_of(answer.tokens[0]) is None


async def test_numbers_that_are_not_finite_are_noticed_in_both_forms() -> None:
    """A record full of NaN: the stream answers 200 with null, the whole answer is refused with 400."""
    streamed = await complete(replay("nan-records.stream.json"))
    assert streamed.http_status == 200
    assert streamed.error is None
    assert streamed.non_finite
    assert not streamed.ok
    assert set(streamed.token_logprobs) == {None}
    assert not completions.finite(streamed.token_logprobs)
    whole = await complete(replay("nan-records.whole.json"))
    assert whole.non_finite
    assert whole.error is not None
    assert (whole.error.status, whole.http_status) == (400, 400)
    assert "Out of range float" in whole.error.message


async def test_a_refusal_is_an_answer() -> None:
    answer = await complete(replay("refused-model.json"))
    assert answer.error is not None
    assert (answer.error.status, answer.error.type, answer.error.param) == (404, "NotFoundError", "model")
    assert "does not exist" in answer.error.message
    assert not answer.ok


async def test_a_refusal_inside_a_stream_has_its_own_status() -> None:
    answer = await complete(replay("refused-logprobs.stream.json"))
    assert answer.http_status == 200
    assert answer.error is not None
    assert answer.error.status == 400


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (reply("upstream gone", 503, "text/plain"), 503, "upstream gone"),
        (reply("<html>", 502, "text/html"), 502, "a web page, not an API answer"),
        (reply({"detail": "Unauthorized"}, 401), 401, "Unauthorized"),
        (reply("", 307, extra="location: /x\r\n"), 307, "no explanation"),
        (reply({"error": {"message": "late", "code": 500}}), 500, "late"),
        (reply({"error": "plain"}), 500, "plain"),
    ],
)
async def test_other_refusals(answer: bytes, status: int, message: str) -> None:
    found = (await complete(answer)).error
    assert found is not None
    assert (found.status, found.message) == (status, message)


ONE = {"choices": [{"index": 0, "text": "a", "token_ids": [1], "finish_reason": None}]}
LAST = {"choices": [{"index": 0, "text": "b", "token_ids": [2], "finish_reason": "stop"}]}


async def test_comments_other_choices_and_malformed_events_do_not_disturb() -> None:
    body = events(
        b": keep-alive\n\n",
        b"event: ping\ndata: \n\n",
        {"choices": [{"index": 0, "text": "", "token_ids": []}]},
        ONE,
        b"data: {broken\n\n",
        b"data: 5\n\n",
        {"choices": [{"index": 1, "text": "other", "token_ids": [9], "finish_reason": "stop"}]},
        {"choices": "odd"},
        {"choices": [5, {"index": 0, "logprobs": 7, "delta": "x"}]},
        LAST,
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": None}},
    )
    answer = await complete(chunked(body))
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("ab", (1, 2), "stop")
    assert answer.malformed_events == 3
    assert (answer.prompt_tokens, answer.cached_tokens) == (3, None)
    assert answer.ok


async def test_the_first_token_counts_even_if_it_prints_nothing() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        writer.write(
            b": keep-alive\n\n"
            + events({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}, done=False)
        )
        await writer.drain()
        await asyncio.sleep(0.03)
        writer.write(events({"choices": [{"index": 0, "text": "", "token_ids": [503]}]}, done=False))
        await writer.drain()
        await asyncio.sleep(0.03)
        writer.write(events(LAST))
        await writer.drain()

    answer = await complete(slow)
    assert answer.ttft_seconds is not None
    assert 0.025 <= answer.ttft_seconds <= answer.total_seconds - 0.025


async def test_a_finished_stream_may_lack_its_end_mark() -> None:
    assert (await complete(chunked(events(ONE, LAST, done=False)))).finish_reason == "stop"


async def test_a_stream_that_ends_early_is_no_answer() -> None:
    error = await error_of(chunked(events(ONE, done=False)))
    assert error.kind == "closed"

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(events(ONE, done=False), end=False))
        await writer.drain()

    assert (await error_of(cut)).kind == "closed"


async def test_an_endless_stream_ends_with_the_deadline() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        while True:
            writer.write(b": keep-alive\n\n")
            await writer.drain()
            await asyncio.sleep(0.005)

    error = await error_of(endless, CompletionRequest("m", "x", deadline_seconds=0.2))
    assert error.kind == "timeout"
    assert "0.2 s" in error.detail


async def test_an_answer_that_never_begins_ends_with_the_deadline() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    assert (await error_of(silent, CompletionRequest("m", "x", deadline_seconds=0.1))).kind == "timeout"


async def test_too_many_tokens_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "MAX_TOKENS_KEPT", 5)
    error = await error_of(chunked(events(*[ONE] * 6, done=False)))
    assert error.kind == "too_large"


@pytest.mark.parametrize("answer", [reply({"x": 1}), reply("[]"), reply("<html>", content_type="text/html"), reply("")])
async def test_what_is_no_completion_is_unreadable(answer: bytes) -> None:
    assert (await error_of(answer)).kind == "unreadable"


async def test_cancelling_closes_the_connection_so_that_the_engine_stops() -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        assert await reader.read() == b""
        gone.set()

    async with RawServer({PATH: watch}) as server, VLLMClient(server.url) as client:
        task = asyncio.create_task(client.complete(PROMPT))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), 2)


def test_the_body_is_what_the_real_engine_was_asked() -> None:
    sent = recorded("stats-4-external.stream.json")["request"]
    request = CompletionRequest(
        "tiny-llama",
        sent["prompt"],
        max_tokens=3,
        logprobs=2,
        ignore_eos=True,
        cache_salt=sent["cache_salt"],
    )
    assert request.body() == sent
    whole = recorded("stats-1-cold.whole.json")["request"]
    assert CompletionRequest(
        "tiny-llama",
        whole["prompt"],
        max_tokens=3,
        logprobs=2,
        ignore_eos=True,
        cache_salt=whole["cache_salt"],
        stream=False,
    ).body() == {**whole, "stream": False}


def test_bodies_of_other_requests() -> None:
    bare = CompletionRequest(
        "m", "text", logprobs=None, seed=None, cache_salt="", kv_stats=False, stop=["x"], extra={"n": 1}
    )
    assert bare.body() == {
        "model": "m",
        "prompt": "text",
        "max_tokens": 16,
        "temperature": 0.0,
        "stream": True,
        "ignore_eos": False,
        "return_token_ids": True,
        "stop": ["x"],
        "stream_options": {"include_usage": True},
        "n": 1,
    }
    chat = CompletionRequest("m", messages=[{"role": "user", "content": "x"}], logprobs=3).body()
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 3)
    assert "prompt" not in chat
    for wrong in (CompletionRequest("m"), CompletionRequest("m", "x", messages=[])):
        with pytest.raises(ValueError, match="either"):
            wrong.body()


async def test_a_chat_needs_messages() -> None:
    async with VLLMClient("http://127.0.0.1:9") as client:
        with pytest.raises(ValueError, match="messages"):
            await client.chat(PROMPT)


def test_infinite_logprobs_are_not_numbers_to_compare() -> None:
    builder = AnswerBuilder()
    choice = {
        "index": 0,
        "logprobs": {
            "tokens": ["a", "b"],
            "token_logprobs": [-1.0, -math.inf],
            "top_logprobs": [{"a": -1.0, "c": math.nan}],
        },
    }
    assert builder.take({"choices": [choice]})
    answer = builder.answer(http_status=200, total_seconds=1)
    assert answer.token_logprobs == (-1.0, None)
    assert answer.top_logprobs == ({"a": -1.0}, {})
    assert answer.non_finite


@given(st.lists(json_values, max_size=5))
def test_arbitrary_json_never_raises(values: list[object]) -> None:
    builder = AnswerBuilder()
    for value in values:
        builder.event(json.dumps(value).encode(), 0.1)
        builder.event(json.dumps({"choices": [value], "usage": value, "kv_transfer_params": value}).encode(), 0.2)
        builder.event(json.dumps({"choices": [{"logprobs": value, "token_ids": value, "delta": value}]}).encode(), 0.3)
        builder.event(json.dumps({"error": value}).encode(), 0.4)
    answer = builder.answer(http_status=200, total_seconds=1)
    assert len(answer.tokens) == len(answer.token_logprobs) == len(answer.top_logprobs)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6), st.sampled_from(["text/event-stream", "application/json", "x"]))
def test_arbitrary_bytes_are_an_answer_or_one_target_error(pieces: list[bytes], kind: str) -> None:
    async def run() -> None:
        try:
            await complete(chunked(*[piece for piece in pieces if piece], content_type=kind))
        except TargetError as error:
            assert error.kind in ("unreadable", "closed", "too_large")

    asyncio.run(run())
