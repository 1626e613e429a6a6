"""Shapes of the benchmark room towards the outside. Tokens are counts, times of tokens milliseconds, all else seconds.

A value that is not known is null; `findings`, `note` and `reason` say why.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from app.shapes import ApiModel, InputModel, LabelText, WorkView

Form = Literal["two_pass", "request_rate", "restart", "accumulation", "lookup"]
ShapeName = Literal["repeat", "one_document", "system_prompt", "multi_turn", "code_base", "use_once"]
PrefixCache = Literal["auto", "left", "reset", "off"]
VerdictName = Literal["valid", "invalid", "error"]
Severity = Literal["invalid", "error", "warning", "note"]
ScaleMode = Literal["exact", "scaled"]
Label = Annotated[LabelText, StringConstraints(max_length=300)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1_000_000)]

FORMS: tuple[Form, ...] = ("two_pass", "request_rate", "restart", "accumulation", "lookup")
SHAPES: tuple[ShapeName, ...] = (
    "repeat",
    "one_document",
    "system_prompt",
    "multi_turn",
    "code_base",
    "use_once",
)


class RestartInput(InputModel):
    """Form `restart`: what is restarted before each phase, and how. Without a hook the panel waits for somebody to."""

    target: Literal["engine", "server", "both"] = "both"
    hook_id: str | None = None
    wait_seconds: Annotated[float, Field(ge=1, le=86_400)] = 1800.0


class LookupInput(InputModel):
    """Form `lookup`: numbers of records at which lookups are timed.

    `allow_fill` lets the panel write that many empty record files (of its own salt) into the store, and take them away
    again.
    """

    records: Annotated[list[Annotated[int, Field(ge=1, le=2_000_000)]], Field(min_length=1, max_length=8)] = Field(
        default_factory=lambda: [1_000, 10_000]
    )
    lookups: Annotated[int, Field(ge=1, le=1000)] = 20
    allow_fill: bool = False


class BenchmarkInput(InputModel):
    """Body of POST /benchmark-runs.

    `engine_id` is scenario B. `baseline_engine_id` is scenario A: another engine, or the same one once more with its
    cache of no use (every pass under new salts). `reader_engine_ids`: engines of the same server that make pass 2.
    `prompts` and `rate` belong to the request-rate form, `contexts` and `tokens` to the others. `texts` are prompts of
    one's own (a ShareGPT-style file through the command line). `prefix_cache` is the engines' own: `left`, `reset`
    between the passes, `off` (checked), `auto` = reset where the engine can, else left.
    `experiment` names a published one; with `experiment_mode` its sizes are filled in.
    """

    engine_id: str
    baseline_engine_id: str | None = None
    reader_engine_ids: Annotated[list[str], Field(max_length=64)] = Field(default_factory=list)
    form: Form = "two_pass"
    shape: ShapeName = "repeat"
    contexts: Annotated[int, Field(ge=1, le=100_000)] = 12
    tokens: Annotated[int, Field(ge=8, le=2_000_000)] = 1000
    users: Annotated[int, Field(ge=1, le=1000)] = 4
    turns: Annotated[int, Field(ge=2, le=100)] = 4
    output_tokens: Annotated[int, Field(ge=1, le=4096)] = 16
    repeats: Annotated[int, Field(ge=1, le=50)] | None = None
    concurrency: Annotated[int, Field(ge=1, le=1024)] | None = None
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    prefix_cache: PrefixCache = "auto"
    empty_l1: bool = False
    noise_repeat: bool = True
    prompts: Annotated[int, Field(ge=1, le=100_000)] = 64
    rate: Annotated[float, Field(gt=0, le=10_000)] = 1.0
    seed: Annotated[int, Field(ge=0, le=2**31)] = 1
    texts: Annotated[list[Text], Field(min_length=1, max_length=20_000)] | None = None
    restart: RestartInput | None = None
    lookup: LookupInput | None = None
    hardware: Label | None = None
    image: Label | None = None
    baseline_hardware: Label | None = None
    baseline_image: Label | None = None
    remove_records: bool = True
    request_timeout_seconds: Annotated[float, Field(ge=0.1, le=3600)] = 300.0
    deadline_seconds: Annotated[float, Field(ge=1, le=7 * 86_400)] = 6 * 3600.0
    experiment: Annotated[str, StringConstraints(max_length=60)] | None = None
    experiment_mode: ScaleMode | None = None


class SpreadView(ApiModel):
    """One list of numbers."""

    count: int
    mean: float | None
    median: float | None
    p99: float | None
    std: float | None
    min: float | None
    max: float | None


class TokensView(ApiModel):
    """Prompt tokens by source. `reachable`: what could have come back; `share` of it that did (at most 1)."""

    prompt: int | None = None
    l0: int | None = None
    l1: int | None = None
    l2: int | None = None
    external: int | None = None
    recomputed: int | None = None
    reachable: int | None = None
    share: float | None = None
    source: str = "none"
    note: str | None = None


class StoredView(ApiModel):
    """Whether the server's stores had drained when the next pass began. `drained` null: the server does not tell."""

    drained: bool | None
    waited_seconds: float
    chunks_expected: int | None
    chunks_in_l2: int | None
    text: str


class PhaseView(ApiModel):
    """One pass: its requests' times, its tokens, and what was done before it."""

    name: str
    title: str
    requests: int
    answered: int
    failed: int
    seconds: float
    input_tokens: int
    output_tokens: int
    requests_per_second: float | None
    output_tokens_per_second: float | None
    peak_concurrency: int
    ttft_ms: SpreadView
    tpot_ms: SpreadView
    itl_ms: SpreadView
    e2el_ms: SpreadView
    tokens: TokensView
    stored: StoredView | None
    notes: list[str]


