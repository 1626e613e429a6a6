"""Stores: room, what lies in them, who writes into them."""

from __future__ import annotations

from app.alerts.model import Fact, Limit, Verdict, percent, said, span
from app.alerts.rules.base import STORE_GONE, Cause, Limits, Rule
from app.alerts.rules.health import STALE_LIMITS, stale
from app.sizes import disk_size


def _unusable(fact: Fact, _: Limits) -> Verdict:
    holds = not fact.number("usable")
    return Verdict(holds, f"{fact.words['path']}: {fact.words['reason']}" if holds else "usable", fact.number("usable"))


def _full(fact: Fact, limits: Limits) -> Verdict:
    free, inodes = fact.number("free"), fact.numbers.get("inodes")
    if inodes is not None and inodes < limits["inodes"]:
        return Verdict(True, f"{said(inodes)} inodes are left for {fact.subject.name}", inodes, limits["inodes"])
    return Verdict(free < limits["bytes"], f"{disk_size(free)} are left for {fact.subject.name}", free, limits["bytes"])


def _low(fact: Fact, limits: Limits) -> Verdict:
    share = fact.number("share")
    free = disk_size(fact.number("free"))
    sentence = f"{percent(share)} of what the file system of {fact.subject.name} can hold is free ({free})"
    return Verdict(share < limits["share"], sentence, share, limits["share"])


def _filling(fact: Fact, limits: Limits) -> Verdict:
    hours = fact.number("hours")
    sentence = (
        f"{fact.subject.name} grows by {disk_size(fact.number('growth'))} an hour and is full in {span(hours * 3600)} "
        f"({disk_size(fact.number('free'))} left)"
    )
    return Verdict(hours < limits["hours"], sentence, hours, limits["hours"])


def _temporaries(fact: Fact, limits: Limits) -> Verdict:
    files = fact.number("files")
    sentence = f"{said(files)} temporary files of {fact.subject.name} were older than an hour at the last scan"
    return Verdict(files >= limits["files"], sentence, files, limits["files"])


def _shared(fact: Fact, limits: Limits) -> Verdict:
    servers = fact.number("servers")
    both = f"; both write records of {fact.words['models']}" if fact.number("same_models") else ""
    sentence = f"{fact.words['servers']} write into {fact.words['path']}{both}"
    return Verdict(servers >= limits["servers"], sentence, servers, limits["servers"])


def _split(fact: Fact, _: Limits) -> Verdict:
    holds = fact.number("split") > 0
    sentence = f"the workers of one engine use {fact.words['servers']} over one directory ({fact.words['models']})"
    return Verdict(holds, sentence if holds else "no engine is spread over them", fact.number("split"), 1.0)


def _wrong(fact: Fact, limits: Limits) -> Verdict:
    every = fact.numbers.get("every")
    wrong = fact.numbers["incompatible"]
    rest = ""
    if every is not None and wrong is not None and every > wrong:
        rest = f" ({said(every)} are incompatible; the rest is of what nothing serves now, and read by no request)"
    return _records(fact, limits, "incompatible", f"proven to be of another layout{rest}")


def _dead(fact: Fact, limits: Limits) -> Verdict:
    return _records(fact, limits, "corrupt", "of an impossible size")


def _derived(fact: Fact, limits: Limits) -> Verdict:
    return _records(fact, limits, "derived", "derived (maybe computed behind wrong ones)")


def _records(fact: Fact, limits: Limits, number: str, what: str) -> Verdict:
    count, last_known = fact.numbers[number], fact.words.get("last_known", "")
    if count is None:
        return Verdict(None, f"not known{last_known}")
    one = count == 1
    verb = ("was" if one else "were") if " when " in last_known else ("is" if one else "are")
    sentence = f"{said(count)} record{'' if one else 's'} of {fact.subject.name} {verb} {what}{last_known}"
    return Verdict(count >= limits["records"], sentence, count, limits["records"])


def _insufficient(fact: Fact, _: Limits) -> Verdict:
    verdict = fact.words["verdict"]
    run = said(fact.number("run")).replace(",", "")
    note = f": {fact.words['note']}" if fact.words["note"] else ""
    holds = verdict in ("insufficient", "stopped_at_limit", "failed", "interrupted")
    ended = f"{fact.words['policy']} (cleanup run {run}) ended"
    return Verdict(holds, f"{ended} as {verdict.replace('_', ' ')}{note}", fact.number("age"))


