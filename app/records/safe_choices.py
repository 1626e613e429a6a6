"""What to do where a layout changed over a store that holds records of the one before: two ways that are safe. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from app.fleet.schemas import L2View
from app.fleet.targets import StoreTarget
from app.lmcache.layout_directory import layout_path
from app.lmcache.layouts import KVLayout, Verdict, compare_layouts
from app.records.epoch_counts import EpochCount
from app.records.schemas import SafeChoicesView
from app.records.tables import LayoutEpoch


def safe_choices(
    store: StoreTarget,
    rows: Sequence[LayoutEpoch],
    counts: Mapping[tuple[str, int, str], EpochCount] | None,
    adapters: Callable[[], Sequence[L2View]],
) -> list[SafeChoicesView]:
    """One for each live layout beside which the store holds records of a layout that decides other bytes.

    `counts` None: never scanned; it is not known then how many there are.
    """
    found: list[SafeChoicesView] = []
    observed = [row for row in rows if row.kind == "observed"]
    for live in observed:
        if not live.live:
            continue
        layout = KVLayout.from_json(live.layout)
        others = {
            row.fingerprint
            for row in observed
            if (row.model_name, row.world_size) == (live.model_name, live.world_size)
            and not row.live
            and compare_layouts(KVLayout.from_json(row.layout), layout).verdict is Verdict.DIFFERENT
        } - {live.fingerprint}
        parts = [counts.get((live.model_name, live.world_size or 0, name or "")) for name in others] if counts else []
        known = [part for part in parts if part is not None]
        if not others or (counts is not None and not known) or any(c.fingerprint == live.fingerprint for c in found):
            continue
        directory = new_directory(store.server_path, live.display_model, live.fingerprint or "")
        found.append(
            SafeChoicesView(
                model_name=live.display_model,
                world_size=live.world_size or 0,
                fingerprint=live.fingerprint or "",
                records=None if counts is None else sum(part.records for part in known),
                bytes=None if counts is None else sum(part.bytes for part in known),
                new_directory=directory,
                flag=adapter_flag(directory, adapters()),
            )
        )
    return found


def new_directory(server_path: str, model: str, fingerprint: str) -> str:
    """Beside the present directory, as the servers call it: inside it a scan of the old one would find the new."""
    return layout_path(server_path.rstrip("/").rpartition("/")[0], model, fingerprint)


def adapter_flag(directory: str, adapters: Sequence[L2View]) -> str:
    """The option of ``lmcache server``, with what is known of the present adapter of the old directory."""
    known = adapters[0] if adapters else None
    value: dict[str, object] = {"type": known.adapter if known else "fs", "base_path": directory}
    if known is not None and known.relative_tmp_dir:
        value["relative_tmp_dir"] = known.relative_tmp_dir
    text = json.dumps(value).replace("'", "\\u0027")  # for a shell's single quotes
    return f"--l2-adapter '{text}'"
