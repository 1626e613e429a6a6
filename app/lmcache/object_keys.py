"""Object keys and the file names that LMCache's file adapters make of them.

Names, as the `fs` and `fs_native` adapters of LMCache write them (measured on 0.5.6, older forms read from source):

==========  ==============================================  ===================================================
form        without salt                                    with salt
==========  ==============================================  ===================================================
current     ``model@0xRRRRRRRR@G@HASH.data``                ``model@0xRRRRRRRR@G@HASH@SALT.data``
legacy      ``model@0xRRRRRRRR@HASH.data`` (≤ 0.4.x)        ``model@0xRRRRRRRR@HASH@SALT.data``
==========  ==============================================  ===================================================

``/`` in the model is ``-SEP-``. Parsing is strict: what LMCache cannot have written is no record, and nothing of it is
ever touched. Names come from the disk and are hostile: they are matched as a whole, never searched.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

SEPARATOR = "-SEP-"
OWN_FOLDER = ".tierkeeper"
COMMON_TEMP_DIR = ".tmp"
MAX_SALT = 128
#: Bytes of the shortest and the longest chunk hash (64-bit built-in hashes to BLAKE3 and SHA-256).
MIN_HASH, MAX_HASH = 8, 32
MAX_GROUP = 2**32 - 1

# Lone surrogates are how Python shows bytes that are not UTF-8: LMCache writes text, so such a name is not its own.
_TEXT = r"[^@/\0\ud800-\udfff]"
# A group has at most 8 hex digits and a hash at least 16: that is how four fields are told apart.
_NAME = re.compile(
    rf"({_TEXT}+)@0x([0-9a-f]{{8}})"
    r"(?:@(0|[1-9a-f][0-9a-f]{0,7}))?"
    rf"@([0-9a-f]{{{2 * MIN_HASH},{2 * MAX_HASH}}})"
    rf"(?:@([^@/\\\0\ud800-\udfff]{{1,{MAX_SALT}}}))?"
    r"\.(data|tmp)"
)
_HEX = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The key of one KV object. `kv_rank` packs world size, rank, local world size and local rank, a byte each.

    `object_group_id` is None for keys from before object groups. `model_name` is the path LMCache was given; read from
    a name it has ``/`` wherever the name has ``-SEP-`` (the encoding loses that difference).
    """

    model_name: str
    kv_rank: int
    object_group_id: int | None
    chunk_hash: bytes
    cache_salt: str = ""

    @property
    def world_size(self) -> int:
        return self.kv_rank >> 24 & 0xFF

    @property
    def rank(self) -> int:
        return self.kv_rank >> 16 & 0xFF

    @property
    def local_world_size(self) -> int:
        return self.kv_rank >> 8 & 0xFF

    @property
    def local_rank(self) -> int:
        return self.kv_rank & 0xFF

    @property
    def chunk_hash_hex(self) -> str:
        return self.chunk_hash.hex()

    def to_wire(self) -> dict[str, str | int]:
        """As ``DELETE /cache/objects`` takes it (tests/fixtures/captures/calls/delete_l1.json)."""
        return {
            "chunk_hash_hex": self.chunk_hash.hex(),
            "model_name": self.model_name,
            "kv_rank": self.kv_rank,
            "object_group_id": self.object_group_id or 0,
            "cache_salt": self.cache_salt,
        }


class ParsedName(NamedTuple):
    """What a record's name says. `model` is as it stands there (``-SEP-``), `folder` the directory part or ``""``.

    `temporary`: an unfinished write, by its directory or by ``.tmp`` in place of ``.data`` (`suffix`).
    """

    model: str
    kv_rank: int
    object_group_id: int | None
    chunk_hash: bytes
    cache_salt: str
    suffix: str
    folder: str
    temporary: bool

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(decode_model(self.model), self.kv_rank, self.object_group_id, self.chunk_hash, self.cache_salt)

    @property
    def legacy(self) -> bool:
        """The form from before object groups."""
        return self.object_group_id is None


def encode_model(model_name: str) -> str:
    """A model name as record names hold it."""
    return model_name.replace("/", SEPARATOR)


