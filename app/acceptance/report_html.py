"""The self-contained HTML report: one file, no script, no request to anywhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.acceptance.finding import ToldOnce, told_once
from app.acceptance.schemas import (
    AcceptanceRunView,
    ArmView,
    CandidateView,
    ComparisonView,
    DivergenceView,
    FindingView,
    PairView,
)
from app.acceptance.tokens import token_told
from app.acceptance.told import evidence_lines, load_lines, score_pairs
from app.print_forms import as_html as _e
from app.print_forms import page_head

_COLUMNS = (
    "arm|requests|external|expected|share|L1|L2|TTFT median|p90|p99|speed-up|same|near ties|differ|largest difference"
)
_TONE = {"pass": "pass", "pass_with_near_ties": "pass", "fail": "fail"}


def render_html(run: AcceptanceRunView, samples: Sequence[tuple[str, Sequence[float]]]) -> str:
    """The page: verdict first, then reasons, arms, times, divergences, and what was in force."""
    verdict = run.verdict or run.state
    tone = _TONE.get(verdict, "warn")
    parts = [
        page_head(f"Acceptance of {run.engine_name}: {verdict}"),
        f'<h1 class="{tone}">{_e(verdict.replace("_", " "))}</h1><p>{_e(run.headline or "")}</p>',
        f'<p class="mute">Run {_e(run.id)} of engine {_e(run.engine_name)} with cache server {_e(run.server_name)}, '
        f"profile {_e(run.profile)}, mode {_e(run.mode or 'not chosen')}, {_e(run.started_at or run.created_at)}.</p>",
    ]
    if run.findings:
        rows = "".join(_reason(told) for told in told_once(run.findings))
        parts.append(f"<h2>Reasons</h2><ul>{rows}</ul>")
    parts.append(f'<h2>Arms</h2><div class="wide">{_arms(run.arms)}</div>')
    if samples:
        parts.append(f"<h2>Time to first token</h2>{ttft_chart(samples)}")
    if run.comparisons:
        parts.append(f'<h2>Answers</h2><div class="wide">{_answers(run.comparisons)}</div>')
    parts += [_comparison(c, run.prompt_names) for c in run.comparisons if c.divergences]
    if load := _load(run):
        parts.append(f'<h2>Engine load</h2><div class="wide">{load}</div>')
    if told := evidence_lines(run):
        rows = "".join(f"<tr><td>{_e(what)}</td><td>{_e(text)}</td></tr>" for what, text in told)
        parts.append(f'<h2>Evidence</h2><table class="words"><tbody>{rows}</tbody></table>')
    parts.append(_in_force(run))
    parts.append("</body></html>")
    return "\n".join(parts)


def _reason(told: ToldOnce[FindingView]) -> str:
    x = told.finding
    where = f"{', '.join(told.arms)}: " if told.arms else ""
    times = f", {told.count} times" if told.count > 1 else ""
    more = "".join(f"<li>{_e((o.arm + ': ') if o.arm else '')}{_e(o.text)}</li>" for o in told.others)
    return (
        f"<li><strong>{_e(x.severity.replace('_', ' '))}</strong> {_e(where)}{_e(x.text)} ({_e(x.code)}{times})"
        f"{' <em>' + _e(x.fix) + '</em>' if x.fix else ''}{'<ul>' + more + '</ul>' if more else ''}</li>"
    )


def _arms(arms: Sequence[ArmView]) -> str:
    head = "".join(f'<th scope="col">{h}</th>' for h in _COLUMNS.split("|"))
    rows = "".join(_arm(a) for a in arms)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _arm(arm: ArmView) -> str:
    speed = arm.speedup
    interval = (
        f"{speed.median:.1f}× ({speed.low:.1f}–{speed.high:.1f})"
        if speed and speed.median is not None and speed.low is not None and speed.high is not None
        else "–"
    )
    drift = arm.logprob.max_abs_difference if arm.logprob else None
    cells = [
        f"{_e(arm.name)}<br><small>{_e(arm.title)}</small>",
        str(arm.requests),
        _n(arm.external_tokens),
        _n(arm.expected_external_tokens),
        "–" if arm.external_share is None else f"{arm.external_share:.3f}",
        _n(arm.l1_hit_tokens),
        _n(arm.l2_hit_tokens),
        _ms(arm.ttft_ms.median),
        _ms(arm.ttft_ms.p90),
        _ms(arm.ttft_ms.p99),
        interval,
        str(arm.exact_matches),
        str(arm.near_ties),
        str(arm.flips + arm.refused),
        _nats(drift),
    ]
    return "<tr>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>"


def ttft_chart(samples: Sequence[tuple[str, Sequence[float]]], *, width: int = 720) -> str:
    """One row of dots an arm on a common scale from zero, the median marked; an SVG with a text for readers of text."""
    known = [(arm, list(values)) for arm, values in samples if values]
    if not known:
        return ""
    longest = max(max(values) for _, values in known) or 1.0
    left, row = 130, 26
    height = row * len(known) + 24
    scale = (width - left - 16) / longest
    parts = [
        f'<svg viewBox="0 0 {width} {height}" width="100%" role="img" '
        f'aria-label="Time to first token by arm, 0 to {longest:.1f} milliseconds">'
    ]
    for index, (arm, values) in enumerate(known):
        y = row * index + 16
        parts.append(f'<text x="0" y="{y + 4}">{_e(arm)}</text>')
        parts.append(f'<line class="axis" x1="{left}" y1="{y}" x2="{width - 16}" y2="{y}"/>')
        parts += [f'<circle class="dot" cx="{left + v * scale:.1f}" cy="{y}" r="4"/>' for v in values[:2000]]
        middle = left + sorted(values)[len(values) // 2] * scale
        parts.append(f'<line class="median" x1="{middle:.1f}" y1="{y - 8}" x2="{middle:.1f}" y2="{y + 8}"/>')
    parts.append(f'<text x="{left}" y="{height - 4}">0</text>')
    parts.append(f'<text x="{width - 16}" y="{height - 4}" text-anchor="end">{longest:.1f} ms</text></svg>')
    return "".join(parts)


def _load(run: AcceptanceRunView) -> str:
    columns = "arm|before it|running|waiting|KV cache in use|others' requests|readings"
    head = "".join(f'<th scope="col">{_e(h)}</th>' for h in columns.split("|"))
    rows = ""
    for x in load_lines(run):
        told = (
            f'<td colspan="4">not read: {_e(x.reason)}</td>'
            if x.reason
            else "".join(f"<td>{_e(text)}</td>" for text in (x.running, x.waiting, x.kv_usage, x.others))
        )
        rows += f"<tr><td>{_e(x.arm)}</td><td>{_e(x.before)}</td>{told}<td>{x.readings}</td></tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""


def _answers(comparisons: Sequence[ComparisonView]) -> str:
    columns = "arm|against|same|near ties|differ|tokens|mean difference|largest|same first choice|scores"
    head = "".join(f'<th scope="col">{h}</th>' for h in columns.split("|"))
    rows = ""
    for c in comparisons:
        cells = (
            _e(c.arm),
            _e(c.reference),
            f"{c.exact_matches} of {c.pairs}",
            str(c.near_ties),
            str(c.flips + c.drifts + c.refused),
            _n(c.compared_tokens),
            _nats(c.mean_abs_difference),
            _nats(c.max_abs_difference),
            "–" if c.top1_agreement is None else f"{c.top1_agreement:.1%}",
            _e(score_pairs(c) or "no scored prompt"),
        )
        rows += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _comparison(comparison: ComparisonView, names: Mapping[str, str]) -> str:
    pairs = "".join(_pair(p, names.get(p.prompt, "")) for p in comparison.divergences)
    more = f"<p>and {comparison.divergences_left_off} more</p>" if comparison.divergences_left_off else ""
    return f"<h2>{_e(comparison.arm)} against {_e(comparison.reference)}</h2>{pairs}{more}"


def _pair(pair: PairView, name: str) -> str:
    texts = ""
    if pair.text_a is not None:
        same = _common(pair.text_a, pair.text_b or "")
        texts = (
            f'<div class="two"><div>reference<pre>{_marked(pair.text_a, same)}</pre></div>'
            f"<div>this arm<pre>{_marked(pair.text_b or '', same)}</pre></div></div>"
        )
    top = _top(pair.first_divergence) if pair.first_divergence else ""
    called = f"{pair.prompt} {name}".strip()
    return f"<p><strong>{_e(called)}</strong> {_e(pair.outcome)}: {_e(pair.reason)}</p>{texts}{top}"


def _common(a: str, b: str) -> int:
    same = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        same += 1
    return same


def _marked(text: str, same: int) -> str:
    rest = f"<mark>{_e(text[same:])}</mark>" if text[same:] else ""
    return f"{_e(text[:same])}{rest}"


def _top(divergence: DivergenceView) -> str:
    def side(name: str, rows: Sequence[CandidateView]) -> str:
        cells = "".join(f"<li>{_e(_token(r))} {r.logprob:.4f}</li>" for r in rows)
        return f'<div class="mute">{name}<ol>{cells}</ol></div>'

    return (
        f'<p class="mute">first difference at token {divergence.position + 1}</p><div class="two">'
        f"{side('reference', divergence.top_a)}{side('this arm', divergence.top_b)}</div>"
    )


def _token(candidate: CandidateView) -> str:
    text, ident = token_told(candidate.token, candidate.text)
    return f"{text} ({ident})" if text and ident else text or ident


def _in_force(run: AcceptanceRunView) -> str:
    frozen = run.frozen
    rows = [
        ("model", frozen.get("model")),
        ("vLLM", frozen.get("engine_version")),
        ("LMCache", frozen.get("server_version")),
        ("KV layout", frozen.get("layout_fingerprint")),
        ("chunk size", frozen.get("chunk_size")),
    ]
    body = "".join(f"<tr><td>{_e(k)}</td><td>{_e(str(v))}</td></tr>" for k, v in rows if v is not None)
    return f"<h2>In force</h2><table><tbody>{body}</tbody></table>"


def _n(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _nats(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g} nat"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} ms"
