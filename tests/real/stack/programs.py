"""The programs of a stack: started in groups of their own, watched, logged into one directory, and ended."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.real.stack.clients import PATIENCE
from tests.real.stack.commands import QUIET
from tests.real.stack.processes import Watchdog, end_group

# A test must not depend on what a shell has set for one of these.
STRIPPED = ("LMCACHE", "VLLM", "PYTHON", "PROMETHEUS", "TORCH", "TIERKEEPER")


class StartError(RuntimeError):
    """A program of the stack did not come up; the text ends with its log."""


@dataclass
class Program:
    """A program of the stack: what was started, where it logs, when it became ready."""

    name: str
    argv: list[str]
    env: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes]
    started: float
    ready_seconds: float | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Programs:
    """What is started here logs into `directory`; `keep` says that it is to be left (after a failed start)."""

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self.directory = Path(tempfile.mkdtemp(prefix="tierkeeper-real-"))
        self._watchdog: Watchdog | None = None
        self._ports: set[int] = set()
        self._others: list[Program] = []

    @staticmethod
    def clean_environment() -> dict[str, str]:
        """The caller's environment without what would configure one of the programs."""
        return {name: value for name, value in os.environ.items() if not name.startswith(STRIPPED)}

    def start_program(
        self, name: str, argv: list[str], env: dict[str, str], ready: Callable[[], object], seconds: float = 60
    ) -> Program:
        """Any other program that belongs to the test, such as the panel: watched, logged and ended like the rest."""
        start = 1 + sum(program.name == name for program in self._others)
        program = self._spawn(name, start, argv, env)
        self._others.append(program)
        self._await(program, ready, seconds)
        return program

    def end_program(self, program: Program, *, hard: bool = False) -> None:
        """Ends a program that start_program started."""
        self._end(program, hard)

    @contextlib.contextmanager
    def frozen(self, program: Program) -> Iterator[None]:
        """Holds a program still (SIGSTOP): its port accepts and nobody answers."""
        os.killpg(program.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(program.pid, signal.SIGCONT)

    def _end(self, program: Program, hard: bool) -> None:
        end_group(program.pid, hard=hard)
        program.process.wait(timeout=20 * PATIENCE)
        if self._watchdog is not None:
            self._watchdog.forget(program.pid)

    # --- inside

    def _spawn(self, name: str, start: int, argv: list[str], env: dict[str, str]) -> Program:
        log = self.directory / f"{name}-{start}.log"
        whole = self.clean_environment() | {"TMPDIR": str(self.directory)} | QUIET | env
        with log.open("wb") as out:
            process = subprocess.Popen(
                argv,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=whole,
                cwd=self.directory,
                start_new_session=True,
            )
        assert self._watchdog is not None
        self._watchdog.watch(process.pid)
        return Program(name, argv, env, log, process, time.monotonic())

    def _await(self, program: Program, ready: Callable[[], object], seconds: float) -> None:
        while not ready():
            waited = time.monotonic() - program.started
            if not program.running or waited > PATIENCE * seconds:
                self.keep = True
                why = (
                    f"is not ready after {PATIENCE * seconds:.0f} s"
                    if program.running
                    else f"ended with {program.process.returncode}"
                )
                raise StartError(f"{program.name} {why}; log {program.log}, its end:\n{program.tail()}")
            time.sleep(0.1)
        program.ready_seconds = time.monotonic() - program.started

    def free_port(self) -> int:
        """A free port below the range the kernel gives to outgoing connections, so that none of those takes it
        meanwhile.
        """
        for port in random.SystemRandom().sample(range(20_000, 32_000), 200):
            with contextlib.suppress(OSError), socket.socket() as probe:
                if port not in self._ports:
                    probe.bind(("127.0.0.1", port))
                    self._ports.add(port)
                    return port
        raise StartError("no free port between 20000 and 32000")
