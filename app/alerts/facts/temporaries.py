"""Unfinished writes that pile up."""

from __future__ import annotations

from app.alerts.inputs import Moment, StoreInput
from app.alerts.model import Fact


def temporaries(moment: Moment, store: StoreInput) -> Fact:
    """Rule: temporary files that were older than an hour at the last scan. A write takes seconds: what is an hour old
    was left by a writer that died, and the one fixed name of its key blocks nobody but holds its bytes for ever."""
    if store.stale_temporaries is None:
        return Fact("temporaries", store.subject, unknown="never scanned")
    return Fact("temporaries", store.subject, {"files": float(store.stale_temporaries)})
