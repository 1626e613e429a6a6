"""Command lines, ``docker run`` lines, unit files and compose files as facts: what would be started. Pure.

Nothing is executed and nothing is expanded; a text that cannot be read becomes a sentence.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from app.checks.base import Finding
from app.checks.evaluate import evaluate
from app.checks.facts import Container, EngineSide, Facts, ServerSide, StoreSide
from app.lmcache.in_process import masked, parse_in_process
from app.lmcache.in_process_log import parse_in_process_log
from app.lmcache.server_arguments import planned_config
from app.lmcache.server_log import parse_server_log
from app.vllm.serve_arguments import planned_facts
from app.vllm.startup_log import parse_startup_log
from app.vllm.startup_notes import parse_startup_notes
from app.wire.arguments import Options, command_lines, leading_variables, read_options

_SERVER_MODULES = ("lmcache.v1.multiprocess.http_server", "lmcache.v1.multiprocess.server")
_ENGINE_MODULES = ("vllm.entrypoints.openai.api_server",)
#: Options of ``docker run`` that stand alone; every other one takes a value.
_SWITCH_NAMES = """
-d --detach --rm -i -t -it -ti --interactive --tty --init --privileged --read-only --no-healthcheck -P --publish-all
--oom-kill-disable --sig-proxy --quiet -q
"""
_DOCKER_SWITCHES = frozenset(_SWITCH_NAMES.split())


@dataclass(frozen=True)
class Started:
    """One program that a text would start. `role` is server or engine."""

    role: str
    name: str
    options: Options
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Commands:
    """Everything a text would start."""

    programs: tuple[Started, ...] = ()
    containers: tuple[Container, ...] = ()
    problems: tuple[str, ...] = ()

    def first(self, role: str) -> Started | None:
        return next((item for item in self.programs if item.role == role), None)


def read_commands(text: str) -> Commands:
    """Read a text: a compose file, else unit files and shell lines. Never raises."""
    if not text.strip():
        return Commands()
    compose = _compose(text)
    if compose is not None:
        return compose
    programs: list[Started] = []
    containers: list[Container] = []
    problems: list[str] = []
    variables: dict[str, str] = {}
    try:
        for tokens in command_lines(_without_unit_syntax(text)):
            found, rest = leading_variables(tokens)
            variables.update({name: masked(name, value) for name, value in found.items()})
            if not rest:
                continue  # an assignment or an export for what follows
            if rest[0].rpartition("/")[2] in ("docker", "podman") and "run" in rest[:3]:
                container, inner = _docker_run(rest)
                containers.append(container)
                program = _program(inner, container.name, {**variables, **container.environment})
            else:
                program = _program(rest, "", dict(variables))
            if program is not None:
                programs.append(program)
    except ValueError as error:
        problems.append(str(error))
    return Commands(tuple(programs), tuple(containers), tuple(problems))


def facts_of_texts(*, commands: str = "", environment: str = "", engine_log: str = "", server_log: str = "") -> Facts:
    """The facts of what the texts would start; logs and the environment add to them."""
    found = read_commands(commands)
    problems = list(found.problems)
    server = _server_side(found, server_log, problems)
    engine = _engine_side(found, engine_log, environment, problems)
    in_process = parse_in_process(environment) if environment.strip() else None
    adapters = server.config.adapters if server is not None and server.config is not None else ()
    return Facts(
        server=server,
        engine=engine,
        stores=tuple(
            StoreSide(adapter=adapter, unseen_reason="nothing runs yet", policies_known=False) for adapter in adapters
        ),
        containers=found.containers,
        in_process=in_process,
        problems=tuple(problems),
    )


def check_texts(
    *, commands: str = "", environment: str = "", engine_log: str = "", server_log: str = ""
) -> list[Finding]:
    """Verdicts on texts alone, worst first. What only a running system could tell is left out."""
    facts = facts_of_texts(commands=commands, environment=environment, engine_log=engine_log, server_log=server_log)
    return [item for item in evaluate(facts) if not (item.verdict == "unknown" and item.check_id in _RUNNING_ONLY)]


_RUNNING_ONLY = ("store_device", "write_probe", "l1_host_memory", "odirect_alignment", "version_pair", "temp_dir")


def _server_side(found: Commands, log: str, problems: list[str]) -> ServerSide | None:
    program = found.first("server")
    facts = parse_server_log(log) if log.strip() else None
    if program is None:
        return ServerSide(name="cache server", planned=True, log=facts, version=facts.version) if facts else None
    config, unread = planned_config(program.options)
    problems.extend(unread)
    return ServerSide(
        name=program.name or "cache server",
        planned=True,
        config=config,
        log=facts,
        version=facts.version if facts is not None else None,
        environment=program.environment,
        arguments=program.options.plain(),
    )


def _engine_side(found: Commands, log: str, environment: str, problems: list[str]) -> EngineSide | None:
    program = found.first("engine")
    told = parse_startup_log(log) if log.strip() else None
    notes = parse_startup_notes(log) if log.strip() else None
    moved = parse_in_process_log(log) if log.strip() else None
    if program is None:
        if told is None and not environment.strip():
            return None
        facts = told.facts if told is not None and told.facts.model is not None else None
        return EngineSide(name="engine", planned=True, facts=facts, log=told, notes=notes, transfers=moved)
    facts, unread = planned_facts(program.options)
    problems.extend(unread)
    return EngineSide(
        name=program.name or "engine",
        planned=True,
        version=told.version if told is not None else None,
        facts=facts,
        log=told,
        notes=notes,
        transfers=moved,
        environment=program.environment,
        arguments=program.options.plain(),
    )


def _program(tokens: Sequence[str], name: str, environment: Mapping[str, str]) -> Started | None:
    """The server or engine that these tokens start, wherever in the line it stands."""
    for place, token in enumerate(tokens[:60]):
        base = token.rpartition("/")[2]
        following = tokens[place + 1] if place + 1 < len(tokens) else ""
        if base == "lmcache" and following == "server":
            return Started("server", name, read_options(tokens[place + 2 :]), environment)
        if base == "vllm" and following == "serve":
            return Started("engine", name, read_options(tokens[place + 2 :]), environment)
        if token in _SERVER_MODULES:
            return Started("server", name, read_options(tokens[place + 1 :]), environment)
        if token in _ENGINE_MODULES:
            return Started("engine", name, read_options(tokens[place + 1 :]), environment)
    return None


def _without_unit_syntax(text: str) -> str:
    """``ExecStart=`` and ``Environment=`` of unit files as shell lines; sections and other keys as comments."""
    if "ExecStart=" not in text:
        return text
    lines: list[str] = []
    continued = False
    for line in text.splitlines():
        stripped = line.strip()
        key, equals, value = stripped.partition("=")
        if continued:
            lines.append(line)
        elif equals and key in ("ExecStart", "Environment"):
            lines.append(value.lstrip("-@:+!") if key == "ExecStart" else f"export {value}")
        else:
            lines.append("")
            continued = False
            continue
        continued = stripped.endswith("\\")
    return "\n".join(lines)


def _docker_run(tokens: Sequence[str]) -> tuple[Container, list[str]]:
    """(the container, its command) of ``docker run [options] IMAGE [command]``."""
    index = tokens.index("run") + 1
    given: dict[str, list[str]] = {}
    entrypoint: list[str] = []
    while index < len(tokens):
        token = tokens[index]
        if not token.startswith("-"):
            break
        name, equals, value = token.partition("=")
        index += 1
        if equals:
            given.setdefault(name, []).append(value)
        elif token not in _DOCKER_SWITCHES and index < len(tokens):
            given.setdefault(name, []).append(tokens[index])
            index += 1
    image = tokens[index] if index < len(tokens) else None
    entrypoint = given.get("--entrypoint", [])[-1:]
    command = [*entrypoint, *tokens[index + 1 :]]
    environment: dict[str, str] = {}
    for item in (*given.get("-e", ()), *given.get("--env", ())):
        name, _, value = item.partition("=")
        environment[name] = masked(name, value)
    name = _last(given, "--name") or ""
    network = _last(given, "--network") or _last(given, "--net")
    container = Container(
        name=name or "container",
        role=_role(command, image),
        image=image,
        ipc=_last(given, "--ipc"),
        network=network,
        environment=environment,
        has_health_check="--health-cmd" in given,
        shm_size=_last(given, "--shm-size"),
        origin="docker run",
    )
    return container, command


def _last(given: Mapping[str, list[str]], name: str) -> str | None:
    return given[name][-1] if given.get(name) else None


def _role(command: Sequence[str], image: str | None) -> str:
    program = _program(command, "", {})
    if program is not None:
        return program.role
    name = (image or "").lower()
    if "vllm" in name:
        return "engine"
    return "server" if "lmcache" in name else "other"


def _compose(text: str) -> Commands | None:
    """A compose file's services, None where the text is none."""
    if "services:" not in text:
        return None
    try:
        loaded = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        first = (str(error).splitlines() or ["no reason given"])[0]
        return Commands(problems=(f"the compose file cannot be read: {first[:200]}",))
    services = loaded.get("services") if isinstance(loaded, dict) else None
    if not isinstance(services, dict):
        return None
    programs: list[Started] = []
    containers: list[Container] = []
    for key, value in list(services.items())[:100]:
        if not isinstance(value, dict):
            continue
        name, environment = str(key)[:120], _environment(value.get("environment"))
        command = [*_tokens(value.get("entrypoint")), *_tokens(value.get("command"))]
        image = value.get("image")
        container = Container(
            name=name,
            role=_role(command, str(image) if image else None),
            image=str(image)[:300] if image else None,
            ipc=_maybe(value.get("ipc")),
            network=_maybe(value.get("network_mode")),
            environment=environment,
            waits_for=_waits(value.get("depends_on")),
            has_health_check=_has_health_check(value.get("healthcheck")),
            shm_size=_maybe(value.get("shm_size")),
        )
        containers.append(container)
        program = _program(command, name, environment)
        if program is not None:
            programs.append(program)
    return Commands(tuple(programs), tuple(containers))


def _tokens(value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(item) for item in value]
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError:
            return value.split()
    return []


def _environment(value: Any) -> dict[str, str]:
    pairs: dict[str, str] = {}
    if isinstance(value, dict):
        pairs = {str(name): "" if item is None else str(item) for name, item in value.items()}
    elif isinstance(value, list):
        for item in value:
            name, _, rest = str(item).partition("=")
            pairs[name] = rest
    return {name: masked(name, item) for name, item in list(pairs.items())[:300]}


def _waits(value: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(value, list):
        return tuple((str(item), "service_started") for item in value)
    if isinstance(value, dict):
        return tuple(
            (str(name), str(item.get("condition", "service_started")) if isinstance(item, dict) else "service_started")
            for name, item in value.items()
        )
    return ()


def _has_health_check(value: Any) -> bool:
    return isinstance(value, dict) and not value.get("disable") and value.get("test") not in (None, [], ["NONE"])


def _maybe(value: Any) -> str | None:
    return None if value is None else str(value)[:200]
