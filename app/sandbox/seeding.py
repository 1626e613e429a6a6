"""A store as it looks after weeks of use: what a newcomer should find when trying the panel.

The files are real and have the ages that make them what they are; `SeedReport` says what was put there, and which
layouts were live when, so that a demo can tell the panel the same history.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.sandbox.config import EngineSpec, KVLayout, Latency, SandboxConfig, ServerSpec
from app.sandbox.model import join_blocks, load_model
from app.sandbox.tiers import ObjectKey
from app.sandbox.tokenizer import VOCABULARY
from app.sandbox.world import World

DAY = 86_400.0
RETIRED_MODEL = "/models/atlas-6b-v1"
# The story: the first engine has run under one layout for weeks, but for a trial with another dtype this morning. What
# the trial left behind is served as wrong answers, and nothing but its time of writing tells it from the rest.
HISTORY = 40 * DAY
TRIAL_BEGAN = 3 * 3600.0
TRIAL_ENDED = 2.25 * 3600.0
SERVER_UP = 30 * DAY
_SALTS = ("tenant-a", "tenant-b")
_BUDGET = 36_000_000


@dataclass(frozen=True)
class SeedEpoch:
    """A span in which records of one model were written under one layout; `end` None: it lasts."""

    model_path: str
    layout: KVLayout
    chunk_size: int
    start: float
    end: float | None


@dataclass
class SeedReport:
    """What was seeded. `files` maps each kind to names relative to the store; times are epoch seconds."""

    seeded_at: float
    layout_changed_at: float
    epochs: list[SeedEpoch] = field(default_factory=list)
    files: dict[str, list[str]] = field(default_factory=dict)
    bytes: int = 0

    @property
    def counts(self) -> dict[str, int]:
        return {kind: len(names) for kind, names in self.files.items()}


def demo_specs(now: float) -> tuple[list[ServerSpec], list[EngineSpec], SandboxConfig]:
    """(servers, engines, config) of the demo: two models behind one small server, the first restarted after a trial
    with another dtype, answers that take a realistic time, L1 small enough to work at its watermark."""
    server = ServerSpec(
        l1_bytes=6_291_456,
        eviction_ratio=0.2,
        metrics_sample_rate=0.1,
        started_at=now - SERVER_UP,
        l2_store_delay_seconds=0.05,
    )
    layout = KVLayout(values_per_layer=32)
    engines = [
        EngineSpec(
            "/models/atlas-8b-instruct", "atlas-8b", layout=layout, l0_blocks=160, started_at=now - TRIAL_ENDED + 95
        ),
        EngineSpec("/models/atlas-coder-3b", "atlas-coder", layout=layout, l0_blocks=160, started_at=now - 20 * DAY),
    ]
    return [server], engines, SandboxConfig(latency=Latency.realistic())


def seed_demo(world: World, now: float) -> SeedReport:
    """Write the demo's files into the store of `world` (at most about 36 MB). Needs at least one engine."""
    seeder = _Seeder(world, now)
    seeder.records()
    seeder.damaged()
    seeder.leftovers()
    return seeder.report


