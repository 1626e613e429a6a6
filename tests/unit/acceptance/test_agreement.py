"""No way of attributing cached tokens outvotes a counter that says otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.acceptance.agreement import agreement
from app.acceptance.counters import EngineCounters, LoadedTokens, SaltCounters
from app.acceptance.evidence import ArmEvidence, TokenEvidence, Totals, total
from app.acceptance.finding import Finding
from app.acceptance.load import LoadEvidence
from app.acceptance.verdict import verdict
from app.vllm.metrics import EngineLoad
from tests.unit.acceptance.factories import CHUNK, arm, good_run

PASSES = ("pass", "pass_with_near_ties")
EVERY_ARM = ("cold", "warm", "external_l1", "external_l2", "mixed")


def streamed(external: int, local: int = 0, prompts: int = 3) -> Totals:
    """Totals of requests whose answers told only that tokens were cached."""
    return total([TokenEvidence(300, local, external, 256, True, "request_cached_tokens")] * prompts, CHUNK)


def evidence(name: str = "external_l1", **changed: Any) -> ArmEvidence:
    return replace(arm(name), totals=streamed(256), **changed)


def findings(found: ArmEvidence) -> list[Finding]:
    assert found.totals is not None
    return agreement(found, found.totals)


def codes(found: ArmEvidence) -> list[str]:
    return [f.code for f in findings(found)]


BUSY = LoadEvidence().with_reading(EngineLoad(3, 0, 0.5), 1)


class TestCounters:
    def test_all_agree(self) -> None:
        assert codes(evidence()) == []

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"engine": EngineCounters(900.0, 0.0, 256.0)}, "the engine counted 256 tokens from outside"),
            ({"engine": EngineCounters(900.0, 0.0, 832.0)}, "the engine counted 832 tokens from outside"),
            ({"engine": EngineCounters(900.0, 512.0, 768.0)}, "the engine counted 512 tokens from its GPU cache"),
            ({"loaded": LoadedTokens(256.0, own=True)}, "the cache server moved 256 tokens into the engine"),
            ({"loaded": LoadedTokens(0.0, own=False)}, "the cache server moved 0 tokens into the engine"),
            ({"server": SaltCounters(768.0, 512.0, 512.0, 0.0)}, "the cache server found 512 tokens"),
        ],
    )
    def test_each_that_says_otherwise_is_told_beside_what_was_attributed(
        self, changed: dict[str, Any], said: str
    ) -> None:
        (finding,) = findings(evidence(**changed))
        assert (finding.code, finding.severity) == ("counters_disagree", "invalid")
        assert "768 tokens came from the cache and 0 from the GPU cache by its requests" in finding.text
        assert said in finding.text
        assert "exactly one engine" in (finding.fix or "")

    def test_others_can_only_add_to_a_counter(self) -> None:
        busy = EngineCounters(9000.0, 4000.0, 5000.0)
        assert codes(evidence(engine=busy)) == []
        assert codes(evidence(engine=replace(busy, external_hits=500.0))) == ["counters_disagree"]

    def test_requests_of_others_seen_in_the_engine_count_as_company(self) -> None:
        more = EngineCounters(900.0, 64.0, 832.0)
        assert codes(evidence(engine=more)) == ["counters_disagree"]
        assert codes(evidence(engine=more, load=BUSY)) == []

    @pytest.mark.parametrize("name", ["cold", "changed_head"])
    def test_nothing_attributed_while_something_was_moved(self, name: str) -> None:
        found = replace(arm("cold"), name=name, totals=streamed(0), loaded=LoadedTokens(64.0, own=True))
        assert codes(found) == ["counters_disagree"]

    def test_statistics_round_a_prompt_of_whole_chunks_up(self) -> None:
        item = TokenEvidence(128, 0, 128, 128, True, "request_statistics")
        engine = EngineCounters(384.0, 0.0, 381.0)
        found = replace(arm("mixed"), totals=total([item] * 3, CHUNK), own_prompt_tokens=384, engine=engine)
        found = replace(found, loaded=LoadedTokens(384.0, own=True))
        assert codes(found) == []
        assert codes(replace(found, engine=replace(engine, external_hits=380.0))) == ["counters_disagree"]


class TestUnconfirmed:
    def test_a_conclusion_that_nothing_counted_confirms_proves_nothing(self) -> None:
        assert codes(evidence(engine=None, loaded=None)) == ["external_unconfirmed"]
        assert codes(evidence(engine=EngineCounters(), loaded=None)) == ["external_unconfirmed"]
        assert codes(evidence(engine=EngineCounters(), loaded=LoadedTokens(900.0, own=False))) == [
            "external_unconfirmed"
        ]

    def test_each_of_these_confirms_it(self) -> None:
        assert codes(evidence(engine=None)) == []  # the server counts by salt
        assert codes(evidence(loaded=None)) == []  # nobody else used the engine
        unused = EngineCounters(9000.0, 0.0, 5000.0)
        assert codes(evidence(loaded=None, engine=unused)) == []  # nobody was served by its GPU cache

    def test_a_busy_engine_of_which_nobody_counts_the_transfers(self) -> None:
        (finding,) = findings(evidence(loaded=None, engine=EngineCounters(9000.0, 800.0, 5000.0)))
        assert finding.code == "external_unconfirmed"
        assert "others' requests too" in finding.text

    def test_the_requests_own_statistics_need_no_counter(self) -> None:
        assert codes(replace(arm("mixed"), engine=None, loaded=None)) == []


@given(
    st.sampled_from(EVERY_ARM),
    st.sampled_from(["engine", "loaded"]),
    st.integers(-300, 300).filter(bool),
    st.booleans(),
)
def test_no_counter_can_be_off_and_the_run_still_pass(name: str, which: str, by: int, streams: bool) -> None:
    run = good_run(EVERY_ARM)
    good = run.arms[name]
    assert good.totals is not None and good.engine is not None and good.loaded is not None
    sources = ("request_cached_tokens",) if streams else good.totals.sources
    changed = replace(good, totals=replace(good.totals, sources=sources))
    if which == "engine":
        counted = max(0.0, (good.engine.external_hits or 0.0) + by)
        off = counted != good.engine.external_hits
        changed = replace(changed, engine=replace(good.engine, external_hits=counted))
    else:
        moved = max(0.0, good.loaded.tokens + by)
        external = good.totals.external_tokens or 0
        off = moved < external or (external == 0 and moved > 0)
        changed = replace(changed, loaded=LoadedTokens(moved, own=True))
    result = verdict(replace(run, arms={**run.arms, name: changed}))
    assert (result.name in PASSES) is not off
