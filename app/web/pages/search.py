"""One search over servers, engines, stores, models, records and runs, and over the words and pages of the panel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.errors import InvalidInput, NotFound
from app.records.facts import REASONS
from app.records.filters import DEFAULT_ORDER, RecordFilter
from app.records.schemas import Count
from app.services import Services
from app.web import formats, words
from app.web.contexts import Crumb
from app.web.frame import NAV, ViewerFrame
from app.web.manual import ManualPage, help_path
from app.web.settings_contexts import Found, SearchPage

router = APIRouter(prefix="/search")

EACH = 8
#: A letter alone would find every word.
SHORTEST_WORD = 3


@router.get("")
def search_page(frame: ViewerFrame, q: Annotated[str, Query(max_length=255)] = "") -> Response:
    text = q.strip()
    found: list[Found] = []
    if text:
        services = frame.services
        found = [*_targets(services, text), *_runs(services, text), *_policies(services, text)]
        if len(text) >= SHORTEST_WORD:
            found += [*_judged(services, text), *_pages(text), *_help(frame.request.app.state.manual, text)]
        found += _records(services, text)
    return frame.page("search.html", SearchPage, "", Crumb("Search"), q=text, found=found)


def _targets(services: Services, text: str) -> list[Found]:
    fleet = services.fleet
    servers = fleet.list_servers(page_size=EACH, page_token=None, q=text).items
    engines = fleet.list_engines(page_size=500, page_token=None).items
    stores = fleet.list_stores(page_size=EACH, page_token=None, q=text).items
    wanted = text.casefold()
    # Engines also by the models they serve.
    matching = [
        e for e in engines if any(wanted in part.casefold() for part in (e.name, e.url, *e.model_names, *e.model_roots))
    ][:EACH]
    return [
        *(Found("cache server", "server", s.name, s.url, f"/servers/{s.id}") for s in servers),
        *(Found("engine", "cpu", e.name, ", ".join(e.model_names) or e.url, f"/engines/{e.id}") for e in matching),
        *(Found("store", "hard-drive", s.name, s.path, f"/stores/{s.id}") for s in stores),
    ]


def _runs(services: Services, text: str) -> list[Found]:
    number = text.removeprefix("#")
    if not number.isdecimal() or len(number) > 12:
        return []
    found = []
    for what, icon, get, path in (
        ("cleanup run", "brush-cleaning", services.cleanup.get_run, "/cleanup/runs"),
        ("plan", "list-checks", services.cleanup.get_plan, "/cleanup/plans"),
        ("acceptance run", "badge-check", services.acceptance.get, "/acceptance/runs"),
    ):
        try:
            view = get(int(number))
        except NotFound:
            continue
        found.append(Found(what, icon, f"#{view.id}", view.state, f"{path}/{view.id}"))
    return found


def _policies(services: Services, text: str) -> list[Found]:
    wanted = text.casefold()
    policies = services.cleanup.list_policies(page_size=200, page_token=None).items
    return [
        Found("policy", "sliders-horizontal", p.name, p.store_name, f"/cleanup/policies/{p.id}")
        for p in policies
        if wanted in p.name.casefold()
    ][:EACH]


def _judged(services: Services, text: str) -> list[Found]:
    """Classes and reasons of that name: the records that have it now, store by store, and what the word means."""
    classes = [c for c in words.CLASS_ORDER if _means(text, c)]
    reasons = [code for codes in REASONS.values() for code in codes if _means(text, code)]
    if not classes and not reasons:
        return []
    found: list[Found] = []
    for store in services.fleet.list_stores(page_size=20, page_token=None).items:
        summary = services.records.summary(int(store.id))
        here = f"/stores/{store.id}/records"
        for key in classes:
            # What is foreign is only counted: there is no list of it.
            if key != "foreign":
                found += _counted(f"{key} records", store.name, summary.by_class.get(key), f"{here}?class={key}")
        for code in reasons:
            named = f"records: {formats.words(code)}"
            found += _counted(named, store.name, summary.by_reason.get(code), f"{here}?reason={code}")
    found += [
        Found("class", "book-open", key, words.CLASS[key].means, help_path("CLASSES.md#record-classes"))
        for key in classes
    ]
    found += [
        Found("reason", "book-open", formats.words(code), words.reason(code), help_path("CLASSES.md#reasons"))
        for code in reasons
    ]
    return found


def _means(text: str, code: str) -> bool:
    wanted = text.casefold().replace("_", " ")
    return wanted in formats.words(code)


def _counted(title: str, store: str, count: Count | None, path: str) -> Iterator[Found]:
    if count is not None and count.records:
        held = f"{formats.plural(count.records, 'record')}, {formats.disk(count.bytes)}"
        yield Found(f"records on {store}", "files", title, held, path)


def _pages(text: str) -> list[Found]:
    wanted = text.casefold()
    return [Found("page", item.icon, item.title, "", item.path) for item in NAV if wanted in item.title.casefold()]


def _help(manual: Mapping[str, ManualPage], text: str) -> list[Found]:
    """Pages and headings of the manual that hold every word of the text: "disk full" finds "Disk is full"."""
    wanted = text.casefold().split()
    found = [
        Found("help", "book-open", title, page.title if anchor else page.answers, f"/help/{page.key}{anchor}")
        for page in manual.values()
        for title, anchor in ((page.title, ""), *((h.title, f"#{h.anchor}") for h in page.headings))
        if all(word in title.casefold() for word in wanted)
    ]
    return found[:EACH]


def _records(services: Services, text: str) -> list[Found]:
    if len(text) < 4:
        return []
    try:
        where = RecordFilter.from_query({"q": text})
    except InvalidInput:
        return []
    found = []
    for store in services.fleet.list_stores(page_size=20, page_token=None).items:
        page = services.records.list_records(int(store.id), where, order=DEFAULT_ORDER, page_size=EACH, page_token=None)
        found += [Found(f"record on {store.name}", "files", r.name, r.class_, f"/records/{r.id}") for r in page.items]
    return found[: 3 * EACH]
