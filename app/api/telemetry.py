"""/servers/{id}/samples and its siblings, /health-changes, /token-flow: what polls measured."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from app.api.deps import PageQuery, ServicesDep, Viewer, parse_id
from app.api.responses import NOT_FOUND, READ
from app.clock import parse_iso
from app.errors import InvalidInput
from app.shapes import Page
from app.telemetry.schemas import HealthChangeView, SamplesView, TokenFlowView

router = APIRouter(tags=["telemetry"])

# An unescaped + in a query arrives as a blank.
_BLANK_OFFSET = re.compile(r"(T.+) (\d\d:\d\d)$")

Metric = Annotated[str, Query(min_length=1, max_length=60, description="name of the metric")]
From = Annotated[str | None, Query(alias="from", max_length=40, description="RFC 3339; default an hour before `to`")]
To = Annotated[str | None, Query(max_length=40, description="RFC 3339; default now")]
Step = Annotated[float | None, Query(gt=0, le=86400 * 31, description="seconds a point; default to fit 300 points")]


@router.get("/servers/{server_id}/samples", responses=NOT_FOUND)
def server_samples(
    server_id: str,
    services: ServicesDep,
    principal: Viewer,
    metric: Metric,
    start: From = None,
    to: To = None,
    step: Step = None,
) -> SamplesView:
    """One metric of a cache server over time; null where nothing was known."""
    target = parse_id("server", server_id)
    services.fleet.server_target(target)
    return services.telemetry.samples(
        "server", target, metric, start=_time("from", start), end=_time("to", to), step=step
    )


@router.get("/engines/{engine_id}/samples", responses=NOT_FOUND)
def engine_samples(
    engine_id: str,
    services: ServicesDep,
    principal: Viewer,
    metric: Metric,
    start: From = None,
    to: To = None,
    step: Step = None,
) -> SamplesView:
    """One metric of an engine over time."""
    target = parse_id("engine", engine_id)
    services.fleet.engine_target(target)
    return services.telemetry.samples(
        "engine", target, metric, start=_time("from", start), end=_time("to", to), step=step
    )


@router.get("/stores/{store_id}/samples", responses=NOT_FOUND)
def store_samples(
    store_id: str,
    services: ServicesDep,
    principal: Viewer,
    metric: Metric,
    start: From = None,
    to: To = None,
    step: Step = None,
) -> SamplesView:
    """One metric of a store's file system over time."""
    target = parse_id("store", store_id)
    services.fleet.store_target(target)
    return services.telemetry.samples(
        "store", target, metric, start=_time("from", start), end=_time("to", to), step=step
    )


@router.get("/health-changes", responses=READ)
def health_changes(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    target_kind: Annotated[Literal["server", "engine"] | None, Query()] = None,
    target_id: Annotated[str | None, Query(max_length=40)] = None,
) -> Page[HealthChangeView]:
    """Every change of a health state, newest first."""
    if target_id is not None and target_kind is None:
        raise InvalidInput.field("target_kind", "is needed with target_id: server or engine")
    return services.telemetry.health_changes(
        page_size=paging.page_size,
        page_token=paging.page_token,
        target_kind=target_kind,
        target_id=None if target_id is None else parse_id(target_kind or "server", target_id),
    )


@router.get("/token-flow", responses=NOT_FOUND)
def token_flow(
    services: ServicesDep,
    principal: Viewer,
    server_id: Annotated[str | None, Query(max_length=40)] = None,
    window_seconds: Annotated[float, Query(ge=10, le=86400 * 30)] = 900.0,
) -> TokenFlowView:
    """Where prompt tokens came from: GPU (L0), CPU memory (L1), disk (L2), or computed again."""
    target = None if server_id is None else parse_id("server", server_id)
    if target is not None:
        services.fleet.server_target(target)
    return services.telemetry.token_flow(target, window_seconds)


def _time(field: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_iso(_BLANK_OFFSET.sub(r"\1+\2", text))
    except ValueError as error:
        raise InvalidInput.field(field, str(error)) from None
