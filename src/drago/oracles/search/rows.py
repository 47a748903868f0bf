"""The rows of a threshold search: sums of their weights at a threshold, for each kind of set.

Rows that are between their bounds at any threshold of the bracket are replaced by their sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# Rows at a time: temporaries stay in the cache.
_CHUNK = 1 << 14
# What the sum of the weights may differ from 1 by: its own rounding.
_CLOSE = 4e-15
# Exponents below the first give nothing, slowly; below the second, nothing that a sum of 1 would
# notice.
FAINT, _LITTLE = -700.0, -60.0
# Losses of a ball that differ by less, in units of their spread, are tied: squares would vanish.
_TIED = 1e-150


class Place(NamedTuple):
    """The threshold ``ref - c x`` and, where they are known, the sums of `Rows` there."""

    ref: float
    x: float = 0.0
    a: float = math.nan
    b: float = math.nan
    d: float = 0.0

    def before(self, other: Place, c: float) -> bool:
        return (other.ref - self.ref) / c + (self.x - other.x) > 0.0

    @property
    def known(self) -> bool:
        return self.a == self.a


class Rows:
    """Rows that are open, and the sums of the others.

    Attributes
    ----------
    u, p : array
        Losses and weights of the open rows; `p` is None for equal weights.
    c : float
        The unit of the losses.
    full : float
        The mass of the rows that have the cap, for any threshold in question.
    base : Place
        A threshold, and the sums there of the rows that are between their bounds.
    """

    def __init__(self, u: np.ndarray, p: np.ndarray | None, c: float, cap: float) -> None:
        self.u, self.p, self.c, self.cap = u, p, c, cap
        self.every_u, self.every_p = u, p
        self.unit = 1.0 / u.size if p is None else 1.0
        self.inverse = 1.0 / c
        self.full, self.base = 0.0, Place(0.0, 0.0, 0.0, 0.0)
        self._room = np.empty(min(_CHUNK, u.size))

    # What a kind has to say.

    def ends(self, least: float, most: float, slack: float = 2.0) -> tuple[float, float]:
        """Thresholds at which the weights sum to 1 or more, and to less than 1."""
        raise NotImplementedError

    def starts(self, s: np.ndarray, w: np.ndarray) -> list[float]:
        """The first thresholds to try, from a sample of losses and their weights."""
        ratio = self.table(s - s[:, None])
        total = ratio @ w
        root = int(np.argmax(np.where(total >= 1.0, s, -math.inf)))
        error = math.sqrt(float(((w * (ratio[root] - 1.0)) ** 2).sum()))
        low, high = self.ends(float(s.min()), float(s.max()), 1.0)
        return [
            float(np.where(total >= 1.0 + error, s, low).max()),
            float(np.where(total < 1.0 - error, s, high).min()),
        ]

    def table(self, apart: np.ndarray) -> np.ndarray:
        """``q / p`` from the distances of losses to thresholds."""
        raise NotImplementedError

    def add(self, u: np.ndarray, part: slice, place: Place) -> tuple[float, float, float]:
        """What rows add to the sums of a threshold."""
        raise NotImplementedError

    def carried(self, place: Place) -> tuple[float, float, float]:
        """The sums at `place` of the rows that are between their bounds."""
        return 0.0, 0.0, 0.0

    def settle(
        self, u: np.ndarray, part: slice, low: Place, high: Place, reach: float
    ) -> tuple[np.ndarray, tuple[float, float, float]]:
        """Which rows stay open between two thresholds, `reach` units apart; and the sums at `high`
        of those that are between their bounds."""
        raise NotImplementedError

    def total(self, place: Place) -> float:
        """The sum of the weights."""
        return place.a

    def slope(self, place: Place) -> float:
        """How fast it grows with ``x``."""
        return place.b

    def newton(self, place: Place) -> Place | None:
        """Where the weights sum to 1 if no row reaches or leaves a bound."""
        raise NotImplementedError

    def weights(self, found: Place) -> tuple[np.ndarray, float]:
        """Of all rows; and the threshold."""
        raise NotImplementedError

    # What is the same for all.

    def hit(self, place: Place) -> bool:
        lacks = abs(1.0 - self.total(place))
        return lacks <= _CLOSE or lacks <= 1e-14 * self.slope(place)

    def sums(self, place: Place) -> Place:
        a, b, d = self.carried(place)
        if self.full > 0.0:
            a += self.cap * self.full
        for start in range(0, self.u.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            more = self.add(self.u[part], part, place)
            a, b, d = a + more[0], b + more[1], d + more[2]
        return Place(place.ref, place.x, a, b, d)

    def close(self, low: Place, high: Place) -> None:
        """Leave behind what is settled for any threshold between `low` and `high`."""
        a, b, d = self.carried(high)
        reach = (high.ref - low.ref) * self.inverse + (low.x - high.x)
        kept = []
        for start in range(0, self.u.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            keep, more = self.settle(self.u[part], part, low, high, reach)
            kept.append(keep)
            a, b, d = a + more[0], b + more[1], d + more[2]
        self.base = Place(high.ref, high.x, a, b, d)
        keep = np.concatenate(kept)
        self.u = np.compress(keep, self.u)
        if self.p is not None:
            self.p = np.compress(keep, self.p)

    def inner(self, low: Place, high: Place) -> np.ndarray:
        return self.u[(self.u >= low.ref) & (self.u < high.ref)]

    def scaled(self, u: np.ndarray, place: Place) -> np.ndarray:
        r = np.subtract(u, place.ref, out=self._room[: u.size])
        r *= self.inverse
        r += place.x
        return r

    def lowered(self, u: np.ndarray, low: Place) -> np.ndarray:
        """As `scaled`, in memory of its own."""
        return (u - low.ref) * self.inverse + low.x

    def further(self, place: Place) -> float:
        """From the base down to `place`, in units of ``c``."""
        return (self.base.ref - place.ref) * self.inverse + (place.x - self.base.x)

    def moved(self, ref: float, x: float) -> Place:
        """``ref - c x`` as a float and what it lacks."""
        moved = ref - self.c * x
        return Place(moved, x - (ref - moved) * self.inverse if math.isfinite(moved) else math.nan)

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


class VertexRows(Rows):
    """Sums: the weights of the rows above, over the cap where it is met, and of those tied."""

    def ends(self, least: float, most: float, slack: float = 2.0) -> tuple[float, float]:
        return least, math.nextafter(most, math.inf)

    def table(self, apart: np.ndarray) -> np.ndarray:
        return self.cap * (apart >= 0.0)

    def add(self, u: np.ndarray, part: slice, place: Place) -> tuple[float, float, float]:
        above, tied = self.mass(u > place.ref, part), self.mass(u == place.ref, part)
        return self.cap * above, self.cap * tied, 0.0

    def settle(
        self, u: np.ndarray, part: slice, low: Place, high: Place, reach: float
    ) -> tuple[np.ndarray, tuple[float, float, float]]:
        full = u >= high.ref
        self.full += self.mass(full, part)
        return ~full & (u >= low.ref), (0.0, 0.0, 0.0)

    def total(self, place: Place) -> float:
        return place.a + place.b

    def hit(self, place: Place) -> bool:
        return place.a + place.b >= 1.0 > place.a

    def weights(self, found: Place) -> tuple[np.ndarray, float]:
        full = self.cap / max(found.a, 1.0)
        level = self.cap * max(1.0 - found.a, 0.0) / found.b if found.b > 0.0 else 0.0

        def ratio(u: np.ndarray) -> np.ndarray:
            return full * (u > found.ref) + level * (u == found.ref)

        return self.written(ratio), found.ref


class Chi2Rows(Rows):
    """Sums: the weights, and the mass of the rows between their bounds."""

    def ends(self, least: float, most: float, slack: float = 2.0) -> tuple[float, float]:
        return math.nextafter(least - slack * self.c, -math.inf), math.nextafter(most, math.inf)

    def table(self, apart: np.ndarray) -> np.ndarray:
        return np.clip(apart * self.inverse, 0.0, self.cap)

    def add(self, u: np.ndarray, part: slice, place: Place) -> tuple[float, float, float]:
        r = self.scaled(u, place)
        free = self.mass((r >= 0.0) & (r < self.cap), part)
        return self.sum(np.clip(r, 0.0, self.cap, out=r), part), free, 0.0

    def carried(self, place: Place) -> tuple[float, float, float]:
        if self.base.b == 0.0:
            return 0.0, 0.0, 0.0
        return self.base.a + self.further(place) * self.base.b, self.base.b, 0.0

    def settle(
        self, u: np.ndarray, part: slice, low: Place, high: Place, reach: float
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

    def newton(self, place: Place) -> Place | None:
        if not place.b > 0.0:
            return None
        return self.moved(place.ref, place.x + (1.0 - place.a) / place.b)

    def weights(self, found: Place) -> tuple[np.ndarray, float]:
        shift = found.x + ((1.0 - found.a) / found.b if found.b > 0.0 else 0.0)

        def ratio(u: np.ndarray) -> None:
            u -= found.ref
            u *= self.inverse
            u += shift
            np.clip(u, 0.0, self.cap, out=u)

        return self.written(ratio), found.ref - self.c * shift


class KLRows(Rows):
    """Sums: the weights at the cap, and the others."""

    def ends(self, least: float, most: float, slack: float = 2.0) -> tuple[float, float]:
        above = most + slack * self.c * math.log(self.cap)
        return math.nextafter(least, -math.inf), math.nextafter(above, math.inf)

    def table(self, apart: np.ndarray) -> np.ndarray:
        return self.cap * np.exp(np.clip(apart * self.inverse, FAINT, 0.0))

    def add(self, u: np.ndarray, part: slice, place: Place) -> tuple[float, float, float]:
        r = self.scaled(u, place)
        over = r > 0.0
        some = (r >= FAINT) & ~over
        np.exp(np.clip(r, FAINT, 0.0, out=r), out=r)
        r *= some
        return self.cap * self.mass(over, part), self.cap * self.sum(r, part), 0.0

    def carried(self, place: Place) -> tuple[float, float, float]:
        if self.base.b == 0.0:
            return 0.0, 0.0, 0.0
        return 0.0, self.base.b * math.exp(self.further(place)), 0.0

    def settle(
        self, u: np.ndarray, part: slice, low: Place, high: Place, reach: float
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
            free &= r >= FAINT
            lifted = self.cap * self.sum(np.exp(np.clip(r, FAINT, 0.0)) * free, part)
        return ~left, (0.0, lifted, 0.0)

    def total(self, place: Place) -> float:
        return place.a + place.b

    def newton(self, place: Place) -> Place | None:
        if not (place.a < 1.0 and place.b > 0.0):
            return None
        return self.moved(place.ref, place.x + math.log(1.0 - place.a) - math.log(place.b))

    def weights(self, found: Place) -> tuple[np.ndarray, float]:
        level = max(1.0 - found.a, 0.0) / found.b if found.b > 0.0 else 0.0

        def ratio(u: np.ndarray) -> None:
            u -= found.ref
            u *= self.inverse
            u += found.x
            factor = np.where(u > 0.0, 1.0, level * (u >= FAINT))
            np.exp(np.clip(u, FAINT, 0.0, out=u), out=u)
            u *= factor
            np.minimum(u, 1.0, out=u)
            u *= self.cap

        return self.written(ratio), found.ref


class BallRows(Rows):
    """Sums: of ``p r``, ``p`` and ``p r^2`` of the rows above the threshold.

    The unit of ``r`` is the spread of the losses, or the price. The rows get
    ``q = p r / sum(p r)``. With ``rho`` the radius, this lies in the ball if
    ``sum(p r^2) <= (1 + 2 rho) sum(p r)^2``, and is the answer of the whole simplex if
    ``sum(p r) = c``: of the two thresholds the lower one is meant.
    """

    def __init__(
        self, u: np.ndarray, p: np.ndarray | None, c: float, radius: float, spread: float
    ) -> None:
        super().__init__(u, p, max(spread, c) or 1.0, math.inf)
        self.price, self.radius = c * self.inverse, radius

    def ends(self, least: float, most: float, slack: float = 2.0) -> tuple[float, float]:
        down = max(2.0 * self.price, 1.0 / math.sqrt(2.0 * self.radius))
        return math.nextafter(least - self.c * down, -math.inf), math.nextafter(most, math.inf)

    def starts(self, s: np.ndarray, w: np.ndarray) -> list[float]:
        r = np.maximum((s - s[:, None]) * self.inverse, 0.0)
        first, second = r @ w, (r * r) @ w
        room = (1.0 + 2.0 * self.radius) * first * first >= second
        low, _ = self.ends(float(s.min()), float(s.max()))
        fits = room & (first >= self.price) & (first > 0.0)
        return [float(self.every_u.max()), float(np.where(fits, s, low).max())]

    def add(self, u: np.ndarray, part: slice, place: Place) -> tuple[float, float, float]:
        r = self.scaled(u, place)
        mass = self.mass(r >= 0.0, part)
        np.maximum(r, 0.0, out=r)
        return self.sum(r, part), mass, self.sum(r * r, part)

    def scaled(self, u: np.ndarray, place: Place) -> np.ndarray:
        r = super().scaled(u, place)
        r *= np.abs(r) >= _TIED
        return r

    def carried(self, place: Place) -> tuple[float, float, float]:
        a, b, d = self.base.a, self.base.b, self.base.d
        if b == 0.0:
            return 0.0, 0.0, 0.0
        x = self.further(place)
        return a + x * b, b, d + x * (2.0 * a + x * b)

    def settle(
        self, u: np.ndarray, part: slice, low: Place, high: Place, reach: float
    ) -> tuple[np.ndarray, tuple[float, float, float]]:
        r = self.scaled(u, high)
        free = r >= 0.0
        keep = ~free & (self.lowered(u, low) > 0.0)
        mass = self.mass(free, part)
        r *= free
        return keep, (self.sum(r, part), mass, self.sum(r * r, part))

    def total(self, place: Place) -> float:
        if not place.a > 0.0:
            return 0.0
        inside = self.inside(place)
        return min(inside, place.a / self.price) if self.price > 0.0 else inside

    def inside(self, place: Place) -> float:
        """1 on the boundary of the ball, more within."""
        return (1.0 + 2.0 * self.radius) * place.a * (place.a / place.d)

    def slope(self, place: Place) -> float:
        return 0.0

    def hit(self, place: Place) -> bool:
        # All weight on the largest loss is in the ball.
        return super().hit(place) or self.top(place)

    def top(self, place: Place) -> bool:
        full = (1.0 + 2.0 * self.radius) * place.b >= 1.0
        return self.price < _TIED and place.a == 0.0 and place.b > 0.0 and full

    def newton(self, place: Place) -> Place | None:
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

    def weights(self, found: Place) -> tuple[np.ndarray, float]:
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
