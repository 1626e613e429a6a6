"""What is in force when a run begins: versions, layout, settings, capacities. Frozen into the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.acceptance import fixes
from app.acceptance.finding import Finding
from app.acceptance.tolerance import Mode
from app.fleet.targets import EngineTarget, ServerTarget
from app.lmcache.layouts import KVLayout, compare_layouts, merge_engine_facts, normalise_dtype
from app.lmcache.polling import ServerReading
from app.lmcache.settings import server_settings
from app.vllm.facts import checked_settings
from app.vllm.polling import EngineReading


@dataclass(frozen=True)
class Facts:
    """One engine and its server at one moment. Sizes in bytes; None is "not told"."""

    model: str
    model_root: str | None
    max_model_len: int | None
    engine_version: str | None
    server_version: str | None
    chunk_size: int | None
    layout: KVLayout | None
    block_size: int | None
    l0_tokens: int | None
    l1_bytes: int | None
    l1_watermark: float | None
    engine_start: float | None
    server_start: float | None
    server_instance: str | None
    eviction_policy: str | None
    has_l2: bool | None
    l2_adapters: tuple[str, ...]
    hybrid: bool
    batch_invariant: bool | None
    prefix_caching: bool | None
    running: float | None
    waiting: float | None
    kv_usage: float | None  # ratio 0-1
    settings: Mapping[str, Any]
    server_settings: Mapping[str, Any]

    @property
    def layout_marker(self) -> str | None:
        """What "the layout" is compared by: its fingerprint, else the engine process (which cannot change its own)."""
        if self.layout is not None:
            return self.layout.fingerprint
        return None if self.engine_start is None else f"process started at {self.engine_start:.3f}"

    def batch_tokens(self) -> int | None:
        """Prompt tokens of one batch."""
        layout = self.layout
        return batch_room(
            l0_tokens=self.l0_tokens,
            l1_bytes=self.l1_bytes,
            l1_watermark=self.l1_watermark,
            bytes_per_token=None if layout is None else layout.bytes_per_token,
            ranks=1 if layout is None else layout.world_size,
        )

    def frozen(self) -> dict[str, Any]:
        """JSON for the run: what history is compared by, then what only explains."""
        layout = None if self.layout is None else self.layout.to_dict()
        return {
            "model": self.model,
            "model_root": self.model_root,
            "engine_version": self.engine_version,
            "server_version": self.server_version,
            "layout_fingerprint": None if self.layout is None else self.layout.fingerprint,
            "layout": layout,
            "chunk_size": self.chunk_size,
            "settings": dict(self.settings),
            "server_settings": dict(self.server_settings),
            "l2_adapters": list(self.l2_adapters),
            "eviction_policy": self.eviction_policy,
            "max_model_len": self.max_model_len,
            "block_size": self.block_size,
            "l0_tokens": self.l0_tokens,
            "l1_bytes": self.l1_bytes,
            "engine_start": self.engine_start,
            "server_start": self.server_start,
            "load": {"running": self.running, "waiting": self.waiting},
        }


def batch_room(
    *,
    l0_tokens: int | None,
    l1_bytes: int | None,
    l1_watermark: float | None,
    bytes_per_token: float | None,
    ranks: int,
) -> int | None:
    """Prompt tokens that fit L0 and L1 together with room to spare: half of the smaller one."""
    limits: list[float] = []
    if l0_tokens:
        limits.append(l0_tokens)
    if l1_bytes and bytes_per_token:
        limits.append(l1_bytes * (l1_watermark or 0.8) / (bytes_per_token * max(1, ranks)))
    return max(1, int(min(limits) * 0.5)) if limits else None


def default_mode(facts: Facts) -> Mode:
    """What "equal" can mean for this model: bits where the engine promises them, the score where it promises none."""
    if facts.hybrid:
        return "score"
    return "exact" if facts.batch_invariant else "near_tie"


def same_layout(before: Facts, after: Facts) -> bool:
    """Whether both moments have one layout: the same process, or layouts that do not differ in what decides bytes."""
    if before.engine_start is not None and before.engine_start == after.engine_start:
        return True
    if before.layout is not None and after.layout is not None:
        return not compare_layouts(before.layout, after.layout).different
    return before.layout_marker == after.layout_marker


def read_facts(engine: EngineReading, server: ServerReading | None, *, base_path: str | None = None) -> Facts:
    """Facts from one poll of each. `server` is None for an engine without a cache server.

    `base_path` is the server's name of the store's directory (serde and checksum belong to an adapter).
    """
    models = [m for m in engine.models or () if m.parent is None] or list(engine.models or ())
    card = models[0] if models else None
    told = engine.facts
    metrics = engine.metrics
    labels = metrics.cache_configs[0].labels if metrics is not None and metrics.cache_configs else {}
    status = server.status if server is not None else None
    settings = {} if told is None else checked_settings(told)
    if told is None and metrics is not None:
        settings = {"kv_cache_dtype": metrics.cache_dtype, "block_size": metrics.block_size}
    # Any of the three says that the model keeps recurrent state beside attention; without dev mode only the labels do.
    mamba = [
        told.mamba_cache_mode if told is not None else None,
        labels.get("mamba_block_size"),
        labels.get("mamba_page_size_padded"),
    ]
    return Facts(
        model=card.id if card is not None else "",
        model_root=card.root if card is not None else None,
        max_model_len=card.max_model_len if card is not None else None,
        engine_version=engine.version,
        server_version=server.version if server is not None else None,
        chunk_size=status.chunk_size if status is not None else None,
        layout=_layout(engine, server, card.root if card is not None else None, base_path),
        block_size=metrics.block_size if metrics is not None else None,
        l0_tokens=metrics.capacity_tokens if metrics is not None else None,
        l1_bytes=status.l1_total_bytes if status is not None else None,
        l1_watermark=status.trigger_watermark if status is not None else None,
        engine_start=engine.process_start_time,
        server_start=server.process_start_time if server is not None else None,
        server_instance=server.instance_id if server is not None else None,
        eviction_policy=status.eviction_policy if status is not None else None,
        has_l2=None if status is None else bool(status.l2_adapters),
        l2_adapters=tuple(a.type or "?" for a in status.l2_adapters) if status is not None else (),
        hybrid=any(m not in (None, "", "none", "None") for m in mamba),
        batch_invariant=told.batch_invariant if told is not None else None,
        prefix_caching=told.enable_prefix_caching
        if told is not None and told.enable_prefix_caching is not None
        else (
            metrics.cache_configs[0].enable_prefix_caching if metrics is not None and metrics.cache_configs else None
        ),
        running=metrics.running if metrics is not None else None,
        waiting=metrics.waiting if metrics is not None else None,
        kv_usage=metrics.kv_cache_usage if metrics is not None else None,
        settings=settings,
        server_settings={} if server is None else server_settings(server.config, status),
    )


def _layout(
    engine: EngineReading, server: ServerReading | None, root: str | None, base_path: str | None
) -> KVLayout | None:
    """The layout of this engine's context: of several contexts of one model, the one with the engine's dtype.

    A server lists the context of an engine that is gone beside the new one until it reaps it (RULES.md C2).
    """
    if server is None:
        return None
    contexts = list(server.layouts(base_path).values())
    mine = [c for c in contexts if root is not None and c.model_name == root] or (
        contexts if len(contexts) == 1 else []
    )
    told, metrics = engine.facts, engine.metrics
    if told is not None and told.dtype is not None and len(mine) > 1:
        mine = [c for c in mine if c.dtype == normalise_dtype(told.dtype)] or mine
    if len({c.fingerprint for c in mine}) != 1:
        return None
    return merge_engine_facts(
        mine[-1],
        dtype=told.dtype if told is not None else None,
        kv_cache_dtype=(told.kv_cache_dtype if told is not None else None)
        or (metrics.cache_dtype if metrics is not None else None),
        quantization=told.quantization if told is not None else None,
        draft_layers=told.draft_layers if told is not None else None,
        engine_version=engine.version,
        model_revision=told.revision if told is not None else None,
        tokenizer=told.tokenizer if told is not None else None,
    )


def cannot_begin(
    facts: Facts,
    engine: EngineReading,
    server: ServerReading,
    arms: Sequence[str],
    targets: tuple[EngineTarget, ServerTarget],
) -> list[Finding]:
    """What stops a run before its first request."""
    name, server_name = targets[0].name, targets[1].name
    if not engine.http_up:
        text = f"the engine {name} does not answer: {engine.health_reason or engine.metrics_reason}"
        return [Finding("engine_unreachable", "error", text, fixes.ENGINE_DOWN)]
    if not server.http_up:
        text = f"the cache server {server_name} does not answer: {server.health_reason or server.status_reason}"
        return [Finding("server_unreachable", "invalid", text, fixes.SERVER_DOWN)]
    if not facts.model:
        text = f"the engine {name} lists no model: {engine.models_reason or 'the list is empty'}"
        return [Finding("no_model", "error", text, fixes.ENGINE_DOWN)]
    found: list[Finding] = []
    if server.status is None:
        text = f"the cache server's /status cannot be read: {server.status_reason}"
        found.append(Finding("server_unreadable", "invalid", text, fixes.SERVER_DOWN))
        return found
    if facts.chunk_size is None:
        text = "the cache server does not tell its chunk size, so nothing can be expected of it"
        found.append(Finding("chunk_size_unknown", "invalid", text, fixes.OLD_SERVER))
    if server.status.engines_registered == 0 and not server.status.context_ids:
        text = f"no engine is registered at the cache server {server_name}"
        found.append(Finding("engine_not_registered", "invalid", text, fixes.NOT_REGISTERED))
    needs_l2 = next((a for a in ("external_l2", "restarted_server") if a in arms), None)
    if needs_l2 is not None and facts.has_l2 is False:
        text = f"the cache server {server_name} has no L2 adapter"
        found.append(Finding("no_l2", "invalid", text, fixes.NO_L2, needs_l2))
    return found
