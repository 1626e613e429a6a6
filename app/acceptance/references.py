"""Cold answers that an arm is compared with: asked under salts that nobody has sent before, and shown to be cold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from app.acceptance import fixes
from app.acceptance.answers import AnswerSet
from app.acceptance.arms import Asking, row_of
from app.acceptance.controls import Control, ControlSeen, judge
from app.acceptance.evidence import resolve
from app.acceptance.finding import Finding
from app.acceptance.prompts import Prompt, salt
from app.acceptance.stack import Asked, Stack


async def ask_cold(
    name: str, stack: Stack, prompts: Sequence[tuple[Prompt, str]], problems: list[Finding], arm: str
) -> AnswerSet:
    """The answers to (prompt, new salt) pairs. A reference that was served from a cache is none: that goes to
    `problems`, as the arm it was asked for."""
    asked = [await stack.ask(prompt, new_salt, stream=True) for prompt, new_salt in prompts]
    problems += not_cold(asked, arm)
    return AnswerSet.of(name, [a.answer for a in asked])


async def ask_controls(
    stack: Stack, asking: Asking, controls: Sequence[Control], problems: list[Finding]
) -> list[tuple[Control, Asked]]:
    """The controls, each under a salt of its own; part of no arm. Asked before the prompts whose records are read back:
    where a cache is short of room, what came first goes first."""
    asked = [(c, await stack.ask(c.prompt, salt(stack.run_key, c.prompt.key), stream=True)) for c in controls]
    for _, one in asked:
        asking.remember(one)
    # Behind a nonce that it shares with other prompts, a control may find the nonce cached.
    problems += not_cold([one for _, one in asked], "cold") if stack.use_salt else []
    rows = [
        row_of("control", one, resolve(one.counts, asking.chunk_size, local_empty=True), repeat=1) for _, one in asked
    ]
    await asyncio.to_thread(asking.save, rows)
    return asked


def controls_seen(
    run_key: str, asked: Sequence[tuple[Control, Asked]], cold: AnswerSet, asking: Asking
) -> list[ControlSeen]:
    """What the controls showed beside the cold answers of their prompts."""
    floor = asking.tolerance.floor.max_abs_nats if asking.tolerance is not None else None
    return [
        judge(
            control.place,
            original,
            one.answer,
            floor=floor,
            lengths=(asking.lengths.get(salt(run_key, control.of)), one.counts.prompt_tokens),
        )
        for control, one in asked
        if (original := cold.answers.get(control.of)) is not None
    ]


def changed_heads_seen(
    prompts: Sequence[Prompt], cold: AnswerSet, changed: AnswerSet, asking: Asking
) -> list[ControlSeen]:
    """The cold answers to prompts with another first token, as controls of their heads; texts grow by their change."""
    floor = asking.tolerance.floor.max_abs_nats if asking.tolerance is not None else None
    return [
        judge("first", a, b, floor=floor, lengths=(prompt.tokens, prompt.changed.tokens), arm="changed_head")
        for prompt in prompts
        if prompt.changed is not None
        and prompt.changed.token_ids is not None
        and (prompt.tokens or 0) >= asking.chunk_size
        and (a := cold.answers.get(prompt.key)) is not None
        and (b := changed.answers.get(prompt.changed.key)) is not None
    ]


def not_cold(asked: Sequence[Asked], arm: str) -> list[Finding]:
    """What is wrong with requests that had to be computed whole; nothing where their numbers do not say."""
    cached = sum(a.counts.cached_tokens or 0 for a in asked)
    if not cached:
        return []
    text = f"{cached} tokens of its cold reference came from a cache although its prompts were new to everybody"
    return [Finding("not_cold", "invalid", text, fixes.SALT, arm)]
