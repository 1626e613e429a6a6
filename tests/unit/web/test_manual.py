"""The documentation as the panel shows it."""

from __future__ import annotations

from pathlib import Path

from app.paths import DOCS
from app.web.manual import anchor_of, help_path, read_manual, read_page
from tests.unit.web.test_pages import Document

FILES = ("A.md", "LONG_NAME.md")


def body(text: str, **options: object) -> str:
    return str(read_page("A.md", text, "", FILES, **options).body)  # type: ignore[arg-type]


def test_anchors_are_those_of_github() -> None:
    assert anchor_of("Disk is full") == "disk-is-full"
    assert anchor_of("What it is, and `why`?") == "what-it-is-and-why"
    assert anchor_of("hit-rate-low") == "hit-rate-low"


def test_links_between_pages_stay_in_the_panel_and_others_become_text() -> None:
    html = body("[a](LONG_NAME.md#x) [b](../Makefile) [c](https://example.org/) [d](#here)", prefix="/tk")
    assert '<a href="/tk/help/long-name#x">a</a>' in html
    assert "Makefile" not in html
    assert " b " in html
    assert 'href="https://example.org/" rel="noreferrer"' in html
    assert 'href="#here"' in html
    assert help_path("RUNBOOKS.md#disk-is-full") == "/help/runbooks#disk-is-full"


def test_headings_have_anchors_and_the_title_stands_outside() -> None:
    page = read_page("A.md", "# Title\n\n## One\n\n### Two\n\n## One\n", "", FILES)
    assert page.title == "Title"
    assert [(h.anchor, h.level) for h in page.headings] == [("one", 2), ("two", 3), ("one-1", 2)]
    assert "<h1" not in page.body
    assert '<h2 id="one-1">' in page.body


def test_what_the_security_policy_forbids_is_not_there() -> None:
    html = body(
        "| a | b |\n|---|--:|\n| <b onclick=x>1</b> | 2 |\n\n<script>alert(1)</script>\n\n<!-- a\nmark -->\nend\n"
    )
    assert "style=" not in html
    assert "<script" not in html
    assert "<b " not in html
    assert '<th class="r" scope="col">b</th>' in html
    assert "mark" not in html


def test_code_is_printed_as_it_is() -> None:
    assert '<pre tabindex="0"><code>a &lt; b\n</code></pre>' in body("```sh\na < b\n```\n")


def test_a_picture_that_is_not_there_is_its_words() -> None:
    text = "![The overview](images/overview.webp)"
    assert body(text).strip() == "<p>The overview</p>"
    assert 'src="/p/overview.webp" alt="The overview" loading="lazy"' in body(text, pictures=lambda name: f"/p/{name}")


def test_every_page_of_the_documentation_is_well_formed() -> None:
    manual = read_manual(DOCS, pictures=lambda name: f"/help/images/{name}")
    assert list(manual)[:2] == ["getting-started", "runbooks"]
    for page in manual.values():
        document = Document(page.body)
        assert document.unbalanced == [], page.key
        assert document.open == [], page.key
        ids = {attrs["id"] for _, attrs in document.elements if "id" in attrs}
        for attrs in document.all("a"):
            href = attrs["href"]
            if href.startswith("#"):
                assert href[1:] in ids, (page.key, href)
            elif href.startswith("/help/"):
                key, _, anchor = href.removeprefix("/help/").partition("#")
                assert not anchor or anchor in {h.anchor for h in manual[key].headings}, (page.key, href)


def test_an_installation_without_documentation_has_an_empty_manual(tmp_path: Path) -> None:
    assert read_manual(tmp_path / "none") == {}
