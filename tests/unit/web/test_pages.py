"""Every page in every state renders strictly, escapes what others wrote, and holds to the security policy."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

import pytest
from starlette.routing import Match, Route

from app.paths import DOCS, STATIC
from app.web import formats
from app.web.growth import outlook
from app.web.routers import page_routers
from tests.unit.web import pages, preview, records_samples, samples

TEMPLATES, _ = preview.templates()
PLAIN = pages.all_pages()
HOSTILE = pages.all_pages(samples.HOSTILE)
VOID = {"meta", "link", "input", "hr", "br", "img", "source", "wbr"}
SPRITE_IDS = set(re.findall(r'<symbol id="([^"]+)"', (STATIC / "vendor/lucide/icons.svg").read_text()))


class Document(HTMLParser):
    """The elements of a page in order, and every tag that is not closed as it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        if "textarea" not in self.open:
            self.text.append(data)

    def all(self, *tags: str) -> list[dict[str, str]]:
        return [attrs for tag, attrs in self.elements if tag in tags]


def render(name: str, which: pages.Pages, *, fragment: bool = False) -> str:
    template, context = which[name]
    return TEMPLATES.render(template, context, fragment=fragment)


def test_every_page_tells_in_the_same_words_when_a_store_is_full() -> None:
    told = outlook(records_samples.summary()).text
    assert told not in ("", "not foreseen")
    for name in ("overview", "stores", "store"):
        assert told in render(name, PLAIN), name


@pytest.mark.parametrize("name", PLAIN)
def test_page_is_well_formed_and_speaks_to_everybody(name: str) -> None:
    document = Document(render(name, PLAIN))
    assert document.unbalanced == []
    assert document.open == []
    ids = [attrs["id"] for _, attrs in document.elements if "id" in attrs]
    assert [i for i, n in Counter(ids).items() if n > 1] == []
    # Every control has a name: a label, or aria-label.
    labelled = {attrs["for"] for attrs in document.all("label") if "for" in attrs}
    for attrs in document.all("input", "select", "textarea"):
        if attrs.get("type") in ("hidden", "checkbox", "radio"):
            continue
        assert attrs.get("id") in labelled or "aria-label" in attrs, attrs
    for attrs in document.all("button"):
        assert attrs.get("type") in ("button", "submit"), attrs
        if "popovertarget" in attrs:
            assert attrs["popovertarget"] in ids
    for attrs in document.all("svg"):
        assert "aria-hidden" in attrs or attrs.get("role") == "img" or "viewbox" in attrs, attrs
    for attrs in document.all("th"):
        assert attrs.get("scope") in ("col", "row", "rowgroup"), attrs
    for attrs in document.all("use"):
        assert attrs["href"].split("#")[1] in SPRITE_IDS, attrs
    assert len(document.all("h1")) == 1


@pytest.mark.parametrize("name", PLAIN)
def test_page_needs_no_exception_from_the_content_security_policy(name: str) -> None:
    document = Document(render(name, PLAIN))
    for tag, attrs in document.elements:
        assert "style" not in attrs, (tag, attrs)
        assert not [a for a in attrs if a.startswith(("on", "hx-on"))], (tag, attrs)
        # Filters and js: values would need eval.
        assert "[" not in attrs.get("hx-trigger", ""), attrs
        assert not any(v.startswith("javascript:") for v in attrs.values()), attrs
    assert document.all("style") == []
    for attrs in document.all("script"):
        assert attrs.get("src", "").startswith("/static/") or attrs.get("type") == "application/json", attrs
    for attrs in document.all("a"):
        assert attrs["href"].startswith(("/", "#")), attrs


ROUTES = [route for router in page_routers() for route in router.routes if isinstance(route, Route)]


def leads_somewhere(path: str, method: str) -> bool:
    if path.startswith(("/static/", "/api/", "/metrics", "/help/")):
        return True  # other routers' and files
    scope = {"type": "http", "path": path, "method": method, "root_path": "", "headers": []}
    return any(route.matches(scope)[0] is Match.FULL for route in ROUTES)


@pytest.mark.parametrize("name", PLAIN)
def test_every_link_and_form_leads_to_a_page_that_there_is(name: str) -> None:
    document = Document(render(name, PLAIN))
    here = PLAIN[name][1].shell.path
    for attrs in document.all("a"):
        path = attrs["href"].split("#")[0].split("?")[0] or here.split("?")[0]
        assert leads_somewhere(path, "GET"), attrs
    for attrs in document.all("form"):
        action = (attrs.get("action") or here).split("?")[0]
        assert leads_somewhere(action, attrs.get("method", "get").upper()), attrs


@pytest.mark.parametrize("name", HOSTILE)
def test_what_others_wrote_is_only_ever_text(name: str) -> None:
    text = render(name, HOSTILE)
    assert "<script>alert" not in text
    document = Document(text)
    assert document.unbalanced == []
    assert document.open == []
    plain = Counter(tag for tag, _ in Document(render(name, PLAIN)).elements)
    hostile = Counter(tag for tag, _ in document.elements)
    assert hostile["script"] == plain["script"]
    for tag, attrs in document.elements:
        assert not [a for a in attrs if not re.fullmatch(r"[a-zA-Z][\w:.-]*", a)], (tag, attrs)
    # A right-to-left override or an escape sequence must not reach a reader's eyes unseen.
    visible = "".join(document.text)
    assert "\u202e" not in visible
    assert "\x1b" not in visible


