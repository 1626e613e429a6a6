"""What each page is given: one frozen dataclass a template. Fields are the API's own views wherever there is one.

docs/DESIGN_SYSTEM.md names the template of each. Templates are strict: a name that is not a field here is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.acceptance.schemas import LatestView
from app.alerts.fact_schemas import HitRatesView
from app.audit.service import AuditView
from app.cleanup.schemas import (
    ItemView,
    PlanView,
    PolicyView,
    PresetView,
    QuarantineJobView,
    QuarantineView,
    RunView,
)
from app.errors import FieldError
from app.fleet.schemas import EngineView, ServerView, StoreView
from app.records.schemas import (
    DistributionView,
    EpochsView,
    EpochView,
    GrowthPointView,
    HoldView,
    RecordDetail,
    RecordView,
    ScanView,
    StoreDirectoryView,
    SummaryView,
)
from app.records.traffic_schemas import TrafficView
from app.scheduling.schemas import FiringView, ScheduleView
from app.web.first_run import FirstStep
from app.web.forms import FormState
from app.web.growth import ClassLayers, Outlook
from app.web.models import (
    Attention,
    Crumb,
    EngineVerdict,
    Event,
    FlowPicture,
    Hop,
    Lane,
    NavItem,
    NextCleanup,
    PageContext,
    Pin,
    RateNow,
    Shell,
    SignedIn,
    StoreCard,
    Toast,
    Trend,
)
from app.web.outcomes import Outcome
from app.web.table_state import TableState

__all__ = [  # the parts are named here too, so that a page imports one module
    "Attention",
    "Crumb",
    "EngineVerdict",
    "Event",
    "FlowPicture",
    "Hop",
    "Lane",
    "NavItem",
    "NextCleanup",
    "PageContext",
    "Pin",
    "RateNow",
    "Shell",
    "SignedIn",
    "StoreCard",
    "Toast",
    "Trend",
]

# ---- overview ----


@dataclass(frozen=True)
class OverviewPage(PageContext):
    """overview.html"""

    attention: tuple[Attention, ...]
    flow: FlowPicture
    servers: Sequence[ServerView]
    engines: Sequence[EngineView]
    stores: Sequence[StoreCard]
    fullest_l1: ServerView | None
    tightest_store: StoreCard | None
    verdicts: Sequence[EngineVerdict]
    hit_rate: Trend
    hit_rate_now: RateNow
    l1_trend: Trend
    l1_evicted: float | None  # chunks a second, of `fullest_l1`
    next_cleanup: NextCleanup | None
    events: Sequence[Event]
    first_steps: Sequence[FirstStep] = ()
    # Labels by which servers and engines can be grouped, the one that was chosen, and its groups (title, members).
    group_keys: Sequence[str] = ()
    group: str = ""
    server_groups: Sequence[tuple[str, Sequence[ServerView]]] = ()
    engine_groups: Sequence[tuple[str, Sequence[EngineView]]] = ()


# ---- targets ----


@dataclass(frozen=True)
class ServersPage(PageContext):
    """servers.html"""

    servers: Sequence[ServerView]
    state: TableState
    next_page_token: str | None
    store_names: Mapping[str, str]
    labels: Sequence[tuple[str, int]] = ()  # KEY=VALUE, how many targets have it


@dataclass(frozen=True)
class ChartSpec:
    """One chart of a target: where its samples come from, and the sparkline drawn without a script."""

    title: str
    metric: str
    unit: str
    url: str
    trend: Trend
    tier: str = ""
    low: float | None = None
    high: float | None = None
    history: str = ""  # the page of all of it; "": there is none


@dataclass(frozen=True)
class ServerPage(PageContext):
    """server.html"""

    server: ServerView
    engines: Sequence[EngineView]
    stores: Sequence[StoreCard]
    charts_shown: Sequence[ChartSpec]
    load_charts: Sequence[ChartSpec]
    changes: Sequence[Event]
    flow: FlowPicture
    marks: Sequence[Event] = ()  # on the charts
    hit_rates: HitRatesView | None = None  # by model, salt and engine


@dataclass(frozen=True)
class EnginesPage(PageContext):
    """engines.html"""

    engines: Sequence[EngineView]
    state: TableState
    next_page_token: str | None
    server_names: Mapping[str, str]
    labels: Sequence[tuple[str, int]] = ()  # KEY=VALUE, how many targets have it


@dataclass(frozen=True)
class EnginePage(PageContext):
    """engine.html"""

    engine: EngineView
    server: ServerView | None
    latest: LatestView
    charts_shown: Sequence[ChartSpec]
    changes: Sequence[Event]
    form: FormState  # the facts entered by hand
    marks: Sequence[Event] = ()  # on the charts


# ---- records ----


@dataclass(frozen=True)
class StoresPage(PageContext):
    """stores.html"""

    stores: Sequence[StoreCard]
    server_names: Mapping[str, str]
    state: TableState
    labels: Sequence[tuple[str, int]] = ()  # KEY=VALUE, how many stores have it


@dataclass(frozen=True)
class StorePage(PageContext):
    """store.html: what is on it, its space, its layouts, its scans."""

    store: StoreView
    directory: StoreDirectoryView
    summary: SummaryView
    scans: Sequence[ScanView]
    active_scan: ScanView | None
    epochs: EpochsView
    growth: Sequence[GrowthPointView]
    server_names: Mapping[str, str]
    policies: Sequence[PolicyView]
    quarantined: QuarantineView | None
    form: FormState  # declare or adopt
    distribution: DistributionView | None  # None: never scanned
    traffic: TrafficView
    class_layers: ClassLayers
    outlook: Outlook


@dataclass(frozen=True)
class RecordsPage(PageContext):
    """records.html: the explorer of one store. `matching` is (records, bytes, exact), None while nothing is scanned."""

    store: StoreView
    summary: SummaryView
    records: Sequence[RecordView]
    state: TableState
    next_page_token: str | None
    matching: tuple[int, int, bool] | None
    form: FormState


@dataclass(frozen=True)
class RecordPage(PageContext):
    """record.html"""

    record: RecordDetail
    store: StoreView
    epoch: EpochView | None


@dataclass(frozen=True)
class RecordGonePage(PageContext):
    """record_gone.html: the number of a record that a scan found gone."""

    record_id: str
    store: StoreView


# ---- cleanup ----


@dataclass(frozen=True)
class CleanupPage(PageContext):
    """cleanup.html: policies and the latest runs and plans."""

    policies: Sequence[PolicyView]
    presets: Sequence[PresetView]
    runs: Sequence[RunView]
    plans: Sequence[PlanView]
    stores: Sequence[StoreView]


@dataclass(frozen=True)
class PolicyPage(PageContext):
    """policy.html: one policy with its plans and runs; `paused` is (when, by whom) where the trail knows it."""

    policy: PolicyView
    plans: Sequence[PlanView]
    runs: Sequence[RunView]
    paused: tuple[str, str] | None = None


@dataclass(frozen=True)
class PolicyFormPage(PageContext):
    """policy_form.html: new (from a preset) or edit."""

    policy: PolicyView | None
    form: FormState
    stores: Sequence[StoreView]
    presets: Sequence[PresetView]
    preset: str


@dataclass(frozen=True)
class PlanPage(PageContext):
    """plan.html; `takes_derived`: the plan's policy also takes what is computed behind wrong records."""

    plan: PlanView
    records: Sequence[ItemView]
    state: TableState
    next_page_token: str | None
    takes_derived: bool = False


