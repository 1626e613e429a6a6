"""The words, icons and colours of every state, once for all pages. A colour never comes without its word and icon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.acceptance.finding import ARM_LABELS
from app.cleanup.schemas import Count, PlanView, RunView
from app.web.formats import words


@dataclass(frozen=True)
class Word:
    """How a state is shown: `kind` is ok, warn, bad, info or none; `means` one sentence for the person who hovers."""

    kind: str
    icon: str
    text: str
    means: str = ""


HEALTH: Mapping[str, Word] = {
    "healthy": Word("ok", "circle-check", "healthy", "Answers, and every inner part says it is well."),
    "degraded": Word(
        "warn", "triangle-alert", "degraded", "Answers, but an inner part, its engines or its answer are not right."
    ),
    "unhealthy": Word("bad", "circle-x", "unhealthy", "Answers, and says itself that it is not well."),
    "unreachable": Word("bad", "unplug", "unreachable", "Gives no answer."),
    "unknown": Word("none", "circle-question-mark", "unknown", "Not known yet."),
}

#: One of the four lights: true, false or not known.
LIGHT: Mapping[object, Word] = {
    True: Word("ok", "circle-check", "yes"),
    False: Word("bad", "circle-x", "no"),
    None: Word("none", "circle-dashed", "unknown"),
}

#: The four lights, in the order in which a request meets them.
LIGHTS: Mapping[str, str] = {
    "http_up": "HTTP up",
    "engine_up": "Cache engine up",
    "engines_registered": "Engines registered",
    "data_path": "Data path proven",
}

WORK: Mapping[str, Word] = {
    "queued": Word("none", "hourglass", "queued", "Waits for its turn."),
    "running": Word("info", "loader-circle", "running", "At work now."),
    "succeeded": Word("ok", "circle-check", "finished", "Went to its end."),
    "failed": Word("bad", "circle-x", "failed", "Ended with an error."),
    "cancelled": Word("none", "ban", "cancelled", "Stopped by somebody."),
    "interrupted": Word("warn", "power", "interrupted", "The process that did it ended in the middle."),
}

VERDICT: Mapping[str, Word] = {
    "pass": Word("ok", "badge-check", "pass", "The cache gave back what the engine computes itself, with proof."),
    "pass_with_near_ties": Word(
        "ok", "badge-check", "pass, near ties", "Answers differ only where two tokens were equally likely."
    ),
    "fail": Word("bad", "octagon-alert", "fail", "What came from the cache differs from what the engine computes."),
    "invalid": Word("warn", "circle-slash", "invalid", "The evidence is missing: this run proves nothing either way."),
    "error": Word("bad", "circle-x", "error", "Our own or the target's trouble outside the comparison."),
    "timeout": Word("warn", "timer", "timeout", "A deadline passed before the run could end."),
    "succeeded": Word("ok", "circle-check", "done", "Everything planned was removed and verified."),
    "nothing_to_do": Word("ok", "check", "nothing to do", "No record matched."),
    "insufficient": Word("warn", "triangle-alert", "insufficient", "The goal was not reached; the page says why."),
    "stopped_at_limit": Word("warn", "circle-pause", "stopped at limit", "A limit of the policy was reached."),
    "failed": Word("bad", "circle-x", "failed", "The run could not be carried out."),
}

PLAN: Mapping[str, Word] = {
    **WORK,
    "ready": Word("ok", "list-checks", "ready", "Frozen: a run removes exactly this list."),
    "expired": Word("none", "clock", "expired", "Too old to be run; make it again."),
}

#: What became of one record of a plan or a run.
ITEM: Mapping[str, Word] = {
    "planned": Word("none", "circle", "planned"),
    "quarantined": Word("info", "archive", "in quarantine"),
    "deleted": Word("ok", "trash-2", "deleted"),
    "purged": Word("none", "trash-2", "purged"),
    "restored": Word("ok", "undo-2", "put back"),
    "in_place": Word("none", "undo-2", "left in place", "Put back when the run was interrupted."),
    "vanished": Word("none", "circle-slash", "vanished", "Was not there any more."),
    "changed": Word("warn", "git-compare", "changed", "Not the file that was planned: left alone."),
    "used": Word("warn", "eye", "in use", "Read since the plan: left alone."),
    "reclassified": Word("warn", "refresh-cw", "another class now", "Its class changed since the plan: left alone."),
    "held": Word("info", "lock", "on hold", "Put back by hand, or read by a canary: left alone."),
    "linked": Word("warn", "link", "second hard link", "The file has another name, too: left alone."),
    "not_regular": Word("warn", "file-question-mark", "no regular file", "Left alone."),
    "other_device": Word(
        "warn", "hard-drive", "on another device", "Another file system is mounted there: left alone."
    ),
    "open": Word("warn", "file-clock", "open elsewhere", "A process holds it open: left alone."),
    "left_behind": Word(
        "warn", "archive", "changed, in quarantine", "Not the file that was planned, and its name was taken again."
    ),
    "failed": Word("bad", "circle-x", "failed", "The operating system refused: its error is beside the record."),
}

ALARM: Mapping[str, Word] = {
    "critical": Word("bad", "octagon-alert", "critical"),
    "warning": Word("warn", "triangle-alert", "warning"),
    "info": Word("info", "info", "note"),
    "firing": Word("bad", "bell", "firing"),
    "pending": Word("warn", "hourglass", "pending"),
    "acknowledged": Word("none", "eye", "seen"),
    "silenced": Word("none", "bell-off", "silenced"),
    "resolved": Word("ok", "circle-check", "resolved"),
}

CLASS: Mapping[str, Word] = {
    "current": Word("ok", "file-check", "current", "Proven to be what a live layout writes."),
    "incompatible": Word(
        "bad",
        "octagon-alert",
        "incompatible",
        "Proven to be of another layout, or of something gone for long. Served, it is a wrong answer.",
    ),
    "corrupt": Word("bad", "file-warning", "corrupt", "Proven to have an impossible size. Its key never heals."),
    "unreachable": Word("warn", "unlink", "unreachable", "A name form that no server of the store looks up any more."),
    "temporary": Word("warn", "file-clock", "temporary", "An unfinished write."),
    "unverified": Word(
        "none", "circle-question-mark", "unverified", "Cannot be decided. Stays unless age, space or you say otherwise."
    ),
    "foreign": Word("none", "files", "foreign", "Anything else. Never touched, only counted."),
}

#: The order in which classes stand in bars, legends and filters.
CLASS_ORDER = ("current", "unverified", "temporary", "unreachable", "corrupt", "incompatible", "foreign")

REASON: Mapping[str, str] = {
    "other_layout": "written under a KV layout that no engine uses now",
    "other_size": "its size is no form of the only live layout",
    "other_world_size": "written for a number of ranks that is gone for long",
    "unknown_object_group": "its object group exists in no live layout",
    "model_not_served": "its model has not been served for long",
    "declared": "older than a generation declared for its model",
    "empty": "0 bytes, and old enough not to be a write under way",
    "short": "shorter than every proven size: a load ends here and the key never heals",
    "long": "longer than every proven size",
    "legacy_name": "a name form that every server of the store is too new to look up",
    "before_first_seen": "written before the panel knew the layout; adopt it if you know it is right",
    "observation_gap": "written while the panel looked away (stopped, or a late poll); nothing speaks against it",
    "mixed_layouts": "written while more than one layout was possible",
    "layout_unknown": "the layout is not known well enough",
    "derived": "written while wrong records may have been read: its content may be wrong too",
    "future_mtime": "its time of writing lies in the future",
}

#: Why a run took a record, where that is not what the record is.
TAKEN_FOR: Mapping[str, str] = {
    "filter": "chosen by hand: it matched an explicit filter",
    "unused": "not used for as long as the policy says",
    "capacity": "least recently used, to come down to the low mark",
    "free_space": "least recently used, to keep the floor free",
    "recreated": "written again under a removed key before the caches were clean",
    "temporary": "an unfinished write that nobody goes on with",
}

#: Records that engines would be served wrong answers from, and records that cannot be read.
WRONG_ANSWERS = frozenset({"other_layout", "other_size", "declared", "derived", "long"})
DAMAGED = frozenset({"empty", "short"})

TIER: Mapping[str, tuple[str, str]] = {
    "l0": ("L0", "GPU"),
    "l1": ("L1", "memory"),
    "l2": ("L2", "disk"),
    "rc": ("recomputed", ""),
}

#: The conditions of an acceptance run, by the names that the API and the commands have.
ARM: Mapping[str, str] = ARM_LABELS

EVENT_ICON: Mapping[str, str] = {
    "health": "activity",
    "restart": "rotate-ccw",
    "layout": "layers",
    "cleanup": "brush-cleaning",
    "restore": "undo-2",
    "purge": "trash-2",
    "scan": "radar",
    "acceptance": "badge-check",
    "alarm": "bell",
    "target": "link",
    "policy": "sliders-horizontal",
    "user": "user",
    "token": "key-round",
    "schedule": "calendar-clock",
    "sign_in": "log-in",
}


def word(table: Mapping[str, Word], code: str | None) -> Word:
    """The word of a state; a state that this version does not know is shown as it is, without a judgement."""
    if code is None:
        return Word("none", "circle-dashed", "not yet")
    return table.get(code) or Word("none", "circle-question-mark", words(code))


def plan_word(plan: PlanView) -> Word:
    """How a plan stands: its run and its expiry count for more than that it was made."""
    if plan.run_id:
        return Word("ok", "circle-check", "carried out", "A run was made of it.")
    if plan.state == "succeeded":
        return PLAN["expired" if plan.expired else "ready"]
    return word(PLAN, plan.state)


def run_name(policy_name: str | None, trigger: str | None = None) -> str:
    """What a run is called: its policy, or how it came about."""
    if policy_name:
        return policy_name
    return "a test's own records" if trigger == "housekeeping" else "by hand"


def run_starter(run: RunView) -> str:
    """Who or what started a run."""
    by = {"schedule": "its schedule", "layout_change": "a layout change", "housekeeping": "a test, after itself"}
    return by.get(run.trigger, run.requested_by)


def plan_name(plan: PlanView) -> str:
    """What a plan is called."""
    if plan.policy_name:
        return plan.policy_name
    return "a test's own records" if plan.origin == "housekeeping" else "from a filter"


#: What came of a firing of a schedule.
FIRING: dict[str, Word] = {
    "started": Word("ok", "circle-check", "started"),
    "manual": Word("ok", "circle-play", "by hand"),
    "late": Word("warn", "clock", "late"),
    "overlap": Word("warn", "circle-slash", "overlap, refused"),
    "skipped": Word("none", "circle-slash", "left out"),
    "error": Word("bad", "circle-x", "error"),
}


def firing_word(outcome: str) -> Word:
    """The word for a firing's outcome; one that is new here is said as it is."""
    return FIRING.get(outcome) or Word("none", "circle", outcome)


