"""What the counters of L1, L2 and the lookups say."""

from __future__ import annotations

from app.alerts.model import Fact, Limit, Verdict, percent, said, span
from app.alerts.rules.base import COUNTERS_WRONG, NOT_REGISTERED, SERVER_GONE, Cause, Limits, Rule


def _dropping(fact: Fact, limits: Limits) -> Verdict:
    dropped = fact.number("dropped")
    sentence = f"{fact.subject.name} dropped {said(dropped)} events in {span(fact.number('window'))}"
    return Verdict(dropped >= limits["events"], sentence, dropped, limits["events"])


def _low_hit_rate(fact: Fact, limits: Limits) -> Verdict:
    rate, requested = fact.number("rate"), fact.number("requested")
    busy = requested >= limits["requested_tokens"]
    sentence = f"{percent(rate)} of {said(requested)} tokens looked up in {span(fact.number('window'))} were found"
    return Verdict(busy and rate < limits["floor"], sentence, rate, limits["floor"])


def _disagree(fact: Fact, limits: Limits) -> Verdict:
    hits, loaded, asked = fact.number("hits"), fact.number("loaded"), fact.number("asked")
    noise = limits["tokens"]
    if loaded > hits * (1 + limits["part"]) + noise:
        sentence = (
            f"the engines loaded {said(loaded)} tokens, {fact.subject.name} counted only {said(hits)} as found: its "
            "counters miss events, or an engine uses another server too"
        )
        return Verdict(True, sentence, loaded - hits, noise)
    if fact.number("complete") and hits > noise and loaded == 0 and asked > 0.5 * hits:
        sentence = (
            f"{fact.subject.name} found {said(hits)} tokens, the engines asked for {said(asked)} and loaded none: hits "
            "do not reach the engines"
        )
        return Verdict(True, sentence, hits, noise)
    return Verdict(False, f"the engines loaded {said(loaded)} of {said(hits)} tokens found", loaded - hits, noise)


def _thrash(fact: Fact, limits: Limits) -> Verdict:
    failures, share, over = (fact.numbers.get(name) for name in ("failures", "share", "overshoot"))
    seconds = span(fact.number("window"))
    if failures is not None and failures >= limits["failures"]:
        return Verdict(True, f"{said(failures)} chunks found no room in L1 in {seconds}", failures, limits["failures"])
    if share is not None and share >= limits["share"]:
        sentence = f"L1 had to evict in {percent(share)} of the turns of its eviction loop in {seconds}"
        return Verdict(True, sentence, share, limits["share"])
    if over is not None and over >= limits["overshoot"] and fact.numbers.get("triggered"):
        sentence = f"L1 stands {percent(over)} of its size above the watermark although it evicts"
        return Verdict(True, sentence, over, limits["overshoot"])
    if share is None and failures is None:
        return Verdict(None, "evictions and allocation failures are not known")
    said_share = "unknown" if share is None else percent(share)
    return Verdict(False, f"L1 evicts in {said_share} of the turns of its loop, every chunk found room", share)


def _failing(fact: Fact, limits: Limits) -> Verdict:
    submitted, completed, missing = (fact.number(name) for name in ("submitted", "completed", "missing"))
    share, queue, seconds = fact.number("share"), fact.numbers.get("queue"), fact.number("window")
    if submitted < limits["chunks"]:
        return Verdict(False, f"only {said(submitted)} chunks were stored in {span(seconds)}", share, limits["share"])
    sentence = f"{said(missing)} of {said(submitted)} chunks submitted to L2 in {span(seconds)} were not completed"
    if share < limits["share"]:
        return Verdict(False, sentence, share, limits["share"])
    if queue and completed > 0:
        return Verdict(False, f"{sentence}; {said(queue)} still wait: slow, not failing", share, limits["share"])
    return Verdict(True, sentence + ("" if completed else ", not one"), share, limits["share"])


