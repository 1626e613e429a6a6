"""Whether a cleanup hurt: the token hit rate in the hour before a run beside the hour after it."""

from __future__ import annotations

from collections.abc import Sequence

from app.cleanup.schemas import HitRateAround
from app.clock import iso
from app.telemetry.service import TelemetryService

HOUR = 3600.0
_STEP = 60.0


def around(
    telemetry: TelemetryService, server_ids: Sequence[int], *, started: float, finished: float, now: float
) -> HitRateAround:
    """The hour before `started` and the hour after `finished`, over all servers of a store."""
    end = min(finished + HOUR, now)
    before, before_reason = _rate(telemetry, server_ids, started - HOUR, started)
    after, after_reason = (
        _rate(telemetry, server_ids, finished, end) if end - finished >= _STEP else (None, "it has just ended")
    )
    return HitRateAround(
        before=before,
        after=after,
        before_reason=before_reason,
        after_reason=after_reason,
        from_time=iso(started - HOUR) or "",
        to_time=iso(end) or "",
    )


def _rate(
    telemetry: TelemetryService, server_ids: Sequence[int], start: float, end: float
) -> tuple[float | None, str | None]:
    """Hit tokens of requested tokens, weighted by traffic; None with the reason."""
    hit = requested = 0.0
    measured = False
    for server_id in server_ids:
        for_hits, for_requests = (
            telemetry.samples("server", server_id, metric, start=start, end=end, step=_STEP).points
            for metric in ("hit_tokens_per_second", "requested_tokens_per_second")
        )
        hits = {at: value for at, value in for_hits if value is not None}
        for at, value in for_requests:
            if value is not None and at in hits:
                measured = True
                requested += value
                hit += hits[at]
    if not measured:
        return None, "nothing was measured then"
    return (hit / requested, None) if requested else (None, "there was no traffic")
