"""Builders of answers and of evidence that passes; tests then take one thing away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.acceptance.answers import Answer, AnswerSet, ranked
from app.acceptance.compare import Comparison, compare
from app.acceptance.controls import ControlSeen
from app.acceptance.counters import EngineCounters, LoadedTokens, SaltCounters
from app.acceptance.discrimination import Discrimination
from app.acceptance.evidence import (
    ArmEvidence,
    L1Emptied,
    RecordsEvidence,
    ResetEvidence,
    StoredEvidence,
    TokenEvidence,
    Totals,
    total,
)
from app.acceptance.finding import EXTERNAL_ARMS
from app.acceptance.tolerance import Mode, Tolerance, fix_tolerance, noise_floor
from app.acceptance.verdict import RunEvidence

CHUNK = 64
ARMS = ("cold", "warm", "external_l1", "external_l2")


def tolerance(mode: Mode = "near_tie", floor: float = 0.0, **numbers: float) -> Tolerance:
    return fix_tolerance(mode, noise_floor([floor], 0), **numbers)


def answer(
    prompt: str = "p01",
    ids: Sequence[int] = (5, 6, 7, 8),
    logprobs: Sequence[float] | None = None,
    *,
    runner_up: Sequence[tuple[int, float]] | None = None,
    text: str | None = None,
    score: float | None = None,
) -> Answer:
    """An answer whose top-k list holds the choice and one runner-up a nat below (or as given: id, log-probability)."""
    logprobs = [-0.5] * len(ids) if logprobs is None else logprobs
    others = [(900 + i, lp - 1.0) for i, lp in enumerate(logprobs)] if runner_up is None else runner_up
    return Answer(
        prompt=prompt,
        token_ids=tuple(ids),
        tokens=tuple(f"token_id:{i}" for i in ids),
        logprobs=tuple(logprobs),
        top=tuple(
            ranked([(f"token_id:{i}", lp), (f"token_id:{o}", olp)])
            for i, lp, (o, olp) in zip(ids, logprobs, others, strict=True)
        ),
        text=" ".join(map(str, ids)) if text is None else text,
        finish_reason="length",
        score=score,
    )


def answers(name: str, *items: Answer) -> AnswerSet:
    return AnswerSet.of(name, items)


def same(arm: str, reference: str, prompts: int = 3) -> Comparison:
    """A comparison of equal answers."""
    items = [answer(f"p{i:02}") for i in range(prompts)]
    return compare(answers(reference, *items), answers(arm, *items), tolerance())


def totals(external: int | None, expected: int = 256, local: int | None = 0, prompts: int = 3) -> Totals:
    """Totals of equal requests of 300 tokens."""
    full = None if external is None or local is None else external >= expected
    source = "none" if external is None else "request_statistics"
    return total([TokenEvidence(300, local, external, expected, full, source)] * prompts, CHUNK)  # type: ignore[arg-type]


def arm(name: str, prompts: int = 3) -> ArmEvidence:
    """Evidence of an arm as a good run gives it."""
    per_prompt = {"cold": (0, 256, 0), "warm": (0, 0, 288), "changed_head": (0, 256, 0), "mixed": (96, 96, 160)}
    external, expected, local = per_prompt.get(name, (256, 256, 0))
    evidence = ArmEvidence(
        name=name,
        requests=prompts,
        answered=prompts,
        totals=totals(external, expected, local, prompts),
        engine=EngineCounters(300.0 * prompts, float(local * prompts), float(external * prompts)),
        own_prompt_tokens=300 * prompts,
        server=SaltCounters(256.0 * prompts, 256.0 * prompts, 256.0 * prompts, 0.0),
        loaded=LoadedTokens(float(-(-external // CHUNK) * CHUNK * prompts), own=True),
    )
    if name in EXTERNAL_ARMS:
        evidence = replace(evidence, reset=ResetEvidence("done", effective=True))
    if name in ("external_l2", "restarted_server"):
        evidence = replace(
            evidence,
            l1_emptied=L1Emptied("keys", True, 12, 12),
            server=SaltCounters(256.0 * prompts, 256.0 * prompts, 0.0, 256.0 * prompts),
        )
    return evidence


def good_run(wanted: Sequence[str] = ARMS) -> RunEvidence:
    """A run that passes."""
    return RunEvidence(
        wanted=tuple(wanted),
        arms={name: arm(name) for name in wanted},
        comparisons=tuple(same(name, "cold" if name == "warm" else "warm") for name in wanted if name != "cold"),
        tolerance=tolerance(),
        discrimination=Discrimination().with_answers(
            [answer("p00"), answer("p01", ids=(1, 2, 3, 4), logprobs=(-0.5, -0.4, -0.3, -0.2))], tolerance()
        ),
        controls=(ControlSeen("p01", "middle", "moved", 0.7), ControlSeen("p02", "first", "moved")),
        stored=StoredEvidence(12, 12, 12, 12, 12, True, True, True),
        records=RecordsEvidence(files=12, bytes=12 * 32768),
        layout_before="a1b2",
        layout_after="a1b2",
    )
