"""What a part of the rows tells about a threshold: sums there, and the rows that are still open.

All is a function of the part's losses and a few numbers, so that it can run anywhere. The search
itself is that of `drago.oracles.rounds.arrays`, on the open rows of all parts
(`drago.oracles.rounds.remote`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from drago.oracles.rounds.arrays import BALL, CHI2, KL, VERTEX
from drago.oracles.rounds.ball import BallRows
from drago.oracles.rounds.rows import (
    FAINT,
    Chi2Rows,
    KLRows,
    Part,
    Place,
    Rows,
    VertexRows,
    few,
)
from drago.oracles.rounds.tilt import tilt_terms

Sums = tuple[float, float, float]

# Of losses and thresholds this share is rounding, at most.
_ROUNDING = 1e-12


class Spec(NamedTuple):
    """What a search is about.

    The kind of set, the price, the cap or the radius, the unit in which losses of a ball are
    measured, and the nominal weight of every row where that is the same.
    """

    kind: int
    c: float
    bound: float
    unit: float = 1.0
    mass: float = math.nan

    def rows(self, u: np.ndarray, p: np.ndarray | None) -> Rows:
        """The rows of a search; weights of None are the equal ones."""
        parts: list[Part] = [(u, p)]
        found: Rows
        if self.kind == VERTEX:
            found = VertexRows(parts, 1.0, self.bound)
        elif self.kind == BALL:
            found = BallRows(parts, self.c, self.bound, self.unit)
        else:
            kind = Chi2Rows if self.kind == CHI2 else KLRows
            found = kind(parts, max(self.c, 1e-300), self.bound)
        if p is None:
            found.unit = self.mass
        return found

    def of(self, part: Any, u: np.ndarray) -> Rows:
        """Those of a part."""
        return self.rows(u, part.p if math.isnan(self.mass) else None)

    def bottom(self, *thresholds: float) -> float:
        """A loss below which rows weigh nothing, at these thresholds and between them."""
        below = -FAINT * self.c if self.kind == KL else _ROUNDING * max(self.c, self.unit)
        return min(thresholds) - below - _ROUNDING * max(map(abs, thresholds))

    def above(self, part: Any, u: np.ndarray, bottom: float) -> tuple[Rows, np.ndarray | None]:
        """The rows of a part from a loss on, and which they are; None where most are above it."""
        above = u >= bottom
        if 2 * np.count_nonzero(above) > u.size:
            return self.of(part, u), None
        above[0] = True  # there is always a row
        index = np.flatnonzero(above)
        return self.rows(u[index], part.p[index] if math.isnan(self.mass) else None), index


class Open(NamedTuple):
    """Rows between two thresholds, ties as one, and the sums at the upper one of those settled."""

    u: np.ndarray
    p: np.ndarray | None
    full: float
    sums: Sums


NOTHING = Open(np.empty(0), None, 0.0, (0.0, 0.0, 0.0))


class Look(NamedTuple):
    """The ends of the losses, sums at some thresholds, and open rows if these are few."""

    least: float
    most: float
    sums: list[Sums]
    open: Open | None


def look(
    part: Any,
    u: np.ndarray,
    spec: Spec,
    places: Sequence[Place],
    bracket: tuple[Place, Place] | None,
    limit: int,
) -> Look:
    """What a part tells; of more open rows than `limit` nothing."""
    least, most = float(u.min()), float(u.max())
    if not (math.isfinite(least) and math.isfinite(most)):
        return Look(math.nan, math.nan, [(0.0, 0.0, 0.0)] * len(places), None)
    tried = [place.ref for place in (*places, *(bracket or ()))]
    rows = spec.above(part, u, spec.bottom(*tried or [least]))[0]
    sums = [rows.sums(place)[2:] for place in places]
    return Look(least, most, sums, None if bracket is None else _opened(rows, *bracket, limit))


def _opened(rows: Rows, low: Place, high: Place, limit: int) -> Open | None:
    rows.close(low, high)
    if rows.open:
        u = np.concatenate([some for some, _ in rows.open])
        weights = [p for _, p in rows.open if p is not None]
        p = np.concatenate(weights) if weights else None
    else:
        u, p = np.empty(0), None if rows.parts[0][1] is None else np.empty(0)
    if u.size > limit:
        values, place = np.unique(u, return_inverse=True)
        if values.size > limit:
            return None
        p = np.bincount(place, np.full(u.size, rows.unit) if p is None else p, values.size)
        u = values
    return Open(u, p, rows.full, rows.base[2:])


def joined(spec: Spec, found: Sequence[Open], high: Place) -> Rows:
    """The rows of a search whose settled rows are on other machines."""
    weighted = any(each.p is not None for each in found)
    u = np.concatenate([each.u for each in found])
    p = None
    if weighted:
        p = np.concatenate(
            [np.full(each.u.size, spec.mass) if each.p is None else each.p for each in found]
        )
    rows = spec.rows(np.zeros(1 << 14), None)
    rows.parts, rows.size = [(u, p)], u.size
    rows.open = list(few(rows.parts))
    rows.unit = spec.mass if p is None else 1.0
    rows.full = sum(each.full for each in found)
    sums = np.sum([each.sums for each in found], axis=0).tolist()
    rows.base = Place(high.ref, high.x, *sums)
    return rows


def spread_at(part: Any, u: np.ndarray, spec: Spec, found: Place) -> np.ndarray:
    """The sums that the weights of a ball are made of, see `BallRows.around`."""
    rows = spec.of(part, u)
    assert isinstance(rows, BallRows)
    return np.array(rows.around(found))


def weigh(
    part: Any,
    u: np.ndarray,
    spec: Spec,
    found: Place,
    bottom: float,
    around: tuple[float, float, float] | None = None,
) -> np.ndarray:
    """The weights of a part's rows at the threshold that was found: 0 below `bottom`."""
    rows, index = spec.above(part, u, bottom)
    if isinstance(rows, BallRows):
        rows.known_around = around
    q = rows.weights(found, np.empty)[0][0]
    if index is None:
        return q
    out = np.zeros(u.size)
    out[index] = q
    return out


