"""The rows of a threshold search for chi2 balls (`drago.oracles.rounds.rows`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from drago.oracles.rounds.rows import Part, Place, Room, Rows, few

# Losses of a ball that differ by less, in units of their spread, are tied: squares would vanish.
_TIED = 1e-150


class BallRows(Rows):
    """Sums: of ``p r``, ``p`` and ``p r^2`` of the rows above the threshold.

    The unit of ``r`` is the spread of the losses, or the price. The rows get
    ``q = p r / sum(p r)``. With ``rho`` the radius, this lies in the ball if
    ``sum(p r^2) <= (1 + 2 rho) sum(p r)^2``, and is the answer of the whole simplex if
    ``sum(p r) = c``: of the two thresholds the lower one is meant.
    """

    def __init__(self, parts: Sequence[Part], c: float, radius: float, spread: float) -> None:
        super().__init__(parts, max(spread, c) or 1.0, math.inf)
        self.given, self.price, self.radius = c, c * self.inverse, radius

    def ends(self, least: float, most: float, slack: float = 2.0) -> tuple[float, float]:
        down = max(2.0 * self.price, 1.0 / math.sqrt(2.0 * self.radius))
        return math.nextafter(least - self.c * down, -math.inf), math.nextafter(most, math.inf)

    def starts(self, s: np.ndarray, w: np.ndarray, most: float) -> list[float]:
        r = np.maximum((s - s[:, None]) * self.inverse, 0.0)
        first, second = r @ w, (r * r) @ w
        room = (1.0 + 2.0 * self.radius) * first * first >= second
        low, _ = self.ends(float(s.min()), float(s.max()))
        fits = room & (first >= self.price) & (first > 0.0)
        return [most, float(np.where(fits, s, low).max())]

    def add(self, u: np.ndarray, p: np.ndarray | None, place: Place) -> tuple[float, float, float]:
        r = self.scaled(u, place)
        mass = self.mass(r >= 0.0, p)
        np.maximum(r, 0.0, out=r)
        return self.sum(r, p), mass, self.sum(r * r, p)

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
        self, u: np.ndarray, p: np.ndarray | None, low: Place, high: Place, reach: float
    ) -> tuple[np.ndarray, tuple[float, float, float]]:
        r = self.scaled(u, high)
        free = r >= 0.0
        keep = ~free & (self.lowered(u, low) > 0.0)
        mass = self.mass(free, p)
        r *= free
        return keep, (self.sum(r, p), mass, self.sum(r * r, p))

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

    known_around: tuple[float, float, float] | None = None
    """What `around` would find, where these are not all rows."""

    def around(self, found: Place) -> tuple[float, float, float]:
        """Sums of ``p r`` and ``p r^2`` above the threshold, r from their mean; the mass below.

        Around their mean: the variance of rows that are close to each other keeps its digits.
        """
        mean = found.a / found.b
        e, f, out = 0.0, 0.0, 0.0
        for u, p in few(self.parts):
            r = self.scaled(u, found)
            above = r >= 0.0
            out += self.mass(~above, p)
            r -= mean
            r *= above
            e, f = e + self.sum(r, p), f + self.sum(r * r, p)
        return e, f, out

    def weights(self, found: Place, room: Room) -> tuple[list[np.ndarray], float]:
        if self.top(found):
            self.effective = 0.0
            tied = self.written(lambda u: (self.lowered(u, found) > -_TIED) / found.b, room)
            return tied, found.ref
        mean = found.a / found.b
        if self.price > 0.0 and found.a / self.price <= self.inside(found):
            cut, over = mean + (self.price - found.a) / found.b, 1.0 / self.price
            self.effective = self.given
        else:
            known = self.known_around
            e, f, out = self.around(found) if known is None else known
            e, f = e / found.b, f / found.b
            variance, left = f - e * e, 2.0 * self.radius * found.b - out
            cut, over = mean, 1.0 / found.a
            if variance > 0.0 and left > 0.0:
                mean, cut = mean + e, math.sqrt(variance / left)
                over = 1.0 / (found.b * cut)
            self.effective = self.c / over

        def ratio(u: np.ndarray) -> None:
            u -= found.ref
            u *= self.inverse
            u += found.x
            u -= mean
            u += cut
            np.maximum(u, 0.0, out=u)
            u *= over

        return self.written(ratio, room), found.ref - self.c * (found.x + cut - mean)
