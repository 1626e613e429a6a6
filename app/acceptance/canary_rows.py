"""Rows of canaries: reading what work needs, writing what it found, and the views. Sessions are the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from app.acceptance.answers import Answer
from app.acceptance.canary_schemas import CanaryCheckView, CanaryOutcome, CanaryRunView, CanaryStanding, CanaryView
from app.acceptance.canary_verdict import FOUND_WRONG, UNDECIDED, CanaryVerdict, Reading
from app.acceptance.canary_work import Candidate, Kept, prompt_of
from app.acceptance.schemas import FindingView
from app.acceptance.tables import AcceptanceAnswer, AcceptancePrompt, AcceptanceRun, Canary, CanaryCheck, CanaryRun
from app.acceptance.tolerance import fix_tolerance, noise_floor
from app.clock import iso
from app.scheduling.schemas import Progress

HISTORY_SHOWN = 200


def candidates(session: Session, run_id: int | None, count: int) -> tuple[Candidate, ...]:
    """The longest prompts of a run that were answered in its cold arm, scored ones first. Not those whose answer did
    not change with their text: a wrong record would not show in it."""
    run = None if run_id is None else session.get(AcceptanceRun, run_id)
    controls = [] if run is None else run.evidence.get("controls") or []
    blind = {c["prompt"] for c in controls if c["outcome"] == "equal"}
    rows = session.execute(
        select(AcceptancePrompt, AcceptanceAnswer)
        .join(
            AcceptanceAnswer,
            (AcceptanceAnswer.run_id == AcceptancePrompt.run_id)
            & (AcceptanceAnswer.prompt_key == AcceptancePrompt.key),
        )
        .where(
            AcceptancePrompt.run_id == run_id,
            AcceptanceAnswer.arm == "cold",
            AcceptanceAnswer.repeat == 0,
            AcceptanceAnswer.error.is_(None),
            AcceptanceAnswer.expected_external_tokens > 0,
            AcceptancePrompt.key.not_in(blind),
        )
    ).all()
    ranked = sorted(rows, key=lambda r: (r[0].expected is None, -(r[1].prompt_tokens or 0)))
    found: list[Candidate] = []
    for prompt, answer in ranked[:count]:
        as_sent = prompt_of(prompt.key, prompt.content, prompt.max_tokens)
        found.append(Candidate(as_sent, Answer.from_json(answer.data)))
    return tuple(found)


def standing(session: Session) -> dict[str, CanaryStanding]:
    """One count a last outcome, by engine. A canary that was never read leaves no time of the oldest reading."""
    first, read = func.min(Canary.last_checked_at), func.count(Canary.last_checked_at)
    query = select(Canary.engine_id, Canary.last_outcome, func.count(), first, read)
    outcomes: dict[str, dict[CanaryOutcome, int]] = {}
    times: dict[str, list[float | None]] = {}
    for engine, outcome, count, at, known in session.execute(query.group_by(Canary.engine_id, Canary.last_outcome)):
        outcomes.setdefault(str(engine), {})[cast("CanaryOutcome", outcome)] = count
        times.setdefault(str(engine), []).append(at if known == count else None)
    found = {}
    for engine_id, counts in outcomes.items():
        moments = [at for at in times[engine_id] if at is not None]
        checked = iso(min(moments)) if len(moments) == len(times[engine_id]) else None
        found[engine_id] = CanaryStanding(kept=sum(counts.values()), outcomes=counts, checked_at=checked)
    return found


def kept(session: Session, ids: Sequence[int]) -> tuple[Kept, ...]:
    """The canaries of a reading-back."""
    rows = session.scalars(select(Canary).where(Canary.id.in_(ids)).order_by(Canary.id))
    return tuple(
        Kept(
            id=row.id,
            name=row.name,
            salt=row.salt,
            prompt=prompt_of(f"k{row.id}", row.content, row.max_tokens),
            answer=Answer.from_json(row.answer),
            records=tuple(row.records),
            tolerance=fix_tolerance(
                row.tolerance["mode"],
                noise_floor([], 0),
                max_abs_nats=row.tolerance["max_abs_nats"],
                near_tie_gap_nats=row.tolerance["near_tie_gap_nats"],
            ),
            layout=row.layout_fingerprint,
        )
        for row in rows
    )


def write_check(
    session: Session, run_id: int, canary_id: int, verdict: CanaryVerdict, reading: Reading, now: float
) -> None:
    """One point of a canary's history."""
    tokens, cold, kept = reading.tokens, verdict.against_cold, verdict.against_kept
    session.execute(
        insert(CanaryCheck),
        [
            {
                "canary_id": canary_id,
                "canary_run_id": run_id,
                "at": now,
                "outcome": verdict.outcome,
                "reason": verdict.reason,
                "expected_tokens": tokens.expected_tokens if tokens else None,
                "external_tokens": tokens.external_tokens if tokens else None,
                "mean_abs_difference": cold.mean_abs if cold else None,
                "max_abs_difference": cold.max_abs if cold else None,
                "kept_max_abs_difference": kept.max_abs if kept else None,
                "detail": {"missing": list(reading.missing)[:50], "changed": list(reading.changed)[:50]},
            }
        ],
    )
    stands = update(Canary).where(Canary.id == canary_id)
    if verdict.outcome in UNDECIDED:
        # A check that proved nothing takes back no finding: the alarm on it must not end for want of evidence.
        stands = stands.where(Canary.last_outcome.not_in(FOUND_WRONG))
    session.execute(stands.values(last_outcome=verdict.outcome, last_checked_at=now))


