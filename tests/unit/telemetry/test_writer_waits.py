"""Polls that cannot be written now are written later, with their own times."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy.exc import OperationalError

from app.telemetry import writer as writing
from app.telemetry.writer import Polled, Writer


def polled(number: int) -> Polled:
    return Polled("server", number, "http://a", 1000.0 + number, None, {}, {}, {})


class Locked(Writer):
    """A writer whose database another holds for the first calls."""

    def __init__(self, refusals: int) -> None:
        super().__init__(db=None, interval=10.0)  # type: ignore[arg-type]
        self.refusals = refusals
        self.written: list[list[int]] = []

    def write(self, batch: list[Polled]) -> list[tuple[writing.Kind, int]]:  # type: ignore[override]
        if self.refusals:
            self.refusals -= 1
            raise OperationalError("BEGIN", {}, sqlite3.OperationalError("database is locked"))
        self.written.append([p.target_id for p in batch])
        return []


def test_what_waited_is_written_first_and_once() -> None:
    writer = Locked(refusals=2)
    for number in (1, 2, 3):
        writer.write_or_keep([polled(number)])
    writer.write_or_keep([polled(4)])
    assert writer.written == [[1, 2, 3], [4]]


def test_what_waits_is_bounded_and_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_UNWRITTEN", 2)
    writer = Locked(refusals=3)
    for number in (1, 2, 3):
        writer.write_or_keep([polled(number)])
    writer.write_or_keep([polled(4)])
    assert writer.written == [[2, 3, 4]]


def test_what_is_wrong_in_itself_is_not_kept() -> None:
    class Broken(Locked):
        def write(self, batch: list[Polled]) -> list[tuple[writing.Kind, int]]:  # type: ignore[override]
            if any(p.target_id == 1 for p in batch):
                raise ValueError("of no use")
            return super().write(batch)

    writer = Broken(refusals=0)
    with pytest.raises(ValueError, match="of no use"):
        writer.write_or_keep([polled(1)])
    writer.write_or_keep([polled(2)])
    assert writer.written == [[2]]