RULES = (
    Rule(
        id="store_unusable",
        title="A store cannot be used",
        fact="store_usable",
        subject="store",
        severity="critical",
        for_seconds=60,
        judge=_unusable,
        means="The directory is gone, cannot be read by the panel, or its file system does not answer. Scans and "
        "cleanup stop; a server on the same mount cannot store or load.",
        action="Look at the mount on this host (mount, ls, dmesg) and at the rights of the panel's user.",
    ),
    Rule(
        id="store_look_stale",
        title="A store has not been looked at for long",
        fact="store_look_age",
        subject="store",
        severity="warning",
        for_seconds=30,
        judge=stale,
        limits=STALE_LIMITS,
        causes=(*STORE_GONE, Cause("polling_stopped", "panel")),
        means="The panel did not get to look at the directory: its free room is as old as said.",
        action="A file system that hangs holds up whoever looks; see dmesg for the mount. Else look at the panel's "
        "log.",
    ),
    Rule(
        id="store_full",
        title="A store is full",
        fact="store_room",
        subject="store",
        severity="critical",
        for_seconds=0,
        judge=_full,
        limits={
            "bytes": Limit(1e9, "bytes", "free", 0, 1e18),
            "inodes": Limit(1000, "inodes", "free", 0, 1e15),
        },
        causes=STORE_GONE,
        means="Stores fail from here on, without any metric of the server moving, and hits decay.",
        action="Run a cleanup with removal 'delete' (quarantine frees nothing), or purge the quarantine; then give "
        "its policy a schedule with a low watermark.",
    ),
    Rule(
        id="free_space_low",
        title="A store is running out of room",
        fact="store_room",
        subject="store",
        severity="warning",
        for_seconds=300,
        judge=_low,
        limits={"share": Limit(0.1, "ratio", "of what the file system can hold is free, as df counts", 0, 1)},
        causes=(*STORE_GONE, Cause("store_full")),
        means="The file adapter 'fs' never evicts: the directory grows until the device is full.",
        action="Plan a cleanup by capacity or free space for this store and look at what it would take.",
    ),
    Rule(
        id="store_filling",
        title="A store will be full soon",
        fact="time_to_full",
        subject="store",
        severity="warning",
        for_seconds=600,
        judge=_filling,
        limits={"hours": Limit(48, "hours", "until it is full at its present growth", 0.1, 24 * 365)},
        causes=(*STORE_GONE, Cause("store_full"), Cause("free_space_low")),
        means="At the growth of the last scans the file system is full within that time.",
        action="Give a cleanup policy of this store a schedule (capacity with a low watermark), or make room.",
    ),
    Rule(
        id="temporary_pile_up",
        title="Unfinished writes pile up",
        fact="temporaries",
        subject="store",
        severity="warning",
        for_seconds=0,
        judge=_temporaries,
        limits={"files": Limit(100, "files", "older than an hour at the last scan", 1, 1e12)},
        clear_seconds=0,
        exact=True,
        means="Writers died in the middle of stores (killed servers, a full disk). The files are never read and "
        "never removed, and count as used.",
        action="A policy with 'temporary, older than 1 h' removes them. If they keep coming, look for what kills the "
        "server.",
    ),
    Rule(
        id="shared_directory",
        title="Several servers write into one directory",
        fact="shared_directory",
        subject="store",
        severity="warning",
        for_seconds=60,
        judge=_shared,
        limits={"servers": Limit(2, "servers", "that answer", 2, 1000)},
        causes=(Cause("split_engine"),),
        means="Two writers of one name use the same temporary file: a record can be renamed into place half written. "
        "Only some adapters of newer versions are made for it.",
        action="Give each server a directory of its own, or silence this alarm where sharing is meant and proven by "
        "an acceptance test on both.",
    ),
    Rule(
        id="split_engine",
        title="One engine writes through two servers into one directory",
        fact="shared_directory",
        subject="store",
        severity="critical",
        for_seconds=60,
        judge=_split,
        means="Workers of one engine are spread over servers that share a directory: they write different bytes "
        "under one name. Its records are unverified, and hits may be wrong.",
        action="Point all workers of the engine at one server, then clean the store and run an acceptance test.",
    ),
    Rule(
        id="wrong_records",
        title="Wrong records are on disk",
        fact="record_classes",
        subject="store",
        severity="critical",
        for_seconds=0,
        judge=_wrong,
        limits={"records": Limit(1, "records", "incompatible", 1, 1e12)},
        clear_seconds=0,
        exact=True,
        means="These records were written by another KV layout under names that are looked up now: each is served as "
        "a perfect hit with a wrong answer.",
        action="Plan the policy 'keep it safe' on this store, look at the list, and run it. Records that somebody put "
        "back from quarantine are on hold and stay, wrong or not, until the hold is released on the store's quarantine "
        "page.",
    ),
    Rule(
        id="derived_records",
        title="Records that may be wrong were left",
        fact="derived_records",
        subject="store",
        severity="warning",
        # A run that takes wrong records takes these after them: that is given its time.
        for_seconds=300,
        judge=_derived,
        limits={"records": Limit(1, "records", "derived", 1, 1e12)},
        causes=(Cause("wrong_records"),),
        clear_seconds=0,
        exact=True,
        means="Engines stored these while wrong records could be read: what was computed behind a wrong record is "
        "wrong, too, and is served. The wrong ones are gone; these are not.",
        action="Plan the policy 'keep it safe' on this store, look at the list, and run it. A policy that takes "
        "'incompatible' alone leaves them: add 'derived' to it.",
    ),
    Rule(
        id="dead_records",
        title="Corrupt records are on disk",
        fact="record_classes",
        subject="store",
        severity="warning",
        for_seconds=0,
        judge=_dead,
        limits={"records": Limit(1, "records", "corrupt", 1, 1e12)},
        clear_seconds=0,
        exact=True,
        means="Records with an impossible size (empty, short, long). A short one never heals: loads fail, and a "
        "store skips the existing name.",
        action="Plan the policy 'keep it safe' on this store, look at the list, and run it; then look for what cut "
        "the writes short.",
    ),
    Rule(
        id="cleanup_insufficient",
        title="A cleanup did not reach its goal",
        fact="cleanup_outcome",
        subject="store",
        severity="warning",
        for_seconds=0,
        judge=_insufficient,
        causes=STORE_GONE,
        clear_seconds=0,
        means="The last run of this policy ended without doing what it is for: nothing was old enough, a limit "
        "stopped it, the caches could not be cleared, or it failed.",
        action="Open the run: it says why and what to change.",
        page="/cleanup",
    ),
)
