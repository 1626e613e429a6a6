"""Prompts whose answers can be scored without a judge: planted codewords, arithmetic over planted facts, continuation.

Pure: the texts come from here, their tokens from the engine's tokenizer (a `Lexicon`), and `assemble` puts exact
lengths together. The same profile, chunk size and tokenizer give the same prompts in every run, so that runs can be
compared; what keeps runs apart is the cache salt (RULES.md E1), or a nonce at the head where salts cannot be used.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from app.acceptance.profiles import Kind, ProfileNumbers, Sizing
from app.acceptance.scoring import Scoring

_PLACES = ("north gate", "east hall", "harbour", "old mill", "upper store", "chapel", "signal tower", "west barn")
_WORDS = ("amber", "falcon", "granite", "juniper", "meadow", "orchid", "quartz", "saffron", "tundra", "willow")
_SUBJECTS = ("The clerk", "A courier", "The keeper", "One of the guards", "The carpenter", "A visitor", "The captain")
_VERBS = ("carried", "counted", "repaired", "painted", "inspected", "moved", "forgot", "described")
_OBJECTS = ("the ladders", "two lamps", "a crate of nails", "the ledger", "some rope", "the spare keys", "the benches")
_ENDINGS = ("before noon", "after the rain", "near the well", "without a word", "for the third time", "at dusk")
T = TypeVar("T")
#: Salts are tk-<run>-<prompt>; letters, digits and dashes only, so that they are safe in every record name.
SALT_PREFIX = "tk-"


@dataclass(frozen=True)
class PromptText:
    """The parts of one built-in prompt: filler around a planted text, then a question (both may be empty)."""

    filler: str
    planted: str
    question: str
    other_question: str  # same document, other question
    expected: str | None
    other_expected: str | None
    scoring: Scoring | None


@dataclass(frozen=True)
class Prompt:
    """One prompt as it is sent. Exactly one of `text`, `token_ids`, `messages` is set.

    `other`: the same document with another question, and how many tokens the two share at the head (None where the
    tokenizer cannot tell). `changed`: the same prompt with another first token.
    """

    key: str
    kind: str
    max_tokens: int
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[Mapping[str, str], ...] | None = None
    expected: str | None = None
    scoring: Scoring | None = None
    ignore_eos: bool = False
    tokens: int | None = None  # known or planned length
    probe: bool = False
    other: Prompt | None = None
    shared_tokens: int | None = None
    changed: Prompt | None = None

    @property
    def content(self) -> dict[str, Any]:
        """As stored and as sent."""
        if self.token_ids is not None:
            return {"token_ids": list(self.token_ids)}
        if self.messages is not None:
            return {"messages": [dict(m) for m in self.messages]}
        return {"text": self.text or ""}

    @property
    def digest(self) -> str:
        """16 hex digits of what is sent: equal digests are equal prompts."""
        raw = json.dumps([self.content, self.max_tokens, self.ignore_eos], sort_keys=True).encode()
        return hashlib.sha256(raw).hexdigest()[:16]


@dataclass(frozen=True)
class Lexicon:
    """Token ids of texts, as the engine's tokenizer gives them.

    `lead` is what the tokenizer puts before every text (a begin-of-text token); the texts' own ids come without it.
    """

    ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    lead: tuple[int, ...] = ()

    def __getitem__(self, text: str) -> tuple[int, ...]:
        return self.ids[text]


def salt(run_key: str, prompt_key: str, repeat: int = 0) -> str:
    """``tk-<run>-<prompt>``, with ``c<n>`` for the n-th repeated cold."""
    return f"{SALT_PREFIX}{run_key}-{prompt_key}" + (f"c{repeat}" if repeat else "")


def run_of_salt(text: str) -> tuple[str, str] | None:
    """(run key, rest) of one of our salts; None for any other."""
    if not text.startswith(SALT_PREFIX):
        return None
    run_key, dash, rest = text[len(SALT_PREFIX) :].partition("-")
    return (run_key, rest) if dash and run_key and rest else None


def write_text(kind: Kind, seed: int, filler_words: int) -> PromptText:
    """The parts of the `seed`-th prompt of a kind, with at least `filler_words` words of filler."""
    rng = random.Random(f"tierkeeper {kind} {seed}")  # noqa: S311  (reproducible prose, nothing secret)
    places = rng.sample(_PLACES, 2)
    filler: list[str] = []
    words = 0
    while words < filler_words or not filler:
        sentence = f" {rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)} {rng.choice(_ENDINGS)}."
        words += len(sentence.split())
        filler.append(sentence)
    body = "".join(filler)
    if kind == "codeword":
        codes = [f"{rng.choice(_WORDS)}-{rng.randint(100, 999)}" for _ in places]
        facts = " ".join(f"The codeword of the {p} is {c}." for p, c in zip(places, codes, strict=True))
        ask = [f"\nQuestion: What is the codeword of the {p}?\nAnswer: The codeword of the {p} is" for p in places]
        return PromptText(body, f" {facts}", ask[0], ask[1], codes[0], codes[1], "contains")
    if kind == "arithmetic":
        counts = [rng.randint(11, 49) for _ in places]
        facts = " ".join(f"The {p} holds {n} crates." for p, n in zip(places, counts, strict=True))
        both = f"\nQuestion: How many crates do the {places[0]} and the {places[1]} hold together?\nAnswer: Together"
        one = f"\nQuestion: How many crates does the {places[1]} hold?\nAnswer: It holds"
        return PromptText(body, f" {facts}", both + " they hold", one, str(sum(counts)), str(counts[1]), "number")
    return PromptText(body, "", "", f" {rng.choice(_SUBJECTS)}", None, None, None)


def words_for(tokens: int) -> int:
    """Words of filler that surely make `tokens` tokens (a word is at least one token)."""
    return tokens + 16


def texts_of(parts: PromptText) -> tuple[str, ...]:
    """What the tokenizer must be asked for this prompt."""
    return tuple(t for t in (parts.filler, parts.planted, parts.question, parts.other_question) if t)


def assemble(key: str, parts: PromptText, sizing: Sizing, tokens: int, lexicon: Lexicon, max_tokens: int) -> Prompt:
    """A prompt of exactly `tokens` tokens: filler, the planted text at its depth, filler, question.

    Where the facts and the question do not fit, the prompt is filler alone and is not scored.
    """
    lead, filler = lexicon.lead[: tokens - 1], lexicon[parts.filler]
    planted = lexicon[parts.planted] if parts.planted else ()
    question = lexicon[parts.question] if parts.question else ()
    room = tokens - len(lead) - len(planted) - len(question)
    fits = room >= 2 and bool(planted)
    if not fits:
        planted, question, room = (), (), tokens - len(lead)
    if len(filler) < room:
        filler = filler * (room // max(1, len(filler)) + 1)
    at = min(room, max(1, round(sizing.depth * room)))
    ids = lead + filler[:at] + planted + filler[at:room] + question
    prompt = Prompt(
        key=key,
        kind=sizing.kind if fits else "continuation",
        max_tokens=max_tokens,
        token_ids=ids,
        expected=parts.expected if fits else None,
        scoring=parts.scoring if fits else None,
        ignore_eos=not fits,
        tokens=len(ids),
    )
    document = ids[: len(ids) - len(question)]
    other_ids = document[: max(0, tokens - 1)] + lexicon[parts.other_question]
    other = replace(
        prompt,
        key=f"{key}v",
        token_ids=other_ids,
        tokens=len(other_ids),
        expected=parts.other_expected if fits else None,
    )
    head = len(lead)
    changed_ids = (*lead, _another_token(ids[head], filler), *ids[head + 1 :])
    return replace(
        prompt,
        other=other,
        shared_tokens=common_prefix(ids, other_ids),
        changed=replace(prompt, key=f"{key}h", token_ids=changed_ids, expected=None, scoring=None),
    )


def _another_token(token: int, vocabulary: Sequence[int]) -> int:
    """A token that the tokenizer is known to have, other than this one."""
    return next((t for t in vocabulary if t != token), token + 1)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two prompts share at the head."""
    shared = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        shared += 1
    return shared


