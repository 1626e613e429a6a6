"""KV layouts as values: what decides the bytes of a record. `app.lmcache.layouts` compares and completes them.

A layout is put together from several witnesses: the server's ``/status`` (kernel groups), its ``/config`` (serde), the
engine's own facts (``/server_info``, ``vllm:cache_config_info``, start-up log). None of them knows everything, so every
field may be unknown (None), and an unknown field never proves a difference.

`KVLayout.dtype` is the dtype of the KV *bytes* as LMCache's kernel groups report it. `KVLayout.kv_cache_dtype` is the
engine's setting: ``auto`` means the kernel groups' dtype, an explicit one (``fp8_e4m3``) may be stored under another
kernel dtype (``uint8``).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from app.wire import fields

NO_SERDE = "none"
_NOTHING = ("", "none", "null")
_KV_ALIASES = {"fp8": "fp8_e4m3"}


@dataclass(frozen=True, slots=True)
class ObjectGroup:
    """One object group (one record per chunk and group), merged over its kernel groups.

    `layers` is their sum; `tokens_per_block` and `slots_per_block` the least common multiple where they differ; `dtype`
    without the ``torch.`` prefix, several joined sorted with ``+``.
    """

    index: int
    layers: int | None
    tokens_per_block: int | None
    slots_per_block: int | None
    dtype: str | None
    is_mla: bool | None


@dataclass(frozen=True)
class KVLayout:
    """The layout of one registered context. Sizes in bytes; `groups` is empty where the server does not tell them.

    `serde` is None while unknown, ``"none"`` without one, else canonical JSON of its settings. `bytes_per_token` is the
    server's reporting figure over all object groups. `labels` (format, shape, backend) are LMCache's own names.
    """

    model_name: str
    world_size: int
    chunk_size: int | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    bytes_per_token: int | None = None
    tokens_per_block: int | None = None
    groups: tuple[ObjectGroup, ...] = ()
    serde: str | None = None
    draft_layers: int | None = None
    engine_kv_format: str | None = None
    engine_kv_shape: str | None = None
    attention_backend: str | None = None
    lmcache_version: str | None = None
    engine_version: str | None = None
    model_revision: str | None = None
    tokenizer: str | None = None
    checksum: str | None = None

    def hard(self) -> dict[str, object]:
        """The fields that decide bytes (RULES C1), JSON-able; unknown is None.

        ``kv_cache_dtype`` is None unless the engine was told a dtype other than the kernel groups': ``auto`` adds
        nothing to ``dtype``, so learning it later does not change the fingerprint. For the same reason no serde and no
        draft layers read as None here.
        """
        explicit = explicit_kv(self.kv_cache_dtype)
        return {
            "chunk_size": self.chunk_size,
            "dtype": self.dtype,
            "kv_cache_dtype": None if explicit == self.dtype else explicit,
            "tokens_per_block": None if self.groups else self.tokens_per_block,
            "groups": [
                {
                    "index": group.index,
                    "layers": group.layers,
                    "tokens_per_block": group.tokens_per_block,
                    "slots_per_block": group.slots_per_block,
                    "dtype": group.dtype,
                }
                for group in self.groups
            ]
            or None,
            "serde": None if self.serde == NO_SERDE else self.serde,
            "draft_layers": self.draft_layers or None,
        }

    def labels(self) -> dict[str, str | None]:
        """LMCache's own names for the layout: hard only between polls of the same LMCache version."""
        return {
            "engine_kv_format": self.engine_kv_format,
            "engine_kv_shape": self.engine_kv_shape,
            "attention_backend": self.attention_backend,
        }

    def soft(self) -> dict[str, str | None]:
        """What only raises "run an acceptance test"."""
        return {
            "lmcache_version": self.lmcache_version,
            "engine_version": self.engine_version,
            "model_revision": self.model_revision,
            "tokenizer": self.tokenizer,
            "checksum": self.checksum,
        }

    @cached_property
    def fingerprint(self) -> str:
        """First 16 hex digits of SHA-256 over the canonical JSON of `hard()`.

        Equal fingerprints mean the same bytes as far as is known; unequal ones may only mean that one side knows more:
        to call records incompatible, ask `compare_layouts`.
        """
        return hashlib.sha256(_canonical(self.hard()).encode()).hexdigest()[:16]

    @property
    def proves_current(self) -> bool:
        """Whether dtype and chunk size are known, without which nothing is ever `current`."""
        return (self.dtype or explicit_kv(self.kv_cache_dtype)) is not None and self.chunk_size is not None

    def to_dict(self) -> dict[str, object]:
        """All fields as JSON-able values."""
        return asdict(self) | {"groups": [asdict(group) for group in self.groups]}

    def to_json(self) -> str:
        """All fields as canonical JSON text, for `from_json`."""
        return _canonical(self.to_dict())

    @classmethod
    def from_json(cls, stored: str | bytes | Mapping[str, object]) -> KVLayout:
        """Read back what `to_json` (or `to_dict`) gave; fields it does not know are left out, missing ones are unknown.

        Raises TargetError ``unreadable`` for anything else.
        """
        value = fields.mapping(
            fields.loads(stored, "a stored layout") if isinstance(stored, (str, bytes)) else dict(stored)
        )
        return cls(
            model_name=fields.text(value.get("model_name")) or "",
            world_size=fields.integer(value.get("world_size")) or 1,
            chunk_size=fields.integer(value.get("chunk_size")),
            bytes_per_token=fields.integer(value.get("bytes_per_token")),
            tokens_per_block=fields.integer(value.get("tokens_per_block")),
            draft_layers=fields.integer(value.get("draft_layers")),
            groups=tuple(_stored_group(item) for item in fields.sequence(value.get("groups"))),
            **{name: fields.text(value.get(name)) for name in _TEXTS},
        )


