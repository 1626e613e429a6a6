"""Every page in every state: name -> (template, context). The tests render all of them; the preview shows them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from app.web import contexts as c
from app.web import overview
from tests.unit.web import samples as s

NAV = (
    c.NavItem("overview", "Overview", "/", "layout-dashboard", "o"),
    c.NavItem("servers", "Servers", "/servers", "server", "s"),
    c.NavItem("engines", "Engines", "/engines", "cpu", "e"),
    c.NavItem("stores", "Records", "/stores", "hard-drive", "r"),
    c.NavItem("cleanup", "Cleanup", "/cleanup", "brush-cleaning", "c"),
    c.NavItem("acceptance", "Acceptance", "/acceptance", "badge-check", "a"),
    c.NavItem("activity", "Activity", "/activity", "history", "h", 1, "bad", "new problems"),
    c.NavItem("schedules", "Schedules", "/schedules", "calendar-clock", "d"),
    c.NavItem("settings", "Settings", "/settings", "settings", ","),
)


def shell(current: str = "overview", path: str = "/", crumbs: tuple[c.Crumb, ...] = (), **over: Any) -> c.Shell:
    titles = {item.key: item for item in NAV}
    first = titles[current]
    trail = (c.Crumb(first.title, first.path if crumbs else ""), *crumbs)
    values: dict[str, Any] = dict(
        user=c.SignedIn("admin", "admin"),
        nav=NAV,
        current=current,
        crumbs=trail,
        path=path,
        base_url="http://127.0.0.1:8090",
        search=False,
        version="0.1.0",
    )
    return c.Shell(**(values | over))


def summary(**over: Any) -> Any:
    def count(records: int, size: int) -> Any:
        return SimpleNamespace(records=records, bytes=size)

    values = dict(
        records=103_377,
        bytes=1_640_000_000_000,
        by_class={
            "current": count(101_204, 1_510_000_000_000),
            "incompatible": count(1204, 38_000_000_000),
            "corrupt": count(37, 410_000_000),
            "temporary": count(3, 44_000_000),
            "unverified": count(918, 84_000_000_000),
            "foreign": count(11, 1_200_000),
        },
        growth_bytes_per_hour=7_400_000_000,
        full_in_hours=81.6,
        scanned_at=s.ago(640),
    )
    return SimpleNamespace(**(values | over))


def overview_full() -> c.OverviewPage:
    servers = [
        s.server("1", "lmc-a"),
        s.server("2", "lmc-b", state="degraded", usage=0.41, hit=0.62, engines=1),
        s.server("3", "lmc-c", state="unreachable", usage=None, hit=None, engines=None),
    ]
    engines = [s.engine("1", "qwen-1"), s.engine("2", "qwen-2"), s.engine("3", "llama-70b")]
    cards = [c.StoreCard(s.store("1", "nvme-a"), summary()), c.StoreCard(s.store("2", "nfs-1", known=False), None)]
    stale = s.latest("stale", run=s.run_view("9", at=30000), reason="dtype changed 14:02: bfloat16 to float16")
    verdicts = [
        c.EngineVerdict(engines[0], stale),
        c.EngineVerdict(engines[1], s.latest("fresh", run=s.run_view("8", engine_name="qwen-2"))),
        c.EngineVerdict(engines[2], s.latest("fresh", run=s.run_view("6", verdict="pass_with_near_ties", at=86000))),
    ]
    changes = [
        s.change("4", "lmc-b", "healthy", "degraded", "1 of 2 engines registered", 420),
        s.change("3", "lmc-c", "healthy", "unreachable", "connection refused at 10.0.3.17:8080", 3900),
    ]
    events = overview.newest(
        [
            *(overview.health_event(x) for x in changes),
            c.Event(
                s.ago(180),
                "layout",
                "warn",
                "qwen-1 restarted with another layout",
                "dtype bfloat16 to float16",
                "/engines/1",
            ),
            c.Event(
                s.ago(17900),
                "acceptance",
                "ok",
                "Acceptance of qwen-2: pass",
                "7 arms, 96 requests",
                "/acceptance/runs/8",
            ),
            c.Event(
                s.ago(43500),
                "cleanup",
                "ok",
                "Cleanup of nvme-a: done",
                "keep it safe · removed 311 records, 9.8 GB",
                "/cleanup/runs/41",
            ),
            c.Event(
                s.ago(86000), "acceptance", "ok", "Acceptance of llama-70b: pass, near ties", "", "/acceptance/runs/6"
            ),
        ],
        8,
    )
    hops = (
        c.Hop("recomputed → L1", "412 MB/s", "", "l1"),
        c.Hop("L1 → L2", "98 MB/s", "", "l2"),
        c.Hop("evicted from L1", "12 chunks/s", ""),
    )
    return c.OverviewPage(
        shell=shell(),
        attention=overview.attention(servers, engines, cards, verdicts),
        flow=overview.flow_picture(s.token_flow(), servers, engines, cards, hops),
        servers=servers,
        engines=engines,
        stores=cards,
        verdicts=verdicts,
        fullest_l1=overview.fullest_l1(servers),
        tightest_store=overview.tightest_store(cards),
        hit_rate=overview.trend(
            (),
            3600,
            events,
            s.NOW,
            [("l1", s.wave(base=0.41, swing=0.06, gap=20)), ("l2", s.wave(base=0.17, swing=0.03, gap=20))],
        ),
        hit_rate_now=0.583,
        hit_rate_reason="",
        next_cleanup=c.NextCleanup("1", "keep it safe", "nvme-a", s.ago(-43000), None),
        events=events,
    )


def overview_empty() -> c.OverviewPage:
    return c.OverviewPage(
        shell=shell(),
        attention=overview.attention([], [], [], []),
        flow=overview.flow_picture(s.token_flow("unknown"), [], [], []),
        servers=[],
        engines=[],
        stores=[],
        verdicts=[],
        fullest_l1=None,
        tightest_store=None,
        hit_rate=c.Trend((None,) * 60, 3600),
        hit_rate_now=None,
        hit_rate_reason="no traffic",
        next_cleanup=None,
        events=(),
    )


def all_pages() -> dict[str, tuple[str, c.PageContext]]:
    return {
        "overview": ("overview.html", overview_full()),
        "overview-empty": ("overview.html", overview_empty()),
    }
