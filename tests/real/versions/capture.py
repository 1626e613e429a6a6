"""Keeps what the real servers of published LMCache versions answer, as fixtures for the unit tests.

    python -m tests.real.versions.capture [VERSION ...]

writes `tests/fixtures/lmcache-versions/<version>/` and `outcomes.json` (what started, what did not and why).
Paths of this machine are replaced by /srv/kv; nothing but GET is sent, and nothing that changes state or prints the
environment.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.real.stack import build
from tests.real.stack.control import RealStack
from tests.real.versions import starting

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "lmcache-versions"
#: name of the fixture -> path asked
PATHS = {
    "root": "/",
    "healthcheck": "/healthcheck",
    "api_healthcheck": "/api/healthcheck",
    "status": "/status",
    "api_status": "/api/status",
    "config": "/config",
    "conf": "/conf",
    "config_adapters": "/config/adapters",
    "l2_adapters": "/l2/adapters",
    "version": "/version",
    "lmc_version": "/lmc_version",
    "metrics": "/metrics",
}
#: Until the loops of a fresh server have ticked once, so that their gauges are there.
SETTLE_SECONDS = 2.0


def capture(version: str, environment: build.Environment, ports: tuple[int, int]) -> dict[str, object]:
    """Starts one version, keeps its answers; what came of it."""
    with tempfile.TemporaryDirectory(prefix=f"tierkeeper-{version}-") as scratch:
        began = time.monotonic()
        with starting.running(version, environment, Path(scratch), ports) as server:
            seconds = time.monotonic() - began
            time.sleep(SETTLE_SECONDS)
            answers = {name: _ask(server.url + path) for name, path in PATHS.items()}
    folder = FIXTURES / version
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    index = {}
    for name, answer in answers.items():
        text = _anonymous(answer.text, Path(scratch), ports)
        kind = answer.headers.get("content-type", "")
        file = None
        if answer.status_code != 404:
            file = f"{name}.{'json' if 'json' in kind else 'txt'}"
            (folder / file).write_text(text)
        index[PATHS[name]] = {"status": answer.status_code, "content_type": kind, "file": file}
    (folder / "index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")
    return {"started": True, "seconds": round(seconds, 1)}


def _ask(url: str) -> httpx.Response:
    return httpx.get(url, timeout=20, trust_env=False)


def _anonymous(text: str, scratch: Path, ports: tuple[int, int]) -> str:
    text = text.replace(str(scratch / "l2"), "/srv/kv").replace(str(scratch), "/srv")
    for port, shown in zip(ports, ("5555", "8080"), strict=True):
        text = re.sub(rf"\b{port}\b", shown, text)
    text = re.sub(r'(host_name|hostname|host\.name)(="|"\s*:\s*")[^"]*"', r'\1\2cache-host"', text)
    return re.sub(rf"{re.escape(str(Path.home()))}[^\s\"',]*", "/srv/venv", text)


def main(versions: tuple[str, ...]) -> int:
    """Captures them all; 1 where fewer than three started."""
    outcomes_file = FIXTURES / "outcomes.json"
    outcomes = json.loads(outcomes_file.read_text()) if outcomes_file.is_file() else {}
    with RealStack() as stack:
        for version in versions:
            ports = stack.free_port(), stack.free_port()
            try:
                outcomes[version] = capture(version, stack.environment, ports)
            except starting.WillNotStart as failure:
                home = str(Path.home())
                outcomes[version] = {"started": False, "reason": str(failure).replace(home, "~")}
            print(version, json.dumps(outcomes[version]), flush=True)
            FIXTURES.mkdir(parents=True, exist_ok=True)
            ordered = {v: outcomes[v] for v in starting.VERSIONS if v in outcomes}
            outcomes_file.write_text(json.dumps(ordered, indent=1) + "\n")
    return 0 if sum(bool(item["started"]) for item in outcomes.values()) >= 3 else 1


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or starting.VERSIONS))
