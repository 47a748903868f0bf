"""Pictures as SVG of our own: small, with text as text, in the colours of the page around them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._html import number, text
from drago.plotting._models import is_heavy

Vector = npt.NDArray[np.float64]

WIDTH = 460.0
# Around the axes: for their names and ticks.
RIGHT, TOP, BOTTOM = 20.0, 12.0, 44.0
# A character of the small print, across and down.
_WIDE, _HIGH = 6.8, 13.0
# Points of a curve, at most.
MOST_POINTS = 300
# Decades that a logarithmic axis spans at most, and the lines of a grid.
_DECADES = 5.0
_TICKS = 5


@dataclass(frozen=True)
class Axis:
    """A range of values, the name of what they are, and how they are spread."""

    low: float
    high: float
    name: str
    is_log: bool = False
    as_share: bool = False
    is_turned: bool = False

    def place(self, values: Any) -> Vector:
        """Where values lie between 0 and 1; what is outside is moved to the end."""
        found = np.asarray(values, dtype=np.float64)
        low, high = self.low, self.high
        if self.is_log:
            found = np.log(np.maximum(found, low))
            low, high = math.log(low), math.log(high)
        where = np.clip((found - low) / (high - low), 0.0, 1.0)
        return 1.0 - where if self.is_turned else where

    def ticks(self) -> list[tuple[float, str]]:
        """Values to mark, and their names."""
        found = _log_ticks(self.low, self.high) if self.is_log else _ticks(self.low, self.high)
        return [(value, self.label(value)) for value in found]

    def label(self, value: float) -> str:
        if self.as_share:
            return f"{100 * value:.6g}%"
        if value and not 1e-3 <= abs(value) < 1e7:
            return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e").replace("-", "−")
        return number(value, 6)


def axis_for(values: Any, name: str, *, log: bool | None = None, room: float = 0.05) -> Axis:
    """An axis for some values; logarithmic where they have a heavy tail, unless told.

    Parameters
    ----------
    values : array
    name : str
    log : bool, optional
    room : float
        What is left free at both ends, as a share of the range.
    """
    found = np.asarray(values, dtype=np.float64)
    found = found[np.isfinite(found)]
    if not found.size:
        return Axis(0.0, 1.0, name)
    low, high = float(found.min()), float(found.max())
    if log is None:
        log = is_heavy(found)
    if log and high > 0:
        positive = found[found > 0]
        low = max(float(positive.min()), high * 10.0**-_DECADES)
        pad = max((high / low) ** room, 1.05)
        return Axis(low / pad, high * pad, name, is_log=True)
    span = high - low or abs(high) or 1.0
    return Axis(low - room * span, high + room * span, name)


def thinned(x: Any, y: Any) -> tuple[Vector, Vector]:
    """A curve by a few hundred of its points, both ends among them."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.size <= MOST_POINTS:
        return x, y
    keep = np.unique(np.linspace(0, x.size - 1, MOST_POINTS).round().astype(np.int64))
    return x[keep], y[keep]


