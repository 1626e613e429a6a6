"""The table that `vllm bench serve` prints, of our own numbers, line by line in its form. Pure.

Lines whose number we do not have (peak token throughput) are left out, never filled with something else.
"""

from __future__ import annotations

from app.benchmark.schemas import BenchmarkRunView, PhaseView, ScenarioView, SpreadView

_WIDTH = 50


def serve_tables(run: BenchmarkRunView) -> str:
    """What the numbers hold for, then every phase of every scenario and run as one table under a line that names it."""
    if run.result is None:
        return "nothing was measured\n"
    parts = [f"Benchmark run {run.id} of {run.engine_name}: {run.verdict or run.state}\n"]
    if run.scope is not None:
        parts.append(run.scope.sentence + "\n")
    for scenario in run.result.scenarios:
        for repeat in scenario.runs:
            for phase in repeat.phases:
                aside = "" if repeat.measured else " (not measured)"
                name = f"{scenario.title}, run {repeat.repeat}{aside}, {phase.title}"
                parts.append(f"{name}\n{serve_table(run, scenario, phase)}")
    return "\n".join(parts)


def serve_table(run: BenchmarkRunView, scenario: ScenarioView, phase: PhaseView) -> str:
    """One phase."""
    rate = run.request.get("rate") if run.form == "request_rate" else None
    concurrency = run.request.get("concurrency") or (None if run.form == "request_rate" else 1)
    lines = [f"{' Serving Benchmark Result ':=^{_WIDTH}}"]
    lines.append(_whole("Successful requests:", phase.answered))
    lines.append(_whole("Failed requests:", phase.failed))
    if concurrency is not None:
        lines.append(_whole("Maximum request concurrency:", concurrency))
    if rate is not None:
        lines.append(_decimal("Request rate configured (RPS):", rate))
    lines.append(_decimal("Benchmark duration (s):", phase.seconds))
    lines.append(_whole("Total input tokens:", phase.input_tokens))
    lines.append(_whole("Total generated tokens:", phase.output_tokens))
    if phase.requests_per_second is not None and phase.output_tokens_per_second is not None:
        lines.append(_decimal("Request throughput (req/s):", phase.requests_per_second))
        lines.append(_decimal("Output token throughput (tok/s):", phase.output_tokens_per_second))
        lines.append(_decimal("Peak concurrent requests:", float(phase.peak_concurrency)))
        total = (phase.input_tokens + phase.output_tokens) / phase.seconds
        lines.append(_decimal("Total token throughput (tok/s):", total))
    lines += _metric("TTFT", "Time to First Token", phase.ttft_ms)
    lines += _metric("TPOT", "Time per Output Token (excl. 1st token)", phase.tpot_ms)
    lines += _metric("ITL", "Inter-token Latency", phase.itl_ms)
    lines.append("=" * _WIDTH)
    return "\n".join(lines) + "\n"


def _metric(name: str, header: str, values: SpreadView) -> list[str]:
    if values.mean is None or values.median is None or values.p99 is None:
        return []
    return [
        f"{header:-^{_WIDTH}}",
        _decimal(f"Mean {name} (ms):", values.mean),
        _decimal(f"Median {name} (ms):", values.median),
        _decimal(f"P99 {name} (ms):", values.p99),
    ]


def _whole(name: str, value: int) -> str:
    return f"{name:<40} {value:<10}"


def _decimal(name: str, value: float) -> str:
    return f"{name:<40} {value:<10.2f}"
