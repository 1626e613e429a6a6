"""One record with the evidence for its class: which rule, which layouts were possible, which sizes were seen."""

from __future__ import annotations

from collections import Counter

from app.clock import iso, iso_ns
from app.lmcache.layouts import compare_layouts
from app.records.classify import Context, single_layout, size_evidence, window_of
from app.records.explain import explain
from app.records.inventory_file import Inventory
from app.records.query import RecordRow
from app.records.schemas import (
    CandidateView,
    EpochView,
    PastView,
    RecordDetail,
    RecordView,
    SizeEvidenceView,
    SizeSeenView,
)
from app.records.timeline import NS, ModelTimeline, Window

_NO_SIZE = "no size rule applies to a record whose layout is not known"


#: Sizes that are shown, the most frequent first.
_SIZES = 6
#: Cohorts of mixed sizes with more records are not counted size by size.
_COUNTED = 50_000


def sizes_seen(inventory: Inventory, row: RecordRow) -> list[SizeSeenView]:
    """The most frequent sizes among records of one model, rank and object group."""
    owners = inventory.owners()
    counts: Counter[int] = Counter()
    for cohort in inventory.cohorts().values():
        if owners[cohort.owner].judged != row.owner.judged:
            continue
        if cohort.size is not None:
            counts[cohort.size] += cohort.records
        elif cohort.records <= _COUNTED:
            query = "SELECT size, count(*) FROM record WHERE cohort=? AND cohort<0 GROUP BY size"
            counts.update(dict(inventory.db.execute(query, (cohort.id,)).fetchall()))
    return [SizeSeenView(size_bytes=size, records=count) for size, count in counts.most_common(_SIZES) if count > 0]


def record_detail(
    view: RecordView,
    row: RecordRow,
    context: Context,
    sizes: list[SizeSeenView],
    past: list[PastView],
    epoch: EpochView | None,
) -> RecordDetail:
    """The view with everything its class rests on."""
    owner = row.owner.judged
    line = context.timeline.of(owner.line)
    window = window_of(owner, row.mtime, context)
    rule, sentence = explain(view.class_, view.reason)
    evidence = None
    if not owner.temporary and owner.group is not None:
        evidence = size_evidence(owner, row.mtime, window, line, single_layout(window, line), context)
    return RecordDetail(
        **view.model_dump(),
        rule=rule,
        sentence=sentence,
        window=[iso_ns(row.mtime - context.margin) or "", iso_ns(row.mtime + context.margin) or ""],
        candidates=_candidates(window, line),
        size_evidence=SizeEvidenceView(
            expected_bytes=evidence.expected if evidence else None,
            accepted_bytes=sorted(evidence.accepted) if evidence else [],
            records=evidence.records if evidence else 0,
            most_common_bytes=evidence.most_common if evidence else None,
            most_common_share=evidence.share if evidence else None,
            sentence=evidence.sentence if evidence else _NO_SIZE,
        ),
        sizes_seen=sizes,
        past=past,
        epoch=epoch,
        changed_at=iso_ns(row.ctime) or "",
        inode=row.inode if row.inode >= 0 else row.inode + 2**64,
        judged_at=iso(context.now / NS) or "",
    )


def _candidates(window: Window, line: ModelTimeline) -> list[CandidateView]:
    live = [line.layouts[number] for number in line.live]
    found: list[CandidateView] = []
    for number in sorted(window.layouts):
        layout = line.layouts[number]
        compared = compare_layouts(layout, live[0]) if live else None
        verdict = line.relate(number, line.live[0]) if live else None
        found.append(
            CandidateView(
                fingerprint=layout.fingerprint,
                layout=layout.to_dict(),
                live=number in line.live,
                verdict=str(verdict) if verdict is not None else "unknown",
                differences=[
                    {"field": item.field, "old": item.old, "new": item.new, "kind": str(item.kind)}
                    for item in (compared.differences if compared else ())
                ],
            )
        )
    if window.unknown is not None:
        # Something that no poll showed.
        found.append(CandidateView(fingerprint=None, layout=None, live=False, verdict="unknown", differences=[]))
    return found
