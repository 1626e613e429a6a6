"""Published tables, as they were printed. Not measured here: nothing in this file is a claim of ours.

Each reference keeps what its report tells and, as open questions, what it does not. Units stay as printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

LABEL: Final = "published, not measured here"


@dataclass(frozen=True)
class Source:
    """Where a table comes from. What is None is not known, and `note` says why."""

    title: str | None
    date: str | None
    note: str


@dataclass(frozen=True)
class Table:
    """One table as printed."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Metric:
    """One published number that a run of mine can stand beside. `reading` names how it is read from a result.

    `published` None: printed only in words (`text`), or not at all.
    """

    reading: str
    name: str
    unit: str
    published: float | None
    text: str
    statistic: str = ""


@dataclass(frozen=True)
class Variant:
    """One way to repeat an experiment: `fields` of the request for "exact"; `needs` are fields that must be given.

    `scaling`: which sizes "scaled" takes from the operator's own servers (two_pass, rate, or none).
    """

    id: str
    title: str
    fields: Mapping[str, Any]
    metrics: tuple[Metric, ...]
    scaling: str = "none"
    needs: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    untested: str | None = None


@dataclass(frozen=True)
class Reference:
    """One published experiment."""

    id: str
    title: str
    question: str
    source: Source
    versions: str
    hardware: str
    settings: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    open_questions: tuple[str, ...]
    variants: tuple[Variant, ...]
    confounds: tuple[str, ...] = ()


#: What the A/B report printed for its workload.
AB_CONTEXTS, AB_TOKENS, AB_CHUNK = 665, 8000, 2144
AB_WATERMARK, AB_EVICTION_RATIO = 0.80, 0.99
#: A cyclic pass over more than the GPU cache holds finds nothing left in it; 1.5 times leaves a margin.
SCALED_WORKING_SET: Final = 1.5
RATE_PROMPTS, RATE = 1024, 16.0

_UNNAMED = Source(None, None, "The report reached this panel as numbers, without its title and date.")
_BACKENDS_SOURCE = Source(
    "使用 lmcache 能显著改善模型推理的 TTFT",
    None,
    "Probable source, matched by its set-up (memory, disk and Redis behind LMCache in the engine's process, chunk "
    "256); its result tables and its date were not read when this was entered.",
)
_ONE_REPORT = "not told to this panel"

_AB_SETTINGS: Final = (
    ("workload", "665 contexts of 8,000 tokens, two passes, one request at a time, three repeats"),
    ("LMCache chunk size", "2,144 tokens: at most 6,432 of 8,000 tokens can come back"),
    ("L1 trigger watermark", "0.80"),
    ("L1 eviction ratio", "0.99 (for the experiment only; the default is 0.2)"),
    ("between the passes", "5 s"),
    ("first run", "its own row, outside median and range"),
)
_AB_QUESTIONS: Final = (
    "Versions of vLLM and LMCache, model, dtype, hardware",
    "Sizes of the GPU cache (L0) and of L1: without them neither working set ÷ L0 nor L1 ÷ working set can be kept",
    "Whether stores were still in flight when pass 2 began: 5 s were waited, nothing was checked",
    "How many tokens came from L1, from L2 and from the GPU cache",
    "Output tokens per request, and whether other flags than the connector differed",
)

