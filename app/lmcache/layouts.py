"""Layouts compared and completed (RULES C1); the one module others need: it also names `KVLayout` and `ObjectGroup`.

The verdict of a comparison is careful in one direction: `different` is said only on proof, because records of a layout
that is `different` from the live one may be removed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from app.lmcache.kv_layout import (
    NO_SERDE,
    KVLayout,
    ObjectGroup,
    common_multiple,
    join_dtypes,
    normalise_dtype,
    normalise_kv_cache_dtype,
)

__all__ = [
    "NO_SERDE",
    "Comparison",
    "Difference",
    "FieldKind",
    "KVLayout",
    "ObjectGroup",
    "Verdict",
    "common_multiple",
    "compare_layouts",
    "expected_object_bytes",
    "join_dtypes",
    "merge_engine_facts",
    "normalise_dtype",
    "normalise_kv_cache_dtype",
]

_PLAIN_DTYPES = ("bfloat16", "float16", "float32")
_KV_SCHEMES = ("fp8", "compressed", "modelopt", "quark", "petit")


class Verdict(StrEnum):
    """What two layouts are to each other, as far as is known."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


class FieldKind(StrEnum):
    """`hard` decides bytes, `label` is LMCache's name for the layout, `soft` asks for a new acceptance test."""

    HARD = "hard"
    LABEL = "label"
    SOFT = "soft"


@dataclass(frozen=True, slots=True)
class Difference:
    """One field known on both sides and not equal. `field` is a path such as ``groups[0].layers``."""

    field: str
    old: object
    new: object
    kind: FieldKind


@dataclass(frozen=True, slots=True)
class Comparison:
    """`differences` lists every kind; `unknown_fields` names hard fields that one side does not tell."""

    verdict: Verdict
    differences: tuple[Difference, ...]
    unknown_fields: tuple[str, ...]

    @property
    def same(self) -> bool:
        return self.verdict is Verdict.SAME

    @property
    def different(self) -> bool:
        return self.verdict is Verdict.DIFFERENT

    @property
    def hard(self) -> tuple[Difference, ...]:
        """The differences that decide bytes."""
        return tuple(item for item in self.differences if item.kind is FieldKind.HARD)


def compare_layouts(a: KVLayout, b: KVLayout) -> Comparison:
    """Compare `a` (old) with `b` (new), two layouts of one (model, world size).

    `different`: a hard field differs, or a label does under one known LMCache version. `unknown`: labels differ and the
    versions differ or are unknown, or one side does not know dtype or chunk size. Else `same`. Other unknown fields
    prove nothing either way and are only listed.
    """
    found: list[Difference] = []
    unknown: list[str] = []
    one_version = a.lmcache_version is not None and a.lmcache_version == b.lmcache_version
    _scalar("chunk_size", a.chunk_size, b.chunk_size, found, unknown)
    _dtypes(a, b, one_version, found, unknown)
    _groups(a, b, one_version, found, unknown)
    _scalar("serde", a.serde, b.serde, found, unknown)
    _scalar("draft_layers", a.draft_layers, b.draft_layers, found, unknown)
    labels = _soft(a.labels(), b.labels(), FieldKind.LABEL)
    soft = _soft(a.soft(), b.soft(), FieldKind.SOFT)
    if found or (labels and one_version):
        verdict = Verdict.DIFFERENT
    elif labels or not a.proves_current or not b.proves_current:
        verdict = Verdict.UNKNOWN
    else:
        verdict = Verdict.SAME
    return Comparison(verdict, (*found, *labels, *soft), tuple(unknown))


def _scalar(field: str, old: object, new: object, found: list[Difference], unknown: list[str]) -> None:
    if old is None or new is None:
        unknown.append(field)
    elif old != new:
        found.append(Difference(field, old, new, FieldKind.HARD))


def _dtypes(a: KVLayout, b: KVLayout, one_version: bool, found: list[Difference], unknown: list[str]) -> None:
    old_kv, new_kv = normalise_kv_cache_dtype(a.kv_cache_dtype), normalise_kv_cache_dtype(b.kv_cache_dtype)
    if _explicit(old_kv) and _explicit(new_kv) and old_kv != new_kv:
        # whatever the kernels call it: two explicit ones may share a kernel dtype (fp8_e4m3 and fp8_e5m2)
        found.append(Difference("kv_cache_dtype", old_kv, new_kv, FieldKind.HARD))
        return
    if a.dtype is not None and b.dtype is not None:
        if a.dtype != b.dtype:
            _kernel_dtype("dtype", a.dtype, b.dtype, one_version, found, unknown)
        elif old_kv is None or new_kv is None:
            unknown.append("kv_cache_dtype")
        # auto means this very kernel dtype
        return
    old = _stored_as(a.dtype, old_kv)
    new = _stored_as(b.dtype, new_kv)
    if old is None or new is None:
        unknown.append("dtype")
    elif old != new:
        # a kernel dtype on one side only: its name for an 8-bit type is not the engine's name for it
        _kernel_dtype("kv_cache_dtype", old, new, a.dtype is None and b.dtype is None, found, unknown)