def _impossible(fact: Fact, limits: Limits) -> Verdict:
    looked, loads, loaded = (fact.number(name) for name in ("looked_up", "loads", "loaded"))
    seconds = span(fact.number("window"))
    if loads >= limits["loads"] and loaded == 0:
        sentence = (
            f"{said(looked)} chunks were looked up in L2 in {seconds}, {said(loads)} were found and not one loaded"
        )
        return Verdict(True, sentence, loads, limits["loads"])
    if fact.number("builtin_hash") and loaded == 0 and looked >= limits["lookups"]:
        sentence = f"{said(looked)} chunks were looked up in L2 in {seconds} by Python's built-in hash, none was found"
        return Verdict(True, sentence, looked, limits["lookups"])
    return Verdict(False, f"{said(loaded)} of {said(looked)} chunks looked up in L2 were loaded", loaded)


def _never_read(fact: Fact, limits: Limits) -> Verdict:
    written, read, looked = (fact.number(name) for name in ("written", "read", "looked_up"))
    share, uptime = fact.number("share"), fact.number("uptime")
    enough = written >= limits["chunks"] and looked >= limits["chunks"] and uptime >= limits["uptime_seconds"]
    sentence = f"since its start, {said(written)} chunks were written to L2 and {said(read)} read back"
    return Verdict(enough and share < limits["share"], sentence, share, limits["share"])


def _stuck(fact: Fact, _: Limits) -> Verdict:
    risen, finished, held = fact.number("risen"), fact.numbers.get("finished"), fact.numbers.get("held")
    if finished is None or held is None:
        return Verdict(None, "whether retrieves finish, or engines wait, is not known")
    sentence = f"{said(risen)} retrieves are under way and none finished in {span(fact.number('window'))}"
    holds = finished == 0 and held > 0
    return Verdict(holds, sentence if holds else f"{said(finished)} retrieves finished", risen, 1.0)


