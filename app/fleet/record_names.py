"""The model in a record's file name, for telling whose directory it is; classifying is `app.records`' work."""

from __future__ import annotations

import re

# model@0xRRRRRRRR@G@HASH[@SALT].data, and the older form without the group G; a temporary record ends in .tmp.
_RECORD = re.compile(
    r"(?P<model>[^@/\0]+)@0x[0-9a-f]{8}(@[0-9a-f]{1,4})?@[0-9a-f]{8,128}(@[^@/\\\0]{0,128})?\.(data|tmp)"
)


def model_of_record(file_name: str) -> str | None:
    """The model name a record-shaped file name holds (``-SEP-`` read as ``/``), or None for any other file."""
    match = _RECORD.fullmatch(file_name)
    return None if match is None else match["model"].replace("-SEP-", "/")
