"""How different two right answers may be, fixed before the cache arms run (RULES.md E4). Pure.

The noise floor is what the same prompt, cold twice, differs by on this engine; the tolerance is three times that, but
never under the preset of the mode. A floor so high that wrong records would pass makes the test blind, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Mode = Literal["exact", "near_tie", "score"]

#: Nats. exact: vLLM's own bound between two implementations of one model; near_tie: a bfloat16 model on a GPU moves
#: ties by about 0.06, bfloat16 against float16 by 0.06 to 0.11, while one bad record of fifteen moved 0.5.
PRESET_NATS: dict[Mode, float] = {"exact": 0.01, "near_tie": 0.1, "score": 0.1}
NEAR_TIE_GAP_NATS = 0.1
#: Above this the test could not tell wrong records (0.40 nat behind a healed prefix, 0.5 for one bad chunk) from noise.
BLIND_NATS = 0.35
MAX_SCORE_DROP = 0.03
#: Log-probabilities are compared in float32 and printed with about seven digits.
_RESOLUTION = 1e-6

#: Faults whose size was measured on the real stack (nats, maximum over the answer), smallest first.
KNOWN_FAULTS: tuple[tuple[float, str], ...] = (
    (0.004, "the lowest bit of the values of one record flipped"),
    (0.40, "chunks computed behind a wrong prefix"),
    (0.5, "one zeroed chunk of fifteen"),
    (0.9, "one exponent bit of one record flipped"),
    (1.6, "records of another dtype"),
    (1.9, "all records zeroed"),
)


@dataclass(frozen=True)
class Floor:
    """What repeated colds differ by. `max_abs_nats` is None when nothing was repeated."""

    repeats: int
    max_abs_nats: float | None
    diverged: int  # repeats whose tokens differ by more than a near tie


@dataclass(frozen=True)
class Tolerance:
    """The bounds one run is judged by. All in nats unless the name says otherwise."""

    mode: Mode
    max_abs_nats: float
    near_tie_gap_nats: float
    min_external_share: float
    max_score_drop: float
    floor: Floor

    @property
    def blind(self) -> bool:
        """Whether the engine's own noise hides the faults this test exists for."""
        return self.mode != "score" and (self.max_abs_nats > BLIND_NATS or self.floor.diverged > 0)

    def smallest_fault(self) -> tuple[float, str]:
        """The smallest change this run can see, in nats, and a sentence that says what slips through."""
        seen = max(self.max_abs_nats, _RESOLUTION)
        hidden = [text for nats, text in KNOWN_FAULTS if nats <= seen]
        shown = [text for nats, text in KNOWN_FAULTS if nats > seen]
        sentence = f"changes of more than {seen:.3g} nat in any answer token are seen"
        if shown:
            sentence += f" (such as {shown[0]})"
        if hidden:
            sentence += f"; smaller ones are not (such as {hidden[-1]}): only a checksum of the records shows those"
        return seen, sentence

    def to_json(self) -> dict[str, Any]:
        """For storage and reports; adds the smallest detectable fault."""
        nats, sentence = self.smallest_fault()
        return {**asdict(self), "smallest_fault_nats": nats, "smallest_fault": sentence}


def noise_floor(differences: Sequence[float | None], diverged: int) -> Floor:
    """The floor from the maximum difference of each repeated cold; None entries carried no log-probabilities."""
    known = [d for d in differences if d is not None]
    return Floor(repeats=len(differences), max_abs_nats=max(known) if known else None, diverged=diverged)


def fix_tolerance(
    mode: Mode,
    floor: Floor,
    *,
    max_abs_nats: float | None = None,
    near_tie_gap_nats: float | None = None,
    min_external_share: float | None = None,
    max_score_drop: float | None = None,
) -> Tolerance:
    """max(3 × floor, preset), with the operator's own numbers in place of the preset."""
    preset = PRESET_NATS[mode] if max_abs_nats is None else max_abs_nats
    return Tolerance(
        mode=mode,
        max_abs_nats=max(3 * (floor.max_abs_nats or 0.0), preset, _RESOLUTION),
        near_tie_gap_nats=NEAR_TIE_GAP_NATS if near_tie_gap_nats is None else near_tie_gap_nats,
        min_external_share=1.0 if min_external_share is None else min_external_share,
        max_score_drop=MAX_SCORE_DROP if max_score_drop is None else max_score_drop,
        floor=floor,
    )
