"""The acceptance test on the real stack: what must pass, and every fault under the name it must get."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.real.panel import Panel
from tests.real.restarter import lying_engine, serving, webhook
from tests.real.stack.clients import wait_until
from tests.real.stack.control import RealStack

BASIC = ["cold", "warm", "external_l1", "external_l2"]
RECORD_BYTES = 32768


@dataclass
class Room:
    """A panel that knows the stack's server, engine and store."""

    stack: RealStack
    panel: Panel
    server_id: str
    engine_id: str
    extra_engines: dict[str, str] = field(default_factory=dict)

    def accept(self, *, seconds: float = 900, **changed: Any) -> dict[str, Any]:
        body = {"engine_id": self.engine_id, "arms": BASIC, "profile": "quick", "deadline_seconds": 900} | changed
        return self.panel.work("/acceptance-runs", body, seconds=seconds)

    def hook(self, url: str) -> str:
        action = {"webhook": url}
        body = {"name": f"hook {time.time()}", "server": action, "engine": action, "timeout_seconds": 800}
        return str(self.panel.post("/hooks", body)["id"])

    def fresh(self) -> None:
        """Engine and server as they should be."""
        self.stack.ensure()


@pytest.fixture(scope="module")
def room(session_stack: RealStack) -> Iterator[Room]:
    session_stack.ensure()
    panel = Panel(session_stack)
    server = panel.post("/servers", {"name": "real", "url": session_stack.server.url})
    engine = panel.post("/engines", {"name": "tiny", "url": session_stack.engine().url, "server_id": server["id"]})
    panel.post("/stores", {"name": "disk", "path": str(session_stack.l2), "server_id": server["id"], "confirm": True})
    panel.wait_polled(server["id"])
    yield Room(session_stack, panel, server["id"], engine["id"])
    panel.stop()


@contextmanager
def vandal(
    stack: RealStack, spoil: Callable[[Path], bytes], *, only: str = "", at_most: int = 10**6
) -> Iterator[list[str]]:
    """Overwrites new records of runs as soon as they appear; L1 keeps the right bytes."""
    before = set(stack.records())
    spoilt: list[str] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.003):
            for name, size in stack.records().items():
                new = "@tk-" in name and name not in before and name not in spoilt and size == RECORD_BYTES
                if new and name.endswith(f"{only}.data") and len(spoilt) < at_most:
                    path = stack.l2 / name
                    try:
                        wrong = spoil(path)
                        with path.open("r+b") as record:
                            record.write(wrong)
                    except FileNotFoundError:
                        continue
                    spoilt.append(name)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield spoilt
    finally:
        stop.set()
        thread.join()


def exponents_flipped(path: Path) -> bytes:
    """Every bfloat16 value with the highest exponent bit inverted."""
    raw = bytearray(path.read_bytes())
    for i in range(1, len(raw), 2):
        raw[i] ^= 0x40
    return bytes(raw)


def explained(run: dict[str, Any]) -> str:
    parts = ("verdict", "reasons", "steps", "arms", "evidence")
    return json.dumps({part: run[part] for part in parts}, indent=1)


def codes(run: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in run["findings"]}


