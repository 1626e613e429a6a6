"""Shapes of the acceptance room towards the outside. Tokens are counts, times to first token milliseconds.

A value that is not known is null; `reasons` and `findings` say why it matters.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from app.shapes import ApiModel, InputModel, LabelText, WorkView

ArmName = Literal[
    "cold",
    "warm",
    "external_l1",
    "external_l2",
    "mixed",
    "shared_prefix",
    "changed_head",
    "restarted_server",
    "restarted_engine",
    "cross_engine",
    "without_cache",
]
ARM_NAMES: tuple[ArmName, ...] = (
    "cold",
    "warm",
    "external_l1",
    "external_l2",
    "mixed",
    "shared_prefix",
    "changed_head",
    "restarted_server",
    "restarted_engine",
    "cross_engine",
    "without_cache",
)
Profile = Literal["quick", "standard", "thorough"]
Mode = Literal["exact", "near_tie", "score"]
Scoring = Literal["exact", "contains", "regex", "number"]
VerdictName = Literal["pass", "pass_with_near_ties", "fail", "invalid", "error", "timeout"]

PromptText = Annotated[str, StringConstraints(min_length=1, max_length=4_000_000)]


class OwnPrompt(InputModel):
    """A prompt of the operator's. Without `expected` it is compared between arms but not scored."""

    prompt: PromptText
    name: Annotated[LabelText, StringConstraints(max_length=200)] | None = None
    expected: Annotated[str, StringConstraints(min_length=1, max_length=100_000)] | None = None
    score: Scoring | None = None
    max_tokens: Annotated[int, Field(ge=1, le=4096)] | None = None


class ToleranceInput(InputModel):
    """Fixed before the run (RULES.md E4). The floor of repeated colds can only widen `max_abs_nats`."""

    max_abs_nats: Annotated[float, Field(ge=0, le=10)] | None = None
    near_tie_gap_nats: Annotated[float, Field(ge=0, le=10)] | None = None
    min_external_share: Annotated[float, Field(gt=0, le=1)] | None = None
    max_score_drop: Annotated[float, Field(ge=0, le=1)] | None = None


class AcceptanceRequest(InputModel):
    """Body of POST /acceptance-runs. What is not given comes from the profile and from the model's layout."""

    engine_id: str
    second_engine_id: str | None = None
    arms: Annotated[list[ArmName], Field(min_length=1, max_length=11)] | None = None
    profile: Profile = "quick"
    prompts: Annotated[list[OwnPrompt], Field(min_length=1, max_length=1000)] | None = None
    api: Literal["completions", "chat"] = "completions"
    mode: Mode | None = None
    concurrency: Annotated[int, Field(ge=1, le=64)] = 1
    lengths: Annotated[list[Annotated[int, Field(ge=1, le=1_000_000)]], Field(max_length=1000)] = Field(
        default_factory=list
    )
    tolerance: ToleranceInput | None = None
    deadline_seconds: Annotated[float, Field(ge=1, le=86_400)] | None = None
    request_timeout_seconds: Annotated[float, Field(ge=0.1, le=3600)] | None = None
    remove_records: bool = True
    allow_clear_l1: bool = False
    restart_hook_id: str | None = None


class StepView(ApiModel):
    """One line of the live step list."""

    name: str
    title: str
    state: Literal["waiting", "running", "done", "failed", "skipped"]
    detail: str
    done: int
    total: int | None
    started_at: str | None
    finished_at: str | None


class FindingView(ApiModel):
    """One thing that decided or coloured the verdict: what was seen in plain words, and the way out."""

    code: str
    severity: Literal["fail", "timeout", "error", "invalid", "near_tie", "warning", "note"]
    arm: str | None
    text: str
    fix: str | None


class TtftView(ApiModel):
    """Time to first token on the client's clock, milliseconds, over the streamed requests of an arm."""

    count: int
    median: float | None
    mean: float | None
    p90: float | None
    p99: float | None
    min: float | None
    max: float | None
    reason: str | None = None


class SpeedupView(ApiModel):
    """Median of cold ÷ this arm over the same prompts, with the interval that order statistics give."""

    median: float | None
    low: float | None
    high: float | None
    confidence: float | None  # what the interval really covers; small samples cannot give 0.95
    pairs: int


class ScoreView(ApiModel):
    """Share of scored answers that are right; `metric` names the scoring rules used."""

    metric: str
    value: float | None
    scored: int


class LogprobView(ApiModel):
    """Log-probability differences over the common prefix of each pair, nats."""

    mean_abs_difference: float | None
    max_abs_difference: float | None
    compared_tokens: int
    top1_agreement: float | None


class SpreadView(ApiModel):
    """Lowest, mean and highest of some readings."""

    readings: int
    low: float
    mean: float
    high: float


class MomentView(ApiModel):
    """What an engine was busy with at one moment: requests, and the share of its KV cache in use (0-1)."""

    running: float | None
    waiting: float | None
    kv_cache_usage: float | None


class LoadView(ApiModel):
    """The engine's load while requests of an arm were in flight. Requests; `kv_usage` is a ratio 0-1.

    `running` and `waiting` count everybody's, `others` those that were not the run's. `before`: just before the arm.
    `reason` says why there is no reading.
    """

    readings: int
    running: SpreadView | None
    waiting: SpreadView | None
    kv_usage: SpreadView | None
    others: SpreadView | None
    before: MomentView | None
    reason: str | None = None


