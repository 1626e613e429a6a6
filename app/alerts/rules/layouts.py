"""Layouts, and the proof that what the cache gives back is right."""

from __future__ import annotations

from app.alerts.model import Fact, Limit, Verdict, said
from app.alerts.rules.base import ENGINE_GONE, SERVER_GONE, Cause, Limits, Rule


def _mixed(fact: Fact, _: Limits) -> Verdict:
    count = fact.number("layouts")
    if count < 2:
        return Verdict(False, "one layout for each model", count, 2.0)
    sentence = f"{said(count)} layouts of {fact.words['model']} at once: {fact.words['layouts']}"
    return Verdict(True, sentence, count, 2.0, wait_seconds=fact.number("wait"))


def _changed(fact: Fact, limits: Limits) -> Verdict:
    age = fact.number("age")
    holds = age < limits["recent_seconds"] and not fact.number("proven_since")
    sentence = f"the layout of {fact.words['model']} changed ({fact.words['fields']})"
    return Verdict(holds, sentence, age, limits["recent_seconds"])


def _unproven(fact: Fact, limits: Limits) -> Verdict:
    age = fact.number("age")
    holds = age >= limits["within_seconds"] and not fact.number("proven_since")
    sentence = (
        f"the layout of {fact.words['model']} changed ({fact.words['fields']}), and no acceptance run has passed since"
    )
    return Verdict(holds, sentence if holds else "proven, or changed only just now", age, limits["within_seconds"])


def _failed(fact: Fact, _: Limits) -> Verdict:
    holds = bool(fact.number("failed"))
    run = said(fact.number("run")).replace(",", "")
    headline = f": {fact.words['headline']}" if fact.words["headline"] else ""
    return Verdict(holds, f"acceptance run {run} of {fact.subject.name} ended with {fact.words['verdict']}{headline}")


def _canary_lost(fact: Fact, limits: Limits) -> Verdict:
    lost = fact.number("lost")
    sentence = f"{said(lost)} of {said(fact.number('canaries'))} canaries have lost their records: {fact.words['lost']}"
    return Verdict(lost >= limits["canaries"], sentence, lost, limits["canaries"])


def _canary_wrong(fact: Fact, limits: Limits) -> Verdict:
    wrong = fact.number("wrong")
    sentence = (
        f"{said(wrong)} of {said(fact.number('canaries'))} canaries answer otherwise than the engine computes: "
        f"{fact.words['wrong']}"
    )
    return Verdict(wrong >= limits["canaries"], sentence, wrong, limits["canaries"])


def _canary_drift(fact: Fact, limits: Limits) -> Verdict:
    drift = fact.number("drift")
    sentence = (
        f"the engine answers {said(drift)} of {said(fact.number('canaries'))} canaries otherwise than when they were "
        f"kept: {fact.words['drift']}"
    )
    return Verdict(drift >= limits["canaries"], sentence, drift, limits["canaries"])


