"""The other calls to an engine, and whole polls."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import TargetError
from app.vllm.client import ALLOWED, EngineReading, VLLMClient, poll_engine
from tests.unit.vllm.fake_engine import METRICS_TYPE, captured_engine
from tests.unit.wire.raw_http import RawServer, Script, capture, reply

TOKENIZE = json.loads(capture("engine/with-lmcache.tokenize.json"))


async def test_the_plain_calls() -> None:
    async with captured_engine() as server, VLLMClient(server.url) as client:
        health = await client.health()
        assert health.ok
        assert health.seconds > 0
        assert await client.version() == "0.32.0"
        (card,) = await client.models()
        assert (card.id, card.root, card.max_model_len, card.parent) == ("tiny-llama", "/models/tiny-llama", 4096, None)
        assert (await client.metrics()).external_hits == 1920
        facts = await client.server_info()
        assert facts is not None
        assert facts.block_size == 32
    assert server.seen[-1][1] == "/server_info?config_format=json"


def test_only_harmless_calls_are_ever_made() -> None:
    assert not any(word in path for _, path in ALLOWED for word in ("sleep", "weight", "rpc", "pause", "lora", "abort"))


async def test_a_call_that_is_not_in_the_list_is_a_mistake_of_ours() -> None:
    async with VLLMClient("http://127.0.0.1:9") as client:
        with pytest.raises(RuntimeError, match="not a call"):
            await client._call("POST", "/sleep")


async def test_a_dead_engine_behind_a_living_front_end() -> None:
    async with RawServer({"GET /health": reply("", 503)}) as server, VLLMClient(server.url) as client:
        health = await client.health()
    assert (health.ok, health.reason) == (False, "the engine core is dead")


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (reply({"success": True}), "done"),
        (reply({"success": False}), "busy"),
        (reply("", 200, "text/plain"), "unknown"),
        (reply({}), "unknown"),
        (reply({"success": "yes"}), "unknown"),
        (reply({"detail": "Not Found"}, 404), "unavailable"),
        (reply({"detail": "Method Not Allowed"}, 405), "unavailable"),
    ],
)
async def test_a_reset_is_believed_only_as_far_as_it_is_told(answer: bytes, state: str) -> None:
    async with RawServer({"POST /reset_prefix_cache": answer}) as server, VLLMClient(server.url) as client:
        reset = await client.reset_prefix_cache()
    assert reset.state == state
    assert reset.detail
    assert server.seen[0][1] == "/reset_prefix_cache?reset_external=false"
    if state == "unavailable":
        assert "VLLM_SERVER_DEV_MODE=1" in reset.detail


async def test_a_reset_that_fails_is_an_error() -> None:
    async with (
        RawServer({"POST /reset_prefix_cache": reply({"error": "x"}, 500)}) as server,
        VLLMClient(server.url) as client,
    ):
        with pytest.raises(TargetError, match="500"):
            await client.reset_prefix_cache()


async def test_server_info_falls_back_to_the_text_form_and_knows_its_absence() -> None:
    asked: list[str] = []

    async def either(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(server.seen[-1][1])
        body = reply({"error": "not serializable"}, 500)
        if "config_format" not in asked[-1]:
            body = reply(capture("engine/with-lmcache.server_info.json"))
        writer.write(body)
        await writer.drain()

    async with RawServer({"GET /server_info": either}) as server, VLLMClient(server.url) as client:
        facts = await client.server_info()
        assert facts is not None
        assert facts.dtype == "bfloat16"
        assert asked == ["/server_info?config_format=json", "/server_info"]
        server.routes = {}
        assert await client.server_info() is None


async def test_tokenizing_as_the_real_engine_does() -> None:
    for call in TOKENIZE:
        routes = {f"POST {call['path']}": reply(call["body"], call["status"])}
        async with RawServer(routes) as server, VLLMClient(server.url) as client:
            request = call["request"]
            if call["path"] == "/detokenize":
                assert await client.detokenize(request["tokens"]) == call["body"]["prompt"]
            else:
                tokens = await client.tokenize(request.get("prompt", ""), messages=request.get("messages"))
                assert list(tokens.ids) == call["body"]["tokens"]
                assert tokens.max_model_len == 4096
            assert json.loads(server.seen[0][2]) == request


@pytest.mark.parametrize("body", [{"tokens": "x"}, {"tokens": [1, "2"]}, {}, []])
async def test_odd_token_lists_are_unreadable(body: object) -> None:
    async with RawServer({"POST /tokenize": reply(body)}) as server, VLLMClient(server.url) as client:
        with pytest.raises(TargetError) as caught:
            await client.tokenize("x", model="m")
    assert caught.value.kind == "unreadable"


async def poll(server: RawServer, previous: EngineReading | None = None, read_timeout: float = 5) -> EngineReading:
    async with VLLMClient(server.url, read_timeout=read_timeout) as client:
        return await poll_engine(client, previous)


async def test_a_poll_reads_all_and_the_next_one_only_what_changes() -> None:
    async with captured_engine() as server:
        first = await poll(server)
        assert len(server.seen) == 5
        server.seen.clear()
        second = await poll(server, first)
        assert sorted(server.paths()) == ["GET /health", "GET /metrics"]
    for reading in (first, second):
        assert reading.http_up
        assert reading.version == "0.32.0"
        assert reading.max_model_len == 4096
        assert reading.reset_available is True
        assert reading.facts is not None
        assert reading.facts.dtype == "bfloat16"
        assert reading.process_start_time == 1_795_964_199.83
        assert dict(reading.error_kinds) == {}
        assert reading.latency_seconds is not None


async def test_a_restarted_engine_is_asked_again() -> None:
    async with captured_engine() as server:
        first = await poll(server)
        metrics = capture("engine/with-lmcache.metrics.txt").replace(b"1.79596419983e+09", b"1.79596500000e+09")
        server.routes["GET /metrics"] = reply(metrics, content_type=METRICS_TYPE)
        server.routes["GET /server_info"] = reply({"detail": "Not Found"}, 404)
        second = await poll(server, first)
    assert second.reset_available is False
    assert second.facts is None
    assert second.facts_reason is not None
    assert "dev mode" in second.facts_reason


async def test_without_a_process_start_everything_is_asked_each_time() -> None:
    async with captured_engine() as server:
        server.routes["GET /metrics"] = reply("vllm:num_requests_running 1\n", content_type=METRICS_TYPE)
        first = await poll(server)
        server.seen.clear()
        await poll(server, first)
        assert len(server.seen) == 5


async def test_a_reset_that_cannot_be_told_is_unknown() -> None:
    async with captured_engine() as server:
        server.routes["GET /server_info"] = reply({"error": "Unauthorized"}, 401)
        reading = await poll(server)
    assert reading.reset_available is None
    assert reading.error_kinds == {"server_info": "http"}


async def test_a_dead_engine_is_asked_once() -> None:
    async with RawServer({}) as server:
        port = server.port
    async with VLLMClient(f"http://127.0.0.1:{port}") as client:
        reading = await poll_engine(client)
    assert not reading.http_up
    assert dict(reading.error_kinds) == {"health": "refused", "metrics": "refused"}
    assert reading.version_reason == "not asked: the engine answered nothing"
    assert reading.reset_available is None


async def test_broken_metrics_beside_a_healthy_engine_are_explained() -> None:
    async with captured_engine() as server:
        server.routes["GET /metrics"] = reply("Internal Server Error", 500, "text/plain")
        reading = await poll(server)
    assert reading.http_up
    assert reading.health is not None
    assert reading.metrics is None
    assert reading.metrics_reason is not None
    assert "500" in reading.metrics_reason


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=60) | st.sampled_from([b"{}", b"null", b'{"data":[{}]}']),
            st.sampled_from([200, 404, 500]),
        ),
        min_size=5,
        max_size=5,
    )
)
def test_no_answer_whatever_makes_a_poll_raise(answers: list[tuple[bytes, int]]) -> None:
    paths = ("/health", "/version", "/v1/models", "/metrics", "/server_info")
    routes: dict[str, bytes | Script] = {
        f"GET {path}": reply(body, status) for path, (body, status) in zip(paths, answers, strict=True)
    }

    async def run() -> EngineReading:
        async with RawServer(routes) as server:
            return await poll(server, read_timeout=0.3)

    reading = asyncio.run(run())
    assert (reading.metrics is None) == (reading.metrics_reason is not None)