class ArmView(ApiModel):
    """One condition of the test. Shares are external ÷ expected, null when nothing was expected."""

    name: str
    title: str
    engine: str
    state: Literal["complete", "incomplete", "not_run"]
    requests: int
    failed_requests: int
    prompt_tokens: int | None
    local_tokens: int | None
    external_tokens: int | None
    expected_external_tokens: int | None
    external_share: float | None
    too_short_requests: int
    too_short_share: float | None
    l1_hit_tokens: int | None
    l2_hit_tokens: int | None
    evidence_source: str
    ttft_ms: TtftView
    speedup: SpeedupView | None
    score: ScoreView | None
    compared_to: str | None
    exact_matches: int
    near_ties: int
    flips: int
    refused: int
    logprob: LogprobView | None
    passed: bool | None
    load: LoadView | None = None  # null in runs of before it was noted


class CandidateView(ApiModel):
    """One candidate of a top-k list. `text` is null where the engine did not tell it."""

    token: str
    text: str | None = None
    logprob: float


class DivergenceView(ApiModel):
    """The first place where two answers differ."""

    position: int
    token_a: str | None
    token_b: str | None
    text_a: str | None = None
    text_b: str | None = None
    top_a: list[CandidateView]
    top_b: list[CandidateView]
    gap_nats: float | None


class PairView(ApiModel):
    """One prompt's two answers. Only what is not exact is listed."""

    prompt: str
    outcome: Literal["exact", "near_tie", "flip", "drift", "refused", "missing"]
    reason: str
    first_divergence: DivergenceView | None
    mean_abs_difference: float | None
    max_abs_difference: float | None
    text_a: str | None = None
    text_b: str | None = None


class ScorePairsView(ApiModel):
    """Paired task scores and the two-sided exact test over the discordant pairs."""

    right_right: int
    right_wrong: int
    wrong_right: int
    wrong_wrong: int
    p_value: float | None


class ComparisonView(ApiModel):
    """One arm against its reference."""

    arm: str
    reference: str
    pairs: int
    exact_matches: int
    near_ties: int
    flips: int
    drifts: int
    refused: int
    missing: int
    compared_tokens: int
    mean_abs_difference: float | None
    max_abs_difference: float | None
    top1_agreement: float | None
    score_pairs: ScorePairsView | None
    divergences: list[PairView]
    divergences_left_off: int


class AcceptanceRunView(WorkView):
    """One acceptance run. `verdict` is null until the run has ended with one; a cancelled run has none."""

    engine_id: str | None
    engine_name: str
    server_id: str | None
    server_name: str
    second_engine_id: str | None
    profile: str
    mode: str | None
    verdict: VerdictName | None
    headline: str | None
    reasons: list[str]
    findings: list[FindingView]
    steps: list[StepView]
    arms: list[ArmView]
    comparisons: list[ComparisonView]
    evidence: dict[str, Any]
    request: dict[str, Any]
    prompt_names: dict[str, str] = Field(default_factory=dict)  # own prompts by key, as their operator called them
    frozen: dict[str, Any]
    deadline_seconds: float
    duration_seconds: float | None
    waiting_for: str | None
    report_urls: dict[str, str]


class EstimateView(ApiModel):
    """What a run would take and disturb, for the start form. Of `requests`, `compared` stand in its table of
    conditions; the others warm up, prove that caches were emptied, repeat prompts, and ask some with other text in
    them."""

    arms: list[str]
    prompts: int
    requests: int
    compared: int
    prompt_tokens: int
    answer_tokens: int  # at most
    stored_tokens: int  # whole chunks that are new to the cache
    l1_bytes: int | None  # what they take at most in L1, and on L2 until the run removes them
    l2_bytes: int | None
    l1_share: float | None  # of the server's L1
    bytes_reason: str | None = None  # why there are no bytes
    seconds: float | None
    seconds_from: str | None = None  # what `seconds` rests on; null where nothing told it
    seconds_reason: str | None = None  # why there are none
    deadline_seconds: float  # the most it can take
    disturbs: list[str]
    warnings: list[str]


class AnswerView(ApiModel):
    """One stored answer."""

    arm: str
    prompt: str
    repeat: int
    probe: bool
    salt: str
    http_status: int | None
    error: str | None
    ttft_ms: float | None
    total_ms: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    local_tokens: int | None
    external_tokens: int | None
    expected_external_tokens: int | None
    evidence_source: str
    score: float | None
    text: str
    token_ids: list[int]


class RunDifferenceView(ApiModel):
    """One frozen fact that differs between two runs (or between a run and now). `name` is `field` in words."""

    field: str
    name: str
    a: Any
    b: Any


class RunComparisonView(ApiModel):
    """Two runs side by side."""

    a: AcceptanceRunView
    b: AcceptanceRunView
    same_prompts: bool
    differences: list[RunDifferenceView]
    arms: list[dict[str, Any]]  # {name, a: ArmView|null, b: ArmView|null, ttft_median_change, score_change}
    comparisons: list[ComparisonView]  # answers of the same prompts, run b against run a, arm by arm


class LatestView(ApiModel):
    """The last run, the last pass and the last run that proved anything of one engine, and what changed since the pass.

    `last_verdict` passed or failed: a later run without such a verdict (invalid, error, timeout) proves nothing either
    way and leaves it in force; `without_verdict` counts those.
    """

    engine_id: str
    state: Literal["never", "fresh", "stale", "unknown"]
    reason: str
    last_run: AcceptanceRunView | None
    last_pass: AcceptanceRunView | None
    last_verdict: AcceptanceRunView | None = None
    without_verdict: int = 0
    changed: list[RunDifferenceView]
