"""What must hold before the first request is timed, and what is decided there: targets, prefix cache, vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from app.acceptance.lexicon import Tokenizer
from app.benchmark import fixes
from app.benchmark.ports import Pace
from app.benchmark.prompts import Vocabulary, make_vocabulary, vocabulary_text
from app.benchmark.schemas import BenchmarkInput
from app.benchmark.shapes import Plan, reachable
from app.benchmark.stack import Engine, RunStopped, Side, reset_l0
from app.benchmark.verdict import Finding
from app.errors import TargetError
from app.lmcache.polling import ServerReading
from app.vllm.client import VLLMClient
from app.vllm.polling import EngineReading

#: Forms that cannot do without a cache server.
NEED_SERVER = ("restart", "accumulation", "lookup")


def usable_engine(name: str, reading: EngineReading) -> None:
    """Raises RunStopped for an engine that cannot be measured at all."""
    if not reading.http_up:
        text = f"the engine {name} does not answer: {reading.health_reason or reading.metrics_reason}"
        raise RunStopped(Finding("engine_unreachable", "error", text, fixes.ENGINE_DOWN))
    if not reading.models:
        text = f"the engine {name} lists no model: {reading.models_reason or 'the list is empty'}"
        raise RunStopped(Finding("no_model", "error", text, fixes.ENGINE_DOWN))


def has_connector(reading: EngineReading) -> bool | None:
    """Whether an engine that has answered at least one prompt has a KV connector; None where it does not tell.

    With one, every prompt's tokens that the GPU cache lacks are asked for outside, and counted so.
    """
    metrics = reading.metrics
    if (reading.facts is not None and reading.facts.kv_connector) or (metrics is not None and metrics.in_process):
        return True
    if metrics is None or not metrics.prompt_tokens:
        return None
    return metrics.lookup_seconds_count is not None or bool(metrics.external_queries)


def usable_server(name: str, reading: ServerReading) -> None:
    """Raises RunStopped for a cache server that cannot be measured at all."""
    if not reading.http_up:
        text = f"the cache server {name} does not answer: {reading.health_reason or reading.status_reason}"
        raise RunStopped(Finding("server_unreachable", "error", text, fixes.SERVER_DOWN))
    if reading.status is None:
        text = f"the cache server's /status cannot be read: {reading.status_reason}"
        raise RunStopped(Finding("server_unreadable", "error", text, fixes.SERVER_DOWN))
    if reading.status.engines_registered == 0 and not reading.status.context_ids:
        text = f"no engine is registered at the cache server {name}"
        raise RunStopped(Finding("not_registered", "invalid", text, fixes.NOT_REGISTERED))


def check_lengths(request: BenchmarkInput, plan: Plan, engines: Sequence[Engine]) -> None:
    """Raises RunStopped for prompts that an engine does not take."""
    longest = max((p.tokens for p in (*plan.first, *plan.second)), default=0)
    for engine in engines:
        limit = engine.facts.max_model_len
        if limit is not None and longest + request.output_tokens > limit:
            text = (
                f"prompts of {longest:,} tokens and {request.output_tokens} of answer do not fit the {limit:,} tokens "
                f"of the engine {engine.target.name}"
            )
            raise RunStopped(Finding("prompt_too_long", "invalid", text, fixes.SHORTER))


def check_plan(request: BenchmarkInput, plan: Plan, sides: Sequence[Side]) -> list[Finding]:
    """Warnings about what is asked; raises RunStopped for what cannot work."""
    found: list[Finding] = []
    for engine in {e.target.id: e for side in sides for e in side.all_engines}.values():
        if engine.facts.running or engine.facts.waiting:
            number = round(engine.facts.running or 0)
            requests = "1 request" if number == 1 else f"{number} requests"
            text = f"the engine {engine.target.name} was serving {requests} when the run began"
            found.append(Finding("busy", "warning", text, fixes.ALONE))
    roots = {side.title: side.engines[0].facts.model_root for side in sides}
    if len(set(roots.values())) > 1:
        told = "; ".join(f"{title} serves {root!r}" for title, root in roots.items())
        raise RunStopped(
            Finding("other_model", "invalid", f"the scenarios serve different models: {told}", fixes.SCOPE)
        )
    b = next(side for side in sides if side.name == "b")
    if request.form in NEED_SERVER and b.server is None:
        text = f"the engine {b.engines[0].target.name} uses no cache server, which the form {request.form} needs"
        raise RunStopped(Finding("no_server", "invalid", text, fixes.NOT_REGISTERED))
    for reader in b.readers:
        if reader.facts.model_root != b.engines[0].facts.model_root:
            text = f"{reader.target.name} serves {reader.facts.model_root!r}, not the model that was stored"
            raise RunStopped(Finding("other_model", "invalid", text, fixes.SCOPE))
    if b.server is not None and b.chunk_size is None:
        text = "the cache server does not tell its chunk size, so what could come back is not known"
        found.append(Finding("chunk_size_unknown", "warning", text, fixes.CHUNKS))
    elif request.texts is None and request.shape != "use_once" and _nothing_reachable(plan, b.chunk_size):
        text = f"no prompt repeats a whole chunk of {b.chunk_size:,} tokens: nothing can come back"
        found.append(Finding("nothing_reachable", "warning", text, fixes.CHUNKS))
    return found


def _nothing_reachable(plan: Plan, chunk_size: int | None) -> bool:
    if chunk_size is None or not plan.second:
        return False
    return not any(reachable(p.tokens, p.reusable, chunk_size) for p in plan.second)


async def prefix_cache(wanted: str, engines: Sequence[Engine], pace: Pace) -> tuple[str, list[Finding]]:
    """What is done about the engines' own prefix caches: left, reset or off, and what must be said about it.

    Raises RunStopped where what was wished for cannot be had.
    """
    off = [e.facts.prefix_caching is False for e in engines]
    if wanted == "off":
        return _off(engines)
    if wanted == "auto" and all(off):
        return "off", []
    if wanted == "left":
        return "left", []
    try:
        await reset_l0([e for e, is_off in zip(engines, off, strict=True) if not is_off], pace)
    except RunStopped as stop:
        if wanted == "reset" or stop.finding.code != "reset_unavailable":
            raise
        text = (
            f"{stop.finding.text}, so its GPU cache was left as it was: it may serve what the cache server could have"
        )
        return "left", [Finding("prefix_cache_left", "warning", text, fixes.DEV_MODE)]
    return "reset", []


def _off(engines: Sequence[Engine]) -> tuple[str, list[Finding]]:
    found: list[Finding] = []
    for engine in engines:
        name = engine.target.name
        if engine.facts.hybrid:
            text = f"the engine {name} serves a hybrid model, which does not work without its prefix cache"
            raise RunStopped(Finding("hybrid", "invalid", text, fixes.HYBRID))
        if engine.facts.prefix_caching:
            text = f"the engine {name} runs with its prefix cache on"
            raise RunStopped(Finding("prefix_cache_on", "invalid", text, fixes.PREFIX_OFF))
        if engine.facts.prefix_caching is None:
            text = f"whether the prefix cache of the engine {name} is off is not known"
            found.append(Finding("prefix_cache_unknown", "warning", text, fixes.PREFIX_OFF))
    return "off", found


async def learn_vocabulary(client: VLLMClient, model: str, run_key: str) -> Vocabulary:
    """Token ids to make prompts of, from the engine's tokenizer. Raises RunStopped where the engine is gone."""
    text = vocabulary_text()
    try:
        lexicon = await Tokenizer(client, model, run_key).learn([text])
    except TargetError as error:
        raise RunStopped(Finding("engine_unreachable", "error", error.detail, fixes.ENGINE_DOWN)) from error
    return make_vocabulary(None, ()) if lexicon is None else make_vocabulary(lexicon[text], lexicon.lead)
