"""What one run is to do, and what it saw outside its arms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.acceptance.controls import ControlSeen
from app.acceptance.discrimination import Discrimination
from app.acceptance.evidence import RecordsEvidence, StoredEvidence
from app.acceptance.finding import Finding
from app.acceptance.own_records import OwnRecords
from app.acceptance.profiles import ProfileNumbers
from app.acceptance.tolerance import Mode, Tolerance


@dataclass(frozen=True)
class RunPlan:
    """What one run is to do: the request with every default filled in."""

    run_key: str
    arms: tuple[str, ...]
    numbers: ProfileNumbers
    mode: Mode | None
    concurrency: int
    tolerance: Mapping[str, float | None]
    allow_clear_l1: bool


@dataclass
class Seen:
    """What a run saw outside its arms."""

    problems: list[Finding] = field(default_factory=list)
    tolerance: Tolerance | None = None
    stored: StoredEvidence | None = None
    before: OwnRecords | None = None  # the batch's records when they had just been stored
    records: RecordsEvidence | None = None
    discrimination: Discrimination = field(default_factory=Discrimination)
    controls: list[ControlSeen] = field(default_factory=list)
    probes: list[dict[str, Any]] = field(default_factory=list)
