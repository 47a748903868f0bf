"""The threshold search of `drago.torch_engine._search` on processors, in NumPy.

Thresholds are tried one after another on the rows that are still open. Rows that are between their
bounds at any threshold of the bracket are replaced by their sums: after a pass or two the open rows
are few.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

VERTEX, CHI2, KL, BALL = 0, 1, 2, 3
_SAMPLE = 256
# Rows at a time: temporaries stay in the cache.
_CHUNK = 1 << 14
# After so many rounds, which nothing but rounding can take, the best threshold so far is taken.
_ROUNDS = 300
# What the sum of the weights may differ from 1 by: its own rounding.
_CLOSE = 4e-15
# Exponents below the first give nothing, slowly; below the second, nothing that a sum of 1 would
# notice.
_FAINT, _LITTLE = -700.0, -60.0
# In a bracket of so many units of ``c`` the sum of the weights is a flight of steps, at the rows.
_STEEP = 1e4
# Losses of a ball that differ by less, in units of their spread, are tied: squares would vanish.
_TIED = 1e-150
_NAN, _INF = math.nan, math.inf


class Found(NamedTuple):
    """The weights, the threshold, how far it moved, and the rounds that it took."""

    q: np.ndarray
    threshold: float
    moved: float
    passes: int


class _Place(NamedTuple):
    """The threshold ``ref - c x`` and, where they are known, the sums of `_Rows` there."""

    ref: float
    x: float = 0.0
    a: float = _NAN
    b: float = _NAN
    d: float = 0.0

    def before(self, other: _Place, c: float) -> bool:
        return (other.ref - self.ref) / c + (self.x - other.x) > 0.0

    @property
    def known(self) -> bool:
        return self.a == self.a


def _number(x: float) -> int:
    """The place of a float among all floats."""
    bits = int(np.float64(x).view(np.int64))
    return bits if bits >= 0 else -(2**63) - bits


def _halfway(a: float, b: float) -> float:
    """As many floats below as above, between `a` and `b`."""
    middle = (_number(a) + _number(b)) // 2
    return float(np.int64(middle if middle >= 0 else -(2**63) - middle).view(np.float64))


# --------------------------------------------------------------------------------- sums over rows


class _Rows:
    """Rows that are open, and the sums of the others.

    Attributes
    ----------
    u, p : array
        Losses and weights of the open rows; `p` is None for equal weights.
    c : float
        The unit of the losses.
    full : float
        The mass of the rows that have the cap, for any threshold in question.
    base : _Place
        A threshold, and the sums there of the rows that are between their bounds.
    """

    def __init__(self, u: np.ndarray, p: np.ndarray | None, c: float, cap: float) -> None:
        self.u, self.p, self.c, self.cap = u, p, c, cap
        self.every_u, self.every_p = u, p
        self.unit = 1.0 / u.size if p is None else 1.0
        self.inverse = 1.0 / c
        self.full, self.base = 0.0, _Place(0.0, 0.0, 0.0, 0.0)
        self._room = np.empty(min(_CHUNK, u.size))

    # What a kind has to say.

    def ends(self, least: float, most: float, slack: float = 2.0) -> tuple[float, float]:
        """Thresholds at which the weights sum to 1 or more, and to less than 1."""
        raise NotImplementedError

    def starts(self, s: np.ndarray, w: np.ndarray) -> list[float]:
        """The first thresholds to try, from a sample of losses and their weights."""
        ratio = self.table(s - s[:, None])
        total = ratio @ w
        root = int(np.argmax(np.where(total >= 1.0, s, -_INF)))
        error = math.sqrt(float(((w * (ratio[root] - 1.0)) ** 2).sum()))
        low, high = self.ends(float(s.min()), float(s.max()), 1.0)
        return [
            float(np.where(total >= 1.0 + error, s, low).max()),
            float(np.where(total < 1.0 - error, s, high).min()),
        ]

    def table(self, apart: np.ndarray) -> np.ndarray:
        """``q / p`` from the distances of losses to thresholds."""
        raise NotImplementedError

    def add(self, u: np.ndarray, part: slice, place: _Place) -> tuple[float, float, float]:
        """What rows add to the sums of a threshold."""
        raise NotImplementedError

    def carried(self, place: _Place) -> tuple[float, float, float]:
        """The sums at `place` of the rows that are between their bounds."""
        return 0.0, 0.0, 0.0

    def settle(
        self, u: np.ndarray, part: slice, low: _Place, high: _Place, reach: float
    ) -> tuple[np.ndarray, tuple[float, float, float]]:
        """Which rows stay open between two thresholds, `reach` units apart; and the sums at `high`
        of those that are between their bounds."""
        raise NotImplementedError

    def total(self, place: _Place) -> float:
        """The sum of the weights."""
        return place.a

    def slope(self, place: _Place) -> float:
        """How fast it grows with ``x``."""
        return place.b

    def newton(self, place: _Place) -> _Place | None:
        """Where the weights sum to 1 if no row reaches or leaves a bound."""
        raise NotImplementedError

    def weights(self, found: _Place) -> tuple[np.ndarray, float]:
        """Of all rows; and the threshold."""
        raise NotImplementedError

    # What is the same for all.

    def hit(self, place: _Place) -> bool:
        lacks = abs(1.0 - self.total(place))
        return lacks <= _CLOSE or lacks <= 1e-14 * self.slope(place)

    def sums(self, place: _Place) -> _Place:
        a, b, d = self.carried(place)
        if self.full > 0.0:
            a += self.cap * self.full
        for start in range(0, self.u.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            more = self.add(self.u[part], part, place)
            a, b, d = a + more[0], b + more[1], d + more[2]
        return _Place(place.ref, place.x, a, b, d)

    def close(self, low: _Place, high: _Place) -> None:
        """Leave behind what is settled for any threshold between `low` and `high`."""
        a, b, d = self.carried(high)
        reach = (high.ref - low.ref) * self.inverse + (low.x - high.x)
        kept = []
        for start in range(0, self.u.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            keep, more = self.settle(self.u[part], part, low, high, reach)
            kept.append(keep)
            a, b, d = a + more[0], b + more[1], d + more[2]
        self.base = _Place(high.ref, high.x, a, b, d)
        keep = np.concatenate(kept)
        self.u = np.compress(keep, self.u)
        if self.p is not None:
            self.p = np.compress(keep, self.p)

    def inner(self, low: _Place, high: _Place) -> np.ndarray:
        return self.u[(self.u >= low.ref) & (self.u < high.ref)]

    def scaled(self, u: np.ndarray, place: _Place) -> np.ndarray:
        r = np.subtract(u, place.ref, out=self._room[: u.size])
        r *= self.inverse
        r += place.x
        return r

    def lowered(self, u: np.ndarray, low: _Place) -> np.ndarray:
        """As `scaled`, in memory of its own."""
        return (u - low.ref) * self.inverse + low.x

    def further(self, place: _Place) -> float:
        """From the base down to `place`, in units of ``c``."""
        return (self.base.ref - place.ref) * self.inverse + (place.x - self.base.x)

    def moved(self, ref: float, x: float) -> _Place:
        """``ref - c x`` as a float and what it lacks."""
        moved = ref - self.c * x
        return _Place(moved, x - (ref - moved) * self.inverse if math.isfinite(moved) else _NAN)

    def mass(self, chosen: np.ndarray, part: slice) -> float:
        if self.p is None:
            return self.unit * int(np.count_nonzero(chosen))
        return float((self.p[part] * chosen).sum())

    def sum(self, values: np.ndarray, part: slice) -> float:
        if self.p is not None:
            values = values * self.p[part]
        return self.unit * float(values.sum())

    def written(self, ratio: Callable[[np.ndarray], np.ndarray | None]) -> np.ndarray:
        """`ratio` turns losses, in place or not, into ``q / p``."""
        q = self.every_u.copy()
        for start in range(0, q.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            r = q[part]
            other = ratio(r)
            if other is not None:
                r[:] = other
            r *= self.unit if self.every_p is None else self.every_p[part]
        return q


class _Vertex(_Rows):
    """Sums: the weights of the rows above, over the cap where it is met, and of those tied."""

    def ends(self, least: float, most: float, slack: float = 2.0) -> tuple[float, float]:
        return least, math.nextafter(most, _INF)

    def table(self, apart: np.ndarray) -> np.ndarray:
        return self.cap * (apart >= 0.0)

    def add(self, u: np.ndarray, part: slice, place: _Place) -> tuple[float, float, float]:
        above, tied = self.mass(u > place.ref, part), self.mass(u == place.ref, part)
        return self.cap * above, self.cap * tied, 0.0

    def settle(
        self, u: np.ndarray, part: slice, low: _Place, high: _Place, reach: float
    ) -> tuple[np.ndarray, tuple[float, float, float]]:
        full = u >= high.ref
        self.full += self.mass(full, part)
        return ~full & (u >= low.ref), (0.0, 0.0, 0.0)

    def total(self, place: _Place) -> float:
        return place.a + place.b

    def hit(self, place: _Place) -> bool:
        return place.a + place.b >= 1.0 > place.a

    def weights(self, found: _Place) -> tuple[np.ndarray, float]:
        full = self.cap / max(found.a, 1.0)
        level = self.cap * max(1.0 - found.a, 0.0) / found.b if found.b > 0.0 else 0.0

        def ratio(u: np.ndarray) -> np.ndarray:
            return full * (u > found.ref) + level * (u == found.ref)

        return self.written(ratio), found.ref


class _Chi2(_Rows):
    """Sums: the weights, and the mass of the rows between their bounds."""

    def ends(self, least: float, most: float, slack: float = 2.0) -> tuple[float, float]:
        return math.nextafter(least - slack * self.c, -_INF), math.nextafter(most, _INF)

    def table(self, apart: np.ndarray) -> np.ndarray:
        return np.clip(apart * self.inverse, 0.0, self.cap)

    def add(self, u: np.ndarray, part: slice, place: _Place) -> tuple[float, float, float]:
        r = self.scaled(u, place)
        free = self.mass((r >= 0.0) & (r < self.cap), part)
        return self.sum(np.clip(r, 0.0, self.cap, out=r), part), free, 0.0

    def carried(self, place: _Place) -> tuple[float, float, float]:
        if self.base.b == 0.0:
            return 0.0, 0.0, 0.0
        return self.base.a + self.further(place) * self.base.b, self.base.b, 0.0

    def settle(
        self, u: np.ndarray, part: slice, low: _Place, high: _Place, reach: float
    ) -> tuple[np.ndarray, tuple[float, float, float]]:
        r = self.scaled(u, high)
        full = r >= self.cap
        self.full += self.mass(full, part)
        lowered = self.lowered(u, low)
        free = (r >= 0.0) & (lowered <= self.cap) & ~full
        keep = ~(free | full | (lowered <= 0.0))
        mass = self.mass(free, part)
        r *= free
        return keep, (self.sum(r, part), mass, 0.0)

    def newton(self, place: _Place) -> _Place | None:
        if not place.b > 0.0:
            return None
        return self.moved(place.ref, place.x + (1.0 - place.a) / place.b)

    def weights(self, found: _Place) -> tuple[np.ndarray, float]:
        shift = found.x + ((1.0 - found.a) / found.b if found.b > 0.0 else 0.0)

        def ratio(u: np.ndarray) -> None:
            u -= found.ref
            u *= self.inverse
            u += shift
            np.clip(u, 0.0, self.cap, out=u)

        return self.written(ratio), found.ref - self.c * shift


class _KL(_Rows):
    """Sums: the weights at the cap, and the others."""

    def ends(self, least: float, most: float, slack: float = 2.0) -> tuple[float, float]:
        above = most + slack * self.c * math.log(self.cap)
        return math.nextafter(least, -_INF), math.nextafter(above, _INF)

    def table(self, apart: np.ndarray) -> np.ndarray:
        return self.cap * np.exp(np.clip(apart * self.inverse, _FAINT, 0.0))

    def add(self, u: np.ndarray, part: slice, place: _Place) -> tuple[float, float, float]:
        r = self.scaled(u, place)
        over = r > 0.0
        some = (r >= _FAINT) & ~over
        np.exp(np.clip(r, _FAINT, 0.0, out=r), out=r)
        r *= some
        return self.cap * self.mass(over, part), self.cap * self.sum(r, part), 0.0

    def carried(self, place: _Place) -> tuple[float, float, float]:
        if self.base.b == 0.0:
            return 0.0, 0.0, 0.0
        return 0.0, self.base.b * math.exp(self.further(place)), 0.0

    def settle(
        self, u: np.ndarray, part: slice, low: _Place, high: _Place, reach: float
    ) -> tuple[np.ndarray, tuple[float, float, float]]:
        r = self.scaled(u, high)
        full = r >= 0.0
        self.full += self.mass(full, part)
        lowered = self.lowered(u, low)
        left = full | (lowered < _LITTLE)
        lifted = 0.0
        # Over a longer way the factor that carries the sum from one threshold to another is rough.
        if reach <= 4.0:
            free = (lowered <= 0.0) & ~full
            left |= free
            free &= r >= _FAINT
            lifted = self.cap * self.sum(np.exp(np.clip(r, _FAINT, 0.0)) * free, part)
        return ~left, (0.0, lifted, 0.0)

    def total(self, place: _Place) -> float:
        return place.a + place.b

    def newton(self, place: _Place) -> _Place | None:
        if not (place.a < 1.0 and place.b > 0.0):
            return None
        return self.moved(place.ref, place.x + math.log(1.0 - place.a) - math.log(place.b))

    def weights(self, found: _Place) -> tuple[np.ndarray, float]:
        level = max(1.0 - found.a, 0.0) / found.b if found.b > 0.0 else 0.0

        def ratio(u: np.ndarray) -> None:
            u -= found.ref
            u *= self.inverse
            u += found.x
            factor = np.where(u > 0.0, 1.0, level * (u >= _FAINT))
            np.exp(np.clip(u, _FAINT, 0.0, out=u), out=u)
            u *= factor
            np.minimum(u, 1.0, out=u)
            u *= self.cap

        return self.written(ratio), found.ref


class _Ball(_Rows):
    """Sums: of ``p r``, ``p`` and ``p r^2`` of the rows above the threshold.

    The unit of ``r`` is the spread of the losses, or the price. The rows get
    ``q = p r / sum(p r)``. With ``rho`` the radius, this lies in the ball if
    ``sum(p r^2) <= (1 + 2 rho) sum(p r)^2``, and is the answer of the whole simplex if
    ``sum(p r) = c``: of the two thresholds the lower one is meant.
    """

    def __init__(
        self, u: np.ndarray, p: np.ndarray | None, c: float, radius: float, spread: float
    ) -> None:
        super().__init__(u, p, max(spread, c) or 1.0, _INF)
        self.price, self.radius = c * self.inverse, radius

    def ends(self, least: float, most: float, slack: float = 2.0) -> tuple[float, float]:
        down = max(2.0 * self.price, 1.0 / math.sqrt(2.0 * self.radius))
        return math.nextafter(least - self.c * down, -_INF), math.nextafter(most, _INF)

    def starts(self, s: np.ndarray, w: np.ndarray) -> list[float]:
        r = np.maximum((s - s[:, None]) * self.inverse, 0.0)
        first, second = r @ w, (r * r) @ w
        room = (1.0 + 2.0 * self.radius) * first * first >= second
        low, _ = self.ends(float(s.min()), float(s.max()))
        fits = room & (first >= self.price) & (first > 0.0)
        return [float(self.every_u.max()), float(np.where(fits, s, low).max())]

    def add(self, u: np.ndarray, part: slice, place: _Place) -> tuple[float, float, float]:
        r = self.scaled(u, place)
        mass = self.mass(r >= 0.0, part)
        np.maximum(r, 0.0, out=r)
        return self.sum(r, part), mass, self.sum(r * r, part)

    def scaled(self, u: np.ndarray, place: _Place) -> np.ndarray:
        r = super().scaled(u, place)
        r *= np.abs(r) >= _TIED
        return r

    def carried(self, place: _Place) -> tuple[float, float, float]:
        a, b, d = self.base.a, self.base.b, self.base.d
        if b == 0.0:
            return 0.0, 0.0, 0.0
        x = self.further(place)
        return a + x * b, b, d + x * (2.0 * a + x * b)

    def settle(
        self, u: np.ndarray, part: slice, low: _Place, high: _Place, reach: float
    ) -> tuple[np.ndarray, tuple[float, float, float]]:
        r = self.scaled(u, high)
        free = r >= 0.0
        keep = ~free & (self.lowered(u, low) > 0.0)
        mass = self.mass(free, part)
        r *= free
        return keep, (self.sum(r, part), mass, self.sum(r * r, part))

    def total(self, place: _Place) -> float:
        if not place.a > 0.0:
            return 0.0
        inside = self.inside(place)
        return min(inside, place.a / self.price) if self.price > 0.0 else inside

    def inside(self, place: _Place) -> float:
        """1 on the boundary of the ball, more within."""
        return (1.0 + 2.0 * self.radius) * place.a * (place.a / place.d)

    def slope(self, place: _Place) -> float:
        return 0.0

    def hit(self, place: _Place) -> bool:
        # All weight on the largest loss is in the ball.
        return super().hit(place) or self.top(place)

    def top(self, place: _Place) -> bool:
        full = (1.0 + 2.0 * self.radius) * place.b >= 1.0
        return self.price < _TIED and place.a == 0.0 and place.b > 0.0 and full

    def newton(self, place: _Place) -> _Place | None:
        if not place.b > 0.0:
            return None
        mean = place.a / place.b
        room = (1.0 + 2.0 * self.radius) * place.b - 1.0
        if not room > 0.0:
            return None
        step = math.sqrt(max(place.d / place.b - mean * mean, 0.0) / room) - mean
        if self.price > 0.0:
            step = max(step, (self.price - place.a) / place.b)
        return self.moved(place.ref, place.x + step)

    def weights(self, found: _Place) -> tuple[np.ndarray, float]:
        if self.top(found):
            return self.written(lambda u: (self.lowered(u, found) > -_TIED) / found.b), found.ref
        mean = found.a / found.b
        if self.price > 0.0 and found.a / self.price <= self.inside(found):
            cut, over = mean + (self.price - found.a) / found.b, 1.0 / self.price
        else:
            # Around their mean: the variance of rows that are close to each other keeps its digits.
            self.u, self.p = self.every_u, self.every_p
            e, f, out = 0.0, 0.0, 0.0
            for start in range(0, self.u.size, _CHUNK):
                part = slice(start, start + _CHUNK)
                r = self.scaled(self.u[part], found)
                above = r >= 0.0
                out += self.mass(~above, part)
                r -= mean
                r *= above
                e, f = e + self.sum(r, part), f + self.sum(r * r, part)
            e, f = e / found.b, f / found.b
            variance, room = f - e * e, 2.0 * self.radius * found.b - out
            cut, over = mean, 1.0 / found.a
            if variance > 0.0 and room > 0.0:
                mean, cut = mean + e, math.sqrt(variance / room)
                over = 1.0 / (found.b * cut)

        def ratio(u: np.ndarray) -> None:
            u -= found.ref
            u *= self.inverse
            u += found.x
            u -= mean
            u += cut
            np.maximum(u, 0.0, out=u)
            u *= over

        return self.written(ratio), found.ref - self.c * (found.x + cut - mean)


# -------------------------------------------------------------------------------------- the search


def _share(rows: _Rows, low: _Place, high: _Place, units: float) -> float:
    """The share of the way from `low` to `high` at which the weights should sum to 1."""
    first, last = rows.total(low), rows.total(high)
    first_slope, last_slope = rows.slope(low), rows.slope(high)
    if isinstance(rows, _KL):
        if not (first > 0.0 and last > 0.0):
            return _NAN
        first_slope, last_slope = first_slope / first, last_slope / last
        first, last = math.log(first), math.log(last)
    else:
        first, last = first - 1.0, last - 1.0
    drop = first - last
    if not 0.0 < drop < _INF:
        return _NAN
    z = first / drop
    if first_slope > 0.0 and last_slope > 0.0:
        g, h = drop / (first_slope * units), drop / (last_slope * units)
        share = z * z * (3.0 - 2.0 * z) + z * (1.0 - z) * (g * (1.0 - z) - h * z)
        if 0.0 < share < 1.0:
            return share
    return z


def _next(rows: _Rows, low: _Place, high: _Place, slow: int, rounds: int) -> list[_Place]:
    """The next two thresholds; `slow` counts the rounds in which the bracket hardly shrank."""

    def within(place: _Place | None) -> bool:
        return place is not None and low.before(place, rows.c) and place.before(high, rows.c)

    units = (high.ref - low.ref) * rows.inverse + (low.x - high.x)
    half = _Place(_halfway(low.ref, high.ref))
    if not within(half):  # neighbouring floats
        half = _Place(high.ref, high.x + 0.5 * units)
    middle = _Place(0.5 * low.ref + 0.5 * high.ref)
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
        share = _share(rows, low, high, units) if low.known and high.known else _NAN
        second = rows.moved(low.ref, low.x - share * units) if share == share else None
    if slow > 0 and slow % 3 != 1:
        second = half if slow % 3 == 2 else middle
    if slow > 0 or units > _STEEP:
        inner = rows.inner(low, high)
        step = _Place(float(inner.max())) if inner.size else None
        if within(step) and (rounds % 2 == 1 or inner.min() == inner.max()):
            second = step
    # No more than 64 times.
    if rounds % 4 == 0:
        second = half
    chosen = (first if within(first) else half, second if within(second) else middle)
    return [place for place in chosen if place is not None]


def _next_vertex(rows: _Rows, low: _Place, high: _Place, slow: int, rounds: int) -> list[_Place]:
    half, width = _halfway(low.ref, high.ref), high.ref - low.ref
    share = _share(rows, low, high, width) if low.known and high.known else _NAN
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
    return [_Place(s), _Place(t)]


def _find(rows: _Rows, low: _Place, high: _Place, trials: list[_Place]) -> tuple[_Place, int]:
    """The threshold with its sums, and the rounds it took."""
    vertex = isinstance(rows, _Vertex)
    width, slow, rounds = _INF, 0, 0
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
    """See `drago.torch_engine._search.weights`; `start` is what its `memory` holds."""
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
        return Found(np.full(u.size, _NAN), _NAN, _NAN, 1)
    if bound == _INF and kind in (VERTEX, KL):
        exponent = np.where(u == most, 0.0, -_INF) if kind == VERTEX else (u - most) / c
        q = np.exp(np.maximum(exponent, _FAINT)) * (exponent >= _FAINT)
        q = q if p is None else q * p
        return Found(q / q.sum(), most, 0.0, 1)
    rows: _Rows
    if kind == VERTEX:
        rows = _Vertex(u, p, 1.0, bound)
    elif kind == BALL:
        rows = _Ball(u, p, c, bound, most - least)
    else:
        # Below this the reciprocal overflows.
        rows = (_Chi2 if kind == CHI2 else _KL)(u, p, max(c, 1e-300), bound)
    old, moved = start or (_NAN, _NAN)
    if math.isfinite(old) and math.isfinite(moved):
        starts = [old, old + 0.5 * moved]
    else:
        old = _NAN
        chosen = np.arange(_SAMPLE) * u.size // _SAMPLE
        w = np.full(_SAMPLE, 1.0) if p is None else p[chosen]
        starts = [t if math.isfinite(t) else 0.0 for t in rows.starts(u[chosen], w / w.sum())]
        moved = 0.5 * abs(starts[1] - starts[0])
    low, high = rows.ends(least, most)
    found, rounds = _find(rows, _Place(low), _Place(high), [_Place(t) for t in starts])
    q, threshold = rows.weights(found)
    return Found(q, threshold, threshold - old if old == old else moved, rounds)