@dataclass
class Chart:
    """A picture with two axes, and a description for those who do not see it.

    Colours are classes, ``c0`` to ``c6`` and ``grey``, which the page defines.
    """

    x: Axis
    y: Axis
    height: float = 300.0
    left: float = 0.0
    top: float = TOP
    names: Sequence[str] | None = None
    parts: list[str] = field(default_factory=list)
    taken: list[tuple[float, float, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.left:  # room for the ticks and for the name of the axis
            self.left = 30.0 + 6.3 * max((len(label) for _, label in self.y.ticks()), default=1)

    def across(self, values: Any) -> Vector:
        return self.left + self.x.place(values) * (WIDTH - self.left - RIGHT)

    def down(self, values: Any) -> Vector:
        return self.height - BOTTOM - self.y.place(values) * (self.height - self.top - BOTTOM)

    def line(self, x: Any, y: Any, colour: str, *, dash: str = "") -> None:
        """A curve; it has gaps where it is not finite."""
        x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        kept = np.isfinite(x) & np.isfinite(y)
        words, pen = [], "M"
        for good, a, b in zip(kept, self.across(x), self.down(y)):
            if good:
                words.append(f"{pen}{a:.1f} {b:.1f}")
            pen = "L" if good else "M"
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<path class="line {colour}"{dashed} d="{"".join(words)}"/>')

    def span(self, x: tuple[float, float], y: tuple[float, float], colour: str) -> None:
        """A straight stroke, such as an interval."""
        a, b = self.across(x), self.down(y)
        self.parts.append(
            f'<path class="span {colour}" d="M{a[0]:.1f} {b[0]:.1f}L{a[1]:.1f} {b[1]:.1f}"/>'
        )

    def point(self, x: float, y: float, colour: str, shape: str = "round") -> None:
        """A point; its shape tells it apart without its colour."""
        a, b = float(self.across(x)), float(self.down(y))
        self.taken.append((a - 6, b - 6, a + 6, b + 6))
        if shape == "round":
            self.parts.append(f'<circle class="dot {colour}" cx="{a:.1f}" cy="{b:.1f}" r="4.5"/>')
        elif shape == "square":
            self.parts.append(
                f'<rect class="dot {colour}" x="{a - 4:.1f}" y="{b - 4:.1f}" width="8" height="8"/>'
            )
        else:
            corners = f"M{a:.1f} {b - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z"
            self.parts.append(f'<path class="dot {colour}" d="{corners}"/>')

    def rule(self, *, x: float | None = None, y: float | None = None) -> None:
        """A dashed line across, for comparison."""
        right, low = WIDTH - RIGHT, self.height - BOTTOM
        if x is not None:
            a = float(self.across(x))
            where = f"M{a:.1f} {self.top}L{a:.1f} {low}"
        else:
            b = float(self.down(y))
            where = f"M{self.left} {b:.1f}L{right} {b:.1f}"
        self.parts.append(f'<path class="rule" d="{where}"/>')

    def name(self, words: str, x: float, y: float) -> None:
        """The name of a point, where there is room for it."""
        a, b = float(self.across(x)), float(self.down(y))
        long = _WIDE * len(words)
        places = [
            (a + 9 if side == "start" else a - 9 if side == "end" else a, b + 4 + off, side)
            for off in (0, -12, 12, -24, 24, -36, 36, -48, 48)
            for side in ("start", "end", "middle")
            if side != "middle" or off
        ]

        def cost(place: tuple[float, float, str]) -> float:
            box = _box(*place, long)
            outside = max(0.0, self.left - box[0]) + max(0.0, box[2] - WIDTH)
            outside += max(0.0, self.top - box[1]) + max(0.0, box[3] - self.height + BOTTOM)
            over = sum(_overlap(box, other) for other in self.taken)
            return 50.0 * outside + over + 0.2 * abs(place[1] - b - 4)

        best = min(places, key=cost)
        self.taken.append(_box(*best, long))
        self.parts.append(
            f'<text class="name" x="{best[0]:.1f}" y="{best[1]:.1f}" '
            f'text-anchor="{best[2]}">{text(words)}</text>'
        )

    def svg(self, key: str, title: str, description: str) -> str:
        """The picture, named by `key` within its page."""
        about = (
            f'<title id="{key}-title">{text(title, None)}</title>'
            f'<desc id="{key}-desc">{text(description, None)}</desc>'
        )
        return (
            f'<svg viewBox="0 0 {WIDTH:g} {self.height:g}" role="img" '
            f'aria-labelledby="{key}-title {key}-desc">{about}'
            f"{self._frame()}{''.join(self.parts)}</svg>"
        )

    def _frame(self) -> str:
        """Grid, ticks, and the names of the axes."""
        low, right = self.height - BOTTOM, WIDTH - RIGHT
        words = []
        for value, label in self.x.ticks():
            a = float(self.across(value))
            words.append(f'<path class="grid" d="M{a:.1f} {self.top}L{a:.1f} {low}"/>')
            words.append(_words(a, low + 15, "middle", label))
        if self.names is None:
            for value, label in self.y.ticks():
                b = float(self.down(value))
                words.append(f'<path class="grid" d="M{self.left} {b:.1f}L{right} {b:.1f}"/>')
                words.append(_words(self.left - 6, b + 4, "end", label))
            middle = (self.top + low) / 2
            words.append(
                f'<text class="axis" transform="translate(13 {middle:.1f}) rotate(-90)" '
                f'text-anchor="middle">{text(self.y.name)}</text>'
            )
        else:
            for k, label in enumerate(self.names):
                room = int((self.left - 10) / _WIDE)
                words.append(_words(self.left - 8, float(self.down(k)) + 4, "end", label, room))
        words.append(f'<path class="frame" d="M{self.left} {self.top}V{low}H{right}"/>')
        middle = (self.left + right) / 2
        words.append(
            f'<text class="axis" x="{middle:.1f}" y="{self.height - 8:.1f}" '
            f'text-anchor="middle">{text(self.x.name)}</text>'
        )
        return "".join(words)


def legend(entries: Iterable[tuple[str, str, str]]) -> str:
    """What colours and dashes stand for: pairs of a class, a dash and a name."""
    items = []
    for colour, dash, name in entries:
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        items.append(
            f'<li><svg viewBox="0 0 28 10" width="28" height="10" aria-hidden="true">'
            f'<path class="line {colour}"{dashed} d="M1 5H27"/></svg>{text(name)}</li>'
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _words(x: float, y: float, anchor: str, words: str, longest: int = 40) -> str:
    return (
        f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{text(words, longest)}</text>"
    )


def _box(x: float, y: float, anchor: str, long: float) -> tuple[float, float, float, float]:
    left = {"start": x, "end": x - long, "middle": x - long / 2}[anchor]
    return left, y - _HIGH + 2, left + long, y + 3


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    return max(wide, 0.0) * max(high, 0.0)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers within a range."""
    raw = (high - low) / _TICKS
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next((f * unit for f in (1.0, 2.0, 2.5, 5.0) if f * unit >= raw), 10.0 * unit)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within a range, with 2 and 5 times them where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0)):
        found = [f * 10.0**k for k in range(first, last + 1) for f in factors]
        found = [value for value in found if low * 0.999 <= value <= high * 1.001]
        if len(found) >= 3:
            break
    if len(found) < 2:
        return _ticks(low, high)
    every = 1 + (len(found) - 1) // 8
    return found[::every]
