"""The six parts of readiness, each judged by itself. Pure: values in, one part out.

`ready` needs something that shows it; what was never looked at is `unknown`; only what is known to be wrong is
`not_ready`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.acceptance.canary_schemas import CanaryView
from app.acceptance.schemas import LatestView
from app.checks.schemas import ChecksPage, CheckView
from app.clock import parse_iso
from app.readiness.facts import DiskFacts, SoakFacts, seen_hours, slope_per_hour
from app.readiness.schemas import PartKey, Scope, State

#: So long both must have run without a restart or an outage.
SOAK_HOURS = 24.0
#: A process that grows by more than this part of itself in a day will not last.
MEMORY_PART_PER_DAY = 0.10
#: A disk that nothing bounds and that is full sooner than this wants somebody now.
FULL_SOON_HOURS = 7 * 24.0
MIB = 2**20
GB = 1e9

TITLES: dict[PartKey, str] = {
    "correctness": "Correctness",
    "canaries": "Canaries",
    "soak": "Soak",
    "disk": "Disk",
    "checks": "Settings",
    "scope": "Support scope",
}
SCOPES: dict[Scope, str] = {
    "verified": "verified here",
    "by_recipe": "by recipe",
    "unverified": "unverified",
    "known_bad": "known to be bad",
    "unknown": "not known",
}
_PASSED = ("pass", "pass_with_near_ties")
_HYBRID_RULES = frozenset({"max_num_batched_tokens", "mamba_cache_mode", "mamba_blocks", "separate_object_groups"})


@dataclass(frozen=True)
class Part:
    """One part judged; `at` in epoch seconds, None where nothing was ever found."""

    key: PartKey
    state: State
    text: str
    at: float | None
    action: str = ""


def correctness(latest: LatestView) -> Part:
    """The last acceptance run, and whether it still speaks for what runs now."""
    # A later run that proved nothing (invalid, error, timeout) takes no failure back.
    run, passed = latest.last_verdict or latest.last_run, latest.last_pass
    if run is not None and run.verdict == "fail" and (passed is None or passed.id != run.id):
        return Part(
            "correctness",
            "not_ready",
            f"run {run.id} failed: {run.headline or 'answers from the cache differ'}",
            _epoch(run.finished_at),
            "find the wrong records, clean them up, and test again",
        )
    if passed is None:
        return Part(
            "correctness", "unknown", "no acceptance run of this engine has passed yet", None, "run an acceptance test"
        )
    requests = sum(arm.requests for arm in passed.arms)
    shown = (
        f"run {passed.id} passed {len(passed.arms)} conditions over {requests} requests ({passed.profile}); "
        f"{latest.reason}"
    )
    at = _epoch(passed.finished_at)
    if latest.state == "fresh":
        return Part("correctness", "ready", shown, at)
    return Part("correctness", "unknown", shown, at, "test again: the pass does not speak for what runs now")


def canaries(kept: Sequence[CanaryView], *, started: float | None) -> Part:
    """Yesterday's records, read back. `started`: when the younger of engine and server began, if known."""
    if not kept:
        return Part("canaries", "unknown", "no prompt is kept as a canary", None, "keep some of a passed run")
    checked = [_epoch(c.last_checked_at) for c in kept]
    known = [at for at in checked if at is not None]
    at = min(known, default=None)
    bad = [c for c in kept if c.last_outcome in ("lost", "wrong", "drift")]
    if bad:
        words = ", ".join(f"{c.name}: {c.last_outcome}" for c in bad[:3])
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        return Part("canaries", "not_ready", f"{words}{more}", at, "look at their history; each says the way out")
    unread = [c for c in kept if c.last_outcome != "ok"]
    if unread or len(known) < len(kept):
        count = len({c.id for c in unread} | {c.id for c, a in zip(kept, checked, strict=True) if a is None})
        text = f"{count} of {len(kept)} canaries have not been read back with a result"
        return Part("canaries", "unknown", text, at, "read them back now")
    if started is not None and at is not None and at < started:
        text = f"all {len(kept)} came back right, but that was before the last restart"
        return Part("canaries", "unknown", text, at, "read them back now")
    return Part("canaries", "ready", f"all {len(kept)} came back right from their old records", at)


def soak(facts: SoakFacts, now: float) -> Part:
    """Hours without restart or outage, errors, and what memory does."""
    since = max(now - facts.window, facts.started or 0.0, max((at for at, _ in facts.outages), default=0.0))
    hours = min(seen_hours(p, facts.step, since) for p in (facts.up_server, facts.up_engine))
    days = facts.window / 86_400
    outages = len(facts.outages)
    memory, growing = _memory(facts, since)
    restarts = "unknown" if facts.restarts is None else str(facts.restarts)
    failures = "unknown" if facts.failures is None else f"{facts.failures:.0f}"
    text = (
        f"{hours:.1f} h without restart or outage, of {SOAK_HOURS:.0f} h; in the last {days:.0f} days {restarts} "
        f"restarts and {outages} outages; {failures} loads from L2 failed since the server started; {memory}"
    )
    last = [at for points in (facts.up_server, facts.up_engine) for at, value in points if value is not None]
    at = max(last, default=None)
    if at is None:
        return Part("soak", "unknown", "neither has been polled yet", None, "let the panel poll both")
    recent = [what for when, what in facts.outages if now - when < SOAK_HOURS * 3600]
    if recent:
        return Part("soak", "not_ready", f"{text}; last: {recent[-1]}", at, "find out why it went away")
    if growing:
        return Part("soak", "not_ready", text, at, "find out what grows; plan a restart until it is mended")
    if facts.failures:
        return Part("soak", "not_ready", text, at, "look for short or unreadable records on the store's page")
    if hours < SOAK_HOURS:
        return Part("soak", "unknown", text, at, "let both run on")
    return Part("soak", "ready", text, at)


