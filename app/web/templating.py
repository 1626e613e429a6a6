"""One Jinja2 environment for all pages: strict about undefined names, escaping everything.

`Templates.response(request, "overview.html", context)` renders a context of `app.web.contexts`. A request from htmx
gets the content alone (`layouts/fragment.html`), everybody else the whole page (`layouts/page.html`).
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from app.acceptance.finding import told_once
from app.acceptance.tokens import token_told
from app.cleanup.policy import SAFE_FILTER
from app.clock import Clock, iso
from app.disk_room import room
from app.web import curve, formats, svg, words
from app.web.actions import commands_in, curls_in
from app.web.manual import help_path
from app.web.overview import canary_line, group_line, most_recomputed, run_line, stale_word
from app.web.pace import pace
from app.web.static_files import StaticFiles
from app.web.tables import listed, table_url
from app.web.worst import worst_first, worst_verdicts
from app.web.wrong_records import class_line, incompatible_line

#: Smaller answers gain nothing from compression.
COMPRESS_ABOVE = 1400
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")

if TYPE_CHECKING:
    from app.web.contexts import PageContext


def is_fragment(request: Request) -> bool:
    """Whether htmx asks (it swaps the content only)."""
    return request.headers.get("hx-request") == "true"


class Templates:
    """Renders pages. `prefix` is the path a reverse proxy strips (``/tierkeeper``), or empty."""

    def __init__(self, folder: Path, *, static: StaticFiles, clock: Clock, prefix: str = "") -> None:
        self.env = Environment(
            loader=FileSystemLoader(folder),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=visible,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            cache_size=-1,
        )
        self.env.filters.update(_filters(clock))
        self.env.tests["known"] = lambda value: value is not None
        self.env.globals.update(
            asset=static.url,
            help_path=help_path,
            u=lambda *parts: address(prefix, *parts),
            now=lambda: iso(clock()),
            curl=curl_command,
            commands_in=lambda content: commands_in(str(content), prefix),
            curls_in=lambda content: curls_in(str(content)),
            tables_in=lambda content: [table for table in listed(str(content)) if not table.own],
            table_url=table_url,
            svg=svg,
            curve=curve,
            w=words,
            safe_filter=SAFE_FILTER,
            w_verdict=stale_word,
            run_line=run_line,
            class_line=class_line,
            canary_line=canary_line,
            group_line=group_line,
            most_recomputed=most_recomputed,
            worst_first=worst_first,
            worst_verdicts=worst_verdicts,
            incompatible_line=incompatible_line,
            plan_word=words.plan_word,
            harm_of=words.harm_of,
            plan_name=words.plan_name,
            run_name=words.run_name,
            run_starter=words.run_starter,
            firing_word=words.firing_word,
            item_word=words.item_word,
            pace=lambda work: pace(work, clock()),
            room=room,
            seconds_between=formats.seconds_between,
            split_at_difference=formats.split_at_difference,
            token_told=token_told,
            told_once=told_once,
        )

    def render(self, name: str, context: PageContext, *, fragment: bool = False) -> str:
        """The page as text. A name that the context lacks raises `jinja2.UndefinedError`."""
        values = {f.name: getattr(context, f.name) for f in dataclasses.fields(context)}
        layout = "layouts/fragment.html" if fragment else "layouts/page.html"
        return self.env.get_template(name).render(layout=layout, **values)

    def response(
        self,
        request: Request,
        name: str,
        context: PageContext,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """The answer to `request`. Pages hold live numbers: they are never stored by a cache."""
        body = self.render(name, context, fragment=is_fragment(request)).encode()
        sent = {"Cache-Control": "no-store", "Vary": "HX-Request, Cookie, Accept-Encoding", **(headers or {})}
        if len(body) > COMPRESS_ABOVE and "gzip" in request.headers.get("accept-encoding", ""):
            # Tables shrink to a tenth; level 4 takes a millisecond for the largest page.
            body = gzip.compress(body, 4, mtime=0)
            sent["Content-Encoding"] = "gzip"
        return HTMLResponse(body, status, headers=sent)


def visible(value: object) -> object:
    """What every expression of a template prints: text whose invisible characters are shown as escapes.

    Names from disks and servers may hold control characters or turn the direction of writing; nobody has to remember
    a filter for that. Values that a form sends back go through the filter `raw`, which keeps them as they are.
    """
    if type(value) is str and not value.isprintable():
        return formats.printable_lines(value)
    return value


def raw(value: object) -> Markup:
    """For the attributes that carry a value and do not show it: escaped for HTML, otherwise untouched."""
    return escape(value)


def address(prefix: str, *parts: object) -> str:
    """``u("/servers", server.id)`` is ``/servers/17`` behind the prefix; all but the first part is percent-encoded."""
    head, *rest = (str(p) for p in parts)
    return prefix + "/".join([head.rstrip("/") if rest else head, *(quote(p, safe="") for p in rest)])


def curl_command(base_url: str, method: str, path: str, body: object = None) -> str:
    """The same action for a shell: every part quoted, the token from the environment."""
    parts = ["curl -sS"]
    if method != "GET":
        parts.append(f"-X {method}")
    parts.append('-H "Authorization: Bearer $TIERKEEPER_TOKEN"')
    if body is not None:
        parts.append("-H 'Content-Type: application/json'")
        parts.append("-d " + shlex.quote(json.dumps(body, ensure_ascii=False)))
    parts.append(shlex.quote(base_url.rstrip("/") + path))
    return " \\\n  ".join(parts)


def json_script(value: object) -> Markup:
    """JSON for ``<script type="application/json">``: nothing in it can close the element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704


def _filters(clock: Clock) -> dict[str, Any]:
    return {
        "memory": formats.memory,
        "memory_parts": formats.memory_parts,
        "disk": formats.disk,
        "disk_parts": formats.disk_parts,
        "rate": formats.rate,
        "exact_bytes": formats.exact_bytes,
        "count": formats.count,
        "quantity": formats.quantity,
        "compact": formats.compact,
        "in_unit": formats.in_unit,
        "percent": formats.percent,
        "decimal": formats.decimal,
        "duration": formats.duration,
        "ms": formats.milliseconds,
        "relative": lambda moment: formats.relative(moment, clock()),
        "exact": formats.exact,
        "moment_input": formats.moment_input,
        "zoned": formats.zoned,
        "hhmm": formats.clock_time,
        "day": lambda moment: formats.day(moment, clock()),
        "day_title": lambda moment: formats.day_title(moment, clock()),
        "plural": formats.plural,
        "words": formats.words,
        "middle": formats.middle,
        "ends": formats.ends,
        "raw": raw,
        "printable": formats.printable,
        "printable_lines": formats.printable_lines,
        "pretty": lambda value: json.dumps(value, indent=2, ensure_ascii=False, default=str),
        "json_script": json_script,
        "reason": words.reason,
        "weekday": lambda day: _DAYS[day],
        "filter_text": lambda values: " ".join(f"{k}={v}" for k, v in values.items()),
        # options of a select: (value, title) pairs
        "zip_words": lambda values: [(v, formats.words(v)) for v in values],
        "id_names": lambda views: [(v.id, formats.printable(v.name)) for v in views],
        "zip_same": lambda values: [(v, formats.printable(v)) for v in values],
    }