@dataclass(frozen=True)
class RunPage(PageContext):
    """cleanup_run.html"""

    run: RunView
    records: Sequence[ItemView]
    state: TableState
    next_page_token: str | None
    jobs: Sequence[QuarantineJobView]
    form: FormState
    # The hit rate of each server of the store around the run, and the run itself as a mark on it.
    around: Sequence[ChartSpec] = ()
    marks: Sequence[Event] = ()
    # What the form for some of the run's records offers, as (value, title).
    some_classes: Sequence[tuple[str, str]] = ()
    some_reasons: Sequence[tuple[str, str]] = ()
    outcomes: Sequence[Outcome] = ()


@dataclass(frozen=True)
class QuarantinePage(PageContext):
    """quarantine.html"""

    store: StoreView
    quarantine: QuarantineView
    state: TableState
    summary: SummaryView
    holds: Sequence[HoldView]
    more_holds: bool
    releasable: bool  # some hold is not a canary's


# ---- activity, alarms, schedules ----


@dataclass(frozen=True)
class ActivityPage(PageContext):
    """activity.html: what happened, and who did what."""

    view: str  # events | audit
    events: Sequence[Event]
    audit: Sequence[AuditView]
    state: TableState
    next_page_token: str | None


@dataclass(frozen=True)
class ScheduleRow:
    """A schedule with the name of what it runs on. `on_layout_change`: a policy that runs then, too."""

    schedule: ScheduleView
    target_name: str
    target_path: str
    on_layout_change: bool = False


@dataclass(frozen=True)
class FiringRow:
    """A firing with the name of its schedule."""

    firing: FiringView
    name: str


@dataclass(frozen=True)
class SchedulesPage(PageContext):
    """schedules.html"""

    schedules: Sequence[ScheduleRow]
    firings: Sequence[FiringRow]
    form: FormState
    targets: Sequence[tuple[str, str]]  # ("scan:3", "scan of nvme-a")
    on_change: Sequence[PolicyView] = ()  # policies that only a change of layout starts


# ---- frame pages ----


@dataclass(frozen=True)
class LoginPage(PageContext):
    """login.html"""

    form: FormState
    next: str


@dataclass(frozen=True)
class ErrorPage(PageContext):
    """error.html"""

    status: int
    title: str
    detail: str
    errors: Sequence[FieldError] = field(default_factory=tuple)