def history(session: Session, ids: Sequence[int]) -> dict[int, list[CanaryCheckView]]:
    """Histories by canary id, oldest point first; the newest points of long ones."""
    rows = session.execute(
        select(CanaryCheck, Canary.name)
        .join(Canary, Canary.id == CanaryCheck.canary_id)
        .where(CanaryCheck.canary_id.in_(ids))
        .order_by(CanaryCheck.id.desc())
        .limit(HISTORY_SHOWN * max(1, len(ids)))
    ).all()
    found: dict[int, list[CanaryCheckView]] = {}
    for check, name in reversed(rows):
        found.setdefault(check.canary_id, []).append(_check_view(check, name))
    return found


def checks_of(session: Session, run_id: int) -> list[CanaryCheckView]:
    """The checks of one reading-back."""
    rows = session.execute(
        select(CanaryCheck, Canary.name)
        .join(Canary, Canary.id == CanaryCheck.canary_id)
        .where(CanaryCheck.canary_run_id == run_id)
        .order_by(CanaryCheck.id)
    ).all()
    return [_check_view(check, name) for check, name in rows]


def _check_view(row: CanaryCheck, name: str) -> CanaryCheckView:
    return CanaryCheckView(
        canary_id=str(row.canary_id),
        canary_name=name,
        at=iso(row.at) or "",
        outcome=row.outcome,
        reason=row.reason,
        expected_tokens=row.expected_tokens,
        external_tokens=row.external_tokens,
        mean_abs_difference=row.mean_abs_difference,
        max_abs_difference=row.max_abs_difference,
        kept_max_abs_difference=row.kept_max_abs_difference,
    )


def view(row: Canary, history: list[CanaryCheckView]) -> CanaryView:
    """One canary as the API shows it."""
    return CanaryView(
        id=str(row.id),
        engine_id=str(row.engine_id),
        name=row.name,
        salt=row.salt,
        layout_fingerprint=row.layout_fingerprint,
        records=len(row.records),
        created_at=iso(row.created_at) or "",
        created_by=row.created_by,
        run_id=None if row.run_id is None else str(row.run_id),
        last_outcome=row.last_outcome,
        last_checked_at=iso(row.last_checked_at),
        history=history,
    )


def run_view(row: CanaryRun, checks: list[CanaryCheckView]) -> CanaryRunView:
    """One keeping or reading-back as the API shows it."""
    return CanaryRunView(
        id=str(row.id),
        state=row.state,
        progress=Progress(done=row.progress_done, total=row.progress_total, unit=row.progress_unit),
        error=row.error,
        created_at=iso(row.created_at) or "",
        started_at=iso(row.started_at),
        finished_at=iso(row.finished_at),
        requested_by=row.requested_by,
        engine_id=None if row.engine_id is None else str(row.engine_id),
        purpose=row.purpose,
        canary_ids=[str(i) for i in row.canary_ids],
        outcome=row.outcome,
        reason=row.reason,
        checks=checks,
        findings=[FindingView(**f) for f in row.findings],
    )
