"""Where tokens came from, what changed, what differs, and what may be said of it."""

from __future__ import annotations

from typing import Any

import pytest

from app.benchmark import snapshot
from app.benchmark.measures import Measured, busy_seconds, gaps, peak_concurrency, times
from app.benchmark.numbers import noise_floor, speed_up
from app.benchmark.tokens import EngineDelta, ServerDelta, TierTokens, foreign_prompt_tokens, split
from app.benchmark.verdict import Finding, Seen, by_kind, conclude, verdict


def asked(**changed: Any) -> Measured:
    values: dict[str, Any] = {
        "scenario": "b",
        "repeat": 1,
        "phase": "second",
        "position": 0,
        "key": "c0",
        "engine": "e",
        "salt": "tk-x",
        "started_at": 0.0,
        "offset": 0.0,
        "total": 1.0,
        "ttft": 0.1,
        "latency": 0.4,
        "itl": (0.1, 0.2),
        "prompt_tokens": 1000,
        "output_tokens": 3,
        "cached_tokens": 960,
        "reachable": 960,
    }
    return Measured(**values | changed)


# --- one request


def test_tpot_and_itl_are_those_of_vllm_bench_serve() -> None:
    one = asked()
    assert one.tpot == pytest.approx(0.15)
    assert asked(output_tokens=1).tpot is None
    assert gaps((0.1, 0.15, 0.4)) == pytest.approx((0.05, 0.25))
    found = times([one, asked(ttft=0.3, latency=0.4, itl=(0.1,), output_tokens=2), asked(error="HTTP 500", ttft=None)])
    assert found.ttft_ms.count == 2
    assert found.ttft_ms.mean == pytest.approx(200)
    assert found.itl_ms.count == 3
    assert found.tpot_ms.median == pytest.approx(125)


def test_duration_and_peak() -> None:
    requests = [asked(offset=0.0, total=1.0), asked(offset=0.5, total=1.0), asked(offset=1.2, total=0.1)]
    assert busy_seconds(requests) == pytest.approx(1.5)
    assert peak_concurrency(requests) == 2
    assert busy_seconds([]) == 0.0


# --- tokens


def test_the_engines_counters_split_local_from_external_and_the_salts_lookups_l1_from_l2() -> None:
    found = split(
        [asked(), asked(position=1)],
        EngineDelta(prompt_tokens=2000, local_hits=0, external_hits=1920),
        ServerDelta(requested=1920, hit_l1=960, hit_l2=960),
        l0_empty=True,
        has_cache=True,
    )
    assert (found.prompt, found.l0, found.l1, found.l2, found.recomputed) == (2000, 0, 960, 960, 80)
    assert found.share == 1.0
    assert found.note is None


def test_a_split_of_what_the_gpu_cache_served_too_is_an_estimate() -> None:
    found = split(
        [asked()],
        EngineDelta(prompt_tokens=1000, local_hits=480, external_hits=480),
        ServerDelta(requested=960, hit_l1=720, hit_l2=240),
        l0_empty=False,
        has_cache=True,
    )
    assert (found.l0, found.l1, found.l2) == (480, 360, 120)
    assert "estimated" in (found.note or "")


def test_counters_with_others_in_them_are_not_used() -> None:
    polluted = EngineDelta(prompt_tokens=5000, local_hits=10, external_hits=960)
    empty = split([asked()], polluted, ServerDelta(960, 960, None), l0_empty=True, has_cache=True)
    assert (empty.l0, empty.l1, empty.l2, empty.source) == (0, 960, 0, "requests")
    unknown = split([asked()], polluted, None, l0_empty=False, has_cache=True)
    assert unknown.l0 is None
    assert unknown.recomputed is None
    assert unknown.note
    assert unknown.reachable == 960


def test_without_a_cache_server_all_that_was_cached_is_local() -> None:
    found = split([asked(reachable=None)], None, None, l0_empty=False, has_cache=False)
    assert (found.l0, found.external, found.recomputed, found.reachable) == (960, 0, 40, None)


def test_an_older_server_tells_no_tiers() -> None:
    found = split([asked()], EngineDelta(1000, 0, 960), ServerDelta(960, None, None), l0_empty=True, has_cache=True)
    assert (found.external, found.l1, found.l2) == (960, None, None)
    assert found.recomputed == 40


def test_foreign_prompts_are_what_the_engine_counted_beyond_ours() -> None:
    assert foreign_prompt_tokens([asked()], EngineDelta(prompt_tokens=1000)) == 0
    assert foreign_prompt_tokens([asked()], EngineDelta(prompt_tokens=1300)) == 300
    assert foreign_prompt_tokens([asked()], EngineDelta()) is None
    assert foreign_prompt_tokens([asked(error="HTTP 500", ttft=None)], EngineDelta(prompt_tokens=1300)) is None


# --- snapshots


def taken(**engine: Any) -> dict[str, Any]:
    facts = {
        "name": "e",
        "version": "0.32.0",
        "process_start": 1.0,
        "model_root": "/m",
        "l0_tokens": 16384,
        "layout_fingerprint": "ab",
        "dtype": "bfloat16",
        "bytes_per_token": 512,
        "world_size": 1,
        "object_groups": 1,
        "settings": {"enforce_eager": True, "kv_connector": "LMCacheMPConnector"},
        "settings_known": True,
    }
    server = {"name": "s", "version": "0.5.6", "process_start": 2.0, "instance_id": "i", "chunk_size": 64}
    return {"engine": facts | engine, "server": server, "labels": {"hardware": None, "image": None}}


def test_the_same_stack_has_not_changed_and_a_restart_is_a_change() -> None:
    assert snapshot.changes(taken(), taken()) == []
    found = snapshot.changes(taken(), taken(process_start=9.0))
    assert found == ["engine e: the process was restarted"]
    assert snapshot.changes(taken(), taken(process_start=9.0), restarts=True) == []


