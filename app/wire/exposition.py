"""Prometheus exposition text (classic and OpenMetrics) to samples, in one pass over the lines.

A panel that polls hundreds of targets spends most of its time here, so only what is asked for is taken apart: histogram
buckets and ``_created`` samples are skipped by default, labels stay raw text until a look-up needs them.
Samples are looked up by *sample* name (``…_total``, ``…_count``), never by family: the two formats name families
differently, and vLLM answers either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from app.errors import TargetError
from app.wire.fields import clean_text, plausible, share

MAX_BYTES = 16 * 2**20
MAX_SAMPLES = 250_000
MAX_LINE = 64 * 1024
SKIPPED = ("_bucket", "_created")

Labels = dict[str, str]


class Samples:
    """The samples of one scrape, by sample name. Values are as printed: NaN and infinities are legal there.

    `total`, `maximum`, `ratio` and `total_by` leave out what no counter or gauge can be (not finite, below zero, beyond
    64 bits) and answer None where nothing is left: the panel keeps "unknown" apart from zero.
    """

    __slots__ = ("_series",)

    def __init__(self, series: dict[str, list[tuple[str, float]]]) -> None:
        self._series = series

    def __contains__(self, name: str) -> bool:
        return name in self._series

    def __len__(self) -> int:
        return sum(map(len, self._series.values()))

    def names(self) -> Iterator[str]:
        """All sample names, in the order of the text."""
        return iter(self._series)

    def each(self, name: str) -> Iterator[tuple[Labels, float]]:
        """(labels, value) of every sample of this name. Raises TargetError ``unreadable`` for malformed labels."""
        for raw, value in self._series.get(name, ()):
            yield parse_labels(raw), value

    def raw(self, name: str) -> list[tuple[str, float]]:
        """(label text, value) of every sample of this name; series with equal labels print equal texts."""
        return self._series.get(name, [])

    def total(self, name: str) -> float | None:
        """The sum over all label sets, or None."""
        series = self._series.get(name)
        if not series:
            return None
        value = series[0][1] if len(series) == 1 else math.fsum(_plausible_or_nan(value) for _, value in series)
        return value if plausible(value) else None

    def maximum(self, name: str) -> float | None:
        """The largest value over all label sets, or None (ratios must not be added up)."""
        values = [value for _, value in self._series.get(name, ()) if plausible(value)]
        return max(values, default=None)

    def ratio(self, name: str) -> float | None:
        """The largest ratio over all label sets, or None where there is none or one of them is none."""
        values = [share(value) for _, value in self._series.get(name, ())]
        known = [value for value in values if value is not None]
        return max(known) if known and len(known) == len(values) else None

    def start_time(self) -> float | None:
        """When the process started, epoch seconds; a time outside 2001 to 2100 is nonsense and counts as unknown."""
        value = self.maximum("process_start_time_seconds")
        return value if value is not None and 1e9 <= value <= 4.1e9 else None

    def total_by(self, name: str, label: str) -> dict[str, float]:
        """Finite values summed per value of one label; samples without the label count under ``""``."""
        sums: dict[str, float] = {}
        for labels, value in self.each(name):
            if plausible(value):
                key = labels.get(label, "")
                sums[key] = sums.get(key, 0.0) + value
        return sums

    def labels_of(self, name: str) -> tuple[Mapping[str, str], ...]:
        """The label sets of an ``_info`` metric."""
        return tuple(labels for labels, _ in self.each(name))


def parse_metrics(
    body: bytes | str,
    content_type: str | None = None,
    *,
    buckets: bool = False,
    max_bytes: int = MAX_BYTES,
    max_samples: int = MAX_SAMPLES,
) -> Samples:
    """Parse one scrape. `content_type` chooses the rules; without one the text is read as classic exposition text.

    Raises TargetError: ``unreadable`` (not metrics, a malformed line), ``too_large`` (beyond the limits).
    """
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind not in ("", "text/plain", "application/openmetrics-text", "application/octet-stream"):
        raise TargetError("unreadable", f"/metrics answered with {kind[:80]!r}, not with metrics text")
    if len(body) > max_bytes:
        raise TargetError("too_large", f"/metrics is larger than {max_bytes} bytes")
    try:
        content = body.decode("utf-8") if isinstance(body, bytes) else body
    except UnicodeDecodeError as error:
        raise TargetError("unreadable", "/metrics is not UTF-8 text") from error
    return Samples(
        _parse(content, openmetrics=kind == "application/openmetrics-text", buckets=buckets, limit=max_samples)
    )


def _parse(content: str, *, openmetrics: bool, buckets: bool, limit: int) -> dict[str, list[tuple[str, float]]]:
    series: dict[str, list[tuple[str, float]]] = {}
    room = limit
    for position, line in enumerate(content.split("\n"), 1):
        if not line or line[0] == "#":
            if openmetrics and line.startswith("# EOF"):
                break
            continue
        brace = line.find("{")
        if brace > 0 and " " not in (name := line[:brace]):
            if not buckets and name.endswith(SKIPPED):
                continue
            end = line.rfind("}")
            if line.count("}") != 1 or len(line) > MAX_LINE:
                end = _end_of_labels(line, brace, position)
            raw, rest = line[brace + 1 : end], line[end + 1 :]
        elif brace < 0 and (gap := line.find(" ")) > 0:
            name, raw, rest = line[:gap], "", line[gap:]
        else:
            name, raw, rest = _unusual(line, position)
        if not name or (not buckets and name.endswith(SKIPPED)):
            continue
        try:
            value = float(rest)
        except ValueError:
            value = _value(rest, position, line)
        room -= 1
        if room < 0:
            raise TargetError("too_large", f"/metrics has more than {limit} samples")
        found = series.get(name)
        if found is None:
            if not _is_name(name):
                raise _malformed(position, line)
            series[name] = [(raw, value)]
        else:
            found.append((raw, value))
    return series


def _unusual(line: str, position: int) -> tuple[str, str, str]:
    """(name, labels, rest) of lines off the straight path; an empty name means there is nothing on the line.

    Blank lines, indented comments, blanks or tabs between the parts, an exemplar on a sample without labels, and the
    quoted names of Prometheus 3 (``{"name",label="x"} 1``).
    """
    line = line.strip()
    if not line or line[0] == "#":
        return "", "", ""
    brace = line.find("{")
    if brace == 0:
        end = _end_of_labels(line, brace, position)
        inner = line[1:end].lstrip()
        if not inner.startswith('"'):
            raise _malformed(position, line)
        name, used = _quoted(inner, 0, position)
        return name or "?", inner[used:].lstrip().removeprefix(","), line[end + 1 :]
    head = line[:brace].rstrip() if brace > 0 else line
    parts = head.split(None, 1)
    if len(parts) == 2:  # any brace comes after the value: an exemplar's
        return parts[0], "", line[len(parts[0]) :]
    if brace < 0:
        raise _malformed(position, line)
    end = _end_of_labels(line, brace, position)
    return head, line[brace + 1 : end], line[end + 1 :]


def _value(rest: str, position: int, line: str) -> float:
    """The value before a timestamp or an exemplar (``12.5 1754997400``, ``1 # {trace_id="x"} 1``)."""
    fields = rest.split(None, 1)
    if fields:
        try:
            return float(fields[0])
        except ValueError:
            pass
    raise _malformed(position, line)


def _end_of_labels(line: str, brace: int, position: int) -> int:
    """Index of the ``}`` that closes the label block; braces inside quoted values do not count."""
    if len(line) > MAX_LINE:
        raise TargetError("too_large", f"line {position} of /metrics is longer than {MAX_LINE} characters")
    quoted = False
    index = brace + 1
    while index < len(line):
        char = line[index]
        if quoted and char == "\\":
            index += 1
        elif char == '"':
            quoted = not quoted
        elif char == "}" and not quoted:
            return index
        index += 1
    raise _malformed(position, line)


def _quoted(raw: str, start: int, position: int = 0) -> tuple[str, int]:
    """The value of the quoted text that begins at `start`, and the index behind its closing quote."""
    end = raw.find('"', start + 1)
    if end < 0:
        raise _malformed(position, raw)
    if "\\" not in raw[start:end]:
        return raw[start + 1 : end], end + 1
    out: list[str] = []
    index = start + 1
    while index < len(raw):
        char = raw[index]
        if char == '"':
            return "".join(out), index + 1
        if char == "\\":
            index += 1
            following = raw[index : index + 1]
            char = "\n" if following == "n" else following if following in ('"', "\\") else "\\" + following
        out.append(char)
        index += 1
    raise _malformed(position, raw)


def parse_labels(raw: str) -> Labels:
    """The inside of ``{…}`` to a dict. Raises TargetError ``unreadable``."""
    labels: Labels = {}
    index = 0
    while index < len(raw):
        if raw[index] in ", \t":
            index += 1
            continue
        equals = raw.find("=", index)
        if equals < 0:
            raise _malformed(0, raw)
        name = raw[index:equals].strip().strip('"')
        start = equals + 1
        while start < len(raw) and raw[start] in " \t":
            start += 1
        if not name or raw[start : start + 1] != '"':
            raise _malformed(0, raw)
        value, index = _quoted(raw, start)
        labels[name] = clean_text(value)
    return labels


def _is_name(name: str) -> bool:
    """Metric names hold letters, digits, ``_`` and ``:``; the quoted UTF-8 names of Prometheus 3 anything printable."""
    plain = name.replace(":", "_")
    if plain.isascii() and plain.isidentifier():
        return True
    return len(name) <= 512 and name.isprintable() and not any(char in name for char in " <>{}\"'")


def _plausible_or_nan(value: float) -> float:
    # fsum refuses inf + -inf; one unusable part makes the sum unknown anyway
    return value if plausible(value) else math.nan


def _malformed(position: int, line: str) -> TargetError:
    where = f"line {position} of /metrics" if position else "a label set in /metrics"
    return TargetError("unreadable", f"{where} is not a metric sample: {clean_text(line[:80])!r}")
