"""Server-sent events from a byte stream, fed in pieces of any size.

Only what a completion stream uses: ``data`` lines. Comments (keep-alives), other fields and unknown lines are skipped;
line ends may be LF, CR LF or CR, and a chunk may end anywhere, inside a UTF-8 character too.
"""

from __future__ import annotations

from app.errors import TargetError

MAX_EVENT = 8 * 2**20


class EventParser:
    """Feed bytes, get the data of each completed event. An event over `max_event` bytes is a TargetError."""

    def __init__(self, *, max_event: int = MAX_EVENT) -> None:
        self._max_event = max_event
        self._rest = bytearray()
        self._scanned = 0
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that this chunk completes, in order."""
        self._rest += chunk
        events: list[bytes] = []
        start = 0
        at = self._scanned
        buffer = self._rest
        while True:
            end = _line_end(buffer, at)
            if end < 0:
                break
            if buffer[end] == 13:  # CR: a following LF belongs to it, and may not have come yet
                if end + 1 == len(buffer):
                    break
                following = end + 2 if buffer[end + 1] == 10 else end + 1
            else:
                following = end + 1
            self._line(bytes(buffer[start:end]), events)
            start = at = following
        del buffer[:start]
        self._scanned = max(0, len(buffer) - 1)
        if len(buffer) + self._size > self._max_event:
            raise TargetError("too_large", f"one event of the stream is larger than {self._max_event} bytes")
        return events

    def finish(self) -> list[bytes]:
        """The event that the end of the stream completes, if any (the closing blank line may be missing)."""
        events: list[bytes] = []
        self._line(bytes(self._rest).rstrip(b"\r"), events)
        self._line(b"", events)
        self._rest.clear()
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data = []
                self._size = 0
        elif line.startswith(b"data:"):
            value = line[6:] if line[5:6] == b" " else line[5:]
            self._data.append(value)
            self._size += len(value)
            if self._size > self._max_event:
                raise TargetError("too_large", f"one event of the stream is larger than {self._max_event} bytes")


def _line_end(buffer: bytearray, start: int) -> int:
    newline = buffer.find(b"\n", start)
    carriage = buffer.find(b"\r", start, newline if newline >= 0 else len(buffer))
    return carriage if carriage >= 0 else newline