class _Seeder:
    def __init__(self, world: World, now: float) -> None:
        self._path = world.store_path
        self._now = now
        self._rng = random.Random(world.config.seed + 40)  # noqa: S311
        server = world.servers[0]
        self.report = SeedReport(seeded_at=now, layout_changed_at=now - TRIAL_ENDED)
        self._chunk = server.spec.chunk_size
        self._tmp = server.spec.relative_tmp_dir
        self._engines = list({e.spec.model_path: e.spec for e in world.engines}.values())
        self._scale = min(1.0, _BUDGET / (1500 * self._chunk * max(e.layout.token_bytes for e in self._engines)))
        self._bodies: dict[tuple[str, KVLayout], list[bytes]] = {}

    # --- the kinds ---

    def records(self) -> None:
        """Current, stale and incompatible records of the served models, and those of a model that is gone."""
        now = self._now
        began, ended = now - TRIAL_BEGAN, now - TRIAL_ENDED
        for number, spec in enumerate(self._engines):
            for _ in self._times(260 - 60 * number):
                written = self._rng.uniform(now - 9 * DAY, began - 600)
                used = self._rng.uniform(max(written, now - 1.5 * DAY), now - 60)
                self._record("current", spec, spec.layout, written, used)
            for _ in self._times(150 - 40 * number):
                written = self._rng.uniform(now - HISTORY + DAY, now - 16 * DAY)
                self._record("stale", spec, spec.layout, written, written + self._rng.uniform(0, DAY))
        first = self._engines[0]
        trial = replace(first.layout, dtype="float16" if first.layout.dtype == "bfloat16" else "bfloat16")
        self._epoch(first, first.layout, now - HISTORY, began)
        self._epoch(first, trial, began, ended)
        self._epoch(first, first.layout, ended, None)
        for spec in self._engines[1:]:
            self._epoch(spec, spec.layout, now - HISTORY, None)
        for _ in self._times(380):
            written = self._rng.uniform(began + 300, ended - 300)
            self._record("incompatible", first, trial, written, self._rng.uniform(written, now - 60))
        retired = replace(first, model_path=RETIRED_MODEL)
        self._epoch(retired, trial, now - HISTORY, now - 26 * DAY)
        for _ in self._times(120):
            written = self._rng.uniform(now - HISTORY, now - 26 * DAY)
            self._record("retired_model", retired, trial, written, written + self._rng.uniform(0, DAY))

    def damaged(self) -> None:
        """Short and empty records of the live layout: a crash, a full disk."""
        spec, now = self._engines[0], self._now
        for count, kind, share in ((18, "short", None), (12, "empty", 0.0)):
            for _ in range(count):
                written = self._rng.uniform(now - 9 * DAY, now - TRIAL_BEGAN - 600)
                key, body = self._object(spec, spec.layout)
                keep = int(len(body) * (self._rng.uniform(0.1, 0.9) if share is None else share))
                self._write(kind, key.file_name(), body[:keep], written, written)

    def leftovers(self) -> None:
        """Unfinished writes of both forms, names of old versions, and files that are none of ours."""
        spec, now = self._engines[0], self._now
        for number in range(14):
            key, body = self._object(spec, spec.layout)
            written = self._rng.uniform(now - 9 * DAY, now - 0.5 * DAY)
            in_folder = self._tmp is not None and number < 9
            name = f"{self._tmp}/{key.file_name()}" if in_folder else f"{key.stem()}.tmp"
            self._write("temporary", name, body[: len(body) // (2 + number % 3)], written, written)
        for number in range(40):
            key, body = self._object(spec, spec.layout)
            written = self._rng.uniform(now - 90 * DAY, now - 55 * DAY)
            head, _, rest = key.stem().replace(f"@{key.object_group:x}@", "@", 1).partition("@" + key.chunk_hash)
            stem = f"{head}@{key.chunk_hash}{rest}"
            self._write("legacy_name", f"{stem}.data", body, written, written + number * 60)
        week = now - 7 * DAY
        for name, text in (
            ("README.txt", "KV cache of the inference cluster. Ask the platform team before deleting.\n"),
            ("core.20431", "\x7fELF"),
            ("rsync.log", "sent 1,204 bytes  received 35 bytes\n"),
            ("vllm@-models-atlas-6b-v1@1@0@1f8a77c0b5e94d21.pt", "PK"),
            ("backup/notes.txt", "copied on Friday\n"),
        ):
            self._write("foreign", name, text.encode("latin-1"), week, week)

    # --- writing ---

    def _times(self, count: int) -> Iterator[int]:
        return iter(range(max(25, int(count * self._scale))))

    def _epoch(self, spec: EngineSpec, layout: KVLayout, start: float, end: float | None) -> None:
        self.report.epochs.append(SeedEpoch(spec.model_path, layout, self._chunk, start, end))

    def _record(self, kind: str, spec: EngineSpec, layout: KVLayout, written: float, used: float) -> None:
        key, body = self._object(spec, layout)
        self._write(kind, key.file_name(), body, written, used)

    def _object(self, spec: EngineSpec, layout: KVLayout) -> tuple[ObjectKey, bytes]:
        parts = layout.parts()
        index = self._rng.randrange(len(parts))
        rank, group, _ = parts[index]
        salt = self._rng.choice(_SALTS) if self._rng.random() < 0.08 else ""
        key = ObjectKey(spec.model_path, rank, group, f"{self._rng.getrandbits(256):064x}", salt)
        body = self._body(spec, layout)[index]
        turn = self._rng.randrange(1, len(body) // 64) * 64
        return key, body[turn:] + body[:turn]

    def _body(self, spec: EngineSpec, layout: KVLayout) -> list[bytes]:
        """The objects of one chunk of this layout, computed once."""
        known = self._bodies.get((spec.model_path, layout))
        if known is None:
            model, size = load_model(spec.model_path), layout.block_size
            tokens = [self._rng.randrange(262, VOCABULARY) for _ in range(self._chunk)]
            blocks = [model.compute(tokens[p : p + size], p, (0.1,) * 8, layout) for p in range(0, self._chunk, size)]
            known = self._bodies[(spec.model_path, layout)] = join_blocks(blocks)
        return known

    def _write(self, kind: str, name: str, body: bytes, written: float, used: float) -> None:
        path: Path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        os.utime(path, ns=(int(max(used, written) * 1e9), int(written * 1e9)))
        self.report.files.setdefault(kind, []).append(name)
        self.report.bytes += len(body)
