"""Files named on the command line: pipes and the standard input are read, what has no end is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.commands.accept import read_prompts as accept_prompts
from app.commands.bench import read_prompts as bench_prompts
from app.commands.files import MOST_CONFIG, read_named
from app.errors import InvalidInput


class TestReadNamed:
    def test_reads_utf8(self, tmp_path: Path) -> None:
        file = tmp_path / "config.json"
        file.write_text('{"name": "größe"}', "utf-8")
        assert read_named(file, "--config", most=100) == '{"name": "größe"}'

    def test_reads_up_to_the_limit_and_no_more(self, tmp_path: Path) -> None:
        file = tmp_path / "config.json"
        file.write_bytes(b"x" * 100)
        assert len(read_named(file, "--config", most=100)) == 100
        with pytest.raises(InvalidInput, match=r"--config: .* has more than 99 B, the most that is read"):
            read_named(file, "--config", most=99)

    def test_a_device_without_end_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match=r"--config: /dev/zero has more than"):
            read_named("/dev/zero", "--config", most=MOST_CONFIG)

    @pytest.mark.parametrize(("name", "why"), [("none", "No such file"), ("", "Is a directory"), ("a\0b", "null byte")])
    def test_says_why_a_file_cannot_be_read(self, tmp_path: Path, name: str, why: str) -> None:
        with pytest.raises(InvalidInput, match=rf"--config: .* cannot be read \(.*{why}"):
            read_named(f"{tmp_path}/{name}", "--config", most=100)

    def test_other_encodings_are_told_by_option(self, tmp_path: Path) -> None:
        file = tmp_path / "prompts.txt"
        file.write_bytes(b"\xff\xfe")
        with pytest.raises(InvalidInput, match=r"--prompts: .* is no UTF-8 text"):
            accept_prompts(file)
        with pytest.raises(InvalidInput, match=r"--prompts-file: .* is no UTF-8 text"):
            bench_prompts(file, limit=1)
