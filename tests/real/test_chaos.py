"""Chaos on the real stack: a real LMCache server and a real vLLM under traffic on a small disk of their own; at random
the panel, the server or the engine is killed (kill -9), or the disk filled and freed.

`CHAOS_SECONDS` says how long (three minutes where it does not; `make chaos` runs half an hour).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.real.stack.clients import drift, prompt
from tests.real.stack.commands import EngineKnobs, ServerKnobs
from tests.real.stack.control import RealStack
from tests.support.chaos import Component, run_chaos
from tests.support.disk import fill, small_disk

SECONDS = float(os.environ.get("CHAOS_SECONDS", "180"))
MEGABYTES = 192
#: Prompts asked again and again (their answers are known), and how often one comes that nobody has asked before.
KNOWN, NEW_EVERY_SECONDS = 12, 2.0
TOKENS = 200
#: Of a log-probability, in nat. The engine computes in bfloat16; a record of other bytes moves it by far more.
NOISE = 0.05


@dataclass
class RealChaos:
    """The real server and engine as something chaos is done to."""

    stack: RealStack
    disk: Path
    fillable: bool
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    ballast: Path | None = None

    @property
    def server_url(self) -> str:
        return self.stack.server.url

    @property
    def engine_url(self) -> str:
        return self.stack.engine().url

    @property
    def store(self) -> Path:
        return self.stack.l2

    def kill(self, component: Component) -> None:
        if component == "server":
            self.stack.stop_server(hard=True)
        else:
            self.stack.stop_engine(hard=True)

    def start(self, component: Component) -> None:
        """Every other restart of the server is inside the heartbeat: the engine never notices, and the cache is off
        until the engine itself is started again.
        """
        if component == "engine":
            self.stack.start_engine()
        elif self.dice.random() < 0.5:
            self.stack.start_server()
        else:
            self.stack.revive_server()

    def can_fill(self) -> bool:
        return self.fillable

    def fill(self) -> None:
        self.ballast = fill(self.disk)

    def free(self) -> None:
        assert self.ballast is not None
        self.ballast.unlink()


@dataclass
class Traffic:
    """Requests all the time. One that met a dead engine counts as such; one that was answered must be right."""

    stack: RealStack
    done: Counter[str] = field(default_factory=Counter)
    troubles: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Traffic:
        engine = self.stack.engine()
        self._right = {f"known-{n}": engine.complete(prompt(TOKENS, n), salt=f"known-{n}") for n in range(KNOWN)}
        self._thread = threading.Thread(target=self._go, name="chaos-traffic")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _go(self) -> None:
        number, next_new = 0, 0.0
        while not self._stop.wait(0.05):
            number += 1
            try:
                if time.monotonic() >= next_new:
                    next_new = time.monotonic() + NEW_EVERY_SECONDS
                    status = self.stack.engine().complete(prompt(TOKENS, 10_000 + number), salt=f"new-{number}").status
                    self.done[f"new {status}"] += 1
                    continue
                salt = f"known-{number % KNOWN}"
                answer = self.stack.engine().complete(prompt(TOKENS, number % KNOWN), salt=salt)
            except httpx.HTTPError:
                self.done["engine away"] += 1
                continue
            self.done[f"known {answer.status}"] += 1
            if answer.status == 200:
                self.done["from the cache"] += bool(answer.external)
                worst = drift(answer, self._right[salt])
                if worst > NOISE:
                    self.troubles.append(f"{salt}: the answer moved by {worst:.3f} nat ({answer.external} external)")


@pytest.fixture
def chaos(session_stack: RealStack) -> Iterator[RealChaos]:
    stack = session_stack
    stack.stop()
    stack.server_knobs = ServerKnobs()
    disk = stack.directory / "chaos-disk"
    with small_disk(disk, MEGABYTES) as mounted:
        store = disk / "l2"
        store.mkdir()
        try:
            stack.start(server={"l2_path": store}, engine=asdict(EngineKnobs()))
            yield RealChaos(stack, disk, mounted)
        finally:
            stack.stop()


@pytest.mark.timeout(1800 + 2 * SECONDS)
def test_nothing_is_lost_and_nothing_wrong_is_deleted(chaos: RealChaos) -> None:
    with Traffic(chaos.stack) as traffic:
        told = run_chaos(chaos, chaos.stack.directory / "chaos-panel", seconds=SECONDS)
    print(dict(told.done), dict(traffic.done), f"{len(told.records)} records", f"{len(told.tokens)} tokens")
    print(*told.wrong[:5], sep="\n")  # pytest shortens what it compares
    assert told.wrong == []
    assert traffic.troubles == []
    assert told.tokens
    expected = {"kill panel", "kill server", "kill engine", "quarantined"} | (
        {"fill disk"} if chaos.fillable else set()
    )
    assert {name for name, count in told.done.items() if count} == expected
    assert traffic.done["from the cache"], "the cache never helped: nothing was tried"
    assert traffic.done["engine away"], "no request met a dead engine: nothing was tried"
