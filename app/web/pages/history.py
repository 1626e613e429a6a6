"""One number of a server, an engine or a store over time: a large chart, the same as a table, and the table as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import parse_id
from app.clock import iso, parse_iso
from app.errors import InvalidInput
from app.fleet.schemas import EngineView, ServerView, StoreView
from app.telemetry.schemas import SamplesView
from app.web.contexts import ChartSpec, Crumb, Event, PageContext, Trend
from app.web.frame import Frame, ViewerFrame
from app.web.pages.chart_events import EACH_OF_HISTORY, events_of
from app.web.pages.charts import HISTORY, Kind

router = APIRouter()

RANGES: dict[str, tuple[str, float]] = {
    "1h": ("last hour", 3600.0),
    "24h": ("last day", 86_400.0),
    "7d": ("last week", 7 * 86_400.0),
    "30d": ("last 30 days", 30 * 86_400.0),
    "1y": ("last year", 365 * 86_400.0),
    "2y": ("last two years", 730 * 86_400.0),
}
DEFAULT = "24h"
ROWS = 120
#: Requests come in bursts: a ratio over less than a minute is mostly holes.
LEAST_OF_RATIO = 60.0

Metric = Annotated[str, Query(max_length=60)]
Range = Annotated[str, Query(alias="range", max_length=8)]
Moment = Annotated[str, Query(max_length=40)]
From = Annotated[str, Query(alias="from", max_length=40)]


@dataclass(frozen=True)
class Span:
    """The time that is shown: one of the ranges, which end now (`key`), or from one moment to another (key "")."""

    key: str
    words: str
    start: float
    end: float

    @property
    def query(self) -> str:
        """As it stands in an address."""
        return urlencode({"range": self.key} if self.key else {"from": iso(self.start), "to": iso(self.end)})

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class HistoryPage(PageContext):
    """history.html: `choices` are the metrics to choose from, `samples` the rows of the table, oldest first."""

    kind: str
    target: ServerView | EngineView | StoreView
    chart: ChartSpec
    choices: Sequence[tuple[str, str]]
    span: Span
    ranges: Sequence[tuple[str, str]]
    samples: SamplesView
    events: Sequence[Event]


@router.get("/{kind}s/{target_id}/history")
def history_page(
    frame: ViewerFrame,
    kind: Kind,
    target_id: str,
    metric: Metric = "",
    span: Range = DEFAULT,
    start: From = "",
    to: Moment = "",
) -> Response:
    target, shown = _target(frame, kind, target_id), _span(frame, span, start, to)
    specs = HISTORY[kind]
    if metric and not any(spec[1] == metric for spec in specs):
        known = ", ".join(spec[1] for spec in specs)
        raise InvalidInput.field("metric", f"{metric!r} has no history here; choose one of {known}")
    title, name, unit, tier, low, high = next((spec for spec in specs if spec[1] == metric), specs[0])
    samples = _samples(frame, kind, target_id, name, shown)
    asked = {"metric": name, "from": iso(shown.start) or ""} | ({} if shown.key else {"to": iso(shown.end) or ""})
    trend = Trend(tuple(value for _, value in samples.points), shown.seconds)
    return frame.page(
        "history.html",
        HistoryPage,
        f"{kind}s",
        Crumb(target.name, f"/{kind}s/{target.id}"),
        Crumb("History"),
        kind=kind,
        target=target,
        chart=ChartSpec(
            title,
            name,
            unit,
            f"/api/v1/{kind}s/{target_id}/samples?{urlencode(asked)}",
            trend,
            tier,
            low,
            high,
            f"/{kind}s/{target_id}/history?{urlencode({'metric': name})}",
        ),
        choices=[(spec[1], spec[0]) for spec in specs],
        span=shown,
        ranges=[(key, words) for key, (words, _) in RANGES.items()],
        samples=samples,
        events=[
            event
            for event in events_of(frame.services, target, shown.start, EACH_OF_HISTORY)
            if parse_iso(event.at) <= shown.end
        ],
    )


@router.get("/{kind}s/{target_id}/history.csv")
def history_csv(
    frame: ViewerFrame,
    kind: Kind,
    target_id: str,
    metric: Metric,
    span: Range = DEFAULT,
    start: From = "",
    to: Moment = "",
) -> Response:
    """Time, value, and the lowest and highest in between, a row a point; an empty value is not known."""
    _target(frame, kind, target_id)
    samples = _samples(frame, kind, target_id, metric, _span(frame, span, start, to))
    out = io.StringIO()
    rows = csv.writer(out)
    rows.writerow(["time", f"{samples.metric} ({samples.unit})", "lowest", "highest"])
    for (at, value), low, high in samples.rows():
        rows.writerow([at, *("" if number is None else number for number in (value, low, high))])
    headers = {"Content-Disposition": f'attachment; filename="{kind}-{target_id}-{samples.metric}.csv"'}
    return Response(out.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _target(frame: Frame, kind: Kind, target_id: str) -> ServerView | EngineView | StoreView:
    ident, fleet = parse_id(kind, target_id), frame.services.fleet
    if kind == "store":
        return fleet.get_store(ident)
    return fleet.get_server(ident) if kind == "server" else fleet.get_engine(ident)


def _span(frame: Frame, key: str, start: str, to: str) -> Span:
    """`from` and `to` go before the range; `to` alone ends a day."""
    now = frame.services.clock()
    if not start and not to:
        if key not in RANGES:
            raise InvalidInput.field("range", f"{key!r} is none of {', '.join(RANGES)}")
        words, seconds = RANGES[key]
        return Span(key, words, now - seconds, now)
    end = _moment("to", to) if to else now
    begin = _moment("from", start) if start else end - RANGES[DEFAULT][1]
    if begin >= end:
        raise InvalidInput.field("from", f"{start or iso(begin)} is not before {to or 'now'}")
    return Span("", "chosen time", begin, end)


def _moment(name: str, text: str) -> float:
    """A time without an offset is UTC: the fields of the form give no other."""
    try:
        return parse_iso(f"{text}Z")
    except ValueError:
        try:
            return parse_iso(text)
        except ValueError as error:
            raise InvalidInput.field(name, str(error)) from None


def _samples(frame: Frame, kind: Kind, target_id: str, metric: str, span: Span) -> SamplesView:
    ratio = any(spec[1] == metric and spec[2] == "ratio" for spec in HISTORY[kind])
    step = max(span.seconds / ROWS, LEAST_OF_RATIO if ratio else 0.0)
    return frame.services.telemetry.samples(
        kind, parse_id(kind, target_id), metric, start=span.start, end=span.end, step=step
    )
