"""Event streams: what a page hears, how many there are, and that none holds the panel's end up."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.scheduling.news import News
from app.web.streams import Streams
from tests.support.panel import Panel, running_panel
from tests.unit.foundation.test_commands import run, serving


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Panel]:
    with running_panel(tmp_path_factory.mktemp("streams") / "var", POLL_SECONDS="3600") as found:
        yield found


async def _yes() -> bool:
    return True


async def _no() -> bool:
    return False


async def _gather(streams: Streams, count: int) -> list[str]:
    text = streams.open(_yes)
    assert text is not None
    return [await anext(text) for _ in range(count)]


class TestStreams:
    def test_a_topic_is_told_once_however_often_it_came(self) -> None:
        async def story() -> list[str]:
            news = News()
            task = asyncio.create_task(_gather(Streams(news, gather=0.0), 3))
            await asyncio.sleep(0.05)

            def tell() -> None:
                for _ in range(100):
                    news.tell("scan")
                news.tell("alarms")

            other = threading.Thread(target=tell)
            other.start()
            other.join()  # before the loop turns: all of it waits together
            return await asyncio.wait_for(task, 10)

        hello, first, second = asyncio.run(story())
        assert hello == "retry: 5000\n\n"
        assert [first, second] == ["event: change\ndata: alarms\n\n", "event: change\ndata: scan\n\n"]

    def test_a_quiet_stream_beats_and_ends_when_its_page_is_signed_out(self) -> None:
        async def story() -> tuple[list[str], list[str], int]:
            streams = Streams(News(), beat=0.01)
            beats = await asyncio.wait_for(_gather(streams, 3), 10)
            text = streams.open(_no)
            assert text is not None
            rest = [piece async for piece in text]
            return beats, rest, streams.count

        beats, rest, _ = asyncio.run(story())
        assert beats[1:] == [": still here\n\n"] * 2
        assert rest == ["retry: 5000\n\n"]

    def test_news_without_end_keeps_nobody_who_is_signed_out(self) -> None:
        async def story() -> int:
            news = News()
            text = Streams(news, beat=0.05, gather=0.0).open(_no)
            assert text is not None

            async def chatter() -> None:
                while True:
                    news.tell("scan")
                    await asyncio.sleep(0.001)

            talking = asyncio.create_task(chatter())
            told = [piece async for piece in text if piece.startswith("event")]
            talking.cancel()
            return len(told)

        assert asyncio.run(asyncio.wait_for(story(), 20)) > 1

    def test_there_are_only_so_many_and_one_that_ended_makes_room(self) -> None:
        async def story() -> None:
            streams = Streams(News(), limit=2)
            texts = [streams.open(_yes) for _ in range(2)]
            for text in texts:
                assert text is not None
                await anext(text)
            assert streams.count == 2
            assert streams.open(_yes) is None
            assert texts[0] is not None
            await texts[0].aclose()  # type: ignore[attr-defined]
            assert streams.count == 1
            assert streams.open(_yes) is not None
            streams.close()
            assert streams.open(_yes) is None

        asyncio.run(story())

    def test_nobody_hears_what_is_told_after_the_loop_ended(self) -> None:
        news = News()

        async def story() -> object:
            text = Streams(news).open(_yes)
            assert text is not None
            await anext(text)
            return text

        kept = asyncio.run(story())
        news.tell("scan")  # the thread that works must not notice
        assert kept is not None


class TestOverHttp:
    def test_work_that_moves_on_is_told_to_those_who_are_signed_in_only(self, panel: Panel) -> None:
        assert httpx.get(f"{panel.url}/live").status_code == 303  # to the sign-in, as every page
        with panel.client() as client:
            headers = {"Authorization": client.headers["Authorization"], "Accept": "text/event-stream"}
            with httpx.stream("GET", f"{panel.url}/live", headers=headers, timeout=60) as answer:
                assert answer.status_code == 200
                assert answer.headers["content-type"].startswith("text/event-stream")
                lines = answer.iter_lines()
                assert next(lines) == "retry: 5000"
                assert client.post("/api/v1/checks/runs", json={}).status_code == 202
                told = next(line for line in lines if line.startswith("data:"))
        assert told == "data: check"

    def test_open_streams_do_not_hold_up_the_end(self, tmp_path: Path) -> None:
        data = tmp_path / "var"
        with serving(data, "serve", ADMIN_PASSWORD="x") as served:
            token = run(data, "token", "create", "--name", "page", "--role", "viewer").stdout.strip()
            headers = {"Authorization": f"Bearer {token}"}
            with httpx.Client(base_url=served.url, headers=headers, timeout=60) as client:
                answers = [client.send(client.build_request("GET", "/live"), stream=True) for _ in range(40)]
                assert {answer.status_code for answer in answers} == {200}
                began = time.monotonic()
                served.process.send_signal(signal.SIGTERM)
                assert served.process.wait(30) == 0
                assert time.monotonic() - began < 4  # what is stuck ends after 4.5 s: this was not stuck
                for answer in answers:
                    answer.close()
