"""The pages of docs/ as the panel shows them under /help: Markdown in, safe HTML out. Pure but for reading the files.

Headings get the anchors that GitHub gives them, links between the pages become links between pages of the panel, and
what lies outside of docs/ becomes plain text. Nothing inline survives: the security policy allows no style attribute.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

#: (file, what it answers), in the order of the contents; what is missing here follows by name.
ORDER: tuple[tuple[str, str], ...] = (
    ("GETTING_STARTED.md", "From nothing to a first scan and a first acceptance run"),
    ("RUNBOOKS.md", "What to do when something is wrong"),
    ("PAGES.md", "Each page of the panel, with a picture"),
    ("CLASSES.md", "Every class, reason, policy and verdict"),
    ("ACCEPTANCE.md", "How the test proves what the cache gives back"),
    ("ALARMS.md", "When each alarm fires, and what proves that it does"),
    ("CHECKS.md", "Settings to verify; sizing; launch commands"),
    ("EXPERIMENTS.md", "Benchmarks and published experiments"),
    ("SETTINGS.md", "Every setting of the panel"),
    ("METRICS.md", "What Prometheus gets"),
    ("API.md", "The HTTP API"),
    ("ARCHITECTURE.md", "How the panel is built"),
    ("SECURITY.md", "What the panel may do, and what it is kept from"),
    ("PERFORMANCE.md", "How fast it is, and how that was measured"),
    ("DESIGN_SYSTEM.md", "How pages look, and how to make one"),
)
_COMMENT = re.compile(r"^<!--.*?-->\n?", re.MULTILINE | re.DOTALL)
_NOT_IN_ANCHOR = re.compile(r"[^\w\- ]")
_OUTSIDE = re.compile(r"(?:https?|mailto):")

#: The address of a picture by its name below docs/images; None when there is none.
Pictures = Callable[[str], str | None]


@dataclass(frozen=True)
class Heading:
    """One heading: its anchor, its text, its level (2 or 3)."""

    anchor: str
    title: str
    level: int


@dataclass(frozen=True)
class ManualPage:
    """One page. `body` is HTML without the title, `answers` one line for the contents."""

    key: str
    title: str
    answers: str
    body: Markup
    headings: tuple[Heading, ...]


def anchor_of(title: str) -> str:
    """The anchor of a heading, as GitHub makes it (without the number that tells equal ones apart)."""
    return _NOT_IN_ANCHOR.sub("", title.strip().lower()).replace(" ", "-")


def key_of(file: str) -> str:
    """``GETTING_STARTED.md`` is /help/getting-started."""
    return file.removesuffix(".md").lower().replace("_", "-")


def help_path(reference: str) -> str:
    """``RUNBOOKS.md#disk-is-full`` as an address of the panel, without the prefix."""
    file, mark, anchor = reference.partition("#")
    return f"/help/{key_of(file)}{mark}{anchor}"


def read_manual(folder: Path, *, prefix: str = "", pictures: Pictures = lambda _: None) -> dict[str, ManualPage]:
    """Every page of a folder by its key, in the order of the contents; empty where there is no such folder."""
    files = {path.name: path for path in sorted(folder.glob("*.md"))}
    known = [name for name, _ in ORDER if name in files]
    lines = dict(ORDER)
    names = [*known, *(name for name in files if name not in lines)]
    return {
        key_of(name): read_page(name, files[name].read_text("utf-8"), lines.get(name, ""), names, prefix, pictures)
        for name in names
    }


def read_page(
    file: str, text: str, answers: str, files: Iterable[str], prefix: str = "", pictures: Pictures = lambda _: None
) -> ManualPage:
    """One page from its Markdown; `files` are the pages that links may lead to."""
    parser = MarkdownIt("commonmark", {"html": False, "xhtmlOut": False}).enable("table")
    parser.add_render_rule("table_open", _table_open)
    parser.add_render_rule("table_close", _table_close)
    parser.add_render_rule("fence", _fence)
    tokens = parser.parse(_COMMENT.sub("", text))
    title, tokens = _without_title(tokens, file)
    known = frozenset(files)
    for token in tokens:
        _tidy(token)
        if token.children:
            token.children = _links(token.children, known, prefix, pictures)
    headings = tuple(_headings(tokens))
    body = Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704 - html=False escapes all text
    return ManualPage(key_of(file), title, answers, body, headings)


def _without_title(tokens: list[Token], file: str) -> tuple[str, list[Token]]:
    if tokens and tokens[0].type == "heading_open" and tokens[0].tag == "h1":
        return _plain(tokens[1]), tokens[3:]
    return file, tokens


def _plain(inline: Token) -> str:
    return "".join(child.content for child in inline.children or ())


def _headings(tokens: Sequence[Token]) -> Iterable[Heading]:
    seen: Counter[str] = Counter()
    for at, token in enumerate(tokens):
        if token.type != "heading_open":
            continue
        title = _plain(tokens[at + 1])
        anchor = anchor_of(title)
        number = seen[anchor]
        seen[anchor] += 1
        token.attrSet("id", f"{anchor}-{number}" if number else anchor)
        yield Heading(str(token.attrGet("id")), title, int(token.tag[1]))


def _tidy(token: Token) -> None:
    """Styles of aligned columns become a class."""
    style = token.attrs.pop("style", None)
    if style is not None and "right" in str(style):
        token.attrJoin("class", "r")
    if token.type == "th_open":
        token.attrSet("scope", "col")


def _links(children: list[Token], files: frozenset[str], prefix: str, pictures: Pictures) -> list[Token]:
    found: list[Token] = []
    dropped = 0
    for token in children:
        if token.type == "link_open":
            target = _target(str(token.attrGet("href") or ""), files, prefix)
            if target is None:
                dropped += 1
                continue
            token.attrSet("href", target)
            if _OUTSIDE.match(target):
                token.attrSet("rel", "noreferrer")
        elif token.type == "link_close" and dropped:
            dropped -= 1
            continue
        elif token.type == "image":
            address = pictures(str(token.attrGet("src") or "").removeprefix("images/"))
            if address is None:
                token = Token("text", "", 0, content=token.content)
            else:
                token.attrSet("src", address)
                token.attrSet("loading", "lazy")
        found.append(token)
    return found


def _target(href: str, files: frozenset[str], prefix: str) -> str | None:
    if href.startswith("#") or _OUTSIDE.match(href):
        return href
    return prefix + help_path(href) if href.partition("#")[0] in files else None


# Rules of the renderer: markdown-it hands them itself, all tokens, the place, the options and an environment.


def _table_open(*_: Any) -> str:
    return '<div class="table-wrap" tabindex="0" role="region" aria-label="Table"><table class="table">\n'


def _table_close(*_: Any) -> str:
    return "</table></div>\n"


def _fence(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    return f'<pre tabindex="0"><code>{escape(tokens[at].content)}</code></pre>\n'
