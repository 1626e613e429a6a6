"""Stores and records: what lies on the disk tier, explorer, single records, layouts, scans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fastapi import APIRouter
from starlette.responses import Response

from app.api.deps import PageQuery, parse_id
from app.cleanup.schemas import FilterPlanInput
from app.errors import Conflict, InvalidInput, NotFound, StoreError, TierkeeperError
from app.records.filters import ORDERS, RecordFilter, page_order, parse_order
from app.records.schemas import EpochInput
from app.records.views import split_record_id
from app.web.contexts import Crumb, QuarantinePage, RecordGonePage, RecordPage, RecordsPage, StorePage, StoresPage
from app.web.formats import plural
from app.web.forms import FormState
from app.web.frame import AdminFrame, FormValues, Frame, OperatorFrame, ViewerFrame, build_input, one
from app.web.growth import class_layers, outlook
from app.web.pages.overview import store_cards
from app.web.table_state import TableState

router = APIRouter()

FILTERS = ("class", "reason", "model", "kv_rank", "salt", "q", "min_size", "older_than", "unused_for", "epoch")
_EPOCH_FIELDS = ("kind", "model_name", "effective_at", "reason")
_ORDER_FIELDS = tuple({order.removeprefix("-") for order in ORDERS})


@router.get("/stores")
def stores_page(frame: ViewerFrame) -> Response:
    services = frame.services
    state = TableState.parse(frame.request.query_params, names=("label",))
    stores = services.fleet.list_stores(page_size=500, page_token=None, label=state.get("label") or None).items
    return frame.page(
        "stores.html",
        StoresPage,
        "stores",
        stores=store_cards(services, stores),
        server_names={},
        state=state,
        labels=services.fleet.labels("store"),
    )


def _store(frame: Frame, store_id: str, form: FormState | None = None, status: int = 200) -> Response:
    services = frame.services
    ident = parse_id("store", store_id)
    store = services.fleet.get_store(ident)
    scans = services.records.list_scans(page_size=10, page_token=None, store_id=ident).items
    look = services.records.look(ident)
    return frame.page(
        "store.html",
        StorePage,
        "stores",
        Crumb(store.name),
        status=status,
        store=store,
        directory=services.records.directories.view(ident),
        summary=look.summary,
        scans=scans,
        active_scan=next((s for s in scans if s.state in ("queued", "running")), None),
        epochs=look.epochs,
        growth=look.growth,
        server_names={},
        policies=services.cleanup.list_policies(page_size=50, page_token=None, store_id=ident).items,
        quarantined=None,
        form=form or FormState.of({"kind": "declare"}, fields=_EPOCH_FIELDS),
        distribution=look.distribution,
        traffic=look.traffic,
        class_layers=class_layers(look.growth),
        outlook=outlook(look.summary),
    )


@router.get("/stores/{store_id}")
def store_page(frame: ViewerFrame, store_id: str) -> Response:
    return _store(frame, store_id)


@router.post("/stores/{store_id}/scans")
def start_scan(frame: OperatorFrame, store_id: str, values: FormValues) -> Response:
    here = f"/stores/{store_id}"
    gentle = one(values, "gentle") is not None
    try:
        frame.services.records.start_scan(parse_id("store", store_id), actor=frame.actor, gentle=gentle)
    except Conflict as error:
        return frame.refused(here, error)
    return frame.done(here, "The scan has started.")


@router.post("/stores/{store_id}/directory")
def accept_directory(frame: AdminFrame, store_id: str, values: FormValues) -> Response:
    """The directory that was seen there is the store now."""
    here, ident = f"/stores/{store_id}", parse_id("store", store_id)
    try:
        frame.services.records.directories.accept(ident, one(values, "found"), actor=frame.actor)
    except (InvalidInput, Conflict, StoreError) as error:
        return frame.refused(here, error)
    return frame.done(here, "This directory is the store now. Scan it: its records are not known yet.")


@router.post("/scans/{scan_id}/cancel")
def cancel_scan(frame: OperatorFrame, scan_id: str) -> Response:
    scan = frame.services.records.cancel_scan(parse_id("scan", scan_id), actor=frame.actor)
    return frame.done(f"/stores/{scan.store_id}", "The scan is stopping.")


@router.post("/stores/{store_id}/epochs")
def add_epoch(frame: OperatorFrame, store_id: str, values: FormValues) -> Response:
    """Declares a generation, or adopts what was there before the panel."""
    form = FormState(values=values, fields=frozenset(_EPOCH_FIELDS))
    try:
        body = build_input(EpochInput, {name: one(values, name) for name in _EPOCH_FIELDS})
        ident, records = parse_id("store", store_id), frame.services.records
        epoch = records.add_epoch(ident, body, actor=frame.actor)
    except (InvalidInput, Conflict) as error:
        return _store(frame, store_id, form.failed(error), error.status)
    return frame.done(
        f"/stores/{store_id}",
        "Recorded. The records are judged anew.",
        undo=(
            lambda actor: records.undo_epoch(ident, parse_id("epoch", epoch.id), actor=actor),
            "Undone. The records are judged anew.",
        ),
    )


@router.post("/stores/{store_id}/epochs/{epoch_id}/undo")
def undo_epoch(frame: OperatorFrame, store_id: str, epoch_id: str) -> Response:
    here = f"/stores/{store_id}"
    try:
        frame.services.records.undo_epoch(parse_id("store", store_id), parse_id("epoch", epoch_id), actor=frame.actor)
    except Conflict as error:
        return frame.refused(here, error)
    return frame.done(here, "Undone. The records are judged anew.")


@router.get("/stores/{store_id}/records")
def records_page(frame: ViewerFrame, store_id: str, paging: PageQuery) -> Response:
    services = frame.services
    ident = parse_id("store", store_id)
    store = services.fleet.get_store(ident)
    summary = services.records.summary(ident)
    state = TableState.parse({**frame.request.query_params}, names=FILTERS, orders=_ORDER_FIELDS)
    form = FormState.of({name: state.get(name) for name in FILTERS}, fields=FILTERS)
    status, where = 200, RecordFilter()
    try:
        where = RecordFilter.from_query(dict(state.filters))
    except InvalidInput as error:
        form, status = form.failed(error, outcome="No record is shown until it is set right."), error.status
    state = _sorted(state, page_order(where))
    found = None
    if status == 200 and summary.state == "scanned":
        found = services.records.list_records(
            ident,
            where,
            order=parse_order(state.order or None),
            page_size=state.page_size,
            page_token=paging.page_token,
        )
    return frame.page(
        "records.html",
        RecordsPage,
        "stores",
        Crumb(store.name, f"/stores/{store_id}"),
        Crumb("Records"),
        status=status,
        store=store,
        summary=summary,
        records=found.items if found else [],
        state=state,
        next_page_token=found.next_page_token if found else None,
        matching=services.records.count_records(ident, where) if found else None,
        form=form,
    )


def _sorted(state: TableState, default: str) -> TableState:
    """The state where what nobody sorted comes in `default`."""
    return replace(state, order=state.order or default, default_order=default)


@router.post("/stores/{store_id}/plans")
def plan_matching(frame: OperatorFrame, store_id: str, values: FormValues) -> Response:
    """A dry run over everything that matches a filter of the explorer."""
    chosen = {name: text for name in FILTERS if (text := one(values, name))}
    try:
        body = build_input(FilterPlanInput, {"filter": chosen, "seen": _seen(values)})
        plan = frame.services.cleanup.start_filter_plan(parse_id("store", store_id), body, actor=frame.actor)
    except (InvalidInput, Conflict) as error:
        return frame.refused(f"/stores/{store_id}/records", error)
    return frame.done(f"/cleanup/plans/{plan.id}")


def _seen(values: Mapping[str, list[str]]) -> dict[str, object] | None:
    """What the page showed that was planned from; None where it showed no number."""
    records = one(values, "seen_records")
    if records is None:
        return None
    number = int(records) if records.isascii() and records.isdecimal() and len(records) < 16 else records
    return {"records": number, "scanned_at": one(values, "seen_scanned_at")}


@router.get("/stores/{store_id}/quarantine")
def quarantine_page(frame: ViewerFrame, store_id: str, paging: PageQuery) -> Response:
    services = frame.services
    ident = parse_id("store", store_id)
    store = services.fleet.get_store(ident)
    state = TableState.parse(frame.request.query_params, names=())
    holds = services.records.list_holds(ident, page_size=100, page_token=None)
    return frame.page(
        "quarantine.html",
        QuarantinePage,
        "stores",
        Crumb(store.name, f"/stores/{store_id}"),
        Crumb("Quarantine"),
        store=store,
        quarantine=services.cleanup.quarantine(ident, page_size=100, page_token=paging.page_token),
        state=state,
        summary=services.records.summary(ident),
        holds=holds.items,
        more_holds=holds.next_page_token is not None,
        releasable=any(not hold.canary for hold in holds.items),
    )


@router.post("/stores/{store_id}/holds/release")
def release_holds(frame: OperatorFrame, store_id: str, values: FormValues) -> Response:
    """Ends the hold of one record, or of all that no canary reads."""
    here = f"/stores/{store_id}/quarantine"
    name = one(values, "name")
    try:
        names = None if name is None else [name]
        released = frame.services.records.release_holds(parse_id("store", store_id), names, actor=frame.actor)
    except Conflict as error:
        return frame.refused(here, error)
    return frame.done(here, f"{plural(released, 'hold')} ended: policies may take what they held.")


@router.post("/stores/{store_id}/quarantine/adopt")
def adopt_quarantine(frame: OperatorFrame, store_id: str, values: FormValues) -> Response:
    """Takes over what another panel's run left in quarantine."""
    try:
        run = frame.services.cleanup.adopt_quarantine(
            parse_id("store", store_id), one(values, "folder") or "", actor=frame.actor
        )
    except TierkeeperError as error:
        return frame.refused(f"/stores/{store_id}/quarantine", error)
    return frame.done(f"/cleanup/runs/{run.id}", "Taken over.")


@router.get("/records/{record_id}")
def record_page(frame: ViewerFrame, record_id: str) -> Response:
    services = frame.services
    try:
        record = services.records.get_record(record_id)
    except NotFound:
        return _record_gone(frame, record_id)
    store = services.fleet.get_store(int(record.store_id))
    return frame.page(
        "record.html",
        RecordPage,
        "stores",
        Crumb(store.name, f"/stores/{store.id}"),
        Crumb("Records", f"/stores/{store.id}/records"),
        Crumb(record.chunk_hash[:8]),
        record=record,
        store=store,
        epoch=record.epoch,
    )


def _record_gone(frame: Frame, record_id: str) -> Response:
    """404 with where to look. Raises NotFound where the number was never one of a store that is registered here."""
    store = frame.services.fleet.get_store(split_record_id(record_id)[0])
    return frame.page(
        "record_gone.html",
        RecordGonePage,
        "stores",
        Crumb(store.name, f"/stores/{store.id}"),
        Crumb("Records", f"/stores/{store.id}/records"),
        Crumb("Gone"),
        status=404,
        record_id=record_id,
        store=store,
    )
