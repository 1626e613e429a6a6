"""Messages: a local receiver, a receiver that is down, retries, duplicates, digests, secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select, update

from app.alerts.catalogue import RULES
from app.alerts.delivery import Destination, Sender
from app.alerts.messages import AlertFacts, Message, digest, payload, write
from app.alerts.outbox import GIVE_UP_SECONDS, retry_after
from app.alerts.schemas import MatcherInput, NotifierInput, NotifierPatch, RulePatch, SilenceInput
from app.alerts.tables import Notification, Notifier
from app.audit.tables import AuditEvent
from app.errors import Conflict, InvalidInput, NotFound
from app.fleet.schemas import ServerCreate
from app.fleet.tables import Server
from tests.unit.alerts.support import Panel, Receiver, receiver

SECRET = "hunter2-do-not-tell"


@pytest.fixture
def got() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture
def panel(tmp_path: Path) -> Panel:
    made = Panel(tmp_path)
    for n in range(6):
        made.fleet.create_server(ServerCreate(url=f"http://s{n}.example:1", name=f"s{n}"), actor="t")
    made.alerts.rules.patch_rule("server_values_stale", RulePatch(enabled=False), actor="t")
    made.alerts.rules.patch_rule("panel_blind", RulePatch(enabled=False), actor="t")
    made.alerts.rules.patch_rule("server_unreachable", RulePatch(for_seconds=0), actor="t")
    return made


def webhook(panel: Panel, url: str, name: str = "hook", **changes: object) -> int:
    body = NotifierInput.model_validate({"name": name, "kind": "webhook", "url": url, **changes})
    return int(panel.alerts.notifiers.create(body, actor="t").id)


def health(panel: Panel, state: str, *names: str) -> None:
    with panel.db.write() as session:
        query = update(Server).values(
            health_state=state, health_reason="connection refused", health_since=panel.clock.now
        )
        session.execute(query.where(Server.name.in_(names)))


def evaluate(panel: Panel, seconds: float = 10.0) -> None:
    panel.clock.now += seconds
    panel.alerts.evaluate()


def end(panel: Panel, *names: str) -> None:
    health(panel, "healthy", *names)
    evaluate(panel)
    evaluate(panel, 60)


def states(panel: Panel) -> list[tuple[str, str]]:
    with panel.db.read() as session:
        return [(r.event, r.state) for r in session.scalars(select(Notification).order_by(Notification.id))]


class TestDelivery:
    def test_firing_and_its_end_reach_a_webhook(self, panel: Panel, got: Receiver) -> None:
        webhook(panel, f"{got.url}/in?token={SECRET}", headers={"Authorization": f"Bearer {SECRET}"})
        health(panel, "unreachable", "s1")
        evaluate(panel)
        assert panel.alerts.deliver() == 1
        assert panel.alerts.deliver() == 0  # nothing is sent twice
        first = got.got[0]
        assert first["path"] == f"/in?token={SECRET}"
        assert first["headers"]["authorization"] == f"Bearer {SECRET}"
        body = first["body"]
        assert (body["version"], body["source"]) == (1, "tierkeeper")
        assert body["title"] == "[FIRING] A cache server gives no answer: s1"
        (alert,) = body["alerts"]
        assert (alert["rule"], alert["severity"], alert["state"]) == ("server_unreachable", "critical", "firing")
        assert alert["url"] == "http://panel.example/servers/2"
        assert "What to do:" in body["text"]
        end(panel, "s1")
        assert panel.alerts.deliver() == 1
        assert got.got[1]["body"]["title"] == "[RESOLVED] A cache server gives no answer: s1"
        assert got.got[1]["body"]["alerts"][0]["state"] == "resolved"
        assert "Over after" in got.got[1]["body"]["text"]
        assert states(panel) == [("firing", "sent"), ("resolved", "sent")]

    def test_through_apprise(self, panel: Panel, got: Receiver) -> None:
        url = f"json://ann:{SECRET}@{got.url.removeprefix('http://')}/apprise"
        body = NotifierInput(name="apprise", kind="apprise", url=url)
        view = panel.alerts.notifiers.create(body, actor="t")
        assert view.service == "JSON"
        health(panel, "unreachable", "s0")
        evaluate(panel)
        assert panel.alerts.deliver() == 1
        sent = got.got[0]
        assert sent["path"] == "/apprise"
        assert (sent["body"]["title"], sent["body"]["type"]) == (
            "[FIRING] A cache server gives no answer: s0",
            "failure",
        )
        end(panel, "s0")
        panel.alerts.deliver()
        assert got.got[1]["body"]["type"] == "success"

    def test_a_receiver_that_is_down_costs_time_and_no_message(self, panel: Panel, got: Receiver) -> None:
        notifier = webhook(panel, got.url)
        got.status = 503
        health(panel, "unreachable", "s1")
        evaluate(panel)
        assert panel.alerts.deliver() == 0
        view = panel.alerts.notifiers.get(notifier)
        assert (view.waiting, view.last_error) == (1, "answered 503")
        waits = []
        for _ in range(4):
            message = panel.alerts.notifiers.list_messages(page_size=9, page_token=None, state="waiting").items[0]
            with panel.db.read() as session:
                due = session.scalar(select(Notification.next_attempt_at))
            assert due is not None
            waits.append(due - panel.clock.now)
            panel.clock.now = due - 1
            assert panel.alerts.deliver() == 0
            assert len(got.got) == message.attempts  # not before its time
            panel.clock.now = due
            panel.alerts.deliver()
        assert waits == [30, 60, 120, 240]
        panel.alerts = panel.new_alerts()  # a restart of the panel in between loses nothing
        got.status = 204
        panel.clock.now += 3600
        assert panel.alerts.deliver() == 1
        view = panel.alerts.notifiers.get(notifier)
        assert (view.waiting, view.last_error) == (0, None)

    def test_what_is_over_before_it_could_be_told_is_told_once(self, panel: Panel, got: Receiver) -> None:
        webhook(panel, got.url)
        got.status = 500
        health(panel, "unreachable", "s1")
        evaluate(panel)
        panel.alerts.deliver()
        end(panel, "s1")
        got.status = 200
        got.got.clear()
        panel.clock.now += 3600
        assert panel.alerts.deliver() == 1
        assert got.titles() == ["[RESOLVED] A cache server gives no answer: s1"]
        assert states(panel) == [("firing", "dropped"), ("resolved", "sent")]

    def test_after_three_days_it_is_given_up(self, panel: Panel, got: Receiver) -> None:
        webhook(panel, got.url)
        got.status = 500
        health(panel, "unreachable", "s1")
        evaluate(panel)
        panel.alerts.deliver()
        panel.clock.now += GIVE_UP_SECONDS + 1
        panel.alerts.deliver()
        assert states(panel) == [("firing", "dropped")]
        panel.clock.now += 31 * 86400
        assert panel.alerts.retire() == 1

    def test_many_at_once_are_one_message(self, panel: Panel, got: Receiver) -> None:
        webhook(panel, got.url)
        health(panel, "unreachable", *(f"s{n}" for n in range(5)))
        evaluate(panel)
        assert panel.alerts.deliver() == 5
        (message,) = got.got
        assert message["body"]["title"] == "Tierkeeper: 5 alarms fire"
        assert len(message["body"]["alerts"]) == 5
        assert "[FIRING] A cache server gives no answer: s3" in message["body"]["text"]

    def test_a_sender_that_dies_in_the_middle_loses_nothing(self, panel: Panel, got: Receiver) -> None:
        webhook(panel, got.url)
        health(panel, "unreachable", "s1")
        evaluate(panel)
        claimed = panel.alerts._outbox._claim()  # and then the process is killed
        assert len(claimed) == 1
        assert panel.alerts.deliver() == 0  # it is somebody's while the lease runs
        panel.clock.now += 200
        assert panel.alerts.deliver() == 1

    def test_one_receiver_that_is_down_holds_up_no_other(self, panel: Panel, got: Receiver) -> None:
        webhook(panel, "http://127.0.0.1:9/", "down")
        webhook(panel, got.url, "up")
        health(panel, "unreachable", "s1")
        evaluate(panel)
        assert panel.alerts.deliver() == 1
        assert len(got.got) == 1

    def test_redirects_are_not_followed(self, panel: Panel, got: Receiver) -> None:
        notifier = webhook(panel, got.url, headers={"Authorization": SECRET})
        got.status = 307
        result = panel.alerts.notifiers.test(notifier, actor="t")
        assert not result.delivered
        assert "redirect" in result.detail
        assert [item["path"] for item in got.got] == ["/"]


class TestWhoIsTold:
    def test_severity_and_matcher_choose(self, panel: Panel, got: Receiver) -> None:
        webhook(panel, f"{got.url}/all", "all")
        webhook(panel, f"{got.url}/other", "other", matcher={"rules": ["store_full"]})
        webhook(panel, f"{got.url}/off", "off", enabled=False)
        quiet = webhook(panel, f"{got.url}/no-end", "no end", send_resolved=False)
        health(panel, "unreachable", "s1")
        evaluate(panel)
        panel.alerts.deliver()
        assert sorted(item["path"] for item in got.got) == ["/all", "/no-end"]
        got.got.clear()
        end(panel, "s1")
        panel.alerts.deliver()
        assert [item["path"] for item in got.got] == ["/all"]
        panel.alerts.notifiers.patch(quiet, NotifierPatch(min_severity="critical"), actor="t")
        panel.alerts.rules.patch_rule("server_unreachable", RulePatch(severity="warning"), actor="t")
        got.got.clear()
        health(panel, "unreachable", "s2")
        evaluate(panel)
        panel.alerts.deliver()
        assert [item["path"] for item in got.got] == ["/all"]

    def test_a_silenced_alarm_is_told_when_the_silence_ends_and_it_still_fires(
        self, panel: Panel, got: Receiver
    ) -> None:
        webhook(panel, got.url)
        body = SilenceInput(matcher=MatcherInput(), comment="x", seconds=100)
        panel.alerts.quiet.create_silence(body, actor="t")
        health(panel, "unreachable", "s1", "s2")
        evaluate(panel)
        assert panel.alerts.deliver() == 0
        end(panel, "s2")  # fired and ended in silence: never told
        evaluate(panel, 60)
        assert panel.alerts.deliver() == 1
        assert got.titles() == ["[FIRING] A cache server gives no answer: s1"]

    def test_a_notifier_that_is_switched_off_gets_nothing_of_what_waited(self, panel: Panel, got: Receiver) -> None:
        notifier = webhook(panel, got.url)
        got.status = 500
        health(panel, "unreachable", "s1")
        evaluate(panel)
        panel.alerts.deliver()
        panel.alerts.notifiers.patch(notifier, NotifierPatch(enabled=False), actor="t")
        assert states(panel) == [("firing", "dropped")]
        panel.alerts.notifiers.delete(notifier, actor="t")
        assert states(panel) == []
        with pytest.raises(NotFound):
            panel.alerts.notifiers.get(notifier)


class TestSecrets:
    def test_addresses_and_headers_never_come_out(
        self, panel: Panel, got: Receiver, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        notifier = webhook(panel, f"{got.url}/{SECRET}", headers={"X-Key": SECRET})
        apprise = NotifierInput(name="a", kind="apprise", url=f"json://u:{SECRET}@127.0.0.1:9/{SECRET}")
        second = int(panel.alerts.notifiers.create(apprise, actor="t").id)
        got.status = 500
        for ident in (notifier, second):
            panel.alerts.notifiers.patch(ident, NotifierPatch(send_resolved=False), actor="t")
            assert not panel.alerts.notifiers.test(ident, actor="t").delivered
        health(panel, "unreachable", "s1")
        evaluate(panel)
        panel.alerts.deliver()
        shown = panel.alerts.notifiers.list_notifiers(page_size=9, page_token=None).model_dump_json()
        shown += panel.alerts.notifiers.list_messages(page_size=9, page_token=None).model_dump_json()
        shown += panel.alerts.get_alert(1).model_dump_json()
        with panel.db.read() as session:
            shown += json.dumps([e.detail for e in session.scalars(select(AuditEvent))])
        assert SECRET not in shown
        # What Apprise says goes nowhere; httpx tells addresses at INFO, and the panel logs WARNING.
        loose = [r for r in caplog.records if SECRET in r.getMessage() and r.levelno >= logging.WARNING]
        assert {r.name for r in loose} <= {"apprise"}
        assert logging.getLogger("apprise").propagate is False
        assert all(isinstance(h, logging.NullHandler) for h in _own_handlers("apprise"))
        view = panel.alerts.notifiers.get(notifier)
        assert (view.service, view.header_names) == (f"webhook at {got.url.removeprefix('http://')}", ["X-Key"])
        assert SECRET not in repr(Destination("webhook", SECRET, {"k": SECRET}))

    @pytest.mark.parametrize(
        ("kind", "url", "words"),
        [
            ("webhook", "ftp://host/x", "must be an http"),
            ("webhook", "https://u:p@host/x", "must not hold a user name"),
            ("webhook", "http:///x", "must be an http"),
            ("webhook", "http://[::1/x", "cannot be read"),
            ("webhook", "http://169.254.169.254/latest", "metadata"),
            ("webhook", "http://metadata.google.internal/", "metadata"),
            ("webhook", "http://[fe80::1]/", "link-local"),
            ("webhook", "http://0.0.0.0/", "unspecified"),
            ("apprise", "json://169.254.169.254/x", "metadata"),
            ("apprise", "syslog://", "acts on the panel's own machine"),
            ("apprise", "nosuch://x", "Apprise cannot use"),
            ("apprise", "https://example.com/some/page", "Apprise cannot use"),
            ("apprise", "file:///etc/passwd", "Apprise cannot use"),
        ],
    )
    def test_what_is_refused(self, panel: Panel, kind: str, url: str, words: str) -> None:
        body = NotifierInput.model_validate({"name": "x", "kind": kind, "url": url})
        with pytest.raises(InvalidInput, match=words) as error:
            panel.alerts.notifiers.create(body, actor="t")
        assert error.value.errors[0].field == "url"

    def test_a_name_that_points_at_metadata_is_refused_at_entry_and_at_every_attempt(self, panel: Panel) -> None:
        names: dict[str, list[str]] = {}
        sender = Sender(resolve=lambda host: names.get(host, []))
        destination = Destination("webhook", "http://hook.example/")
        assert sender.check(destination) == "webhook at hook.example"
        names["hook.example"] = ["169.254.169.254"]
        with pytest.raises(InvalidInput):
            sender.check(destination)
        sent = sender.send(destination, [message("firing")])
        assert not sent.ok
        assert "metadata" in sent.detail

    def test_inputs_of_notifiers(self, panel: Panel, got: Receiver) -> None:
        notifier = webhook(panel, got.url)
        with pytest.raises(Conflict, match="already called 'hook'"):
            webhook(panel, got.url)
        with pytest.raises(InvalidInput, match="go with kind webhook"):
            body = NotifierInput(name="b", kind="apprise", url="json://h/", headers={"A": "b"})
            panel.alerts.notifiers.create(body, actor="t")
        with pytest.raises(InvalidInput, match="is set by the panel itself"):
            panel.alerts.notifiers.patch(notifier, NotifierPatch(headers={"Host": "x"}), actor="t")
        with pytest.raises(InvalidInput, match="cannot be null"):
            panel.alerts.notifiers.patch(notifier, NotifierPatch(url=None), actor="t")
        moved = panel.alerts.notifiers.patch(notifier, NotifierPatch(url=f"{got.url}/new", name="new"), actor="t")
        assert (moved.name, moved.revision) == ("new", 2)
        with panel.db.read() as session:
            row = session.get_one(Notifier, notifier)
            assert row.url == f"{got.url}/new"
            assert session.scalar(select(func.count()).select_from(Notification)) == 0


def _own_handlers(name: str) -> list[logging.Handler]:
    """The handlers of a logger without those that the test run itself puts there."""
    return [h for h in logging.getLogger(name).handlers if not type(h).__module__.startswith("_pytest")]


class TestTestButton:
    def test_it_sends_at_once_and_says_what_came_of_it(self, panel: Panel, got: Receiver) -> None:
        notifier = webhook(panel, got.url)
        result = panel.alerts.notifiers.test(notifier, actor="user:ann")
        assert (result.delivered, result.detail) == (True, "answered 200")
        assert got.titles() == ["[TEST] Tierkeeper"]
        assert panel.alerts.notifiers.get(notifier).last_sent_at is not None
        got.status = 403
        result = panel.alerts.notifiers.test(notifier, actor="user:ann")
        assert (result.delivered, result.detail) == (False, "answered 403")
        assert panel.alerts.notifiers.get(notifier).last_error == "answered 403"
        assert states(panel) == []  # past the outbox
        with pytest.raises(NotFound):
            panel.alerts.notifiers.test(99, actor="t")

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (httpx.ConnectError("[Errno -2] Name or service not known"), "the name does not resolve"),
            (httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"), "TLS"),
            (httpx.ConnectError("[Errno 113] No route to host"), "unreachable"),
            (httpx.ReadTimeout("slow"), "no answer within"),
            (httpx.RemoteProtocolError("cut"), "the request failed (RemoteProtocolError)"),
        ],
    )
    def test_troubles_have_names(self, error: Exception, words: str) -> None:
        def fail(request: httpx.Request) -> httpx.Response:
            raise error

        sender = Sender(resolve=lambda host: [], transport=httpx.MockTransport(fail))
        sent = sender.send(Destination("webhook", "https://hook.example/"), [message("firing")])
        assert not sent.ok
        assert words in sent.detail


def message(event: str, severity: str = "critical") -> Message:
    return Message(event, severity, f"title {severity}", "first line\nsecond", {"id": "1"})  # type: ignore[arg-type]


def test_digests_tell_the_worst_and_keep_every_alarm() -> None:
    many = [message("resolved"), message("firing", "warning"), message("firing", "info")]
    one = digest(many)
    assert (one.title, one.severity) == ("Tierkeeper: 2 alarms fire, 1 are over", "warning")
    assert len(payload(many)["alerts"]) == 3
    assert payload([many[1]])["title"] == "title warning"
    assert Message.from_json(json.loads(json.dumps(many[0].to_json()))) == many[0]


def test_attempts_lie_further_and_further_apart() -> None:
    assert [retry_after(n) for n in (1, 2, 3, 7, 8, 50)] == [30, 60, 120, 1920, 3600, 3600]


def test_without_an_address_of_the_panel_there_is_no_link() -> None:
    facts = AlertFacts(
        1, RULES["store_full"], "critical", "store", 3, "disk", "", "full", 1.0, 2.0, 10.0, 20.0, None, "", "/stores/3"
    )
    assert write("firing", facts, None).alert["url"] is None
    body = write("firing", facts, "https://panel.example/").body
    assert "\nhttps://panel.example/stores/3\n" in body
    assert body.endswith("Runbook: https://panel.example/help/runbooks#disk-is-full")
