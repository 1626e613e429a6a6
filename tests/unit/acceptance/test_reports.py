"""Reports: what tools read, and that nothing from a model or a disk gets out of its place."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.acceptance.answers import Answer
from app.acceptance.compare import compare
from app.acceptance.control_findings import control_findings
from app.acceptance.controls import ControlSeen
from app.acceptance.evidence import ArmEvidence
from app.acceptance.finding import Finding, sentences, told_once
from app.acceptance.report_html import render_html, ttft_chart
from app.acceptance.reports import FORMS, junit, markdown, render
from app.acceptance.results import ArmResult, arm_view, comparison_view
from app.acceptance.schemas import AcceptanceRunView, FindingView, ScorePairsView
from app.acceptance.tokens import token_told
from app.acceptance.told import evidence_lines, score_pairs
from app.acceptance.tolerance import fix_tolerance, noise_floor
from app.scheduling.schemas import Progress
from tests.unit.acceptance.factories import answer, answers, arm, same, tolerance

NASTY = "<script>alert(1)</script> `x` | [a](http://b) & \x00\x1b ]]> \"q\" 'q'"


def view(verdict: str | None = "pass", state: str = "succeeded", **changes: Any) -> AcceptanceRunView:
    results = {
        n: ArmResult(n, "engine-a", arm(n), ttft={"p00": 0.1, "p01": 0.2}) for n in ("cold", "warm", "external_l1")
    }
    results["warm"].compare_with(same("warm", "cold"))
    results["external_l1"].compare_with(same("external_l1", "warm"))
    values: dict[str, Any] = {
        "id": "12",
        "state": state,
        "progress": Progress(done=9, total=9, unit="requests"),
        "error": None,
        "created_at": "2026-11-30T08:00:00.000Z",
        "started_at": "2026-11-30T08:00:01.000Z",
        "finished_at": "2026-11-30T08:00:31.500Z",
        "requested_by": "tester",
        "engine_id": "1",
        "engine_name": "engine-a",
        "server_id": "1",
        "server_name": "cache",
        "second_engine_id": None,
        "profile": "quick",
        "mode": "near_tie",
        "verdict": verdict,
        "headline": "all the same",
        "reasons": [],
        "findings": [],
        "steps": [],
        "arms": [arm_view(r, results["cold"].ttft, tolerance()) for r in results.values()],
        "comparisons": [comparison_view(r.comparison) for r in results.values() if r.comparison],
        "evidence": {"tolerance": tolerance().to_json()},
        "request": {},
        "frozen": {"model": "tiny", "engine_version": "0.32.0"},
        "deadline_seconds": 600.0,
        "duration_seconds": 30.5,
        "waiting_for": None,
        "report_urls": {},
    }
    if findings := changes.get("findings"):
        changes.setdefault("reasons", list(sentences(findings)))
    return AcceptanceRunView(**{**values, **changes})


def failed() -> AcceptanceRunView:
    bad = answer("p01", ids=(9, 9, 9, 9), text=NASTY)
    result = ArmResult("external_l2", "engine-a", arm("external_l2"))
    result.compare_with(compare(answers("warm", answer()), answers("external_l2", bad), tolerance()))
    finding = FindingView(code="answer_differs", severity="fail", arm="external_l2", text=NASTY, fix="Do not roll out.")
    run = view("fail", findings=[finding], headline=NASTY, engine_name=NASTY)
    assert result.comparison is not None
    return run.model_copy(
        update={
            "arms": [*run.arms, arm_view(result, {}, tolerance())],
            "comparisons": [*run.comparisons, comparison_view(result.comparison)],
        }
    )


def test_answers_that_differ_from_their_first_token_on_have_no_largest_difference() -> None:
    last = failed().comparisons[-1]
    assert (last.compared_tokens, last.max_abs_difference, last.mean_abs_difference) == (0, None, None)
    assert last.divergences[0].max_abs_difference is None
    logprob = failed().arms[-1].logprob
    assert logprob is not None
    assert logprob.max_abs_difference is None
    assert failed().comparisons[0].max_abs_difference == 0.0  # equal answers were compared


class TestJunit:
    def suite(self, run: AcceptanceRunView) -> ElementTree.Element:
        suite = ElementTree.fromstring(junit(run)).find("testsuite")
        assert suite is not None
        return suite

    def test_a_pass_has_no_failures(self) -> None:
        suite = self.suite(view())
        assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "0", "0")
        assert [c.get("name") for c in suite.iter("testcase")] == ["verdict", "cold", "warm", "external_l1"]

    def test_a_fail_is_a_failure_of_the_verdict_and_of_its_arm(self) -> None:
        suite = self.suite(failed())
        assert suite.get("failures") == "2"
        failing = [c.get("name") for c in suite.iter("testcase") if c.find("failure") is not None]
        assert failing == ["verdict", "external_l2"]

    @pytest.mark.parametrize("verdict", ["invalid", "error", "timeout"])
    def test_what_proves_nothing_is_an_error_never_a_success(self, verdict: str) -> None:
        suite = self.suite(view(verdict))
        assert suite.get("errors") == "1"

    def test_no_verdict_is_an_error_or_skipped(self) -> None:
        assert self.suite(view(None, "interrupted")).get("errors") == "1"
        assert self.suite(view(None, "cancelled")).get("skipped") == "1"

    def test_an_arm_that_did_not_run_is_skipped(self) -> None:
        idle = arm_view(ArmResult("external_l2", "engine-a", ArmEvidence("external_l2")), {}, None)
        suite = self.suite(view("invalid", arms=[idle]))
        assert suite.get("skipped") == "1"

    @given(st.text(max_size=60))
    def test_any_text_gives_well_formed_xml(self, text: str) -> None:
        finding = FindingView(code="x", severity="fail", arm="warm", text=text, fix=None)
        self.suite(view("fail", findings=[finding], headline=text, engine_name=text))


class TestMarkdown:
    def test_verdict_first(self) -> None:
        lines = markdown(view("pass_with_near_ties")).splitlines()
        assert lines[0] == "# Acceptance: pass with near ties"

    def test_arms_are_a_table(self) -> None:
        rows = [line for line in markdown(view()).splitlines() if line.startswith("| ")]
        assert rows[0].startswith("| arm | requests |")
        answers = next(i for i, row in enumerate(rows) if row.startswith("| arm | against |"))
        for table in (rows[:answers], rows[answers:]):
            assert len(table) > 2
            assert all(row.count("|") == table[0].count("|") for row in table)

    def test_nothing_of_a_model_becomes_markup(self) -> None:
        lines = markdown(failed()).splitlines()
        answers_as_code = [line for line in lines if line.startswith("  - ")]
        prose = "\n".join(line for line in lines if line not in answers_as_code)
        assert "<script>" not in prose
        assert "[a](" not in prose
        # The answer holds one backtick, so its fence has two and stays closed.
        assert any(line.endswith(" ``") and ": `` <script>" in line for line in answers_as_code)

    def test_how_alike_the_answers_are_and_what_that_rests_on(self) -> None:
        text = markdown(view())
        assert "no scored prompt" in text
        assert "- noise floor: 0 nat over 1 prompts asked cold once more" in text
        assert "- smallest fault: changes of more than 0.1 nat" in text

    def test_own_prompts_are_called_by_their_names(self) -> None:
        run = failed()
        key = run.comparisons[-1].divergences[0].prompt
        named = run.model_copy(update={"prompt_names": {key: "contract clause"}})
        assert f"`{key}` (contract clause)" in markdown(named)
        assert f"{key} contract clause" in render(named, "html", [])


class TestEvidenceInWords:
    def test_what_a_run_noted(self) -> None:
        evidence = {
            "tolerance": tolerance("score").to_json(),
            "records": {"files": 12, "lost": [], "changed": [], "checksums": True},
            "stored": {"expected": 12, "in_l1": 12, "on_disk": None, "completed_l2": 12, "waited_seconds": 0.31},
            "load": {
                "before": {"running": 0, "waiting": 0},
                "during": {"readings": 9, "running": 2.0, "waiting": 1.0},
                "after": None,
            },
        }
        told = dict(evidence_lines(view().model_copy(update={"evidence": evidence})))
        assert told["record files"].endswith(
            "12 files compared by SHA-256 when stored and after being read: none changed"
        )
        assert told["stored"] == "12 records expected: 12 written to L1, 12 counted in L2, after 0.3 s"
        assert told["engine load"] == (
            "before 0 running and 0 waiting; at most 2 running and 1 waiting between its own requests (9 readings); "
            "after unknown"
        )
        assert "the score may drop by 3%" in told["tolerance"]

    def test_what_is_not_known_is_never_zero(self) -> None:
        blind = fix_tolerance("near_tie", noise_floor([], 0)).to_json()
        told = dict(evidence_lines(view().model_copy(update={"evidence": {"tolerance": blind, "records": None}})))
        assert told["noise floor"].startswith("not known")
        assert told["record files"].startswith("not compared")
        assert "engine load" not in told

    def test_paired_scores(self) -> None:
        comparison = (
            view()
            .comparisons[0]
            .model_copy(
                update={
                    "score_pairs": ScorePairsView(
                        right_right=9, right_wrong=3, wrong_right=0, wrong_wrong=1, p_value=0.25
                    )
                }
            )
        )
        assert score_pairs(comparison) == (
            "13 scored: 9 right in both, 3 right → wrong, 0 wrong → right, 1 wrong in both; exact test p = 0.25"
        )


class TestHtml:
    def test_is_self_contained_and_escaped(self) -> None:
        page = render(failed(), "html", [("cold", [1.0, 2.0]), ("warm", [0.5])])
        assert "<script" not in page
        assert "&lt;script&gt;" in page
        assert not re.search(r"(src|href)=", page)
        assert "<mark>" in page

    def test_says_what_decided(self) -> None:
        assert '<h1 class="pass">pass</h1>' in render(view(), "html", [])
        assert '<h1 class="fail">fail</h1>' in render(failed(), "html", [])
        assert '<h1 class="warn">invalid</h1>' in render(view("invalid"), "html", [])

    def test_the_chart_holds_every_request(self) -> None:
        chart = ttft_chart([("cold", [10.0, 20.0, 30.0]), ("warm", [1.0]), ("mixed", [])])
        assert chart.count("<circle") == 4
        assert "30.0 ms" in chart
        assert "mixed" not in chart
        assert ttft_chart([]) == ""


class TestJson:
    def test_is_the_run_itself(self) -> None:
        run = view()
        assert json.loads(render(run, "json", [])) == run.model_dump()

    @pytest.mark.parametrize("form", FORMS)
    def test_every_form_can_be_made_of_a_run_that_never_began(self, form: str) -> None:
        run = view(None, "queued", arms=[], comparisons=[], evidence={}, frozen={}, mode=None, started_at=None)
        assert render(run, form, [])


class TestViews:
    def test_speedup_is_paired_with_cold(self) -> None:
        result = ArmResult("warm", "e", arm("warm"), ttft={"p00": 0.05, "p01": 0.1, "p09": 1.0})
        row = arm_view(result, {"p00": 0.1, "p01": 0.2}, tolerance())
        assert row.speedup is not None
        assert (row.speedup.median, row.speedup.pairs, row.speedup.confidence) == (2.0, 2, 0.5)

    def test_milliseconds(self) -> None:
        row = arm_view(ArmResult("cold", "e", arm("cold"), ttft={"p00": 0.1, "p01": 0.3}), {}, None)
        assert row.ttft_ms.median == pytest.approx(200.0)

    def test_only_what_differs_is_listed_and_the_rest_counted(self) -> None:
        a = answers("warm", *(answer(f"p{i:02}") for i in range(30)))
        b = answers("external_l1", *(answer(f"p{i:02}", ids=(9, 9, 9, 9)) for i in range(30)))
        listed = comparison_view(compare(a, b, tolerance()))
        assert (len(listed.divergences), listed.divergences_left_off, listed.flips) == (20, 10, 30)

    def test_a_prompt_that_nobody_answered_has_no_time(self) -> None:
        empty = ArmResult("cold", "e", ArmEvidence("cold", requests=1, refused=1))
        row = arm_view(empty, {}, None)
        assert row.ttft_ms.median is None and row.ttft_ms.reason is not None
        assert Answer("p").keys == ()


class TestWhatAnswersDependOn:
    CONTROLS = (
        ControlSeen("p02", "middle", "equal"),
        ControlSeen("p03", "first", "moved", 0.25, arm="changed_head"),
        ControlSeen("p04", "first", "unshown", reason="its prompt was refused", arm="changed_head"),
    )

    def run(self) -> AcceptanceRunView:
        findings = [FindingView(**f.to_json()) for f in control_findings(self.CONTROLS)]
        findings.append(
            FindingView(code="answer_incomplete", severity="invalid", arm="external_l1", text="1 of 2", fix="Look.")
        )
        return view(
            "invalid", findings=findings, headline="none", evidence={"controls": [c.to_json() for c in self.CONTROLS]}
        )

    def test_in_words(self) -> None:
        lines = [text for what, text in evidence_lines(self.run()) if what == "negative control"]
        assert lines == [
            "2 prompts with other text at its beginning by the arm changed_head: 1 answered otherwise; where the words "
            "stayed, log-probabilities moved by 0.25 nat or more; 1 showed nothing (p04: its prompt was refused)",
            "1 prompt with other text in its middle: 0 answered otherwise; 1 to the last digit as before (p02)",
        ]

    @pytest.mark.parametrize("form", sorted(FORMS))
    def test_every_form_names_the_findings_and_the_controls(self, form: str) -> None:
        body = render(self.run(), form, [])
        for said in ("prompt_ignored", "answer_incomplete", "in its middle"):
            assert said in body.replace("\\", "")  # Markdown escapes what it would read as markup

    def test_a_run_from_before_there_were_any(self) -> None:
        assert not [what for what, _ in evidence_lines(view()) if what == "negative control"]


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("token_id:17", "could", ("could", "token 17")),
        ("token_id:2", "", ("", "token 2")),
        ("token_id:2", None, ("", "token 2")),
        ("token_id:13", "\n", ("\\n", "token 13")),
        ("token_id:220", " ", ("␣", "token 220")),
        ("could", None, ("could", "")),
        (None, None, ("", "the end of the answer")),
    ],
)
def test_a_token_is_told_by_its_text_and_its_id(key: str | None, text: str | None, told: tuple[str, str]) -> None:
    assert token_told(key, text) == told


def test_findings_that_say_one_thing_are_told_once_with_how_often_and_where() -> None:
    def foreign(arm: str, tokens: int) -> Finding:
        text = f"others sent {tokens} prompt tokens to the engine meanwhile"
        return Finding("foreign_traffic", "warning", text, "Alone it is quicker.", arm)

    wrong = [Finding("answer_differs", "fail", f"{n} of 4 answers differ", None, f"external_l{n}") for n in (1, 2)]
    short = Finding("too_short_to_hit", "note", "3 of 4 prompts are too short", None, "cold")
    same = [foreign("cold", 1200), foreign("warm", 1200), foreign("external_l1", 340)]
    told = told_once([*wrong, *same, short])
    assert [(t.finding.code, t.count, t.arms) for t in told] == [
        ("answer_differs", 1, ("external_l1",)),
        ("answer_differs", 1, ("external_l2",)),
        ("foreign_traffic", 3, ("cold", "warm", "external_l1")),
        ("too_short_to_hit", 1, ("cold",)),
    ]
    assert [f.text for f in told[2].others] == [same[2].text], "its own numbers are not lost"
    assert sentences([*same, short]) == (
        "cold, warm, external_l1: others sent 1200 prompt tokens to the engine meanwhile (in cold) "
        "(foreign_traffic, 3 times). Alone it is quicker.",
    )
    page = render_html(view(findings=[FindingView(**f.to_json()) for f in same]), [])
    assert page.count("foreign_traffic") == 1 and "external_l1: others sent 340" in page
