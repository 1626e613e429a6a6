"""What a run would take and whom it would disturb, before it is started. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.acceptance.facts import batch_room
from app.acceptance.finding import CACHE_ARMS
from app.acceptance.profiles import PROFILES, ProfileNumbers
from app.acceptance.prompts import batched, plan_probe, plan_prompts, room_for_prompts, shared_at_least
from app.acceptance.schemas import EstimateView
from app.acceptance.workload import PlannedShape, asks, workload
from app.fleet.schemas import EngineView, LayoutView, ServerView

#: Characters of an own prompt taken as one token, where nobody has counted them yet.
_CHARACTERS_PER_TOKEN = 4


def estimate(
    frozen: Mapping[str, Any], engine: EngineView, server: ServerView, past_arms: Sequence[Mapping[str, Any]]
) -> EstimateView:
    """Requests, tokens, seconds (from the arms of the last pass, scaled by tokens), and what is disturbed."""
    numbers = PROFILES[frozen["profile"]]
    chunk = server.chunk_size or 256
    longest = None if engine.max_model_len is None else engine.max_model_len - numbers.max_tokens
    arms = list(frozen["arms"])
    shapes = _shapes(frozen, numbers, chunk, longest)
    work = workload(
        arms,
        batched(shapes, [s.length + numbers.max_tokens for s in shapes], _room(engine, server, chunk)),
        numbers,
        chunk,
        probe_tokens=plan_probe(chunk, 0, longest).tokens,
    )
    warnings: list[str] = []
    if server.chunk_size is None:
        warnings.append("the server's chunk size is not known yet; 256 is assumed")
    if engine.reset_available is False and any(a in CACHE_ARMS for a in arms):
        warnings.append("the engine's dev mode is off, so its GPU cache cannot be emptied: the run would end invalid")
    if engine.running or engine.waiting:
        warnings.append(f"the engine serves {_requests(engine.running or 0)} just now, and {engine.waiting or 0} wait")
    warnings += [
        f"no prompt is long enough for {arm.replace('_', ' ')}, so the run would end invalid: use longer prompts, or "
        "leave it out"
        for arm in arms
        if shapes and not any(asks(arm, s, chunk) for s in shapes)
    ]
    answer_tokens = work.requests * numbers.max_tokens
    seconds, told_by = _seconds(work.prompt_tokens, answer_tokens, past_arms, engine)
    per_token, why = _bytes_per_token(engine, server)
    stored = None if per_token is None else round(work.stored_tokens * per_token)
    has_l2 = bool(server.l2) or server.polled_at is None
    return EstimateView(
        arms=arms,
        prompts=len(shapes),
        requests=work.requests,
        compared=work.compared,
        prompt_tokens=work.prompt_tokens,
        answer_tokens=answer_tokens,
        stored_tokens=work.stored_tokens,
        l1_bytes=stored,
        l2_bytes=stored if has_l2 else 0,
        l1_share=None if stored is None or not server.l1.capacity_bytes else stored / server.l1.capacity_bytes,
        bytes_reason=why,
        seconds=seconds,
        seconds_from=told_by,
        seconds_reason=None
        if seconds is not None
        else "until the first run: the engine has answered nothing yet that tells how fast it is",
        deadline_seconds=frozen["deadline_seconds"],
        disturbs=_disturbs(arms, frozen),
        warnings=warnings,
    )


def _shapes(frozen: Mapping[str, Any], numbers: ProfileNumbers, chunk: int, longest: int | None) -> list[PlannedShape]:
    chat = frozen["api"] == "chat"
    if frozen["prompts"]:
        lengths = [max(1, len(p["prompt"]) // _CHARACTERS_PER_TOKEN) for p in frozen["prompts"]]
        return [PlannedShape(n, None, has_head=not chat, exact_changed=False) for n in lengths]
    planned = plan_prompts(numbers, chunk, longest=longest, lengths=frozen["lengths"])
    # What texts share only the tokenizer could tell, so a run leaves their variants out, too.
    return [
        PlannedShape(p.tokens, None if chat else shared_at_least(p), has_head=not chat, exact_changed=not chat)
        for p in planned
    ]


def _room(engine: EngineView, server: ServerView, chunk: int) -> int | None:
    """Prompt tokens of one batch, by the last polls."""
    mine = _layouts(engine, server)
    return room_for_prompts(
        batch_room(
            l0_tokens=engine.l0.capacity_tokens,
            l1_bytes=server.l1.capacity_bytes,
            l1_watermark=server.l1.trigger_watermark,
            bytes_per_token=mine[0].bytes_per_token if mine else None,
            ranks=mine[0].world_size if mine else 1,
        ),
        chunk,
    )


def _layouts(engine: EngineView, server: ServerView) -> list[LayoutView]:
    live = [x for x in server.layouts if x.live]
    return [x for x in live if x.model_name in engine.model_roots] or (live if len(live) == 1 else [])


def _bytes_per_token(engine: EngineView, server: ServerView) -> tuple[float | None, str | None]:
    """(bytes of one token on all ranks, None) or (None, why not). The largest of several layouts."""
    sizes = [x.bytes_per_token * max(1, x.world_size) for x in _layouts(engine, server) if x.bytes_per_token]
    if sizes:
        return max(sizes), None
    return None, "no KV layout of this engine's model is registered at the cache server, so nobody knows a token's size"


def _seconds(
    tokens: int, answer_tokens: int, past_arms: Sequence[Mapping[str, Any]], engine: EngineView
) -> tuple[float | None, str | None]:
    """(seconds, what they rest on): the times of the last run's tokens, before there was one the engine's own speed."""
    spent = 0.0
    counted = 0
    for arm in past_arms:
        mean = (arm.get("ttft_ms") or {}).get("mean")
        if mean is not None and arm.get("prompt_tokens"):
            spent += mean / 1000 * (arm.get("requests") or 0)
            counted += arm["prompt_tokens"]
    if counted == 0:
        prefill, decode = engine.load.prefill_tokens_per_second, engine.load.decode_tokens_per_second
        if not prefill or not decode:
            return None, None
        told_by = (
            f"what {engine.name} needed since its start: it computes {prefill:,.0f} prompt tokens a second and writes "
            f"{decode:,.0f}; as if nothing came from the cache"
        )
        return tokens / prefill + answer_tokens / decode + 5.0, told_by
    return spent / counted * tokens + 5.0, f"the times of the last run of {engine.name}"


def _disturbs(arms: Sequence[str], frozen: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    if any(a in CACHE_ARMS for a in arms):
        found.append("the engine's GPU prefix cache is emptied several times, for everybody who uses the engine")
    if "external_l2" in arms:
        found.append(
            "the cache server's whole L1 is emptied, for every engine"
            if frozen["allow_clear_l1"]
            else "the run's own records are dropped from L1; nobody else's"
        )
    if "restarted_server" in arms:
        found.append("the cache server is restarted")
    if "restarted_engine" in arms:
        found.append("the engine is restarted")
    return found


def _requests(number: int) -> str:
    return f"{number} request{'' if number == 1 else 's'}"
