"""The threshold search of `drago.oracles.search` on processors, in NumPy.

Thresholds are tried one after another on the rows that are still open: after a pass or two they are
few, see `drago.oracles.search.rows`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from drago.oracles.search.rows import (
    FAINT,
    BallRows,
    Chi2Rows,
    KLRows,
    Place,
    Rows,
    VertexRows,
)

VERTEX, CHI2, KL, BALL = 0, 1, 2, 3
_SAMPLE = 256
# After so many rounds, which nothing but rounding can take, the best threshold so far is taken.
_ROUNDS = 300
# In a bracket of so many units of ``c`` the sum of the weights is a flight of steps, at the rows.
_STEEP = 1e4


class Found(NamedTuple):
    """The weights, the threshold, how far it moved, and the rounds that it took."""

    q: np.ndarray
    threshold: float
    moved: float
    passes: int


def _number(x: float) -> int:
    """The place of a float among all floats."""
    bits = int(np.float64(x).view(np.int64))
    return bits if bits >= 0 else -(2**63) - bits


def _halfway(a: float, b: float) -> float:
    """As many floats below as above, between `a` and `b`."""
    middle = (_number(a) + _number(b)) // 2
    return float(np.int64(middle if middle >= 0 else -(2**63) - middle).view(np.float64))


# --------------------------------------------------------------------------------- sums over rows


def _share(rows: Rows, low: Place, high: Place, units: float) -> float:
    """The share of the way from `low` to `high` at which the weights should sum to 1."""
    first, last = rows.total(low), rows.total(high)
    first_slope, last_slope = rows.slope(low), rows.slope(high)
    if isinstance(rows, KLRows):
        if not (first > 0.0 and last > 0.0):
            return math.nan
        first_slope, last_slope = first_slope / first, last_slope / last
        first, last = math.log(first), math.log(last)
    else:
        first, last = first - 1.0, last - 1.0
    drop = first - last
    if not 0.0 < drop < math.inf:
        return math.nan
    z = first / drop
    if first_slope > 0.0 and last_slope > 0.0:
        g, h = drop / (first_slope * units), drop / (last_slope * units)
        share = z * z * (3.0 - 2.0 * z) + z * (1.0 - z) * (g * (1.0 - z) - h * z)
        if 0.0 < share < 1.0:
            return share
    return z


def _next(rows: Rows, low: Place, high: Place, slow: int, rounds: int) -> list[Place]:
    """The next two thresholds; `slow` counts the rounds in which the bracket hardly shrank."""

    def within(place: Place | None) -> bool:
        return place is not None and low.before(place, rows.c) and place.before(high, rows.c)

    units = (high.ref - low.ref) * rows.inverse + (low.x - high.x)
    half = Place(_halfway(low.ref, high.ref))
    if not within(half):  # neighbouring floats
        half = Place(high.ref, high.x + 0.5 * units)
    middle = Place(0.5 * low.ref + 0.5 * high.ref)
    if not within(middle):
        middle = half
    if not high.known or rows.total(low) - 1.0 < 1.0 - rows.total(high):
        near, far = low, high
    else:
        near, far = high, low
    first, second = rows.newton(near), rows.newton(far)
    if not within(first):
        first = second
    if slow % 3 != 1:
        share = _share(rows, low, high, units) if low.known and high.known else math.nan
        second = rows.moved(low.ref, low.x - share * units) if share == share else None
    if slow > 0 and slow % 3 != 1:
        second = half if slow % 3 == 2 else middle
    if slow > 0 or units > _STEEP:
        inner = rows.inner(low, high)
        step = Place(float(inner.max())) if inner.size else None
        if within(step) and (rounds % 2 == 1 or inner.min() == inner.max()):
            second = step
    # No more than 64 times.
    if rounds % 4 == 0:
        second = half
    chosen = (first if within(first) else half, second if within(second) else middle)
    return [place for place in chosen if place is not None]


def _next_vertex(rows: Rows, low: Place, high: Place, slow: int, rounds: int) -> list[Place]:
    half, width = _halfway(low.ref, high.ref), high.ref - low.ref
    share = _share(rows, low, high, width) if low.known and high.known else math.nan
    guess = low.ref + width * share if share == share else 0.5 * low.ref + 0.5 * high.ref
    s, t = guess - 0.0625 * width, guess + 0.0625 * width
    inner = rows.inner(low, high)
    lowest, highest = float(inner.min()), float(inner.max())
    if lowest == highest:
        s, t = lowest, half
    elif rounds % 3 == 0:
        s, t = guess, half
    elif slow > 0:
        s, t = lowest, highest
    # The lower end may itself be the threshold.
    s = s if low.ref <= s < high.ref else low.ref
    t = t if low.ref < t < high.ref else half
    return [Place(s), Place(t)]


def _find(rows: Rows, low: Place, high: Place, trials: list[Place]) -> tuple[Place, int]:
    """The threshold with its sums, and the rounds it took."""
    vertex = isinstance(rows, VertexRows)
    width, slow, rounds = math.inf, 0, 0
    while rounds < _ROUNDS:
        rounds += 1
        for trial in trials:
            place = rows.sums(trial)
            if rows.hit(place):
                return place, rounds
            up = rows.total(place) >= 1.0
            if up and (low.before(place, rows.c) or (low.ref == place.ref and not low.known)):
                low = place
            if not up and (
                place.before(high, rows.c) or (high.ref == place.ref and not high.known)
            ):
                high = place
        # Nothing is left between the ends: what is left to decide is rounding.
        if not low.before(high, rows.c) or (vertex and not rows.inner(low, high).size):
            break
        if low.known and high.known and rows.u.size > _SAMPLE:
            rows.close(low, high)
        slow = slow + 1 if high.ref - low.ref > 0.25 * width else 0
        width = high.ref - low.ref
        trials = (_next_vertex if vertex else _next)(rows, low, high, slow, rounds)
    return (high if high.known else low), rounds


def search(
    kind: int,
    u: np.ndarray,
    p: np.ndarray | None,
    c: float,
    bound: float,
    start: tuple[float, float] | None,
) -> Found:
    """See `drago.oracles.search.weights`; `start` is what its `memory` holds."""
    live = None
    losses, shares = u, p
    if p is not None and not (p > 0.0).all():
        live = p > 0.0
        losses, shares = u[live], p[live]
    with np.errstate(all="ignore"):
        found = _search(kind, losses, shares, c, bound, start)
    if live is None:
        return found
    q = np.where(live, 0.0, found.q[0] * 0.0)  # NaN everywhere or nowhere
    q[live] = found.q
    return found._replace(q=q)


def _search(
    kind: int,
    u: np.ndarray,
    p: np.ndarray | None,
    c: float,
    bound: float,
    start: tuple[float, float] | None,
) -> Found:
    least, most = float(u.min()), float(u.max())
    if not (math.isfinite(least) and math.isfinite(most)):
        return Found(np.full(u.size, math.nan), math.nan, math.nan, 1)
    if bound == math.inf and kind in (VERTEX, KL):
        exponent = np.where(u == most, 0.0, -math.inf) if kind == VERTEX else (u - most) / c
        q = np.exp(np.maximum(exponent, FAINT)) * (exponent >= FAINT)
        q = q if p is None else q * p
        return Found(q / q.sum(), most, 0.0, 1)
    rows: Rows
    if kind == VERTEX:
        rows = VertexRows(u, p, 1.0, bound)
    elif kind == BALL:
        rows = BallRows(u, p, c, bound, most - least)
    else:
        # Below this the reciprocal overflows.
        rows = (Chi2Rows if kind == CHI2 else KLRows)(u, p, max(c, 1e-300), bound)
    old, moved = start or (math.nan, math.nan)
    if math.isfinite(old) and math.isfinite(moved):
        starts = [old, old + 0.5 * moved]
    else:
        old = math.nan
        chosen = np.arange(_SAMPLE) * u.size // _SAMPLE
        w = np.full(_SAMPLE, 1.0) if p is None else p[chosen]
        starts = [t if math.isfinite(t) else 0.0 for t in rows.starts(u[chosen], w / w.sum())]
        moved = 0.5 * abs(starts[1] - starts[0])
    low, high = rows.ends(least, most)
    found, rounds = _find(rows, Place(low), Place(high), [Place(t) for t in starts])
    q, threshold = rows.weights(found)
    return Found(q, threshold, threshold - old if old == old else moved, rounds)
