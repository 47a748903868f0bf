"""The rows of a threshold search: sums of their weights at a threshold, for each kind of set.

Rows that are between their bounds at any threshold of the bracket are replaced by their sums. They
come as one or more arrays, the parts of a store, and sums are added in their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

# Rows at a time: temporaries stay in the cache.
_CHUNK = 1 << 14
# What the sum of the weights may differ from 1 by: its own rounding.
_CLOSE = 4e-15
# Exponents below the first give nothing, slowly; below the second, nothing that a sum of 1 would
# notice.
FAINT, _LITTLE = -700.0, -60.0


Part = tuple[np.ndarray, np.ndarray | None]
"""Losses of some rows and their weights; None for equal weights."""


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


Room = Callable[[int], np.ndarray]
"""Gives an array of so many entries to write to."""


def few(parts: Sequence[Part]) -> Iterator[Part]:
    """The same rows, a few at a time."""
    for u, p in parts:
        for start in range(0, u.size, _CHUNK):
            some = slice(start, start + _CHUNK)
            yield u[some], None if p is None else p[some]


class Rows:
    """Rows that are open, and the sums of the others.

    Parameters
    ----------
    parts : sequence of pairs of arrays
        Losses and weights of all rows; weights of None are equal ones.
    c, cap : float

    Attributes
    ----------
    open : list of pairs of arrays
        Losses and weights of the open rows, so few at a time that temporaries stay in the cache.
    size : int
        How many these are.
    c : float
        The unit of the losses.
    full : float
        The mass of the rows that have the cap, for any threshold in question.
    effective : float
        Of a ball, once the weights are known: what the losses were divided by; 0 for a vertex.
    base : Place
        A threshold, and the sums there of the rows that are between their bounds.
    """

    def __init__(self, parts: Sequence[Part], c: float, cap: float) -> None:
        self.parts, self.c, self.cap = parts, c, cap
        self.open = list(few(parts))
        self.size = sum(u.size for u, _ in parts)
        self.unit = 1.0 / self.size if parts[0][1] is None else 1.0
        self.inverse = 1.0 / c
        self.effective = math.nan
        self.full, self.base = 0.0, Place(0.0, 0.0, 0.0, 0.0)
        self._room = np.empty(min(_CHUNK, self.size))

    # What a kind has to say.

    def ends(self, least: float, most: float, slack: float = 2.0) -> tuple[float, float]:
        """Thresholds at which the weights sum to 1 or more, and to less than 1."""
        raise NotImplementedError

    def starts(self, s: np.ndarray, w: np.ndarray, most: float) -> list[float]:
        """The first thresholds to try, from a sample, its weights and the greatest loss."""
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

    def add(self, u: np.ndarray, p: np.ndarray | None, place: Place) -> tuple[float, float, float]:
        """What rows add to the sums of a threshold."""
        raise NotImplementedError

    def carried(self, place: Place) -> tuple[float, float, float]:
        """The sums at `place` of the rows that are between their bounds."""
        return 0.0, 0.0, 0.0

    def settle(
        self, u: np.ndarray, p: np.ndarray | None, low: Place, high: Place, reach: float
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

    def weights(self, found: Place, room: Room) -> tuple[list[np.ndarray], float]:
        """Of all rows, part by part in arrays that `room` gives; and the threshold."""
        raise NotImplementedError

    # What is the same for all.

    def hit(self, place: Place) -> bool:
        lacks = abs(1.0 - self.total(place))
        return lacks <= _CLOSE or lacks <= 1e-14 * self.slope(place)

    def sums(self, place: Place) -> Place:
        a, b, d = self.carried(place)
        if self.full > 0.0:
            a += self.cap * self.full
        for u, p in self.open:
            more = self.add(u, p, place)
            a, b, d = a + more[0], b + more[1], d + more[2]
        return Place(place.ref, place.x, a, b, d)

    def close(self, low: Place, high: Place) -> None:
        """Leave behind what is settled for any threshold between `low` and `high`."""
        a, b, d = self.carried(high)
        reach = (high.ref - low.ref) * self.inverse + (low.x - high.x)
        kept: list[Part] = []
        for u, p in self.open:
            keep, more = self.settle(u, p, low, high, reach)
            kept.append((np.compress(keep, u), None if p is None else np.compress(keep, p)))
            a, b, d = a + more[0], b + more[1], d + more[2]
        self.base = Place(high.ref, high.x, a, b, d)
        left = np.concatenate([u for u, _ in kept])
        weights = None
        if kept[0][1] is not None:
            weights = np.concatenate([p for _, p in kept if p is not None])
        self.open, self.size = list(few([(left, weights)])), left.size

    def inner(self, low: Place, high: Place) -> tuple[float, float]:
        """The least and the greatest open loss from `low` to `high`; none are from inf to -inf."""
        least, most = math.inf, -math.inf
        for u, _ in self.open:
            some = u[(u >= low.ref) & (u < high.ref)]
            least = min(least, float(some.min(initial=math.inf)))
            most = max(most, float(some.max(initial=-math.inf)))
        return least, most

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

    def mass(self, chosen: np.ndarray, p: np.ndarray | None) -> float:
        if p is None:
            return self.unit * int(np.count_nonzero(chosen))
        return float((p * chosen).sum())

    def sum(self, values: np.ndarray, p: np.ndarray | None) -> float:
        if p is not None:
            values = values * p
        return self.unit * float(values.sum())

    def written(
        self, ratio: Callable[[np.ndarray], np.ndarray | None], room: Room
    ) -> list[np.ndarray]:
        """`ratio` turns losses, in place or not, into ``q / p``."""
        out = []
        for losses, weights in self.parts:
            q = room(losses.size)
            for (u, p), (r, _) in zip(few([(losses, weights)]), few([(q, None)])):
                r[:] = u
                other = ratio(r)
                if other is not None:
                    r[:] = other
                r *= self.unit if p is None else p
            out.append(q)
        return out


class VertexRows(Rows):
    """Sums: the weights of the rows above, over the cap where it is met, and of those tied."""

    def ends(self, least: float, most: float, slack: float = 2.0) -> tuple[float, float]:
        return least, math.nextafter(most, math.inf)

    def table(self, apart: np.ndarray) -> np.ndarray:
        return self.cap * (apart >= 0.0)

    def add(self, u: np.ndarray, p: np.ndarray | None, place: Place) -> tuple[float, float, float]:
        above, tied = self.mass(u > place.ref, p), self.mass(u == place.ref, p)
        return self.cap * above, self.cap * tied, 0.0

    def settle(
        self, u: np.ndarray, p: np.ndarray | None, low: Place, high: Place, reach: float
    ) -> tuple[np.ndarray, tuple[float, float, float]]:
        full = u >= high.ref
        self.full += self.mass(full, p)
        return ~full & (u >= low.ref), (0.0, 0.0, 0.0)

    def total(self, place: Place) -> float:
        return place.a + place.b

    def hit(self, place: Place) -> bool:
        return place.a + place.b >= 1.0 > place.a

    def weights(self, found: Place, room: Room) -> tuple[list[np.ndarray], float]:
        full = self.cap / max(found.a, 1.0)
        level = self.cap * max(1.0 - found.a, 0.0) / found.b if found.b > 0.0 else 0.0

        def ratio(u: np.ndarray) -> np.ndarray:
            return full * (u > found.ref) + level * (u == found.ref)

        return self.written(ratio, room), found.ref


class Chi2Rows(Rows):
    """Sums: the weights, and the mass of the rows between their bounds."""

    def ends(self, least: float, most: float, slack: float = 2.0) -> tuple[float, float]:
        return math.nextafter(least - slack * self.c, -math.inf), math.nextafter(most, math.inf)

    def table(self, apart: np.ndarray) -> np.ndarray:
        return np.clip(apart * self.inverse, 0.0, self.cap)

    def add(self, u: np.ndarray, p: np.ndarray | None, place: Place) -> tuple[float, float, float]:
        r = self.scaled(u, place)
        free = self.mass((r >= 0.0) & (r < self.cap), p)
        return self.sum(np.clip(r, 0.0, self.cap, out=r), p), free, 0.0

    def carried(self, place: Place) -> tuple[float, float, float]:
        if self.base.b == 0.0:
            return 0.0, 0.0, 0.0
        return self.base.a + self.further(place) * self.base.b, self.base.b, 0.0

    def settle(
        self, u: np.ndarray, p: np.ndarray | None, low: Place, high: Place, reach: float
    ) -> tuple[np.ndarray, tuple[float, float, float]]:
        r = self.scaled(u, high)
        full = r >= self.cap
        self.full += self.mass(full, p)
        lowered = self.lowered(u, low)
        free = (r >= 0.0) & (lowered <= self.cap) & ~full
        keep = ~(free | full | (lowered <= 0.0))
        mass = self.mass(free, p)
        r *= free
        return keep, (self.sum(r, p), mass, 0.0)

    def newton(self, place: Place) -> Place | None:
        if not place.b > 0.0:
            return None
        return self.moved(place.ref, place.x + (1.0 - place.a) / place.b)

    def weights(self, found: Place, room: Room) -> tuple[list[np.ndarray], float]:
        shift = found.x + ((1.0 - found.a) / found.b if found.b > 0.0 else 0.0)

        def ratio(u: np.ndarray) -> None:
            u -= found.ref
            u *= self.inverse
            u += shift
            np.clip(u, 0.0, self.cap, out=u)

        return self.written(ratio, room), found.ref - self.c * shift


class KLRows(Rows):
    """Sums: the weights at the cap, and the others."""

    def ends(self, least: float, most: float, slack: float = 2.0) -> tuple[float, float]:
        above = most + slack * self.c * math.log(self.cap)
        return math.nextafter(least, -math.inf), math.nextafter(above, math.inf)

    def table(self, apart: np.ndarray) -> np.ndarray:
        return self.cap * np.exp(np.clip(apart * self.inverse, FAINT, 0.0))

    def add(self, u: np.ndarray, p: np.ndarray | None, place: Place) -> tuple[float, float, float]:
        r = self.scaled(u, place)
        over = r > 0.0
        some = (r >= FAINT) & ~over
        np.exp(np.clip(r, FAINT, 0.0, out=r), out=r)
        r *= some
        return self.cap * self.mass(over, p), self.cap * self.sum(r, p), 0.0

    def carried(self, place: Place) -> tuple[float, float, float]:
        if self.base.b == 0.0:
            return 0.0, 0.0, 0.0
        return 0.0, self.base.b * math.exp(self.further(place)), 0.0

    def settle(
        self, u: np.ndarray, p: np.ndarray | None, low: Place, high: Place, reach: float
    ) -> tuple[np.ndarray, tuple[float, float, float]]:
        r = self.scaled(u, high)
        full = r >= 0.0
        self.full += self.mass(full, p)
        lowered = self.lowered(u, low)
        left = full | (lowered < _LITTLE)
        lifted = 0.0
        # Over a longer way the factor that carries the sum from one threshold to another is rough.
        if reach <= 4.0:
            free = (lowered <= 0.0) & ~full
            left |= free
            free &= r >= FAINT
            lifted = self.cap * self.sum(np.exp(np.clip(r, FAINT, 0.0)) * free, p)
        return ~left, (0.0, lifted, 0.0)

    def total(self, place: Place) -> float:
        return place.a + place.b

    def newton(self, place: Place) -> Place | None:
        if not (place.a < 1.0 and place.b > 0.0):
            return None
        return self.moved(place.ref, place.x + math.log(1.0 - place.a) - math.log(place.b))

    def weights(self, found: Place, room: Room) -> tuple[list[np.ndarray], float]:
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

        return self.written(ratio, room), found.ref
