"""One record with the evidence for its class: which rule, which layouts were possible, which sizes were seen."""

from __future__ import annotations

from app.clock import iso, iso_ns
from app.lmcache.layouts import compare_layouts
from app.records.classify import Context, single_layout, size_evidence, window_of
from app.records.explain import explain
from app.records.query import RecordRow
from app.records.schemas import CandidateView, RecordDetail, RecordView, SizeEvidenceView
from app.records.timeline import NS, ModelTimeline, Window

_NO_SIZE = "no size rule applies to a record whose layout is not known"


def record_detail(view: RecordView, row: RecordRow, context: Context) -> RecordDetail:
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
