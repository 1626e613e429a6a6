"""The pages of checks, sizing and launch commands: well-formed, safe, and true to what they show."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from app.checks.schemas import ChangesView, ChangeView, CheckCounts, CheckPairView, CheckView
from app.checks.service import ChecksService
from app.checks.views import finding_view
from app.errors import InvalidInput
from app.sizing.schemas import PrefixInput, SizingInput
from app.sizing.service import SizingService
from app.web.contexts import PageContext
from app.web.forms import FormState
from app.web.pages.checks import FIELDS as CHECK_FIELDS
from app.web.pages.launch import ALIASES as LAUNCH_ALIASES
from app.web.pages.launch import FIELDS as LAUNCH_FIELDS
from app.web.pages.launch import _body as launch_body
from app.web.pages.sizing import FIELDS as SIZING_FIELDS
from app.web.pages.sizing import PREFIX_FIELDS
from app.web.pages.sizing import _body as sizing_body
from app.web.setup_contexts import CheckRulesPage, ChecksListPage, LaunchPage, PairVerdicts, SizingPage
from tests.unit.checks.support import all_of, facts, server, store
from tests.unit.launch.support import generate
from tests.unit.sizing.test_kv_bytes import QWEN3_NEXT
from tests.unit.web import pages, preview, samples
from tests.unit.web.test_pages import SPRITE_IDS, Document

TEMPLATES, _ = preview.templates()
Pages = dict[str, tuple[str, PageContext]]


def _views(odd: str) -> list[CheckView]:
    wrong = facts(
        server=server(name="cache-a" + odd, status={"eviction_policy": "noop"}), stores=(store(fs_type="tmpfs"),)
    )
    return [
        finding_view(item).model_copy(
            update={"since": samples.ago(4000), "checked_at": samples.ago(10), "evidence": item.evidence + odd}
        )
        for item in all_of(wrong)
    ]


def _changes(odd: str) -> ChangesView:
    return ChangesView(
        since=samples.ago(90000),
        since_reason="the last run of the checks without a fail" + odd,
        changes=[
            ChangeView(
                at=samples.ago(4000),
                kind="verdict",
                subject="cache-a" + odd,
                name="eviction_ratio",
                old="ok: LRU, 0.2",
                new="fail: noop, 0.2" + odd,
                verdict="fail",
            ),
            ChangeView(
                at=samples.ago(4000),
                kind="setting",
                subject="cache-a",
                name="eviction_policy" + odd,
                old="LRU",
                new=None,
            ),
        ],
    )


def _size(**body: Any) -> Any:
    return SizingService(clock=lambda: 0.0).size(SizingInput.model_validate(body))


def all_pages(odd: str = "") -> Pages:
    servers, engines = [samples.server("1", "lmc-a" + odd)], [samples.engine("1", "qwen-1" + odd)]
    base: dict[str, Any] = {"servers": servers, "engines": engines}
    views = _views(odd)
    pair = CheckPairView(
        server_id="1",
        engine_id="1",
        name="cache-a · engine-a" + odd,
        counts=CheckCounts(fail=2, warn=1, unknown=1, ok=20),
        worst="fail",
        worst_title=views[0].title + odd,
        checked_at=samples.ago(10),
    )
    calm = pair.model_copy(update={"engine_id": None, "name": "cache-b" + odd, "worst": "ok"})
    found: dict[str, Any] = {"pairs": [pair, calm], "shown": [PairVerdicts(pair, views), PairVerdicts(calm, [])]}
    empty: dict[str, Any] = {"pairs": [], "shown": []}
    checks: dict[str, Any] = {"server_id": "1", "engine_id": "", "verdict": "", "running": False}
    form = FormState.of({"commands": "lmcache server" + odd}, fields=CHECK_FIELDS)
    failed = form.failed(InvalidInput.field("engine_id", "is needed" + odd))
    where = pages.shell("overview", "/checks")
    sized = _size(
        model={"config": {**QWEN3_NEXT, "_name_or_path": "m" + odd}},
        chunk_size=256,
        tiers={"l0_bytes": 2**34, "l1_bytes": 2**36, "l2_bytes": 2**40},
        working_set={"contexts": 40, "tokens": 20_000},
        retention={"seconds": 86400.0, "tokens_per_second": 10.0},
        speed={"prefill_tokens_per_second": 8000.0, "l2_bytes_per_second": 2e9},
    )
    bare = _size(model={"bytes_per_token": 1000}, retention={"seconds": 1.0})
    prefix = SizingService(clock=lambda: 0.0).compare_prompts(
        PrefixInput.model_validate(
            {"first": {"token_ids": [1, *range(100)]}, "second": {"token_ids": [2, *range(100)]}, "chunk_size": 16}
        )
    )
    sizing = {"form": FormState.of({"config": "{}" + odd}, fields=SIZING_FIELDS), **base}
    sizing["prefix_form"] = FormState.of({"first": "x" + odd}, fields=PREFIX_FIELDS)
    made = generate()
    made = made.model_copy(update={"notes": [*made.notes, "note" + odd]})
    launch_form = FormState.of({"model": "/m" + odd, "device": "cuda"}, fields=LAUNCH_FIELDS)
    at = {name: pages.shell("overview", f"/{name}") for name in ("sizing", "launch")}
    return {
        "checks": (
            "checks.html",
            ChecksListPage(where, **found, changes=_changes(odd), form=form, **checks, **base),
        ),
        "checks-empty": (
            "checks.html",
            ChecksListPage(
                pages.shell("overview", "/checks", role="viewer"),
                **empty,
                changes=ChangesView(since=None, since_reason="no good moment is known", changes=[]),
                form=form,
                **{**checks, "running": True},
                **base,
            ),
        ),
        "checks-judged": (
            "checks.html",
            ChecksListPage(where, **empty, changes=_changes(odd), form=failed, judged=views[:3], **checks, **base),
        ),
        "checks-nothing": (
            "checks.html",
            ChecksListPage(where, **empty, changes=_changes(odd), form=form, judged=[], **checks, **base),
        ),
        "rules": ("check_rules.html", CheckRulesPage(where, rules=ChecksService.rules(None))),  # type: ignore[arg-type]
        "sizing": ("sizing.html", SizingPage(at["sizing"], result=sized, prefix=prefix, **sizing)),
        "sizing-bare": ("sizing.html", SizingPage(at["sizing"], result=bare, **sizing)),
        "sizing-viewer": ("sizing.html", SizingPage(pages.shell("overview", "/sizing", role="viewer"), **sizing)),
        "sizing-wrong": (
            "sizing.html",
            SizingPage(
                at["sizing"],
                **{**sizing, "form": sizing["form"].failed(InvalidInput.field("config", "is no JSON" + odd))},
            ),
        ),
        "launch": ("launch.html", LaunchPage(at["launch"], form=launch_form, result=made, **base)),
        "launch-form": (
            "launch.html",
            LaunchPage(
                at["launch"],
                form=launch_form.failed(InvalidInput.field("engine.model", "is odd" + odd), LAUNCH_ALIASES),
                **base,
            ),
        ),
        "launch-viewer": (
            "launch.html",
            LaunchPage(pages.shell("overview", "/launch", role="viewer"), form=launch_form, **base),
        ),
    }


PLAIN, HOSTILE = all_pages(), all_pages(samples.HOSTILE)


def render(name: str, which: Pages, *, fragment: bool = False) -> str:
    template, context = which[name]
    return TEMPLATES.render(template, context, fragment=fragment)


@pytest.mark.parametrize("name", PLAIN)
def test_well_formed_named_and_within_the_policy(name: str) -> None:
    document = Document(render(name, PLAIN))
    assert (document.unbalanced, document.open) == ([], [])
    ids = [attrs["id"] for _, attrs in document.elements if "id" in attrs]
    assert [i for i, n in Counter(ids).items() if n > 1] == []
    labelled = {attrs["for"] for attrs in document.all("label") if "for" in attrs}
    for attrs in document.all("input", "select", "textarea"):
        if attrs.get("type") not in ("hidden", "checkbox", "radio"):
            assert attrs.get("id") in labelled or "aria-label" in attrs, attrs
    for attrs in document.all("button"):
        assert attrs.get("type") in ("button", "submit"), attrs
    for attrs in document.all("th"):
        assert attrs.get("scope") in ("col", "row"), attrs
    for attrs in document.all("use"):
        assert attrs["href"].split("#")[1] in SPRITE_IDS, attrs
    assert len(document.all("h1")) == 1
    for tag, attrs in document.elements:
        assert "style" not in attrs, (tag, attrs)
        assert not [a for a in attrs if a.startswith(("on", "hx-on"))], (tag, attrs)
    for attrs in document.all("a"):
        assert attrs["href"].startswith(("/", "#")), attrs


@pytest.mark.parametrize("name", HOSTILE)
def test_what_others_wrote_is_only_ever_text(name: str) -> None:
    text = render(name, HOSTILE)
    assert "<script>alert" not in text
    document = Document(text)
    assert (document.unbalanced, document.open) == ([], [])
    plain = Counter(tag for tag, _ in Document(render(name, PLAIN)).elements)
    assert Counter(tag for tag, _ in document.elements)["script"] == plain["script"]
    visible = "".join(document.text)
    assert "\u202e" not in visible
    assert "\x1b" not in visible


@pytest.mark.parametrize("name", PLAIN)
def test_fragments_hold_the_content_alone(name: str) -> None:
    part = render(name, PLAIN, fragment=True)
    assert "<html" not in part
    assert ("data-live" in part) == name.startswith("checks")


class TestWhatIsShown:
    def test_worst_first_with_word_evidence_and_fix(self) -> None:
        text = render("checks", PLAIN)
        assert text.index("L1 never frees anything") < text.index("The server&#39;s HTTP port is not open to everybody")
        assert "lmcache server --eviction-policy LRU" in text
        assert "What changed since it worked" in text
        for match in re.finditer(r'<span class="(?:status|badge) s-\w+"[^>]*>(.*?)</span>', text):
            assert re.sub(r"<[^>]+>", "", re.sub(r"<svg.*?</svg>", "", match.group(1))).strip()

    def test_where_nothing_was_looked_at_nothing_is_called_unchanged(self) -> None:
        text = render("checks-empty", PLAIN)
        assert "Nothing was looked at yet" in text
        assert "Nothing is different" not in text
        assert "Not known yet" in text

    def test_every_pair_has_its_own_verdicts_and_a_place_in_the_order(self) -> None:
        text = render("checks", PLAIN)
        assert "2 pairs, the worst first" in text
        assert "/checks?server_id=1&amp;engine_id=1" in text.replace("&engine_id", "&amp;engine_id")
        assert "Verdicts of cache-a · engine-a, worst first" in text
        assert "No verdict of this kind for this pair" in text

    def test_every_verdict_says_what_is_set_what_is_in_force_and_where_it_was_read(self) -> None:
        text = render("checks", PLAIN)
        assert '<span class="faint">not told</span>' not in text
        assert "read from /config and /status of the server" in text

    def test_viewers_start_nothing(self) -> None:
        for name in ("checks-empty", "sizing-viewer", "launch-viewer"):
            document = Document(render(name, PLAIN))
            assert [a for a in document.all("form") if a.get("method") == "post" and "logout" not in a["action"]] == []

    def test_unknown_is_a_word(self) -> None:
        text = render("sizing-bare", PLAIN)
        assert "unknown" in text
        assert "0 B" not in text.replace("\u00a0", " ")

    def test_the_form_keeps_what_was_typed_and_names_the_error(self) -> None:
        text = render("launch-form", PLAIN)
        assert 'value="/m"' in text
        assert 'id="model-err"' in text
        assert "is odd" in text


class TestForms:
    def test_the_sizing_form_becomes_the_api_s_body(self) -> None:
        values = {
            "config": ['{"a": 1}'], "tensor_parallel": ["2"], "l1_gib": ["1.5"], "contexts": ["1,000"],
            "tokens": ["20"],
            "retention_days": ["2"], "prefill": ["100"], "l2_rate": ["2.5"], "order": ["unordered"],
        }  # fmt: skip
        body = sizing_body(values)
        assert body["model"]["config"] == {"a": 1}
        assert body["tiers"] == {"l1_bytes": int(1.5 * 2**30)}
        assert body["working_set"]["contexts"] == 1000
        assert body["retention"]["seconds"] == 172_800
        assert body["speed"] == {"prefill_tokens_per_second": 100.0, "l2_bytes_per_second": 2.5e9}
        SizingInput.model_validate(body)

    @pytest.mark.parametrize(
        ("values", "field"),
        [
            ({"config": ["{"]}, "config"),
            ({"config": ["[]"]}, "config"),
            ({"contexts": ["1"]}, "tokens"),
            ({"tokens": ["x"], "contexts": ["1"]}, "tokens"),
            ({"chunk_size": ["1.5"]}, "chunk_size"),
            ({"l1_gib": ["-1"]}, "l1_gib"),
            ({"l1_gib": ["nan"]}, "l1_gib"),
        ],
    )
    def test_the_sizing_form_names_what_is_wrong(self, values: dict[str, list[str]], field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            sizing_body(values)
        assert caught.value.errors[0].field == field

    def test_the_launch_form_sends_only_what_was_given(self) -> None:
        body = launch_body({"model": ["/m"], "l1_gib": ["4"], "use_odirect": ["on"], "extra_args": ["--seed\n1"]})
        assert body["server"] == {"l1_gib": 4.0, "store": {"use_odirect": True, "per_layout": False}}
        assert body["engine"]["extra_args"] == ["--seed", "1"]
        assert "dtype" not in body["engine"]
        assert "l1_gib" not in launch_body({"model": ["/m"], "server_id": ["1"]})["server"]
        with pytest.raises(InvalidInput, match="l1_gib"):
            launch_body({"model": ["/m"], "l1_gib": ["much"]})
