"""Can records really be written there? One real write, of a file without a name."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts, where_it_lies

_FIXES = {
    "EINVAL": '"use_odirect": false in this --l2-adapter, or another file system',
    "EOPNOTSUPP": '"use_odirect": false in this --l2-adapter, or another file system',
    "ENOSPC": "free space: run a cleanup policy with free_space or capacity",
    "EDQUOT": "raise the quota, or run a cleanup policy with capacity",
    "EROFS": "mount the file system writable",
    "EIO": "look at the device: the kernel log says more",
    "ENOENT": "create the directory before the server starts",
    "ENOTDIR": "give a directory as base_path",
}
_OURS = ("EACCES", "EPERM")


class WriteProbe(Check):
    id = "write_probe"
    title = "Records can be written to the store"
    looks_at = "a real write (with O_DIRECT where the adapter uses it) of one record's size into the store"
    why = (
        "A store that fails is invisible from outside: no metric moves, /healthcheck is 200, and the hit rate decays "
        "for hours. The file that is written has no name (O_TMPFILE), so nothing of it can be left behind."
    )
    source = "LMCache#4364, #5119"

    def check(self, facts: Facts) -> Iterable[Finding]:
        for store in facts.stores:
            probe = store.probe
            if store.adapter.base_path is None:
                continue
            if probe is None or probe.state == "not_tried":
                why = probe.detail if probe is not None else store.unseen_reason or "the directory is not on this host"
                yield self.unknown(store.subject, why, fix=where_it_lies(store))
                continue
            how = "O_DIRECT" if probe.direct else "buffered"
            values = {"configured": how, "effective": store.path, "origin": "write probe"}
            if probe.state == "written":
                yield self.ok(store.subject, f"{probe.size} B written {how}, synced and read back", **values)
            elif probe.errno_name in _OURS:
                yield self.unknown(
                    store.subject,
                    f"the panel's user may not write there ({probe.detail}); the server may",
                    fix="give the panel's user write permission: cleanup needs it too",
                    **values,
                )
            else:
                yield self.fail(
                    store.subject,
                    f"{how} write refused: {probe.detail}",
                    title="Nothing can be written to the store",
                    fix=_FIXES.get(probe.errno_name or "", "make the directory writable"),
                    **values,
                )
