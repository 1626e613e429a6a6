"""One alarm a cause: which alarms explain which, over the targets' relations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter

from app.alerts.inputs import Moment
from app.alerts.model import PANEL, Subject
from app.alerts.rules.base import Relation, Rule

SubjectKey = tuple[str, int]
#: (rule, kind and id of the subject): all parts of a subject count as one cause.
CauseKey = tuple[str, SubjectKey]


def in_order(rules: Mapping[str, Rule]) -> list[str]:
    """Rule ids, causes before what they explain. Raises CycleError where two rules explain each other."""
    graph = {rule.id: {cause.rule for cause in rule.causes} for rule in rules.values()}
    order = list(TopologicalSorter(graph).static_order())
    return [rule_id for rule_id in order if rule_id in rules]


def related(moment: Moment, subject: Subject, relation: Relation) -> list[SubjectKey]:
    """The subjects that stand in this relation to one."""
    if relation == "same":
        return [subject.key]
    if relation == "panel":
        return [PANEL.key]
    engine = moment.engines.get(subject.id) if subject.kind == "engine" else None
    server_id = subject.id if subject.kind == "server" else engine.server_id if engine is not None else None
    if relation == "server":
        return [] if server_id is None else [("server", server_id)]
    if relation == "engines":
        return [("engine", e.id) for e in moment.engines.values() if server_id is not None and e.server_id == server_id]
    if relation == "stores":
        return [] if server_id is None else [("store", store.id) for store in moment.stores_of(server_id)]
    store = moment.stores.get(subject.id) if subject.kind == "store" else None
    return [] if store is None else [("server", ident) for ident in store.server_ids]


def explanation(moment: Moment, rule: Rule, subject: Subject, active: Iterable[CauseKey]) -> CauseKey | None:
    """The first active alarm that explains one of `rule` about `subject`."""
    there = active if isinstance(active, set | frozenset | dict) else set(active)
    for cause in rule.causes:
        for key in related(moment, subject, cause.relation):
            if (cause.rule, key) in there:
                return cause.rule, key
    return None
