"""Starts the real cache server of a published LMCache version, without a GPU and without an engine.

The version's wheel is unpacked beside the real stack's environment (`build`), which brings torch and everything else:
`<cache>/../versions/<version>`. Its own directory comes first on the path. What a version needs beyond that, or why it
does not start, is measured by `capture`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.real.stack import build
from tests.real.stack.commands import QUIET
from tests.real.stack.control import RealStack
from tests.real.stack.processes import end_group

#: Oldest first. The last one is the version of the real stack itself.
VERSIONS = (
    *("0.4.1", "0.4.2", "0.4.3", "0.4.4", "0.4.5", "0.4.6", "0.4.7"),
    *("0.5.0", "0.5.1", "0.5.2", "0.5.3", "0.5.4", "0.5.5", "0.5.6"),
)
#: Any name of it is a class, whose attributes are the class again: enough for annotations.
_STAND_IN = """
class Kind(type):
    def __getattr__(cls, name):
        return cls
class Nothing(metaclass=Kind):
    pass
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Nothing
"""
#: Imported by servers up to 0.5.0 whether there is a GPU or not.
GPU_MODULES = ("cupy",)
START_SECONDS = 180.0
#: Before this version there was no `lmcache server` command.
_FIRST_WITH_COMMAND = (0, 4, 3)
#: Before this version no adapter writes plain files.
_FIRST_WITH_FS = (0, 4, 2)


class WillNotStart(RuntimeError):
    """The server did not come up; the text is the end of what it said."""


@dataclass(frozen=True)
class Started:
    """A running server. HTTP goes to `url` only: one HTTP request to the ZeroMQ port ends its message thread."""

    version: str
    url: str
    pid: int
    log: Path


def package_folder(version: str, environment: build.Environment) -> Path | None:
    """Where this version's `lmcache` is, fetched first if need be; None for the environment's own version.

    Raises WillNotStart where the package index has no wheel of it for this interpreter.
    """
    if version == VERSIONS[-1]:
        return None
    folder = environment.cache.parent / "versions" / version
    if (folder / "lmcache").is_dir():
        return folder
    making = folder.with_name(f"{version}.part")
    shutil.rmtree(making, ignore_errors=True)
    pip = [environment.program("python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-compile", "--only-binary", ":all:", "--target", str(making)]
    done = subprocess.run(
        [*pip, *options, f"lmcache=={version}"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise WillNotStart(f"pip: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}")
    making.rename(folder)
    return folder


def command(version: str, environment: build.Environment, store: Path, zmq_port: int, http_port: int) -> list[str]:
    """The command line of this version's server with an `fs` adapter over `store`."""
    python = environment.program("python")
    number = tuple(int(part) for part in version.split("."))
    start = (
        ["-c", "from lmcache.cli.main import main; main()", "server"]
        if number >= _FIRST_WITH_COMMAND
        else ["-m", "lmcache.v1.multiprocess.http_server"]
    )
    adapter = ["--l2-adapter", f'{{"type":"fs","base_path":"{store}"}}'] if number >= _FIRST_WITH_FS else []
    return [
        python,
        *start,
        *("--host", "127.0.0.1", "--port", str(zmq_port)),
        *("--http-host", "127.0.0.1", "--http-port", str(http_port)),
        *("--chunk-size", "64", "--l1-size-gb", "0.125", "--l1-init-size-gb", "1", "--eviction-policy", "LRU"),
        *adapter,
    ]


@contextmanager
def running(version: str, environment: build.Environment, folder: Path, ports: tuple[int, int]) -> Iterator[Started]:
    """The server of this version, ended on the way out. `folder` takes its store and log, `ports` are (ZeroMQ, HTTP).

    Raises WillNotStart with the end of its log.
    """
    import httpx

    packages = package_folder(version, environment)
    store = folder / "l2"
    store.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    env = {**RealStack.clean_environment(), **QUIET}
    if packages is not None:
        env["PYTHONPATH"] = os.pathsep.join((str(packages), str(_stand_ins(folder))))
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(version, environment, store, *ports),
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{ports[1]}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            if process.poll() is not None:
                raise WillNotStart(_end_of(log))
            try:
                if httpx.get(url + "/", timeout=2, trust_env=False).status_code < 500:
                    break
            except httpx.HTTPError:
                pass
            if time.monotonic() > deadline:
                raise WillNotStart(f"no answer within {START_SECONDS:.0f} s; {_end_of(log)}")
            time.sleep(0.25)
        yield Started(version, url, process.pid, log)
    finally:
        end_group(process.pid)
        process.wait(timeout=20)


def _stand_ins(folder: Path) -> Path:
    """Modules for what is imported at the top and used only once an engine with a GPU registers."""
    packages = folder / "stand-ins"
    packages.mkdir(exist_ok=True)
    for name in GPU_MODULES:
        (packages / f"{name}.py").write_text(_STAND_IN)
    return packages


def _end_of(log: Path) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "error:" in line]
    return (telling or lines or ["it said nothing"])[-1][:300]


def interpreter() -> str:
    return f"Python {sys.version_info.major}.{sys.version_info.minor} on {os.uname().machine}"
