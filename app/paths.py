"""Where the product's own files lie: beside the package in a checkout, inside it when installed as a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _find(name: str) -> Path:
    inside = _PACKAGE / f"_{name}"
    return inside if inside.is_dir() else _PACKAGE.parent / name


TEMPLATES = _find("templates")
STATIC = _find("static")
MIGRATIONS = _find("migrations")
DOCS = _find("docs")
