"""A plan's records, two thousand at a time: packing, unpacking, and what became of them.

`ChunkWriter` packs groups of the planner into rows of `plan_chunk`; `Chunk` is one unpacked with its states, which a
run changes and saves. Numbers are little-endian 64 bit on every machine. States are bytes; their order is part of what
is stored: new ones go to the end.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, cast

from sqlalchemy import Table, select
from sqlalchemy.orm import Session

from app.cleanup.items import ItemRow
from app.cleanup.plan import Group, counted_under
from app.cleanup.ports import Gone
from app.cleanup.tables import PlanChunk, PlanChunkState
from app.database import Database, upsert

CHUNK = 2000
STATES = (
    "planned",
    "quarantined",
    "deleted",
    "restored",
    "purged",
    "vanished",
    "changed",
    "used",
    "reclassified",
    "held",
    "linked",
    "not_regular",
    "other_device",
    "open",
    "failed",
    "in_place",
    "left_behind",
)
_CODE = {state: code for code, state in enumerate(STATES)}
#: size, mtime, ctime, atime, inode, record id (-1: none)
_COLUMNS = 6
_CHUNK = cast(Table, PlanChunk.__table__)
_STATE = cast(Table, PlanChunkState.__table__)
_SAME = (_STATE.c.plan_id == _CHUNK.c.plan_id) & (_STATE.c.first_seq == _CHUNK.c.first_seq)

Kind = tuple[str, str | None, str, str]
_item_row = cast("Callable[[tuple[Any, ...]], ItemRow]", partial(tuple.__new__, ItemRow))


class Note(NamedTuple):
    """What there is to say of one record beside its state."""

    errno: int | None
    detail: str | None


@dataclass
class Chunk:
    """One chunk with its states. `rows` are in the order of `first_seq`."""

    plan_id: int
    first_seq: int
    round: int
    rows: list[ItemRow]
    states: bytearray
    kind_of: bytes
    notes: dict[int, Note] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    changed: bool = False

    def in_state(self, *states: str) -> list[ItemRow]:
        """The records in one of these states."""
        codes = frozenset(_CODE[state] for state in states)
        if len(codes) == 1 and len(set(self.states)) == 1:
            return self.rows if self.states[0] in codes else []
        return [row for row, code in zip(self.rows, self.states, strict=True) if code in codes]

    def state_of(self, index: int) -> str:
        return STATES[self.states[index]]

    def errno_of(self, seq: int) -> int | None:
        """The error number beside what became of a record; None where there is none."""
        note = self.notes.get(seq - self.first_seq)
        return None if note is None else note.errno

    def set(self, outcomes: Sequence[Any], now: float) -> None:
        """Takes outcomes (seq, state, errno, detail) in."""
        states, first = self.states, self.first_seq
        for seq, state, number, detail in outcomes:
            index = seq - first
            states[index] = _CODE[state]
            if number is not None or detail is not None:
                self.notes[index] = Note(number, detail)
            elif self.notes:
                self.notes.pop(index, None)
        for state in {outcome[1] for outcome in outcomes}:
            self.times[state] = now
        self.changed = self.changed or bool(outcomes)

    def tally(self) -> list[list[int]]:
        """[[kind, state, records, bytes]]."""
        counted: dict[tuple[int, int], list[int]] = {}
        for row, kind, code in zip(self.rows, self.kind_of, self.states, strict=True):
            pair = counted.get((kind, code))
            if pair is None:
                pair = counted[kind, code] = [0, 0]
            pair[0] += 1
            pair[1] += row.size
        return [[*key, *pair] for key, pair in sorted(counted.items())]

    def save(self, session: Session) -> None:
        """Writes the states, if they changed."""
        if not self.changed:
            return
        row = {
            "plan_id": self.plan_id,
            "first_seq": self.first_seq,
            "states": bytes(self.states),
            "notes": {str(index): list(note) for index, note in self.notes.items()},
            "times": self.times,
            "tally": self.tally(),
        }
        upsert(session, _STATE, [row], key=["plan_id", "first_seq"], update=["states", "notes", "times", "tally"])
        self.changed = False


class ChunkWriter:
    """Collects planned records and gives packed rows of `plan_chunk`, full ones first."""

    def __init__(self, plan_id: int, *, first_seq: int = 1, round_no: int = 1, size: int = CHUNK) -> None:
        self._size = size
        self._plan_id = plan_id
        self._next = first_seq
        self._round = round_no
        self._device = 0
        self._clear()

    def _clear(self) -> None:
        self._names: list[bytes] = []
        self._facts: list[array[int]] = [array("q") for _ in range(_COLUMNS)]
        self._kinds: dict[Kind, int] = {}
        self._kind_of = bytearray()

    def add(self, group: Group) -> Iterator[dict[str, Any]]:
        """Takes a group in; gives the rows that are full now."""
        rows = group.rows
        at = 0
        while at < len(rows):
            kind: Kind = (group.cls, group.reason, group.why, group.action)
            full = self._names and (
                group.device != self._device or (kind not in self._kinds and len(self._kinds) > 250)
            )
            if full:
                yield self._pack()
            self._device = group.device
            part = rows[at : at + self._size - len(self._names)]
            names, *columns, records = zip(*part, strict=True)
            self._names.extend(names)
            for column, values in zip(self._facts, columns, strict=False):
                column.extend(array("q", values))  # at once: thrice as quick as one by one
            if None in records:
                records = tuple(-1 if ident is None else ident for ident in records)
            self._facts[-1].extend(array("q", records))
            self._kind_of.extend(repeat(self._kinds.setdefault(kind, len(self._kinds)), len(part)))
            at += len(part)
            if len(self._names) >= self._size:
                yield self._pack()

    def rest(self) -> Iterator[dict[str, Any]]:
        """The row that is not full, if there is one."""
        if self._names:
            yield self._pack()

    def _pack(self) -> dict[str, Any]:
        row = {
            "plan_id": self._plan_id,
            "first_seq": self._next,
            "records": len(self._names),
            "round": self._round,
            "device": self._device,
            "names": b"\0".join(self._names),
            "facts": b"".join(little_endian(column).tobytes() for column in self._facts),
            "kinds": [list(kind) for kind in self._kinds],
            "kind_of": bytes(self._kind_of),
        }
        self._next += len(self._names)
        self._clear()
        return row


def little_endian(column: array[int]) -> array[int]:
    """The numbers as they are stored, or read from there."""
    if sys.byteorder == "big":
        column = array("q", column)
        column.byteswap()
    return column


def unpack(row: Any, state: Any | None) -> Chunk:
    """A chunk from its rows (attributes as in the tables)."""
    count = row.records
    values = array("q")
    values.frombytes(row.facts)
    values = little_endian(values)
    size, mtime, ctime, atime, inode, record = (values[n * count : (n + 1) * count] for n in range(_COLUMNS))
    idents = [None if ident < 0 else ident for ident in record]
    if len(row.kinds) == 1:  # the usual case
        kinds: Iterable[Iterable[Any]] = [repeat(part, count) for part in row.kinds[0]]
    else:
        kinds = zip(*(row.kinds[kind] for kind in row.kind_of), strict=True)
    every = zip(
        range(row.first_seq, row.first_seq + count),
        row.names.split(b"\0"),
        *(size, mtime, ctime, atime, inode),
        repeat(row.device, count),
        *kinds,
        idents,
        repeat(row.round, count),
        strict=True,
    )
    # As `ItemRow._make`, without a call of Python's own a record.
    rows = list(map(_item_row, every))
    if state is None:
        return Chunk(row.plan_id, row.first_seq, row.round, rows, bytearray(count), row.kind_of)
    return Chunk(
        row.plan_id,
        row.first_seq,
        row.round,
        rows,
        bytearray(state.states),
        row.kind_of,
        {int(index): Note(*note) for index, note in state.notes.items()},
        dict(state.times),
    )


def read_chunks(
    db: Database, plan_id: int, *, from_seq: int = 1, round_no: int | None = None, above_first_round: bool = False
) -> Iterator[Chunk]:
    """Chunks of a plan from the one that holds `from_seq` on, each read when it is asked for."""
    last = -1
    while True:
        query = select(_CHUNK).where(_CHUNK.c.plan_id == plan_id, _CHUNK.c.first_seq > last)
        if last < 0:
            query = query.where(_CHUNK.c.first_seq + _CHUNK.c.records > from_seq)
        if round_no is not None:
            query = query.where(_CHUNK.c.round == round_no)
        if above_first_round:
            query = query.where(_CHUNK.c.round > 1)
        with db.read() as session:
            row = session.execute(query.order_by(_CHUNK.c.first_seq).limit(1)).first()
            if row is None:
                return
            state = _state(session, plan_id, row.first_seq)
        last = row.first_seq
        yield unpack(row, state)


def chunks_holding(db: Database, plan_id: int, *, state: str | None = None, reason: str | None = None) -> list[int]:
    """First numbers of the chunks that hold a record in a state, or one that a key of `by_reason` stands for.

    Reads no record.
    """
    code = None if state is None else _CODE.get(state, -1)
    found = []
    for first_seq, kinds, tally in _outline(db, plan_id):
        states = {entry[1] for entry in tally} or {_CODE["planned"]}
        kept = reason is None or any(counted_under(reason, str(k[2]), str(k[0]), k[1]) for k in kinds)
        if (code is None or code in states) and kept:
            found.append(first_seq)
    return found


def chunks_of_reasons(db: Database, plan_id: int, reasons: Collection[str]) -> list[int]:
    """First numbers of the chunks that hold one of these reasons, or that a run added itself."""
    with db.read() as session:
        added = set(session.scalars(select(_CHUNK.c.first_seq).where(_CHUNK.c.plan_id == plan_id, _CHUNK.c.round > 1)))
    return [
        first
        for first, kinds, _ in _outline(db, plan_id)
        if first in added or any(kind[1] in reasons for kind in kinds)
    ]


def read_chunk(db: Database, plan_id: int, first_seq: int) -> Chunk | None:
    """One chunk."""
    query = select(_CHUNK).where(_CHUNK.c.plan_id == plan_id, _CHUNK.c.first_seq == first_seq)
    with db.read() as session:
        row = session.execute(query).first()
        return None if row is None else unpack(row, _state(session, plan_id, first_seq))


def read_chunk_of(db: Database, plan_id: int, seq: int) -> Chunk | None:
    """The chunk that holds a record."""
    query = select(_CHUNK.c.first_seq).where(_CHUNK.c.plan_id == plan_id, _CHUNK.c.first_seq <= seq)
    with db.read() as session:
        first = session.scalar(query.order_by(_CHUNK.c.first_seq.desc()).limit(1))
    chunk = None if first is None else read_chunk(db, plan_id, first)
    return chunk if chunk is not None and seq < chunk.first_seq + len(chunk.rows) else None


def _state(session: Session, plan_id: int, first_seq: int) -> Any | None:
    return session.execute(select(_STATE).where(_STATE.c.plan_id == plan_id, _STATE.c.first_seq == first_seq)).first()


def added_to(db: Database, plan_id: int) -> tuple[int, int]:
    """(records, bytes) that a run added to its plan itself. Reads no chunk of the plan's own."""
    records = size = 0
    for chunk in read_chunks(db, plan_id, above_first_round=True):
        records += len(chunk.rows)
        size += sum(row.size for row in chunk.rows)
    return records, size


