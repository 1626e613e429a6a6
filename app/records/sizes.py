"""Which size the records of a layout have, and what proves it (RULES.md C6). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.lmcache.layouts import NO_SERDE, KVLayout, expected_object_bytes

#: (model as in record names, kv rank, object group): records that have one size under one layout.
SizeOwner = tuple[str, int, int | None]

_CHECKSUM = 8
_FEW, _FEW_SHARE = 20, 0.95
_MANY, _MANY_SHARE = 100, 0.99


@dataclass(frozen=True)
class SizeEvidence:
    """What the sizes seen prove. `expected` is None where nothing is proven; `sentence` says why.

    `accepted`: the sizes that are no fault (padded and checksummed forms). `records`: how many were looked at.
    """

    expected: int | None
    accepted: frozenset[int]
    records: int
    most_common: int | None
    share: float | None
    sentence: str

    @property
    def proves_others(self) -> bool:
        """Enough to call a size of unknown origin another layout's (`other_size`)."""
        return self.expected is not None and self.records >= _MANY


def forms(size: int, alignments: Iterable[int]) -> frozenset[int]:
    """A record's size as the adapter may write it: plain, with checksum, padded to a block, and combinations."""
    found = {size, size + _CHECKSUM}
    for alignment in alignments:
        if alignment > 0:
            padded = -(-size // alignment) * alignment
            found |= {padded, -(-(size + _CHECKSUM) // alignment) * alignment, size + alignment, padded + alignment}
    return frozenset(found)


def prove_size(
    layout: KVLayout, group: int | None, counts: Mapping[int, int], others: int, alignments: Iterable[int]
) -> SizeEvidence:
    """What the records of one owner written under one layout prove about its size.

    `counts`: records by size; `others`: records whose sizes were not told apart (they count against a proof).
    """
    total = sum(counts.values()) + others
    most_common = max(counts, key=lambda size: (counts[size], size), default=None)
    share = counts[most_common] / total if most_common is not None else None

    def evidence(expected: int | None, accepted: frozenset[int], sentence: str) -> SizeEvidence:
        return SizeEvidence(expected, accepted, total, most_common, share, sentence)

    if layout.serde is None:
        return evidence(None, frozenset(), "whether the adapter serialises records is not known, so no size is a fault")
    if layout.serde != NO_SERDE:
        return evidence(None, frozenset(), "the adapter's serde changes sizes, so no size is a fault")
    if most_common is None or share is None or most_common == 0:
        return evidence(None, frozenset(), "no size stands out among the records of this layout")
    said = expected_object_bytes(layout, group) if group is not None else None
    if said is not None:
        accepted = forms(said, alignments)
        if most_common not in accepted:
            return evidence(
                None,
                frozenset(),
                f"most records have {most_common} bytes, the layout says {said}: the size is not known",
            )
        if total < _FEW or share < _FEW_SHARE:
            return evidence(
                None,
                frozenset(),
                f"{counts[most_common]} of {total} records have {most_common} bytes: too few to prove it",
            )
        return evidence(
            most_common,
            accepted,
            f"{counts[most_common]} of {total} records have {most_common} bytes, as the layout says ({said})",
        )
    chunk = layout.chunk_size
    if total < _MANY or share < _MANY_SHARE or not chunk or most_common % chunk:
        return evidence(
            None,
            frozenset(),
            f"the layout gives no size, and {counts[most_common]} of {total} records do not prove one",
        )
    return evidence(
        most_common,
        frozenset({most_common}),
        f"{counts[most_common]} of {total} records have {most_common} bytes, a multiple of the chunk size",
    )


class SizeBook:
    """Size evidence by (owner, layout fingerprint)."""

    def __init__(self, proofs: Mapping[tuple[SizeOwner, str], SizeEvidence] | None = None) -> None:
        self._proofs = dict(proofs or {})

    def of(self, owner: SizeOwner, layout: KVLayout) -> SizeEvidence | None:
        """The evidence for one owner under one layout; None when no record of it was looked at."""
        return self._proofs.get((owner, layout.fingerprint))
