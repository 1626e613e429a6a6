"""The parts that page contexts are made of: the frame, and what the overview and its pictures draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.acceptance.canary_schemas import CanaryStanding
from app.acceptance.schemas import LatestView
from app.cleanup.schemas import RunBrief
from app.fleet.schemas import EngineView, StoreView
from app.records.schemas import SummaryView
from app.web.growth import Outlook

# ---- the frame ----


@dataclass(frozen=True)
class NavItem:
    """One entry of the side bar. `count` is shown when it is not 0; `kind` colours it."""

    key: str
    title: str
    path: str
    icon: str
    hotkey: str = ""
    count: int = 0
    kind: str = "none"
    count_means: str = ""


@dataclass(frozen=True)
class Crumb:
    """One step of the breadcrumb; the last one has no path."""

    title: str
    path: str = ""


@dataclass(frozen=True)
class Toast:
    """A message about what was just done. kind: ok, warn, bad, info."""

    kind: str
    text: str
    link_path: str = ""
    link_title: str = ""
    undo: str = ""  # the key under which it can be taken back


@dataclass(frozen=True)
class SignedIn:
    """Who looks at the page."""

    name: str
    role: str

    def may(self, role: str) -> bool:
        """Whether the role suffices."""
        order = ("viewer", "operator", "admin")
        return order.index(self.role) >= order.index(role)


@dataclass(frozen=True)
class Shell:
    """The frame of every page. `path` is the page's own address (without the prefix), which live parts ask again."""

    user: SignedIn | None
    nav: tuple[NavItem, ...]
    current: str
    crumbs: tuple[Crumb, ...]
    path: str
    base_url: str
    theme: str = "auto"
    toasts: tuple[Toast, ...] = ()
    poll_seconds: int = 5
    search: bool = False
    posted: str = ""  # the id of the form whose answer this page is: its address alone would not show it
    help: str = ""  # what docs/ says about this page, as an address of the panel
    version: str = ""


@dataclass(frozen=True)
class PageContext:
    """Base of all contexts."""

    shell: Shell


# ---- the overview ----


@dataclass(frozen=True)
class Attention:
    """Something that is wrong, in a sentence an operator understands, its evidence and the next action."""

    kind: str  # bad | warn | info | ok
    icon: str
    title: str
    detail: str
    action: str = ""
    path: str = ""
    since: str | None = None
    runbook: str = ""  # its way out, as an address of the panel


@dataclass(frozen=True)
class Lane:
    """One tier of the token picture: how much came from it, and how full it is."""

    tier: str
    note: str
    share: float | None
    tokens: int | None
    reason: str
    fill: float | None
    mark: float | None
    fill_text: str
    between: str = ""  # the bounds of a share that cannot be told


@dataclass(frozen=True)
class Hop:
    """One way of what is stored: recomputed to L1, L1 to L2, out of L1. `value` is how fast (None: not known, for
    `reason`), `moves` whether anything goes that way just now."""

    text: str
    value: str | None
    reason: str
    way: str  # asked | store | spill | evict
    moves: bool = False


@dataclass(frozen=True)
class FlowPicture:
    """The token picture as it is drawn. state: value, no_traffic, unknown."""

    state: str
    total_tokens: int | None
    seconds: float | None
    reason: str
    sentence: str
    shares: Mapping[str, float]
    lanes: tuple[Lane, ...]
    hops: tuple[Hop, ...]


@dataclass(frozen=True)
class Pin:
    """A moment marked on a line: percent of its width and a sentence; stands for `events` that lie close together."""

    x: float
    text: str
    kind: str = "none"  # the worst of them: bad | warn | info | ok | none
    what: str = ""
    events: int = 1


@dataclass(frozen=True)
class Event:
    """One thing that happened. `what` picks the icon, `kind` the colour."""

    at: str
    what: str
    kind: str
    text: str
    detail: str = ""
    path: str = ""


@dataclass(frozen=True)
class RateNow:
    """The hit rate of all servers together now; the shares of the tiers are None where a server does not tell them."""

    value: float | None
    reason: str = ""
    l1_share: float | None = None
    l2_share: float | None = None
    window_seconds: float | None = None  # the longest that one of them covers


@dataclass(frozen=True)
class Trend:
    """A number over time for a sparkline; equally spaced, None where nothing was known."""

    points: tuple[float | None, ...]
    seconds: float
    pins: tuple[Pin, ...] = ()
    layers: tuple[tuple[str, tuple[float | None, ...]], ...] = ()  # (tier, points), stacked; empty: one line


@dataclass(frozen=True)
class EngineVerdict:
    """How an engine's last acceptance and its canaries stand; `canaries` is None while none is kept."""

    engine: EngineView
    latest: LatestView
    canaries: CanaryStanding | None = None


@dataclass(frozen=True)
class StoreCard:
    """A store and what is on it."""

    store: StoreView
    summary: SummaryView
    outlook: Outlook = field(default_factory=lambda: Outlook(None))


@dataclass(frozen=True)
class NextCleanup:
    """When and what the next cleanup does, and how the last one went."""

    policy_id: str
    policy_name: str
    store_name: str
    at: str | None
    last: RunBrief | None
    on_layout_change: bool = False
    timezone: str = "UTC"
