"""Published tables stay as printed; scaling keeps what is published; ratios are arithmetic and no judgement."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from app.benchmark.chart import strip_svg
from app.benchmark.experiments import _READINGS, Mine, size
from app.benchmark.references import LABEL, REFERENCES, VARIANTS
from app.errors import InvalidInput, NotFound
from tests.unit.benchmark.conftest import Panel, PanelMaker, with_and_without

SMALL = Mine(
    chunk_size=64,
    l0_tokens=4096,
    l1_bytes=268_435_456,
    bytes_per_token=512,
    max_model_len=4096,
    trigger_watermark=0.8,
    eviction_ratio=0.2,
)


def printed() -> str:
    return " ".join(cell for r in REFERENCES for t in r.tables for row in t.rows for cell in row)


def test_every_published_number_stands_as_it_was_printed() -> None:
    text = printed()
    for number in (
        *("1,279.1", "655.2", "1,276–1,289", "653–656", "1,461.6", "743.0", "1.95"),
        *("8.51", "2.61", "377", "32 GB", "about 3"),
        *("62.06", "32.65", "63.79", "39.40", "67.79", "50.34", "61.55", "59.70", "47 %", "38 %", "25 %", "3 %"),
    ):
        assert number in text, number
    settings = " ".join(value for r in REFERENCES for _, value in r.settings)
    for number in ("665", "8,000", "0.80", "0.99", "5 s", "2,144", "6,432", "1,024", "16 requests per second", "256"):
        assert number in settings, number
    assert "experiment only" in settings


def test_references_say_what_they_do_not_tell() -> None:
    for reference in REFERENCES:
        assert reference.open_questions
        assert reference.source.title is not None or reference.source.note
        assert reference.source.date is not None or reference.source.note
    cold = next(r for r in REFERENCES if r.id == "cold-start")
    assert any("requests" in q for q in cold.open_questions)
    assert any("empty store" in q for q in cold.open_questions)
    backends = next(r for r in REFERENCES if r.id == "backends")
    assert any("image" in c for c in backends.confounds)
    assert any("flags" in c for c in backends.confounds)


def test_every_metric_can_be_read_and_ids_are_unique() -> None:
    ids = [v.id for r in REFERENCES for v in r.variants]
    assert len(ids) == len(set(ids)) == len(VARIANTS) == 8
    assert {m.reading for v in VARIANTS.values() for m in v.metrics} <= set(_READINGS)


def test_in_process_backends_are_marked_untested() -> None:
    for name in ("memory", "disk", "redis"):
        assert "untested" in (VARIANTS[f"backends-{name}"].untested or "")
    assert VARIANTS["backends-none"].untested is None


def test_exact_keeps_the_printed_sizes_and_says_that_they_do_not_fit() -> None:
    found = size(VARIANTS["ab"], "exact", SMALL)
    assert (found.fields["contexts"], found.fields["tokens"], found.fields["repeats"]) == (665, 8000, 3)
    assert found.fields["wait_seconds"] == 5.0
    assert any("4,096" in w for w in found.warnings)


def test_scaled_keeps_tokens_per_chunk_and_exceeds_l0() -> None:
    found = size(VARIANTS["ab"], "scaled", SMALL)
    tokens, contexts = found.fields["tokens"], found.fields["contexts"]
    assert tokens / 64 == pytest.approx(8000 / 2144, rel=0.01)
    # The same part of a prompt can come back: 3 of 3.73 chunks.
    assert tokens // 64 == 8000 // 2144 == 3
    assert tokens * contexts > 1.4 * 4096
    kept = {k.name: k for k in found.kept}
    assert kept["tokens ÷ chunk"].kept
    assert not kept["working set ÷ L0"].kept
    assert kept["working set ÷ L0"].published is None
    assert kept["L1 ÷ working set"].mine is not None
    # Flags of the server that no request can set: published, and what is in force here.
    watermark, ratio = kept["L1 trigger watermark"], kept["L1 eviction ratio"]
    assert (watermark.published, watermark.mine, watermark.kept) == (0.80, 0.80, True)
    assert (ratio.published, ratio.mine, ratio.kept) == (0.99, 0.2, False)
    assert "experiment only" in ratio.note


def test_scaling_without_knowledge_keeps_the_printed_sizes_and_says_so() -> None:
    found = size(VARIANTS["ab"], "scaled", Mine())
    assert (found.fields["contexts"], found.fields["tokens"]) == (665, 8000)
    assert len(found.warnings) == 2


# --- over the sandbox


def run_scaled(panel: Panel, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Any:
    mine = Mine(chunk_size=64, l0_tokens=600, l1_bytes=268_435_456, bytes_per_token=512, max_model_len=4096)
    monkeypatch.setattr("app.benchmark.experiments.mine_of", lambda fleet, engine: mine)
    monkeypatch.setattr("app.benchmark.service.mine_of", lambda fleet, engine: mine)
    return panel.run(**fields)


def test_a_scaled_run_stands_beside_the_published_numbers(
    make_panel: PanelMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = make_panel()
    run = run_scaled(panel, monkeypatch, experiment="accumulation", contexts=2, output_tokens=2)
    assert run.verdict == "valid", run.findings
    assert (run.experiment, run.experiment_mode) == ("accumulation", "scaled")
    assert run.request["tokens"] == 239
    assert run.request["contexts"] == 25  # the printed number of requests
    assert run.result is not None
    assert run.result.files is not None
    assert run.result.files.expected_per_request == 3
    assert run.result.files.files_per_request == 3.0
    shown = panel.service.experiment("accumulation", engine_id=int(panel.engines[0]))
    assert shown.label == LABEL == "published, not measured here"
    variant = shown.variants[0]
    assert variant.run_id == run.id
    assert run.scope is not None
    assert variant.run_scope == run.scope.sentence
    assert variant.run_finished_at == run.finished_at
    row = variant.rows[0]
    assert (row.published, row.published_text, row.mine, row.ratio) == (3.0, "about 3", 3.0, 1.0)
    assert [s.mode for s in variant.sized] == ["exact", "scaled"]


def test_without_a_run_nothing_stands_beside_them(panel: Panel) -> None:
    for experiment in panel.service.experiments():
        for variant in experiment.variants:
            assert variant.run_id is None
            assert all(row.mine is None and row.ratio is None for row in variant.rows)
            assert variant.sized == []


def test_another_statistic_than_the_printed_one_has_no_published_number(panel: Panel) -> None:
    rows = panel.service.experiment("backends", statistic="median").variants[0].rows
    assert all(r.published is None and r.ratio is None for r in rows)
    assert panel.service.experiment("backends-disk", statistic="mean").variants[1].rows[0].published == 63.79


def test_the_first_runs_cost_is_reckoned_against_the_run_without_a_cache(make_panel: PanelMaker) -> None:
    """By the statistic that was asked for, and only where both asked the same."""
    panel = make_panel(engines=with_and_without())
    asked: dict[str, Any] = {"experiment_mode": "scaled", "rate": 40.0, "output_tokens": 1}
    asked["texts"] = [f"{number} " + "a cache of prompts " * 10 for number in range(4)]
    alone = panel.run(engine_id=panel.engines[1], experiment="backends-none", **asked)
    cached = panel.run(experiment="backends-memory", **asked)
    assert (alone.verdict, cached.verdict) == ("valid", "valid"), (alone.findings, cached.findings)

    def first(run: Any, statistic: str) -> float:
        return next(x.first for x in run.result.reductions if (x.metric, x.statistic) == ("ttft", statistic))

    def cost(statistic: str) -> float | None:
        rows = panel.service.experiment("backends", statistic=statistic).variants[0].rows
        return next(row.mine for row in rows if row.name.startswith("first-run cost"))

    for statistic in ("mean", "median", "p99"):
        told = (first(cached, statistic) / first(alone, statistic) - 1) * 100
        assert cost(statistic) == pytest.approx(told)
    panel.run(engine_id=panel.engines[1], experiment="backends-none", **{**asked, "texts": asked["texts"][:3]})
    assert cost("mean") is None, "another workload is no yardstick"


def test_what_is_not_published_must_be_given(panel: Panel) -> None:
    with pytest.raises(InvalidInput, match="how many requests"):
        panel.service.start(_body(panel, experiment="cold-start", restart={"target": "engine"}), actor="t")
    with pytest.raises(InvalidInput, match="scenario A"):
        panel.service.start(_body(panel, experiment="ab"), actor="t")
    with pytest.raises(InvalidInput, match="is none of ab, "):
        panel.run(experiment="ba")
    with pytest.raises(InvalidInput, match="experiment_mode"):
        panel.run(experiment_mode="exact")
    with pytest.raises(NotFound):
        panel.service.experiment("nothing")


def _body(panel: Panel, **fields: Any) -> Any:
    from app.benchmark.schemas import BenchmarkInput

    return BenchmarkInput.model_validate({"engine_id": panel.engines[0], **fields})


# --- the chart


def test_the_chart_is_well_formed_and_escapes_names() -> None:
    strips = {
        ("a", 1, "second"): [(0, 10.0), (1, 12.0), (2, 11.0)],
        ("b", 1, "second"): [(0, 5.0), (1, 500.0)],
    }
    picture = strip_svg("run of <b>&", 'holds for "this" & that', strips)
    root = ElementTree.fromstring(picture)
    assert root.tag.endswith("svg")
    texts = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert "run of <b>&" in texts
    assert "11.0 ms" in texts
    assert picture.count("h.01") == 5
    assert strip_svg("empty", "", {}).endswith("</svg>\n")
