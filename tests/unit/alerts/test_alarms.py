"""Alarms as rows: acknowledgement, silences, windows, overrides, what survives a restart, what is dropped when."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from app.alerts.schemas import (
    AcknowledgeInput,
    MatcherInput,
    OverrideInput,
    RulePatch,
    SilenceInput,
    TargetRef,
    WindowInput,
    WindowPatch,
)
from app.alerts.tables import Alert, AlertChange, AlertOverride
from app.clock import iso
from app.errors import BadToken, Conflict, InvalidInput, NotFound
from app.fleet.schemas import ServerCreate, ServerPatch
from app.fleet.tables import Server
from tests.unit.alerts.support import Panel


@pytest.fixture
def panel(tmp_path: Path) -> Panel:
    """Two servers that are polled by nobody: tests set their health."""
    made = Panel(tmp_path)
    for name, labels in (("a", {"team": "red"}), ("b", {})):
        made.fleet.create_server(ServerCreate(url=f"http://{name}.example:1", name=name, labels=labels), actor="t")
    made.alerts.rules.patch_rule("server_values_stale", RulePatch(enabled=False), actor="t")
    return made


def health(panel: Panel, name: str, state: str) -> None:
    with panel.db.write() as session:
        session.execute(
            update(Server)
            .where(Server.name == name)
            .values(health_state=state, health_reason="connection refused", health_since=panel.clock.now)
        )


def pass_(panel: Panel, seconds: float, step: float = 30.0) -> None:
    for _ in range(round(seconds / step)):
        panel.clock.now += step
        panel.alerts.evaluate()


def fire(panel: Panel, name: str = "a") -> str:
    health(panel, name, "unreachable")
    panel.alerts.evaluate()
    pass_(panel, 60)
    return next(a.id for a in panel.alerts.active() if a.target_name == name)


class TestLife:
    def test_every_change_is_a_row(self, panel: Panel) -> None:
        alert = int(fire(panel))
        panel.alerts.acknowledge(alert, AcknowledgeInput(note="restarting it"), actor="user:ann")
        pass_(panel, 300)
        health(panel, "a", "healthy")
        pass_(panel, 120)
        detail = panel.alerts.get_alert(alert)
        assert [(c.old_state, c.new_state, c.by) for c in detail.changes] == [
            (None, "pending", "evaluation"),
            ("pending", "firing", "evaluation"),
            ("firing", "acknowledged", "user:ann"),
            ("acknowledged", "resolved", "evaluation"),
        ]
        assert detail.changes[2].reason == "restarting it"
        assert (detail.acknowledged_by, detail.note) == ("user:ann", "restarting it")
        assert detail.evidence["reason"] == "connection refused"
        assert detail.page == "/servers/1"
        assert detail.docs == "ALARMS.md#server-unreachable"
        assert panel.audit.list_events(page_size=9, page_token=None, action="alert.acknowledge").items
        with pytest.raises(Conflict, match="is resolved"):
            panel.alerts.acknowledge(alert, AcknowledgeInput(), actor="t")
        with pytest.raises(NotFound):
            panel.alerts.acknowledge(999, AcknowledgeInput(), actor="t")

    def test_a_second_spell_is_a_second_alarm(self, panel: Panel) -> None:
        first = fire(panel)
        health(panel, "a", "healthy")
        pass_(panel, 120)
        assert fire(panel) != first

    def test_a_restart_of_the_panel_keeps_what_stood(self, panel: Panel) -> None:
        alert = fire(panel)
        panel.alerts = panel.new_alerts()
        pass_(panel, 60)
        assert [a.id for a in panel.alerts.active()] == [alert]

    def test_a_pending_alarm_does_not_count_the_time_nobody_looked(self, panel: Panel) -> None:
        health(panel, "a", "unreachable")
        panel.alerts.evaluate()
        panel.clock.now += 4000  # the panel was down
        panel.alerts = panel.new_alerts()
        panel.alerts.evaluate()
        assert panel.alerts.active() == []
        pass_(panel, 60)
        assert len(panel.alerts.active()) == 1

    def test_a_forgotten_target_ends_its_alarms(self, panel: Panel) -> None:
        alert = int(fire(panel))
        body = OverrideInput(target_kind="server", target_id="1", for_seconds=5)
        panel.alerts.rules.set_override("server_unreachable", body, actor="t")
        panel.fleet.delete_server(1, actor="t")
        panel.alerts.evaluate()
        detail = panel.alerts.get_alert(alert)
        assert (detail.state, detail.changes[-1].reason) == ("resolved", "it is not watched any more")
        assert detail.target_name == "a"
        with panel.db.read() as session:
            assert session.scalar(select(func.count()).select_from(AlertOverride)) == 0

    def test_nothing_is_written_while_nothing_changes(self, panel: Panel) -> None:
        fire(panel)
        pass_(panel, 60)
        with panel.db.read() as session:
            before = session.scalar(select(Alert.checked_at))
        panel.clock.now += 10
        panel.alerts.evaluate()
        with panel.db.read() as session:
            assert session.scalar(select(Alert.checked_at)) == before

    def test_old_rows_go(self, panel: Panel) -> None:
        fire(panel)
        health(panel, "b", "unreachable")
        panel.alerts.evaluate()
        health(panel, "b", "healthy")  # went away before its time
        health(panel, "a", "healthy")
        pass_(panel, 120)
        assert panel.alerts.retire() == 0
        panel.clock.now += 2 * 86400
        assert panel.alerts.retire() == 1
        assert len(panel.alerts.list_alerts(page_size=9, page_token=None).items) == 1
        panel.clock.now += 401 * 86400
        assert panel.alerts.retire() == 1
        with panel.db.read() as session:
            assert session.scalar(select(func.count()).select_from(AlertChange)) == 0


class TestLists:
    def test_pages_and_filters(self, panel: Panel) -> None:
        for name in ("a", "b"):
            fire(panel, name)
        lists = panel.alerts.list_alerts
        first = lists(page_size=1, page_token=None)
        second = lists(page_size=1, page_token=first.next_page_token)
        assert [first.items[0].target_name, second.items[0].target_name] == ["b", "a"]
        assert second.next_page_token is None
        assert [
            a.target_name for a in lists(page_size=9, page_token=None, target_kind="server", target_id=1).items
        ] == ["a"]
        assert lists(page_size=9, page_token=None, state=["resolved"]).items == []
        assert lists(page_size=9, page_token=None, severity="warning").items == []
        assert len(lists(page_size=9, page_token=None, rule="server_unreachable", fired=True).items) == 2
        with pytest.raises(BadToken):
            lists(page_size=1, page_token=first.next_page_token, severity="critical")
        assert panel.alerts.counts().critical == 2


class TestQuiet:
    def test_a_silence_keeps_messages_back_and_the_alarm_goes_on(self, panel: Panel) -> None:
        matcher = MatcherInput(targets=[TargetRef(kind="server", id="1")])
        body = SilenceInput(matcher=matcher, comment="planned", seconds=600)
        silence = panel.alerts.quiet.create_silence(body, actor="user:ann")
        assert (silence.state, silence.matcher.targets[0].name) == ("active", "a")
        fire(panel, "a")
        fire(panel, "b")
        quiet = {a.target_name: a.silenced_by for a in panel.alerts.active()}
        assert quiet == {"a": f"silence {silence.id}", "b": None}
        assert (panel.alerts.counts().critical, panel.alerts.counts().silenced) == (1, 1)
        panel.alerts.quiet.end_silence(int(silence.id), actor="user:ann")
        pass_(panel, 30)
        assert panel.alerts.counts().silenced == 0
        assert panel.alerts.quiet.get_silence(int(silence.id)).state == "over"

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"seconds": None}, "ends_at"),
            ({"ends_at": "2026-12-30T00:00:00Z"}, "ends_at"),
            ({"seconds": None, "ends_at": "2020-01-01T00:00:00Z"}, "ends_at"),
            ({"seconds": None, "ends_at": "tomorrow"}, "ends_at"),
            ({"starts_at": "2026-11-30T12:00:00"}, "starts_at"),
            ({"matcher": {"rules": ["nonsense"]}}, "matcher.rules[0]"),
            ({"matcher": {"targets": [{"kind": "server", "id": "77"}]}}, "matcher.targets[0].id"),
            ({"matcher": {"targets": [{"kind": "server", "id": "x"}]}}, "matcher.targets[0].id"),
            ({"matcher": {"labels": {"9bad": "x"}}}, "labels"),
        ],
    )
    def test_what_a_silence_may_not_be(self, panel: Panel, change: dict[str, object], field: str) -> None:
        body = SilenceInput.model_validate({"matcher": {}, "comment": "x", "seconds": 60, **change})
        with pytest.raises(InvalidInput) as error:
            panel.alerts.quiet.create_silence(body, actor="t")
        assert error.value.errors[0].field == field

    def test_a_maintenance_window_by_cron(self, panel: Panel) -> None:
        body = WindowInput(
            name="nightly", matcher=MatcherInput(labels={"team": "red"}), cron="0 1 * * *", duration_seconds=3600
        )
        window = panel.alerts.quiet.create_window(body, actor="t")
        assert not window.active
        assert window.next_starts[0] == "2026-11-30T01:00:00.000Z"
        panel.clock.now += 600  # 01:03
        fire(panel, "a")
        assert panel.alerts.active()[0].silenced_by == "maintenance window nightly"
        assert panel.alerts.quiet.get_window(int(window.id)).active
        pass_(panel, 3600)  # past its end: it still fires, and is told now
        assert panel.alerts.active()[0].silenced_by is None
        panel.alerts.quiet.patch_window(int(window.id), WindowPatch(enabled=False), actor="t")
        assert panel.alerts.quiet.get_window(int(window.id)).next_starts == []
        panel.alerts.quiet.delete_window(int(window.id), actor="t")
        assert panel.alerts.quiet.list_windows(page_size=9, page_token=None).items == []

    def test_a_maintenance_window_once(self, panel: Panel) -> None:
        now = panel.clock.now
        body = WindowInput(name="move", starts_at=iso(now + 100), ends_at=iso(now + 200))
        window = panel.alerts.quiet.create_window(body, actor="t")
        assert window.next_starts == [iso(now + 100)]
        with pytest.raises(Conflict, match="already called 'move'"):
            panel.alerts.quiet.create_window(body, actor="t")

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"cron": "0 1 * * *"}, "duration_seconds"),
            ({"cron": "0 1 * *", "duration_seconds": 60.0}, "cron"),
            ({"duration_seconds": 60.0}, "duration_seconds"),
            ({}, "starts_at"),
            ({"starts_at": "2026-12-02T00:00:00Z", "ends_at": "2026-12-01T00:00:00Z"}, "ends_at"),
            ({"cron": "0 1 * * *", "duration_seconds": 60.0, "timezone": "Mars/Base"}, "timezone"),
        ],
    )
    def test_what_a_window_may_not_be(self, panel: Panel, body: dict[str, object], field: str) -> None:
        with pytest.raises(InvalidInput) as error:
            panel.alerts.quiet.create_window(WindowInput.model_validate({"name": "w", **body}), actor="t")
        assert error.value.errors[0].field == field

    def test_a_label_that_changes_counts_at_once(self, panel: Panel) -> None:
        body = SilenceInput(matcher=MatcherInput(labels={"team": "blue"}), comment="x", seconds=3600)
        panel.alerts.quiet.create_silence(body, actor="t")
        fire(panel, "a")
        assert panel.alerts.active()[0].silenced_by is None
        panel.fleet.patch_server(1, ServerPatch(labels={"team": "blue"}), actor="t")
        panel.alerts.evaluate()
        assert panel.alerts.active()[0].silenced_by == "silence 1"


class TestRules:
    def test_what_is_set_and_taken_back(self, panel: Panel) -> None:
        rules = panel.alerts.rules
        patched = rules.patch_rule("hit_rate_low", RulePatch(severity="info", thresholds={"floor": 0.5}), actor="t")
        assert (patched.severity, patched.default_severity) == ("info", "warning")
        assert {t.name: (t.value, t.default) for t in patched.thresholds}["floor"] == (0.5, 0.3)
        rules.patch_rule("hit_rate_low", RulePatch(thresholds={"requested_tokens": 5}), actor="t")
        again = rules.patch_rule("hit_rate_low", RulePatch(severity=None, thresholds={"floor": None}), actor="t")
        assert again.severity == "warning"
        assert {t.name: t.value for t in again.thresholds} == {"floor": 0.3, "requested_tokens": 5.0}
        with pytest.raises(InvalidInput, match="no such threshold"):
            rules.patch_rule("hit_rate_low", RulePatch(thresholds={"x": 1}), actor="t")
        with pytest.raises(NotFound):
            rules.patch_rule("nonsense", RulePatch(), actor="t")
        assert len(rules.list_rules().items) > 35

    def test_for_durations_and_switching_off(self, panel: Panel) -> None:
        panel.alerts.rules.patch_rule("server_unreachable", RulePatch(for_seconds=600), actor="t")
        health(panel, "a", "unreachable")
        panel.alerts.evaluate()
        pass_(panel, 300)
        assert panel.alerts.active() == []
        pass_(panel, 330)
        assert len(panel.alerts.active()) == 1
        panel.alerts.rules.patch_rule("server_unreachable", RulePatch(enabled=False), actor="t")
        panel.alerts.evaluate()
        assert panel.alerts.active() == []

    def test_overrides_for_one_target(self, panel: Panel) -> None:
        rules = panel.alerts.rules
        body = OverrideInput(target_kind="server", target_id="2", enabled=False)
        override = rules.set_override("server_unreachable", body, actor="t")
        assert rules.set_override("server_unreachable", body, actor="t").id == override.id  # replaced, not doubled
        for name in ("a", "b"):
            health(panel, name, "unreachable")
        panel.alerts.evaluate()
        pass_(panel, 60)
        assert [a.target_name for a in panel.alerts.active()] == ["a"]
        assert rules.get_rule("server_unreachable").overrides[0].target_name == "b"
        rules.delete_override("server_unreachable", int(override.id), actor="t")
        pass_(panel, 90)
        assert len(panel.alerts.active()) == 2
        for change, field in (
            ({"target_kind": "engine"}, "target_kind"),
            ({"target_id": "99"}, "target_id"),
            ({"target_id": "x"}, "target_id"),
        ):
            with pytest.raises(InvalidInput) as error:
                rules.set_override("server_unreachable", body.model_copy(update=change), actor="t")
            assert error.value.errors[0].field == field
        with pytest.raises(InvalidInput, match="has no overrides"):
            rules.set_override("panel_blind", body, actor="t")
        with pytest.raises(NotFound):
            rules.delete_override("server_unreachable", 999, actor="t")
