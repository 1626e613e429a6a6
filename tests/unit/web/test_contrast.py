"""Contrast of the colour pairs in tokens.css as WCAG 2.2 computes it: text 4.5, graphics and borders 3."""

from __future__ import annotations

import re

import pytest

from app.paths import STATIC

PAIR = re.compile(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);")
SINGLE = re.compile(r"--([\w-]+): (#[0-9a-f]{6});")
CSS = (STATIC / "css/tokens.css").read_text()
TOKENS = {name: (light, dark) for name, light, dark in PAIR.findall(CSS)} | {
    name: (value, value) for name, value in SINGLE.findall(CSS)
}
SURFACES = ("bg", "surface", "raised", "sunken", "hover")
STATES = ("ok", "warn", "bad", "info", "none")
CLASSES = ("current", "incompatible", "corrupt", "unreachable", "temporary", "unverified", "foreign")


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_formula() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


TEXT = [
    *((text, surface) for text in ("text", "text-2", "text-3") for surface in SURFACES),
    *((state, surface) for state in STATES for surface in ("surface", "bg", "raised", "hover", f"{state}-soft")),
    *(("text", f"{state}-soft") for state in STATES),
    ("text-2", "none-soft"),
    ("on-ink", "ink"),
    ("on-ink", "ink-hover"),
    ("on-danger", "danger"),
    ("on-danger", "danger-hover"),
]
GRAPHICS = [
    *((f"tier-{tier}", surface) for tier in ("l0", "l1", "l2", "rc") for surface in ("surface", "bg")),
    *((f"c-{name}", surface) for name in CLASSES for surface in ("surface", "bg")),
    *(("focus", surface) for surface in SURFACES),
    ("control-line", "surface"),
]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), TEXT)
def test_text_can_be_read(text: str, ground: str, theme: int) -> None:
    assert contrast(TOKENS[text][theme], TOKENS[ground][theme]) >= 4.5


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("colour", "ground"), GRAPHICS)
def test_graphics_can_be_seen(colour: str, ground: str, theme: int) -> None:
    assert contrast(TOKENS[colour][theme], TOKENS[ground][theme]) >= 3.0


def test_colours_live_in_tokens_alone() -> None:
    for name in ("base.css", "shell.css", "components.css", "states.css", "controls.css", "tables.css", "pictures.css"):
        css = (STATIC / "css" / name).read_text()
        single = re.sub(r"light-dark\([^)]*\)*[^)]*\)", "", css)
        assert re.findall(r"#[0-9a-f]{3,8}\b", single) == [], name


def test_every_token_that_is_used_exists() -> None:
    defined = set(re.findall(r"--([\w-]+):", CSS))
    for path in (STATIC / "css").glob("*.css"):
        used = set(re.findall(r"var\(--([\w-]+)\)", path.read_text()))
        assert used <= defined, (path.name, used - defined)