def item_word(state: str) -> Word:
    """How one record of a run stands; every way of being skipped is a word of its own."""
    return ITEM.get(state) or Word("warn", "minus", words(state))


def light(value: bool | None) -> Word:
    """The word of one of the four lights."""
    return LIGHT[value]


@dataclass(frozen=True, slots=True)
class Harm:
    """What putting records back would do, in records. `kinds` names what they were when they were taken."""

    wrong: int
    damaged: int
    kinds: str

    @property
    def records(self) -> int:
        return self.wrong + self.damaged


def harm_of(waiting: Mapping[str, Count] | None) -> Harm:
    """The records among what waits that nobody should get back by mistake."""
    found = {code: n.records for code, n in (waiting or {}).items() if code in WRONG_ANSWERS | DAMAGED}
    return Harm(
        wrong=sum(n for code, n in found.items() if code in WRONG_ANSWERS),
        damaged=sum(n for code, n in found.items() if code in DAMAGED),
        kinds=", ".join(f"{words(code)} {n:,}" for code, n in sorted(found.items())),
    )


def reason(code: str | None) -> str:
    """A reason code in plain words."""
    if code is None:
        return ""
    return REASON.get(code) or TAKEN_FOR.get(code) or (CLASS[code].means if code in CLASS else words(code))
