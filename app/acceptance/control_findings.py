"""What the negative controls of a run mean for its verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.acceptance import fixes
from app.acceptance.controls import ControlSeen, Place
from app.acceptance.finding import Finding

#: Which part of a prompt was other text.
WHERE: Mapping[Place, str] = {"first": "at its beginning", "middle": "in its middle"}


def control_findings(seen: Sequence[ControlSeen] | None) -> list[Finding]:
    """Findings of each place. None: nobody asked; nothing at all: no prompt has a chunk that could be read back."""
    if seen is None:
        text = "no prompt was asked with other text in it, so nothing shows that answers depend on what is read back"
        return [Finding("controls_missing", "invalid", text, fixes.RUN_AGAIN, "cold")]
    found: list[Finding] = []
    for place in WHERE:
        found += _of_place(place, [s for s in seen if s.place == place])
    return found


def _of_place(place: Place, seen: Sequence[ControlSeen]) -> list[Finding]:
    if not seen:
        return []
    equal, moved, refused = ([s for s in seen if s.outcome == o] for o in ("equal", "moved", "refused"))
    where = WHERE[place]
    if equal and not moved:
        text = (
            f"the engine gave {_named(equal)} the same answer, to the last digit, when it had other text {where}: what "
            "a record of that text holds does not show in its answers, so a wrong one could not have been seen"
        )
        return [Finding("prompt_ignored", "invalid", text, fixes.IGNORED, "cold")]
    if equal:
        text = (
            f"{_named(equal)} got the same answer, to the last digit, with other text {where}, though others did not: "
            "a wrong record of that text would not show in it"
        )
        return [Finding("prompt_partly_ignored", "warning", text, fixes.IGNORED, "cold")]
    if moved:
        return []
    if refused:
        text = f"the engine refused {_named(refused)} when it had other text {where} ({refused[0].reason})"
        return [Finding("control_refused", "invalid", text, fixes.RUN_AGAIN, "cold")]
    text = f"it is not shown that answers depend on the text {where} of a prompt: {seen[0].prompt}: {seen[0].reason}"
    return [Finding("dependence_not_shown", "note", text, None, "cold")]


def _named(seen: Sequence[ControlSeen]) -> str:
    names = ", ".join(s.prompt for s in seen[:5])
    return names if len(seen) <= 5 else f"{names} and {len(seen) - 5} more"
