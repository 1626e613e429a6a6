"""Where the records of one layout go: one directory a layout, so that two can never mix."""

from __future__ import annotations

import re


def layout_path(root: str, model: str, fingerprint: str) -> str:
    """``/srv/lmcache/Qwen2.5-7B-0123456789abcdef``: one directory per layout, so that two can never mix."""
    slug = re.sub(r"[^A-Za-z0-9._\-]+", "-", model.rstrip("/").rpartition("/")[2]).strip("-.")[:60]
    return f"{root}/{slug or 'model'}-{fingerprint}"
