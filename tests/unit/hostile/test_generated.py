"""Generated names, metric pages and JSON answers: nothing crashes, and nothing foreign becomes a record.

The numbers are those the project promises (10,000 names, 5,000 pages and answers); the seed is fixed.
"""

from __future__ import annotations

import json
import random
import stat
import string
from collections import Counter
from pathlib import Path
from typing import Any

from app.errors import TargetError
from app.lmcache.configuration import parse_adapters, parse_config
from app.lmcache.metrics import server_metrics
from app.lmcache.object_keys import ObjectKey, format_name, parse_name
from app.lmcache.status import parse_status
from app.records.classify import classify
from app.records.facts import FileFact
from app.records.timeline import NS
from app.vllm.facts import parse_server_info
from app.vllm.metrics import engine_metrics
from app.wire import fields
from app.wire.exposition import parse_metrics
from tests.unit.records.test_model import NAME, context_of, run
from tests.unit.records.world import World
from tests.unit.wire.raw_http import CAPTURES, capture

NAMES, PAGES, ANSWERS = 10_000, 5_000, 5_000
NASTY = (
    "\x00", "\n", "\r", "\t", "\x1b[31m", "\u202e", "\u200b", "\ud800", "\U0001f4be", "é", "../", "/", "\\", "..", ".",
    "-", "--", "$(id)", "`id`", ";", "|", "%00", "%2e", "<script>", "'", '"', "@", "@@", "#", "~", " ", "*", "?",
)  # fmt: skip
GOOD = (
    format_name(ObjectKey("m/odel", 0x01000100, 0, bytes(range(32)))),
    format_name(ObjectKey("m", 0x02010201, 1, bytes(32), "tenant-a")),
    format_name(ObjectKey("facebook/opt-125m", 0x01000100, None, bytes(range(16)))),
)


def _name(rng: random.Random) -> str:
    """A name near a record's, or nothing like one."""
    if rng.random() < 0.6:
        text = list(rng.choice(GOOD))
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(text) + 1)
            match rng.randrange(4):
                case 0:
                    text[place:place] = rng.choice(NASTY)
                case 1:
                    del text[place : place + rng.randint(1, 6)]
                case 2:
                    text[place:place] = rng.choice("0123456789abcdefABCDEF@.")
                case _:
                    text[place : place + 1] = rng.choice(string.printable)
        return "".join(text)
    return "".join(rng.choice(NASTY + tuple(string.ascii_letters)) for _ in range(rng.randint(0, 60)))


def _mutated(rng: random.Random, raw: bytes) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.randint(1, 12)):
        if not data:
            break
        place = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[place] = rng.randrange(256)
            case 1:
                del data[place : place + rng.randint(1, 400)]
            case 2:
                data[place:place] = rng.choice((b"NaN", b"1e999", b"-Inf", b"{", b'"', b"\n", b"\x00", b"9" * 40, b"}"))
            case 3:
                data[place:place] = data[: rng.randint(0, 300)]
            case _:
                data = data[: max(1, place)]
    return bytes(data)


def test_ten_thousand_names() -> None:
    rng = random.Random(20261130)
    records = 0
    for _ in range(NAMES):
        name = _name(rng)
        found = parse_name(name)
        if found is None:
            continue
        records += 1
        # A record is only what the adapter itself would have written: its name can be made again from its key.
        assert name.rpartition("/")[0] == found.folder
        assert ".." not in found.folder.split("/")
        assert not name.startswith("/")
        assert "\x00" not in name
        if not found.temporary and not found.legacy and not found.folder:
            assert parse_name(format_name(found.key)) == found
    assert NAMES / 50 < records < NAMES / 2


def _texts(folder: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(CAPTURES.glob(folder))]


def test_five_thousand_metric_pages() -> None:
    rng = random.Random(20261130)
    # The beginning of a page holds every kind of line; whole ones would only take longer.
    pages = [text[:6000] for text in _texts("*/*metrics*.txt")]
    read = 0
    for _ in range(PAGES):
        body = _mutated(rng, rng.choice(pages))
        try:
            samples = parse_metrics(body, "text/plain")
            server_metrics(samples)
            engine_metrics(samples)
            read += 1
        except TargetError as error:
            assert error.kind in ("unreadable", "too_large")
    assert read > PAGES / 8


def test_five_thousand_answers() -> None:
    rng = random.Random(20261130)
    readers: list[tuple[list[bytes], Any]] = [
        (_texts("server-*/*status.json"), parse_status),
        (_texts("server-*/*config.json"), parse_config),
        ([capture("server-with-engine/config_adapters.json")], parse_adapters),
        (_texts("engine/*server_info*.json"), parse_server_info),
    ]
    read = 0
    for _ in range(ANSWERS):
        bodies, reader = rng.choice(readers)
        body = _mutated(rng, rng.choice(bodies)) if rng.random() < 0.5 else _retyped(rng, rng.choice(bodies))
        try:
            value = fields.loads(body, "the answer")
            reader(value)
            read += 1
        except TargetError as error:
            assert error.kind == "unreadable"
    assert read > ANSWERS / 4


def _retyped(rng: random.Random, raw: bytes) -> bytes:
    """The same JSON with a few values of another type."""
    odd = (None, True, -1, 2**80, 1.5e300, "", "x" * 5000, [], {}, [[]], {"a": {}}, "\ud800", "NaN")

    def change(value: Any) -> Any:
        if rng.random() < 0.08:
            return rng.choice(odd)
        if isinstance(value, dict):
            return {k: change(v) for k, v in value.items()}
        if isinstance(value, list):
            return [change(v) for v in value]
        return value

    return json.dumps(change(json.loads(raw))).encode()


def test_no_generated_file_is_called_wrong(tmp_path: Path) -> None:
    """Beside records of a live layout, generated files become foreign, temporary or unverified: never a wrong class."""
    rng = random.Random(20261130)
    world = World()
    run(world, [("start", 0, 0, 1.0), ("quiet", 2.0), ("write", 0, 0.1, 25), ("polls", 3)])
    context = context_of(world, fresh=True)
    size = world.disk[0].size
    seen: Counter[str] = Counter()
    for _ in range(NAMES):
        name = _name(rng)
        parsed = parse_name(name)
        now = round(world.now * NS)
        raw = name.encode("utf-8", "surrogateescape" if name.isascii() else "surrogatepass")
        when = now - rng.randrange(600) * NS
        fact = FileFact(raw, size, when, when, when, 1, 1, 1, stat.S_IFREG | 0o644)
        found = classify(fact, parsed, context)
        seen[found.cls] += 1
        if parsed is None:
            assert found.cls == "foreign", name
        elif parsed.temporary:
            assert found.cls == "temporary", name
        else:
            # Nobody polled here ever wrote such a name: nothing proves that it is wrong.
            assert found.cls in ("unverified", "current"), (name, found)
            if found.cls == "current":
                assert parsed.model == NAME.model  # type: ignore[union-attr]
    assert seen["foreign"] > NAMES / 2