def test_a_changed_flag_is_named_and_an_unreadable_one_proves_nothing() -> None:
    found = snapshot.changes(taken(), taken(settings={"enforce_eager": False, "kv_connector": None}))
    assert found == ["engine e: enforce_eager changed from True to False"]
    assert snapshot.changes(taken(), taken(version=None)) == []


def test_a_reader_that_changed_is_named() -> None:
    before, after = taken(), taken()
    before["readers"] = [taken(name="reader")["engine"], taken(name="gone")["engine"]]
    after["readers"] = [taken(name="reader", version="0.33.0")["engine"]]
    assert snapshot.changes(before, after) == ["engine reader: version changed from '0.32.0' to '0.33.0'"]


def test_only_the_connector_differs() -> None:
    alone = taken(name="other", process_start=5.0, settings={"enforce_eager": True, "kv_connector": None})
    alone["server"] = None
    found = snapshot.differences(alone, taken())
    assert {d["field"] for d in found} == {"kv_connector", "cache server"}
    assert snapshot.only_the_connector(found, alone, taken()) is True


def test_another_image_or_flag_is_a_difference_of_its_own() -> None:
    other = taken(settings={"enforce_eager": False, "kv_connector": None})
    other["labels"]["image"] = "vllm/vllm-openai:v0.32.0"
    found = snapshot.differences(other, taken())
    assert {(d["part"], d["field"]) for d in found if not d["connector"]} == {
        ("engine", "enforce_eager"),
        ("label", "image"),
    }
    assert snapshot.only_the_connector(found, other, taken()) is False
    blind = taken(settings={}, settings_known=False)
    assert snapshot.only_the_connector([], blind, taken()) is None


# --- what may be said


def seen(a: list[float] | None, b: list[float], again: list[float] = [], **changed: Any) -> Seen:  # noqa: B006
    tokens = TierTokens(prompt=1000, l0=0, l1=960, l2=0, external=960, recomputed=40, reachable=960, share=1.0)
    values: dict[str, Any] = {
        "shape": "repeat",
        "median_b": sorted(b)[len(b) // 2],
        "first_b": None,
        "median_a": None if a is None else sorted(a)[len(a) // 2],
        "speed_up": None if a is None else speed_up(a, b),
        "noise": noise_floor(a or b, again),
        "tokens": tokens,
    }
    return Seen(**values | changed)


def test_a_gain_must_exceed_the_noise_and_the_range() -> None:
    assert conclude(seen([1276.0, 1279.1, 1289.0], [653.0, 655.2, 656.0], [1281.0])).kind == "gain"
    assert conclude(seen([100.0, 101.0, 102.0], [99.0, 100.0, 101.0], [108.0])).kind == "within_noise"
    assert conclude(seen([100.0, 100.5, 101.0], [98.0, 99.0, 101.5], [100.4])).kind == "within_noise"
    assert conclude(seen([50.0, 50.5, 51.0], [60.0, 61.0, 62.0], [50.4])).kind == "slower"
    assert conclude(seen([50.0], [60.0])).kind == "undecided"


def test_use_once_says_that_there_is_no_gain_and_what_it_costs() -> None:
    nothing = TierTokens(prompt=1000, l0=0, l1=0, l2=0, external=0, recomputed=1000, reachable=0)
    found = conclude(seen([50.0, 50.1, 50.2], [52.0, 52.1, 52.2], [50.6], shape="use_once", tokens=nothing))
    assert found.kind == "no_gain"
    assert found.text.startswith("No gain")
    assert "4.0 % longer" in found.text
    assert "0 of 1,000 prompt tokens came back" in found.text


def test_faster_without_a_token_from_a_cache_is_no_gain_of_the_cache() -> None:
    nothing = TierTokens(prompt=1000, l0=0, l1=0, l2=0, external=0, recomputed=1000, reachable=960, share=0.0)
    assert conclude(seen([100.0, 101.0, 102.0], [50.0, 51.0, 52.0], [100.0], tokens=nothing)).kind == "undecided"
    found = conclude(seen([100.0, 101.0, 102.0], [50.0, 51.0, 52.0], [100.0], shape="use_once", tokens=nothing))
    assert found.kind == "undecided"


def test_b_alone_compares_its_passes() -> None:
    assert conclude(seen(None, [50.0, 51.0, 52.0], first_b=100.0)).kind == "gain"
    assert conclude(seen(None, [50.0, 51.0, 52.0], first_b=51.2)).kind == "within_noise"
    assert conclude(seen(None, [50.0, 51.0, 52.0], first_b=50.0, shape="use_once")).kind == "no_gain"


def test_an_error_outweighs_an_invalidity_and_warnings_spoil_nothing() -> None:
    warning, invalid, error = (Finding(x, x, x) for x in ("warning", "invalid", "error"))  # type: ignore[arg-type]
    assert verdict([warning]).name == "valid"
    assert verdict([warning, invalid, invalid]).deciding == (invalid,)
    assert verdict([invalid, error, warning]).name == "error"
    assert [f.code for f in verdict([warning, invalid, error]).findings] == ["error", "invalid", "warning"]


def test_findings_of_one_kind_stand_together_in_their_order() -> None:
    first, second = (Finding("foreign_traffic", "invalid", f"others, pass {n}", "wait") for n in (1, 2))
    other = Finding("foreign_traffic", "invalid", "others, elsewhere", "look elsewhere")
    note = Finding("foreign_traffic", "note", "others, pass 3", "wait")
    assert by_kind([first, other, second, note]) == [[first, second], [other], [note]]
    assert by_kind([]) == []
