"""The help of every command, as a narrow terminal shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from app.cli import cli


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below one, with the words that call it."""
    for name, below in getattr(command, "commands", {}).items():
        yield (*path, name), below
        yield from commands(below, (*path, name))


def test_no_option_is_cut_off_at_80_columns() -> None:
    seen = 0
    for path, command in commands(get_command(cli)):
        answer = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80, env={"COLUMNS": "80"})
        assert answer.exit_code == 0, answer.output
        assert max(len(line) for line in answer.output.splitlines()) <= 80, path
        for option in (name for parameter in command.params for name in parameter.opts if name.startswith("--")):
            assert option in answer.output.replace(",", " ").split(), (path, option)
            seen += 1
    assert seen > 60