def decode_model(encoded: str) -> str:
    """The model name behind the encoded one; a name that held ``-SEP-`` itself comes back with ``/``."""
    return encoded.replace(SEPARATOR, "/")


def parse_name(name: bytes | str, temp_dirs: Collection[str] = ()) -> ParsedName | None:
    """The record (or temporary record) that a path relative to the store names; None for everything else.

    `name`: bytes, or a text as `os.fsdecode` gives it. `temp_dirs`: the servers' ``relative_tmp_dir`` (``.tmp`` always
    counts). A sub-directory counts only if its parts together are the leading hex of the hash, as in ``ab/cd/…``.
    """
    if isinstance(name, bytes):
        try:
            name = name.decode("utf-8")
        except UnicodeDecodeError:
            return None
    folder, _, base = name.rpartition("/")
    match = _NAME.fullmatch(base)
    if match is None:
        return None
    model, rank, group, chunk_hash, salt, suffix = match.groups()
    if len(chunk_hash) % 2:
        return None
    temporary = suffix == "tmp"
    if folder:
        place = folder_kind(folder, temp_dirs)
        if place is None or not chunk_hash.startswith(place.hash_prefix):
            return None
        temporary = temporary or place.temporary
    elif name.startswith("/"):
        return None
    return ParsedName(
        model,
        int(rank, 16),
        None if group is None else int(group, 16),
        bytes.fromhex(chunk_hash),
        salt or "",
        suffix,
        folder,
        temporary,
    )


class FolderKind(NamedTuple):
    """A directory in which records may lie: under a temporary directory or not, and the hash prefix it stands for."""

    temporary: bool
    hash_prefix: str


def folder_kind(folder: str, temp_dirs: Collection[str] = ()) -> FolderKind | None:
    """What a relative directory is to records; None where nothing in it can be one."""
    temporary = False
    rest = folder
    for temp_dir in (*temp_dirs, COMMON_TEMP_DIR):
        clean = temp_dir.strip("/")
        if clean and (folder == clean or folder.startswith(clean + "/")):
            temporary, rest = True, folder[len(clean) + 1 :]
            break
    prefix = ""
    if rest:
        for part in rest.split("/"):
            if not _HEX.fullmatch(part):
                return None
            prefix += part
        if len(prefix) > 2 * MAX_HASH:
            return None
    return FolderKind(temporary, prefix)


def format_name(key: ObjectKey) -> str:
    """The file name of a key. Raises ValueError for a key that LMCache could not have (names what is wrong)."""
    model = encode_model(key.model_name)
    if not re.fullmatch(f"{_TEXT}+", model):
        raise ValueError(f"model_name {key.model_name!r}: must not be empty nor hold '@', NUL or a lone surrogate")
    if not 0 <= key.kv_rank < 2**32:
        raise ValueError(f"kv_rank {key.kv_rank}: must fit 32 bits")
    if key.object_group_id is not None and not 0 <= key.object_group_id <= MAX_GROUP:
        raise ValueError(f"object_group_id {key.object_group_id}: must fit 32 bits")
    if not MIN_HASH <= len(key.chunk_hash) <= MAX_HASH:
        raise ValueError(f"chunk_hash: {len(key.chunk_hash)} bytes, must be {MIN_HASH} to {MAX_HASH}")
    if key.cache_salt and not re.fullmatch(rf"[^@/\\\0\ud800-\udfff]{{1,{MAX_SALT}}}", key.cache_salt):
        raise ValueError(f"cache_salt {key.cache_salt!r}: at most {MAX_SALT} characters, none of '@', '/', '\\', NUL")
    group = "" if key.object_group_id is None else f"@{key.object_group_id:x}"
    salt = f"@{key.cache_salt}" if key.cache_salt else ""
    return f"{model}@0x{key.kv_rank:08x}{group}@{key.chunk_hash.hex()}{salt}.data"


def parse_kv_rank(text: str) -> int:
    """``0x01000100`` or ``16777472`` as a number. Raises ValueError."""
    number = int(text, 0)
    if not 0 <= number < 2**32:
        raise ValueError(f"{text!r} does not fit 32 bits")
    return number