def names_in_state(
    db: Database, plan_id: int, states: Collection[str], *, from_seq: int = 1
) -> Iterator[tuple[list[Gone], int]]:
    """The records in some states, chunk by chunk from `from_seq` on, each with the first number after it.

    Takes apart no more of a chunk than that.
    """
    codes = frozenset(_CODE[state] for state in states)
    outline = [(first, tally) for first, _, tally in _outline(db, plan_id) if first >= from_seq]
    for first_seq in [first for first, tally in outline if any(entry[1] in codes for entry in tally)]:
        with db.read() as session:
            row = session.execute(
                select(_CHUNK.c.records, _CHUNK.c.names, _CHUNK.c.facts, _STATE.c.states)
                .join(_STATE, _SAME)
                .where(_CHUNK.c.plan_id == plan_id, _CHUNK.c.first_seq == first_seq)
            ).first()
        if row is None:
            continue
        sizes, idents = array("q"), array("q")
        sizes.frombytes(row.facts[: 8 * row.records])
        idents.frombytes(row.facts[(_COLUMNS - 1) * 8 * row.records :])
        every = zip(row.names.split(b"\0"), little_endian(sizes), little_endian(idents), row.states, strict=True)
        found = [(name, size, None if ident < 0 else ident) for name, size, ident, code in every if code in codes]
        yield found, first_seq + row.records


