"""Unfinished writes must be on the same file system as the records."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts


class TempDir(Check):
    id = "temp_dir"
    title = "Unfinished writes can be renamed into place"
    looks_at = "relative_tmp_dir of each file adapter: its device against the store's"
    why = "A record is written aside and renamed; across file systems the rename fails and nothing is ever stored."
    source = "FSL2Adapter of LMCache 0.5.6; rename(2)"

    def check(self, facts: Facts) -> Iterable[Finding]:
        for store in facts.stores:
            name = store.adapter.relative_tmp_dir
            if name is None or store.temp_same_device is None:
                continue
            values = {"configured": name, "origin": "/config; stat"}
            if name.startswith("/") or ".." in name.split("/"):
                yield self.fail(
                    store.subject,
                    f"{name!r} leaves the store",
                    title="The temporary folder lies outside",
                    fix='"relative_tmp_dir": ".tmp"',
                    effective="outside the store",
                    **values,
                )
            elif not store.temp_same_device:
                yield self.fail(
                    store.subject,
                    f"{name} is on another device than the records",
                    title="The temporary folder is on another file system",
                    fix='"relative_tmp_dir": ".tmp" on the same mount',
                    effective="another device",
                    **values,
                )
            else:
                yield self.ok(store.subject, f"{name}, same device", effective="same device", **values)
