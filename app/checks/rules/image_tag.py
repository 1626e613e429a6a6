"""Images should be pinned."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts

_MOVING = ("latest", "nightly", "latest-nightly", "main", "dev", "edge", "stable")


class ImageTag(Check):
    id = "image_tag"
    title = "Container images are pinned to a version"
    looks_at = "image of the server's and the engine's container (compose file or docker run)"
    why = (
        "A moving tag changes vLLM or LMCache with the next pull: another attention backend or block size writes other "
        "bytes under the same names, and nobody remembers an upgrade."
    )
    source = "LMCache#4247, #4711"

    def check(self, facts: Facts) -> Iterable[Finding]:
        for container in facts.containers:
            if container.role == "other":
                continue
            image = container.image
            if not image:
                yield self.unknown(container.name, "no image is named (built here?)", origin=container.origin)
                continue
            name, _, digest = image.partition("@")
            tag = name.rpartition("/")[2].partition(":")[2]
            values = {"configured": image, "origin": container.origin}
            if digest or (tag and tag not in _MOVING and not tag.endswith("-nightly") and "$" not in tag):
                yield self.ok(container.name, image, effective="pinned", **values)
            elif "$" in image:
                yield self.unknown(container.name, f"{image} is decided by a variable", **values)
            else:
                yield self.warn(
                    container.name,
                    f"{image}: {'no tag, so latest' if not tag else f'the tag {tag} moves'}",
                    title="The image may change with the next pull",
                    fix=f"{name.rpartition(':')[0] or name}:VERSION, or @sha256:…",
                    effective="whatever the next pull brings",
                    **values,
                )