def _outline(db: Database, plan_id: int) -> list[tuple[int, list[list[str | None]], list[list[int]]]]:
    """(first_seq, kinds, tally) of all chunks; the tally is [] where nothing has happened yet. Reads no record."""
    query = (
        select(_CHUNK.c.first_seq, _CHUNK.c.kinds, _STATE.c.tally)
        .outerjoin(_STATE, _SAME)
        .where(_CHUNK.c.plan_id == plan_id)
        .order_by(_CHUNK.c.first_seq)
    )
    with db.read() as session:
        return [(first, kinds, tally or []) for first, kinds, tally in session.execute(query)]


@dataclass(frozen=True, slots=True)
class Counted:
    """How many records of one kind are in one state."""

    kind: Kind
    state: str
    records: int
    bytes: int
    round: int


def count_chunks(db: Database, plan_id: int) -> Iterator[Counted]:
    """The tallies of all chunks that a run has touched."""
    query = (
        select(_CHUNK.c.kinds, _STATE.c.tally, _CHUNK.c.round).join(_STATE, _SAME).where(_CHUNK.c.plan_id == plan_id)
    )
    with db.read() as session:
        rows = session.execute(query).all()
    for kinds, tally, round_no in rows:
        for kind, state, records, size in tally:
            yield Counted(cast(Kind, tuple(kinds[kind])), STATES[state], records, size, round_no)
