"""What a plan warns of, and what it refuses. Pure; sentences for people, each with its numbers."""

from __future__ import annotations

from app.cleanup.plan import RELATIME_SECONDS, StoreFacts, Summary
from app.cleanup.policy import DIRTY_REASONS, PolicySpec
from app.cleanup.quantities import human_age
from app.errors import FieldError, InvalidInput
from app.sizes import disk_size

#: A plan over more than this share of the store is pointed out.
LARGE_SHARE = 0.3
#: An inventory older than this is pointed out; a scheduled run scans first.
STALE_SECONDS = 3600.0
#: A model that was served within this time may come back.
LATELY_SECONDS = 7 * 86400.0
_SHORT_TEMPORARY = 600


def check_use_is_visible(policy: PolicySpec, atime: str) -> None:
    """R6: on a mount without access times, `unused` says nothing unless it goes by age. Raises InvalidInput."""
    for index, item in enumerate(policy.select):
        if item.kind == "unused" and not item.age_only and atime == "noatime":
            field = f"select[{index}].age_only"
            message = (
                "the store's mount keeps no access times (noatime), so that nobody can tell what is unused; "
                'set "age_only": true to go by the time of writing, or mount it with relatime'
            )
            raise InvalidInput(f"{field}: {message}", errors=(FieldError(field, message),))


def warnings_for(policy: PolicySpec, facts: StoreFacts, summary: Summary, now: float) -> list[str]:
    """Everything an operator should know before running the plan, the gravest first."""
    return [
        *_about_goal(policy, facts, summary),
        *_about_derived(facts, summary),
        *_about_caches(facts, summary),
        *_about_share(facts, summary),
        *_about_models(facts, summary, now),
        *_about_use(policy, facts),
        *_about_adapter(facts, summary),
        *_about_protection(policy, summary),
        *_about_temporaries(policy),
        *_about_inventory(facts, now),
    ]


def in_the_way(facts: StoreFacts, summary: Summary) -> list[str]:
    """What keeps a plan from its goal of space; [] where it reaches it, or has none."""
    if summary.need is None or summary.need.bytes <= summary.freed_bytes:
        return []
    reasons = []
    if facts.quarantine_bytes:
        reasons.append(f"quarantine holds {disk_size(facts.quarantine_bytes)} (purging frees it)")
    if summary.held_back:
        held = sum(pair[1] for pair in summary.held_back.values())
        reasons.append(f"{disk_size(held)} are protected ({', '.join(sorted(summary.held_back))})")
    if summary.limited:
        reasons.append(f"limits.{summary.limited} stops it")
    return reasons or ["the rest of the file system is not this store's records"]


def _about_goal(policy: PolicySpec, facts: StoreFacts, summary: Summary) -> list[str]:
    found: list[str] = []
    if policy.item("capacity") or policy.item("free_space"):
        if facts.fs_free is None:
            found.append("The file system cannot be measured, so that capacity and free space select nothing.")
        if summary.need is not None and summary.need.bytes > summary.freed_bytes:
            missing = summary.need.bytes - summary.freed_bytes
            reasons = "; ".join(in_the_way(facts, summary))
            found.append(f"The goal cannot be reached: {disk_size(missing)} are missing; {reasons}.")
        elif facts.quarantine_bytes and summary.need is not None and summary.need.bytes:
            found.append(
                f"Quarantine holds {disk_size(facts.quarantine_bytes)}, which counts as used; purging it frees space "
                "without losing good records."
            )
    if summary.limited:
        found.append(f"limits.{summary.limited} cuts the list short: more records match than will go.")
    return found


def _about_derived(facts: StoreFacts, summary: Summary) -> list[str]:
    """C8: what was computed behind wrong records outlives them, and is served."""
    wrong = sum(summary.by_reason.get(reason, [0])[0] for reason in DIRTY_REASONS - {"derived"})
    left = facts.derived - summary.by_reason.get("derived", [0])[0]
    if wrong and left > 0:
        return [
            f"{left:,} record{'s' if left != 1 else ''} may have been computed behind the wrong ones (derived) and can "
            f"be wrong too; this plan leaves {'them' if left != 1 else 'it'}. A policy with both, such as Keep it "
            "safe, takes them in the same run, and so does Plan a cleanup on the page of the store (a filter: add the "
            "class unverified and the reason derived)."
        ]
    return []


