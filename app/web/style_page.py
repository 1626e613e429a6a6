"""The living style page: every part in every state, with values made up for looking at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.clock import Clock, iso
from app.errors import FieldError
from app.web.contexts import Event, FlowPicture, Hop, Lane, PageContext, Pin, Shell, Trend
from app.web.forms import FormState


@dataclass(frozen=True)
class Swatch:
    """One colour of the style page: what it means, its token, and the class that fills with it."""

    title: str
    token: str
    cls: str


@dataclass(frozen=True)
class StylePage(PageContext):
    """style.html: the living style page."""

    form: FormState
    colours: Sequence[tuple[str, Sequence[Swatch]]]
    flow: FlowPicture
    flow_unknown: FlowPicture
    events: Sequence[Event]
    trend: Trend


_COLOURS: tuple[tuple[str, tuple[Swatch, ...]], ...] = (
    (
        "Tiers: where tokens come from",
        (
            Swatch("L0, GPU", "tier-l0", "f-l0"),
            Swatch("L1, memory", "tier-l1", "f-l1"),
            Swatch("L2, disk", "tier-l2", "f-l2"),
            Swatch("recomputed", "tier-rc", "f-rc"),
        ),
    ),
    (
        "Record classes",
        tuple(
            Swatch(name, f"c-{name}", f"f-{name}")
            for name in ("current", "unverified", "temporary", "unreachable", "corrupt", "incompatible", "foreign")
        ),
    ),
    (
        "States",
        (
            Swatch("right", "ok", "f-ok"),
            Swatch("look at it", "warn", "f-warn"),
            Swatch("wrong", "bad", "f-bad"),
            Swatch("at work, or a note", "info", "f-info"),
            Swatch("not known, off", "none", "f-none"),
        ),
    ),
)

_LANES = (
    ("l0", 0.28, 0.64, None, "64 % of 412 k tokens in use"),
    ("l1", 0.41, 0.755, 0.8, "15.1 of 20.0 GiB, evicts at 80 %"),
    ("l2", 0.17, 0.765, None, "1.99 of 2.60 TB"),
    ("rc", 0.14, None, None, "what no tier held"),
)


def style_page(shell: Shell, clock: Clock) -> StylePage:
    """The context of style.html."""
    now = clock()

    def at(seconds: float) -> str:
        return iso(now - seconds) or ""

    tokens = 4_210_448
    known = FlowPicture(
        state="value",
        total_tokens=tokens,
        seconds=900.0,
        reason="",
        sentence="Of 4.21 M prompt tokens: 28 % from the GPU, 41 % from memory, 17 % from disk, 14 % computed again.",
        shares={tier: share for tier, share, *_ in _LANES},
        lanes=tuple(
            Lane(tier, f"{int(tokens * share / 900):,} tokens/s", share, int(tokens * share), "", fill, mark, text)
            for tier, share, fill, mark, text in _LANES
        ),
        hops=(
            Hop("looked up in L1 and L2", "4,680 tokens/s", "", "asked"),
            Hop("stored", "36 chunks/s", "", "store", moves=True),
            Hop("written", None, "not measured", "spill"),
            Hop("evicted from L1", "0 chunks/s", "", "evict"),
        ),
    )
    unknown = FlowPicture(
        state="unknown",
        total_tokens=None,
        seconds=None,
        reason="no engine answers /metrics",
        sentence="Where prompt tokens came from is not known: no engine answers /metrics.",
        shares={},
        lanes=tuple(
            Lane(tier, "", None, None, "no engine answers /metrics", None, None, "use unknown") for tier, *_ in _LANES
        ),
        hops=(),
    )
    wave = [0.38 + 0.05 * ((i * 7) % 11 - 5) / 5 for i in range(60)]
    l1: list[float | None] = [None if 20 <= i < 24 else v for i, v in enumerate(wave)]
    l2: list[float | None] = [None if v is None else v * 0.4 for v in l1]
    form = FormState(
        values={"name": ("nvme-a",), "path": ("/",), "kind": ("b",), "on": ("on",), "how": ("a",)},
        errors=(FieldError("path", "/ is the root of the file system; name the directory of the adapter"),),
        summary="The input cannot be used. Nothing was changed.",
        fields=frozenset({"name", "path", "kind", "on", "how"}),
    )
    events = (
        Event(at(180), "layout", "warn", "qwen-1 restarted with another layout", "dtype bfloat16 to float16"),
        Event(at(3900), "health", "bad", "lmc-c became unreachable", "connection refused"),
        Event(at(17900), "acceptance", "ok", "Acceptance of qwen-2: pass"),
        Event(at(90000), "cleanup", "ok", "Cleanup of nvme-a: done", "removed 311 records, 9.8 GB"),
    )
    trend = Trend(
        (),
        3600.0,
        (Pin(63.0, "qwen-1 restarted", "warn", "restart"), Pin(80.0, "two events", "ok", "cleanup", 2)),
        (("l1", tuple(l1)), ("l2", tuple(l2))),
    )
    return StylePage(
        shell=shell, form=form, colours=_COLOURS, flow=known, flow_unknown=unknown, events=events, trend=trend
    )
