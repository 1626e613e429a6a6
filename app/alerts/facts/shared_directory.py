"""Several servers that write into one directory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from app.alerts.inputs import Moment, ServerInput
from app.alerts.model import Fact, Subject, some


def shared_directories(moment: Moment) -> list[Fact]:
    """Rule: servers that answer and are joined to one store; and servers of one host whose file adapters name the same
    path. Beside it: how many (model, world size) both have registered (then both write the same names, through the same
    temporary file), and whether the workers of one engine are spread over them."""
    found: list[Fact] = []
    told: set[frozenset[int]] = set()
    for store in moment.stores.values():
        servers = [s for ident in store.server_ids if (s := moment.servers.get(ident)) is not None and s.up]
        told.add(frozenset(s.id for s in servers))
        found.append(_fact(store.subject, store.path, servers))
    by_path: dict[tuple[str, str], list[ServerInput]] = defaultdict(list)
    for server in moment.servers.values():
        paths = {a.base_path for a in server.adapters if a.base_path and a.type in ("fs", "fs_native")}
        for path in paths if server.up else ():
            by_path[server.host, path].append(server)
    for (_, path), servers in sorted(by_path.items()):
        if len(servers) > 1 and frozenset(s.id for s in servers) not in told:
            first = min(servers, key=lambda s: s.id)
            found.append(_fact(first.subject, path, servers, part=path))
    return found


def _fact(subject: Subject, path: str, servers: Sequence[ServerInput], part: str = "") -> Fact:
    contexts: dict[tuple[str, int], list[int]] = defaultdict(list)
    for server in servers:
        held: dict[tuple[str, int], int] = defaultdict(int)
        for layout in server.layouts:
            held[layout.key] += layout.contexts
        for key, count in held.items():
            contexts[key].append(count)
    both = {key: counts for key, counts in contexts.items() if len(counts) > 1}
    split = [key for key, counts in both.items() if key[1] > 1 and all(count < key[1] for count in counts)]
    return Fact(
        "shared_directory",
        subject,
        {"servers": float(len(servers)), "same_models": float(len(both)), "split": float(len(split))},
        {"servers": some([s.name for s in servers], 4), "path": path, "models": some([m for m, _ in sorted(both)])},
        part=part,
        quiet="fewer than two of its servers answer" if len(servers) < 2 else None,
    )
