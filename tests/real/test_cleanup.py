"""Cleanup under fire on the real stack: traffic goes on while a third of the store is removed.

Records of another layout and what was computed behind them (laundering) are found and finished in `test_main_job`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.real.attempts import Shared, shared
from tests.real.jobs import Job, new_job
from tests.real.stack.clients import Answer, drift, prompt, wait_until
from tests.real.stack.control import RealStack
from tests.real.stack.steps import contents, from_disk, store

TOKENS, CHUNKS = 200, 3
GOES = [f"gone-{number}" for number in range(6)]
STAYS = [f"stay-{number}" for number in range(12)]


@dataclass
class Traffic:
    """Asks all prompts again and again, each round with the engine's cache and L1 emptied, so that L2 is read."""

    stack: RealStack
    prompts: dict[str, list[int]]
    answers: list[tuple[str, Answer]] = field(default_factory=list)
    troubles: list[BaseException] = field(default_factory=list)
    rounds: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Traffic:
        self._thread = threading.Thread(target=self._go)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _go(self) -> None:
        try:
            while not self._stop.is_set():
                self.stack.engine().empty_l0()
                self.stack.server.clear_l1()
                for salt, tokens in self.prompts.items():
                    self.answers.append((salt, self.stack.engine().complete(tokens, salt=salt)))
                    if self._stop.is_set():
                        return
                self.rounds += 1
        except BaseException as error:
            self.troubles.append(error)

    def two_more_rounds(self) -> None:
        seen = self.rounds
        wait_until("two rounds of traffic", lambda: self.rounds >= seen + 2 or self.troubles, 120)


@pytest.fixture(scope="module")
def jobs(session_stack: RealStack) -> Iterator[Shared[Job]]:
    with shared(lambda: new_job(session_stack, "l2-cleanup", engine={"warm_up": False})) as jobs:
        yield jobs


@pytest.fixture
def job(jobs: Shared[Job], request: pytest.FixtureRequest) -> Job:
    return jobs.of(request)


def test_traffic_keeps_running_through_a_cleanup_of_a_third_of_the_store(job: Job) -> None:
    stack, panel, store_id = job.stack, job.panel, job.store_id
    stack.ensure()
    prompts = {salt: prompt(TOKENS, 700 + number) for number, salt in enumerate([*GOES, *STAYS])}
    right = {salt: store(stack, tokens, salt) for salt, tokens in prompts.items()}
    saved = {salt: contents(stack, salt) for salt in prompts}
    for salt, tokens in prompts.items():  # a first reading moves the access time; a later one within a day does not
        assert from_disk(stack, tokens, salt).external == CHUNKS * 64
    assert panel.work(f"/stores/{store_id}/scans")["state"] == "succeeded"
    plan = panel.work(f"/stores/{store_id}/plans", {"filter": {"q": "@gone-"}, "removal": "quarantine"})
    assert plan["records"] == CHUNKS * len(GOES) == len(stack.records()) // 3

    with Traffic(stack, prompts) as traffic:
        traffic.two_more_rounds()
        run = panel.work(f"/plans/{plan['id']}/runs")
        traffic.two_more_rounds()
    assert not traffic.troubles, traffic.troubles
    assert (run["verdict"], run["removed"]["records"]) == ("succeeded", CHUNKS * len(GOES)), run

    failed = [(salt, answer.status) for salt, answer in traffic.answers if answer.status != 200]
    assert not failed, "no request fails"
    assert {salt: drift(right[salt], answer) for salt, answer in traffic.answers if drift(right[salt], answer)} == {}
    again = [answer.external for salt, answer in traffic.answers if salt in GOES]
    assert 0 in again, "a cleaned prompt was computed anew"
    assert {answer.external for salt, answer in traffic.answers if salt in STAYS} == {CHUNKS * 64}, "the rest was hit"
    for salt, tokens in prompts.items():
        stack.wait_stored(CHUNKS, salt=salt)
        last = from_disk(stack, tokens, salt)
        assert (last.external, drift(right[salt], last)) == (CHUNKS * 64, 0.0), "stored again, and right"
        assert contents(stack, salt) == saved[salt]

    # Everything was written anew meanwhile: nothing is put over it, and the quarantine keeps what it has.
    files = {name: os.stat(stack.l2 / name).st_ino for name in stack.records()}
    restored = panel.work(f"/cleanup-runs/{run['id']}/restore", {})
    assert restored["state"] == "succeeded", restored
    waits = panel.get(f"/cleanup-runs/{run['id']}")["in_quarantine"]["records"]
    assert waits == CHUNKS * len(GOES)
    assert {name: os.stat(stack.l2 / name).st_ino for name in stack.records()} == files
