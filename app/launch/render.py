"""Words into files: shell, docker, compose, systemd, and the tear-down. Pure.

Start order: the server first, the engine once it is healthy. A server that comes back faster than two heartbeats is
never noticed by a running engine, so units restart it after more than that.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from app.launch import words
from app.launch.plan import Plan, l1_gib
from app.launch.schemas import FileView, LaunchInput

SERVER_NAME, ENGINE_NAME = "lmcache", "vllm"
_HEALTH = (
    "import sys, urllib.request; "
    "sys.exit(urllib.request.urlopen('http://127.0.0.1:{port}{path}', timeout=3).status != 200)"
)


@dataclass(frozen=True)
class Plans:
    """The same launch on the host and in containers (addresses and programs differ)."""

    host: Plan
    container: Plan


def files(body: LaunchInput, plans: Plans) -> list[FileView]:
    """Every file of both scenarios."""
    return [
        *_shell(body, plans.host),
        *_docker(body, plans.container),
        *_compose(body, plans.container),
        *_systemd(body, plans.host),
    ]


def server_url(body: LaunchInput) -> str:
    """The health check's address on the server's own host."""
    host = body.server.http_host
    shown = "127.0.0.1" if host in ("0.0.0.0", "::", "[::]") else host  # noqa: S104
    return f"http://{f'[{shown}]' if ':' in shown and not shown.startswith('[') else shown}:{body.server.http_port}"


# ---- shell ----


def _shell(body: LaunchInput, plan: Plan) -> list[FileView]:
    gate = f"until curl -fsS -o /dev/null {shlex.quote(server_url(body) + '/healthcheck')}; do sleep 1; done"
    server = _exported(plan.server_environment, ["lmcache", *plan.server])
    engine_a = _exported(plan.engine_environment, ["vllm", *plan.engine_a])
    engine_b = _exported(plan.engine_environment, ["vllm", *plan.engine_b])
    folder = f"mkdir -p {shlex.quote(plan.base_path)}\n" if plan.base_path is not None else ""
    script = (
        "#!/bin/sh\n# The cache server, then the engine once the server is healthy.\nset -eu\n"
        f"{folder}{server} &\necho $! > lmcache.pid\n{gate}\n{engine_b} &\necho $! > vllm.pid\nwait\n"
    )
    down = (
        "#!/bin/sh\n# The engine first: it says good-bye to the server.\n"
        'for name in vllm lmcache; do\n  if [ -f "$name.pid" ]; then\n    pid=$(cat "$name.pid")\n'
        '    kill -TERM "$pid" 2>/dev/null || true\n    for _ in $(seq 60); do kill -0 "$pid" 2>/dev/null || break; '
        'sleep 0.5; done\n    kill -KILL "$pid" 2>/dev/null || true\n    rm -f "$name.pid"\n  fi\ndone\n'
    )
    return [
        _file("engine-alone.sh", "shell", "A", "the engine without the cache: the baseline", engine_a + "\n"),
        _file("server.sh", "shell", "B", "the cache server; wait until it is healthy", folder + server + "\n"),
        _file("engine.sh", "shell", "B", "the same engine with the cache", engine_b + "\n"),
        _file("start.sh", "shell", "B", "both, in the right order", script),
        _file("stop.sh", "shell", "both", "the tear-down, in the folder of start.sh", down),
    ]


def _exported(environment: Mapping[str, str], argv: Sequence[str]) -> str:
    assigned = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return f"{assigned} {words.shell_line(argv)}" if assigned else words.shell_line(argv)


# ---- docker ----


def _docker(body: LaunchInput, plan: Plan) -> list[FileView]:
    images = body.images
    server = _docker_run(body, SERVER_NAME, images.server, images.server_program, plan.server, plan)
    engine_a = _docker_run(body, ENGINE_NAME, images.engine, images.engine_program, plan.engine_a, plan, alone=True)
    engine_b = _docker_run(body, ENGINE_NAME, images.engine, images.engine_program, plan.engine_b, plan)
    network = "docker network create lmcache-net\n" if images.isolated else ""
    gate = "until [ \"$(docker inspect -f '{{.State.Health.Status}}' lmcache)\" = healthy ]; do sleep 1; done\n"
    down = f"docker stop -t 60 {ENGINE_NAME}\ndocker stop -t 60 {SERVER_NAME}\ndocker rm {ENGINE_NAME} {SERVER_NAME}\n"
    if images.isolated:
        down += "docker network rm lmcache-net\n"
    return [
        _file("docker-engine-alone.sh", "docker", "A", "the engine without the cache", network + engine_a + "\n"),
        _file(
            "docker-start.sh",
            "docker",
            "B",
            "server, health gate, engine",
            f"#!/bin/sh\nset -eu\n{network}{server}\n{gate}{engine_b}\n",
        ),
        _file("docker-stop.sh", "docker", "both", "the tear-down: engine first", f"#!/bin/sh\n{down}"),
    ]


def _docker_run(
    body: LaunchInput,
    name: str,
    image: str,
    program: str,
    arguments: Sequence[str],
    plan: Plan,
    *,
    alone: bool = False,
) -> str:
    server = name == SERVER_NAME
    argv = ["docker", "run", "--detach", "--name", name]
    if body.device == "cuda":
        argv += ["--gpus", "all"]
    if body.images.isolated:
        argv += ["--network", "lmcache-net"]
        argv += ["--ipc", "shareable" if server else "private" if alone else f"container:{SERVER_NAME}"]
        if server:
            argv += ["--shm-size", f"{_shm_gib(body)}g"]
        port = body.server.http_port if server else body.engine.port
        argv += ["--publish", f"127.0.0.1:{port}:{port}"]
    else:
        argv += ["--network", "host", "--ipc", "host"]
    for source, target, option in _mounts(body, plan, server):
        argv += ["--volume", f"{source}:{target}{option}"]
    environment = plan.server_environment if server else plan.engine_environment
    for key, value in environment.items():
        argv += ["--env", f"{key}={value}"]
    if server:
        check = f"python3 -c {shlex.quote(_HEALTH.format(port=body.server.http_port, path='/healthcheck'))}"
        argv += ["--health-cmd", check, "--health-interval", "5s", "--health-start-period", "120s"]
    argv += ["--entrypoint", program, image, *arguments]
    return words.shell_line(argv)


def _shm_gib(body: LaunchInput) -> int:
    """Shared memory of the server's container: L1 lies in it where transfers go through shared memory."""
    return int(l1_gib(body)) + 2


