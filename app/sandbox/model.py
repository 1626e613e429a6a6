"""A language model small enough for pure Python, in which every byte of the KV cache counts.

A token's KV is a vector of 8 numbers, made from its id, its position and the state of everything before its block,
rounded to the layout's dtype and repeated until it fills the layout's bytes. The state is read back from the bytes:
per channel the sum over all KV in use. So

- identical bytes give bit-identical answers, wherever they come from (sums are exact, hence order does not matter);
- bytes of another dtype, zeros, flipped bits and another prompt's record change the state, and with it every
  log-probability; NaN patterns make all of them NaN;
- KV computed behind a wrong prefix is wrong too, and stays wrong when stored.

Pure functions and immutable tables; no I/O, no clock.
"""

from __future__ import annotations

import hashlib
import math
import random
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from app.sandbox import tokenizer
from app.sandbox.config import ITEM_SIZE, KVLayout

CHANNELS = 8
Vector = tuple[float, ...]

#: Mantissa bits (with the hidden one), for rounding by splitting a double.
_MANTISSA = {"bfloat16": 8, "float16": 11, "float32": 24, "float8_e5m2": 3}
_GAIN = 1.6
_LOGIT_SCALE = 1.1
_WORD_BIAS = 2.5


@dataclass(frozen=True, slots=True)
class Block:
    """KV of one block of tokens: the bytes of each part (rank, object group) and the sums read from them."""

    parts: tuple[bytes, ...]
    sums: Vector
    tokens: int


def round_to(dtype: str, values: Sequence[float]) -> list[float]:
    """The numbers of `dtype` nearest to `values` (ties to even); magnitudes are far from its limits."""
    split = float(2 ** (53 - _MANTISSA[dtype]) + 1)
    return [(c := x * split) - (c - x) for x in values]


def pack(dtype: str, values: Sequence[float]) -> bytes:
    """Little-endian bytes of numbers already rounded to `dtype`."""
    if dtype == "float32":
        return array("f", values).tobytes()
    if dtype == "float16":
        return struct.pack(f"<{len(values)}e", *values)
    if dtype == "float8_e5m2":
        return struct.pack(f"<{len(values)}e", *values)[1::2]
    wide = array("f", values).tobytes()
    narrow = bytearray(len(values) * 2)
    narrow[0::2] = wide[2::4]
    narrow[1::2] = wide[3::4]
    return bytes(narrow)


def unpack(dtype: str, data: bytes) -> Sequence[float]:
    """The numbers in `data`; every byte pattern is accepted, NaN and infinity included."""
    if dtype == "float16":
        return struct.unpack(f"<{len(data) // 2}e", data)
    if dtype == "float8_e5m2":
        half = bytearray(len(data) * 2)
        half[1::2] = data
        return struct.unpack(f"<{len(data)}e", half)
    if dtype == "bfloat16":
        wide = bytearray(len(data) * 2)
        wide[2::4] = data[0::2]
        wide[3::4] = data[1::2]
        data = bytes(wide)
    numbers = array("f")
    numbers.frombytes(data)
    return numbers


def _exact_sum(values: Sequence[float]) -> float:
    """`math.fsum`, but NaN where it would raise (infinities of both signs, overflow)."""
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):
        return math.nan


@lru_cache(maxsize=8192)
def _phases(position: int) -> Vector:
    return tuple(math.cos(position * (0.11 + 0.17 * j) + j) for j in range(CHANNELS))


