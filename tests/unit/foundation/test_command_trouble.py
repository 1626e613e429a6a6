"""What commands say when their ground is not what they need: one line with the way out, and the right exit status."""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

import pytest

from app.cli import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no settings."""
    for name in [name for name in os.environ if name.startswith("TIERKEEPER_")]:
        monkeypatch.delenv(name)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tierkeeper", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ("backup", "copy.db"),
        ("plan", "--policy", "nightly"),
        ("plan", "--store", "main", "--filter", "class=corrupt"),
        ("clean", "--policy", "nightly"),
        ("accept", "--engine", "engine-a"),
        ("check", "--engine", "engine-a"),
        ("bench", "--engine", "engine-a"),
        ("scan", "main"),
    ],
)
def test_a_data_directory_without_a_panel_is_named_and_none_is_made(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert command(monkeypatch, *arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "TIERKEEPER_DATA_DIR: 'var' holds no database of a panel" in said.err
    assert "tierkeeper migrate" in said.err and "tierkeeper target add --name NAME --server NAME store DIR" in said.err
    assert list(here.iterdir()) == []


def test_a_named_database_that_is_not_there(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIERKEEPER_DATABASE_URL", f"sqlite:///{here}/elsewhere.db")
    assert command(monkeypatch, "backup", "copy.db") == 2
    assert "TIERKEEPER_DATABASE_URL" in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "says"), [("a-file", "is a file"), ("a-file/below", "is a file"), ("/proc/self", "cannot be written")]
)
def test_a_data_directory_that_cannot_be_one(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str, says: str
) -> None:
    (here / "a-file").write_text("")
    monkeypatch.setenv("TIERKEEPER_DATA_DIR", place)
    assert command(monkeypatch, "token", "create", "--name", "ci", "--role", "viewer") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"TIERKEEPER_POLL_SECONDS=3\nwhat is this\n", ".env line 2: 'what is this'"),
        (b"TIERKEEPER_POLL_SECONDS\n", ".env line 1: 'TIERKEEPER_POLL_SECONDS'"),
        (b"A=1\n\nB='open\n", '.env line 3: "B=\'open"'),
        (b"A=\xff\xfe\n", "not UTF-8"),
    ],
)
def test_garbage_in_the_dotenv_file_is_named_by_its_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: bytes, line: str
) -> None:
    (here / ".env").write_bytes(text)
    assert command(monkeypatch, "migrate") == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
    assert not (here / "var").exists()


def test_other_programs_lines_in_the_dotenv_file_are_theirs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / ".env").write_text("# ours\nexport HF_TOKEN=x\nFLAG\nTIERKEEPER_POLL_SECONDS=3\nNOTE='two\nlines'\n")
    assert command(monkeypatch, "migrate") == 0


class TestDamagedDatabase:
    @pytest.fixture
    def database(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        assert command(monkeypatch, "migrate") == 0
        path = here / "var" / "tierkeeper.db"
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return path

    @pytest.mark.parametrize("arguments", [("backup", "copy.db"), ("plan", "--policy", "x"), ("migrate",)])
    def test_a_file_that_is_no_database(
        self,
        database: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        arguments: tuple[str, ...],
    ) -> None:
        database.write_bytes(b"this is not a database" * 500)
        self._refused(monkeypatch, capsys, arguments, "restore a backup")

    @pytest.mark.parametrize(
        "arguments",
        [("backup", "copy.db"), ("plan", "--policy", "x"), ("accept", "--engine", "x"), ("check", "--server", "x")],
    )
    def test_a_file_half_of_which_is_gone(
        self,
        database: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        arguments: tuple[str, ...],
    ) -> None:
        content = database.read_bytes()
        # The first pages (schema and its version) are whole, the tables behind them are not.
        database.write_bytes(content[:8192] + b"\xa5" * (len(content) - 8192))
        self._refused(monkeypatch, capsys, arguments, "")
        assert not (database.parent.parent / "copy.db").exists()

    def _refused(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        arguments: tuple[str, ...],
        way_out: str,
    ) -> None:
        capsys.readouterr()
        assert command(monkeypatch, *arguments) == 3
        said = capsys.readouterr()
        assert said.out == ""
        assert "tierkeeper: the database" in said.err
        assert way_out in said.err
        assert "Traceback" not in said.err
        assert said.err.count("\n") == 1