RULES = (
    Rule(
        id="event_bus_dropping",
        title="A cache server drops events: its counters are too low",
        fact="event_bus",
        subject="server",
        severity="warning",
        for_seconds=0,
        judge=_dropping,
        limits={"events": Limit(1, "events", "dropped within five minutes", 1, 1e9)},
        causes=SERVER_GONE,
        means="LMCache counts by events, and its bus was full: every counter of this server (hit rate, stores, "
        "retrieves) under-reports. Alarms that rest on these counters are held back meanwhile.",
        action="Believe the engines' counters instead. Lower the load of the server's process, or its metrics' "
        "sampling.",
    ),
    Rule(
        id="hit_rate_low",
        title="The hit rate is low",
        fact="hit_rate",
        subject="server",
        severity="warning",
        for_seconds=900,
        judge=_low_hit_rate,
        limits={
            "floor": Limit(0.3, "ratio", "less than this part of the tokens looked up was found", 0, 1),
            "requested_tokens": Limit(100_000, "tokens", "looked up within fifteen minutes at least", 0, 1e12),
        },
        causes=(*SERVER_GONE, *NOT_REGISTERED, Cause("stores_failing"), Cause("l2_impossible"), Cause("l1_thrash")),
        means="Prompts share less with each other than before, L1 or L2 lose records too early, or a change (model, "
        "salt, chunk size, prompt template) made old records unreachable.",
        action="Compare with the token picture: is it recomputed that was in L2 before? Look at the layout epochs of "
        "its store, at evictions, and at what changed in the prompts' beginnings.",
    ),
    Rule(
        id="hit_rate_disagrees",
        title="Server and engines disagree about hits",
        fact="hit_rate_check",
        subject="server",
        severity="warning",
        for_seconds=300,
        judge=_disagree,
        limits={
            "part": Limit(0.2, "ratio", "more loaded than found by this part", 0, 100),
            "tokens": Limit(4096, "tokens", "and by so many tokens within five minutes", 0, 1e12),
        },
        causes=(*COUNTERS_WRONG, *NOT_REGISTERED),
        means="What lookups found and what engines loaded do not fit together, so one of the two numbers is not to "
        "be trusted.",
        action="See whether each engine is linked to the server it really uses. Hits that never reach an engine "
        "point at failing retrieves: read the engine's log.",
    ),
    Rule(
        id="l1_thrash",
        title="L1 is too small for its load",
        fact="l1_thrash",
        subject="server",
        severity="warning",
        for_seconds=300,
        judge=_thrash,
        limits={
            "share": Limit(0.2, "ratio", "of the eviction loop's turns had to evict", 0, 1),
            "failures": Limit(1, "chunks", "found no room in L1 within five minutes", 1, 1e9),
            "overshoot": Limit(0.1, "ratio", "of L1's size above its trigger watermark", 0, 1),
        },
        causes=SERVER_GONE,
        means="Chunks are evicted before anybody asks for them again, or are not taken at all. Hits then come from "
        "L2 or not at all.",
        action="Give L1 more memory, lower the eviction ratio, or raise the trigger watermark; the sizing page "
        "computes it.",
    ),
    Rule(
        id="stores_failing",
        title="Stores to L2 fail",
        fact="stores_failing",
        subject="server",
        severity="critical",
        for_seconds=60,
        judge=_failing,
        limits={
            "share": Limit(0.05, "ratio", "of the chunks submitted were not completed", 0, 1),
            "chunks": Limit(8, "chunks", "submitted within five minutes at least", 1, 1e9),
        },
        causes=(*COUNTERS_WRONG, Cause("store_full", "stores"), Cause("store_unusable", "stores")),
        means="Chunks are handed to L2 and do not arrive. No other metric moves: health stays green, L2 only stops "
        "growing.",
        action="Look at the file system: room, inodes, quota, rights, read-only. With O_DIRECT the record size and "
        "the memory must be aligned to its blocks. The server's log has the errno.",
    ),
    Rule(
        id="l2_impossible",
        title="L2 cannot hit",
        fact="l2_impossible",
        subject="server",
        severity="critical",
        for_seconds=60,
        judge=_impossible,
        limits={
            "loads": Limit(4, "chunks", "found in L2 within fifteen minutes, none of them loaded", 1, 1e9),
            "lookups": Limit(256, "chunks", "looked up with the built-in hash, none found", 1, 1e9),
        },
        causes=(*COUNTERS_WRONG, Cause("store_unusable", "stores")),
        means="Records are found and cannot be loaded (short, empty, unreadable, or no room in L1 for them); or keys "
        "are made with a hash that differs after each start, so that old records are never found.",
        action="Scan the store: corrupt records never heal by themselves, remove them. For 'l1_oom' give L1 more "
        "room. Set the hash algorithm to blake3 (or PYTHONHASHSEED on server and engines).",
    ),
    Rule(
        id="writes_never_read",
        title="L2 is written and never read",
        fact="writes_never_read",
        subject="server",
        severity="warning",
        for_seconds=600,
        judge=_never_read,
        limits={
            "share": Limit(0.01, "ratio", "of the chunks written was read back", 0, 1),
            "chunks": Limit(1000, "chunks", "written, and looked up, since the start at least", 1, 1e12),
            "uptime_seconds": Limit(3600, "seconds", "since the server's start at least", 0, 1e9),
        },
        causes=(*COUNTERS_WRONG, Cause("stores_failing"), Cause("l2_impossible")),
        means="The disk is written for nothing: what is stored is never asked for again (answers instead of prompts, "
        "prompts that differ from their first token), or its keys changed.",
        action="See what is stored (records by model and salt, by age), and whether prompts begin alike. Consider a "
        "smaller L2, or no L2 for this model.",
    ),
    Rule(
        id="retrieves_stuck",
        title="Retrieves are stuck",
        fact="retrieves_stuck",
        subject="server",
        severity="critical",
        for_seconds=60,
        judge=_stuck,
        causes=(*COUNTERS_WRONG, *NOT_REGISTERED),
        means="Engines wait for tokens that the server is to hand over, and none arrive: their requests hang until a "
        "timeout.",
        action="Compare mq_timeout with the L2 load timeout; look for a slow or hung disk below L2. Restart the "
        "engine when its requests do not come back.",
    ),
)
