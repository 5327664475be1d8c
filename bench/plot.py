"""Plots: lines on log-log axes, as SVG.

Text and lines have colours that can be read on white and on black, and nothing is drawn behind them: the page shows
through. Lines differ by their dashes as well, and each is named at its end.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT = 810, 420
LEFT, RIGHT, TOP, BOTTOM = 78, 240, 46, 52
TEXT, GRID = "#7d8590", "#7d859040"
LABEL_STEP = 17
STYLES = (
    ("#3b82f6", ""),
    ("#12a594", "7 3"),
    ("#a855f7", "2 3"),
    ("#e5484d", ""),
    ("#e8790a", "7 3"),
    ("#8a8f98", "2 3"),
)
ACROSS = "messages of 1 KB in the history"


class Axis(NamedTuple):
    """A logarithmic axis: the exponents of ten at its ends, and where those are on the page."""

    low: int
    high: int
    begin: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], begin: float, end: float) -> Axis:
        """Make an axis from the power of ten below all values to the one above them."""
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(low, max(high, low + 1), begin, end)

    def at(self, value: float) -> float:
        """Return the place of a value."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    @property
    def ticks(self) -> list[float]:
        """The powers of ten on it."""
        return [10.0**exponent for exponent in range(self.low, self.high + 1)]


def plot(title: str, unit: str, lines: dict[str, list[tuple[float, float]]], across: str = ACROSS) -> str:
    """Return an SVG with one line for each series of (length, value); values are above zero; `across` names lengths."""
    points = [point for line in lines.values() for point in line]
    x = Axis.over([length for length, _ in points], LEFT, WIDTH - RIGHT)
    y = Axis.over([value for _, value in points], HEIGHT - BOTTOM, TOP)
    label = escape(title, {'"': "&quot;"})
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    font = f'font-family="system-ui, sans-serif" font-size="13" fill="{TEXT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}" {font}>',
        f"<title>{escape(title)}</title>",
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="600">{escape(title)}</text>',
        *_grid(x, y, unit, across),
    ]
    ends = _spread([(name, y.at(line[-1][1])) for name, line in lines.items()])
    for at, (name, line) in enumerate(lines.items()):
        colour, dashes = STYLES[at % len(STYLES)]
        places = [(x.at(length), y.at(value)) for length, value in line]
        path = " ".join(f"{right:.1f},{down:.1f}" for right, down in places)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2"{dashed}/>')
        parts += [f'<circle cx="{right:.1f}" cy="{down:.1f}" r="3.4" fill="{colour}"/>' for right, down in places]
        after = places[-1][0] + 10
        parts.append(f'<text x="{after:.1f}" y="{ends[name] + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _grid(x: Axis, y: Axis, unit: str, across: str) -> list[str]:
    parts = []
    for tick in x.ticks:
        place = x.at(tick)
        parts.append(f'<line x1="{place:.1f}" y1="{TOP}" x2="{place:.1f}" y2="{HEIGHT - BOTTOM}" stroke="{GRID}"/>')
        parts.append(f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{tick:,.0f}</text>')
    for tick in y.ticks:
        place = y.at(tick)
        parts.append(f'<line x1="{LEFT}" y1="{place:.1f}" x2="{WIDTH - RIGHT}" y2="{place:.1f}" stroke="{GRID}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{place + 4:.1f}" text-anchor="end">{written(tick, unit)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{escape(across)}</text>')
    return parts


def written(value: float, unit: str) -> str:
    """Write the value at a tick; bytes as KB and MB where they are many."""
    if unit == "B":
        for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
            if value >= size:
                return f"{value / size:,.0f} {name}"
    return f"{value:,g} {unit}"


def _spread(places: list[tuple[str, float]]) -> dict[str, float]:
    """Move labels down until none covers another, and all of them up if the last one left the page."""
    moved: dict[str, float] = {}
    last = -math.inf
    for name, place in sorted(places, key=lambda entry: entry[1]):
        last = max(place, last + LABEL_STEP)
        moved[name] = last
    over = max(last - (HEIGHT - BOTTOM), 0) if moved else 0
    return {name: place - over for name, place in moved.items()}