@pytest.mark.parametrize("name", [n for n in PLAIN if n not in ("login", "login-wrong") and not n.startswith("error")])
def test_fragment_is_the_content_alone_and_holds_the_live_part(name: str) -> None:
    whole, part = render(name, PLAIN), render(name, PLAIN, fragment=True)
    assert "<html" not in part
    assert 'class="side"' not in part
    live = re.search(r'id="live"[^>]*data-live|data-live', whole)
    assert bool(live) == ("data-live" in part)


def test_every_live_part_asks_for_its_own_page_and_swaps_itself() -> None:
    for name in PLAIN:
        for _, attrs in Document(render(name, PLAIN)).elements:
            if "data-live" in attrs:
                assert attrs["hx-get"] == PLAIN[name][1].shell.path
                assert attrs["hx-select"] == f"#{attrs['id']}"
                assert (attrs["hx-swap"], attrs["hx-target"]) == ("outerMorph", "this")


def test_unknown_is_never_shown_as_zero() -> None:
    text = render("server-down", PLAIN)
    assert "unknown" in text
    assert "0 %" not in text.replace("\u00a0", " ")
    assert "0 B" not in text.replace("\u00a0", " ")
    calm = render("overview-calm", PLAIN).replace("\u00a0", " ")
    assert "0 %" in calm


def test_a_run_says_what_went_back_and_offers_only_what_can() -> None:
    text = render("run-put-back", PLAIN).replace("\u00a0", " ")
    head = text.split("<h1", 1)[1].split("</h1>", 1)[0]
    assert "2 put back" in head
    assert 'popovertarget="put-back"' not in text
    assert "cannot go back" in text
    assert 'popovertarget="put-back"' in render("run", PLAIN)
    assert "62" in text.split("hour before", 2)[2][:200], "the hit rate before it"
    assert "there was no traffic" in text


def test_a_plan_is_a_lower_bound_where_more_may_be_derived() -> None:
    assert "lower bound" in render("plan", PLAIN)


def test_acceptance_pages_say_what_a_verdict_and_a_score_mean() -> None:
    for name in ("acceptance", "acceptance-none"):
        assert "/help/classes#acceptance-verdicts" in render(name, PLAIN)
    assert "something about the model, not about the cache" in render("acceptance-fail", PLAIN)


def test_no_colour_comes_without_a_word() -> None:
    for name in ("overview", "server", "acceptance-fail", "store"):
        for match in re.finditer(r'<span class="(?:status|badge) s-\w+"[^>]*>(.*?)</span>', render(name, PLAIN)):
            words = re.sub(r"<svg.*?</svg>", "", match.group(1))
            assert re.sub(r"<[^>]+>", "", words).strip(), match.group(0)


def test_actions_are_shown_only_to_those_who_may() -> None:
    viewer = render("record-bare", PLAIN)
    assert "/plans" not in viewer
    assert "/plans" in render("record", PLAIN)


def test_quarantine_is_purged_from_its_page_once_the_store_is_named() -> None:
    text = render("quarantine", PLAIN)
    document = Document(text)
    assert [a["action"] for a in document.all("form") if a["action"].endswith("/purge")] == ["/cleanup/runs/41/purge"]
    asked = next(a for a in document.all("input") if a.get("name") == "confirm")
    assert "required" in asked
    assert asked["data-confirm-word"] == PLAIN["quarantine"][1].store.name
    assert "Purge…" not in render("quarantine-none", PLAIN)


def test_navigation_marks_where_one_is() -> None:
    document = Document(render("server", PLAIN))
    marked = [a for a in document.all("a") if a.get("aria-current") == "page"]
    assert [a["href"] for a in marked] == ["/servers"]


def test_the_server_page_has_the_hit_rates_that_the_runbook_sends_people_to() -> None:
    title = "Hit rates by model, salt and engine"
    assert f"*{title}* on the server's page" in (DOCS / "RUNBOOKS.md").read_text()
    table = render("server", PLAIN).split(f"<h2>{title}</h2>")[1].split("</section>")[0]
    rows = [" ".join(Document(row).text).split() for row in table.split("<tr>")[2:]]
    text = [" ".join(row).replace("\u202f", " ").replace("\xa0", " ") for row in rows]
    assert text[0] == "salt without a salt 33.3 % 12,000 4,000 3,000 1,000"
    assert text[1] == "salt tenant-a 0 % 4,000 0 0 0"
    assert text[2] == "salt tk-* this panel's own runs no traffic 0 0 0 0"
    assert text[3].startswith("engine qwen-1 20.0 % 13,000 2,600 – –")


def test_a_filter_that_cannot_be_used_is_not_told_as_an_empty_store() -> None:
    text = " ".join(Document(render("records-wrong-filter", PLAIN)).text)
    assert "The filter cannot be used" in text and "Nothing was looked up" in text
    assert "Not scanned yet" not in text and "No record matches" not in text


def test_times_of_layouts_have_their_date_unless_they_are_of_today() -> None:
    spans = TEMPLATES.env.from_string('{% import "macros/ui.html" as ui %}{{ ui.spans(epoch) }}')
    of = [records_samples.span(3 * 86400, 60)]
    text = " ".join("".join(Document(spans.render(epoch={"spans": of, "live": False})).text).split())
    first, today = formats.day(of[0]["from"], samples.NOW), formats.clock_time(of[0]["until"])
    assert text == f"{first} {formats.clock_time(of[0]['from'])} – {today}"
