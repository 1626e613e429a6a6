"""TARGETS_FILE: servers, engines, stores and policies declared in YAML and applied at every start.

Format (all four sections are optional; ``deploy/targets.example.yaml`` shows each field)::

    servers:
      - name: rack-1                      # required; what is declared is found again by its name
        url: http://gpu-1:8080            # required
        api_key_env: RACK1_KEY            # the name of an environment variable, or `api_key: …` itself
        headers: {X-Tenant: research}
        tls_ca: /etc/ssl/rack-1.pem       # a PEM file (or its text) of the only CA that counts
        tls_verify: true                  # false: believe whoever answers
        labels: {zone: b}
    engines:
      - name: rack-1-engine
        url: http://gpu-1:8000
        server: rack-1                    # a declared or registered server; left out: guessed by its model
    stores:
      - name: rack-1-l2
        path: /srv/kv/l2                  # where the panel finds it
        servers: [rack-1]
        server_path: /data/l2             # what the servers call it; left out: from the server's configuration
        temp_dir: .tmp                    # left out: from the server's configuration
        confirm: false                    # as in POST /stores
    policies:
      - name: nightly                     # as in POST /policies, with `store` in place of `store_id`
        store: rack-1-l2
        …

Applying is idempotent: what is missing is created, what differs is changed, what is not declared is left alone. Fields
that are left out keep the value they have. The whole file is read and checked before anything is changed; errors name
the line and the field. A store that is registered already is not looked at again unless its declaration changed: a
mount that is late must not keep the panel from starting. (A new store whose servers were never polled is judged after
one poll of them: make the poller before calling `apply`, outside any event loop.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.errors import InvalidInput, NotFound
from app.fleet.context import TargetKind
from app.fleet.schemas import EngineCreate, EnginePatch, ServerCreate, ServerPatch, StoreCreate, StorePatch
from app.fleet.service import FleetService
from app.fleet.targets_reading import DeclaredEngine, DeclaredServer, DeclaredStore, Located, Reached, read

ACTOR = "targets-file"

#: Stores one declared policy: (the fields of POST /policies, with `store_id`; actor). Creates or changes it by name.
PolicyHook = Callable[[Mapping[str, Any], str], None]


@dataclass
class Report:
    """What applying did, by kind: names that were created, changed, or were right already."""

    created: dict[str, list[str]] = field(default_factory=dict)
    changed: dict[str, list[str]] = field(default_factory=dict)
    unchanged: dict[str, list[str]] = field(default_factory=dict)
    policies: int = 0

    def note(self, outcome: dict[str, list[str]], kind: str, name: str) -> None:
        outcome.setdefault(kind, []).append(name)


def apply(
    fleet: FleetService,
    path: Path,
    *,
    policies: PolicyHook | None = None,
    environment: Mapping[str, str] | None = None,
) -> Report:
    """Reads, checks and applies the file. Raises InvalidInput or Conflict naming file, line and field."""
    declared, lines = read(path)
    environment = os.environ if environment is None else environment
    report = Report()
    for index, server in enumerate(declared.servers):
        with Located(path, lines, f"servers[{index}]"):
            _apply_server(fleet, server, environment, report)
    for index, engine in enumerate(declared.engines):
        with Located(path, lines, f"engines[{index}]"):
            _apply_engine(fleet, engine, environment, report)
    for index, store in enumerate(declared.stores):
        with Located(path, lines, f"stores[{index}]"):
            _apply_store(fleet, store, report)
    for index, policy in enumerate(declared.policies):
        with Located(path, lines, f"policies[{index}]"):
            if policies is None:
                raise InvalidInput("policies cannot be declared here")
            values = dict(policy)
            if "store" not in values:
                raise InvalidInput.field("store", "is missing; name the store that the policy cleans")
            values["store_id"] = str(_id(fleet, "store", values.pop("store"), "store"))
            policies(values, ACTOR)
            report.policies += 1
    return report


# ---- applying ----


def _apply_server(fleet: FleetService, entry: DeclaredServer, environment: Mapping[str, str], report: Report) -> None:
    wanted = _reached(entry, environment)
    server_id = _find(fleet, "server", entry.name)
    if server_id is None:
        fleet.create_server(ServerCreate.model_validate({**wanted, "name": entry.name}), actor=ACTOR)
        report.note(report.created, "server", entry.name)
        return
    target, view = fleet.server_target(server_id), fleet.get_server(server_id)
    changes = _differences(
        wanted,
        {
            "url": target.url,
            "api_key": target.api_key,
            "headers": dict(target.headers),
            "tls_verify": view.tls.verify,
            "tls_ca": view.tls.ca,
            "labels": view.labels,
        },
        fleet,
    )
    if changes:
        fleet.patch_server(server_id, ServerPatch.model_validate(changes), actor=ACTOR)
    report.note(report.changed if changes else report.unchanged, "server", entry.name)


def _apply_engine(fleet: FleetService, entry: DeclaredEngine, environment: Mapping[str, str], report: Report) -> None:
    wanted = _reached(entry, environment)
    if entry.server is not None:
        wanted["server_id"] = str(_id(fleet, "server", entry.server, "server"))
    engine_id = _find(fleet, "engine", entry.name)
    if engine_id is None:
        fleet.create_engine(EngineCreate.model_validate({**wanted, "name": entry.name}), actor=ACTOR)
        report.note(report.created, "engine", entry.name)
        return
    target, view = fleet.engine_target(engine_id), fleet.get_engine(engine_id)
    present = {
        "url": target.url,
        "api_key": target.api_key,
        "headers": dict(target.headers),
        "tls_verify": view.tls.verify,
        "tls_ca": view.tls.ca,
        "labels": view.labels,
        # A guess that happens to be right is not what was declared.
        "server_id": view.server_id if view.server_link == "given" else None,
    }
    changes = _differences(wanted, present, fleet)
    if changes:
        fleet.patch_engine(engine_id, EnginePatch.model_validate(changes), actor=ACTOR)
    report.note(report.changed if changes else report.unchanged, "engine", entry.name)


def _apply_store(fleet: FleetService, entry: DeclaredStore, report: Report) -> None:
    wanted: dict[str, Any] = {
        key: value
        for key, value in (
            ("server_path", entry.server_path),
            ("temp_dir", entry.temp_dir),
            ("labels", entry.labels),
        )
        if value is not None
    }
    if entry.servers is not None:
        wanted["server_ids"] = [str(_id(fleet, "server", name, "servers")) for name in entry.servers]
    store_id = _find(fleet, "store", entry.name)
    if store_id is None:
        body = {**wanted, "name": entry.name, "path": entry.path, "confirm": entry.confirm}
        fleet.create_store(StoreCreate.model_validate(body), actor=ACTOR)
        report.note(report.created, "store", entry.name)
        return
    view = fleet.get_store(store_id)
    if entry.path.rstrip("/") != view.path and os.path.realpath(entry.path) != view.path:
        raise InvalidInput.field(
            "path",
            f"the store {entry.name!r} is registered with {view.path!r}; a store keeps its path: forget it in the "
            "panel first, or declare another name",
        )
    present = {
        "server_path": view.server_path,
        "temp_dir": view.temp_dir,
        "labels": view.labels,
        "server_ids": view.server_ids,
    }
    changes = {key: value for key, value in wanted.items() if value != present[key]}
    if changes:
        fleet.patch_store(store_id, StorePatch.model_validate({**changes, "confirm": entry.confirm}), actor=ACTOR)
    report.note(report.changed if changes else report.unchanged, "store", entry.name)


def _reached(entry: Reached, environment: Mapping[str, str]) -> dict[str, Any]:
    wanted: dict[str, Any] = {"url": entry.url}
    if entry.api_key is not None and entry.api_key_env is not None:
        raise InvalidInput.field("api_key_env", "give either api_key or api_key_env, not both")
    if entry.api_key_env is not None:
        key = environment.get(entry.api_key_env)
        if not key:
            raise InvalidInput.field("api_key_env", f"the environment has no variable {entry.api_key_env!r}")
        wanted["api_key"] = key
    elif entry.api_key is not None:
        wanted["api_key"] = entry.api_key
    for key in ("headers", "tls_verify", "tls_ca", "labels"):
        if (value := getattr(entry, key)) is not None:
            wanted[key] = value.strip() if key == "tls_ca" else value
    return wanted


def _differences(wanted: Mapping[str, Any], present: Mapping[str, Any], fleet: FleetService) -> dict[str, Any]:
    changes = {key: value for key, value in wanted.items() if value != present[key]}
    if "url" in changes and fleet.normalise_url(changes["url"]) == present["url"]:
        del changes["url"]
    return changes


def _find(fleet: FleetService, kind: TargetKind, name: str) -> int | None:
    try:
        return fleet.find_named(kind, name)
    except NotFound:
        return None


def _id(fleet: FleetService, kind: TargetKind, name: object, field_name: str) -> int:
    try:
        return fleet.find_named(kind, str(name))
    except NotFound:
        raise InvalidInput.field(
            field_name, f"there is no {kind} named {str(name)[:80]!r}, declared above or registered"
        ) from None