_TEXTS = (
    "dtype",
    "kv_cache_dtype",
    "serde",
    "engine_kv_format",
    "engine_kv_shape",
    "attention_backend",
    "lmcache_version",
    "engine_version",
    "model_revision",
    "tokenizer",
    "checksum",
)


def _stored_group(item: object) -> ObjectGroup:
    value = fields.mapping(item)
    return ObjectGroup(
        index=fields.integer(value.get("index")) or 0,
        layers=fields.integer(value.get("layers")),
        tokens_per_block=fields.integer(value.get("tokens_per_block")),
        slots_per_block=fields.integer(value.get("slots_per_block")),
        dtype=fields.text(value.get("dtype")),
        is_mla=fields.boolean(value.get("is_mla")),
    )


def normalise_dtype(value: str | None) -> str | None:
    """``torch.bfloat16`` → ``bfloat16``; nothing, ``none`` and ``null`` → None."""
    if value is None:
        return None
    short = value.strip().removeprefix("torch.").lower()
    return None if short in _NOTHING else short


def normalise_kv_cache_dtype(value: str | None) -> str | None:
    """As `normalise_dtype`; ``auto`` stays, ``fp8`` is ``fp8_e4m3`` (vLLM's documented meaning)."""
    short = normalise_dtype(value)
    return _KV_ALIASES.get(short, short) if short else None


def join_dtypes(dtypes: Iterable[str | None]) -> str | None:
    """Several dtypes as one text, sorted and joined with ``+``; unknown if any is unknown or there is none."""
    names = [normalise_dtype(name) for name in dtypes]
    known = {part for name in names if name for part in name.split("+")}
    return "+".join(sorted(known)) if known and None not in names else None


def common_multiple(values: Iterable[int | None]) -> int | None:
    """The least common multiple; unknown if any is unknown, not positive, or there is none."""
    known: list[int] = []
    for value in values:
        if value is None or value <= 0:
            return None
        known.append(value)
    multiple = math.lcm(*known) if known else None
    return multiple if multiple is not None and multiple < 2**63 else None


def explicit_kv(kv: str | None) -> str | None:
    return None if kv is None or kv == "auto" else kv


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
