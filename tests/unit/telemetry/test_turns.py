"""Polls in turn: so many at once, none held up by one that hangs, none lost by one that is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from app.telemetry.turns import Turns


async def test_so_many_are_under_way_at_once_and_all_get_theirs() -> None:
    turns, now, most, done = Turns(3, seconds=60), 0, 0, []

    async def poll(number: int) -> None:
        nonlocal now, most
        async with turns.one():
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1
            done.append(number)

    await asyncio.gather(*(poll(number) for number in range(20)))
    assert most == 3
    assert done == list(range(20))  # in the order in which they came


async def test_one_that_hangs_holds_up_no_other() -> None:
    turns, ended = Turns(1, seconds=0.02), asyncio.Event()

    async def hangs() -> None:
        async with turns.one():
            await ended.wait()

    hanging = asyncio.create_task(hangs())
    await asyncio.sleep(0)
    async with asyncio.timeout(5), turns.one():
        assert not hanging.done()
    ended.set()
    await hanging
    # Its turn was over before: it has given nothing back twice.
    async with asyncio.timeout(5), turns.one():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.005), turns.one():
                pass


async def test_one_that_is_cancelled_or_fails_gives_its_turn_back() -> None:
    turns = Turns(1, seconds=60)

    async def takes() -> None:
        async with turns.one():
            await asyncio.sleep(60)

    holding, waiting = asyncio.create_task(takes()), asyncio.create_task(takes())
    await asyncio.sleep(0)
    for task in (waiting, holding):
        task.cancel()
    await asyncio.gather(holding, waiting, return_exceptions=True)
    with pytest.raises(KeyError):
        async with asyncio.timeout(5), turns.one():
            raise KeyError
    async with asyncio.timeout(5), turns.one():
        pass
