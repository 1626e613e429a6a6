"""Matchers as they come in and go out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.alerts.catalogue import RULES
from app.alerts.matching import Matcher
from app.alerts.schemas import MatcherInput, MatcherView, TargetRefView
from app.errors import InvalidInput, NotFound
from app.fleet.naming import check_labels
from app.fleet.tables import Engine, Server, Store
from app.paging import parse_id

TARGETS: Mapping[str, type[Server] | type[Engine] | type[Store]] = {"server": Server, "engine": Engine, "store": Store}


def check_matcher(session: Session, body: MatcherInput, field: str = "matcher") -> dict[str, Any]:
    """What is stored of a matcher. Raises InvalidInput naming the rule or the target that does not exist."""
    for index, rule in enumerate(body.rules):
        if rule not in RULES:
            raise InvalidInput.field(f"{field}.rules[{index}]", f"there is no rule {rule[:80]!r}")
    targets = set()
    for index, ref in enumerate(body.targets):
        try:
            ident = parse_id(ref.kind, ref.id)
        except NotFound:
            ident = -1
        if ident < 0 or session.get(TARGETS[ref.kind], ident) is None:
            raise InvalidInput.field(f"{field}.targets[{index}].id", f"no {ref.kind} has the id {ref.id[:80]!r}")
        targets.add((str(ref.kind), ident))
    return Matcher(
        frozenset(body.rules), frozenset(body.severities), frozenset(targets), check_labels(body.labels)
    ).to_json()


def matcher_view(session: Session, stored: Mapping[str, Any]) -> MatcherView:
    """A stored matcher with the names of its targets."""
    matcher = Matcher.from_json(stored)
    shown = matcher.to_json()
    return MatcherView(
        rules=shown["rules"],
        severities=shown["severities"],
        targets=[
            TargetRefView(kind=kind, id=str(ident), name=target_name(session, kind, ident))
            for kind, ident in sorted(matcher.targets)
        ],
        labels=shown["labels"],
    )


def target_name(session: Session, kind: str, ident: int) -> str | None:
    """The name of a target; None when it is gone (or is none)."""
    table = TARGETS.get(kind)
    return None if table is None else session.scalar(select(table.name).where(table.id == ident))
