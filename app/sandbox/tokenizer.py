"""A small deterministic tokenizer: 512 tokens, lossless, the same on every machine.

Ids 0..5 are special, 6..261 the 256 bytes, 262..511 common words with their leading space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

VOCABULARY = 512
UNKNOWN, BOS, EOS, USER, ASSISTANT, SYSTEM = range(6)
_SPECIAL = ("<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>")
_FIRST_BYTE = len(_SPECIAL)
_FIRST_WORD = _FIRST_BYTE + 256

_TEXT = """
the of and to in is that for it as was with be by on not he this are or his from at which but have an had they you
were their one all we can her has there been if more when will would who so no she other its may these what them than
some him time into only could new then do any my now such like our over man me even most made after also did many off
before must well back through years where much your way down should because long each just state those people too mr
how little good world make very year still see own work men day get here between both life being under three never
know same last another while us might great go come since against right came take used himself few house use place
during high without again home around small however found part school upon cache server engine token prompt prefix
memory block record disk model layer key value hit miss store load evict tier hash chunk prefill decode request answer
question system user context window batch queue latency throughput answer warm cold restart metric status report check
number list table page line word name file path size byte count rate limit test run plan clean scan save read write
open close start stop first second next left region node rack fabric driver kernel vector tensor head width depth
span trace alert graph panel owner policy grace drain shard replica leader quorum ledger journal epoch layout format
"""
_words = [f" {word}" for word in dict.fromkeys(_TEXT.split())]
_words = (_words + [f" w{i}" for i in range(60)])[: VOCABULARY - _FIRST_WORD]
_ID_OF_WORD = {word: _FIRST_WORD + i for i, word in enumerate(_words)}
_PIECES = re.compile(r" \w+|.", re.DOTALL)


def encode(text: str) -> list[int]:
    """Token ids of `text`, without special tokens."""
    ids: list[int] = []
    for piece in _PIECES.findall(text):
        known = _ID_OF_WORD.get(piece)
        if known is not None:
            ids.append(known)
        else:
            ids.extend(_FIRST_BYTE + byte for byte in piece.encode())
    return ids


def token_bytes(token: int) -> bytes:
    """The bytes one token stands for; empty for special tokens."""
    if token < _FIRST_BYTE:
        return b""
    if token < _FIRST_WORD:
        return bytes([token - _FIRST_BYTE])
    return _words[token - _FIRST_WORD].encode()


def decode(ids: Iterable[int]) -> str:
    """Text of the ids; special tokens are skipped, bytes that are no UTF-8 replaced."""
    return b"".join(token_bytes(i) for i in ids).decode(errors="replace")


def token_text(token: int) -> str:
    """How a token is named in log-probabilities: a lone part of a character has no text, as with vLLM."""
    if token < _FIRST_BYTE:
        return _SPECIAL[token]
    try:
        return token_bytes(token).decode()
    except UnicodeDecodeError:
        return ""


def is_word(token: int) -> bool:
    """True for whole words: the model prefers them, so that answers look like text."""
    return token >= _FIRST_WORD


def chat_tokens(messages: Sequence[tuple[str, str]], *, generation_prompt: bool = True) -> list[int]:
    """The chat template: system and assistant texts behind their marks, user texts behind theirs, each ended."""
    ids: list[int] = []
    marks = {"system": SYSTEM, "developer": SYSTEM, "assistant": ASSISTANT}
    for role, content in messages:
        ids += [marks.get(role, USER), *encode(content), EOS]
    return [*ids, ASSISTANT] if generation_prompt else ids