def _mounts(body: LaunchInput, plan: Plan, server: bool) -> list[tuple[str, str, str]]:
    """(source, target, option) of one container."""
    if server:
        return [(plan.root_path, plan.root_path, "")] if plan.root_path is not None else []
    found: list[tuple[str, str, str]] = []
    models = body.images.models_dir
    if models is not None:
        source = words.path("images.models_dir", models)
        found.append((source, source, ":ro"))
    return found


# ---- compose ----


class _Dumper(yaml.SafeDumper):
    """YAML without aliases and with block lists indented, as people write compose files."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _compose(body: LaunchInput, plan: Plan) -> list[FileView]:
    alone = _service(body, plan, server=False, arguments=plan.engine_a)
    server = _service(body, plan, server=True, arguments=plan.server)
    engine = _service(body, plan, server=False, arguments=plan.engine_b)
    engine["depends_on"] = {SERVER_NAME: {"condition": "service_healthy", "restart": True}}
    down = "docker compose -f compose.yaml stop -t 60 vllm\ndocker compose -f compose.yaml down -t 60\n"
    return [
        _file("compose-engine-alone.yaml", "compose", "A", "docker compose up -d", _dump({ENGINE_NAME: alone}, body)),
        _file(
            "compose.yaml",
            "compose",
            "B",
            "docker compose up -d; the engine waits for a healthy server",
            _dump({SERVER_NAME: server, ENGINE_NAME: engine}, body),
        ),
        _file("compose-stop.sh", "compose", "both", "the tear-down: engine first", f"#!/bin/sh\n{down}"),
    ]


def _dump(services: Mapping[str, Any], body: LaunchInput) -> str:
    document: dict[str, Any] = {"services": dict(services)}
    if body.images.isolated:
        document["networks"] = {"default": {"name": "lmcache-net"}}
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=4096, allow_unicode=True)


def _service(body: LaunchInput, plan: Plan, *, server: bool, arguments: Sequence[str]) -> dict[str, Any]:
    images = body.images
    port = body.server.http_port if server else body.engine.port
    probe = _HEALTH.format(port=port, path="/healthcheck" if server else "/health")
    found: dict[str, Any] = {
        "image": images.server if server else images.engine,
        "entrypoint": [words.compose_word(images.server_program if server else images.engine_program)],
        "command": [words.compose_word(word) for word in arguments],
        "environment": {
            name: words.compose_word(value)
            for name, value in (plan.server_environment if server else plan.engine_environment).items()
        },
        "restart": "unless-stopped",
        "stop_grace_period": "60s",
        "healthcheck": {
            "test": ["CMD", "python3", "-c", probe],
            "interval": "5s",
            "timeout": "5s",
            "retries": 12,
            "start_period": "120s" if server else "900s",
        },
    }
    if images.isolated:
        alone = not server and arguments == plan.engine_a
        found["ipc"] = "shareable" if server else "private" if alone else f"service:{SERVER_NAME}"
        found["ports"] = [f"127.0.0.1:{port}:{port}"]
        if server:
            found["shm_size"] = f"{_shm_gib(body)}gb"
    else:
        found["network_mode"], found["ipc"] = "host", "host"
    mounts = [f"{source}:{target}{option}" for source, target, option in _mounts(body, plan, server)]
    if mounts:
        found["volumes"] = mounts
    if body.device == "cuda":
        devices = [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
        found["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    return found


# ---- systemd ----


def _systemd(body: LaunchInput, plan: Plan) -> list[FileView]:
    units = body.units
    owner = words.user("units.user", units.user)
    wait = max(25, int(2.5 * body.engine.heartbeat_seconds))
    url = f"{server_url(body)}/healthcheck"
    gate = f"/usr/bin/curl --fail --silent --output /dev/null --retry 300 --retry-delay 2 --retry-all-errors {url}"
    server_program = words.path("units.server_program", units.server_program)
    engine_program = words.path("units.engine_program", units.engine_program)
    server = _unit(
        "LMCache cache server",
        owner,
        plan.server_environment,
        [server_program, *plan.server],
        before=[f"+/usr/bin/install -d -o {owner} {words.systemd_word(plan.base_path)}"] if plan.base_path else [],
        # a server that is back within two heartbeats is never noticed by a running engine: nothing is cached any more
        restart_seconds=wait,
    )
    engine_a = _unit(
        "vLLM engine without the cache",
        owner,
        plan.engine_environment,
        [engine_program, *plan.engine_a],
        restart_seconds=10,
        conflicts="vllm.service",
    )
    engine_b = _unit(
        "vLLM engine with LMCache",
        owner,
        plan.engine_environment,
        [engine_program, *plan.engine_b],
        before=[gate],
        after="lmcache-server.service",
        restart_seconds=10,
    )
    down = "systemctl stop vllm.service\nsystemctl stop lmcache-server.service\n"
    return [
        _file("vllm-alone.service", "systemd", "A", "systemctl start vllm-alone", engine_a),
        _file("lmcache-server.service", "systemd", "B", "into /etc/systemd/system", server),
        _file("vllm.service", "systemd", "B", "systemctl start vllm: it waits for the server", engine_b),
        _file("systemd-stop.sh", "systemd", "both", "the tear-down: engine first", f"#!/bin/sh\n{down}"),
    ]


def _unit(
    description: str,
    owner: str,
    environment: Mapping[str, str],
    argv: Sequence[str],
    *,
    before: Sequence[str] = (),
    after: str | None = None,
    restart_seconds: int,
    conflicts: str | None = None,
) -> str:
    order = ["network-online.target", *([after] if after else [])]
    lines = ["[Unit]", f"Description={description}", f"After={' '.join(order)}", "Wants=network-online.target"]
    if after:
        lines.append(f"Wants={after}")
    if conflicts:
        lines.append(f"Conflicts={conflicts}")
    lines += ["", "[Service]", f"User={owner}", "LimitMEMLOCK=infinity", "LimitNOFILE=1048576"]
    lines += [words.systemd_variable(name, value) for name, value in environment.items()]
    lines += [f"ExecStartPre={command}" for command in before]
    lines.append("ExecStart=" + _unit_command(argv))
    lines += ["Restart=on-failure", f"RestartSec={restart_seconds}", "TimeoutStartSec=1800", "TimeoutStopSec=90"]
    lines += ["", "[Install]", "WantedBy=multi-user.target", ""]
    return "\n".join(lines)


def _unit_command(argv: Sequence[str]) -> str:
    parts: list[str] = []
    for word in argv:
        separator = " \\\n    " if word.startswith("--") and parts else " " if parts else ""
        parts.append(separator + words.systemd_word(word))
    return "".join(parts)


def _file(name: str, form: str, scenario: str, how: str, text: str) -> FileView:
    return FileView.model_validate({"name": name, "form": form, "scenario": scenario, "how": how, "text": text})
