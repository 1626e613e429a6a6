"""What the store lies on."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts, where_it_lies

VOLATILE = ("tmpfs", "ramfs", "overlay", "aufs", "fuse.overlayfs")
NETWORK = (
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "fuse.glusterfs",
    "fuse.sshfs", "fuse.gcsfuse", "fuse.s3fs", "fuse.rclone", "fuse.juicefs", "9p", "virtiofs", "afs", "weka", "wekafs",
)  # fmt: skip


class StoreDevice(Check):
    id = "store_device"
    title = "The store lies on a disk of its own"
    looks_at = "device, file system and mount point below base_path"
    why = (
        "tmpfs is memory counted twice and gone after a reboot; a container's overlay is gone with the container and "
        "fills the node's disk; a network file system has other rules for O_DIRECT, renames and access times; on the "
        "root file system a full cache stops the machine, not only the cache."
    )
    source = "LMCache#4664, #1454; measured on overlay and tmpfs"

    def check(self, facts: Facts) -> Iterable[Finding]:
        for store in facts.stores:
            if store.adapter.base_path is None:
                continue
            kind = store.fs_type
            if kind is None:
                yield self.unknown(
                    store.subject,
                    store.unseen_reason or "the file system cannot be told",
                    fix=where_it_lies(store),
                )
                continue
            where = f"{kind} at {store.mount_point or 'an unknown mount point'}"
            if store.device:
                where += f" ({store.device})"
            values = {"configured": store.subject, "effective": where, "origin": "/config; mount table of this host"}
            if kind in VOLATILE:
                yield self.fail(
                    store.subject,
                    f"{where}: records do not outlive "
                    f"{'the host' if 'mpfs' in kind or kind == 'ramfs' else 'the container'}",
                    title="The store is not on a disk",
                    fix="a base_path on a mounted disk (docker run -v /data/kv:/data/kv)",
                    **values,
                )
            elif kind in NETWORK or kind.startswith("fuse."):
                yield self.warn(
                    store.subject,
                    f"{where}: every load is a network transfer, and other hosts may write there too",
                    title="The store is on a network file system",
                    fix="a local disk, or O_DIRECT off, two servers never on one directory, and a measured load time",
                    **values,
                )
            elif store.is_root:
                yield self.warn(
                    store.subject,
                    f"{where}: the cache shares the root file system",
                    title="The store shares the root file system",
                    fix="a mounted disk, or a cleanup policy with free_space that keeps enough free for the system",
                    **values,
                )
            else:
                yield self.ok(store.subject, where, **values)
