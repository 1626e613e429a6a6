"""The documents are part of the product: what they must mention is compared with what there is."""

from __future__ import annotations

from app.paths import MIGRATIONS
from app.settings import PREFIX, Settings

ROOT = MIGRATIONS.parent


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "SETTINGS.md").read_text()
    missing = [f"{PREFIX}{name.upper()}" for name in Settings.model_fields if f"`{PREFIX}{name.upper()}`" not in text]
    assert missing == []


def test_every_room_is_in_the_architecture() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    rooms = sorted(p.name for p in (ROOT / "app").iterdir() if (p / "__init__.py").exists())
    assert [room for room in rooms if f"`{room}/`" not in text] == []


def test_every_make_target_has_a_help_line() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    phony = next(line for line in lines if line.startswith(".PHONY:")).split()[1:]
    assert [t for t in phony if not any(line.startswith(f"{t}:") and "##" in line for line in lines)] == []
