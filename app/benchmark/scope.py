"""What a result holds for, in one sentence and as facts: no number leaves the panel without it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.benchmark.schemas import BenchmarkInput
from app.benchmark.shapes import TITLES, Plan


def scope(
    request: BenchmarkInput, plan: Plan, snapshots: Mapping[str, Mapping[str, Any]], *, prefix_cache: str
) -> dict[str, Any]:
    """{"sentence", "facts"} from the snapshots taken before ({scenario: snapshot}) and what was asked."""
    b = snapshots.get("b") or {}
    engine, server = b.get("engine") or {}, b.get("server") or {}
    labels = b.get("labels") or {}
    l0, per_token = engine.get("l0_tokens"), engine.get("bytes_per_token")
    working_set = plan.working_set
    bytes_needed = working_set * per_token if per_token else None
    facts: dict[str, Any] = {
        "model": engine.get("model_root") or engine.get("served_model"),
        "dtype": engine.get("dtype") or (engine.get("settings") or {}).get("dtype"),
        "vllm": engine.get("version"),
        "lmcache": server.get("version"),
        "hardware": labels.get("hardware"),
        "image": labels.get("image"),
        "chunk_size": server.get("chunk_size"),
        "form": request.form,
        "shape": request.shape if request.texts is None else "prompts of one's own",
        "contexts": request.prompts if request.form == "request_rate" else request.contexts,
        "tokens": None if request.texts is not None else request.tokens,
        "output_tokens": request.output_tokens,
        "concurrency": request.concurrency or (None if request.form == "request_rate" else 1),
        "rate": request.rate if request.form == "request_rate" else None,
        "prefix_cache": prefix_cache,
        "working_set_tokens": working_set or None,
        "l0_tokens": l0,
        "working_set_of_l0": working_set / l0 if l0 and working_set else None,
        "l1_bytes": server.get("l1_bytes"),
        "l1_of_working_set": server.get("l1_bytes") / bytes_needed if server.get("l1_bytes") and bytes_needed else None,
        "adapters": server.get("adapters"),
    }
    return {"sentence": _sentence(facts, request), "facts": facts}


def _sentence(facts: Mapping[str, Any], request: BenchmarkInput) -> str:
    model = str(facts["model"] or "a model not told").rstrip("/").rpartition("/")[2]
    stack = f"vLLM {facts['vllm'] or 'of unknown version'}"
    if facts["chunk_size"] is not None or facts["lmcache"]:
        stack += f" with LMCache {facts['lmcache'] or 'of unknown version'} (chunk {facts['chunk_size']})"
    where = facts["hardware"] or "hardware not named"
    if request.texts is not None:
        asked = f"{len(request.texts)} prompts of one's own"
    else:
        asked = f"{facts['contexts']:,} × {facts['tokens']:,} tokens, {TITLES.get(request.shape, request.shape)}"
    pace = f"{facts['rate']:g} requests/s" if facts["rate"] else _at_once(facts["concurrency"])
    ratios = []
    if facts["working_set_of_l0"] is not None:
        ratios.append(f"working set {_ratio(facts['working_set_of_l0'])} × L0")
    if facts["l1_of_working_set"] is not None:
        ratios.append(f"L1 {_ratio(facts['l1_of_working_set'])} × working set")
    cache = {"left": "left as it was", "reset": "emptied between the passes", "off": "off"}[facts["prefix_cache"]]
    parts = [model, stack, where, asked, pace, *ratios, f"GPU prefix cache {cache}"]
    return "Holds for " + "; ".join(parts) + "."


def _ratio(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def _at_once(concurrency: int | None) -> str:
    return "one request at a time" if concurrency in (None, 1) else f"{concurrency} requests at a time"
