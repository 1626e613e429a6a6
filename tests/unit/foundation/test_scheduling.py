from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from app.audit.service import AuditService
from app.clock import parse_iso
from app.database import Base, Database
from app.errors import Conflict, InvalidInput, NotFound, StoreError
from app.scheduling.cron import last_due, next_firings, validate_cron, validate_timezone
from app.scheduling.runner import WorkKind, WorkRunner
from app.scheduling.schemas import ScheduleInput, SchedulePatch
from app.scheduling.service import SchedulingService, StartedWork
from app.scheduling.work import Skipped, WorkColumns
from tests.unit.foundation.conftest import FrozenClock


class ScheduledJob(WorkColumns, Base):
    __tablename__ = "test_scheduled_job"


class Harness:
    def __init__(self, db: Database, clock: FrozenClock, audit: AuditService) -> None:
        Base.metadata.tables["test_scheduled_job"].create(db.engine, checkfirst=True)
        self.db, self.clock = db, clock
        self.runner = WorkRunner(db, clock)
        self.runner.register(WorkKind("job", ScheduledJob, lambda context: None))
        self.service = SchedulingService(db=db, clock=clock, audit=audit, runner=self.runner)
        self.fired: list[tuple[int, str]] = []
        self.service.register("scan", self.fire, self.check)
        self.state = "succeeded"

    def fire(self, target: int, options: Mapping[str, Any], actor: str) -> StartedWork | None:
        self.fired.append((target, actor))
        with self.db.write() as session:
            row = ScheduledJob(created_at=self.clock(), state=self.state, owner=self.runner.owner)
            session.add(row)
            session.flush()
            return StartedWork("job", row.id)

    def check(self, target: int, options: Mapping[str, Any]) -> None:
        if target == 404:
            raise NotFound.of("store", target)

    def make(self, cron: str = "0 3 * * *", **values: Any) -> int:
        body = ScheduleInput(name=f"s{len(self.fired)}{cron}", kind="scan", target_id="7", cron=cron, **values)
        return int(self.service.create(body, actor="user:a").id)

    def outcomes(self, schedule_id: int) -> list[str]:
        return [f.outcome for f in self.service.firings(schedule_id, page_size=50, page_token=None).items]


@pytest.fixture
def harness(db: Database, clock: FrozenClock, audit: AuditService) -> Harness:
    clock.now = parse_iso("2026-11-29T12:00:00Z")
    return Harness(db, clock, audit)


