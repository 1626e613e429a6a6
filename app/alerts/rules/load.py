"""What the processes and the host of a cache server have left."""

from __future__ import annotations

from app.alerts.model import Fact, Limit, Verdict, percent, said, span
from app.alerts.rules.base import SERVER_GONE, STORE_GONE, Cause, Limits, Rule
from app.sizes import memory_size


def _attached(fact: Fact) -> str:
    engines = fact.numbers.get("engines")
    return "" if engines is None else f", with {said(engines)} engine{'s' * (engines != 1)} attached"


def _busy(fact: Fact, limits: Limits) -> Verdict:
    cores, resident = fact.number("cores"), fact.numbers.get("resident")
    memory = "" if resident is None else f" and holds {memory_size(resident)} of memory"
    sentence = f"{fact.subject.name} used {cores:.2f} cores in {span(fact.number('window'))}{memory}{_attached(fact)}"
    return Verdict(cores >= limits["cores"], sentence, cores, limits["cores"])


def _stalled(fact: Fact, limits: Limits) -> Verdict:
    share = fact.number("share")
    sentence = (
        f"tasks of the host waited for memory in {percent(share)} of {span(fact.number('window'))}{_attached(fact)}"
    )
    return Verdict(share >= limits["share"], sentence, share, limits["share"])


def _slow(fact: Fact, limits: Limits) -> Verdict:
    slowest, requests, busy = fact.number("slowest"), fact.number("requests"), fact.numbers.get("busy")
    parts = [
        f"{verb} took {seconds * 1000:.0f} ms"
        for verb, seconds in (("a read", fact.numbers["read"]), ("a write", fact.numbers["write"]))
        if seconds is not None
    ]
    shown = "" if busy is None else f", busy {percent(busy)} of the time"
    sentence = f"{fact.words['device']}: {' and '.join(parts)} on average{shown}{_attached(fact)}"
    slow = requests >= limits["requests"] and slowest >= limits["seconds"]
    return Verdict(slow, sentence, slowest, limits["seconds"])


RULES = (
    Rule(
        id="server_saturated",
        title="A cache server is at the end of its processor",
        fact="server_load",
        subject="server",
        severity="warning",
        for_seconds=300,
        judge=_busy,
        means="Lookups wait for the server's process: first tokens come later, and a hit may cost more than it saves.",
        action="See how many engines are attached and how many retrieves a second it serves; give some of the engines "
        "a server of their own, or raise the chunk size.",
        limits={"cores": Limit(0.95, "cores", "used over five minutes", highest=1024)},
        causes=SERVER_GONE,
    ),
    Rule(
        id="host_memory_pressure",
        title="The host of a cache server is short of memory",
        fact="host_memory",
        subject="server",
        severity="warning",
        for_seconds=120,
        judge=_stalled,
        means="Tasks wait until memory is freed: L1 transfers stutter, and next the kernel kills something.",
        action="Make L1 smaller (--l1-size-gb) or move engines away; pinned L1 memory cannot be swapped out.",
        limits={"share": Limit(0.1, "ratio", "of the time some task waited for memory", highest=1.0)},
        causes=SERVER_GONE,
    ),
    Rule(
        id="disk_slow",
        title="The disk below a store is slow",
        fact="disk_load",
        subject="store",
        severity="warning",
        for_seconds=180,
        judge=_slow,
        means="Loads from L2 wait for the device: a hit on disk may take longer than computing the tokens again.",
        action="See what else uses the device, and how many engines load at once; compare the L2 load speed of the "
        "server with recomputing (sizing page, break-even).",
        limits={
            "seconds": Limit(0.1, "seconds", "on average for a read or a write"),
            "requests": Limit(20, "requests", "between two looks at least"),
        },
        causes=(*STORE_GONE, Cause("host_memory_pressure", "servers")),
    ),
)
