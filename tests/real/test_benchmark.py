"""The benchmark on the real stack: the published A/B scaled to it, use once, a server stopped half-way, and the times
held to those of `vllm bench serve`. One panel, its REST API and its command line.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real.panel import Panel
from tests.real.stack.clients import wait_until
from tests.real.stack.control import RealStack

# Two engines start side by side, and a run of the scaled form makes some 800 requests.
pytestmark = pytest.mark.timeout(3600)
# How far the medians may lie apart: this part of the median, and this many milliseconds on top.
PART, MILLISECONDS = 0.05, 1.0
HARDWARE = f"{os.cpu_count()} virtual CPU cores, no GPU"
PROMPTS, ANSWER_TOKENS = 30, 16
#: Whose turn it is: alternated, and mirrored in the middle, so that a steady drift weighs on both clients alike.
ORDER = ("ours", "theirs", "theirs", "ours", "theirs", "ours", "ours", "theirs")


@dataclass(frozen=True)
class Bench:
    """The panel with the stack's server, its engine (B) and one without the connector (A)."""

    stack: RealStack
    panel: Panel
    server_id: str
    b: str
    a: str

    def run(self, *, seconds: float = 900, name: str = "", **body: Any) -> dict[str, Any]:
        """One run, ended. Under `name` its exports are kept in $TIERKEEPER_REAL_RESULTS, where that is set."""
        run = self.panel.work("/benchmark-runs", {"engine_id": self.b, **body}, seconds=seconds)
        folder = os.environ.get("TIERKEEPER_REAL_RESULTS")
        if name and folder:
            for form in ("json", "md", "txt", "svg"):
                kept = self.panel.client.get(f"/benchmark-runs/{run['id']}/export.{form}")
                Path(folder, f"{name}.{form}").write_bytes(kept.content)
        return run


@pytest.fixture(scope="module")
def bench(session_stack: RealStack) -> Iterator[Bench]:
    stack = session_stack
    stack.ensure()
    stack.start_engine("alone", connector=False)
    panel = Panel(stack)
    try:
        server = panel.post("/servers", {"name": "real", "url": stack.server.url})
        engine = panel.post("/engines", {"name": "cached", "url": stack.engine().url, "server_id": server["id"]})
        alone = panel.post("/engines", {"name": "alone", "url": stack.engine("alone").url})
        panel.post("/stores", {"name": "disk", "path": str(stack.l2), "server_id": server["id"], "confirm": True})
        wait_until("first poll", lambda: panel.get(f"/engines/{engine['id']}")["l0"]["capacity_tokens"], 20)
        panel.wait_polled(server["id"])
        yield Bench(stack, panel, server["id"], engine["id"], alone["id"])
    finally:
        panel.stop()
        stack.stop_engine("alone")


def scenario(run: dict[str, Any], name: str) -> dict[str, Any]:
    return next(s for s in run["result"]["scenarios"] if s["name"] == name)


def test_the_scaled_ab_form(bench: Bench) -> None:
    """The published experiment with this stack's ratios: nothing of pass 1 survives in L0, all of it is in L1."""
    before = set(bench.stack.records())
    run = bench.run(
        baseline_engine_id=bench.a,
        experiment="ab",
        experiment_mode="scaled",
        output_tokens=1,
        hardware=HARDWARE,
        name="ab",
    )
    assert run["verdict"] == "valid", run["findings"]
    facts = run["scope"]["facts"]
    assert facts["tokens"] == 239  # 8,000 ÷ 2,144 chunks of 64 tokens
    assert facts["working_set_of_l0"] > 1.4
    assert facts["prefix_cache"] == "left"
    a, b = scenario(run, "a"), scenario(run, "b")
    assert (a["cache"], b["cache"]) == ("none", "lmcache")
    # 3 of 3.73 chunks of every prompt come back, as published; the engine alone computes all of them again.
    tokens = run["result"]["tokens"]
    contexts = facts["contexts"] * len([r for r in b["runs"] if r["measured"]])
    assert tokens["reachable"] == contexts * 192
    assert tokens["share"] == pytest.approx(1.0, abs=0.02)
    assert (tokens["l0"], tokens["l2"]) == (0, 0)
    assert a["tokens"]["l0"] == 0
    assert a["tokens"]["recomputed"] == a["tokens"]["prompt"]
    assert run["result"]["only_the_connector"] is True, run["result"]["differences"]
    assert run["result"]["speed_up"]["value"] > 0
    assert run["result"]["conclusion"]["text"]
    for phase in (p for r in b["runs"] for p in r["phases"] if p["name"] == "first"):
        assert phase["stored"]["drained"] is True, phase["stored"]
    rows = bench.panel.get("/experiments/ab")["variants"][0]["rows"]
    assert rows[0]["mine"] == a["ttft_ms"]["median"]
    assert rows[0]["ratio"] == pytest.approx(rows[0]["mine"] / 1279.1)
    assert set(bench.stack.records()) == before, "the run's own records were not removed"