def _explicit(kv: str | None) -> bool:
    return kv is not None and kv != "auto"


def _stored_as(kernel: str | None, kv: str | None) -> str | None:
    return kernel if kernel is not None else None if kv == "auto" else kv


def _kernel_dtype(
    field: str, old: str | None, new: str | None, one_naming: bool, found: list[Difference], unknown: list[str]
) -> None:
    """8-bit floats are kept under several names (``uint8``, ``float8_e4m3fn``, ``fp8_e4m3``): unequal names prove a
    difference only within one naming."""
    if old is None or new is None or (old != new and not one_naming and _is_byte_type(old) and _is_byte_type(new)):
        unknown.append(field)
    elif old != new:
        found.append(Difference(field, old, new, FieldKind.HARD))


def _is_byte_type(name: str) -> bool:
    return name.startswith(("fp8", "float8", "uint8", "int8"))


def _groups(a: KVLayout, b: KVLayout, one_version: bool, found: list[Difference], unknown: list[str]) -> None:
    if not a.groups and not b.groups:
        _scalar("tokens_per_block", a.tokens_per_block, b.tokens_per_block, found, unknown)
        return
    if not a.groups or not b.groups:
        # one side was told only the engine's block size: another notion than the kernel groups'
        unknown.append("groups")
        return
    old = {group.index: group for group in a.groups}
    new = {group.index: group for group in b.groups}
    if old.keys() != new.keys():
        found.append(Difference("object_groups", sorted(old), sorted(new), FieldKind.HARD))
    for index in sorted(old.keys() & new.keys()):
        before, after = old[index], new[index]
        for field in ("layers", "tokens_per_block", "slots_per_block"):
            _scalar(f"groups[{index}].{field}", getattr(before, field), getattr(after, field), found, unknown)
        _kernel_dtype(f"groups[{index}].dtype", before.dtype, after.dtype, one_version, found, unknown)


def _soft(old: dict[str, str | None], new: dict[str, str | None], kind: FieldKind) -> list[Difference]:
    return [
        Difference(field, old[field], new[field], kind)
        for field in old
        if old[field] is not None and new[field] is not None and old[field] != new[field]
    ]


def merge_engine_facts(
    layout: KVLayout,
    *,
    dtype: str | None = None,
    kv_cache_dtype: str | None = None,
    chunk_size: int | None = None,
    tokens_per_block: int | None = None,
    quantization: str | None = None,
    draft_layers: int | None = None,
    engine_version: str | None = None,
    model_revision: str | None = None,
    tokenizer: str | None = None,
) -> KVLayout:
    """Fill what the server left unknown from what the engine says of itself; known fields are never replaced.

    `dtype` is the engine's model dtype. It becomes the dtype of the KV bytes only if the engine's `kv_cache_dtype` is
    known to be ``auto`` (or names a float dtype itself): with ``fp8`` the kernel dtype stays unknown, and so it does
    under a `quantization` whose checkpoints may bring an 8-bit KV cache of their own.
    """
    kv = layout.kv_cache_dtype or normalise_kv_cache_dtype(kv_cache_dtype)
    model_dtype = normalise_dtype(dtype)
    bytes_dtype = layout.dtype
    own_kv_scheme = (normalise_dtype(quantization) or "").startswith(_KV_SCHEMES)
    if bytes_dtype is None and kv == "auto" and model_dtype != "auto" and not own_kv_scheme:
        bytes_dtype = model_dtype
    elif bytes_dtype is None and kv is not None and kv in _PLAIN_DTYPES:
        bytes_dtype = kv
    return replace(
        layout,
        dtype=bytes_dtype,
        kv_cache_dtype=kv,
        chunk_size=layout.chunk_size if layout.chunk_size is not None else chunk_size,
        tokens_per_block=layout.tokens_per_block if layout.tokens_per_block is not None else tokens_per_block,
        draft_layers=layout.draft_layers if layout.draft_layers is not None else draft_layers,
        engine_version=layout.engine_version or engine_version,
        model_revision=layout.model_revision or model_revision,
        tokenizer=layout.tokenizer or tokenizer,
    )


def expected_object_bytes(layout: KVLayout, group_index: int) -> int | None:
    """The size of one record of this object group without padding, checksum and serde, or None where it is not proven.

    With one object group that is chunk size x bytes per token; `bytes_per_token` covers all groups, so with several the
    share of each cannot be told.
    """
    if len(layout.groups) != 1 or layout.groups[0].index != group_index:
        return None
    if not layout.chunk_size or not layout.bytes_per_token or layout.serde not in (None, NO_SERDE):
        return None
    return layout.chunk_size * layout.bytes_per_token