def as_text(key: str, parts: PromptText, sizing: Sizing, tokens: int, max_tokens: int, *, chat: bool) -> Prompt:
    """The same prompt as text or as one chat message, for engines that take no token ids; the length is approximate."""
    words = parts.filler.split(" ")
    body = " ".join(words[: max(8, int(tokens * 0.7))])
    cut = body.find(".", int(sizing.depth * len(body))) + 1
    document = body[:cut] + parts.planted + body[cut:]
    prompt = _text_prompt(key, sizing.kind, document + (parts.question or ""), max_tokens, chat=chat)
    prompt = replace(
        prompt, expected=parts.expected, scoring=parts.scoring, ignore_eos=parts.expected is None, tokens=None
    )
    other = _text_prompt(f"{key}v", sizing.kind, document + parts.other_question, max_tokens, chat=chat)
    changed = _text_prompt(f"{key}h", sizing.kind, "Now. " + document + (parts.question or ""), max_tokens, chat=chat)
    return replace(
        prompt,
        other=replace(other, expected=parts.other_expected, scoring=parts.scoring, ignore_eos=prompt.ignore_eos),
        changed=replace(changed, ignore_eos=prompt.ignore_eos),
    )


def own_key(index: int) -> str:
    """The key of the operator's `index`-th prompt."""
    return f"p{index + 1:02}"


def own_prompt(
    key: str, text: str, *, expected: str | None, scoring: Scoring | None, max_tokens: int, chat: bool
) -> Prompt:
    """A prompt of the operator's, sent as written."""
    prompt = replace(_text_prompt(key, "own", text, max_tokens, chat=chat), expected=expected, scoring=scoring)
    other = _text_prompt(f"{key}v", "own", text + "\nIn other words:", max_tokens, chat=chat)
    changed = _text_prompt(f"{key}h", "own", "Now. " + text, max_tokens, chat=chat)
    return replace(prompt, other=other, changed=changed)


