"""Prompts of exact lengths, made of pieces that recur. Pure; tokens come from a `Vocabulary` that the engine's
tokenizer filled.

A piece is a named stream of tokens: the same name gives the same tokens in every run, scenario and repeat, so that
runs compare; what keeps them apart is the cache salt (or a nonce at the head where salts cannot be used).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

#: Tokens at the head that a nonce replaces: enough that no other prompt shares its first block.
NONCE_TOKENS = 12
#: Words of the built-in texts. Plain ones, so that most tokenizers give each a token or two.
_TEXT = (
    "the of and to in is that for it as was with be by on not he this are or his from at which but have an had "
    "they you were their one all we can her has there been if more when will would who so no she other its may "
    "these what them than some him time into only could new then do any my now such like our over man me even "
    "most made after also did many off before must well back through years where much your way down should "
    "because long each just state those people too little good world make very year still see own work men day "
    "get here between both life being under three never know same last another while us might great go come since "
    "against right came take used himself few house use place during high without again home around small however "
    "found part school upon north gate east hall harbour mill store chapel tower barn clerk courier keeper guard "
    "carpenter visitor captain carried counted repaired painted moved ladder lamp crate ledger rope spare key "
    "bench noon rain well word third dusk record paper river bridge stone "
)
WORDS = tuple(_TEXT.split())


@dataclass(frozen=True)
class Vocabulary:
    """Token ids to make prompts of; `lead` is what the tokenizer puts before every text.

    Without ids (an engine that tells none) prompts are texts of `WORDS`, and their lengths are only near.
    """

    ids: tuple[int, ...] = ()
    lead: tuple[int, ...] = ()
    words_per_token: float = 0.8

    @property
    def exact(self) -> bool:
        """Whether prompts have exact lengths."""
        return bool(self.ids)


@dataclass(frozen=True)
class Piece:
    """`tokens` tokens of the stream called `stream`, from its start."""

    stream: str
    tokens: int


def vocabulary_text() -> str:
    """What the tokenizer is asked for once: every word of the built-in texts."""
    return " ".join(WORDS)


def make_vocabulary(ids: Sequence[int] | None, lead: Sequence[int]) -> Vocabulary:
    """From the ids of `vocabulary_text()`; None or too few of them give a vocabulary of words."""
    useful = tuple(sorted(set(ids or ()) - set(lead)))
    return Vocabulary(useful, tuple(lead)) if len(useful) >= 8 else Vocabulary()


def stream_ids(stream: str, tokens: int, vocabulary: Vocabulary) -> list[int]:
    """The first `tokens` ids of a stream."""
    dice = random.Random(f"tierkeeper {stream}")  # noqa: S311 - reproducible, nothing secret
    return dice.choices(vocabulary.ids, k=tokens)


def token_prompt(pieces: Sequence[Piece], vocabulary: Vocabulary, nonce: str = "") -> list[int]:
    """A prompt of exactly the pieces' tokens (the tokenizer's lead takes the place of the first ones).

    A nonce replaces the first tokens, so that the length stays what was asked for.
    """
    ids = [token for piece in pieces for token in stream_ids(piece.stream, piece.tokens, vocabulary)]
    head = list(vocabulary.lead)
    if nonce:
        head += stream_ids(f"nonce {nonce}", NONCE_TOKENS, vocabulary)
    return (head + ids[len(head) :])[: max(len(ids), 1)]


def text_prompt(pieces: Sequence[Piece], vocabulary: Vocabulary, nonce: str = "") -> str:
    """The same as words, for engines that take no token ids; about as many tokens as asked for."""
    words: list[str] = [f"[{nonce}]"] if nonce else []
    for piece in pieces:
        dice = random.Random(f"tierkeeper {piece.stream}")  # noqa: S311 - reproducible, nothing secret
        words += dice.choices(WORDS, k=max(1, round(piece.tokens * vocabulary.words_per_token)))
    return " ".join(words)
