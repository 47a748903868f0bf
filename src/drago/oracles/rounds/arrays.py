"""The threshold search of `drago.oracles.search` on processors, in NumPy; for rows in parts too.

Thresholds are tried one after another on the rows that are still open: after a pass or two they are
few, see `drago.oracles.rounds.rows`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from drago.oracles.rounds.ball import BallRows
from drago.oracles.rounds.rows import (
    FAINT,
    Chi2Rows,
    KLRows,
    Part,
    Place,
    Room,
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
    """The weights of each part, the threshold, how far it moved, and the rounds that it took.

    Of a ball also what the losses were divided by: the price and the multiplier of the radius.
    """

    q: list[np.ndarray]
    threshold: float
    moved: float
    passes: int
    effective: float = math.nan


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
        lowest, highest = rows.inner(low, high)
        step = Place(highest) if lowest <= highest else None
        if within(step) and (rounds % 2 == 1 or lowest == highest):
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
    lowest, highest = rows.inner(low, high)
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
        if not low.before(high, rows.c) or (vertex and rows.inner(low, high)[1] == -math.inf):
            break
        if low.known and high.known and rows.size > _SAMPLE:
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
    found = search_parts(kind, [(losses, shares)], c, bound, start)
    if live is None:
        return found
    q = np.where(live, 0.0, found.q[0][0] * 0.0)  # NaN everywhere or nowhere
    q[live] = found.q[0]
    return found._replace(q=[q])


def search_parts(
    kind: int,
    parts: Sequence[Part],
    c: float,
    bound: float,
    start: tuple[float, float] | None,
    room: Room = np.empty,
) -> Found:
    """The same for rows in parts, all of positive weight.

    Parameters
    ----------
    parts : sequence of pairs of arrays
        Losses and weights of each; weights of None are equal ones.
    room : callable
        Gives an array for the weights of a part.
    """
    with np.errstate(all="ignore"):
        return _search(kind, parts, c, bound, start, room)


def _search(
    kind: int,
    parts: Sequence[Part],
    c: float,
    bound: float,
    start: tuple[float, float] | None,
    room: Room,
) -> Found:
    ends = [(float(u.min()), float(u.max())) for u, _ in parts]
    if not all(math.isfinite(end) for pair in ends for end in pair):
        return Found([np.full(u.size, math.nan) for u, _ in parts], math.nan, math.nan, 1)
    least, most = min(end[0] for end in ends), max(end[1] for end in ends)
    if bound == math.inf and kind in (VERTEX, KL):
        return _whole_simplex(kind, parts, c, most, room)
    rows: Rows
    if kind == VERTEX:
        rows = VertexRows(parts, 1.0, bound)
    elif kind == BALL:
        rows = BallRows(parts, c, bound, most - least)
    else:
        # Below this the reciprocal overflows.
        rows = (Chi2Rows if kind == CHI2 else KLRows)(parts, max(c, 1e-300), bound)
    old, moved = start or (math.nan, math.nan)
    if math.isfinite(old) and math.isfinite(moved):
        starts = [old, old + 0.5 * moved]
    else:
        old = math.nan
        some, w = _sample(parts)
        starts = [t if math.isfinite(t) else 0.0 for t in rows.starts(some, w / w.sum(), most)]
        moved = 0.5 * abs(starts[1] - starts[0])
    low, high = rows.ends(least, most)
    found, rounds = _find(rows, Place(low), Place(high), [Place(t) for t in starts])
    q, threshold = rows.weights(found, room)
    moved = threshold - old if old == old else moved
    return Found(q, threshold, moved, rounds, rows.effective)


def _whole_simplex(kind: int, parts: Sequence[Part], c: float, most: float, room: Room) -> Found:
    """Without a cap the greatest loss takes all, or softly what it can."""
    out, total = [], 0.0
    for u, p in parts:
        exponent = np.where(u == most, 0.0, -math.inf) if kind == VERTEX else (u - most) / c
        q = room(u.size)
        np.exp(np.maximum(exponent, FAINT), out=q)
        q *= exponent >= FAINT
        if p is not None:
            q *= p
        total += float(q.sum())
        out.append(q)
    for q in out:
        q /= total
    return Found(out, most, 0.0, 1)


def _sample(parts: Sequence[Part]) -> tuple[np.ndarray, np.ndarray]:
    """Evenly spaced rows, and their weights."""
    ends = np.cumsum([u.size for u, _ in parts])
    chosen = np.arange(_SAMPLE) * int(ends[-1]) // _SAMPLE
    of = np.searchsorted(ends, chosen, side="right")
    at = chosen - (ends - [u.size for u, _ in parts])[of]
    u = np.array([parts[k][0][i] for k, i in zip(of, at)])
    if parts[0][1] is None:
        return u, np.full(_SAMPLE, 1.0)
    return u, np.array([parts[k][1][i] for k, i in zip(of, at)])
