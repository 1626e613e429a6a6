"""The strip chart as a picture of its own: every request of a run a dot, one row a pass. Pure: numbers in, SVG out.

It stands in reports and documents where no style sheet of ours is, so its few colours are in it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from html import escape

from app.acceptance.stats import quantile
from app.benchmark.result import phase_title

#: (scenario, run, phase) -> (position, milliseconds) of every answered request.
Strips = Mapping[tuple[str, int, str], Sequence[tuple[int, float]]]

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP, _FOOT = 960, 190, 120, 26, 64, 34
_INK = {"a": "#828c9a", "a2": "#b7bec8", "b": "#2f7de0", "b2": "#9cc3f2"}


def strip_svg(title: str, subtitle: str, strips: Strips) -> str:
    """Rows sorted by phase, scenario and run, over one axis from 0; the tick in each row is its median."""
    keys = sorted(strips, key=lambda k: (k[2], k[0], k[1]))
    values = [ms for points in strips.values() for _, ms in points]
    # A few stragglers must not squeeze all the others: what is beyond is drawn at the edge.
    top = _round_up(max(quantile(values, 0.995) or 1.0, 1e-3)) if values else 1.0
    lines = textwrap.wrap(subtitle, 140)
    upper = _TOP + 16 * max(0, len(lines) - 1)
    height = upper + _ROW * len(keys) + _FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="24" font-size="15" font-weight="600" fill="#11151b">{escape(title)}</text>',
    ]
    parts += [f'<text x="16" y="{44 + 16 * i}" fill="#48515e">{escape(x)}</text>' for i, x in enumerate(lines)]
    parts += _axis(top, upper, height)
    for number, key in enumerate(keys):
        parts += _row(key, strips[key], upper + _ROW * number, top)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _axis(top: float, upper: int, height: int) -> list[str]:
    parts = []
    for step in range(5):
        value = top * step / 4
        x = _x(value, top)
        parts.append(f'<path d="M{x:.1f} {upper - 6}V{height - _FOOT}" stroke="#e3e6eb"/>')
        unit = " ms" if step == 4 else ""
        label = f"{value:g}{unit}"
        parts.append(f'<text x="{x:.1f}" y="{height - 14}" text-anchor="middle" fill="#5f6977">{label}</text>')
    return parts


def _row(key: tuple[str, int, str], points: Sequence[tuple[int, float]], y: int, top: float) -> list[str]:
    scenario, repeat, phase = key
    middle = quantile([ms for _, ms in points], 0.5) or 0.0
    ink = _INK.get(scenario, "#48515e")
    label = f"{scenario.upper()}, run {repeat}, {phase_title(phase)}"
    # Dots lie in the order of asking from the upper to the lower edge of their row, so that drifts can be seen.
    last = max((position for position, _ in points), default=0) or 1
    dots = "".join(f"M{_x(ms, top):.1f} {y + 5 + (_ROW - 10) * position / last:.1f}h.01" for position, ms in points)
    centre = y + _ROW / 2 + 4
    return [
        f'<text x="16" y="{centre:.0f}" fill="#11151b">{escape(label)}</text>',
        f'<path d="{dots}" stroke="{ink}" stroke-width="4" stroke-linecap="round" opacity="0.6" fill="none"/>',
        f'<path d="M{_x(middle, top):.1f} {y + 2}v{_ROW - 4}" stroke="#11151b" stroke-width="2"/>',
        f'<text x="{_WIDTH - 16}" y="{centre:.0f}" text-anchor="end" fill="#11151b">{middle:,.1f} ms</text>',
    ]


def _x(ms: float, top: float) -> float:
    return _LEFT + min(ms / top, 1.0) * (_WIDTH - _LEFT - _RIGHT)


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 6, 8 times a power of ten: quarters of it are short numbers."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * f for f in (1, 2, 4, 6, 8, 10) if power * f >= value)