class Model:
    """The weights of one model, derived from its name; two models answer differently."""

    def __init__(self, name: str) -> None:
        seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
        rng = random.Random(seed)  # noqa: S311  (weights, not secrets)
        size = tokenizer.VOCABULARY
        self._key = [tuple(rng.uniform(-1.5, 1.5) for _ in range(CHANNELS)) for _ in range(size)]
        self._mix = [tuple(rng.uniform(-1.2, 1.2) for _ in range(CHANNELS)) for _ in range(size)]
        self._head = [tuple(rng.gauss(0.0, 1.0) for _ in range(CHANNELS)) for _ in range(size)]
        self._bias = [_WORD_BIAS if tokenizer.is_word(i) else 0.0 for i in range(size)]
        for special in range(6):
            self._bias[special] = -6.0
        self._bias[tokenizer.EOS] = 3.0

    def state(self, blocks: Sequence[Block], layout: KVLayout) -> Vector:
        """What the next block sees of the blocks before it: 8 numbers in -1..1, or NaN."""
        tokens = sum(block.tokens for block in blocks)
        if not tokens:
            return (0.0,) * CHANNELS
        scale = _GAIN / (math.sqrt(tokens) * _weight(layout))
        sums = [_exact_sum([block.sums[j] for block in blocks]) * scale for j in range(CHANNELS)]
        if not all(math.isfinite(x) for x in sums):
            return (math.nan,) * CHANNELS
        return tuple(math.tanh(x) for x in sums)

    def compute(self, tokens: Sequence[int], position: int, state: Vector, layout: KVLayout) -> Block:
        """KV of `tokens` (at most one block) starting at `position`, behind a prefix with `state`."""
        core: list[float] = []
        for index, token in enumerate(tokens):
            core += [
                k * c + m * s
                for k, c, m, s in zip(self._key[token], _phases(position + index), self._mix[token], state, strict=True)
            ]
        width = CHANNELS * ITEM_SIZE[layout.dtype]
        parts = []
        for number, (_, _, size) in enumerate(layout.parts()):
            factor = _part_factor(number)
            data = pack(layout.dtype, round_to(layout.dtype, [x * factor for x in core]))
            repeats = size // width
            parts.append(b"".join(data[i : i + width] * repeats for i in range(0, len(data), width)))
        return read_block(tuple(parts), len(tokens), layout)

    def logits(self, blocks: Sequence[Block], last_token: int, layout: KVLayout) -> list[float]:
        """Scores of all tokens after `blocks`, in the precision of the layout's dtype."""
        state = self.state(blocks, layout)
        place = _phases(sum(block.tokens for block in blocks))
        key = self._key[last_token]
        a, b, c, d, e, f, g, h = (s + 0.4 * k + 0.5 * p for s, k, p in zip(state, key, place, strict=True))
        scores = [
            _LOGIT_SCALE * (w[0] * a + w[1] * b + w[2] * c + w[3] * d + w[4] * e + w[5] * f + w[6] * g + w[7] * h)
            for w in self._head
        ]
        precise = "float32" if layout.dtype == "float32" else "float16" if layout.dtype == "float16" else "bfloat16"
        return round_to(precise, [s + bias for s, bias in zip(scores, self._bias, strict=True)])


def read_block(parts: tuple[bytes, ...], tokens: int, layout: KVLayout) -> Block:
    """A block from the bytes of its parts, as the attention would read them."""
    sums = [0.0] * CHANNELS
    for data in parts:
        numbers = unpack(layout.dtype, data)
        for j in range(CHANNELS):
            sums[j] += sum(numbers[j::CHANNELS])
    return Block(parts, tuple(sums), tokens)


def split_chunk(objects: Sequence[bytes], chunk_size: int, layout: KVLayout) -> list[Block]:
    """The blocks of one chunk from its objects (one per part of the layout, each exactly as long as it says)."""
    blocks = []
    sizes = [size for _, _, size in layout.parts()]
    for start in range(0, chunk_size, layout.block_size):
        end = min(start + layout.block_size, chunk_size)
        parts = tuple(data[start * size : end * size] for data, size in zip(objects, sizes, strict=True))
        blocks.append(read_block(parts, end - start, layout))
    return blocks


def join_blocks(blocks: Sequence[Block]) -> list[bytes]:
    """The objects of one chunk from its blocks: the inverse of `split_chunk`."""
    return [b"".join(block.parts[i] for block in blocks) for i in range(len(blocks[0].parts))]


def log_softmax(scores: Sequence[float]) -> list[float]:
    """Log-probabilities as 32-bit numbers (what a server prints); all NaN if one score is."""
    top = max(scores)
    if not math.isfinite(sum(scores)):
        return [math.nan] * len(scores)
    total = math.log(math.fsum(math.exp(x - top) for x in scores)) + top
    return array("f", [x - total for x in scores]).tolist()


def _part_factor(number: int) -> float:
    """Other ranks and groups hold other numbers: a record moved between them is a wrong record."""
    return 1.0 / (1.0 + 0.25 * number)


@lru_cache(maxsize=32)
def load_model(name: str) -> Model:
    """The model of that name; its weights are made once."""
    return Model(name)


@lru_cache(maxsize=64)
def _weight(layout: KVLayout) -> float:
    """How often a token's vector is counted in the sums over all parts."""
    width = CHANNELS * ITEM_SIZE[layout.dtype]
    return sum(size // width * _part_factor(i) for i, (_, _, size) in enumerate(layout.parts()))
