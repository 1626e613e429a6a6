"""Targets that do not answer, or say themselves that they are not well."""

from __future__ import annotations

from app.alerts.model import Fact, Limit, Verdict, said, span
from app.alerts.rules.base import Cause, Judge, Limits, Rule


def _in_state(state: str, what: str) -> Judge:
    def judge(fact: Fact, _: Limits) -> Verdict:
        holds = fact.words["state"] == state
        return Verdict(holds, f"{what}: {fact.words['reason']}" if holds else "answers", fact.number("seconds"))

    return judge


def _panel_blind(fact: Fact, limits: Limits) -> Verdict:
    known, lost = fact.number("targets"), fact.number("unreachable")
    holds = lost == known and known >= limits["targets"]
    return Verdict(holds, f"{said(lost)} of {said(known)} servers and engines give no answer", lost, limits["targets"])


def _not_polling(fact: Fact, limits: Limits) -> Verdict:
    age = fact.numbers["last_poll"]
    if age is None:
        return Verdict(None, "nothing has been polled yet")
    limit = max(limits["intervals"] * fact.number("interval"), limits["seconds"])
    return Verdict(
        age > limit,
        f"no poll of any target has ended within {span(limit)}" if age > limit else "polls go on",
        age,
        limit,
    )


def _degraded(fact: Fact, _: Limits) -> Verdict:
    # That no engine is registered has alarms of its own, which say which and why.
    holds = fact.words["state"] == "degraded" and not fact.number("only_nobody")
    return Verdict(holds, fact.words["reason"], fact.number("seconds"))


def _engine_degraded(fact: Fact, _: Limits) -> Verdict:
    return Verdict(fact.words["state"] == "degraded", fact.words["reason"], fact.number("seconds"))


def stale(fact: Fact, limits: Limits) -> Verdict:
    age = fact.number("seconds")
    limit = max(limits["intervals"] * fact.number("interval"), limits["seconds"])
    never = "" if fact.number("ever") else " (never read completely so far)"
    return Verdict(age > limit, f"the values of {fact.subject.name} are {span(age)} old{never}", age, limit)


STALE_LIMITS = {
    "intervals": Limit(6, "poll intervals", "older than so many poll intervals", 2, 1000),
    "seconds": Limit(60, "seconds", "and older than this", 1, 86400),
}

