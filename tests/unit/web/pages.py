"""Every page in every state: name -> (template, context). The tests render all of them; the preview shows them.

`odd` is put behind every name that comes from a server, a disk or a person: the tests pass hostile text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.acceptance.canary_schemas import CanaryStanding
from app.acceptance.told import evidence_lines, load_lines
from app.cleanup.schemas import SeenView
from app.errors import FieldError
from app.paths import DOCS
from app.records.schemas import StoreDirectoryView
from app.telemetry.schemas import SamplesView
from app.web import acceptance_contexts as ac
from app.web import contexts as c
from app.web import outcomes, overview
from app.web import settings_contexts as sc
from app.web.attention import attention
from app.web.first_run import first_steps
from app.web.forms import FormState
from app.web.growth import class_layers, outlook
from app.web.manual import read_manual
from app.web.pages.help import HelpPage
from app.web.pages.history import HistoryPage, Span
from app.web.style_page import style_page
from app.web.table_state import TableState
from tests.unit.web import acceptance_samples as a
from tests.unit.web import records_samples as k
from tests.unit.web import room_samples as r
from tests.unit.web import samples as s

Pages = dict[str, tuple[str, c.PageContext]]
MANUAL = tuple(read_manual(DOCS).values())

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
    c.NavItem("help", "Help", "/help", "book-open", "m"),
)
NONE = TableState()


def shell(current: str = "overview", path: str = "/", *crumbs: str, role: str = "admin", **over: Any) -> c.Shell:
    first = {item.key: item for item in NAV}[current]
    trail = (c.Crumb(first.title, first.path), *(c.Crumb(title, first.path) for title in crumbs))
    values: dict[str, Any] = {
        "user": c.SignedIn("admin", role),
        "nav": NAV,
        "current": current,
        "crumbs": trail,
        "path": path,
        "base_url": "http://127.0.0.1:8090",
        "version": "0.1.0",
        "help": f"/help/pages#{first.title.lower()}",
    }
    return c.Shell(**(values | over))


def state(*names: str, query: dict[str, str] | None = None) -> TableState:
    return TableState.parse(query or {}, names=names, orders=("name", "size_bytes", "modified_at", "accessed_at"))


HOPS = (
    c.Hop("looked up in L1 and L2", "1,127 tokens/s", "", "asked", True),
    c.Hop("stored", "412 MB/s", "", "store", True),
    c.Hop("written", "98 MB/s", "", "spill"),
    c.Hop("evicted from L1", None, "not counted yet", "evict"),
)


def _overview(odd: str) -> Pages:
    servers = [
        s.server("1", "lmc-a" + odd),
        s.server("2", "lmc-b" + odd, state="degraded", usage=0.41, hit=0.62, engines=1),
        s.server("3", "lmc-c" + odd, state="unreachable", usage=None, hit=None, engines=None),
    ]
    engines = [
        s.engine("1", "qwen-1" + odd),
        s.engine("2", "qwen-2" + odd),
        s.engine("3", "llama-70b" + odd, known=False),
    ]
    cards = [
        c.StoreCard(s.store("1", "nvme-a" + odd), k.summary(odd=odd), outlook(k.summary(odd=odd))),
        c.StoreCard(s.store("2", "nfs-1" + odd, known=False), k.summary(scanned=False)),
    ]
    stale = s.latest("stale", run=s.run_view("9", at=30000), reason="dtype changed 14:02: bfloat16 to float16" + odd)
    verdicts = [
        c.EngineVerdict(
            engines[0], stale, CanaryStanding(kept=3, outcomes={"ok": 1, "wrong": 2}, checked_at=s.ago(900))
        ),
        c.EngineVerdict(
            engines[1],
            s.latest("fresh", run=a.acceptance("8", engine_name="qwen-2" + odd)),
            CanaryStanding(kept=2, outcomes={"ok": 2}, checked_at=s.ago(90)),
        ),
        c.EngineVerdict(engines[2], s.latest("never")),
    ]
    changes = [
        s.change("4", "lmc-b" + odd, "healthy", "degraded", "1 of 2 engines registered", 420),
        s.change("3", "lmc-c" + odd, "healthy", "unreachable", "connection refused at 10.0.3.17:8080" + odd, 3900),
    ]
    events = overview.newest(
        [
            *(overview.health_event(x) for x in changes),
            *overview.layout_events(servers[:1]),
            overview.acceptance_event(a.acceptance("8", engine_name="qwen-2" + odd)),
            overview.cleanup_event(r.run(odd=odd)),
        ],
        8,
    )
    layers = [
        ("l1", s.wave(base=0.41, swing=0.06, gap=20)),
        ("l2", s.wave(base=0.17, swing=0.03, gap=20)),
    ]
    full = c.OverviewPage(
        shell=shell(toasts=(c.Toast("ok", "Policy saved", "/cleanup", "Look at it"),) if odd else ()),
        attention=attention(servers, engines, cards, verdicts, [r.episode(odd)]),
        flow=overview.flow_picture(s.token_flow(), servers, engines, cards, HOPS),
        servers=servers,
        engines=engines,
        stores=cards,
        fullest_l1=overview.fullest_l1(servers),
        tightest_store=overview.tightest_store(cards),
        verdicts=verdicts,
        hit_rate=overview.trend((), 3600, events, s.NOW, layers),
        hit_rate_now=c.RateNow(0.583, "", 0.412, 0.171),
        l1_trend=overview.trend(s.wave(base=0.74, swing=0.06, gap=20), 3600),
        l1_evicted=3.1,
        next_cleanup=c.NextCleanup(
            "1", "keep it safe" + odd, "nvme-a" + odd, s.ago(-43000), r.policy(odd=odd).last_run
        ),
        events=events,
    )
    zoned = [
        x.model_copy(update={"labels": {"zone": "b" + odd} if n else {"zone": "a"}}) for n, x in enumerate(servers)
    ]
    grouped = replace(
        full,
        group_keys=("zone",),
        group="zone",
        servers=zoned,
        server_groups=overview.groups(zoned, "zone"),
        engine_groups=overview.groups(engines, "zone"),
    )
    many = range(1, 41)
    fleet_engines = [s.engine(str(n), f"qwen-{n}{odd}") for n in many]
    fleet = replace(
        full,
        servers=[s.server(str(n), f"lmc-{n}{odd}", state="healthy" if n < 39 else "unreachable") for n in many],
        engines=fleet_engines,
        verdicts=[c.EngineVerdict(engine, s.latest("never")) for engine in fleet_engines],
    )
    calm_servers = [s.server("1", "lmc-a" + odd)]
    calm_engines = [s.engine("1", "qwen-1" + odd)]
    calm_cards = [c.StoreCard(s.store(), k.summary(clean=True))]
    calm_verdicts = [c.EngineVerdict(calm_engines[0], s.latest("fresh", run=a.acceptance()))]
    calm = c.OverviewPage(
        shell=shell(),
        attention=attention(calm_servers, calm_engines, calm_cards, calm_verdicts),
        flow=overview.flow_picture(s.token_flow("no_traffic"), calm_servers, calm_engines, calm_cards, ()),
        servers=calm_servers,
        engines=calm_engines,
        stores=calm_cards,
        fullest_l1=calm_servers[0],
        tightest_store=calm_cards[0],
        verdicts=calm_verdicts,
        hit_rate=overview.trend((), 3600, (), s.NOW, [("l1", (0.0,) * 60), ("l2", (0.0,) * 60)]),
        hit_rate_now=c.RateNow(0.0),
        l1_trend=overview.trend((None, 0.4, 0.5), 3600),
        l1_evicted=0.0,
        next_cleanup=c.NextCleanup("1", "two weeks" + odd, "nvme-a", None, None),
        events=events[:2],
    )
    begun = replace(
        calm,
        first_steps=first_steps(calm_servers, [], [c.StoreCard(s.store(), k.summary(clean=True))], []),
    )
    empty = c.OverviewPage(
        shell=shell(role="viewer"),
        attention=attention([], [], [], []),
        flow=overview.flow_picture(s.token_flow("unknown"), [], [], []),
        servers=[],
        engines=[],
        stores=[],
        fullest_l1=None,
        tightest_store=None,
        verdicts=[],
        hit_rate=c.Trend((), 3600),
        hit_rate_now=c.RateNow(None, "no traffic"),
        l1_trend=c.Trend((), 3600),
        l1_evicted=None,
        next_cleanup=None,
        events=(),
    )
    return {
        "overview": ("overview.html", full),
        "overview-grouped": ("overview.html", grouped),
        "overview-fleet": ("overview.html", fleet),
        "overview-calm": ("overview.html", calm),
        "overview-begun": ("overview.html", begun),
        "overview-empty": ("overview.html", empty),
    }


def _charts(kind: str, ident: str) -> list[c.ChartSpec]:
    def spec(
        title: str, metric: str, unit: str, tier: str, points: tuple[float | None, ...], high: float | None
    ) -> c.ChartSpec:
        url = f"/api/v1/{kind}s/{ident}/samples?metric={metric}"
        history = f"/{kind}s/{ident}/history?metric={metric}"
        return c.ChartSpec(title, metric, unit, url, c.Trend(points, 3600.0), tier, 0.0, high, history)

    return [
        spec("Hit rate", "hit_rate", "ratio", "", s.wave(gap=20), 1.0),
        spec("L1 used", "l1_used_bytes", "bytes", "l1", tuple((v or 0) * 2e10 for v in s.wave(dip=None)), None),
        spec("Written to L2", "l2_store_bytes_per_second", "bytes_per_second", "l2", (0.0,) * 60, None),
        spec("Up", "up", "bool", "", (None,) * 60, 1.0),
    ]


def _load_charts(odd: str) -> list[c.ChartSpec]:
    attached, disk = _charts("server", "1")[0], _charts("store", "1")[2]
    return [
        replace(attached, title="Engines attached", metric="engines_registered", unit="engines", high=None),
        replace(disk, title=f"nvme-a{odd}: Written to the disk", metric="disk_write_bytes_per_second"),
    ]


def _targets(odd: str) -> Pages:
    servers = [s.server("1", "lmc-a" + odd), s.server("3", "lmc-c" + odd, state="unreachable", usage=None, hit=None)]
    engines = [s.engine("1", "qwen-1" + odd), s.engine("3", "llama-70b" + odd, known=False, state="unreachable")]
    cards = [c.StoreCard(s.store("1", "nvme-a" + odd), k.summary(odd=odd))]
    events = [
        overview.health_event(s.change("5", "lmc-a" + odd, "degraded", "healthy", "both registered" + odd, 1200)),
        overview.health_event(s.change("4", "lmc-a" + odd, None, "healthy", "answers" + odd, 7420)),
    ]
    flow = overview.flow_picture(s.token_flow(), servers[:1], engines[:1], cards, HOPS)
    unknown = overview.flow_picture(s.token_flow("unknown"), [], [], [])
    facts = FormState.of({"dtype": "", "kv_cache_dtype": ""})
    pages: Pages = {
        "servers": ("servers.html", c.ServersPage(shell("servers", "/servers"), servers, state("health"), "abc", {})),
        "servers-none": (
            "servers.html",
            c.ServersPage(shell("servers", "/servers"), [], state("health", query={"health": "unhealthy"}), None, {}),
        ),
        "engines": (
            "engines.html",
            c.EnginesPage(shell("engines", "/engines"), engines, state("health", "label"), None, {}),
        ),
        "engines-none": (
            "engines.html",
            c.EnginesPage(shell("engines", "/engines"), [], state("health", "label"), None, {}),
        ),
    }
    warned = s.server("1", "lmc-a" + odd, warnings=["restarted inside the heartbeat: nothing registered" + odd])
    for name, shown, flown in [("server", warned, flow), ("server-down", servers[1], unknown)]:
        pages[name] = (
            "server.html",
            c.ServerPage(
                shell("servers", f"/servers/{shown.id}", shown.name),
                server=shown,
                engines=engines if name == "server" else [],
                stores=cards if name == "server" else [],
                charts_shown=_charts("server", shown.id) if name == "server" else [],
                load_charts=_load_charts(odd) if name == "server" else [],
                changes=events if name == "server" else [],
                flow=flown,
                marks=events if name == "server" else [],
                hit_rates=r.hit_rates(odd) if name == "server" else None,
            ),
        )
    for name, engine, latest in [
        (
            "engine",
            s.engine("1", "qwen-1" + odd, warnings=["no dev mode" + odd]),
            s.latest("fresh", run=a.acceptance()),
        ),
        ("engine-down", engines[1], s.latest("never")),
    ]:
        pages[name] = (
            "engine.html",
            c.EnginePage(
                shell("engines", f"/engines/{engine.id}", engine.name),
                engine=engine,
                server=servers[0] if name == "engine" else None,
                latest=latest,
                charts_shown=_charts("engine", engine.id)[:2],
                changes=events,
                form=facts if name == "engine" else facts.failed(r.invalid("dtype", "is not a dtype" + odd)),
            ),
        )
    return pages


def _records(odd: str) -> Pages:
    store = s.store("1", "nvme-a" + odd)
    head = ("stores", "/stores/1", store.name)
    names = ("class", "reason", "model", "salt", "q", "min_size", "older_than", "unused_for", "kv_rank", "epoch")
    form = FormState.of(dict.fromkeys(names, ""))
    epoch_form = FormState.of({"kind": "declare", "model_name": "", "effective_at": "", "reason": ""})
    cards = [
        c.StoreCard(store, k.summary(odd=odd), outlook(k.summary(odd=odd))),
        c.StoreCard(
            s.store("2", "nfs-1" + odd, usable=False, usable_reason="permission denied" + odd), k.summary(scanned=False)
        ),
    ]
    filtered = state(*names, query={"class": "incompatible", "q": odd or "3fa9", "order": "-size_bytes"})
    wrong = form.failed(r.invalid("older_than", "'2 weeks' is not an age; write 10m, 24h or 14d" + odd))

    def store_page(summary: Any, *, active: bool, bare: bool = False) -> c.StorePage:
        return c.StorePage(
            shell(*head),
            store=store,
            directory=StoreDirectoryView(state="not_known_yet", found="2049:12")
            if bare
            else StoreDirectoryView(state="another", known="2049:12", found="66:2", reason="now 66:2" + odd)
            if active
            else StoreDirectoryView(state="same", known="2049:12", found="2049:12"),
            summary=summary,
            scans=[] if bare else [k.scan(), k.scan("2", state="failed", error="Permission denied" + odd)],
            active_scan=k.scan("3", state="running") if active else None,
            epochs=k.epochs(odd, empty=bare),
            growth=[] if bare else k.growth(),
            server_names={"1": "lmc-a" + odd},
            policies=[],
            quarantined=None,
            form=epoch_form if not active else epoch_form.failed(r.invalid("effective_at", "not a time" + odd)),
            distribution=None if bare else k.distribution(odd, knows_use=not active),
            traffic=k.traffic(bare=bare, busy=not active),
            class_layers=class_layers([] if bare else k.growth()),
            outlook=outlook(summary),
        )

    return {
        "stores": (
            "stores.html",
            c.StoresPage(shell("stores", "/stores"), cards, {"1": "lmc-a"}, state("label"), [("zone=b" + odd, 2)]),
        ),
        "stores-none": ("stores.html", c.StoresPage(shell("stores", "/stores", role="viewer"), [], {}, state("label"))),
        "store": ("store.html", store_page(k.summary(odd=odd), active=False)),
        "store-scanning": ("store.html", store_page(k.summary(odd=odd), active=True)),
        "store-new": ("store.html", store_page(k.summary(scanned=False), active=False, bare=True)),
        "records": (
            "records.html",
            c.RecordsPage(
                shell(*head, "Records"),
                store,
                k.summary(odd=odd),
                k.records(odd),
                state(*names),
                "next",
                (103377, 10**12, True),
                form,
            ),
        ),
        "records-filtered": (
            "records.html",
            c.RecordsPage(
                shell(*head, "Records"),
                store,
                k.summary(),
                k.records(odd)[:2],
                filtered,
                None,
                (100000, 10**12, False),
                wrong,
            ),
        ),
        "records-wrong-filter": (
            "records.html",
            c.RecordsPage(shell(*head, "Records"), store, k.summary(), [], filtered, None, None, wrong),
        ),
        "records-none": (
            "records.html",
            c.RecordsPage(
                shell(*head, "Records"), store, k.summary(scanned=False), [], state(*names), None, None, form
            ),
        ),
        "record": (
            "record.html",
            c.RecordPage(shell(*head, "Record"), k.record_detail(odd), store, k.epochs(odd).items[0]),
        ),
        "record-bare": (
            "record.html",
            c.RecordPage(shell(*head, "Record", role="viewer"), k.record_detail(odd, bare=True), store, None),
        ),
        "record-gone": ("record_gone.html", c.RecordGonePage(shell(*head, "Gone"), "1099511631776", store)),
        "quarantine": (
            "quarantine.html",
            c.QuarantinePage(
                shell(*head, "Quarantine"), store, r.quarantine(odd), NONE, k.summary(), r.holds(odd), True, True
            ),
        ),
        "quarantine-none": (
            "quarantine.html",
            c.QuarantinePage(
                shell(*head, "Quarantine"), store, r.quarantine("", empty=True), NONE, k.summary(), [], False, False
            ),
        ),
    }


def _cleanup(odd: str) -> Pages:
    head = ("cleanup", "/cleanup")
    stores = [s.store("1", "nvme-a" + odd), s.store("2", "nfs-1")]
    policy = r.policy(odd=odd)
    plan, run = r.plan(odd=odd), r.run(odd=odd)
    items = r.items(odd)
    empty_form = FormState()
    filled = r.policy_form(odd)
    pages: Pages = {
        "cleanup": (
            "cleanup.html",
            c.CleanupPage(
                shell(*head),
                [
                    policy,
                    r.policy("2", odd=odd, schedule=None, last_run=None, next_firings=[]),
                    r.policy("3", enabled=False),
                ],
                r.presets(),
                [run, r.run("42", state="running", verdict=None, odd=odd)],
                [plan],
                stores,
            ),
        ),
        "cleanup-none": ("cleanup.html", c.CleanupPage(shell(*head), [], r.presets(), [], [], stores)),
        "policy": ("policy.html", c.PolicyPage(shell(*head, policy.name), policy, [plan], [run])),
        "policy-new": (
            "policy_form.html",
            c.PolicyFormPage(shell(*head, "New policy"), None, filled, stores, r.presets(), "safe"),
        ),
        "policy-edit": (
            "policy_form.html",
            c.PolicyFormPage(
                shell(*head, policy.name, "Edit"),
                policy,
                filled.failed(r.invalid("capacity_low", "70% is not below the high mark 60%" + odd)),
                stores,
                [],
                "",
            ),
        ),
    }
    for name, shown in {
        "plan": plan,
        "plan-delete": r.plan(
            odd=odd, removal="delete", policy_id=None, policy_name=None, origin="filter", filter={"class": odd or "x"}
        ),
        "plan-running": r.plan(state="running", odd=odd),
        "plan-expired": r.plan(expired=True, odd=odd),
        "plan-none": r.plan(records=0, bytes=0, by_reason={}, held_back={}, odd=odd),
        "plan-failed": r.plan(state="failed", error="the directory was replaced" + odd),
        "plan-differs": r.plan(seen=SeenView(records=634, scanned_at="2026-11-30T08:00:00Z"), odd=odd),
    }.items():
        rows = [] if name in ("plan-none", "plan-running", "plan-failed") else items
        pages[name] = ("plan.html", c.PlanPage(shell(*head, "Plan #12"), shown, rows, state("reason"), None, True))
    for name, shown_run, jobs in [
        ("run", run, []),
        ("run-running", r.run("42", state="running", verdict=None, odd=odd), []),
        (
            "run-insufficient",
            r.run("43", verdict="insufficient", odd=odd, notes=["Restart qwen-1 to clear its GPU cache." + odd]),
            [],
        ),
        ("run-restoring", run, [r.job()]),
        (
            "run-put-back",
            run.model_copy(update={"restored_records": 2, "hit_rate": r.hit_rate_around()}),
            [r.job().model_copy(update={"state": "succeeded", "skipped": {"exists": run.in_quarantine.records}})],
        ),
    ]:
        pages[name] = (
            "cleanup_run.html",
            c.RunPage(
                shell(*head, f"Run #{shown_run.id}"),
                shown_run,
                items,
                state(*outcomes.NAMES),
                "next",
                jobs,
                empty_form,
                outcomes=outcomes.outcomes(shown_run, state(*outcomes.NAMES)),
            ),
        )
    return pages


def _acceptance(odd: str) -> Pages:
    head = ("acceptance", "/acceptance")
    engines = [s.engine("1", "qwen-1" + odd), s.engine("2", "qwen-2")]
    runs = [
        a.acceptance("8", odd=odd),
        a.acceptance("9", verdict="fail", odd=odd),
        a.acceptance("10", verdict="invalid", odd=odd),
        a.acceptance("11", verdict=None, state="running", odd=odd),
    ]
    verdicts = [c.EngineVerdict(engines[0], s.latest("stale", run=runs[0], reason="changed" + odd))]
    form = FormState.of(
        {
            "engine_id": "1",
            "profile": "quick",
            "arms": ["external_l2"],
            "mode": "",
            "api": "completions",
            "concurrency": "1",
            "deadline_seconds": "",
            "remove_records": True,
            "allow_clear_l1": False,
        }
    )
    ttft = [
        ("cold", (1281.0, 1277.2, 1290.1)),
        ("external_l1", (655.0, 653.2, 660.1)),
        ("external_l2", (702.0, 711.0, 699.0)),
    ]
    pages: Pages = {
        "acceptance": (
            "acceptance.html",
            ac.AcceptancePage(shell(*head), verdicts, runs, a.trends(odd), state("verdict"), "next"),
        ),
        "acceptance-none": ("acceptance.html", ac.AcceptancePage(shell(*head), [], [], [], state("verdict"), None)),
        "acceptance-new": (
            "acceptance_start.html",
            ac.AcceptanceStartPage(shell(*head, "Start a run"), engines, a.hooks(odd), form, a.estimate(odd)),
        ),
        "acceptance-new-wrong": (
            "acceptance_start.html",
            ac.AcceptanceStartPage(
                shell(*head, "Start a run"),
                engines,
                [],
                form.failed(r.invalid("concurrency", "from 1 to 64" + odd)),
                None,
            ),
        ),
        "acceptance-compare": (
            "acceptance_compare.html",
            ac.AcceptanceComparePage(shell(*head, "Compare"), a.comparison(odd)),
        ),
        "acceptance-readiness": (
            "acceptance_readiness.html",
            ac.ReadinessPage(shell(*head, "Readiness"), a.readiness(odd), False, state("engine_id"), "next"),
        ),
        "acceptance-readiness-none": (
            "acceptance_readiness.html",
            ac.ReadinessPage(shell(*head, "Readiness"), [], False, state("engine_id"), None),
        ),
        "acceptance-canaries": (
            "acceptance_canaries.html",
            ac.CanariesPage(
                shell(*head, "Canaries"),
                a.canaries(odd),
                {"1": "qwen-1" + odd},
                a.canary_runs(odd),
                state("engine_id"),
                "next",
            ),
        ),
        "acceptance-canaries-none": (
            "acceptance_canaries.html",
            ac.CanariesPage(shell(*head, "Canaries"), [], {}, [], state("engine_id"), None),
        ),
        "acceptance-hooks": (
            "acceptance_hooks.html",
            ac.HooksPage(shell(*head, "Restart hooks"), a.hooks(odd), FormState.of({"timeout_seconds": "300"})),
        ),
        "acceptance-hooks-none": (
            "acceptance_hooks.html",
            ac.HooksPage(
                shell(*head, "Restart hooks"),
                [],
                FormState.of({"name": "a" + odd}).failed(r.invalid("name", "is taken" + odd)),
            ),
        ),
    }
    for name, run in zip(("pass", "fail", "invalid", "running"), runs, strict=True):
        pages[f"acceptance-{name}"] = (
            "acceptance_run.html",
            ac.AcceptanceRunPage(
                shell(*head, f"Run #{run.id}"),
                run,
                ttft if name in ("pass", "fail") else [],
                evidence_lines(run),
                load_lines(run),
            ),
        )
    return pages


def _rest(odd: str) -> Pages:
    servers = [s.server("1", "lmc-a" + odd)]
    engines = [s.engine("1", "qwen-1" + odd)]
    stores = [s.store("1", "nvme-a" + odd)]
    events = [overview.health_event(s.change("4", "lmc-b" + odd, "healthy", "degraded", "why" + odd, 420))]
    settings = ("settings", "/settings")
    target = FormState.of(
        {"url": "http://10.0.3.14:8080" + odd, "name": odd, "labels": "rack=b7" + odd, "server_ids": ["1"]}
    )
    no_schedule = FormState.of({"name": "", "target": "", "cron": "", "timezone": "UTC"})
    token = FormState.of({"name": "", "role": "viewer", "expires_in_days": ""})
    user = FormState.of({"username": "", "password": "", "role": "viewer"})
    alone = shell(user=None, nav=())
    pages: Pages = {
        "activity": (
            "activity.html",
            c.ActivityPage(shell("activity", "/activity"), "events", events, [], NONE, "next"),
        ),
        "activity-none": (
            "activity.html",
            c.ActivityPage(shell("activity", "/activity"), "events", [], [], NONE, None),
        ),
        "audit": (
            "activity.html",
            c.ActivityPage(shell("activity", "/activity?view=audit"), "audit", [], r.audit(odd), NONE, None),
        ),
        "schedules": (
            "schedules.html",
            c.SchedulesPage(
                shell("schedules", "/schedules"),
                r.schedules(odd),
                r.firings(odd),
                no_schedule,
                [("scan:1", "scan of nvme-a" + odd)],
                [
                    r.policy("7", odd=odd, schedule="@layout-change", next_firings=[]),
                    r.policy("8", schedule="@layout-change", next_firings=[], enabled=False, last_run=None),
                ],
            ),
        ),
        "schedules-none": (
            "schedules.html",
            c.SchedulesPage(shell("schedules", "/schedules"), [], [], no_schedule, []),
        ),
        "history": ("history.html", _history(odd)),
        "help": ("help.html", HelpPage(shell("help", "/help"), MANUAL, None)),
        "help-runbooks": ("help.html", HelpPage(shell("help", "/help/runbooks", "Runbooks"), MANUAL, MANUAL[1])),
        "help-pages": ("help.html", HelpPage(shell("help", "/help/pages", "The pages"), MANUAL, MANUAL[2])),
        "help-none": ("help.html", HelpPage(shell("help", "/help"), (), None)),
        "style": ("style.html", style_page(shell("settings", "/style", "Style"), lambda: s.NOW)),
        "login": ("login.html", c.LoginPage(alone, FormState.of({"username": "", "password": ""}), "/stores/1" + odd)),
        "login-wrong": (
            "login.html",
            c.LoginPage(
                alone,
                FormState.of({"username": "admin" + odd}).failed(r.invalid("password", "wrong name or password")),
                "",
            ),
        ),
        "error-404": (
            "error.html",
            c.ErrorPage(alone, 404, "There is no such thing", "no server has the id '17'" + odd),
        ),
        "error-422": (
            "error.html",
            c.ErrorPage(
                alone,
                422,
                "The input cannot be used",
                "see below",
                (FieldError("select[0].for" + odd, "missing" + odd),),
            ),
        ),
        "error-500": ("error.html", c.ErrorPage(alone, 500, "Something went wrong", "an error of the panel itself")),
        "search": (
            "search.html",
            sc.SearchPage(
                shell(), "qwen" + odd, [sc.Found("engine", "cpu", "qwen-1" + odd, "qwen" + odd, "/engines/1")]
            ),
        ),
        "search-none": ("search.html", sc.SearchPage(shell(), "zz" + odd, [])),
        "welcome": ("welcome.html", sc.WelcomePage(shell(), target, None)),
        "welcome-found": ("welcome.html", sc.WelcomePage(shell(), target, r.probe(odd))),
    }
    for tab, form in (("targets", token), ("users", user), ("tokens", token)):
        pages[f"settings-{tab}"] = (
            "settings.html",
            sc.SettingsPage(
                shell(*settings),
                tab,
                servers,
                engines,
                stores,
                r.users(odd),
                r.tokens(odd),
                r.new_token() if tab == "tokens" else None,
                form,
                r.sessions(odd),
            ),
        )
    pages["settings-none"] = (
        "settings.html",
        sc.SettingsPage(shell(*settings, role="viewer"), "targets", [], [], [], [], [], None, token, {}),
    )
    for kind, old in (("server", servers[0]), ("engine", engines[0]), ("store", stores[0])):
        pages[f"add-{kind}"] = (
            "target_form.html",
            sc.TargetFormPage(
                shell(*settings, "Add"), kind, None, target, servers, r.probe(odd), [("/mnt/kv" + odd, "lmc-a" + odd)]
            ),
        )
        pages[f"edit-{kind}"] = (
            "target_form.html",
            sc.TargetFormPage(
                shell(*settings, old.name), kind, old, target.failed(r.invalid("url", "is taken" + odd)), servers, None
            ),
        )
    return pages


def _history(odd: str) -> HistoryPage:
    server = s.server("1", "lmc-a" + odd)
    chart = _charts("server", "1")[0]
    values = s.wave(120, gap=40)
    points = [(s.ago(30 * (len(values) - i)), value) for i, value in enumerate(values)]
    return HistoryPage(
        shell("servers", "/servers/1/history", server.name, "History"),
        "server",
        server,
        chart,
        [("hit_rate", "Hit rate"), ("l1_used_bytes", "L1 memory used")],
        Span("1h", "last hour", s.NOW - 3600.0, s.NOW),
        [("1h", "last hour"), ("24h", "last day")],
        SamplesView(
            metric="hit_rate",
            unit="ratio",
            points=points,
            step_seconds=30.0,
            source="5m",
            lowest=[None if v is None else v * 0.9 for _, v in points],
            highest=[v for _, v in points],
        ),
        [c.Event(s.ago(900), "restart", "info", "lmc-a restarted" + odd)],
    )


def all_pages(odd: str = "") -> Pages:
    """All of them; `odd` is appended to what others could have written."""
    return _overview(odd) | _targets(odd) | _records(odd) | _cleanup(odd) | _acceptance(odd) | _rest(odd)
