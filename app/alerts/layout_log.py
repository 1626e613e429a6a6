"""Layouts as polls showed them: which are different, and when a server's last changed. Pure.

Two layouts count as different only on proof (RULES.md C1): what one of them does not tell proves nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.alerts.inputs import LayoutChange, LiveLayout
from app.lmcache.layouts import KVLayout, compare_layouts

Key = tuple[str, int]  # model name, world size


def distinct(layouts: Sequence[LiveLayout]) -> list[LiveLayout]:
    """The layouts of one (model, world size) that are proven to be different from each other, contexts added up."""
    found: list[LiveLayout] = []
    for live in layouts:
        for index, known in enumerate(found):
            if not compare_layouts(known.layout, live.layout).different:
                found[index] = LiveLayout(_richer(known.layout, live.layout), known.contexts + live.contexts)
                break
        else:
            found.append(live)
    return found


def by_model(layouts: Sequence[LiveLayout]) -> dict[Key, list[LiveLayout]]:
    """{(model, world size): its layouts}."""
    found: dict[Key, list[LiveLayout]] = defaultdict(list)
    for live in layouts:
        found[live.key].append(live)
    return dict(found)


def _richer(a: KVLayout, b: KVLayout) -> KVLayout:
    """The one that tells what decides."""
    return a if a.proves_current or not b.proves_current else b


@dataclass
class LayoutLog:
    """Fed with what a server showed, in order; remembers what was live last and the last change.

    A layout that is away is not replaced: only another one beside or instead of it is a change.
    """

    _live: dict[Key, list[KVLayout]] = field(default_factory=dict)
    last_change: LayoutChange | None = None

    def feed(self, at: float, contexts: Sequence[KVLayout]) -> None:
        """One span of equal polls that began at `at`."""
        shown: dict[Key, list[KVLayout]] = defaultdict(list)
        for layout in contexts:
            shown[layout.model_name, layout.world_size].append(layout)
        for key, layouts in shown.items():
            before = self._live.get(key, [])
            for layout in layouts:
                comparisons = [compare_layouts(old, layout) for old in before]
                if comparisons and all(c.different for c in comparisons):
                    fields = tuple(f"{d.field}: {d.old} → {d.new}" for d in comparisons[-1].hard)
                    self.last_change = LayoutChange(at, *key, fields)
            self._live[key] = layouts
