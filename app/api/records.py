"""Routes of the records room: scans, the inventory, epochs, summaries."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse

from app.api.deps import Admin, Operator, PageQuery, ServicesDep, Viewer, parse_id
from app.api.responses import BODY, NOT_FOUND, READ
from app.errors import NotFound
from app.records.filters import RecordFilter, parse_order
from app.records.schemas import (
    AcceptDirectoryInput,
    DistributionView,
    EpochInput,
    EpochsView,
    EpochView,
    GrowthPointView,
    HoldView,
    RecordDetail,
    RecordView,
    ReleasedView,
    ReleaseInput,
    ScanInput,
    ScanView,
    StoreDirectoryView,
    SummaryView,
)
from app.records.traffic_schemas import TrafficView
from app.shapes import Page

router = APIRouter(tags=["records"])

_EXPORT_COLUMNS = (
    "id",
    "name",
    "class",
    "reason",
    "model_name",
    "kv_rank",
    "world_size",
    "rank",
    "object_group_id",
    "chunk_hash",
    "cache_salt",
    "size_bytes",
    "modified_at",
    "accessed_at",
    "epoch_id",
    "held",
)
# A spreadsheet would take a cell that begins with one of these for a formula; names come from the disk.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def _filter(
    class_: Annotated[str | None, Query(alias="class", description="one or several, separated by commas")] = None,
    reason: Annotated[str | None, Query(description="one or several, separated by commas")] = None,
    model: Annotated[str | None, Query(description="the model as LMCache names it (a path)")] = None,
    kv_rank: Annotated[str | None, Query(description="0x01000100 or 16777472")] = None,
    salt: Annotated[str | None, Query(description="the cache salt; empty: records without one")] = None,
    q: Annotated[str | None, Query(description="part of the name")] = None,
    min_size: Annotated[str | None, Query(description="bytes, 10MB or 10MiB")] = None,
    older_than: Annotated[str | None, Query(description="age since the last write: 10m, 24h, 14d")] = None,
    unused_for: Annotated[str | None, Query(description="age since the last use: 10m, 24h, 14d")] = None,
    epoch: Annotated[str | None, Query(description="id of an epoch")] = None,
) -> RecordFilter:
    given = {
        "class": class_,
        "reason": reason,
        "model": model,
        "kv_rank": kv_rank,
        "salt": salt,
        "q": q,
        "min_size": min_size,
        "older_than": older_than,
        "unused_for": unused_for,
        "epoch": epoch,
    }
    return RecordFilter.from_query(given)


Where = Annotated[RecordFilter, Depends(_filter)]


@router.post("/stores/{store_id}/scans", status_code=202, responses=BODY)
def start_scan(
    store_id: str, services: ServicesDep, who: Operator, response: Response, body: ScanInput | None = None
) -> ScanView:
    """Compares the directory with its inventory; only one scan of a store at a time."""
    gentle = body.gentle if body is not None else False
    scan = services.records.start_scan(parse_id("store", store_id), actor=who.actor, gentle=gentle)
    response.headers["Location"] = f"/api/v1/scans/{scan.id}"
    return scan


@router.get("/stores/{store_id}/directory", responses=NOT_FOUND)
def get_directory(store_id: str, services: ServicesDep, _who: Viewer) -> StoreDirectoryView:
    """Whether the directory at the store's path is the one that the last scan knew."""
    return services.records.directories.view(parse_id("store", store_id))


@router.post("/stores/{store_id}/directory", responses=BODY)
def accept_directory(
    store_id: str, services: ServicesDep, who: Admin, body: AcceptDirectoryInput
) -> StoreDirectoryView:
    """The directory that lies there now is the store; the next scan is a first one."""
    return services.records.directories.accept(parse_id("store", store_id), body.found, actor=who.actor)


@router.get("/stores/{store_id}/scans", responses=NOT_FOUND)
def list_store_scans(store_id: str, services: ServicesDep, _who: Viewer, paging: PageQuery) -> Page[ScanView]:
    """Scans of this store, newest first."""
    return services.records.list_scans(
        page_size=paging.page_size, page_token=paging.page_token, store_id=parse_id("store", store_id)
    )


@router.get("/scans", responses=READ)
def list_scans(services: ServicesDep, _who: Viewer, paging: PageQuery) -> Page[ScanView]:
    """Of all stores, newest first."""
    return services.records.list_scans(page_size=paging.page_size, page_token=paging.page_token)


@router.get("/scans/{scan_id}", responses=NOT_FOUND)
def get_scan(scan_id: str, services: ServicesDep, _who: Viewer) -> ScanView:
    """One scan with its progress."""
    return services.records.get_scan(parse_id("scan", scan_id))


@router.post("/scans/{scan_id}/cancel", responses=BODY)
def cancel_scan(scan_id: str, services: ServicesDep, who: Operator) -> ScanView:
    """Asks a scan to stop."""
    return services.records.cancel_scan(parse_id("scan", scan_id), actor=who.actor)


@router.get("/stores/{store_id}/records", responses=NOT_FOUND)
def list_records(
    store_id: str,
    services: ServicesDep,
    _who: Viewer,
    where: Where,
    paging: PageQuery,
    order: Annotated[
        str | None,
        Query(description="modified_at, accessed_at, size_bytes, name or certainty (of being wrong); - turns it"),
    ] = None,
) -> Page[RecordView]:
    """The inventory. With a rare free text a page may be short (or empty) and still have a next one."""
    return services.records.list_records(
        parse_id("store", store_id),
        where,
        order=parse_order(order),
        page_size=paging.page_size,
        page_token=paging.page_token,
    )


