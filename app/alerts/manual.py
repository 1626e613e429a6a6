"""The part of docs/ALARMS.md that is told by the catalogue itself: ``python -m app.alerts.manual`` renews it."""

from __future__ import annotations

from pathlib import Path

from app.alerts.catalogue import RULES
from app.alerts.model import span
from app.alerts.rules.base import Rule
from app.alerts.runbooks import runbook_of

BEGIN = "<!-- rules: written by python -m app.alerts.manual -->"
END = "<!-- end of rules -->"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "ALARMS.md"


def rule_sections() -> str:
    """One section a rule, in the order of the catalogue."""
    return "\n".join(_section(rule) for rule in RULES.values())


def _section(rule: Rule) -> str:
    held = "fires at once" if rule.for_seconds == 0 else f"must hold for {span(rule.for_seconds)}"
    target = f"{'an' if rule.subject == 'engine' else 'a'} {rule.subject}"
    lines = [
        f"### {rule.id.replace('_', '-')}",
        f"**{rule.title}** · {rule.severity} · about {target} · {held} · fact `{rule.fact}`",
        "",
        rule.means,
        "",
        f"*What to do:* {rule.action}",
        "",
        f"*Runbook:* [{anchor_words(rule.id)}]({runbook_of(rule.id)})",
        "",
    ]
    if rule.limits:
        lines += [f"- `{name}` {limit.default:g} {limit.unit}: {limit.means}" for name, limit in rule.limits.items()]
        lines.append("")
    if rule.causes:
        causes = ", ".join(f"`{cause.rule}`" for cause in rule.causes)
        lines += [f"Held back while one of these is the cause: {causes}.", ""]
    return "\n".join(lines)


def anchor_words(rule: str) -> str:
    """The name of the runbook of a rule, from its anchor."""
    return runbook_of(rule).partition("#")[2].replace("-", " ")


def renewed(page: str) -> str:
    """The page with its sections as the catalogue has them. Raises ValueError where the marks are missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{rule_sections()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
