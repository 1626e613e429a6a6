"""Stores that fill, go away or hold what they should not; and what is to happen by itself and does not."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.alerts.catalogue import RULES
from app.alerts.facts.record_classes import derived_records, record_classes
from app.alerts.inputs import Moment, StoreInput
from app.alerts.schemas import NotifierInput, OverrideInput, RulePatch
from app.cleanup.tables import CleanupRun
from app.records.store_dir import ClockProbe, StoreDirectory
from app.sandbox import ServerSpec
from app.scheduling.tables import Firing, Schedule
from app.telemetry import store_reading
from tests.unit.alerts.support import Stage, staged

GB = 10**9


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The file system below every store, as the test wants it."""
    values = {"free": 500 * GB, "inodes": 10_000_000.0}

    def statvfs(path: object) -> object:
        fields = [
            4096,
            4096,
            1000 * GB // 4096,
            (int(values["free"]) + int(values.get("reserved", 0))) // 4096,
            int(values["free"]) // 4096,
            10**8,
            0,
            int(values["inodes"]),
            0,
            255,
        ]
        return os.statvfs_result(fields)

    monkeypatch.setattr(store_reading.os, "statvfs", statvfs)
    return values


def test_room_that_gets_less(tmp_path: Path, room: dict[str, float]) -> None:
    with staged(tmp_path) as stage:
        stage.run(60, 30)
        assert stage.firing() == {}
        room["free"] = 80 * GB
        stage.run(360, 60)
        assert set(stage.firing()) == {"free_space_low"}
        assert (
            "8.0 % of what the file system of disk can hold is free (80.0 GB)"
            in stage.firing()["free_space_low"].sentence
        )
        room["free"] = 0.5 * GB
        stage.control.misbehave("server/0", stores_never_complete=True)  # as it is with a full disk
        stage.run(300, 30, each=stage.ask)
        # It was told that room gets less; that it is full is news, that stores fail then is not.
        assert {rule for rule in stage.firing() if rule != "free_space_low"} == {"store_full"}
        assert stage.pending()["stores_failing"].explained_by == stage.firing()["store_full"].id
        room["free"] = 500 * GB
        stage.control.behave()
        stage.run(480, 30, each=stage.ask)
        assert stage.firing() == {}
        room["inodes"] = 500
        stage.tick()
        assert "500 inodes are left" in stage.firing()["store_full"].sentence


def test_room_is_counted_as_df_counts_it(tmp_path: Path, room: dict[str, float]) -> None:
    """What is kept back for root is neither used nor free."""
    with staged(tmp_path) as stage:
        room |= {"free": 110 * GB, "reserved": 50 * GB}
        stage.run(360, 60)
        assert stage.fact("store_room", "store").numbers["share"] == pytest.approx(110 / 950, rel=1e-3)
        assert stage.firing() == {}
        room |= {"free": 94 * GB}
        stage.run(360, 60)
        assert "9.9 % of what the file system" in stage.firing()["free_space_low"].sentence


def test_a_floor_of_its_own_for_one_store(tmp_path: Path, room: dict[str, float]) -> None:
    with staged(tmp_path) as stage:
        body = OverrideInput(
            target_kind="store",
            target_id=str(stage.store_id),
            thresholds={"share": 0.6},
            for_seconds=0,
            severity="info",
        )
        stage.alerts.rules.set_override("free_space_low", body, actor="t")
        stage.tick()
        alarm = stage.firing()["free_space_low"]
        assert (alarm.severity, alarm.limit) == ("info", 0.6)