def test_use_once_shows_no_gain_and_says_so(bench: Bench) -> None:
    run = bench.run(
        baseline_engine_id=bench.a,
        shape="use_once",
        contexts=8,
        tokens=600,
        repeats=3,
        output_tokens=2,
        hardware=HARDWARE,
        name="use-once",
    )
    assert run["verdict"] == "valid", run["findings"]
    tokens = run["result"]["tokens"]
    assert (tokens["l0"], tokens["l1"], tokens["l2"]) == (0, 0, 0)
    assert tokens["recomputed"] == tokens["prompt"]
    conclusion = run["result"]["conclusion"]
    # On a noisy machine the engine alone may happen to be slower; it is never called a gain of the cache.
    assert conclusion["kind"] in ("no_gain", "undecided"), conclusion
    assert "nothing recurs" in conclusion["text"]
    assert "0 of" in conclusion["text"]


def test_pass_two_reads_from_disk_when_l1_is_emptied(bench: Bench) -> None:
    run = bench.run(contexts=4, tokens=400, repeats=1, output_tokens=2, empty_l1=True, noise_repeat=False)
    assert run["verdict"] == "valid", run["findings"]
    tokens = run["result"]["tokens"]
    assert tokens["l2"] == 4 * 384, tokens
    assert tokens["l1"] == 0


def test_the_command_ends_0_for_a_valid_run(bench: Bench) -> None:
    done = bench.panel.command(
        *(
            "bench",
            "--engine",
            "cached",
            "--contexts",
            "3",
            "--tokens",
            "300",
            "--repeats",
            "1",
            "--output-tokens",
            "3",
        ),
        *("--no-noise-repeat", "--tables"),
    )
    assert done.returncode == 0, done.stderr
    assert "Serving Benchmark Result" in done.stdout
    assert "valid: cached" in done.stdout


def test_times_agree_with_vllm_bench_serve(bench: Bench, tmp_path: Path) -> None:
    """The same texts, cold under new salts, asked by both clients turn about in one session.

    Every turn of a client is one sample of a machine that drifts: the order is alternated and then mirrored, so that
    a drift weighs on both alike, and the medians are those over all turns. Nothing widens what is allowed.
    """
    turns = agreement(bench, tmp_path)
    medians = {
        name: {who: statistics.median(x for turn in of[who] for x in turn) for who in of} for name, of in turns.items()
    }
    each = {
        name: {who: [round(statistics.median(turn), 3) for turn in of[who]] for who in of} for name, of in turns.items()
    }
    keep({"medians_ms": medians, "medians_of_each_turn_ms": each, "order": ORDER}, "agreement")
    apart = {
        name: (of["ours"], of["theirs"])
        for name, of in medians.items()
        if abs(of["ours"] - of["theirs"]) > PART * of["theirs"] + MILLISECONDS
    }
    assert not apart, (apart, each)


def agreement(bench: Bench, folder: Path) -> dict[str, dict[str, list[list[float]]]]:
    """metric -> {ours, theirs} -> the values of each turn, milliseconds."""
    found: dict[str, dict[str, list[list[float]]]] = {m: {"ours": [], "theirs": []} for m in ("TTFT", "TPOT", "ITL")}
    texts = [sentence(seed) for seed in range(PROMPTS)]
    for turn, who in enumerate(ORDER):
        times = panel_times(bench, texts) if who == "ours" else vllm_times(bench, texts, folder, f"serve-{turn}")
        for name, values in times.items():
            found[name][who].append(values)
    return found


