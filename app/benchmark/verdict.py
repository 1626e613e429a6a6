"""Whether a run's numbers may be believed, and what they say. Pure.

`valid` says that nothing was found that spoils the measurement, not that the cache is good. `invalid`: something
changed or interfered, so the numbers are kept and prove nothing. `error`: it could not be carried out at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, TypeVar

from app.benchmark.numbers import NoiseFloor, SpeedUp
from app.benchmark.tokens import TierTokens

Severity = Literal["invalid", "error", "warning", "note"]
Name = Literal["valid", "invalid", "error"]
_ORDER: dict[str, int] = {"error": 0, "invalid": 1, "warning": 2, "note": 3}


@dataclass(frozen=True)
class Finding:
    """One thing found while measuring. `text` says what, `fix` what the operator can do."""

    code: str
    severity: Severity
    text: str
    fix: str = ""

    def told(self, more: str = "") -> str:
        """One line for terminals and reports."""
        return f"{self.severity}: {self.text}{more}{f'. {self.fix}' if self.fix else ''}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Verdict:
    """The name and its findings, the deciding ones first, each sentence once."""

    name: Name
    findings: tuple[Finding, ...] = ()

    @property
    def deciding(self) -> tuple[Finding, ...]:
        """Those that made it what it is; none for `valid`."""
        return tuple(f for f in self.findings if f.severity == self.name)


def verdict(findings: Sequence[Finding]) -> Verdict:
    """An error outweighs an invalidity, which outweighs everything else."""
    ordered = tuple(sorted(dict.fromkeys(findings), key=lambda f: _ORDER[f.severity]))
    severities = {f.severity for f in ordered}
    name: Name = "error" if "error" in severities else "invalid" if "invalid" in severities else "valid"
    return Verdict(name, ordered)


class Told(Protocol):
    """What a finding tells, as the room or the API has it."""

    @property
    def code(self) -> str: ...

    @property
    def severity(self) -> Severity: ...

    @property
    def text(self) -> str: ...

    @property
    def fix(self) -> str: ...


T = TypeVar("T", bound=Told)


def by_kind(findings: Iterable[T]) -> list[list[T]]:
    """Findings of one kind (same code, severity and way out) together, kinds and findings in their order.

    One disturbance is found at every pass it reaches: readers are told it once, with the passes below.
    """
    kinds: dict[tuple[str, str, str], list[T]] = {}
    for finding in findings:
        kinds.setdefault((finding.severity, finding.code, finding.fix), []).append(finding)
    return list(kinds.values())


@dataclass(frozen=True)
class Conclusion:
    """What may be said. kind: gain, no_gain, slower, within_noise, undecided, none."""

    kind: Literal["gain", "no_gain", "slower", "within_noise", "undecided", "none"]
    text: str


NOTHING = Conclusion("none", "The run is invalid: its numbers are kept, and nothing may be concluded from them.")


@dataclass(frozen=True)
class Seen:
    """The numbers a conclusion rests on; medians of the measured pass in milliseconds.

    `first_b` is scenario B's own first pass; `speed_up` is None without scenario A.
    """

    shape: str
    median_b: float | None
    first_b: float | None
    median_a: float | None
    speed_up: SpeedUp | None
    noise: NoiseFloor | None
    tokens: TierTokens | None


def conclude(seen: Seen) -> Conclusion:
    """What the numbers of a valid run say, in one or two sentences."""
    if seen.median_b is None:
        return Conclusion("undecided", "No request of the measured pass was answered.")
    came_back = _came_back(seen.tokens)
    if seen.speed_up is None or seen.median_a is None:
        return _alone(seen, came_back)
    if seen.shape == "use_once":
        return _use_once(seen, came_back)
    ratio, noise = seen.speed_up, seen.noise
    told = (
        f"{seen.median_b:,.1f} ms to the first token with the cache, {seen.median_a:,.1f} ms without"
        f" ({_times(ratio)}{_noise(noise)}). {came_back}"
    )
    kind = _direction(seen)
    if kind == "gain" and seen.tokens is not None and seen.tokens.external == 0 and not seen.tokens.l0:
        text = f"Faster, although no token came from any cache: A and B differ in something else. {told}"
        return Conclusion("undecided", text)
    words = {
        "gain": f"The cache pays: {ratio.value:.2f} times as fast.",
        "slower": f"Slower with the cache: it takes {_percent(1 / ratio.value - 1)} longer.",
        "within_noise": "No difference beyond the noise.",
        "undecided": "Not decided: more runs are needed.",
    }
    return Conclusion(kind, f"{words[kind]} {told}")


def _alone(seen: Seen, came_back: str) -> Conclusion:
    """Scenario B alone: its two passes against each other."""
    if seen.first_b is None or seen.median_b is None or seen.median_b <= 0:
        return Conclusion("undecided", f"Measured without a scenario A to compare with. {came_back}")
    if seen.shape == "use_once":
        text = f"No gain, as expected: nothing recurs. {came_back} Its cost shows only against a scenario A."
        return Conclusion("no_gain", text)
    ratio = seen.first_b / seen.median_b
    told = (
        f"{seen.median_b:,.1f} ms to the first token in the measured pass, {seen.first_b:,.1f} ms in the first "
        f"({ratio:.2f} times{_noise(seen.noise)}). {came_back}"
    )
    if abs(seen.first_b - seen.median_b) <= (seen.noise.absolute if seen.noise is not None else 0.0):
        return Conclusion("within_noise", f"No difference beyond the noise between the passes. {told}")
    kind: Literal["gain", "no_gain"] = "gain" if ratio > 1 else "no_gain"
    word = "Repeated prompts are answered sooner." if kind == "gain" else "Repeated prompts are not answered sooner."
    return Conclusion(kind, f"{word} {told}")


def _use_once(seen: Seen, came_back: str) -> Conclusion:
    assert seen.speed_up is not None
    cost = 1 / seen.speed_up.value - 1
    how = f"{_times(seen.speed_up)}{_noise(seen.noise)}"
    told = f"{came_back} With the cache the first token takes {_signed(cost)} ({how})."
    if _direction(seen) == "gain":
        return Conclusion(
            "undecided", f"Faster although nothing recurs: A and B differ in something else than the cache. {told}"
        )
    return Conclusion("no_gain", f"No gain: nothing recurs, so the cache cannot help. {told}")


def _direction(seen: Seen) -> Literal["gain", "slower", "within_noise", "undecided"]:
    """Which way the difference goes: it must exceed the noise floor and, where there is an interval, lie outside it."""
    ratio, noise = seen.speed_up, seen.noise
    assert ratio is not None
    assert seen.median_a is not None
    assert seen.median_b is not None
    if noise is None and ratio.low is None:
        return "undecided"
    low = ratio.low if ratio.low is not None else ratio.value
    high = ratio.high if ratio.high is not None else ratio.value
    if abs(seen.median_a - seen.median_b) <= (noise.absolute if noise is not None else 0.0) or low <= 1 <= high:
        return "within_noise"
    return "gain" if low > 1 else "slower"


def _came_back(tokens: TierTokens | None) -> str:
    if tokens is None or tokens.prompt is None or tokens.recomputed is None:
        return "Where the tokens came from is not known."
    got = tokens.prompt - tokens.recomputed
    if tokens.reachable:
        share = _percent(tokens.share or 0.0)
        return f"{got:,} of {tokens.prompt:,} prompt tokens came back ({share} of the {tokens.reachable:,} that can)."
    return f"{got:,} of {tokens.prompt:,} prompt tokens came back."


def _times(ratio: SpeedUp) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f} times"
    return f"{ratio.value:.2f} times, {ratio.low:.2f} to {ratio.high:.2f} over the runs"


def _noise(noise: NoiseFloor | None) -> str:
    return "" if noise is None else f"; noise floor {_percent(noise.relative)}"


def _percent(value: float) -> str:
    return f"{value * 100:.1f} %"


def _signed(cost: float) -> str:
    return f"{_percent(cost)} longer" if cost >= 0 else f"{_percent(-cost)} less"