def _text_prompt(key: str, kind: str, text: str, max_tokens: int, *, chat: bool) -> Prompt:
    if chat:
        return Prompt(key, kind, max_tokens, messages=({"role": "user", "content": text},))
    return Prompt(key, kind, max_tokens, text=text)


def head_of(prompt: Prompt, chunk_size: int) -> Prompt | None:
    """The first half of a prompt, in whole chunks where its tokens are known; None where it cannot be cut."""
    if prompt.token_ids is not None:
        chunks = len(prompt.token_ids) // chunk_size // 2
        return replace(prompt, token_ids=prompt.token_ids[: chunks * chunk_size], max_tokens=1) if chunks else None
    if prompt.text is not None:
        return replace(prompt, text=prompt.text[: len(prompt.text) // 2], max_tokens=1)
    return None


def with_nonce(prompt: Prompt, nonce: str, nonce_ids: Sequence[int]) -> Prompt:
    """The prompt with a run's own head instead of a salt (E1): nobody else's records can match it."""
    if prompt.token_ids is not None:
        ids = (*nonce_ids, *prompt.token_ids)
        return replace(prompt, token_ids=ids, tokens=len(ids))
    if prompt.messages is not None:
        first, *rest = prompt.messages
        head = {**first, "content": f"[{nonce}] {first['content']}"}
        return replace(prompt, messages=(head, *rest))
    return replace(prompt, text=f"[{nonce}] {prompt.text}")


@dataclass(frozen=True)
class Planned:
    """A built-in prompt before its tokens are known."""

    key: str
    sizing: Sizing
    tokens: int
    seed: int
    probe: bool = False


def plan_prompts(
    numbers: ProfileNumbers, chunk_size: int, *, longest: int | None, lengths: Sequence[int] = ()
) -> tuple[Planned, ...]:
    """Keys and exact token lengths of a profile's built-in prompts. `longest` is what the engine can take.

    `lengths` replaces the profile's own and is taken as it is; edge lengths (N−1, N, N+1 of whole chunks) come after
    the others. The profile's lengths that do not fit the engine are cut to it.
    """
    planned: list[tuple[Sizing, int]] = []
    if lengths:
        kinds: tuple[Kind, ...] = ("codeword", "arithmetic", "continuation")
        planned = [(Sizing(kinds[i % 3], n / chunk_size, 0.5), n) for i, n in enumerate(lengths)]
    else:
        planned = [(s, max(2, round(s.chunks * chunk_size))) for s in numbers.prompts]
        planned += [
            (Sizing("continuation", edge, 0.5), edge * chunk_size + off)
            for edge in numbers.edge_chunks
            for off in (-1, 0, 1)
        ]
    fitted = [(s, n if longest is None or lengths else min(n, longest)) for s, n in planned]
    return tuple(Planned(f"p{i + 1:02}", s, n, i + 1) for i, (s, n) in enumerate(fitted) if n >= 2)


def plan_probe(chunk_size: int, index: int, longest: int | None) -> Planned:
    """The prompt that is asked first after each reset, without streaming: vLLM then tells what its own cache served."""
    tokens = chunk_size * 2 + chunk_size // 4 + 1
    return Planned(
        f"probe{index}",
        Sizing("continuation", tokens / chunk_size, 0.5),
        tokens if longest is None else min(tokens, longest),
        10_000 + index,
        probe=True,
    )


def shared_at_least(planned: Planned) -> int:
    """Tokens that a built-in prompt surely shares with its variant: all but the question, by a generous count."""
    parts = write_text(planned.sizing.kind, planned.seed, 1)
    # A word of the questions is two tokens at most, with its punctuation; where the facts do not fit either, the
    # prompt is filler alone and only its last token differs.
    question, planted = (2 * len(text.split()) for text in (parts.question, parts.planted))
    return planned.tokens - 1 - (question if planned.tokens > question + planted + 2 else 0)


def room_for_prompts(batch_tokens: int | None, chunk_size: int) -> int | None:
    """What a batch leaves to its prompts: the probe and the variants lie in the caches too."""
    return None if batch_tokens is None else max(1, batch_tokens - 4 * chunk_size)


def batches(
    prompts: Sequence[Prompt], *, tokens_per_batch: int | None, fallback_tokens: int = 1000
) -> tuple[tuple[Prompt, ...], ...]:
    """Prompts in groups whose tokens (answers included) fit the caches at once; each group holds at least one."""
    return batched(prompts, [(p.tokens or fallback_tokens) + p.max_tokens for p in prompts], tokens_per_batch)


def batched(items: Sequence[T], sizes: Sequence[int], room: int | None) -> tuple[tuple[T, ...], ...]:
    """Items in groups of at most `room` in order; each group holds at least one."""
    groups: list[tuple[T, ...]] = []
    current: list[T] = []
    used = 0
    for item, size in zip(items, sizes, strict=True):
        if current and room is not None and used + size > room:
            groups.append(tuple(current))
            current, used = [], 0
        current.append(item)
        used += size
    if current:
        groups.append(tuple(current))
    return tuple(groups)