RULES = (
    Rule(
        id="mixed_layouts",
        title="Two layouts of one model at one server",
        fact="mixed_layouts",
        subject="server",
        severity="critical",
        for_seconds=0,
        judge=_mixed,
        causes=SERVER_GONE,
        means="Engines with different KV layouts (dtype, chunk size, …) of one model use this server at once. A "
        "record's name does not tell the layout: each reads what the other wrote, and answers from it, wrongly.",
        action="Stop one of the engines or give it a directory of its own; then clean the store ('keep it safe') and "
        "run an acceptance test.",
    ),
    Rule(
        id="mixed_layouts_in_store",
        title="Two layouts of one model in one directory",
        fact="mixed_in_store",
        subject="store",
        severity="critical",
        for_seconds=0,
        judge=_mixed,
        means="Servers that share this directory have different KV layouts of one model registered: each reads what "
        "the other wrote, and its engines answer from it, wrongly.",
        action="Give one of the servers a directory of its own; then clean the store ('keep it safe') and run an "
        "acceptance test.",
    ),
    Rule(
        id="layout_changed",
        title="A KV layout changed",
        fact="layout_change",
        subject="server",
        severity="warning",
        for_seconds=0,
        judge=_changed,
        limits={"recent_seconds": Limit(3600, "seconds", "told for so long after the change", 60, 30 * 86400)},
        clear_seconds=0,
        means="An engine registered a model with another KV layout than before. Records of the old layout have the "
        "same names and would be served as hits, with wrong answers.",
        action="Run a plan of the policy 'keep it safe' on its store, then an acceptance test. A change you did not "
        "make is a change worth understanding first.",
    ),
    Rule(
        id="layout_unproven",
        title="No acceptance run has passed since a layout change",
        fact="layout_change",
        subject="server",
        severity="warning",
        for_seconds=0,
        judge=_unproven,
        limits={"within_seconds": Limit(3600, "seconds", "after the change a run should have passed", 60, 30 * 86400)},
        causes=(Cause("layout_changed"), Cause("mixed_layouts")),
        clear_seconds=0,
        means="Nothing has shown that what the cache gives back is right under the present layout.",
        action="Run an acceptance test of each engine of this server.",
        page="/acceptance",
    ),
    Rule(
        id="acceptance_failed",
        title="The last acceptance run failed",
        fact="acceptance_outcome",
        subject="engine",
        severity="critical",
        for_seconds=0,
        judge=_failed,
        causes=(Cause("mixed_layouts", "server"),),
        clear_seconds=0,
        means="What came back from the cache differs from what the engine computes itself: users of this engine get "
        "wrong answers on every hit.",
        action="Open the run: its findings say which tier gave wrong answers and what to do. Until then let the engine "
        "run without the cache. 'Keep it safe' removes records of another layout or size; records whose bytes were "
        "overwritten keep both: filter the store's records by model, salt or layout epoch and put them into "
        "quarantine.",
        page="/acceptance?engine_id={id}",
    ),
    Rule(
        id="canary_lost",
        title="Canaries have lost their records",
        fact="canaries",
        subject="engine",
        severity="warning",
        for_seconds=0,
        judge=_canary_lost,
        limits={"canaries": Limit(1, "canaries", "lost", 1, 1000)},
        causes=(*ENGINE_GONE, Cause("layout_changed", "server"), Cause("store_unusable", "stores")),
        clear_seconds=0,
        means="Records that cleanup protects are gone: something else removes files from the store, or the directory "
        "is another one. What is lost there is lost for every prompt.",
        action="Look at the store: is it the same file system, does its adapter evict, does another job delete in it?",
        page="/acceptance/canaries?engine_id={id}",
    ),
    Rule(
        id="canary_wrong",
        title="Canaries give wrong answers",
        fact="canaries",
        subject="engine",
        severity="critical",
        for_seconds=0,
        judge=_canary_wrong,
        limits={"canaries": Limit(1, "canaries", "wrong", 1, 1000)},
        causes=(Cause("acceptance_failed"), Cause("mixed_layouts", "server")),
        clear_seconds=0,
        means="Yesterday's records, read back today, give another answer than the engine computes itself, or were "
        "overwritten: they are not right any more for this engine (another layout, other weights, damaged bytes).",
        action="Declare a new generation if the weights changed; otherwise clean the store ('keep it safe') and find "
        "out what changed: the reading-back says whether files were overwritten or the layout is another one.",
        page="/acceptance/canaries?engine_id={id}",
    ),
    Rule(
        id="canary_drift",
        title="The engine answers canaries otherwise than before",
        fact="canaries",
        subject="engine",
        severity="warning",
        for_seconds=0,
        judge=_canary_drift,
        limits={"canaries": Limit(1, "canaries", "drifted", 1, 1000)},
        causes=(Cause("acceptance_failed"), Cause("canary_wrong"), Cause("mixed_layouts", "server")),
        clear_seconds=0,
        means="Yesterday's records are right for this engine, but the engine itself computes something else than when "
        "the canaries were kept: its version, its weights or its kernels changed.",
        action="Find out what was changed at the engine and run an acceptance test; declare a new generation if it "
        "was the weights. Then keep new canaries: these go on saying that something changed.",
        page="/acceptance/canaries?engine_id={id}",
    ),
)
