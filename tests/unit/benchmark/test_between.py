"""What others did between the passes, told from an engine's counters alone."""

from __future__ import annotations

from app.benchmark.between import Between
from app.benchmark.stack import Engine
from app.fleet.targets import EngineTarget
from app.vllm.metrics import EngineMetrics, engine_metrics, parse_metrics
from tests.unit.benchmark.test_tokens import asked


def counters(prompt_tokens: int, *, started: float = 1.7e9) -> EngineMetrics:
    text = f"process_start_time_seconds {started}\nvllm:prompt_tokens_total {prompt_tokens}\n"
    return engine_metrics(parse_metrics(text))


def engine(number: int = 1) -> Engine:
    from unittest.mock import Mock

    target = Mock(spec=EngineTarget, id=number)
    target.name = "qwen"
    return Engine(target, Mock(), Mock(), Mock(), None)


def told(between: Between, now: EngineMetrics | None, number: int = 1) -> list[str]:
    return [f.text for f in between.engine_findings(engine(number), now, "B, run 1, pass 2")]


def test_nothing_moved_and_nothing_is_said() -> None:
    between = Between()
    between.left(engine(), counters(0), counters(1000), [asked()])
    assert told(between, counters(1000)) == []


def test_others_prompts_are_what_moved_since() -> None:
    between = Between()
    between.left(engine(), counters(0), counters(1000), [asked()])
    assert told(between, counters(1070)) == [
        "others sent 70 prompt tokens to the engine qwen between its passes, before B, run 1, pass 2"
    ]


def test_own_tokens_that_were_counted_late_are_not_others() -> None:
    between = Between()
    between.left(engine(), counters(0), counters(600), [asked()])
    assert told(between, counters(1000)) == []
    assert len(told(between, counters(1001))) == 1


def test_a_restart_between_the_passes_is_not_foreign_traffic() -> None:
    between = Between()
    between.left(engine(), counters(0), counters(1000), [asked()])
    assert told(between, counters(5000, started=1.8e9)) == []


def test_of_what_cannot_be_known_nothing_is_claimed() -> None:
    between = Between()
    assert told(between, counters(5000)) == [], "no pass of this engine has ended"
    between.left(engine(), counters(0), counters(1000), [asked(error="refused", ttft=None)])
    assert told(between, counters(2000)) == [], "whether the failed request was counted later is not known"
    between.left(engine(), None, counters(1000), [asked()])
    assert told(between, counters(2000)) == [], "no counters from before"
    between.left(engine(), counters(0), counters(1000), [asked()])
    assert told(between, None) == [], "no counters now"
    assert told(between, counters(2000), number=2) == [], "another engine"