REFERENCES: Final[tuple[Reference, ...]] = (
    Reference(
        id="ab",
        title="A/B over two passes: 1.95 times lower TTFT",
        question="How much sooner does the first token come when a long workload is asked a second time?",
        source=_UNNAMED,
        versions=_ONE_REPORT,
        hardware=_ONE_REPORT,
        settings=_AB_SETTINGS,
        tables=(
            Table(
                "Time to first token in pass 2, ms",
                ("", "A: engine alone", "B: with LMCache"),
                (
                    ("first run", "1,461.6", "743.0"),
                    ("median of three runs", "1,279.1", "655.2"),
                    ("range", "1,276–1,289", "653–656"),
                    ("A ÷ B", "", "1.95"),
                ),
            ),
        ),
        open_questions=_AB_QUESTIONS,
        variants=(
            Variant(
                id="ab",
                title="A/B",
                fields={
                    "form": "two_pass",
                    "shape": "repeat",
                    "contexts": AB_CONTEXTS,
                    "tokens": AB_TOKENS,
                    "repeats": 3,
                    "concurrency": 1,
                    "wait_seconds": 5.0,
                    "prefix_cache": "left",
                },
                metrics=(
                    Metric("a_median", "A: median over the runs", "ms", 1279.1, "1,279.1"),
                    Metric("b_median", "B: median over the runs", "ms", 655.2, "655.2"),
                    Metric("a_low", "A: lowest run", "ms", 1276.0, "1,276"),
                    Metric("a_high", "A: highest run", "ms", 1289.0, "1,289"),
                    Metric("b_low", "B: lowest run", "ms", 653.0, "653"),
                    Metric("b_high", "B: highest run", "ms", 656.0, "656"),
                    Metric("a_first", "A: first run", "ms", 1461.6, "1,461.6"),
                    Metric("b_first", "B: first run", "ms", 743.0, "743.0"),
                    Metric("speed_up", "A ÷ B", "times", 1.95, "1.95"),
                    Metric("reachable_share", "tokens that can come back", "of the prompt", 0.804, "6,432 of 8,000"),
                ),
                scaling="two_pass",
                needs={"baseline_engine_id": "scenario A: the same engine without the connector"},
            ),
            Variant(
                id="ab-object-groups",
                title="Separate object groups on and off",
                fields={
                    "form": "two_pass",
                    "shape": "repeat",
                    "contexts": AB_CONTEXTS,
                    "tokens": AB_TOKENS,
                    "repeats": 3,
                    "concurrency": 1,
                    "wait_seconds": 5.0,
                    "prefix_cache": "left",
                },
                metrics=(Metric("speed_up", "groups off ÷ groups on", "times", 1.0, "no difference"),),
                scaling="two_pass",
                needs={"baseline_engine_id": "the engine behind the server without --separate-object-groups"},
                note="B is the engine whose server runs with --separate-object-groups, A the one without. Published as "
                "“no difference”, without numbers.",
            ),
        ),
    ),
    Reference(
        id="cold-start",
        title="Cold start and restart: 8.51 s against 2.61 s",
        question="What are records on disk worth after a restart?",
        source=_UNNAMED,
        versions=_ONE_REPORT,
        hardware=_ONE_REPORT,
        settings=(("LMCache chunk size", "2,144 tokens"), ("requests", "not published")),
        tables=(
            Table("As printed, seconds", ("", "s"), (("cold start", "8.51"), ("after a restart with records", "2.61"))),
        ),
        open_questions=(
            "How many requests the times are of, and of which length",
            "Whether the times are of one first token, of a whole answer, or of all requests together",
            "The control: a restart with an empty store. Without it, what the restart alone changes is in the number",
            "Whether the cold start was the first after the model was loaded (kernels compiled, files not in memory)",
        ),
        variants=(
            Variant(
                id="cold-start",
                title="Cold start, restart with records, restart with an empty store",
                fields={"form": "restart", "shape": "repeat", "tokens": AB_TOKENS, "repeats": 1, "concurrency": 1},
                metrics=(
                    Metric("cold_total", "cold start, all requests", "s", 8.51, "8.51"),
                    Metric("records_total", "after a restart with records, all requests", "s", 2.61, "2.61"),
                    Metric("empty_total", "after a restart with an empty store (control)", "s", None, "not published"),
                ),
                scaling="tokens",
                needs={
                    "contexts": "the published experiment does not tell how many requests it made: give a number",
                    "restart": 'what is restarted and how, such as {"target": "both"} to do it by hand',
                },
                note="The control that was missing is part of it: the store is empty for prompts under new salts.",
            ),
        ),
    ),
    Reference(
        id="accumulation",
        title="Records pile up: 377 files and 32 GB after days",
        question="How many record files does a request leave on a store that does not evict?",
        source=_UNNAMED,
        versions=_ONE_REPORT,
        hardware=_ONE_REPORT,
        settings=(
            ("store", "a file adapter that does not evict"),
            ("workload of the second number", "25 cold requests of 8,000 tokens, chunk 2,144"),
        ),
        tables=(
            Table(
                "As printed",
                ("", "files", "size"),
                (("left after days", "377", "32 GB"), ("per cold request, over 25", "about 3", "")),
            ),
        ),
        open_questions=(
            "Whether GB means 10⁹ or 2³⁰ bytes",
            "Number of object groups and ranks: ⌊8,000 ÷ 2,144⌋ × groups × ranks = 3 × groups × ranks are expected, so "
            "about three files means one group and one rank, or that some were not stored",
            "Which traffic left the 377 files",
        ),
        variants=(
            Variant(
                id="accumulation",
                title="Files per cold request",
                fields={
                    "form": "accumulation",
                    "shape": "repeat",
                    "contexts": 25,
                    "tokens": AB_TOKENS,
                    "concurrency": 1,
                },
                metrics=(
                    Metric("files_per_request", "record files per cold request", "files", 3.0, "about 3"),
                    Metric("expected_files", "expected of the layout", "files", None, "3 × groups × ranks"),
                ),
                scaling="tokens",
            ),
        ),
    ),
    Reference(
        id="backends",
        title="Four backends: 47, 38, 25 and 3 % lower mean TTFT",
        question="How much sooner does the first token come in a second run, by where the cache lies?",
        source=_BACKENDS_SOURCE,
        versions="probably the image lmcache/vllm-openai:v0.3.6 for the cached ones (LMCache inside the engine)",
        hardware="probably one NVIDIA A100-SXM4-80GB, Qwen2.5-7B-Instruct",
        settings=(
            ("workload", "1,024 prompts at 16 requests per second, asked twice"),
            ("LMCache chunk size", "256 tokens"),
            ("figures", "mean TTFT of the first and the second run, reduction in percent"),
        ),
        tables=(
            Table(
                "Mean time to first token, ms",
                ("backend", "first run", "second run", "reduction"),
                (
                    ("memory", "62.06", "32.65", "47 %"),
                    ("disk", "63.79", "39.40", "38 %"),
                    ("Redis", "67.79", "50.34", "25 %"),
                    ("none", "61.55", "59.70", "3 %"),
                ),
            ),
        ),
        open_questions=(
            "Prompts and their lengths: the workload per request is not told to this panel",
            "The engine's own prefix cache: on, off, or emptied between the runs",
            "Repeats: one pair of runs each has no range",
            "Medians and 99th percentiles are printed in the report and were not handed on",
        ),
        confounds=(
            "The run without a cache used another image than the cached ones",
            "The engines' flags differed between the backends",
            "In the first run the cached backends are up to 10 % slower than none (61.55 ms): what filling costs",
        ),
        variants=tuple(
            Variant(
                id=f"backends-{key}",
                title=title,
                fields={
                    "form": "request_rate",
                    "shape": "repeat",
                    "prompts": RATE_PROMPTS,
                    "rate": RATE,
                    "repeats": 1,
                    "noise_repeat": False,
                },
                metrics=(
                    Metric("b_first_run", "first run", "ms", first, f"{first:.2f}", "mean"),
                    Metric("b_second_run", "second run", "ms", second, f"{second:.2f}", "mean"),
                    Metric("b_reduction", "reduction", "%", percent, f"{percent:.0f} %", "mean"),
                    Metric(
                        "first_run_cost",
                        "first-run cost against none",
                        "%",
                        cost,
                        f"{cost:+.1f} %, from the printed means",
                        "mean",
                    )
                    if key != "none"
                    else Metric(
                        "b_first_run", "first run (the others' yardstick)", "ms", first, f"{first:.2f}", "mean"
                    ),
                ),
                scaling="rate",
                needs={"tokens": "the published prompts are not known here: give their length, or prompts of your own"},
                untested=None
                if key == "none"
                else "LMCache inside the engine's process needs a GPU host: untested until run there. Through the "
                "multi-process server the same question is asked of another set-up.",
            )
            for key, title, first, second, percent, cost in (
                ("memory", "Memory", 62.06, 32.65, 47.0, (62.06 / 61.55 - 1) * 100),
                ("disk", "Disk", 63.79, 39.40, 38.0, (63.79 / 61.55 - 1) * 100),
                ("redis", "Redis", 67.79, 50.34, 25.0, (67.79 / 61.55 - 1) * 100),
                ("none", "None", 61.55, 59.70, 3.0, 0.0),
            )
        ),
    ),
)

VARIANTS: Final[dict[str, Variant]] = {v.id: v for reference in REFERENCES for v in reference.variants}
