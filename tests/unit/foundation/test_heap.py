"""Freed memory goes back to the system. In a process of its own: what malloc is told holds for all of it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

import pytest

from app.commands import heap

GLIBC = hasattr(ctypes.CDLL(None), "malloc_trim") and sys.platform == "linux"
#: Takes 80 MB of C memory in small pieces, frees all but every thousandth, and tells resident MB before and after.
HOLES = """
import ctypes, sys
from app.commands import heap
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
assert heap.settle()
before = resident()
taken = [libc.malloc(2000) for _ in range(40_000)]
for piece in taken:
    ctypes.memset(piece, 1, 2000)
for number, piece in enumerate(taken):
    if number % 1000:
        libc.free(piece)
full = resident()
returned = heap.give_back()
print(before, full, resident(), returned)
"""


@pytest.mark.skipif(not GLIBC, reason="malloc_trim is glibc's")
def test_holes_in_the_heap_go_back_to_the_system() -> None:
    ran = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, timeout=60, env=os.environ)
    assert ran.returncode == 0, ran.stderr
    before, full, after = map(float, ran.stdout.split()[:3])
    assert full - before > 60
    assert after - before < 20


def test_where_there_is_no_such_malloc_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        """The C library of another system."""

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Other())
    assert heap.settle() is False
    assert heap.give_back() is False


def test_it_is_done_again_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, times = threading.Event(), []

    def give_back() -> bool:
        times.append(1)
        if len(times) == 3:
            stop.set()
        return True

    monkeypatch.setattr(heap, "give_back", give_back)
    heap.keep_small(stop, every=0.001)
    assert len(times) == 3
