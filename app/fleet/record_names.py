"""The model in a record's file name, for telling whose directory it is; classifying is `app.records`' work."""

from __future__ import annotations

from collections.abc import Iterable

from app.lmcache.object_keys import decode_model, encode_model, parse_name


def model_of_record(file_name: str) -> str | None:
    """The model name a record-shaped file name holds (``-SEP-`` read as ``/``), or None for any other file."""
    parsed = parse_name(file_name)
    return None if parsed is None else decode_model(parsed.model)


def comparable(model_names: Iterable[str]) -> set[str]:
    """Model names as they come back from record names (a ``-SEP-`` of their own is read as ``/``)."""
    return {decode_model(encode_model(name)) for name in model_names}
