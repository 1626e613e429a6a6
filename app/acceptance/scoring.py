"""Right or wrong without a judge: exact, contains, regex, number. Pure, but for `regex_found`.

A regular expression is an operator's text and may take for ever on an unlucky answer, holding the interpreter lock of
the whole panel while it does. So it runs in a process of its own, with a time limit.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Literal

Scoring = Literal["exact", "contains", "regex", "number"]
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:[,_]\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_LONGEST = 20_000
_SEARCH = "import json,re,sys; p,t=json.load(sys.stdin); print(int(re.search(p,t) is not None))"


def check_scoring(expected: str | None, scoring: Scoring | None) -> str | None:
    """What is wrong with a prompt's expected answer, as a sentence for its author; None when it can be used."""
    if expected is None:
        return None if scoring is None else "give `expected` as well: there is nothing to score against"
    if not expected.strip():
        return f"{expected!r} is blank: every answer would be right; leave `expected` out or say what must be in it"
    if scoring == "regex":
        try:
            found_in_nothing = re.search(expected, "") is not None
        except re.error as error:
            return f"{expected!r} is not a regular expression: {error}"
        if found_in_nothing:
            return f"{expected!r} is found in an empty answer, so every answer would be right"
    if scoring == "number" and _numbers(expected) == []:
        return f"{expected!r} holds no number to compare with"
    return None


def score(text: str, expected: str, scoring: Scoring | None) -> float:
    """1.0 when the answer is right, else 0.0. Without a rule: contains.

    exact: equal but for white space at the ends; contains: as a part, ignoring case; regex: found
    anywhere; number: the first number of the answer equals the first of `expected` (1,000 equals 1000.0).
    """
    text = text[:_LONGEST]
    if scoring == "exact":
        return float(text.strip() == expected.strip())
    if scoring == "regex":
        return float(regex_found(expected, text))
    if scoring == "number":
        wanted, found = _numbers(expected), _numbers(text)
        return float(bool(wanted) and bool(found) and abs(found[0] - wanted[0]) <= 1e-9 * max(1.0, abs(wanted[0])))
    return float(expected.strip().casefold() in text.casefold())


def regex_found(pattern: str, text: str, timeout: float = 2.0) -> bool:
    """Whether the pattern is found anywhere, decided within `timeout` seconds; too slow counts as not found."""
    try:
        done = subprocess.run(  # noqa: S603  (our own interpreter, our own program, data through stdin)
            [sys.executable, "-I", "-S", "-c", _SEARCH],
            input=json.dumps([pattern, text]).encode(),
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and done.stdout.strip() == b"1"


def _numbers(text: str) -> list[float]:
    return [float(m.replace(",", "").replace("_", "")) for m in _NUMBER.findall(text)[:50]]
