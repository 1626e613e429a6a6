"""Readiness as JSON, Markdown and one self-contained HTML page. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.print_forms import as_html as _e
from app.print_forms import as_markdown as _md
from app.print_forms import page_head
from app.readiness.parts import SCOPES
from app.readiness.schemas import PartView, ReadinessView, State

FORMS: Mapping[str, str] = {
    "json": "application/json",
    "md": "text/markdown; charset=utf-8",
    "html": "text/html; charset=utf-8",
}
WORDS: Mapping[State, str] = {"ready": "ready", "not_ready": "not ready", "unknown": "unknown"}
_TONES: Mapping[State, str] = {"ready": "pass", "not_ready": "fail", "unknown": "warn"}


def render(view: ReadinessView, form: str) -> str:
    """The report. `form` is one of FORMS."""
    makers: Mapping[str, Callable[[], str]] = {
        "json": lambda: view.model_dump_json(indent=2),
        "md": lambda: markdown(view),
        "html": lambda: page(view),
    }
    return makers[form]()


def markdown(view: ReadinessView) -> str:
    """For a ticket or a change request: the judgement first."""
    rows = [
        f"| {part.title} | {WORDS[part.state]} | {_md(part.text)} | {_when(part)} | {_md(part.action)} |"
        for part in view.parts
    ]
    return "\n".join(
        [
            f"# Readiness: {WORDS[view.state]}",
            "",
            _md(view.sentence) + ".",
            "",
            f"Engine **{_md(view.engine_name)}** with cache server **{_md(view.server_name or 'none')}**, "
            f"{view.judged_at}. Support scope: {SCOPES[view.scope]}.",
            "",
            "| part | state | what is known | found | what to do |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def page(view: ReadinessView) -> str:
    """One file, no script, no request to anywhere."""
    rows = "".join(
        f'<tr><td><b>{_e(p.title)}</b></td><td class="{_TONES[p.state]}">{WORDS[p.state]}</td><td>{_e(p.text)}</td>'
        f'<td data-label="found">{_e(_when(p))}</td><td data-label="what to do">{_e(p.action)}</td></tr>'
        for p in view.parts
    )
    head = "".join(f'<th scope="col">{h}</th>' for h in ("part", "state", "what is known", "found", "what to do"))
    return "\n".join(
        [
            page_head(f"Readiness of {view.engine_name}: {WORDS[view.state]}"),
            f'<h1 class="{_TONES[view.state]}">{WORDS[view.state].capitalize()}</h1>'
            f"<p>{_e(view.sentence[:1].upper() + view.sentence[1:])}.</p>",
            f'<p class="mute">Engine {_e(view.engine_name)} with cache server '
            f"{_e(view.server_name or 'none')}, {_e(_minute(view.judged_at))}. "
            f"Support scope: {SCOPES[view.scope]}.</p>",
            f'<div class="wide"><table class="words stack"><thead><tr>{head}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>",
            "</body></html>",
        ]
    )


def _when(part: PartView) -> str:
    """The time of what is known, with its age at the moment of the report."""
    if part.at is None or part.age_seconds is None:
        return "never"
    age = part.age_seconds
    for unit, seconds in (("d", 86_400), ("h", 3600), ("min", 60)):
        if age >= seconds:
            return f"{_minute(part.at)} ({age / seconds:.1f} {unit} ago)"
    return f"{_minute(part.at)} ({age:.0f} s ago)"


def _minute(time: str) -> str:
    """``2026-12-01 02:15 UTC`` of an RFC 3339 time."""
    return f"{time[:10]} {time[11:16]} UTC"
