"""The panel's own duties: schedules and messages."""

from __future__ import annotations

from app.alerts.model import Fact, Limit, Verdict, said, span
from app.alerts.rules.base import Limits, Rule


def _missed(fact: Fact, limits: Limits) -> Verdict:
    overdue = fact.number("overdue")
    name = fact.subject.name
    if overdue > limits["seconds"]:
        sentence = f"{name} was due and did not fire"
        return Verdict(True, sentence, overdue, limits["seconds"])
    if fact.number("refused"):
        sentence = f"the last firing of {name} was refused ({fact.words['outcome']}): {fact.words['detail']}"
        return Verdict(True, sentence, overdue, limits["seconds"])
    return Verdict(False, f"{name} fired when it was due ({fact.words['outcome']})", overdue, limits["seconds"])


def _undelivered(fact: Fact, limits: Limits) -> Verdict:
    oldest = fact.number("oldest")
    error = f": {fact.words['error']}" if fact.words["error"] else ""
    sentence = (
        f"{said(fact.number('waiting'))} messages wait for the notifier {fact.words['notifier']}, the oldest for "
        f"{span(oldest)}{error}"
    )
    return Verdict(oldest > limits["seconds"], sentence, oldest, limits["seconds"])


RULES = (
    Rule(
        id="schedule_missed",
        title="A schedule did not run",
        fact="schedule_kept",
        subject="schedule",
        severity="warning",
        for_seconds=0,
        judge=_missed,
        limits={"seconds": Limit(300, "seconds", "after it was due", 60, 86400)},
        clear_seconds=0,
        means="A scan, a cleanup or an acceptance run that should happen by itself did not happen.",
        action="The schedule's last firing says why: its target is gone, the run before it still works, or the panel "
        "was not running.",
    ),
    Rule(
        id="notifier_failing",
        title="Messages do not get out",
        fact="outbox",
        subject="panel",
        severity="warning",
        for_seconds=0,
        judge=_undelivered,
        limits={"seconds": Limit(600, "seconds", "waits the oldest message", 60, 7 * 86400)},
        clear_seconds=0,
        means="A notifier refuses messages or cannot be reached. They are kept and tried again for three days.",
        action="Press 'send a test' on the notifier's row; check its address, its secret, and the way out of this "
        "host.",
        page="/alarms/notifiers",
    ),
)