class TestPass:
    @pytest.mark.timeout(3600)  # two engines start, one of them and the server again
    def test_all_arms_on_two_engines_with_restarts(self, room: Room) -> None:
        room.fresh()
        second = room.stack.start_engine("second")
        try:
            other = room.panel.post("/engines", {"name": "second", "url": second.url, "server_id": room.server_id})
            restarts: dict[str, Callable[[], object]] = {
                "server": room.stack.restart_server,
                "engine": room.stack.restart_engine,
            }
            with serving(webhook(lambda kind: restarts[kind]() and None)) as url:
                run = room.accept(
                    arms=[
                        *BASIC,
                        "mixed",
                        "shared_prefix",
                        "changed_head",
                        "cross_engine",
                        "restarted_server",
                        "restarted_engine",
                    ],
                    second_engine_id=other["id"],
                    restart_hook_id=room.hook(url),
                    deadline_seconds=1800,
                    seconds=1800,
                )
        finally:
            room.stack.stop_engine("second")
        assert run["verdict"] == "pass", explained(run)
        arms = {arm["name"]: arm for arm in run["arms"]}
        assert len(arms) == 10
        assert arms["cross_engine"]["external_tokens"] > 0
        assert arms["changed_head"]["external_tokens"] == 0
        for name in ("external_l1", "external_l2", "shared_prefix", "cross_engine", "restarted_server"):
            assert arms[name]["external_share"] == 1.0, arms[name]
        assert arms["restarted_server"]["l2_hit_tokens"] > 0
        assert arms["restarted_engine"]["external_share"] == 1.0

    def test_an_engine_without_the_connector_answers_the_same(self, room: Room) -> None:
        room.fresh()
        plain = room.stack.start_engine("plain", connector=False)
        try:
            other = room.panel.post("/engines", {"name": "plain", "url": plain.url})
            run = room.accept(arms=[*BASIC, "without_cache"], second_engine_id=other["id"])
        finally:
            room.stack.stop_engine("plain")
        assert run["verdict"] == "pass", explained(run)
        assert run["arms"][-1]["exact_matches"] == 4

    @pytest.mark.timeout(3600)
    def test_twenty_clean_runs_never_say_anything_but_pass(self, room: Room) -> None:
        room.fresh()
        verdicts = [room.accept(remove_records=False)["verdict"] for _ in range(20)]
        assert verdicts == ["pass"] * 20

    def test_chat_and_lengths_around_a_chunk(self, room: Room) -> None:
        room.fresh()
        run = room.accept(api="chat")
        assert run["verdict"] == "pass", explained(run)
        assert {c["outcome"] for c in run["evidence"]["controls"]} == {"moved"}, explained(run)
        run = room.accept(lengths=[63, 64, 65, 127, 128, 129, 300])
        assert run["verdict"] == "pass", explained(run)
        arm = {arm["name"]: arm for arm in run["arms"]}["external_l2"]
        assert arm["expected_external_tokens"] == 0 + 64 + 64 + 64 + 128 + 128 + 256
        assert arm["external_share"] == 1.0
        # 300 tokens with another middle, 129 with another beginning: both answers moved.
        controls = run["evidence"]["controls"]
        assert {(c["place"], c["outcome"]) for c in controls} == {("first", "moved"), ("middle", "moved")}
        print("negative controls:", json.dumps(controls))

    @pytest.mark.timeout(3600)
    def test_a_run_of_a_thousand_requests_is_flat_live_and_stops_at_once(self, room: Room) -> None:
        room.fresh()
        room.accept()
        before = _resident(room.panel.program.pid)
        run = room.accept(lengths=[70] * 250, remove_records=False, deadline_seconds=1800, seconds=1800)
        assert run["verdict"] == "pass", explained(run)
        progress = run["progress"]  # of every request, the cold ones behind the noise floor among them
        assert progress["done"] == progress["total"] >= 1000, progress
        assert _resident(room.panel.program.pid) - before < 60 * 2**20
        started = room.panel.post("/acceptance-runs", {"engine_id": room.engine_id, "lengths": [70] * 250})
        where = f"/acceptance-runs/{started['id']}"
        wait_until("progress", lambda: room.panel.get(where)["progress"]["done"] > 5, 60, every=0.1)
        began = time.monotonic()
        room.panel.post(f"{where}/cancel")
        ended = room.panel.get(where, wait=10)
        assert time.monotonic() - began < 2
        assert (ended["state"], ended["verdict"]) == ("cancelled", None)