class TestCron:
    def test_weekday_numbers_are_debians(self) -> None:
        after = parse_iso("2026-11-28T12:00:00Z")  # a Saturday
        for sunday in ("0 3 * * 0", "0 3 * * 7", "0 3 * * SUN"):
            assert next_firings(sunday, "UTC", after, 1) == [parse_iso("2026-11-29T03:00:00Z")]

    def test_day_of_month_or_weekday(self) -> None:
        after = parse_iso("2026-11-28T12:00:00Z")
        assert next_firings("0 0 1 * MON", "UTC", after, 2) == [
            parse_iso("2026-11-30T00:00:00Z"),
            parse_iso("2026-12-01T00:00:00Z"),
        ]

    def test_a_time_that_the_clock_change_skips_still_fires_that_day(self) -> None:
        after = parse_iso("2026-03-28T12:00:00Z")
        assert next_firings("30 2 * * *", "Europe/Berlin", after, 1)[0] < parse_iso("2026-03-29T03:00:00Z")

    @pytest.mark.parametrize("text", ["", "* * * *", "61 * * * *", "0 0 31 2 *", "@daily", "x y z a b", "0 3 * * * *"])
    def test_nonsense_is_refused_naming_field_and_value(self, text: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            validate_cron(text)
        assert caught.value.errors[0].field == "cron"
        assert repr(text) in caught.value.detail

    @pytest.mark.parametrize("name", ["Mars/Base", "", "../etc/passwd", "/etc/passwd"])
    def test_unknown_time_zone(self, name: str) -> None:
        with pytest.raises(InvalidInput, match="Europe/Berlin"):
            validate_timezone(name)

    def test_last_due_is_the_latest_only(self) -> None:
        now = parse_iso("2026-11-29T12:00:00Z")
        assert last_due("0 3 * * *", "UTC", now - 10 * 86400, now) == parse_iso("2026-11-29T03:00:00Z")
        assert last_due("0 13 * * *", "UTC", now - 3600, now) is None


class TestFiring:
    def test_two_processes_never_run_the_same_firing(self, harness: Harness) -> None:
        schedule = harness.make()
        at = parse_iso("2026-11-30T03:00:00Z")
        assert harness.service.fire(schedule, at) is True
        assert harness.service.fire(schedule, at) is False
        assert harness.fired == [(7, f"schedule:{schedule}")]

    def test_overlap_is_refused_and_visible(self, harness: Harness) -> None:
        schedule = harness.make()
        harness.state = "running"
        harness.service.fire(schedule, 1.0)
        assert harness.service.fire(schedule, 2.0) is False
        assert harness.outcomes(schedule) == ["overlap", "started"]

    def test_an_error_is_kept(self, harness: Harness) -> None:
        def fail(target: int, options: Mapping[str, Any], actor: str) -> StartedWork | None:
            raise StoreError("the directory is gone")

        harness.service.register("scan", fail, harness.check)
        schedule = harness.make()
        harness.service.fire(schedule, 1.0)
        last = harness.service.get(schedule).last_firing
        assert last is not None
        assert (last.outcome, last.detail) == ("error", "the directory is gone")

    def test_what_was_missed_while_down_is_made_up_once_and_marked_late(self, harness: Harness) -> None:
        schedule = harness.make()
        harness.clock.advance(3 * 86400)
        for _ in range(2):
            harness.service.start()
            harness.service.stop()
        assert harness.outcomes(schedule) == ["late"]
        (firing,) = harness.service.recent_firings(5)
        assert firing.detail == "3 firings were missed while no panel ran, made up once"

    def test_a_firing_that_is_not_to_start_now_is_seen_with_its_reason(self, harness: Harness) -> None:
        def skip(target_id: int, options: Mapping[str, Any], actor: str) -> StartedWork | None:
            raise Skipped("not at night")

        harness.service.register("scan", skip, harness.check)
        schedule = harness.make()
        assert not harness.service.fire(schedule, 1.0)
        last = harness.service.get(schedule).last_firing
        assert last is not None
        assert (last.outcome, last.detail) == ("skipped", "not at night")

    def test_nothing_from_before_creation_or_resume_is_made_up(self, harness: Harness) -> None:
        schedule = harness.make(paused=True)
        harness.clock.advance(3 * 86400)
        harness.service.patch(schedule, SchedulePatch(paused=False), actor="t")
        harness.service.start()
        harness.service.stop()
        assert harness.fired == []

    def test_run_now_works_while_paused(self, harness: Harness) -> None:
        schedule = harness.make(paused=True)
        assert harness.service.run_now(schedule, actor="user:olga").outcome == "manual"
        assert harness.fired == [(7, "user:olga")]


class TestRows:
    def test_the_next_three_firings_are_shown(self, harness: Harness) -> None:
        view = harness.service.get(harness.make())
        assert view.next_firings == [
            "2026-11-30T03:00:00.000Z",
            "2026-12-01T03:00:00.000Z",
            "2026-12-02T03:00:00.000Z",
        ]

    def test_a_target_or_kind_that_is_not_there_is_refused(self, harness: Harness) -> None:
        with pytest.raises(NotFound):
            harness.service.create(ScheduleInput(name="x", kind="scan", target_id="404", cron="0 3 * * *"), actor="t")
        with pytest.raises(InvalidInput, match="'tidy' is not one of scan"):
            harness.service.create(ScheduleInput(name="x", kind="tidy", target_id="1", cron="0 3 * * *"), actor="t")

    def test_a_policys_own_schedule_is_kept_in_step(self, harness: Harness) -> None:
        for cron in ("0 3 * * *", "0 4 * * *", None):
            harness.service.set_for("scan", 7, name="p", cron=cron, timezone="UTC", enabled=True, actor="user:a")
            rows = harness.service.list_schedules(page_size=10, page_token=None).items
            assert [row.cron for row in rows] == ([cron] if cron else [])


def test_a_schedule_that_belongs_to_a_policy_is_not_deleted_behind_its_back(harness: Harness) -> None:
    harness.service.register("policy", harness.fire, harness.check)
    harness.service.set_for("policy", 7, name="p", cron="0 3 * * *", timezone="UTC", enabled=True, actor="user:a")
    schedule = harness.service.list_schedules(page_size=10, page_token=None).items[0]
    with pytest.raises(Conflict, match="belongs to a policy"):
        harness.service.delete(int(schedule.id), actor="user:a")


def test_a_prompt_job_waits_for_none_of_the_long_ones(harness: Harness) -> None:
    ended, came = threading.Event(), threading.Event()
    harness.service.start()
    try:
        for number in range(8):  # twice as many as there are threads
            harness.service.every(0.05, f"long-{number}", lambda: ended.wait(30))
        harness.service.every(0.05, "prompt", came.set, prompt=True)
        assert came.wait(20)
    finally:
        ended.set()
        harness.service.stop()