def _about_caches(facts: StoreFacts, summary: Summary) -> list[str]:
    """R4: what an engine may have read wrongly goes from L1 and L0, too, and L0 can only be emptied as a whole."""
    served = facts.served_now
    models = {m for m in summary.dirty_models if served is None or m in served}
    if not models and not facts.open_episodes:
        return []
    whose = ", ".join(sorted(models)) if models else "an earlier run that could not clean them"
    what = f"The caches may hold what came from wrong records of {whose}" if models else f"Caches are left by {whose}"
    able = [name for name, reset in facts.engines if reset is not False]
    stuck = [name for name, reset in facts.engines if reset is False]
    found = []
    if able:
        found.append(
            f"{what}: the run also drops these records from L1 and resets the whole GPU prefix cache (L0) of "
            f"{', '.join(able)}, for everybody; until it has filled again, prompts are computed or loaded anew."
        )
    if stuck:
        one = len(stuck) == 1
        found.append(
            f"{what}, and {', '.join(stuck)} {'has' if one else 'have'} no reset of the GPU cache (L0): the run ends "
            f"insufficient until {'that engine is' if one else 'those engines are'} restarted and it is run again."
        )
    if not facts.engines and served is not None:
        found.append(
            f"{what}, and no engine is registered behind this store's servers: where one serves such a model, the run "
            "ends insufficient until it is registered or restarted."
        )
    return found


def _about_share(facts: StoreFacts, summary: Summary) -> list[str]:
    for part, whole, what in ((summary.records, facts.records, "records"), (summary.bytes, facts.bytes, "bytes")):
        if whole and part / whole > LARGE_SHARE:
            return [f"This takes {part / whole:.0%} of the store's {what}."]
    return []


def _about_models(facts: StoreFacts, summary: Summary, now: float) -> list[str]:
    if facts.served_now is None:
        return (
            [] if not summary.records else ["No cache server of this store answers: which models are live is unknown."]
        )
    found = []
    for model, count in sorted(summary.by_model.items()):
        last = facts.last_served.get(model)
        if model not in facts.served_now and last is not None and now - last < LATELY_SECONDS:
            found.append(
                f"{model} is not served right now but was {human_age(max(now - last, 0))} ago; "
                f"{count} of its records go."
            )
    return found


def _about_use(policy: PolicySpec, facts: StoreFacts) -> list[str]:
    unused = policy.item("unused")
    accessed = policy.protect.accessed_within
    by_use = policy.item("capacity") or policy.item("free_space") or accessed or (unused and not unused.age_only)
    if not by_use:
        return []
    if facts.atime == "noatime":
        return ["The mount keeps no access times (noatime): the time of writing stands in for the last use."]
    found = []
    if facts.atime == "unknown":
        found.append(
            "Whether a read moves the access time on this file system is not known: where it does not, the last use is "
            'the time of writing. Compare with what counters say of reads, or set "age_only": true.'
        )
    if facts.atime in ("relatime", "unknown"):
        for name, age in (
            ("protect.accessed_within", accessed),
            ("unused.for", unused.age if unused and not unused.age_only else None),
        ):
            if age is not None and age.seconds < RELATIME_SECONDS:
                found.append(
                    f"{name} {age} is raised to 24h: on this mount an access time moves once a day (relatime)."
                    if facts.atime == "relatime"
                    else f"{name} {age} is raised to 24h: an access time may move once a day only."
                )
    return found


def _about_adapter(facts: StoreFacts, summary: Summary) -> list[str]:
    if facts.adapter_evicts and summary.records:
        return [
            "The adapter of this store evicts by itself and keeps its own count: it will go on counting what is "
            "removed behind it until its server restarts."
        ]
    return []


def _about_protection(policy: PolicySpec, summary: Summary) -> list[str]:
    pair = summary.held_back.get("written_within")
    if pair and any(s.kind not in ("unused", "capacity", "free_space", "temporary") for s in policy.select):
        return [f"protect.written_within keeps {pair[0]} records that match, wrong ones among them perhaps."]
    return []


def _about_temporaries(policy: PolicySpec) -> list[str]:
    item = policy.item("temporary")
    if item is not None and item.age is not None and item.age.seconds < _SHORT_TEMPORARY:
        return [f"temporary.older_than {item.age} is short: a slow write of that age may still be going on."]
    return []


def _about_inventory(facts: StoreFacts, now: float) -> list[str]:
    if facts.scanned_at is not None and now - facts.scanned_at > STALE_SECONDS:
        return [
            f"The inventory is {human_age(now - facts.scanned_at)} old; what changed since then will be skipped. "
            "Scan first for an exact plan."
        ]
    return []