def _memory(facts: SoakFacts, since: float) -> tuple[str, bool]:
    """What memory does, in words, and whether it grows too fast. The first hour after a start is left out."""
    texts: list[str] = []
    growing = False
    for name, points in (("server", facts.memory_server), ("engine", facts.memory_engine)):
        found = slope_per_hour(points, since + 3600)
        if found is None:
            texts.append(f"memory of the {name} not known for long enough")
            continue
        slope, value = found
        texts.append(f"memory of the {name} {value / MIB:,.0f} MiB, {slope / MIB:+.2f} MiB an hour")
        growing = growing or slope * 24 > MEMORY_PART_PER_DAY * value
    return ", ".join(texts), growing


def disk(stores: Sequence[DiskFacts]) -> Part:
    """Whether the disk will last, and what bounds it: the worst store speaks."""
    if not stores:
        return Part("disk", "unknown", "no store with a directory is registered", None, "register the store")
    judged = [_store(s) for s in stores]
    order: dict[State, int] = {"not_ready": 0, "unknown": 1, "ready": 2}
    return min(judged, key=lambda p: order[p.state])


def _store(store: DiskFacts) -> Part:
    if store.scanned_at is None:
        return Part("disk", "unknown", f"{store.name} was never scanned", None, "scan the store")
    if store.growth_per_hour is None:
        slope = f"{store.name}: growth not known ({store.reason or 'too few scans'})"
    else:
        slope = f"{store.name} grows by {store.growth_per_hour / GB:+.3f} GB an hour"
        if store.full_in_hours is not None:
            slope += f", full in {store.full_in_hours / 24:.1f} days"
    if store.bounded_by:
        return Part("disk", "ready", f"{slope}; bounded by {', '.join(store.bounded_by[:3])}", store.scanned_at)
    if store.evicts:
        return Part("disk", "ready", f"{slope}; its adapter evicts by itself", store.scanned_at)
    text = f"{slope}; nothing bounds it"
    action = "add a policy with a capacity, a free-space floor or an age"
    if store.full_in_hours is not None and store.full_in_hours < FULL_SOON_HOURS:
        return Part("disk", "not_ready", text, store.scanned_at, action)
    # a disk that will last for long today is still bounded by nothing: that is not shown to be safe
    return Part("disk", "unknown", text, store.scanned_at, action)


def settings(page: ChecksPage) -> Part:
    """The checks of the pair."""
    at = _epoch(page.checked_at)
    counts = page.counts
    if at is None:
        return Part("checks", "unknown", "the settings were not looked at yet", None, "run the checks")
    text = f"{counts.fail} fail, {counts.warn} warn, {counts.unknown} unknown, {counts.ok} ok"
    if counts.fail:
        worst = [item for item in page.items if item.verdict == "fail"]
        named = "; ".join(item.title for item in worst[:3])
        return Part("checks", "not_ready", f"{text}: {named}", at, worst[0].fix if worst else "")
    return Part("checks", "ready", text, at)


def scope_of(findings: Sequence[CheckView]) -> Scope:
    """What is known of this pair of versions and this kind of engine."""
    by_id: dict[str, CheckView] = {}
    for item in findings:
        by_id.setdefault(item.id, item)  # worst first
    versions, territory = by_id.get("version_pair"), by_id.get("unverified_territory")
    if versions is None or versions.verdict == "unknown":
        return "unknown"
    if versions.verdict == "fail":
        return "known_bad"
    if versions.verdict == "warn" or (territory is not None and territory.verdict == "warn"):
        return "unverified"
    return "by_recipe" if _HYBRID_RULES & by_id.keys() else "verified"


def scope(findings: Sequence[CheckView], at: float | None, tested: Part) -> Part:
    """Unverified territory is ready only where an acceptance test passed on exactly what runs now."""
    found = scope_of(findings)
    evidence = "; ".join(
        i.evidence
        for i in findings
        if i.id == "version_pair" or (i.id == "unverified_territory" and i.verdict == "warn")
    )
    text = f"{SCOPES[found]}: {evidence}" if evidence else SCOPES[found]
    if found == "known_bad":
        return Part("scope", "not_ready", text, at, "upgrade LMCache and the engine's connector together")
    if found in ("verified", "by_recipe"):
        return Part("scope", "ready", text, at)
    if found == "unverified" and tested.state == "ready":
        return Part("scope", "ready", f"{text}; an acceptance test passed here on what runs now", at)
    action = "run an acceptance test on this pair" if found == "unverified" else "run the checks"
    return Part("scope", "unknown", text, at, action)


def overall(parts: Sequence[Part]) -> tuple[State, str]:
    """(state, one sentence)."""
    bad = [TITLES[p.key].lower() for p in parts if p.state == "not_ready"]
    if bad:
        return "not_ready", f"not ready: {', '.join(bad)}"
    open_parts = [TITLES[p.key].lower() for p in parts if p.state == "unknown"]
    if open_parts:
        return "unknown", f"nothing is known to be wrong, but not shown yet: {', '.join(open_parts)}"
    return "ready", "ready: every part was shown"


def _epoch(text: str | None) -> float | None:
    return None if text is None else parse_iso(text)
