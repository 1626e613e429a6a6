"""What became of a run's records, as filters of its page. Pure."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import dataclass

from app.cleanup.chunks import STATES
from app.cleanup.schemas import RunView
from app.scheduling.work import TERMINAL_STATES
from app.web.table_state import TableState
from app.web.words import item_word

#: Filters of the page's address.
NAMES = ("state", "errno")
#: As the page tells them: what went, what was left alone, what was not reached.
_ORDER = (*(state for state in STATES if state != "planned"), "planned")


@dataclass(frozen=True)
class Outcome:
    """One choice of the page. `records` None: how many is not counted. `chosen`: it is the one that is shown."""

    title: str
    means: str
    records: int | None
    query: str
    chosen: bool


def checked(state: TableState) -> tuple[str | None, int | None]:
    """(state, errno) that an address asks for; what is none of ours asks for nothing."""
    number = state.get("errno")
    return (
        state.get("state") if state.get("state") in STATES else None,
        int(number) if number.isascii() and number.isdecimal() and len(number) < 6 else None,
    )


def outcomes(run: RunView, state: TableState) -> list[Outcome]:
    """Every outcome that the run's records have, and the one asked for, each with its address."""
    wanted, number = checked(state)
    counted = run.outcomes or {}
    whole = sum(counted.values()) if run.outcomes is not None else None
    plain = state.without(*NAMES)
    found = [Outcome("all", "", whole, f"{plain}", wanted is None and number is None)]
    active = run.state not in TERMINAL_STATES
    for name in _ORDER:
        if not counted.get(name) and name != wanted:
            continue
        word = item_word(name)
        here = plain.with_filter("state", name)
        title = word.text if name != "planned" else "still to come" if active else "not reached"
        found.append(Outcome(title, word.means, counted.get(name, 0), f"{here}", name == wanted and number is None))
        if name == "failed":
            found += _by_errno(run, here, number)
    if number is not None and not any(one.chosen for one in found):
        found.append(_of_errno(plain.with_filter("state", "failed"), number, None, True))
    return found


def _by_errno(run: RunView, here: TableState, wanted: int | None) -> list[Outcome]:
    """The errors among those that failed: counted where all are known one by one, else only named."""
    numbers = Counter(item.errno for item in run.failed if item.errno is not None)
    complete = len(run.failed) == run.failed_total
    return [
        _of_errno(here, number, records if complete else None, number == wanted)
        for number, records in sorted(numbers.items())
    ]


def _of_errno(here: TableState, number: int, records: int | None, chosen: bool) -> Outcome:
    name = errno.errorcode.get(number, "errno")
    query = f"{here.with_filter('errno', str(number))}"
    return Outcome(
        f"failed with {name} ({number})", f"The operating system answered errno {number}.", records, query, chosen
    )
