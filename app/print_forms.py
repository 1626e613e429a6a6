"""What every printed report shares: the look of a self-contained page, and text that neither HTML nor Markdown reads.

Names and answers come from models, servers and disks: they are escaped wherever they are printed.
"""

from __future__ import annotations

import html

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--mute:#59636e;--line:#d1d9e0;--good:#1a7f37;--bad:#cf222e;
--warn:#9a6700;--bar:#0969da}
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--mute:#9198a1;--line:#3d444d;--good:#3fb950;
--bad:#f85149;--warn:#d29922;--bar:#4493f8}}
body{margin:2rem auto;max-width:72rem;padding:0 1rem;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
.pass{color:var(--good)}.fail,.error{color:var(--bad)}.warn{color:var(--warn)}.mute{color:var(--mute)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:.3rem .5rem;text-align:right;vertical-align:top}
th:first-child,td:first-child{text-align:left}table.words td,table.words th{text-align:left}
pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid var(--line);padding:.5rem;margin:.2rem 0}
mark{background:var(--bad);color:#fff}.two{display:grid;grid-template-columns:1fr 1fr;gap:1rem}
@media(max-width:45rem){.two{grid-template-columns:1fr}
.stack,.stack tbody,.stack tr,.stack td{display:block}.stack thead,.stack td:empty{display:none}
.stack td{border:0;padding:.1rem 0}.stack tr{border-bottom:1px solid var(--line);padding:.6rem 0}
.stack td[data-label]:before{content:attr(data-label) ": ";color:var(--mute)}}.wide{overflow-x:auto}
svg text{fill:var(--fg);font:12px system-ui,sans-serif}svg .dot{fill:var(--bar);opacity:.55}
svg .axis{stroke:var(--line)}svg .median{stroke:var(--fg);stroke-width:2}
"""


def page_head(title: str) -> str:
    """The beginning of a self-contained page, up to its body."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{as_html(title)}</title><style>{STYLE}</style></head><body>"
    )


def as_html(text: str) -> str:
    """Text that HTML must not read, in an element or an attribute."""
    return html.escape(text, quote=True)


def as_markdown(text: str) -> str:
    """Text that Markdown must not read: no HTML, no links, no table cells, one line."""
    safe = html.escape(" ".join(text.split()), quote=False)
    for char in "\\`*_[]|#":
        safe = safe.replace(char, f"\\{char}")
    return safe
