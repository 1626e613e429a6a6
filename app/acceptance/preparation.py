"""From a run's request to the prompts that are sent: built or given, measured by the engine, grouped into batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.acceptance import fixes
from app.acceptance.controls import Chosen, Control, as_control, other_tokens, with_words
from app.acceptance.facts import Facts
from app.acceptance.finding import Finding
from app.acceptance.lexicon import Tokenizer
from app.acceptance.plan import RunPlan
from app.acceptance.prompts import (
    Planned,
    Prompt,
    as_text,
    assemble,
    batches,
    own_key,
    own_prompt,
    plan_probe,
    plan_prompts,
    room_for_prompts,
    shared_at_least,
    texts_of,
    with_nonce,
    words_for,
    write_text,
)
from app.acceptance.restarts import Hook
from app.acceptance.stack import RunStopped, Stack
from app.acceptance.workload import BuiltShape, controls_for, fits_shared
from app.errors import TargetError
from app.fleet.targets import EngineTarget, ServerTarget, StoreTarget

#: Characters of a text taken as one token, where the engine's tokenizer cannot be asked.
_CHARACTERS_PER_TOKEN = 4
#: Orders of a message's words that are tried until one has as many tokens as the message.
_TURNS = 4


@dataclass(frozen=True)
class RunInput:
    """Everything a run needs, read from its row before it begins."""

    plan: RunPlan
    profile: str
    engine: EngineTarget
    server: ServerTarget
    stores: tuple[StoreTarget, ...]
    second: EngineTarget | None
    own: tuple[Mapping[str, Any], ...]
    api: str
    lengths: tuple[int, ...]
    hook: Hook | None
    deadline: float
    request_timeout: float


@dataclass(frozen=True)
class Prepared:
    """Batches, one probe for each, the warm-up prompt, and the negative controls of some prompts."""

    groups: tuple[tuple[Prompt, ...], ...]
    probes: tuple[Prompt, ...]
    warm_up: Prompt
    controls: tuple[Control, ...] = ()


async def prepare(given: RunInput, stack: Stack, facts: Facts) -> Prepared:
    """Raises RunStopped where the engine cannot be asked, or a prompt is longer than it takes."""
    assert facts.chunk_size is not None
    numbers = given.plan.numbers
    longest = None if facts.max_model_len is None else facts.max_model_len - numbers.max_tokens
    chat = given.api == "chat"
    tokenizer = Tokenizer(stack.vllm, stack.model, given.plan.run_key)
    planned = () if given.own else plan_prompts(numbers, facts.chunk_size, longest=longest, lengths=given.lengths)
    try:
        built = await _built(planned, tokenizer, numbers.max_tokens, chat=chat)
        # A prompt so short that the tokenizer decides whether its variant shares a chunk has none: the run then makes
        # exactly the requests that were told before it.
        sure = [fits_shared(shared_at_least(p), facts.chunk_size) for p in planned]
        built = [p if has else replace(p, other=None) for p, has in zip(built, sure, strict=True)]
        prompts = [*_own(given, chat), *built]
        prompts = [await tokenizer.measure(p) for p in prompts]
        room = room_for_prompts(facts.batch_tokens(), facts.chunk_size)
        groups = batches(prompts, tokens_per_batch=room)
        extra = [plan_probe(facts.chunk_size, i, longest) for i in range(len(groups) + 1)]
        shapes = [BuiltShape(replace(p, tokens=p.tokens or _roughly(p))) for p in prompts]
        controls = [
            await _control(prompts[c.index], c, shapes[c.index].length, tokenizer)
            for c in controls_for(given.plan.arms, shapes, facts.chunk_size, salted=stack.use_salt)
        ]
        probes = [
            replace(p, probe=True, max_tokens=1, other=None, changed=None)
            for p in await _built(extra, tokenizer, numbers.max_tokens, chat=chat)
        ]
        if not stack.use_salt:
            lexicon = await tokenizer.learn([given.plan.run_key])
            ids = lexicon[given.plan.run_key] if lexicon is not None else ()
            groups = tuple(tuple(with_nonce(p, given.plan.run_key, ids) for p in g) for g in groups)
            probes = [with_nonce(p, given.plan.run_key, ids) for p in probes]
            controls = [replace(c, prompt=with_nonce(c.prompt, given.plan.run_key, ids)) for c in controls]
    except TargetError as error:
        raise RunStopped(stack.engine_trouble(error)) from error
    too_long = [p.key for p in prompts if longest is not None and (p.tokens or 0) > longest]
    if too_long:
        text = f"prompts {', '.join(too_long[:5])} are longer than the {longest} tokens the engine takes"
        raise RunStopped(Finding("prompt_too_long", "invalid", text, fixes.SHORTER))
    return Prepared(groups, tuple(probes[:-1]), probes[-1], tuple(controls))


def _roughly(prompt: Prompt) -> int:
    text = prompt.text if prompt.messages is None else prompt.messages[0]["content"]
    return len(text or "") // _CHARACTERS_PER_TOKEN


async def _control(prompt: Prompt, chosen: Chosen, length: int, tokenizer: Tokenizer) -> Control:
    """Token by token where the prompt can be sent so; of a chat message, the words of about that place."""
    ids = prompt.token_ids
    if ids is None and prompt.text is not None:
        ids = await tokenizer.ids(prompt.text)
    if ids is not None:
        changed = other_tokens(ids, chosen.start, min(chosen.stop, len(ids) - 1))
        return as_control(prompt, chosen.place, replace(prompt, text=None, token_ids=changed, tokens=len(ids)))
    worded = prompt
    for turn in range(_TURNS):
        worded = with_words(prompt, chosen.start / length, chosen.stop / length, turn)
        told = None if prompt.tokens is None else await tokenizer.ids(worded.text or "", worded.messages)
        if told is None or len(told) == prompt.tokens:
            break
    return as_control(prompt, chosen.place, worded)


def _own(given: RunInput, chat: bool) -> list[Prompt]:
    return [
        own_prompt(
            own_key(i),
            own["prompt"],
            expected=own.get("expected"),
            scoring=own.get("score"),
            max_tokens=own.get("max_tokens") or given.plan.numbers.max_tokens,
            chat=chat,
        )
        for i, own in enumerate(given.own)
    ]


async def _built(planned: Sequence[Planned], tokenizer: Tokenizer, max_tokens: int, *, chat: bool) -> list[Prompt]:
    texts = [write_text(p.sizing.kind, p.seed, words_for(p.tokens)) for p in planned]
    pairs = list(zip(planned, texts, strict=True))
    lexicon = None
    if not chat and pairs:
        lexicon = await tokenizer.learn(t for _, parts in pairs for t in texts_of(parts))
    if lexicon is None:
        return [as_text(p.key, parts, p.sizing, p.tokens, max_tokens, chat=chat) for p, parts in pairs]
    return [assemble(p.key, parts, p.sizing, p.tokens, lexicon, max_tokens) for p, parts in pairs]
