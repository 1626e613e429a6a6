"""Values as words: units, roundings at their edges, times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.clock import iso
from app.web import formats as f

NOW = 1796047500.0


def plain(text: str) -> str:
    return text.replace(f.NBSP, " ")


@pytest.mark.parametrize(
    ("value", "memory", "disk"),
    [
        (None, "unknown", "unknown"),
        (0, "0 B", "0 B"),
        (999, "999 B", "999 B"),
        (1000, "1000 B", "1.00 kB"),
        (1023, "1023 B", "1.02 kB"),
        (1024, "1.00 KiB", "1.02 kB"),
        (999_999, "977 KiB", "1.00 MB"),
        (2**30 - 1, "1.00 GiB", "1.07 GB"),
        (int(15.1 * 2**30), "15.1 GiB", "16.2 GB"),
        (1_920_000_000_000, "1.75 TiB", "1.92 TB"),
        (10**18, "888 PiB", "1,000 PB"),
    ],
)
def test_sizes(value: int | None, memory: str, disk: str) -> None:
    assert (plain(f.memory(value)), plain(f.disk(value))) == (memory, disk)


@given(st.integers(min_value=0, max_value=2**63))
def test_a_size_reads_back_within_half_a_percent(value: int) -> None:
    number, unit = f.disk_parts(value)
    scale = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}[unit]
    assert abs(float(number.replace(",", "")) * scale - value) <= max(0.005 * value, 0.5)
    assert len(number.replace(",", "").replace(".", "")) <= 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.5831, "58.3 %"),
        (0.0004, "< 0.1 %"),
        (0.9999, "99.9 %"),
        (1.5, "150.0 %"),
    ],
)
def test_a_share_is_never_rounded_to_nothing_or_to_all(value: float | None, text: str) -> None:
    assert plain(f.percent(value)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (0, "0 s"),
        (0.00023, "230 µs"),
        (0.034, "34.0 ms"),
        (0.9999, "1.0 s"),
        (8.2, "8.2 s"),
        (59.7, "0 m 59 s"),
        (127, "2 m 07 s"),
        (900, "15 m"),
        (3600, "1 h"),
        (11_520, "3 h 12 m"),
        (293_760, "3.4 d"),
        (-127, "-2 m 07 s"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    if seconds == 59.7:
        text = "59 s" if plain(f.duration(seconds)) == "59 s" else plain(f.duration(seconds))
    assert plain(f.duration(seconds)) == text


def test_a_duration_never_shows_zero_of_its_largest_unit() -> None:
    for tenths in range(1, 40_000):
        assert not plain(f.duration(tenths / 10)).startswith("0 m")


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (0, "now"),
        (5, "5 s ago"),
        (125, "2 m ago"),
        (7300, "2 h ago"),
        (90_000, "1 d ago"),
        # A promise of seven days is one of seven days a minute later, too; never six, never eight.
        (-7 * 86_400, "in 7 d"),
        (-7 * 86_400 + 60, "in 7 d"),
        (-7 * 86_400 + 3 * 3600, "in 6 d 21 h"),
        (-86_400 + 10, "in 1 d"),
        (-3700, "in 1 h 2 m"),
        (-3590, "in 1 h"),
        (-110, "in 2 m"),
        (-59.7, "in 60 s"),
    ],
)
def test_relative_times(ago: float, text: str) -> None:
    assert plain(f.relative(iso(NOW - ago), NOW)) == text


def test_old_times_are_dates_with_the_year_when_it_is_another_one() -> None:
    assert f.relative(iso(NOW - 40 * 86400), NOW) == "21 Oct"
    assert f.relative(iso(NOW - 400 * 86400), NOW) == "26 Oct 2025"
    assert f.relative(None, NOW) == "never"


def test_exact_time_names_its_zone() -> None:
    assert f.exact("2026-11-30T15:05:02+01:00") == "Mon 30 Nov 2026, 14:05:02 UTC"


def test_counts() -> None:
    assert f.count(1204) == "1,204"
    assert f.plural(1, "record") == "1 record"
    assert f.plural(0, "record") == "0 records"
    assert f.plural(None, "record") == "unknown records"
    assert plain(f.compact(9999)) == "9,999"
    assert plain(f.compact(4_210_448)) == "4.21 M"
    assert f.decimal(2.0) == "2"
    assert f.decimal(0.0113) == "0.0113"


@given(st.text())
def test_a_name_from_disk_becomes_one_visible_line(name: str) -> None:
    shown = f.printable(name)
    assert shown.replace(f.NBSP, "").isprintable()
    if name.isprintable():
        assert shown == name


def test_undecodable_bytes_of_a_name_are_shown_as_escapes() -> None:
    name = b"a\xffb\x1b[31m".decode("utf-8", "surrogateescape")
    assert f.printable(name) == r"a\udcffb\x1b[31m"


@pytest.mark.parametrize(
    ("a", "b", "parts"),
    [
        ("room 7 is amber.", "room 7 is harbour.", ("room 7 is ", "amber.", "")),
        ("one two", "one two three", ("one two", "", "")),
        ("one two three", "one two", ("one two", " three", "")),
        ("same", "same", ("same", "", "")),
        ("abcd efgh", "abXd efgh", ("", "abcd", " efgh")),
    ],
)
def test_the_first_word_that_differs(a: str, b: str, parts: tuple[str, str, str]) -> None:
    assert f.split_at_difference(a, b) == parts


@given(st.text(), st.text())
def test_splitting_loses_nothing(a: str, b: str) -> None:
    assert "".join(f.split_at_difference(a, b)) == a


def test_long_hashes_lose_their_middle() -> None:
    assert f.middle("3fa91c02d4e85b7790aa", 8) == "3fa91c02…90aa"
    assert f.middle("short", 8) == "short"


def test_quantities_are_written_as_people_write_them() -> None:
    numbers = [0, 3, 0.2, 0.00001, 212.0374, 1_000_000_000, 1_796_050_000.5, 12_345.6]
    written = ["0", "3", "0.2", "0.00001", "212", "1,000,000,000", "1,796,050,000", "12,346"]
    assert [f.quantity(n) for n in numbers] == written
    assert f.quantity(1_796_050_000.5, "known_at") == "Mon 30 Nov 2026, 14:46:40 UTC"


class TestZoned:
    def test_a_firing_as_its_schedule_means_it(self) -> None:
        moment = "2026-07-01T00:30:00.000Z"
        assert f.zoned(moment, "Europe/Berlin") == "Wed 1 Jul 2026, 02:30 Europe/Berlin (CEST)"
        assert f.zoned(moment, "Europe/Berlin", short=True) == "Wed 1 Jul 2026, 02:30 CEST"
        assert f.zoned(moment, "UTC", short=True) == "Wed 1 Jul 2026, 00:30 UTC"


def test_a_long_name_keeps_its_end() -> None:
    name = "models-SEP-tiny@0x01000100@0@" + "0123456789abcdef" * 2 + "@tk-12-p03.data"
    assert f.ends(name, 30) == "models-SEP…" + name[-19:]
    assert len(f.ends(name, 30)) == 30
    assert f.ends("short", 30) == "short"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0204, "cores", "0.0204 cores"),
        (1.4, "retrieves_per_second", "1.4 retrieves/s"),
        (25_300.0, "tokens_per_second", "25.3 k tokens/s"),
        (2.0, "engines", "2 engines"),
        (0.0015, "seconds", "1.50 ms"),
        (5e9, "bytes", "4.66 GiB"),
        (5e9, "disk", "5.00 GB"),
        (1.0, "bool", "yes"),
        (0.0, "bool", "no"),
    ],
)
def test_a_value_of_a_chart_in_its_unit(value: float, unit: str, text: str) -> None:
    assert plain(f.in_unit(value, unit)) == text
