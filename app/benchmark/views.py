"""Rows as the API and the pages show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.benchmark import experiment_schemas as e
from app.benchmark import schemas as s
from app.benchmark.experiments import Mine, read, size
from app.benchmark.forms import SALT_PREFIX
from app.benchmark.references import LABEL, Reference, Variant
from app.benchmark.tables import BenchmarkRun, BenchmarkSample
from app.clock import iso
from app.shapes import Progress

#: The experiment whose run is the measure of what the first run of the others costs, and what both must have asked.
YARDSTICK = "backends-none"
_ASKED = ("prompts", "rate", "seed", "tokens", "texts", "shape", "output_tokens", "prefix_cache", "concurrency")


def run_view(row: BenchmarkRun) -> s.BenchmarkRunView:
    """One run."""
    findings = [s.FindingView(**f) for f in row.findings]
    ended = row.finished_at - row.started_at if row.finished_at and row.started_at else None
    # Thousands of own prompts would drown everything else; they are in the exports' requests by their keys.
    request = {k: v for k, v in row.request.items() if k != "texts"}
    if row.request.get("texts"):
        request["texts"] = len(row.request["texts"])
    return s.BenchmarkRunView(
        id=str(row.id),
        state=row.state,
        progress=Progress(done=row.progress_done, total=row.progress_total, unit=row.progress_unit or "requests"),
        error=row.error,
        created_at=iso(row.created_at) or "",
        started_at=iso(row.started_at),
        finished_at=iso(row.finished_at),
        requested_by=row.requested_by,
        engine_id=_id(row.engine_id),
        engine_name=row.engine_name,
        baseline_engine_id=_id(row.baseline_engine_id),
        baseline_engine_name=row.baseline_engine_name,
        server_id=_id(row.server_id),
        server_name=row.server_name,
        form=row.form,
        shape=row.shape,
        experiment=row.experiment,
        experiment_mode=row.experiment_mode,
        verdict=row.verdict,
        headline=row.headline,
        reasons=[f.text for f in findings if f.severity == row.verdict],
        findings=findings,
        stage=row.stage,
        salt_prefix=f"{SALT_PREFIX}{row.run_key}-",
        duration_seconds=ended,
        request=request,
        snapshots=row.snapshots,
        scope=None if row.scope is None else s.ScopeView(**row.scope),
        result=None if row.result is None else s.ResultView.model_validate(row.result),
    )


def _id(value: int | None) -> str | None:
    return None if value is None else str(value)


def request_view(row: BenchmarkSample) -> s.RequestView:
    """One request."""
    tokens = row.output_tokens
    tpot = None
    if row.latency_seconds is not None and row.ttft_seconds is not None and tokens is not None and tokens > 1:
        tpot = (row.latency_seconds - row.ttft_seconds) / (tokens - 1)
    return s.RequestView(
        id=str(row.id),
        scenario=row.scenario,
        repeat=row.repeat,
        phase=row.phase,
        position=row.position,
        key=row.key,
        engine_name=row.engine_name,
        salt=row.salt,
        started_at=iso(row.started_at) or "",
        offset_seconds=row.offset_seconds,
        planned_offset_seconds=row.planned_offset_seconds,
        http_status=row.http_status,
        error=row.error,
        ttft_ms=_ms(row.ttft_seconds),
        tpot_ms=_ms(tpot),
        e2el_ms=_ms(row.latency_seconds),
        itl_ms=[gap * 1000 for gap in row.itl_seconds],
        prompt_tokens=row.prompt_tokens,
        output_tokens=tokens,
        cached_tokens=row.cached_tokens,
        reachable_tokens=row.reachable_tokens,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def experiment_view(
    reference: Reference, runs: Mapping[str, s.BenchmarkRunView], mine: Mine | None, *, statistic: str = ""
) -> e.ExperimentView:
    """One published experiment; `runs` are the runs of mine by variant, `mine` the engine it would be run on."""
    return e.ExperimentView(
        id=reference.id,
        label=LABEL,
        title=reference.title,
        question=reference.question,
        source=e.SourceView(title=reference.source.title, date=reference.source.date, note=reference.source.note),
        versions=reference.versions,
        hardware=reference.hardware,
        settings=[e.SettingView(name=name, value=value) for name, value in reference.settings],
        tables=[
            e.TableView(title=t.title, columns=list(t.columns), rows=[list(r) for r in t.rows])
            for t in reference.tables
        ],
        open_questions=list(reference.open_questions),
        confounds=list(reference.confounds),
        variants=[_variant(v, runs.get(v.id), mine, statistic, runs.get(YARDSTICK)) for v in reference.variants],
    )


def _variant(
    variant: Variant,
    run: s.BenchmarkRunView | None,
    mine: Mine | None,
    statistic: str,
    none: s.BenchmarkRunView | None,
) -> e.VariantView:
    return e.VariantView(
        id=variant.id,
        title=variant.title,
        form=variant.fields["form"],
        needs=dict(variant.needs),
        note=variant.note,
        untested=variant.untested,
        run_id=run.id if run is not None else None,
        run_mode=run.experiment_mode if run is not None else None,
        run_scope=run.scope.sentence if run is not None and run.scope is not None else None,
        run_finished_at=run.finished_at if run is not None else None,
        rows=beside(variant, run, statistic, none),
        sized=[] if mine is None else [_sized(variant, mode, mine) for mode in ("exact", "scaled")],
    )


def beside(
    variant: Variant,
    run: s.BenchmarkRunView | None,
    statistic: str = "",
    none: s.BenchmarkRunView | None = None,
) -> list[e.BesideView]:
    """Published | mine | ratio. With another `statistic` than the printed one there is no published number.

    `none`: my run without a cache; it counts only where it asked what `run` asked.
    """
    rows: list[e.BesideView] = []
    alike = run is not None and none is not None and all(run.request.get(x) == none.request.get(x) for x in _ASKED)
    yardstick = none.result if alike and none is not None else None
    for metric in variant.metrics:
        value, ratio = read(metric, run.result if run is not None else None, statistic, yardstick)
        printed = not statistic or not metric.statistic or metric.statistic == statistic
        rows.append(
            e.BesideView(
                name=metric.name + (f" ({statistic or metric.statistic} TTFT)" if metric.statistic else ""),
                unit=metric.unit,
                published=metric.published if printed else None,
                published_text=metric.text if printed else "not handed on",
                mine=value,
                ratio=ratio,
            )
        )
    return rows


def _sized(variant: Variant, mode: str, mine: Mine) -> e.SizedView:
    found = size(variant, mode, mine)
    kept: Sequence[e.KeptView] = [
        e.KeptView(name=k.name, published=k.published, mine=k.mine, kept=k.kept, note=k.note) for k in found.kept
    ]
    return e.SizedView(mode=mode, fields=found.fields, kept=list(kept), warnings=list(found.warnings))
