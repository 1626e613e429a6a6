"""Model paths that record names cannot hold."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Facts

_LIMIT = 255
_REST = len("@0x01000100@0@") + 64 + len(".data")


class RecordNames(Check):
    id = "record_names"
    title = "Record names can hold the model's path"
    looks_at = "the model path given to the engine, which becomes part of every record's file name"
    why = (
        "`/` becomes -SEP- and cannot be told apart from a path that holds it; `@` is refused; a file name has 255 "
        "bytes, of which hash and rank take 83 and a salt up to 129."
    )
    source = "record names of the file adapters, LMCache 0.5.6"

    def check(self, facts: Facts) -> Iterable[Finding]:
        if not any(store.adapter.base_path for store in facts.stores):
            return
        for name in effective.engine_models(facts.engine)[:5]:
            length = len(name.replace("/", "-SEP-").encode()) + _REST
            values = {"configured": name, "effective": f"names of {length} bytes", "origin": "model path of the engine"}
            if "@" in name:
                yield self.fail(
                    name,
                    "it holds @, which LMCache refuses in names",
                    title="The model's path cannot be stored",
                    fix="serve the model from a path without @",
                    **values,
                )
            elif "-SEP-" in name:
                yield self.warn(
                    name,
                    "it holds -SEP-, so two paths share one name",
                    title="The model's path is ambiguous in record names",
                    fix="serve the model from a path without -SEP-",
                    **values,
                )
            elif length > _LIMIT:
                yield self.fail(
                    name,
                    f"record names would have {length} bytes, a file system allows {_LIMIT}",
                    title="The model's path is too long for record names",
                    fix="serve the model from a shorter path",
                    **values,
                )
            else:
                salt = _LIMIT - length - 1
                yield self.ok(
                    name, f"names of {length} bytes, room for a cache_salt of {min(salt, 128)} bytes", **values
                )
