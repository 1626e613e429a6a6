"""Record names: every legal key survives, nothing else parses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lmcache.object_keys import ObjectKey, decode_model, format_name, parse_kv_rank, parse_name

HASH = "fb5be3411c1f41d6d00450c7cefeda2a79881d588b25ebce20c5cf8ec5c933b7"
HEAD = "-SEP-models-SEP-tiny@0x01000100"

_TEXT = st.characters(exclude_categories=["Cs"], exclude_characters="@/\0")
_SALT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="@/\\\0"), max_size=128)
KEYS = st.builds(
    ObjectKey,
    model_name=st.text(st.one_of(_TEXT, st.just("/")), min_size=1, max_size=60),
    kv_rank=st.integers(0, 2**32 - 1),
    object_group_id=st.one_of(st.none(), st.integers(0, 2**32 - 1)),
    chunk_hash=st.binary(min_size=8, max_size=32),
    cache_salt=_SALT,
)


@given(KEYS)
def test_every_legal_key_survives(key: ObjectKey) -> None:
    name = format_name(key)
    parsed = parse_name(name)
    assert parsed is not None
    assert format_name(parsed.key) == name
    assert parsed == parse_name(name.encode())
    assert not parsed.temporary
    assert (parsed.kv_rank, parsed.object_group_id, parsed.chunk_hash, parsed.cache_salt) == (
        key.kv_rank,
        key.object_group_id,
        key.chunk_hash,
        key.cache_salt,
    )
    if "-SEP-" not in key.model_name:
        assert parsed.key == key


@given(st.one_of(st.text(max_size=120), st.binary(max_size=120)))
def test_what_parses_is_what_would_be_written(name: str | bytes) -> None:
    parsed = parse_name(name)
    if parsed is not None and not parsed.folder:
        text = name.decode() if isinstance(name, bytes) else name
        assert format_name(parsed.key) == text.removesuffix(".tmp").removesuffix(".data") + ".data"


@given(KEYS, st.data())
def test_a_name_changed_anywhere_is_another_record_or_none(key: ObjectKey, data: st.DataObject) -> None:
    name = format_name(key)
    at = data.draw(st.integers(0, len(name) - 1))
    put = data.draw(st.sampled_from(["", "@", "/", "\0", "A", "g", " ", "\n", "0", ".data"]))
    changed = name[:at] + put + name[at + 1 :]
    parsed = parse_name(changed)
    if parsed is not None and not parsed.folder:
        assert format_name(parsed.key) == changed.removesuffix(".tmp").removesuffix(".data") + ".data"


@pytest.mark.parametrize(
    ("name", "group", "salt", "temporary"),
    [
        (f"{HEAD}@0@{HASH}.data", 0, "", False),
        (f"{HEAD}@1f@{HASH}.data", 31, "", False),
        (f"{HEAD}@0@{HASH}@tk-1-2.data", 0, "tk-1-2", False),
        (f"{HEAD}@{HASH}.data", None, "", False),
        (f"{HEAD}@{HASH}@tenant.data", None, "tenant", False),
        # Four fields: the place of the long hash decides, even where the salt looks like one.
        (f"{HEAD}@{HASH}@{HASH}.data", None, HASH, False),
        (f"{HEAD}@{HASH}@0.data", None, "0", False),
        (f"{HEAD}@0@{HASH}.tmp", 0, "", True),
        (f".tmp/{HEAD}@0@{HASH}.data", 0, "", True),
        (f"staging/in/{HEAD}@0@{HASH}.data", 0, "", True),
        (f"staging/in/fb/5b/{HEAD}@0@{HASH}.data", 0, "", True),
        (f"fb/5b/{HEAD}@0@{HASH}.data", 0, "", False),
        (f"fb5/{HEAD}@0@{HASH}.data", 0, "", False),
        (f"{HEAD}@0@{HASH[:16]}.data", 0, "", False),
    ],
)
def test_forms(name: str, group: int | None, salt: str, temporary: bool) -> None:
    parsed = parse_name(name, ("/staging/in/",))
    assert parsed is not None
    assert (parsed.object_group_id, parsed.cache_salt, parsed.temporary) == (group, salt, temporary)
    assert decode_model(parsed.model) == "/models/tiny"
    assert parsed.chunk_hash.hex() in (HASH, HASH[:16])


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".data",
        f"{HEAD}@0@{HASH}",
        f"{HEAD}@0@{HASH}.dat",
        f"{HEAD}@0@{HASH}.data\n",
        f"{HEAD}@0@{HASH.upper()}.data",
        f"{HEAD}@0A@{HASH}.data",
        f"{HEAD}@00@{HASH}.data",
        f"{HEAD}@0@{HASH[:-1]}.data",
        f"{HEAD}@0@{HASH}0.data",
        f"{HEAD}@0@{HASH[:14]}.data",
        f"{HEAD}@0@{HASH}@.data",
        f"{HEAD}@0@{HASH}@{'s' * 129}.data",
        f"{HEAD}@0@{HASH}@a\\b.data",
        f"{HEAD}@0@{HASH}@a@b.data",
        f"@0x01000100@0@{HASH}.data",
        f"model@0x0100010@0@{HASH}.data",
        f"model@0X01000100@0@{HASH}.data",
        f"/{HEAD}@0@{HASH}.data",
        f"../{HEAD}@0@{HASH}.data",
        f"ab/{HEAD}@0@{HASH}.data",
        f"other/{HEAD}@0@{HASH}.data",
        f".tierkeeper/quarantine/{HEAD}@0@{HASH}.data",
        f"FB/{HEAD}@0@{HASH}.data",
        "vllm@-data-models-NAME@1@0@0123456789abcdef.pt",
    ],
)
def test_nothing_else_is_a_record(name: str) -> None:
    assert parse_name(name) is None
    assert parse_name(name.encode()) is None


def test_bytes_that_are_no_text_are_no_record() -> None:
    raw = HEAD.encode() + b"@0@" + HASH.encode() + b"@\xff.data"
    assert parse_name(raw) is None
    assert parse_name(raw.decode("utf-8", "surrogateescape")) is None


def test_a_key_unpacks_its_rank() -> None:
    key = ObjectKey("m", 0x08050402, 0, bytes(32))
    assert (key.world_size, key.rank, key.local_world_size, key.local_rank) == (8, 5, 4, 2)


@pytest.mark.parametrize(
    "key",
    [
        ObjectKey("", 0, 0, bytes(32)),
        ObjectKey("a@b", 0, 0, bytes(32)),
        ObjectKey("m", 2**32, 0, bytes(32)),
        ObjectKey("m", 0, -1, bytes(32)),
        ObjectKey("m", 0, 0, bytes(7)),
        ObjectKey("m", 0, 0, bytes(33)),
        ObjectKey("m", 0, 0, bytes(32), "a/b"),
    ],
)
def test_keys_that_cannot_be_are_refused(key: ObjectKey) -> None:
    with pytest.raises(ValueError):
        format_name(key)


def test_ranks_are_read_in_both_spellings() -> None:
    assert parse_kv_rank("0x01000100") == parse_kv_rank("16777472") == 16777472
    with pytest.raises(ValueError):
        parse_kv_rank("0x100000000")
