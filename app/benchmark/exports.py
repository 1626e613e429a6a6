"""A run for other programs and for people: JSON, CSV and JSON lines of every request, Markdown, tables, the chart."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from app.benchmark.schemas import BenchmarkRunView, RequestView, ScenarioView
from app.benchmark.serve_table import serve_tables
from app.benchmark.verdict import Finding

#: form -> media type. `csv` and `jsonl` hold one line a request, the others the run.
FORMS: Final[dict[str, str]] = {
    "json": "application/json",
    "md": "text/markdown; charset=utf-8",
    "txt": "text/plain; charset=utf-8",
    "svg": "image/svg+xml",
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
}
_COLUMNS: Final = tuple(RequestView.model_fields)


def whole(run: BenchmarkRunView, form: str) -> str:
    """The run as json, md or txt."""
    if form == "json":
        return json.dumps(run.model_dump(mode="json"), indent=2) + "\n"
    return markdown(run) if form == "md" else serve_tables(run)


def lines(requests: Iterable[RequestView], form: str) -> Iterator[str]:
    """Every request as csv (with a head) or jsonl, line by line."""
    if form == "jsonl":
        for request in requests:
            yield json.dumps(request.model_dump(mode="json"), separators=(",", ":")) + "\n"
        return
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(_COLUMNS)
    for request in requests:
        values = request.model_dump(mode="json")
        writer.writerow([_cell(values[name]) for name in _COLUMNS])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, list):
        return " ".join(f"{v:.3f}" for v in value)
    # A text that a spreadsheet would run as a formula is told apart by a quote.
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" else value


def markdown(run: BenchmarkRunView) -> str:
    """The run in words and tables."""
    title = f"# Benchmark run {run.id}: {run.engine_name}"
    parts = [title, f"**{run.verdict or run.state}** — {run.headline or run.error or run.stage}"]
    if run.scope is not None:
        parts.append(run.scope.sentence)
    result = run.result
    if result is not None:
        parts.append(_table(_ttft_rows(result.scenarios)))
        if result.speed_up is not None:
            ratio = result.speed_up
            told = f"A ÷ B: {ratio.value:.3f}"
            if ratio.low is not None and ratio.high is not None and ratio.confidence is not None:
                told += f" ({ratio.low:.3f} to {ratio.high:.3f}, covering {ratio.confidence * 100:.0f} %)"
            parts.append(told)
        if result.noise_floor is not None:
            floor = result.noise_floor
            parts.append(f"Noise floor of scenario {floor.scenario.upper()}: {floor.relative * 100:.2f} %")
        parts.append("## Tokens of the measured pass\n\n" + _table(_token_rows(result.scenarios)))
        if result.reductions:
            rows = [("scenario", "metric", "statistic", "first, ms", "second, ms", "reduction, %")]
            rows += [
                (
                    line.scenario.upper(),
                    line.metric.upper(),
                    line.statistic,
                    _number(line.first),
                    _number(line.second),
                    _number(None if line.reduction is None else line.reduction * 100, 1),
                )
                for line in result.reductions
            ]
            parts.append("## First and second run\n\n" + _table(rows))
        if result.differences:
            differing = [("where", "what", "A", "B")]
            differing += [
                (d.part, d.field + (" (connector)" if d.connector else ""), _short(d.a), _short(d.b))
                for d in result.differences
            ]
            parts.append("## What differs between A and B\n\n" + _table(differing))
    if run.findings:
        found = (Finding(f.code, f.severity, f.text, f.fix) for f in run.findings)
        parts.append("## Findings\n\n" + "\n".join(f"- {f.told()}" for f in found))
    return "\n\n".join(parts) + "\n"


def _ttft_rows(scenarios: Sequence[ScenarioView]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("scenario", "run", "pass", "requests", "median, ms", "mean, ms", "p99, ms")]
    for scenario in scenarios:
        for repeat in scenario.runs:
            for phase in repeat.phases:
                number = f"{repeat.repeat}" + ("" if repeat.measured else " (not measured)")
                times = phase.ttft_ms
                rows.append(
                    (
                        scenario.title,
                        number,
                        phase.title,
                        f"{phase.answered}",
                        _number(times.median),
                        _number(times.mean),
                        _number(times.p99),
                    )
                )
        across = scenario.ttft_ms
        told = f"{_number(across.low)} to {_number(across.high)}"
        rows.append(
            (
                f"**{scenario.title}**",
                f"{across.runs} runs",
                told,
                f"{across.requests}",
                _number(across.median),
                _number(across.mean),
                _number(across.p99),
            )
        )
    return rows


def _token_rows(scenarios: Sequence[ScenarioView]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("scenario", "prompt", "L0", "L1", "L2", "recomputed", "can come back", "share")]
    for scenario in scenarios:
        t = scenario.tokens
        share = "–" if t.share is None else f"{t.share * 100:.1f} %"
        counts = ["unknown" if c is None else f"{c:,}" for c in (t.prompt, t.l0, t.l1, t.l2, t.recomputed)]
        rows.append((scenario.title, *counts, "–" if t.reachable is None else f"{t.reachable:,}", share))
    return rows


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    divider = ["---"] * len(head)
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, divider, *body)
    )


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _short(value: object) -> str:
    text = "not told" if value is None else json.dumps(value) if isinstance(value, dict | list) else str(value)
    return text if len(text) <= 120 else text[:117] + "…"
