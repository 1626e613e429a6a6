"""The first acceptance run among the first steps, and which engines can be a run's second one."""

from __future__ import annotations

from app.web.first_run import FirstStep, first_steps
from app.web.models import EngineVerdict
from app.web.pages.acceptance import second_engines
from tests.unit.web import samples as s


def last_step(*verdicts: EngineVerdict) -> FirstStep:
    return first_steps([s.server()], [v.engine for v in verdicts], [], verdicts)[-1]


class TestFirstAcceptanceRun:
    def test_without_a_run_it_can_be_started(self) -> None:
        step = last_step(EngineVerdict(s.engine(), s.latest("never")))
        assert (step.action, step.path, step.done) == ("Test it", "/acceptance/new?engine_id=1", False)

    def test_one_that_runs_is_shown_not_offered_again(self) -> None:
        running = s.run_view("9", verdict=None, state="running")
        step = last_step(EngineVerdict(s.engine(), s.latest("never", run=running)))
        assert (step.action, step.path, step.text) == ("Watch it", "/acceptance/runs/9", "under way: run 9")

    def test_the_sandbox_starts_its_own(self) -> None:
        step = last_step(EngineVerdict(s.engine(labels={"origin": "sandbox"}), s.latest("never")))
        assert step.path == "/acceptance"
        assert "by itself" in step.text


class TestSecondEngines:
    def test_only_others_of_the_same_model_beside_the_same_cache(self) -> None:
        one = s.engine("1", model_names=["m"], model_roots=[])
        twin = s.engine("2", model_names=["m"], model_roots=[])
        bare = s.engine("3", model_names=["m"], model_roots=[], server_id=None, connector=False)
        other_model = s.engine("4", model_names=["n"], model_roots=[])
        elsewhere = s.engine("5", model_names=["m"], model_roots=[], server_id="2", connector=True)
        unread = s.engine("6", model_names=[], model_roots=[])
        found, why = second_engines(one, [one, twin, bare, other_model, elsewhere, unread])
        assert ([e.id for e in found], why) == (["2", "3", "6"], "")

    def test_none_says_why(self) -> None:
        one = s.engine("1", model_names=["m"], model_roots=[])
        found, why = second_engines(one, [one])
        assert found == []
        assert why == "no other engine serves m at the same cache server or without one"
        assert second_engines(None, [one])[1] == "choose an engine first"