def keep(found: Any, name: str) -> None:
    """Beside the runs' exports, where results are kept."""
    folder = os.environ.get("TIERKEEPER_REAL_RESULTS")
    if folder:
        Path(folder, f"{name}.json").write_text(json.dumps(found, indent=1))


def sentence(seed: int) -> str:
    words = (
        "cache",
        "server",
        "engine",
        "token",
        "prompt",
        "record",
        "chunk",
        "tier",
        "disk",
        "memory",
        "layer",
        "block",
    )
    return " ".join(words[(seed * 7 + i * i + i * seed) % len(words)] for i in range(120))


def panel_times(bench: Bench, texts: list[str]) -> dict[str, list[float]]:
    """Of the cold pass of the measured run: run 0 is there to warm up whatever slept."""
    run = bench.run(texts=texts, repeats=1, noise_repeat=False, output_tokens=ANSWER_TOKENS)
    assert run["verdict"] == "valid", run["findings"]
    kept = bench.panel.items(f"/benchmark-runs/{run['id']}/requests", phase="first", page_size=500)
    rows = [row for row in kept if row["repeat"] == 1]
    assert len(rows) == len(texts)
    return {
        "TTFT": [r["ttft_ms"] for r in rows],
        "TPOT": [r["tpot_ms"] for r in rows],
        "ITL": [gap for r in rows for gap in r["itl_ms"]],
    }


def vllm_times(bench: Bench, texts: list[str], folder: Path, salt: str) -> dict[str, list[float]]:
    """What vLLM's own client measures of the same texts under a new salt."""
    stack = bench.stack
    prompts = folder / "prompts.json"
    turns = [[{"from": "human", "value": text}, {"from": "gpt", "value": "an answer"}] for text in texts]
    prompts.write_text(json.dumps([{"conversations": conversation} for conversation in turns]))
    result = folder / f"{salt}.json"
    command = [
        stack.environment.program("vllm"),
        *("bench", "serve", "--backend", "openai", "--base-url", stack.engine().url, "--endpoint", "/v1/completions"),
        *("--model", stack.engine().served_name, "--tokenizer", str(stack.environment.model)),
        *("--dataset-name", "sharegpt", "--dataset-path", str(prompts), "--sharegpt-output-len", str(ANSWER_TOKENS)),
        *("--disable-shuffle", "--num-prompts", str(len(texts)), "--max-concurrency", "1"),
        *("--ignore-eos", "--temperature", "0", "--extra-body", json.dumps({"cache_salt": salt})),
        *("--ready-check-timeout-sec", "0", "--percentile-metrics", "ttft,tpot,itl"),
        *("--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", result.name),
    ]
    env = stack.clean_environment() | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-1000:]
    found = json.loads(result.read_text())
    assert found["completed"] == len(texts), found
    itls = found["itls"]
    tpot = [sum(gaps) / (tokens - 1) for gaps, tokens in zip(itls, found["output_lens"], strict=True)]
    return {
        "TTFT": [1000 * v for v in found["ttfts"]],
        "TPOT": [1000 * v for v in tpot],
        "ITL": [1000 * gap for gaps in itls for gap in gaps],
    }


def test_a_server_stopped_half_way_is_invalid_and_not_fast(bench: Bench) -> None:
    """Last: it leaves the stack without its server."""
    stack, panel = bench.stack, bench.panel
    ended = threading.Event()

    def stop_in_pass_two() -> None:
        while not ended.wait(0.05):
            newest = panel.get("/benchmark-runs", page_size=1)["items"][0]
            if newest["state"] == "running" and "run 0, pass 2" in newest["stage"]:
                stack.stop_server(hard=True)
                return

    helper = threading.Thread(target=stop_in_pass_two)
    helper.start()
    try:
        run = bench.run(contexts=40, tokens=400, repeats=1, output_tokens=2, noise_repeat=False)
    finally:
        ended.set()
        helper.join()
    assert run["verdict"] == "invalid", run["findings"]
    assert any(f["code"].startswith("server_") for f in run["findings"] if f["severity"] == "invalid"), run["findings"]
    assert run["result"]["speed_up"] is None
    assert run["result"]["conclusion"]["kind"] == "none"
