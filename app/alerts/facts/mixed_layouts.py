"""Several KV layouts of one model at once: they write different bytes under the same names."""

from __future__ import annotations

from app.alerts.inputs import LiveLayout, Moment, ServerInput, StoreInput
from app.alerts.layout_log import by_model, distinct
from app.alerts.model import Fact, some

REAP_SECONDS = 120.0
#: How long a server keeps the context of a worker that never pinged.
GRACE_SECONDS = 3600.0


def mixed_on_server(moment: Moment, server: ServerInput) -> Fact:
    """Rule: layouts proven to be different that are registered for one (model, world size). Counts only once the server
    must have reaped what is gone: its reap timeout and two polls; an hour where more contexts are listed than the
    engines that answer can have (the old one never pinged)."""
    if not server.up:
        return Fact("mixed_layouts", server.subject, unknown="the server does not answer")
    groups = {key: distinct(found) for key, found in by_model(server.layouts).items()}
    mixed = {key: found for key, found in sorted(groups.items()) if len(found) > 1}
    if not mixed:
        return Fact("mixed_layouts", server.subject, {"layouts": 1.0 if groups else 0.0})
    (model, world_size), found = next(iter(mixed.items()))
    engines = [e for e in server.engines if e.up and model in e.model_names]
    left_over = bool(engines) and sum(x.contexts for x in found) > len(engines) * max(1, world_size)
    reap = server.reap_timeout if server.reap_timeout is not None else REAP_SECONDS
    return Fact(
        "mixed_layouts",
        server.subject,
        {
            "layouts": float(len(found)),
            "wait": (max(GRACE_SECONDS, reap) if left_over else reap) + 2 * moment.interval,
            "left_over": float(left_over),
        },
        {"model": model, "layouts": some([x.said for x in found])},
    )


def mixed_in_store(moment: Moment, store: StoreInput) -> Fact:
    """Rule: the same over all servers of one directory, where no server has more than one of them."""
    servers = [s for ident in store.server_ids if (s := moment.servers.get(ident)) is not None and s.up]
    if len(servers) < 2:
        return Fact("mixed_in_store", store.subject, quiet="fewer than two of its servers answer")
    everywhere: list[tuple[str, LiveLayout]] = [(s.name, x) for s in servers for x in s.layouts]
    for key, layouts in sorted(by_model([live for _, live in everywhere]).items()):
        found = distinct(layouts)
        if len(found) < 2 or any(len(distinct(by_model(s.layouts).get(key, []))) > 1 for s in servers):
            continue
        reaps = [s.reap_timeout if s.reap_timeout is not None else REAP_SECONDS for s in servers]
        said = list(dict.fromkeys(f"{name}: {live.said}" for name, live in everywhere if live.key == key))
        return Fact(
            "mixed_in_store",
            store.subject,
            {"layouts": float(len(found)), "wait": max(reaps) + 2 * moment.interval},
            {"model": key[0], "layouts": some(said)},
        )
    return Fact("mixed_in_store", store.subject, {"layouts": 1.0 if everywhere else 0.0})
