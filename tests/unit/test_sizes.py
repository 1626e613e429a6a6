"""Memory in powers of two, disks in powers of ten: everywhere a sentence names bytes."""

from __future__ import annotations

import pytest

from app.sizes import disk_size, memory_size


@pytest.mark.parametrize(
    ("count", "memory", "disk"),
    [
        (0, "0 B", "0 B"),
        (12, "12 B", "12 B"),
        (1000, "1000 B", "1.0 kB"),
        (1500, "1.5 KiB", "1.5 kB"),
        (999_999, "976.6 KiB", "1.0 MB"),  # never "1000.0 kB"
        (2.5e9, "2.3 GiB", "2.5 GB"),
        (3e12, "2.7 TiB", "3.0 TB"),
        (-(2**30), "-1.0 GiB", "-1.1 GB"),
        (5e18, "4440.9 PiB", "5000.0 PB"),
    ],
)
def test_bytes_in_sentences(count: float, memory: str, disk: str) -> None:
    assert (memory_size(count), disk_size(count)) == (memory, disk)
