"""Hybrid models want one object group per kind of layer."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Facts

_ORIGIN = "/config of the server; layouts on its /status"


class ObjectGroups(Check):
    id = "separate_object_groups"
    title = "Object groups are separated for the hybrid model"
    looks_at = "--separate-object-groups of the server (hybrid models only)"
    why = (
        "Recurrent state and sliding windows need only their last block. Kept in one object with full attention they "
        "are stored and moved for every chunk, and steps of more than 2N tokens cannot be stored at all. Switching it "
        "changes the records: the old ones are not found again."
    )
    source = "LMCache recipes for hybrid models; lmcache server --help"

    def check(self, facts: Facts) -> Iterable[Finding]:
        is_hybrid = effective.hybrid(facts)
        config = facts.server.config if facts.server is not None else None
        if is_hybrid is None or not is_hybrid.value or facts.server is None:
            return
        subject = facts.server_name
        if config is None or config.separate_object_groups is None:
            yield self.unknown(subject, "the server does not tell whether object groups are separated")
        elif config.separate_object_groups:
            yield self.ok(subject, "separated", configured=True, effective=_in_force(facts, on=True), origin=_ORIGIN)
        else:
            yield self.warn(
                subject,
                f"a hybrid model ({is_hybrid.origin}) in a single object group",
                title="Object groups are not separated",
                fix="lmcache server --separate-object-groups, over a new base_path",
                configured=False,
                effective=_in_force(facts, on=False),
                origin=_ORIGIN,
            )


def _in_force(facts: Facts, *, on: bool) -> str:
    """The groups of the engine's registered layout, else what is set."""
    counts = {len(layout.groups) for layout in effective.own_layouts(facts) if layout.groups}
    told = ", ".join(str(count) for count in sorted(counts))
    return f"{told} object group{'' if told == '1' else 's'}" if told else "on" if on else "off"
