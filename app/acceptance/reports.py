"""A run as JSON, JUnit XML, Markdown and one self-contained HTML page. Pure: everything comes from the run's view.

Names and answers come from models and disks: they are escaped wherever they are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

from app.acceptance.report_html import render_html
from app.acceptance.schemas import AcceptanceRunView, ArmView, ComparisonView
from app.acceptance.told import LoadLine, evidence_lines, load_lines, score_pairs
from app.print_forms import as_markdown as _md

FORMS: Mapping[str, str] = {
    "json": "application/json",
    "xml": "application/xml",
    "html": "text/html; charset=utf-8",
    "md": "text/markdown; charset=utf-8",
}
Samples = Sequence[tuple[str, Sequence[float]]]
_FAILURES = {"fail"}
_ERRORS = {"invalid", "error", "timeout"}
#: What XML 1.0 cannot carry at all, not even escaped.
_XML_FORBIDDEN = {i: None for i in range(32) if i not in (9, 10, 13)} | {0xFFFE: None, 0xFFFF: None}


def render(run: AcceptanceRunView, form: str, samples: Samples) -> str:
    """The report. `form` is one of FORMS."""
    makers: Mapping[str, Callable[[], str]] = {
        "json": lambda: run.model_dump_json(indent=2),
        "xml": lambda: junit(run),
        "html": lambda: render_html(run, samples),
        "md": lambda: markdown(run),
    }
    return makers[form]()


def junit(run: AcceptanceRunView) -> str:
    """JUnit XML: one test case for the verdict and one for each arm.

    fail is a failure; invalid, error and timeout are errors: no tool may read them as passed. Cancelled is skipped.
    """
    cases: list[Element] = [_verdict_case(run), *(_arm_case(run, arm) for arm in run.arms)]
    count = {tag: sum(1 for c in cases if c.find(tag) is not None) for tag in ("failure", "error", "skipped")}
    suite = Element(
        "testsuite",
        {
            "name": _xml(f"tierkeeper acceptance {run.engine_name}"),
            "tests": str(len(cases)),
            "failures": str(count["failure"]),
            "errors": str(count["error"]),
            "skipped": str(count["skipped"]),
            "time": f"{run.duration_seconds or 0:.3f}",
            "timestamp": (run.started_at or run.created_at).rstrip("Z"),
        },
    )
    properties = SubElement(suite, "properties")
    for name, value in _properties(run).items():
        SubElement(properties, "property", {"name": name, "value": _xml(value)})
    suite.extend(cases)
    SubElement(suite, "system-out").text = _xml(markdown(run))
    root = Element("testsuites")
    root.append(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode")


def _verdict_case(run: AcceptanceRunView) -> Element:
    case = Element(
        "testcase",
        {"classname": "acceptance", "name": "verdict", "time": f"{run.duration_seconds or 0:.3f}"},
    )
    detail = _xml("\n".join(run.reasons) or run.headline or "")
    if run.verdict is None:
        word = "skipped" if run.state == "cancelled" else "error"
        SubElement(case, word, {"message": _xml(f"no verdict: {run.state}")})
    elif run.verdict in _FAILURES:
        SubElement(case, "failure", {"message": _xml(run.headline or ""), "type": run.verdict}).text = detail
    elif run.verdict in _ERRORS:
        SubElement(case, "error", {"message": _xml(run.headline or ""), "type": run.verdict}).text = detail
    return case


def _arm_case(run: AcceptanceRunView, arm: ArmView) -> Element:
    seconds = (arm.ttft_ms.mean or 0) / 1000 * arm.ttft_ms.count
    case = Element("testcase", {"classname": "acceptance.arm", "name": arm.name, "time": f"{seconds:.3f}"})
    mine = [f for f in run.findings if f.arm == arm.name]
    wrong = [f for f in mine if f.severity == "fail"]
    missing = [f for f in mine if f.severity in _ERRORS]
    if wrong:
        SubElement(case, "failure", {"message": _xml(wrong[0].text), "type": wrong[0].code}).text = _xml(
            "\n".join(f.text for f in wrong)
        )
    elif missing:
        SubElement(case, "error", {"message": _xml(missing[0].text), "type": missing[0].code}).text = _xml(
            "\n".join(f.text for f in missing)
        )
    elif arm.state != "complete":
        SubElement(case, "skipped", {"message": arm.state.replace("_", " ")})
    return case


def _properties(run: AcceptanceRunView) -> dict[str, str]:
    frozen = run.frozen
    found = {
        "run": run.id,
        "verdict": run.verdict or run.state,
        "engine": run.engine_name,
        "server": run.server_name,
        "profile": run.profile,
        "mode": run.mode or "",
        "model": str(frozen.get("model") or ""),
        "engine_version": str(frozen.get("engine_version") or ""),
        "server_version": str(frozen.get("server_version") or ""),
        "layout": str(frozen.get("layout_fingerprint") or ""),
    }
    return {k: v for k, v in found.items() if v}


def _xml(text: str) -> str:
    return text.translate(_XML_FORBIDDEN).encode("utf-8", "replace").decode("utf-8")


def markdown(run: AcceptanceRunView) -> str:
    """For a pull request or a ticket: verdict first."""
    verdict = (run.verdict or run.state).replace("_", " ")
    lines = [
        f"# Acceptance: {verdict}",
        "",
        _md(run.headline or ""),
        "",
        f"Run {run.id} of engine **{_md(run.engine_name)}** with cache server **{_md(run.server_name)}**, "
        f"profile {run.profile}, mode {run.mode or 'not chosen'}, {run.started_at or run.created_at}.",
        "",
    ]
    if run.reasons:
        lines += ["## Reasons", "", *(f"- {_md(r)}" for r in run.reasons), ""]
    lines += ["## Arms", "", *_arm_table(run.arms), ""]
    if run.comparisons:
        lines += ["## Answers", "", *_answer_table(run.comparisons), ""]
    for comparison in run.comparisons:
        if comparison.divergences:
            lines += _divergences(comparison, run.prompt_names)
    if lines_of_load := load_lines(run):
        lines += ["## Engine load", "", *_load_table(lines_of_load), ""]
    if told := evidence_lines(run):
        lines += ["## Evidence", "", *(f"- {what}: {_md(text)}" for what, text in told), ""]
    frozen = run.frozen
    lines += [
        "## In force",
        "",
        f"- model {_md(str(frozen.get('model') or 'unknown'))}, vLLM {frozen.get('engine_version') or 'unknown'}, "
        f"LMCache {frozen.get('server_version') or 'unknown'}",
        f"- KV layout {frozen.get('layout_fingerprint') or 'unknown'}, "
        f"chunk size {frozen.get('chunk_size') or 'unknown'}",
    ]
    return "\n".join(lines).rstrip() + "\n"


def _arm_table(arms: Sequence[ArmView]) -> list[str]:
    head = "| arm | requests | external / expected | share | TTFT median | p99 | speed-up | same | near ties | differ |"
    rows = [head, "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for arm in arms:
        tokens = f"{_number(arm.external_tokens)} / {_number(arm.expected_external_tokens)}"
        share = "–" if arm.external_share is None else f"{arm.external_share:.3f}"
        speedup = f"{arm.speedup.median:.1f}×" if arm.speedup and arm.speedup.median else "–"
        rows.append(
            f"| {arm.name} | {arm.requests} | {tokens} | {share} | {_ms(arm.ttft_ms.median)} | {_ms(arm.ttft_ms.p99)} "
            f"| {speedup} | {arm.exact_matches} | {arm.near_ties} | {arm.flips + arm.refused} |"
        )
    return rows


def _load_table(lines: Sequence[LoadLine]) -> list[str]:
    head = "| arm | before it | running | waiting | KV cache in use | others' requests | readings |"
    rows = [head, "|---|---|---:|---:|---:|---:|---:|"]
    for x in lines:
        told = (
            f"not read: {_md(x.reason)} | – | – | –"
            if x.reason
            else f"{x.running} | {x.waiting} | {x.kv_usage} | {x.others}"
        )
        rows.append(f"| {x.arm} | {x.before} | {told} | {x.readings} |")
    return rows


def _answer_table(comparisons: Sequence[ComparisonView]) -> list[str]:
    head = "| arm | against | same | near ties | differ | tokens | mean difference | largest | same top-1 | scores |"
    rows = [head, "|---|---|---:|---:|---:|---:|---:|---:|---:|---|"]
    for c in comparisons:
        agreement = "–" if c.top1_agreement is None else f"{c.top1_agreement:.1%}"
        rows.append(
            f"| {c.arm} | {_md(c.reference)} | {c.exact_matches} of {c.pairs} | {c.near_ties} "
            f"| {c.flips + c.drifts + c.refused} | {c.compared_tokens} | {_nats(c.mean_abs_difference)} "
            f"| {_nats(c.max_abs_difference)} | {agreement} | {score_pairs(c) or 'no scored prompt'} |"
        )
    return rows


def _divergences(comparison: ComparisonView, names: Mapping[str, str]) -> list[str]:
    lines = [f"## {comparison.arm} against {_md(comparison.reference)}", ""]
    for pair in comparison.divergences:
        called = f" ({_md(names[pair.prompt])})" if pair.prompt in names else ""
        lines.append(f"- `{pair.prompt}`{called} {pair.outcome}: {_md(pair.reason)}")
        if pair.text_a is not None:
            lines.append(f"  - reference: {_code(pair.text_a)}")
            lines.append(f"  - this arm: {_code(pair.text_b or '')}")
    if comparison.divergences_left_off:
        lines.append(f"- and {comparison.divergences_left_off} more")
    return [*lines, ""]


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def _nats(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g} nat"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} ms"


def _code(text: str) -> str:
    """An answer as one line of code, however many backticks it holds."""
    line = " ".join(text.split())[:400]
    fence = "`" * (max((len(run) for run in _backtick_runs(line)), default=0) + 1)
    return f"{fence} {line} {fence}"


def _backtick_runs(text: str) -> list[str]:
    runs: list[str] = []
    current = ""
    for char in text:
        if char == "`":
            current += char
        elif current:
            runs.append(current)
            current = ""
    return [*runs, current] if current else runs