def log_ratio(part: Any, u: np.ndarray, spec: Spec, found: Place) -> np.ndarray:
    """``log(q/p)`` of a capped simplex with the KL divergence, finite for the faintest weights."""
    level = max(1.0 - found.a, 0.0) / found.b if found.b > 0.0 else 1.0
    most = math.log(spec.bound)
    out = (u - found.ref) * (1.0 / max(spec.c, 1e-300)) + found.x
    free = math.log(level) if level > 0.0 else 0.0
    return np.minimum(np.where(out > 0.0, out, out + free), 0.0) + most


# ------------------------------------------------------------------------ without a threshold


def top(part: Any, u: np.ndarray, c: float) -> tuple[float, float]:
    """The greatest loss, and ``sum p exp((u - greatest) / c)``; for ``c = 0`` the mass there."""
    greatest = float(u.max())
    return greatest, float(np.dot(part.p, _softly(u, greatest, c)))


def soft(part: Any, u: np.ndarray, greatest: float, c: float, total: float) -> np.ndarray:
    """``p exp((u - greatest) / c) / total``."""
    return part.p * _softly(u, greatest, c) / total


def log_soft(part: Any, u: np.ndarray, greatest: float, c: float, total: float) -> np.ndarray:
    """The logarithm of the same without ``p``."""
    return (u - greatest) / c - math.log(total)


def _softly(u: np.ndarray, greatest: float, c: float) -> np.ndarray:
    if c == 0.0:
        return (u == greatest).astype(np.float64)
    exponent = (u - greatest) / c
    return np.where(exponent >= FAINT, np.exp(np.maximum(exponent, FAINT)), 0.0)


# ---------------------------------------------------------------------------------- KL balls


def middle(part: Any, u: np.ndarray, about: float) -> tuple[float, float, float]:
    """The greatest loss, the sum of ``p`` and that of ``p (u - about)``."""
    return float(u.max()), float(part.p.sum()), float(np.dot(part.p, u - about))


def apart(part: Any, u: np.ndarray, centre: float) -> np.ndarray:
    """The sums of ``p (u - centre)`` and of its square."""
    d = u - centre
    return np.array([np.dot(part.p, d), np.dot(part.p, d * d)])


def tied(part: Any, u: np.ndarray, greatest: float) -> float:
    """The weight of the greatest loss."""
    return float(part.p[u == greatest].sum())


def tilt_sums(
    part: Any, u: np.ndarray, centre: float, offset: float, theta: float, near: bool
) -> np.ndarray:
    """A part's share of `drago.oracles.rounds.tilt.Tilt.sums`."""
    out = np.zeros(3)
    for some, p in few([(u, part.p)]):
        assert p is not None
        terms = tilt_terms((some - centre) - offset, theta, near)
        out += [float(np.dot(p, each)) for each in terms]
    return out
