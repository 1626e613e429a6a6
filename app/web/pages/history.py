"""One number of a server or an engine over time: a large chart, the same as a table, and the table as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import parse_id
from app.clock import iso
from app.errors import InvalidInput
from app.fleet.schemas import EngineView, ServerView
from app.telemetry.schemas import SamplesView
from app.web.contexts import ChartSpec, Crumb, Event, PageContext, Trend
from app.web.frame import Frame, ViewerFrame
from app.web.pages.chart_events import engine_events, server_events
from app.web.pages.charts import ENGINE_CHARTS, SERVER_CHARTS

router = APIRouter()

Kind = Literal["server", "engine"]
RANGES: dict[str, tuple[str, float]] = {
    "1h": ("last hour", 3600.0),
    "24h": ("last day", 86_400.0),
    "7d": ("last week", 7 * 86_400.0),
    "30d": ("last 30 days", 30 * 86_400.0),
}
ROWS = 120


@dataclass(frozen=True)
class HistoryPage(PageContext):
    """history.html: `charts` are the metrics to choose from, `samples` the rows of the table, oldest first."""

    kind: str
    target: ServerView | EngineView
    chart: ChartSpec
    choices: Sequence[tuple[str, str]]
    range: str
    ranges: Sequence[tuple[str, str]]
    samples: SamplesView
    events: Sequence[Event]


@router.get("/{kind}s/{target_id}/history")
def history_page(
    frame: ViewerFrame,
    kind: Kind,
    target_id: str,
    metric: Annotated[str, Query(max_length=60)] = "",
    span: Annotated[str, Query(alias="range", max_length=8)] = "24h",
) -> Response:
    target = _target(frame, kind, target_id)
    specs = SERVER_CHARTS if kind == "server" else ENGINE_CHARTS
    chosen = next((spec for spec in specs if spec[1] == metric), specs[0])
    title, name, unit, tier, low, high = chosen
    samples, start, seconds = _samples(frame, kind, target_id, name, span)
    url = f"/api/v1/{kind}s/{target_id}/samples?" + urlencode({"metric": name, "from": iso(start) or ""})
    trend = Trend(tuple(value for _, value in samples.points), seconds)
    services = frame.services
    found = server_events(services, target) if isinstance(target, ServerView) else engine_events(services, target)
    return frame.page(
        "history.html",
        HistoryPage,
        f"{kind}s",
        Crumb(target.name, f"/{kind}s/{target.id}"),
        Crumb("History"),
        kind=kind,
        target=target,
        chart=ChartSpec(title, name, unit, url, trend, tier, low, high),
        choices=[(spec[1], spec[0]) for spec in specs],
        range=span,
        ranges=[(key, words) for key, (words, _) in RANGES.items()],
        samples=samples,
        events=found,
    )


@router.get("/{kind}s/{target_id}/history.csv")
def history_csv(
    frame: ViewerFrame,
    kind: Kind,
    target_id: str,
    metric: Annotated[str, Query(max_length=60)],
    span: Annotated[str, Query(alias="range", max_length=8)] = "24h",
) -> Response:
    """Time and value, a row a point; an empty value is not known."""
    _target(frame, kind, target_id)
    samples, _, _ = _samples(frame, kind, target_id, metric, span)
    out = io.StringIO()
    rows = csv.writer(out)
    rows.writerow(["time", f"{samples.metric} ({samples.unit})"])
    rows.writerows((at, "" if value is None else value) for at, value in samples.points)
    headers = {"Content-Disposition": f'attachment; filename="{kind}-{target_id}-{samples.metric}.csv"'}
    return Response(out.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _target(frame: Frame, kind: Kind, target_id: str) -> ServerView | EngineView:
    ident, fleet = parse_id(kind, target_id), frame.services.fleet
    return fleet.get_server(ident) if kind == "server" else fleet.get_engine(ident)


def _samples(frame: Frame, kind: Kind, target_id: str, metric: str, span: str) -> tuple[SamplesView, float, float]:
    if span not in RANGES:
        raise InvalidInput.field("range", f"{span!r} is none of {', '.join(RANGES)}")
    seconds, now = RANGES[span][1], frame.services.clock()
    found = frame.services.telemetry.samples(
        kind, parse_id(kind, target_id), metric, start=now - seconds, end=now, step=seconds / ROWS
    )
    return found, now - seconds, seconds