def _resident(pid: int) -> int:
    """Resident bytes of the panel's processes (a console script may have a child)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


class TestFail:
    def test_exponent_bits_of_one_record(self, room: Room) -> None:
        room.fresh()
        with vandal(room.stack, exponents_flipped, only="-p02", at_most=1) as spoilt:
            run = room.accept()
        assert len(spoilt) == 1
        assert run["verdict"] == "fail", explained(run)

    def test_exponent_bits_of_all_records(self, room: Room) -> None:
        room.fresh()
        with vandal(room.stack, exponents_flipped):
            run = room.accept()
        assert run["verdict"] == "fail", explained(run)
        arm = run["arms"][3]
        # The engine refuses to print such numbers: an answer that differs, not an error of ours.
        assert arm["refused"] + arm["flips"] == arm["requests"]
        assert "answer_differs" in codes(run)

    def test_a_record_of_another_prompt_under_this_key(self, room: Room) -> None:
        room.fresh()
        stranger: list[bytes] = []

        def swap(path: Path) -> bytes:
            stranger.append(path.read_bytes())
            return stranger[0]

        with vandal(room.stack, swap, only="-p02"):
            run = room.accept()
        assert run["verdict"] == "fail", explained(run)

    def test_an_engine_restarted_with_another_dtype(self, room: Room) -> None:
        room.fresh()
        with serving(webhook(lambda _kind: room.stack.restart_engine(dtype="float16") and None)) as url:
            run = room.accept(arms=["cold", "warm", "external_l1", "restarted_engine"], restart_hook_id=room.hook(url))
        assert run["verdict"] == "fail", explained(run)
        assert {"answer_differs", "layout_changed"} <= codes(run)
        assert run["arms"][-1]["compared_to"] == "cold on the restarted engine"
        assert run["arms"][-1]["external_tokens"] > 0


class TestInvalid:
    def test_a_reset_that_answers_true_and_does_nothing(self, room: Room) -> None:
        room.fresh()
        with serving(lying_engine(room.stack.engine().url)) as url:
            liar = room.panel.post("/engines", {"name": "liar", "url": url, "server_id": room.server_id})
            run = room.accept(engine_id=liar["id"])
            room.panel.client.delete(f"/engines/{liar['id']}")
        assert run["verdict"] == "invalid", explained(run)
        assert "reset_had_no_effect" in codes(run)

    def test_a_store_that_never_reaches_l2(self, room: Room) -> None:
        room.fresh()
        hidden = room.stack.l2.with_name("l2-hidden")
        room.stack.l2.rename(hidden)
        try:
            run = room.accept(allow_clear_l1=True)
        finally:
            if room.stack.l2.exists():
                room.stack.l2.rmdir()
            hidden.rename(room.stack.l2)
        assert run["verdict"] == "invalid", explained(run)
        assert "never_reached_l2" in codes(run)

    def test_a_layout_that_changed_with_nothing_from_the_cache(self, room: Room) -> None:
        room.fresh()

        def other_engine(_kind: str) -> None:
            """The engine comes back with another dtype, and its records are gone from both tiers."""
            room.stack.stop_engine()
            room.stack.server.clear_l1()
            for name in room.stack.records():
                if "@tk-" in name:
                    (room.stack.l2 / name).unlink(missing_ok=True)
            room.stack.start_engine(dtype="float16")

        with serving(webhook(other_engine)) as url:
            run = room.accept(arms=["cold", "warm", "external_l1", "restarted_engine"], restart_hook_id=room.hook(url))
        assert run["verdict"] == "invalid", explained(run)
        assert "layout_changed" in codes(run)
        assert run["arms"][-1]["external_tokens"] == 0


class TestTimeout:
    def test_an_engine_that_stops_answering(self, room: Room) -> None:
        room.fresh()
        body = {"engine_id": room.engine_id, "arms": BASIC, "profile": "standard", "request_timeout_seconds": 5}
        started = room.panel.post("/acceptance-runs", body)
        where = f"/acceptance-runs/{started['id']}"
        wait_until("some answers", lambda: room.panel.get(where)["progress"]["done"] > 3, 60, every=0.05)
        with room.stack.frozen(room.stack.engine_program()):
            run = room.panel.ended(f"/api/v1{where}", seconds=60)
        assert run["verdict"] == "timeout", explained(run)
        assert "engine_stopped_answering" in codes(run)


class TestCanaries:
    """A canary made today, and what tomorrow's check says of three faults."""

    @pytest.fixture
    def canary(self, room: Room) -> Iterator[dict[str, Any]]:
        room.fresh()
        run = room.accept(arms=["cold", "warm", "external_l1"])
        assert run["verdict"] == "pass", explained(run)
        made = room.panel.work("/canaries", {"run_id": run["id"], "count": 1})
        assert made["outcome"] == "ok", made
        kept = room.panel.get(f"/canaries/{made['canary_ids'][0]}")
        yield kept
        room.panel.client.delete(f"/canaries/{kept['id']}")

    def check(self, room: Room) -> dict[str, Any]:
        return room.panel.work("/canaries/runs", {"engine_id": room.engine_id})

    def test_right_after_a_restart_of_both(self, room: Room, canary: dict[str, Any]) -> None:
        assert self.check(room)["outcome"] == "ok"
        room.stack.restart_server()
        room.stack.restart_engine()
        done = self.check(room)
        assert done["outcome"] == "ok", done
        assert done["checks"][0]["external_tokens"] == done["checks"][0]["expected_tokens"] > 0

    def test_overwritten(self, room: Room, canary: dict[str, Any]) -> None:
        for name in room.stack.records(salt=canary["salt"]):
            (room.stack.l2 / name).write_bytes(bytes(RECORD_BYTES))
        done = self.check(room)
        assert (done["outcome"], done["findings"][0]["code"]) == ("wrong", "canary_overwritten"), done

    def test_deleted(self, room: Room, canary: dict[str, Any]) -> None:
        (room.stack.l2 / sorted(room.stack.records(salt=canary["salt"]))[0]).unlink()
        done = self.check(room)
        assert (done["outcome"], done["findings"][0]["code"]) == ("lost", "canary_lost"), done

    def test_another_dtype(self, room: Room, canary: dict[str, Any]) -> None:
        room.stack.ensure(dtype="float16")
        done = self.check(room)
        assert (done["outcome"], done["findings"][0]["code"]) == ("wrong", "canary_layout_changed"), done
