"""Registered contexts completed with what their engines say of themselves (RULES.md C1). Pure.

A server does not always tell dtype or kv-cache dtype; the engine does. The two know nothing of each other's names, so
an engine's facts are given to a context only where it cannot be another process' context: same model, first seen by us
not before the engine's present process started, and no more such contexts than the engines of that model can have.
What was once merged stays with the context for its life: a context never changes its layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from app.lmcache.layouts import KVLayout, compare_layouts, merge_engine_facts

# A context seen this little before the engine's start is taken as its own: the clocks are not the same.
_SLACK_SECONDS = 2.0
MAX_REMEMBERED = 50


@dataclass(frozen=True)
class Witness:
    """What one engine of the server says of its present process. None is not known."""

    engine_id: int
    model_names: frozenset[str]
    process_start: float | None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    block_size: int | None = None
    quantization: str | None = None
    draft_layers: int | None = None
    engine_version: str | None = None
    model_revision: str | None = None
    tokenizer: str | None = None

    @property
    def facts(self) -> tuple[Any, ...]:
        """All that is merged; two engines may only both witness for a context when they agree in it."""
        return (
            self.dtype,
            self.kv_cache_dtype,
            self.quantization,
            self.draft_layers,
            self.engine_version,
            self.model_revision,
            self.tokenizer,
        )


@dataclass(frozen=True)
class Context:
    """One registered context: its layout as far as is known, and when the panel first saw it (epoch seconds)."""

    layout: KVLayout
    first_seen: float


@dataclass(frozen=True)
class SeenLayout:
    """A layout of this server over time. `contexts` is how many have it now."""

    layout: KVLayout
    first_seen: float
    last_seen: float
    contexts: int


def complete(
    reported: Mapping[str, KVLayout], before: Mapping[str, Context], witnesses: Sequence[Witness], now: float
) -> dict[str, Context]:
    """The contexts of this poll. `before`: those of the last poll of the same server process."""
    contexts: dict[str, Context] = {}
    for ident, layout in reported.items():
        known = before.get(ident)
        same = known is not None and _extends(known.layout, layout)
        contexts[ident] = known if known is not None and same else Context(layout, now)
    return {ident: _with_facts(context, contexts, witnesses) for ident, context in contexts.items()}


def _with_facts(context: Context, all_contexts: Mapping[str, Context], witnesses: Sequence[Witness]) -> Context:
    own = [w for w in witnesses if context.layout.model_name in w.model_names]
    if not own or len({w.facts for w in own}) != 1:
        return context
    starts = [w.process_start for w in own]
    known_starts = [start for start in starts if start is not None]
    if len(known_starts) != len(starts) or context.first_seen < max(known_starts) - _SLACK_SECONDS:
        return context
    rivals = [
        c
        for c in all_contexts.values()
        if c.layout.model_name == context.layout.model_name and c.first_seen >= max(known_starts) - _SLACK_SECONDS
    ]
    if len(rivals) > len(own) * max(1, context.layout.world_size):
        return context  # one of them is of a process that is gone: whose facts these are is not known
    witness = own[0]
    merged = merge_engine_facts(
        context.layout,
        dtype=witness.dtype,
        kv_cache_dtype=witness.kv_cache_dtype,
        tokens_per_block=witness.block_size if not context.layout.groups else None,
        quantization=witness.quantization,
        draft_layers=witness.draft_layers,
        engine_version=witness.engine_version,
        model_revision=witness.model_revision,
        tokenizer=witness.tokenizer,
    )
    return Context(merged, context.first_seen)


def _extends(merged: KVLayout, reported: KVLayout) -> bool:
    """Whether the layout kept for a context says everything that the server reports of it now, and maybe more."""
    for item in fields(KVLayout):
        told = getattr(reported, item.name)
        if told not in (None, ()) and told != getattr(merged, item.name):
            return False
    return True


def remember(
    seen: Sequence[SeenLayout], contexts: Mapping[str, Context], now: float, *, limit: int = MAX_REMEMBERED
) -> tuple[SeenLayout, ...]:
    """The layouts of this server over time after one more poll: live ones first, then the most recent. What differs by
    no known field is one."""
    live: list[SeenLayout] = []
    for context in contexts.values():
        at = _like(context.layout, live)
        if at is None:
            live.append(SeenLayout(context.layout, context.first_seen, now, 1))
        else:
            old = live[at]
            first = min(context.first_seen, old.first_seen)
            live[at] = SeenLayout(_better_known(old.layout, context.layout), first, now, 1 + old.contexts)
    gone: list[SeenLayout] = []
    for old in seen:
        heir = _like(old.layout, live)
        heir = heir if heir is not None else _heir(old, live)
        if heir is not None:
            entry = live[heir]
            live[heir] = SeenLayout(entry.layout, min(entry.first_seen, old.first_seen), now, entry.contexts)
        else:
            gone.append(SeenLayout(old.layout, old.first_seen, old.last_seen, 0))
    gone.sort(key=lambda entry: entry.last_seen, reverse=True)
    return (*live, *gone)[:limit]


def _like(layout: KVLayout, live: Sequence[SeenLayout]) -> int | None:
    """Which entry has the same fingerprint, else which one no known field sets apart."""
    mine = [(at, entry.layout) for at, entry in enumerate(live) if _owner(entry.layout) == _owner(layout)]
    same = next((at for at, other in mine if other.fingerprint == layout.fingerprint), None)
    if same is not None:
        return same
    return next((at for at, other in mine if not compare_layouts(layout, other).differences), None)


def _owner(layout: KVLayout) -> tuple[str, int]:
    return layout.model_name, layout.world_size


def _better_known(old: KVLayout, new: KVLayout) -> KVLayout:
    def told(layout: KVLayout) -> int:
        return sum(value not in (None, ()) for value in layout.to_dict().values())

    return old if told(old) > told(new) else new


def _heir(old: SeenLayout, live: Sequence[SeenLayout]) -> int | None:
    """The live entry that is the same layout, better known since its engine was read."""
    if old.contexts == 0:
        return None
    for at, entry in enumerate(live):
        comparison = compare_layouts(old.layout, entry.layout)
        same_owner = _owner(entry.layout) == _owner(old.layout)
        if same_owner and entry.first_seen <= old.last_seen and not comparison.different and comparison.unknown_fields:
            return at
    return None