RULES = (
    Rule(
        id="polling_stopped",
        title="The panel does not poll",
        fact="panel_sight",
        subject="panel",
        severity="critical",
        for_seconds=0,
        judge=_not_polling,
        limits=STALE_LIMITS,
        means="No target has been polled for several intervals, although alarms are evaluated: everything that is "
        "shown is old.",
        action="Look at the panel's log (telemetry.tick_failed, telemetry.write_failed: a full disk, a locked "
        "database) and restart it.",
        page="/servers",
    ),
    Rule(
        id="panel_blind",
        title="The panel sees nothing",
        fact="panel_sight",
        subject="panel",
        severity="critical",
        for_seconds=30,
        judge=_panel_blind,
        limits={"targets": Limit(3, "targets", "where at least so many are registered", 2, 10000)},
        means="Not one server or engine answers. One cause for all is likely: the panel's own network, its DNS, a "
        "firewall or the host they share. Alarms about single targets are held back meanwhile.",
        action="From the panel's host, ask one address by hand: curl http://SERVER:8080/healthcheck. If that fails "
        "too, look at the network between; if it answers, restart the panel and look at its log.",
        page="/servers",
    ),
    Rule(
        id="server_unreachable",
        title="A cache server gives no answer",
        fact="server_health",
        subject="server",
        severity="critical",
        for_seconds=60,
        judge=_in_state("unreachable", "no answer"),
        causes=(Cause("panel_blind", "panel"),),
        means="The HTTP front of the cache server does not answer. Its engines go on without a cache after one slow "
        "request each; what it says of itself on the pages is as old as the last answer.",
        action="See whether its process lives and listens (0.0.0.0, not 127.0.0.1), then restart it. Engines "
        "register again within their heartbeat, unless it comes back too fast: watch the light 'engine registered'.",
    ),
    Rule(
        id="server_unhealthy",
        title="A cache server says that it is not well",
        fact="server_health",
        subject="server",
        severity="critical",
        for_seconds=60,
        judge=_in_state("unhealthy", "it says so itself"),
        causes=(Cause("panel_blind", "panel"),),
        means="/healthcheck or the top of /status says so itself. Lookups and stores may fail.",
        action="Read the reason, then the server's log; restart it when the part that is broken does not come back.",
    ),
    Rule(
        id="server_degraded",
        title="A part of a cache server is not right",
        fact="server_health",
        subject="server",
        severity="warning",
        for_seconds=180,
        judge=_degraded,
        causes=(Cause("panel_blind", "panel"),),
        means="The server answers, but an inner part says that it is unhealthy, or one of its answers cannot be read.",
        action="Open the server's page: the reason names the part or the answer. A part that stays unhealthy needs a "
        "restart; an answer that cannot be read may be a version this panel does not know.",
    ),
    Rule(
        id="server_values_stale",
        title="What is shown of a cache server is old",
        fact="server_scrape_age",
        subject="server",
        severity="warning",
        for_seconds=30,
        judge=stale,
        limits=STALE_LIMITS,
        causes=(
            Cause("server_unreachable"),
            Cause("server_unhealthy"),
            Cause("server_degraded"),
            Cause("panel_blind", "panel"),
            Cause("polling_stopped", "panel"),
        ),
        means="The server answers some calls, but not all that the panel shows; the others are as old as said.",
        action="The server's page names the call that fails and why. A slow /metrics of a busy server: poll less "
        "often.",
    ),
    Rule(
        id="engine_unreachable",
        title="An engine gives no answer",
        fact="engine_health",
        subject="engine",
        severity="critical",
        for_seconds=60,
        judge=_in_state("unreachable", "no answer"),
        causes=(Cause("panel_blind", "panel"),),
        means="The engine's HTTP front does not answer: it serves nobody. Its context stays at the cache server "
        "until it is reaped (two minutes; an hour if it never pinged).",
        action="Look at its process and its log. An engine that starts with the wrong transfer mode for its server "
        "hangs for five minutes before it says so.",
    ),
    Rule(
        id="engine_unhealthy",
        title="An engine says that it is not well",
        fact="engine_health",
        subject="engine",
        severity="critical",
        for_seconds=60,
        judge=_in_state("unhealthy", "it says so itself"),
        causes=(Cause("panel_blind", "panel"),),
        means="/health is an error: the engine's core has died or is going down.",
        action="Read the engine's log and restart it.",
    ),
    Rule(
        id="engine_degraded",
        title="An engine's answers cannot be read",
        fact="engine_health",
        subject="engine",
        severity="warning",
        for_seconds=180,
        judge=_engine_degraded,
        causes=(Cause("panel_blind", "panel"),),
        means="The engine answers, but not in a way the panel can use (an error, a timeout, an unknown form).",
        action="The engine's page names the call. /metrics with an error 500 is often PROMETHEUS_MULTIPROC_DIR on a "
        "network mount, or left-over files of a former run in it.",
    ),
    Rule(
        id="engine_values_stale",
        title="What is shown of an engine is old",
        fact="engine_scrape_age",
        subject="engine",
        severity="warning",
        for_seconds=30,
        judge=stale,
        limits=STALE_LIMITS,
        causes=(
            Cause("engine_unreachable"),
            Cause("engine_unhealthy"),
            Cause("engine_degraded"),
            Cause("panel_blind", "panel"),
            Cause("polling_stopped", "panel"),
        ),
        means="The engine answers some calls, but not all that the panel shows; the others are as old as said.",
        action="The engine's page names the call that fails and why.",
    ),
)
