"""What is sent: one message an event, as text for people and as JSON for programs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from app.alerts.model import span
from app.alerts.rules.base import Rule
from app.alerts.runbooks import runbook_address
from app.clock import iso

Event = Literal["firing", "resolved", "test"]
_WORDS = {"firing": "FIRING", "resolved": "RESOLVED", "test": "TEST"}
#: So many messages for one notifier at once are put into one.
DIGEST_FROM = 4
DIGEST_MOST = 50


@dataclass(frozen=True)
class Message:
    """One message as it was written. `alert` is what a webhook gets of it."""

    event: Event
    severity: str
    title: str
    body: str
    alert: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Message:
        return cls(
            event=stored["event"],
            severity=str(stored["severity"]),
            title=str(stored["title"]),
            body=str(stored["body"]),
            alert=dict(stored["alert"]),
        )


@dataclass(frozen=True)
class AlertFacts:
    """What a message tells of an alarm. Times are epoch seconds."""

    id: int
    rule: Rule
    severity: str
    subject_kind: str
    subject_id: int
    subject_name: str
    part: str
    sentence: str
    value: float | None
    limit: float | None
    started_at: float
    fired_at: float | None
    resolved_at: float | None
    reason: str
    page: str


def write(event: Event, facts: AlertFacts, base_url: str | None) -> Message:
    """The message of one event. `base_url`: where people reach the panel; without it there is no link."""
    rule = facts.rule
    about = facts.subject_name + (f" ({facts.part})" if facts.part and facts.part != facts.subject_name else "")
    title = f"[{_WORDS[event]}] {rule.title}: {about}"
    url = f"{base_url.rstrip('/')}{facts.page}" if base_url else None
    lines = [facts.sentence]
    if event == "resolved":
        lasted = (facts.resolved_at or 0.0) - (facts.fired_at or facts.started_at)
        lines = [f"Over after {span(lasted)}: {facts.reason}.", f"It was: {facts.sentence}"]
    else:
        lines += ["", rule.means, "", f"What to do: {rule.action}"]
    lines += ["", f"Severity {facts.severity}, rule {rule.id}, since {iso(facts.started_at)}."]
    runbook = f"{base_url.rstrip('/')}{runbook_address(rule.id)}" if base_url else None
    if url is not None and runbook is not None:
        lines += [url, f"Runbook: {runbook}"]
    alert = {
        "id": str(facts.id),
        "rule": rule.id,
        "title": rule.title,
        "severity": facts.severity,
        "state": event,
        "target_kind": facts.subject_kind,
        "target_id": str(facts.subject_id) if facts.subject_id else None,
        "target_name": facts.subject_name,
        "part": facts.part,
        "sentence": facts.sentence,
        "value": facts.value,
        "limit": facts.limit,
        "since": iso(facts.started_at),
        "fired_at": iso(facts.fired_at),
        "resolved_at": iso(facts.resolved_at),
        "reason": facts.reason,
        "means": rule.means,
        "action": rule.action,
        "url": url,
        "runbook": runbook,
    }
    return Message(event, facts.severity, title, "\n".join(lines), alert)


def test_message(notifier: str, base_url: str | None) -> Message:
    """What the test button sends."""
    body = f"This is a test of the notifier {notifier!r}. Nothing is wrong."
    alert = {"id": None, "rule": None, "title": "Test", "severity": "info", "state": "test", "sentence": body}
    return Message("test", "info", "[TEST] Tierkeeper", body + (f"\n{base_url}" if base_url else ""), alert)


test_message.__test__ = False  # type: ignore[attr-defined]


def digest(messages: Sequence[Message]) -> Message:
    """Several messages in one, the worst first as far as the title goes."""
    firing = [m for m in messages if m.event == "firing"]
    resolved = len(messages) - len(firing)
    parts = [f"{len(firing)} alarms fire"] if firing else []
    parts += [f"{resolved} are over"] if resolved else []
    order = ["critical", "warning", "info"]
    worst = min((m.severity for m in firing or messages), key=order.index)
    body = "\n\n".join(f"{m.title}\n{m.body.splitlines()[0]}" for m in messages)
    return Message("firing" if firing else "resolved", worst, f"Tierkeeper: {', '.join(parts)}", body, {})


def payload(messages: Sequence[Message]) -> dict[str, Any]:
    """What a webhook gets: always the same shape, whatever the number of events."""
    shown = messages[0] if len(messages) == 1 else digest(messages)
    return {
        "version": 1,
        "source": "tierkeeper",
        "title": shown.title,
        "text": shown.body,
        "alerts": [dict(m.alert) for m in messages],
    }
