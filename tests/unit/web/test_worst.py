"""What a page of a whole fleet shows of it."""

from __future__ import annotations

import re
from dataclasses import replace

from app.acceptance.canary_schemas import CanaryStanding
from app.web.contexts import EngineVerdict
from app.web.worst import worst_first, worst_verdicts
from tests.unit.web import acceptance_samples as a
from tests.unit.web import pages
from tests.unit.web import samples as s
from tests.unit.web.test_pages import Document, render


def test_where_all_fit_they_stay_as_they_are() -> None:
    servers = [s.server("1"), s.server("2", state="unreachable")]
    assert worst_first(servers, 2) == servers
    assert worst_first([], 3) == []


def test_the_worst_come_first_and_the_others_keep_their_order() -> None:
    states = ["healthy", "unknown", "healthy", "unreachable", "degraded", "unhealthy"]
    servers = [s.server(str(n), state=state) for n, state in enumerate(states)]
    assert [server.id for server in worst_first(servers, 5)] == ["3", "5", "4", "1", "0"]


def test_verdicts_by_what_runs_and_canaries_say() -> None:
    def verdict(ident: str, state: str, canaries: CanaryStanding | None = None) -> EngineVerdict:
        run = a.acceptance() if state == "fresh" else None
        return EngineVerdict(s.engine(ident), s.latest(state, run=run), canaries)

    lost = CanaryStanding(kept=2, outcomes={"lost": 2}, checked_at=s.ago(90))
    found = [verdict("1", "fresh"), verdict("2", "never"), verdict("3", "fresh", lost), verdict("4", "fresh")]
    assert [v.engine.id for v in worst_verdicts(found, 3)] == ["3", "2", "1"]
    assert worst_verdicts(found, 4) == found


def test_the_overview_of_a_fleet_shows_the_worst_and_where_all_are() -> None:
    text = render("overview-fleet", pages.all_pages())
    document = Document(text)
    assert (document.unbalanced, document.open) == ([], [])
    assert 'href="/servers">all 40 servers' in text
    assert 'href="/engines">all 40 engines' in text
    assert "32 more engines" in text
    shown = re.findall(r'<a class="name" href="/servers/(\d+)"', text)
    assert len(shown) == 12
    assert shown[:2] == ["39", "40"]  # the two that are down


def test_a_target_that_was_never_read_has_one_card_and_no_empty_frames() -> None:
    whole, empty = pages.all_pages(), {}
    for name in ("server", "engine"):
        template, context = whole[name]
        load = getattr(context, "load_charts", [])
        assert render(name, whole).count('class="chart"') == len(context.charts_shown) + len(load) >= 2  # type: ignore[attr-defined]
        bare = {
            part: [replace(chart, trend=replace(chart.trend, points=(None,) * 60)) for chart in getattr(context, part)]
            for part in ("charts_shown", "load_charts")
            if hasattr(context, part)
        }
        empty[name] = (template, replace(context, **bare))
        text = render(name, empty)
        assert text.count('class="chart"') == 0
        assert "Nothing known in this time" in text
        assert text.count("longer, as a table") == 1