def test_a_store_that_is_gone(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.run(30)
        stage.sandbox.store_path.rename(tmp_path / "elsewhere")
        stage.run(120, 30)
        assert set(stage.firing()) == {"store_unusable"}
        assert "the directory is gone" in stage.firing()["store_unusable"].sentence
        (tmp_path / "elsewhere").rename(stage.sandbox.store_path)
        stage.run(90, 30)
        assert stage.firing() == {}


def test_a_store_that_will_be_full_soon(tmp_path: Path, room: dict[str, float]) -> None:
    with staged(tmp_path) as stage:
        stage.ask()
        stage.scan()
        stage.tick()
        assert stage.fact("time_to_full", "store").reason == "needs two scans"
        stage.clock.now += 3600
        for _ in range(30):
            stage.ask()  # 9.8 MB within the hour
        stage.scan()
        stage.tick()
        fact = stage.fact("time_to_full", "store")
        assert fact.numbers["growth"] == pytest.approx(30 * 10 * 32768, rel=0.01)
        assert fact.state == "ok"
        room["free"] = 200_000_000
        stage.alerts.rules.patch_rule("store_full", RulePatch(thresholds={"bytes": 0}), actor="t")
        stage.alerts.rules.patch_rule("free_space_low", RulePatch(enabled=False), actor="t")
        stage.run(660, 30)
        assert set(stage.firing()) == {"store_filling"}
        assert "is full in 20 h" in stage.firing()["store_filling"].sentence


def test_unfinished_writes_pile_up(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.ask()
        folder = stage.sandbox.store_path / ".tmp"
        folder.mkdir(exist_ok=True)
        name = next(stage.sandbox.store_path.glob("*.data")).name
        for number in range(120):
            file = folder / name.replace(name.split("@")[3][:4], f"{number:04x}", 1)
            file.write_bytes(b"x")
            old = stage.clock.now - (7200 if number < 99 else 60)  # the last ones may still be written to
            os.utime(file, (old, old))
        stage.tick()
        stage.scan()
        stage.tick()
        assert stage.fact("temporaries", "store").numbers["files"] == 99
        assert stage.firing() == {}
        stage.clock.now += 3600
        stage.tick()
        stage.scan()
        stage.tick()
        assert set(stage.firing()) == {"temporary_pile_up"}
        assert stage.firing()["temporary_pile_up"].value == 120
        for file in folder.iterdir():
            file.unlink()
        stage.scan()
        stage.tick()
        assert stage.firing() == {}


def test_dead_records(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.ask()
        stage.run(900, 30)  # what is only just written may be empty for a moment
        stage.scan()
        stage.tick()
        assert stage.fact("record_classes", "store").numbers["corrupt"] == 0
        assert stage.firing() == {}
        record = next(stage.sandbox.store_path.glob("*.data"))
        then = record.stat().st_mtime
        record.write_bytes(b"")
        os.utime(record, (then, then))
        stage.scan()
        stage.tick()
        assert set(stage.firing()) == {"dead_records"}
        for record in list(stage.sandbox.store_path.glob("*.data"))[:5]:
            record.write_bytes(b"")
            os.utime(record, (then, then))
        stage.scan()
        stage.tick()
        corrupt = stage.records.summary(stage.store_id).by_class["corrupt"].records
        assert stage.firing()["dead_records"].value == corrupt > 1, "no page says another number"


def test_wrong_records() -> None:
    """What a scan calls incompatible is tested with the records; here, that it is told."""
    rule = RULES["wrong_records"]
    for count, holds in ((0, False), (3, True)):
        store = StoreInput(
            3,
            "disk",
            "/kv",
            "/kv",
            scanned_at=1.0,
            records={"current": 9, "incompatible": count + 2, "unverified": 5},  # two of a model nobody serves
            wrong=count,
        )
        verdict = rule.verdict(record_classes(Moment(2.0, 10.0), store), rule.defaults)
        assert (verdict.holds, verdict.value) == (holds, count)
        of_how_many = f"({count + 2} are incompatible; the rest is of what nothing serves now, and read by no request)"
        assert of_how_many in verdict.sentence
    store = replace(store, records={"incompatible": 3})
    assert "incompatible" not in rule.verdict(record_classes(Moment(2.0, 10.0), store), rule.defaults).sentence
    never = record_classes(Moment(2.0, 10.0), StoreInput(3, "disk", "/kv", "/kv"))
    assert rule.verdict(never, rule.defaults).holds is None


def test_wrong_records_stay_wrong_while_the_server_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its server no record can be judged by its layout: that is no reason to call off the alarm."""
    # The disk's clock is the machine's, the panel's stands still: told apart, every record could be of any time.
    monkeypatch.setattr(StoreDirectory, "clock_probe", lambda *_: ClockProbe(0.0, measured=True))
    with staged(tmp_path, servers=[ServerSpec(reap_timeout_seconds=60)]) as stage:
        stage.run(60)
        stage.ask()
        for record in stage.sandbox.store_path.glob("*.data"):
            os.utime(record, (stage.clock.now, stage.clock.now))
        stage.run(60)
        stage.control.restart("engine", dtype="float16")
        stage.run(200)
        stage.scan()
        stage.tick()
        before = stage.firing()["wrong_records"]
        assert before.value and before.value > 0
        stage.control.kill("server/0")
        stage.run(120)
        stage.scan()  # now every one of them is unverified
        stage.run(60)
        summary = stage.records.summary(stage.store_id)
        assert summary.by_class["incompatible"].records == 0
        kept = stage.firing()["wrong_records"]
        assert (kept.id, kept.value) == (before.id, before.value)
        assert "were proven to be of another layout when last known 20" in kept.sentence
        assert "does not answer" in kept.sentence
        stage.alerts = stage.new_alerts()  # a panel that starts now never saw them judged
        stage.run(120)
        assert stage.firing()["wrong_records"].id == before.id
        assert stage.fact("record_classes", "store").state == "unknown"
        stage.control.start("server/0")
        stage.control.restart("engine", dtype="float16")
        for record in stage.sandbox.store_path.glob("*.data"):
            record.unlink()
        stage.run(120)
        stage.scan()
        stage.run(60)
        assert "wrong_records" not in stage.firing()


def run_row(stage: Stage, number: int, verdict: str | None, state: str = "succeeded", note: str = "") -> None:
    with stage.db.write() as session:
        session.add(
            CleanupRun(
                id=number,
                state=state,
                created_at=stage.clock.now,
                finished_at=stage.clock.now,
                store_id=stage.store_id,
                policy_name="keep it safe",
                folder=f"run-{number}",
                verdict=verdict,
                notes=[note] if note else [],
            )
        )


def test_a_cleanup_that_did_not_reach_its_goal(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        run_row(stage, 1, "succeeded")
        stage.tick()
        assert stage.firing() == {}
        run_row(stage, 2, "insufficient", note="restart the engine to clear its GPU cache")
        stage.tick()
        alarm = stage.firing()["cleanup_insufficient"]
        assert alarm.part == "keep it safe"
        assert "cleanup run 2" in alarm.sentence
        assert "restart the engine to clear its GPU cache" in alarm.sentence
        run_row(stage, 3, "nothing_to_do")
        stage.tick()
        assert stage.firing() == {}
        run_row(stage, 4, None, state="interrupted")
        stage.tick()
        assert "ended" in stage.firing()["cleanup_insufficient"].sentence


def test_a_schedule_that_is_missed_or_refused(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        now = stage.clock.now
        with stage.db.write() as session:
            session.add(
                Schedule(id=1, name="nightly", kind="scan", target_id=1, cron="* * * * *", created_at=now, armed_at=now)
            )
            session.add(
                Schedule(
                    id=2,
                    name="idle",
                    kind="scan",
                    target_id=1,
                    cron="* * * * *",
                    created_at=now,
                    armed_at=now,
                    paused=True,
                )
            )

        def fired(outcome: str, detail: str | None = None) -> None:
            at = stage.clock.now // 60 * 60
            with stage.db.write() as session:
                session.add(Firing(schedule_id=1, scheduled_for=at, fired_at=at, outcome=outcome, detail=detail))

        for _ in range(4):
            stage.tick(60)
            fired("started")
        stage.tick()
        assert stage.firing() == {}
        stage.run(420, 60)  # the minute comes, and nothing happens
        assert "nightly was due" in stage.firing()["schedule_missed"].sentence
        fired("error", "no store has the id '1'")
        stage.tick()
        assert "refused (error): no store has the id '1'" in stage.firing()["schedule_missed"].sentence
        stage.tick(60)
        fired("started")
        stage.tick()
        assert stage.firing() == {}


def test_messages_that_do_not_get_out(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        body = NotifierInput(name="on call", kind="webhook", url="http://127.0.0.1:9/", min_severity="info")
        stage.alerts.notifiers.create(body, actor="t")
        stage.run(30)
        stage.control.kill("server/0")
        for _ in range(30):
            stage.tick(30)
            stage.alerts.deliver()
        assert set(stage.firing()) == {"server_unreachable", "notifier_failing"}
        alarm = stage.firing()["notifier_failing"]
        assert "messages wait for the notifier on call" in alarm.sentence
        assert "refused" in alarm.sentence


def derived_of(count: int, wrong: int = 0, **more: Any) -> StoreInput:
    records = {"current": 9, "incompatible": wrong, "unverified": count}
    return StoreInput(3, "disk", "/kv", "/kv", scanned_at=1.0, records=records, wrong=wrong, derived=count, **more)


def test_derived_records_that_were_left() -> None:
    rule = RULES["derived_records"]
    for count, sentence in ((0, "0 records"), (1, "1 record of disk is derived"), (3, "3 records of disk are derived")):
        verdict = rule.verdict(derived_records(Moment(2.0, 10.0), derived_of(count)), rule.defaults)
        assert (verdict.holds, verdict.value) == (count > 0, count) and verdict.sentence.startswith(sentence)
    never = derived_records(Moment(2.0, 10.0), StoreInput(3, "disk", "/kv", "/kv"))
    away = derived_of(0, blind="server cache-0 does not answer")
    for unknown in (never, derived_records(Moment(2.0, 10.0), away)):
        assert rule.verdict(unknown, rule.defaults).holds is None
    known = derived_of(3, blind="server cache-0 does not answer", known_at=1.0)
    kept = rule.verdict(derived_records(Moment(9.0, 10.0), known), rule.defaults)
    assert kept.holds and "when last known 1970" in kept.sentence


def test_one_alarm_for_wrong_records_and_what_was_derived_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreDirectory, "clock_probe", lambda *_: ClockProbe(0.0, measured=True))

    def written_now(stage: Stage, known: set[Path]) -> set[Path]:
        new = set(stage.sandbox.store_path.glob("*.data")) - known
        for record in new:
            os.utime(record, (stage.clock.now, stage.clock.now))
        return new

    with staged(tmp_path, servers=[ServerSpec(reap_timeout_seconds=60)]) as stage:
        stage.run(60)
        stage.ask(which=1)
        wrong = written_now(stage, set())
        stage.run(60)
        stage.control.restart("engine", dtype="float16")
        stage.run(200)
        stage.ask(960, which=1)  # its beginning is read back, its end is computed behind that
        assert written_now(stage, wrong)
        stage.run(60)
        stage.scan()
        stage.run(400)
        assert stage.fact("derived_records", "store").numbers["derived"]
        assert "wrong_records" in stage.firing() and "derived_records" not in stage.firing()
        assert stage.pending()["derived_records"].explained_by == stage.firing()["wrong_records"].id
        for record in wrong:
            record.unlink()
        stage.scan()
        stage.run(400)
        assert "wrong_records" not in stage.firing()
        assert "maybe computed behind wrong ones" in stage.firing()["derived_records"].sentence
