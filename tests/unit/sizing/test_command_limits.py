"""`tierkeeper size` with numbers nobody has: one line that names the option, and status 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.foundation.test_commands import run


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--l1-gib", "1e308"),
        ("--l1-gib", "inf"),
        ("--l2-gib", "nan"),
        ("--l0-gib", "-1"),
        ("--bytes-per-token", "9" * 30),
    ],
)
def test_a_number_beyond_all_machines(tmp_path: Path, option: str, value: str) -> None:
    given = {"--bytes-per-token": "512", option: value}
    done = run(tmp_path / "var", "size", *(word for pair in given.items() for word in pair))
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert option.strip("-").replace("-", "_") in done.stderr.replace("-", "_")


@pytest.mark.parametrize(
    ("given", "option", "said"),
    [
        (["--config", "config.json", "--bytes-per-token", "-1"], "--bytes-per-token", "-1 is not used beside --config"),
        (["--server", "a", "--bytes-per-token", "512"], "--bytes-per-token", "512 is not used beside --server"),
        (["--bytes-per-token", "512", "--tokens-per-second", "5"], "--tokens-per-second", "goes with --retention-days"),
        (["--bytes-per-token", "512", "--unordered"], "--unordered", "goes with --contexts"),
        (["--bytes-per-token", "-1"], "bytes_per_token", "must be at least 1 (got -1)"),
    ],
)
def test_what_would_not_be_looked_at_is_refused(tmp_path: Path, given: list[str], option: str, said: str) -> None:
    done = run(tmp_path / "var", "size", *given)
    assert done.returncode == 2, done.stderr
    assert option in done.stderr
    assert said in " ".join(done.stderr.split())
