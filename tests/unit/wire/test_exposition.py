"""Metrics text: equal to the reference parser on every capture, robust against everything else."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client import Counter as PromCounter
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from app.errors import TargetError
from app.wire.exposition import Samples, parse_labels, parse_metrics
from tests.unit.wire.raw_http import CAPTURES, capture

SCRAPES = sorted(CAPTURES.glob("*/*metrics*.txt"))
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def as_multiset(samples: Samples) -> Counter[tuple[str, frozenset[tuple[str, str]], str]]:
    return Counter(
        (name, frozenset(labels.items()), repr(value))
        for name in samples.names()
        for labels, value in samples.each(name)
    )


def reference(text: str, skipped: tuple[str, ...] = ()) -> Counter[tuple[str, frozenset[tuple[str, str]], str]]:
    families = text_string_to_metric_families(text)
    return Counter(
        (sample.name, frozenset(sample.labels.items()), repr(float(sample.value)))
        for family in families
        for sample in family.samples
        if not sample.name.endswith(skipped or ("\0",))
    )


@pytest.mark.parametrize("path", SCRAPES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_captured_scrape_reads_as_the_reference_parser_reads_it(path: Path) -> None:
    body = path.read_bytes()
    assert len(SCRAPES) >= 8
    assert as_multiset(parse_metrics(body, "text/plain; version=1.0.0", buckets=True)) == reference(body.decode())
    assert as_multiset(parse_metrics(body)) == reference(body.decode(), ("_bucket", "_created"))


label_values = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from('\n\\"{}=, #'), max_size=12)


@given(st.lists(st.tuples(label_values, label_values, st.floats()), max_size=6))
def test_what_a_prometheus_client_prints_is_read_back(rows: list[tuple[str, str, float]]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("some_gauge", "help with { and \\ and \n", ["one", "two"], registry=registry)
    for one, two, value in rows:
        gauge.labels(one, two).set(value)
    histogram = Histogram("some_seconds", "h", registry=registry)
    histogram.observe(1.5)
    PromCounter("some_total", "c", registry=registry).inc(3)
    for text, kind in (
        (generate_latest(registry).decode(), "text/plain; version=0.0.4"),
        (generate_openmetrics(registry).decode(), OPENMETRICS),
    ):
        samples = parse_metrics(text, kind, buckets=True)
        wanted = {(one, two): value for one, two, value in rows}
        found = {(labels["one"], labels["two"]): value for labels, value in samples.each("some_gauge")}
        assert repr(sorted(found.items())) == repr(sorted(wanted.items()))
        assert samples.total("some_total") == 3
        assert samples.total("some_seconds_sum") == 1.5
        assert samples.total("some_seconds_count") == 1
        assert "some_seconds_bucket" not in parse_metrics(text, kind)


@settings(max_examples=300)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.text(max_size=300),
        st.lists(
            st.sampled_from(['a{b="c"} 1', "{", "}", '"', "\\", "#", " ", "\n", "NaN", '{"x"} 1', "a 1 2 # {}"])
        ).map("".join),
    ),
    st.sampled_from([None, "text/plain", OPENMETRICS, "text/html", "application/json", "\0"]),
)
def test_arbitrary_input_is_read_or_refused(body: bytes | str, kind: str | None) -> None:
    try:
        samples = parse_metrics(body, kind, buckets=True)
        for name in samples.names():
            assert name
            samples.total(name)
            samples.maximum(name)
            list(samples.each(name))
    except TargetError as error:
        assert error.kind in ("unreadable", "too_large")


@pytest.mark.parametrize(
    ("line", "name", "labels", "value"),
    [
        ("a_total 1.754997400236777e+09", "a_total", {}, 1.754997400236777e09),
        ("vllm:x 3 1754997400000", "vllm:x", {}, 3),
        ('x{a="}"} 2', "x", {"a": "}"}, 2),
        ('x{a="{\\"b\\\\c\\n"} 2', "x", {"a": '{"b\\c\n'}, 2),
        ('x { a = "1" , b="2", } 2', "x", {"a": "1", "b": "2"}, 2),
        ("x\t5", "x", {}, 5),
        ("  x   5  ", "x", {}, 5),
        ("x{} 5", "x", {}, 5),
        ('x_total 1.0 # {trace_id="a b"} 0.5 1754997400', "x_total", {}, 1),
        ('x_total{a="b"} 1.0 # {trace_id="}"} 0.5', "x_total", {"a": "b"}, 1),
        ('{"my.metric",a="b"} 4', "my.metric", {"a": "b"}, 4),
        ('{"my.metric"} 4', "my.metric", {}, 4),
        ("x +Inf", "x", {}, math.inf),
        ("x -Inf\r", "x", {}, -math.inf),
    ],
)
def test_lines_off_the_straight_path(line: str, name: str, labels: dict[str, str], value: float) -> None:
    samples = parse_metrics(f"# HELP x y\n\n{line}")
    assert list(samples.each(name)) == [(labels, value)]


@pytest.mark.parametrize(
    "text",
    [
        "<html><body>502</body></html>",
        "lmcache_mp_l1_wri",
        "x{a=b} 1\ny z",
        'x{a="b 1',
        "x one",
        "{} 1",
        '{"error":"x"}',
        "x{ 1",
    ],
)
def test_what_is_no_metrics_text_is_refused(text: str) -> None:
    with pytest.raises(TargetError) as caught:
        list(parse_metrics(text).each("x"))
    assert caught.value.kind == "unreadable"
    assert "not a metric sample" in caught.value.detail


def test_limits_and_content_types() -> None:
    with pytest.raises(TargetError, match="html"):
        parse_metrics(b"a 1", "text/html; charset=utf-8")
    with pytest.raises(TargetError) as caught:
        parse_metrics(b"a 1\n" * 50, max_bytes=100)
    assert caught.value.kind == "too_large"
    with pytest.raises(TargetError) as caught:
        parse_metrics("\n".join(f"a{index} 1" for index in range(50)), max_samples=49)
    assert caught.value.kind == "too_large"
    with pytest.raises(TargetError, match="longer than"):
        parse_metrics('a{b="' + "x" * 70_000 + '"} 1')
    with pytest.raises(TargetError, match="UTF-8"):
        parse_metrics(b"a \xff")
    assert parse_metrics("a 1\n# EOF\nrubbish", OPENMETRICS).total("a") == 1


def test_unknown_is_never_zero() -> None:
    samples = parse_metrics('a{x="1"} 1\na{x="2"} 2.5\nb NaN\nc{x="1"} +Inf\nc{x="2"} -Inf\nd{x="1"} NaN\nd{x="2"} 4')
    assert samples.total("a") == 3.5
    assert samples.total_by("a", "x") == {"1": 1.0, "2": 2.5}
    assert samples.total("b") is None
    assert samples.total("c") is None
    assert samples.total("d") is None
    assert samples.maximum("d") == 4
    assert samples.total("none") is None
    assert samples.maximum("none") is None
    assert "a" in samples
    assert len(samples) == 7


def test_label_texts_with_surrogates_and_nul_are_made_sound() -> None:
    assert parse_labels('a="\ud800\0"') == {"a": "\ufffd\ufffd"}


def best_cpu_ms(run: Iterable[None]) -> float:
    best = math.inf
    began = time.process_time()
    for _ in run:
        best = min(best, time.process_time() - began)
        began = time.process_time()
    return best * 1000


def test_a_pair_of_scrapes_costs_a_fraction_of_the_budget() -> None:
    """10 ms of CPU a target is the budget of a whole poll; parsing must be a small part of it."""
    server = capture("server-with-engine/after-traffic.metrics.txt")
    engine = capture("engine/with-lmcache.metrics.txt")

    def both() -> Iterable[None]:
        for _ in range(10):
            parse_metrics(server)
            parse_metrics(engine)
            yield

    assert best_cpu_ms(both()) < 5


@pytest.mark.parametrize("value", ["-1", "-0.5", "NaN", "+Inf", "-Inf", "1e300", "9223372036854775808"])
def test_what_no_counter_or_gauge_can_be_is_unknown(value: str) -> None:
    samples = parse_metrics(f'a_total {value}\nb{{x="1"}} {value}\nb{{x="2"}} 3\n')
    assert samples.total("a_total") is None
    assert samples.maximum("a_total") is None
    assert samples.total("b") is None
    assert samples.total_by("b", "x") == {"2": 3.0}


@pytest.mark.parametrize(
    ("value", "ratio"), [("0", 0.0), ("0.8", 0.8), ("1.0000000001", 1.0), ("1.2", None), ("-0.1", None), ("NaN", None)]
)
def test_a_ratio_is_from_nothing_to_all(value: str, ratio: float | None) -> None:
    assert parse_metrics(f"usage {value}\n").ratio("usage") == ratio
    assert parse_metrics(f'usage{{x="1"}} 0\nusage{{x="2"}} {value}\n').ratio("usage") == ratio