class RepeatView(ApiModel):
    """One run of a scenario. Run 0 is not `measured`: it stands beside median and range, not in them."""

    repeat: int
    measured: bool
    phases: list[PhaseView]


class AcrossView(ApiModel):
    """Over the measured runs: median and range of their medians; `mean` over all their requests."""

    median: float | None
    low: float | None
    high: float | None
    mean: float | None
    p99: float | None
    runs: int
    requests: int


class ScenarioView(ApiModel):
    """One scenario. `cache`: lmcache, none, or new_salts (a cache that cannot help)."""

    name: str
    title: str
    cache: Literal["lmcache", "none", "new_salts"]
    engine_names: list[str]
    server_name: str | None
    runs: list[RepeatView]
    ttft_ms: AcrossView
    first_run_ttft_ms: float | None
    tokens: TokensView


class SpeedUpView(ApiModel):
    """Median of A over median of B; the interval is what the ranges of both allow, `confidence` what it covers."""

    value: float
    low: float | None
    high: float | None
    confidence: float | None
    runs_a: int
    runs_b: int


class IntervalView(ApiModel):
    """A median with its interval."""

    median: float
    low: float
    high: float
    confidence: float


class NoiseView(ApiModel):
    """The A/A distance: how far one scenario's medians lie apart with nothing changed."""

    scenario: str
    relative: float
    absolute_ms: float
    runs: int
    repeated: int


class ReductionView(ApiModel):
    """One line of the request-rate table, milliseconds; `reduction` from first to second (0.47 = 47 %)."""

    scenario: str
    metric: Literal["ttft", "tpot", "itl"]
    statistic: Literal["mean", "median", "p99"]
    first: float | None
    second: float | None
    reduction: float | None


class DifferenceView(ApiModel):
    """One fact in which A and B differ; `connector`: meant to differ."""

    part: str
    field: str
    a: Any
    b: Any
    connector: bool


class ConclusionView(ApiModel):
    """What may be said. kind: gain, no_gain, slower, within_noise, undecided, none."""

    kind: Literal["gain", "no_gain", "slower", "within_noise", "undecided", "none"]
    text: str


class FilesView(ApiModel):
    """Form accumulation: record files that the run's cold requests left, against what the layout lets expect."""

    requests: int
    files: int
    bytes: int
    files_per_request: float | None
    expected_per_request: int | None
    expectation: str


class LookupPointView(ApiModel):
    """Form lookup: mean time of a lookup with so many records in the directory."""

    records: int
    lookups: int
    mean_ms: float | None
    ttft_median_ms: float | None
    source: str


class ResultView(ApiModel):
    """What was measured. `ttft_ms` and `tokens` are scenario B's in its measured pass."""

    ttft_ms: AcrossView | None
    tokens: TokensView | None
    scenarios: list[ScenarioView]
    speed_up: SpeedUpView | None
    paired_speed_up: IntervalView | None
    noise_floor: NoiseView | None
    reductions: list[ReductionView]
    first_run_cost: float | None
    differences: list[DifferenceView]
    only_the_connector: bool | None
    conclusion: ConclusionView
    files: FilesView | None
    lookups: list[LookupPointView]


class FindingView(ApiModel):
    """One thing found, with the way out."""

    code: str
    severity: Severity
    text: str
    fix: str


class ScopeView(ApiModel):
    """What the result holds for: one sentence, and the facts behind it."""

    sentence: str
    facts: dict[str, Any]


class BenchmarkRunView(WorkView):
    """One benchmark run. `verdict` null: not ended, or cancelled. The numbers of an invalid run prove nothing."""

    engine_id: str | None
    engine_name: str
    baseline_engine_id: str | None
    baseline_engine_name: str | None
    server_id: str | None
    server_name: str | None
    form: Form
    shape: ShapeName
    experiment: str | None
    experiment_mode: ScaleMode | None
    verdict: VerdictName | None
    headline: str | None
    reasons: list[str]
    findings: list[FindingView]
    stage: str
    salt_prefix: str
    duration_seconds: float | None
    request: dict[str, Any]
    snapshots: dict[str, Any]
    scope: ScopeView | None
    result: ResultView | None


class RequestView(ApiModel):
    """One request of a run. `itl_ms` holds every gap between two tokens."""

    id: str
    scenario: str
    repeat: int
    phase: str
    position: int
    key: str
    engine_name: str
    salt: str
    started_at: str
    offset_seconds: float
    planned_offset_seconds: float | None
    http_status: int | None
    error: str | None
    ttft_ms: float | None
    tpot_ms: float | None
    e2el_ms: float | None
    itl_ms: list[float]
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    reachable_tokens: int | None


class EstimateView(ApiModel):
    """What a run would take and disturb."""

    requests: int
    prompt_tokens: int
    working_set_tokens: int
    working_set_of_l0: float | None
    l1_of_working_set: float | None
    reachable_share: float | None
    bytes_written: int | None
    seconds: float | None
    disturbs: list[str]
    warnings: list[str]


class ComparedView(ApiModel):
    """One number of two runs; `ratio` = a ÷ b."""

    name: str
    unit: str
    a: float | None
    b: float | None
    ratio: float | None


class RunComparisonView(ApiModel):
    """Two ended runs side by side. Without a common scope the ratios say little: `differences` lists what differs."""

    a: BenchmarkRunView
    b: BenchmarkRunView
    speed_up: SpeedUpView | None
    rows: list[ComparedView]
    differences: list[DifferenceView]
    warnings: list[str]
