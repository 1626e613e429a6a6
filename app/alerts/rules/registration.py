"""Engines and their cache server that do not find each other although both are well."""

from __future__ import annotations

from app.alerts.model import Fact, Limit, Verdict, said, span
from app.alerts.rules.base import ENGINE_GONE, NOT_REGISTERED, SERVER_GONE, Cause, Limits, Rule


def _restart_unnoticed(fact: Fact, limits: Limits) -> Verdict:
    deaf, ago = fact.number("deaf"), fact.number("seconds")
    holds = deaf > 0 and ago >= limits["grace_seconds"]
    exits = fact.numbers.get("early_exits")
    asked = f"; {said(exits)} lookups were turned away" if exits else ""
    sentence = (
        f"{fact.subject.name} restarted and {fact.words['engines']} did not register again{asked}: nothing is cached"
    )
    return Verdict(holds, sentence if holds else "no engine missed a restart", deaf, 1.0)


def _silent(fact: Fact, limits: Limits) -> Verdict:
    exits = fact.number("early_exits")
    holds = exits >= limits["lookups"]
    seconds = span(fact.number("window"))
    sentence = f"{said(exits)} lookups in {seconds} came from an engine that {fact.subject.name} does not know"
    return Verdict(holds, sentence, exits, limits["lookups"])


def _lost(fact: Fact, _: Limits) -> Verdict:
    lost = fact.number("lost")
    missing = f"; missing: {fact.words['engines']}" if lost > 0 else ""
    answering, registered = said(fact.number("answering")), said(fact.number("registered"))
    return Verdict(lost > 0, f"{answering} of its engines answer, {registered} are registered{missing}", lost, 1.0)


def _nobody(fact: Fact, _: Limits) -> Verdict:
    holds = fact.number("registered") == 0 and fact.number("answering") == 0
    sentence = "no engine is registered, and none of its engines answers" if holds else "somebody uses it"
    return Verdict(holds, sentence, fact.number("registered"), 1.0)


def _bypassed(fact: Fact, limits: Limits) -> Verdict:
    tokens, lookups = fact.number("prompt_tokens"), fact.number("lookups")
    holds = lookups == 0 and tokens >= limits["prompt_tokens"]
    sentence = (
        f"{fact.subject.name} took in {said(tokens)} prompt tokens in {span(fact.number('window'))} and made "
        f"{said(lookups)} lookups at {fact.words['server']} ({fact.words['source']})"
    )
    return Verdict(holds, sentence, lookups, 1.0)


def _hang(fact: Fact, _: Limits) -> Verdict:
    held, moved = fact.number("held"), fact.number("moved")
    sentence = f"{fact.subject.name} holds {said(held)} requests, and no token moved in {span(fact.number('window'))}"
    return Verdict(held > 0 and moved == 0, sentence if moved == 0 else "tokens move", held, 1.0)


RULES = (
    Rule(
        id="restart_unnoticed",
        title="A cache server restarted and its engines did not notice",
        fact="restart_unnoticed",
        subject="server",
        severity="critical",
        for_seconds=0,
        judge=_restart_unnoticed,
        limits={"grace_seconds": Limit(60, "seconds", "after the server's start", 15, 3600)},
        causes=SERVER_GONE,
        means="An engine notices a restart of its server only by a heartbeat that fails. A restart between two "
        "heartbeats (10 s), or before the engine's first store or retrieve, goes unnoticed for ever: every light is "
        "green, and nothing is cached any more. With engine-driven transfers its requests hang.",
        action="Restart the engine (or stop the cache server, wait half a minute, and start it again).",
    ),
    Rule(
        id="engine_silent",
        title="An engine asks a cache server that does not know it",
        fact="engine_silent",
        subject="server",
        severity="critical",
        for_seconds=60,
        judge=_silent,
        limits={"lookups": Limit(1, "lookups", "turned away in two minutes", 1, 1e9)},
        causes=(*SERVER_GONE, Cause("restart_unnoticed")),
        means="Lookups end early with the reason no_gpu_context: the engine that asks is not registered, so nothing "
        "is found and nothing is stored for it.",
        action="Restart the engine; if the panel does not list it, register it here so that it is watched.",
    ),
    Rule(
        id="engine_not_registered",
        title="An engine is not registered at its cache server",
        fact="registration",
        subject="server",
        severity="critical",
        for_seconds=120,
        judge=_lost,
        causes=(*SERVER_GONE, Cause("restart_unnoticed")),
        means="The engine answers, started after its server, and is not (or no longer) registered. Its context was "
        "reaped (no heartbeat for two minutes: the server's message thread may be dead although HTTP is well), or it "
        "uses another server or no connector.",
        action="Compare the engine's kv-transfer-config (host, port 5555) with the server. If lookups stopped too, "
        "restart the server: one HTTP request to its ZeroMQ port kills its message thread for good.",
    ),
    Rule(
        id="nobody_registered",
        title="Nobody uses a cache server",
        fact="registration",
        subject="server",
        severity="warning",
        for_seconds=300,
        judge=_nobody,
        causes=(
            *SERVER_GONE,
            Cause("engine_silent"),
            Cause("engine_unreachable", "engines"),
            Cause("engine_unhealthy", "engines"),
        ),
        means="No engine is registered, and no engine of it that the panel knows answers.",
        action="Start its engine, or forget the server here if it is no longer wanted.",
    ),
    Rule(
        id="cache_bypassed",
        title="An engine works without its cache",
        fact="cache_bypassed",
        subject="engine",
        severity="critical",
        for_seconds=60,
        judge=_bypassed,
        limits={"prompt_tokens": Limit(2048, "tokens", "taken in within five minutes", 1, 1e12)},
        causes=(
            *ENGINE_GONE,
            *(Cause(cause.rule, "server") for cause in NOT_REGISTERED),
            Cause("server_unreachable", "server"),
            Cause("server_unhealthy", "server"),
            Cause("event_bus_dropping", "server"),
        ),
        means="Prompts are answered and the cache server is not asked. The engine gave up its link (degraded mode): "
        "the server's message thread may be dead while /healthcheck and /status are green.",
        action="Restart the cache server and watch the engine register again; if it does not, restart the engine. "
        "Find out what sent HTTP to the ZeroMQ port (5555): a health check or a scanner on the wrong port does this.",
    ),
    Rule(
        id="requests_hang",
        title="Requests hang in an engine",
        fact="requests_hang",
        subject="engine",
        severity="critical",
        for_seconds=180,
        judge=_hang,
        causes=(*ENGINE_GONE, Cause("restart_unnoticed", "server"), Cause("retrieves_stuck", "server")),
        means="The engine holds requests and nothing moves, while /health is 200. With engine-driven transfers this "
        "is what a cache server that forgot the engine looks like.",
        action="See whether its cache server restarted; restart the engine.",
    ),
)
