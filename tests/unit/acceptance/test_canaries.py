"""Canaries: kept from a passed run, read back from their old records; loss, drift and wrongness are told apart."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy import select, update

from app.acceptance import canary_rows as rows
from app.acceptance.answers import Answer, Refusal
from app.acceptance.canary_schemas import CanaryInput, CanaryRunInput, CanaryRunView, CanaryView
from app.acceptance.canary_verdict import CanaryOutcome, CanaryVerdict, Reading, judge, what_became, worst
from app.acceptance.canary_watch import due
from app.acceptance.evidence import TokenEvidence
from app.acceptance.own_records import OwnRecord
from app.acceptance.tables import AcceptanceRun
from app.cleanup.tables import CleanupRun
from app.errors import Conflict, InvalidInput, NotFound
from app.lmcache.object_keys import ObjectKey
from app.records.tables import RecordHold
from tests.unit.acceptance.conftest import Panel, PanelMaker
from tests.unit.acceptance.factories import answer, tolerance


def keep(panel: Panel, count: int = 1) -> list[CanaryView]:
    """A passed run, and canaries kept from it."""
    run = panel.run(lengths=[210])
    assert run.verdict == "pass", run.reasons
    made = panel.service.canaries.keep(CanaryInput(run_id=run.id, count=count), actor="tester")
    assert (made.state, made.outcome) == ("succeeded", "ok"), made
    return panel.service.canaries.list_canaries(page_size=10, page_token=None).items


def check(panel: Panel) -> CanaryRunView:
    return panel.service.canaries.check(CanaryRunInput(engine_id=panel.engines[0]), actor="tester")


def files_of(panel: Panel, canary: CanaryView) -> list[Path]:
    return sorted(panel.store.glob(f"*@{canary.salt}.data"))


class TestLife:
    def test_kept_records_are_read_back_and_right(self, panel: Panel) -> None:
        assert panel.service.canaries.standing() == {}
        (canary,) = keep(panel)
        assert canary.records == len(files_of(panel, canary)) == 3
        standing = panel.service.canaries.standing()[canary.engine_id]
        assert (standing.kept, standing.outcomes, standing.checked_at) == (1, {"never": 1}, None)
        done = check(panel)
        assert (done.state, done.outcome, done.findings) == ("succeeded", "ok", [])
        point = done.checks[0]
        assert (point.external_tokens, point.expected_tokens) == (192, 192)
        assert point.max_abs_difference == point.kept_max_abs_difference == 0.0
        again = panel.service.canaries.get(int(canary.id))
        assert (again.last_outcome, len(again.history)) == ("ok", 1)
        standing = panel.service.canaries.standing()[canary.engine_id]
        assert (standing.outcomes, standing.checked_at) == ({"ok": 1}, again.last_checked_at)

    def test_they_are_still_right_after_a_restart_of_the_engine(self, panel: Panel) -> None:
        keep(panel)
        panel.sandbox.control.restart("engine")
        assert check(panel).outcome == "ok"

    def test_cleanup_is_told_to_leave_their_records(self, panel: Panel) -> None:
        (canary,) = keep(panel)
        with panel.db.read() as session:
            held = session.scalars(select(RecordHold)).all()
        assert sorted(h.name.decode() for h in held) == [p.name for p in files_of(panel, canary)]
        assert all(h.reason.startswith("canary") for h in held)
        panel.service.canaries.forget(int(canary.id), actor="tester")
        with panel.db.read() as session:
            assert session.scalars(select(RecordHold)).all() == []
        with pytest.raises(NotFound):
            panel.service.canaries.get(int(canary.id))

    def test_the_history_of_an_engine_newest_first(self, panel: Panel) -> None:
        keep(panel)
        first, second = check(panel), check(panel)
        page = panel.service.canaries.list_runs(page_size=2, page_token=None)
        assert [r.id for r in page.items] == [second.id, first.id]
        assert page.next_page_token is not None

    def test_events_start_a_check_and_never_raise(self, panel: Panel) -> None:
        assert panel.service.canaries.notice(int(panel.engines[0]), "restart") is None
        keep(panel)
        noticed = panel.service.canaries.notice(int(panel.engines[0]), "restart")
        assert noticed is not None and noticed.reason == "restart"


class TestAlarms:
    """Three faults, three different messages."""

    def test_overwritten_records(self, panel: Panel) -> None:
        (canary,) = keep(panel)
        assert panel.fleet.get_server(int(panel.server)).health.lights[-1].value is True
        for path in files_of(panel, canary):
            path.write_bytes(bytes(path.stat().st_size))
        done = check(panel)
        assert (done.outcome, done.findings[0].code) == ("wrong", "canary_overwritten")
        light = panel.fleet.get_server(int(panel.server)).health.lights[-1]
        assert light.value is False
        engine = panel.fleet.get_engine(int(panel.engines[0])).name
        said = f"canary run {done.id} of {engine} read back something else than the engine computes"
        assert light.reason == said

    def test_a_prompt_in_whose_answer_nothing_shows_is_not_kept(self, panel: Panel) -> None:
        run = panel.run(lengths=[150, 330])
        with panel.db.write() as session:
            row = session.get(AcceptanceRun, int(run.id))
            assert row is not None
            controls = [
                {**c, "outcome": "equal" if c["prompt"] == "p02" else "moved"} for c in run.evidence["controls"]
            ]
            row.evidence = {**row.evidence, "controls": controls}
        panel.service.canaries.keep(CanaryInput(run_id=run.id, count=2), actor="tester")
        kept = panel.service.canaries.list_canaries(page_size=10, page_token=None).items
        assert [c.name for c in kept] == [f"{run.engine_name} p01 (150 tokens)"]

    def test_deleted_records_stay_lost(self, panel: Panel) -> None:
        (canary,) = keep(panel)
        files_of(panel, canary)[0].unlink()
        for _ in range(2):  # asking would store it anew and hide the loss
            done = check(panel)
            assert (done.outcome, done.findings[0].code) == ("lost", "canary_lost")
        assert len(files_of(panel, canary)) == 2

    def test_another_dtype(self, panel: Panel) -> None:
        keep(panel)
        panel.sandbox.control.restart("engine", dtype="float16")
        done = check(panel)
        assert (done.outcome, done.findings[0].code) == ("wrong", "canary_layout_changed")

    def test_a_reset_that_lies(self, panel: Panel) -> None:
        keep(panel)
        assert check(panel).outcome == "ok"  # now they are in the GPU cache
        panel.sandbox.control.misbehave("engine", reset_lies=True)
        done = check(panel)
        assert (done.outcome, done.findings[0].code) == ("invalid", "canary_reset")

    def test_a_check_that_proves_nothing_takes_no_finding_back(self, panel: Panel) -> None:
        (canary,) = keep(panel)
        files_of(panel, canary)[0].write_bytes(b"\1" * files_of(panel, canary)[0].stat().st_size)
        assert check(panel).outcome == "wrong"
        stands = panel.service.canaries
        found = stands.get(int(canary.id))
        with panel.db.write() as session:
            unproven = CanaryVerdict("invalid", "canary_unproven", "nothing says")
            rows.write_check(session, 1, int(canary.id), unproven, Reading("c", Answer("c"), 3), 2e9)
        again = stands.get(int(canary.id))
        assert (again.last_outcome, again.last_checked_at) == ("wrong", found.last_checked_at)
        assert [point.outcome for point in again.history] == ["wrong", "invalid"]

    def test_a_cache_server_that_is_down(self, panel: Panel) -> None:
        keep(panel)
        panel.sandbox.control.kill("server")
        done = check(panel)
        assert (done.state, done.outcome) == ("succeeded", "invalid")
        assert "does not answer" in done.findings[0].text


class TestRefusals:
    def test_only_passed_runs_are_kept(self, panel: Panel) -> None:
        panel.sandbox.control.misbehave("engine", reset_refuses=True)
        run = panel.run(lengths=[150])
        with pytest.raises(InvalidInput, match="did not pass"):
            panel.service.canaries.keep(CanaryInput(run_id=run.id), actor="t")
        for wrong in ("99", "x"):
            with pytest.raises(InvalidInput, match="no acceptance run"):
                panel.service.canaries.keep(CanaryInput(run_id=wrong), actor="t")

    def test_an_engine_without_canaries(self, panel: Panel) -> None:
        with pytest.raises(InvalidInput, match="no canaries"):
            check(panel)

    def test_canaries_of_others(self, panel: Panel) -> None:
        keep(panel)
        body = CanaryRunInput(engine_id=panel.engines[0], canary_ids=["99"])
        with pytest.raises(InvalidInput) as caught:
            panel.service.canaries.check(body, actor="t")
        assert caught.value.errors[0].field == "canary_ids"

    def test_not_beside_an_acceptance_run(self, make_panel: PanelMaker) -> None:
        panel = make_panel(threads=True)
        run = panel.service.get(int(panel.run(lengths=[150]).id), wait=20)
        panel.service.canaries.keep(CanaryInput(run_id=run.id, count=1), actor="t")
        panel.sandbox.control.misbehave("engine", slow_seconds=30, paths="/v1/completions")
        active = None
        while active is None:
            try:
                active = panel.run(lengths=[150])
            except Conflict:  # the keeping is still under way
                continue
        with pytest.raises(Conflict, match="acceptance run"):
            check(panel)
        panel.service.cancel(int(active.id), actor="t")
        panel.service.get(int(active.id), wait=10)


def reading(**changes: object) -> Reading:
    tokens = TokenEvidence(300, 0, 256, 256, True, "request_statistics")
    values = {"name": "c", "kept": answer(), "records": 4, "cold": answer(), "read": answer(), "tokens": tokens}
    return Reading(**{**values, **changes})  # type: ignore[arg-type]


OTHER = answer(ids=(9, 9, 9, 9))


class TestJudge:
    @pytest.mark.parametrize(
        ("changes", "outcome", "code"),
        [
            ({}, "ok", "canary_ok"),
            ({"missing": ("a",)}, "lost", "canary_lost"),
            ({"changed": ("a",), "read": OTHER}, "wrong", "canary_overwritten"),
            ({"changed": ("a",)}, "wrong", "canary_overwritten"),
            ({"read": OTHER}, "wrong", "canary_wrong"),
            ({"read": OTHER, "layout_kept": "a", "layout_now": "b"}, "wrong", "canary_layout_changed"),
            ({"kept": OTHER}, "drift", "canary_drift"),
            ({"tokens": TokenEvidence(300, 0, 192, 256, False, "request_statistics")}, "lost", "canary_lost"),
            ({"tokens": TokenEvidence(300, 32, 224, 224, True, "request_statistics")}, "invalid", "canary_reset"),
            ({"tokens": TokenEvidence(300, None, None, None, None, "none")}, "invalid", "canary_unproven"),
            ({"read": None}, "invalid", "canary_not_asked"),
            ({"cold": Answer("c", refusal=Refusal(503, "busy"))}, "error", "canary_not_answered"),
        ],
    )
    def test_each_case(self, changes: dict[str, object], outcome: CanaryOutcome, code: str) -> None:
        verdict = judge(reading(**changes), tolerance())
        assert (verdict.outcome, verdict.code) == (outcome, code)

    def test_a_wrong_answer_outweighs_missing_evidence(self) -> None:
        unknown = TokenEvidence(300, None, None, None, None, "none")
        assert judge(reading(read=OTHER, tokens=unknown), tolerance()).outcome == "wrong"

    def test_the_worst_counts(self) -> None:
        assert worst(["ok", "drift", "lost"]) == "lost"
        assert worst(["ok", "invalid"]) == "invalid"
        assert worst([]) == "invalid"

    def test_what_became_of_records(self) -> None:
        kept = [{"store_id": 1, "name": n, "size": 10, "sha256": "aa"} for n in ("a", "b", "c", "d")]
        key = ObjectKey("m", 1, 0, bytes(32))
        now = {
            (1, "a"): OwnRecord(1, "a", key, 10, "aa"),
            (1, "b"): OwnRecord(1, "b", key, 10, "bb"),
            (1, "c"): OwnRecord(1, "c", key, 9, None),
        }
        assert what_became(kept, now) == (["d"], ["b", "c"])


BASIS = {"engine_started": "t1", "server_started": "t2", "engine_version": "0.32.0", "server_version": "0.5.6"}


class TestDue:
    @pytest.mark.parametrize(
        ("changes", "cleaned", "reason"),
        [
            ({}, False, None),
            ({"engine_started": "t9"}, False, "restart"),
            ({"server_started": "t9"}, False, "restart"),
            ({"engine_version": "0.33.0", "engine_started": "t9"}, False, "upgrade"),
            ({"server_version": None}, False, None),
            ({}, True, "cleanup"),
        ],
    )
    def test_what_calls_for_a_check(self, changes: dict[str, str | None], cleaned: bool, reason: str | None) -> None:
        assert due(BASIS, {**BASIS, **changes}, cleaned_since=cleaned) == reason
        assert due({}, {**BASIS, **changes}, cleaned_since=False) is None


class TestWatch:
    """The watch over views as polls would give them."""

    def look(self, panel: Panel, monkeypatch: pytest.MonkeyPatch, *, health: str = "healthy", **changes: str) -> int:
        engine = panel.fleet.get_engine(int(panel.engines[0]))
        server = panel.fleet.get_server(int(panel.server))
        fine = engine.health.model_copy(update={"state": health})
        told = {"health": fine, "version": "0.32.0", "started_at": "t1", **changes}
        monkeypatch.setattr(panel.fleet, "get_engine", lambda _id: engine.model_copy(update=told))
        monkeypatch.setattr(panel.fleet, "get_server", lambda _id: server.model_copy(update={"health": fine}))
        panel.service.canary_watch.look()
        page = panel.service.canaries.list_runs(page_size=50, page_token=None)
        return len([r for r in page.items if r.purpose == "check"])

    def test_a_restart_is_noticed_once(self, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
        keep(panel)
        assert self.look(panel, monkeypatch) == 0  # nothing was known when they were kept
        check(panel)
        assert self.look(panel, monkeypatch) == 1
        assert self.look(panel, monkeypatch, started_at="t2", health="unreachable") == 1
        assert self.look(panel, monkeypatch, started_at="t2") == 2
        assert self.look(panel, monkeypatch, started_at="t2") == 2
        newest = panel.service.canaries.list_runs(page_size=1, page_token=None).items[0]
        assert (newest.reason, newest.outcome) == ("restart", "ok")

    @pytest.mark.parametrize(
        ("trigger", "removed", "read_back"),
        [("hand", 3, True), ("schedule", 3, True), ("hand", 0, False), ("housekeeping", 3, False)],
    )
    def test_a_cleanup_is_followed_by_a_check_by_whomever_it_was_started(
        self, panel: Panel, monkeypatch: pytest.MonkeyPatch, trigger: str, removed: int, read_back: bool
    ) -> None:
        keep(panel)
        check(panel)
        assert self.look(panel, monkeypatch) == 1
        with panel.db.write() as session:
            # No policy: a plan made from a filter, by hand, removes records as well.
            store = panel.fleet.store_targets(int(panel.server))[0].id
            session.add(
                CleanupRun(
                    store_id=store,
                    trigger=trigger,
                    folder="f",
                    state="succeeded",
                    removed_records=removed,
                    requested_by="tester",
                    created_at=time.time(),
                    finished_at=time.time() + 1,
                )
            )
        assert self.look(panel, monkeypatch) == (2 if read_back else 1)

    def test_without_canaries_nothing_happens(self, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.look(panel, monkeypatch) == 0


class TestRetention:
    def test_answers_of_old_runs_go_but_not_those_of_the_last_pass(self, panel: Panel) -> None:
        old, last = panel.run(lengths=[150]), panel.run(lengths=[150])
        assert panel.service.retire() == 0
        with panel.db.write() as session:
            session.execute(update(AcceptanceRun).values(finished_at=1.0))
        gone = panel.service.retire()
        assert gone > 0
        assert panel.service.retire() == 0
        assert panel.service.answers(int(old.id), page_size=5, page_token=None).items == []
        assert panel.service.answers(int(last.id), page_size=5, page_token=None).items
        assert panel.service.get(int(old.id)).verdict == "pass"