@router.get("/stores/{store_id}/records.jsonl", response_class=StreamingResponse, responses=NOT_FOUND)
def export_jsonl(store_id: str, services: ServicesDep, _who: Viewer, where: Where) -> StreamingResponse:
    """All matching records, one JSON object a line, streamed."""
    records = services.records.export_records(parse_id("store", store_id), where)
    lines = (json.dumps(_plain(record), ensure_ascii=False) + "\n" for record in records)
    return _download(_chunks(lines), "application/x-ndjson", f"records-{store_id}.jsonl")


@router.get("/stores/{store_id}/records.csv", response_class=StreamingResponse, responses=NOT_FOUND)
def export_csv(store_id: str, services: ServicesDep, _who: Viewer, where: Where) -> StreamingResponse:
    """All matching records as CSV, streamed. Cells that a spreadsheet would run get a leading quote."""
    records = services.records.export_records(parse_id("store", store_id), where)
    return _download(_chunks(_csv_lines(records)), "text/csv; charset=utf-8", f"records-{store_id}.csv")


@router.get("/records/{record_id}", responses=NOT_FOUND)
def get_record(record_id: str, services: ServicesDep, _who: Viewer) -> RecordDetail:
    """One record with the evidence for its class."""
    return services.records.get_record(record_id)


@router.get("/stores/{store_id}/summary", responses=NOT_FOUND)
def get_summary(store_id: str, services: ServicesDep, _who: Viewer) -> SummaryView:
    """The store at a glance."""
    return services.records.summary(parse_id("store", store_id))


@router.get("/stores/{store_id}/distribution", responses=NOT_FOUND)
def get_distribution(store_id: str, services: ServicesDep, _who: Viewer) -> DistributionView:
    """Records by age, by last use and by cache salt, as of the last scan. 404 before the first."""
    found = services.records.distribution(parse_id("store", store_id))
    if found is None:
        raise NotFound(f"store {store_id} was never scanned: POST /stores/{store_id}/scans first")
    return found


@router.get("/stores/{store_id}/traffic", responses=NOT_FOUND)
def get_traffic(store_id: str, services: ServicesDep, _who: Viewer) -> TrafficView:
    """Bytes written against bytes read back, what was never read, and records per request, by counters."""
    return services.records.traffic.view(parse_id("store", store_id))


@router.get("/stores/{store_id}/growth", responses=NOT_FOUND)
def get_growth(
    store_id: str, services: ServicesDep, _who: Viewer, points: Annotated[int, Query(ge=1, le=1000)] = 200
) -> list[GrowthPointView]:
    """Bytes by class at the end of each scan, oldest first."""
    return services.records.growth(parse_id("store", store_id), points=points)


@router.get("/stores/{store_id}/holds", responses=NOT_FOUND)
def list_holds(store_id: str, services: ServicesDep, _who: Viewer, paging: PageQuery) -> Page[HoldView]:
    """Records that no policy takes: put back from quarantine, or read by a canary."""
    return services.records.list_holds(
        parse_id("store", store_id), page_size=paging.page_size, page_token=paging.page_token
    )


@router.post("/stores/{store_id}/holds/release", responses=BODY)
def release_holds(
    store_id: str, services: ServicesDep, who: Operator, body: ReleaseInput | None = None
) -> ReleasedView:
    """Ends the hold of the named records; of all but canaries' without a body. A canary's record is a 409."""
    names = None if body is None else body.names
    return ReleasedView(released=services.records.release_holds(parse_id("store", store_id), names, actor=who.actor))


@router.get("/stores/{store_id}/epochs", responses=NOT_FOUND)
def list_epochs(store_id: str, services: ServicesDep, _who: Viewer) -> EpochsView:
    """Layouts as servers showed them, and what was declared or adopted; newest first."""
    return services.records.epochs(parse_id("store", store_id))


@router.post("/stores/{store_id}/epochs", status_code=201, responses=BODY)
def add_epoch(store_id: str, services: ServicesDep, who: Operator, body: EpochInput, response: Response) -> EpochView:
    """Declares a generation ("weights changed"), or adopts what was there before the panel."""
    epoch = services.records.add_epoch(parse_id("store", store_id), body, actor=who.actor)
    response.headers["Location"] = f"/api/v1/stores/{store_id}/epochs/{epoch.id}"
    return epoch


@router.delete("/stores/{store_id}/epochs/{epoch_id}", status_code=204, responses=BODY)
def undo_epoch(store_id: str, epoch_id: str, services: ServicesDep, who: Operator) -> None:
    """Takes a declaration or adoption back."""
    services.records.undo_epoch(parse_id("store", store_id), parse_id("epoch", epoch_id), actor=who.actor)


def _plain(record: RecordView) -> dict[str, Any]:
    return record.model_dump(mode="json", by_alias=True)


def _csv_lines(records: Iterator[RecordView]) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(_EXPORT_COLUMNS)
    for record in records:
        values = _plain(record)
        writer.writerow([_cell(values[name]) for name in _EXPORT_COLUMNS])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _chunks(lines: Iterator[str], size: int = 500) -> Iterator[str]:
    """Lines in larger pieces: a piece costs a turn of the event loop."""
    piece: list[str] = []
    for line in lines:
        piece.append(line)
        if len(piece) >= size:
            yield "".join(piece)
            piece = []
    if piece:
        yield "".join(piece)


def _download(body: Iterator[str], media_type: str, name: str) -> StreamingResponse:
    return StreamingResponse(
        body, media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )
