"""The weights of KL balls for rows in parts: ``q_i ~ p_i exp(theta u_i)``, by rounds of sums.

``theta = 1 / (c + lambda)`` is where the divergence, which rises with it, meets the radius. By
Newton's method on its square root, which is almost linear in theta, within a bracket: the search
of ``kernels/dual_balls.cpp``, with sums over parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from drago.oracles.rounds.arrays import KL, VERTEX, search_parts
from drago.oracles.rounds.rows import FAINT, Part, Room, few

# Divergences of a smaller radius are summed from the mean, up to this exponent.
_SMALL, _NEAR = 1e-2, 30.0
_ROUNDS = 200


class Tilted(NamedTuple):
    """The weights of each part, and what the losses were divided by: 0 for a vertex."""

    q: list[np.ndarray]
    effective: float


class Tilt:
    """Losses, and their sums at any theta.

    Attributes
    ----------
    top, centre, offset : float
        The greatest loss, about the mean, and what rounding leaves of that.
    variance : float
    is_small : bool
        Whether the radius is.
    """

    SMALL = _SMALL
    top: float
    centre: float
    offset: float
    variance: float
    is_small: bool

    def tied(self) -> float:
        """The weight of the greatest loss."""
        raise NotImplementedError

    def sums(self, theta: float, near: bool) -> Sequence[float]:
        """The sums of ``p e``, ``p e d`` and ``p e d^2``, with ``e = exp(theta d)``.

        d is the distance of a loss to the top. Where `near`, it is that to the mean, and the first
        two sums have ``e - 1 - theta d`` and ``e - 1`` for e: tiny divergences keep their digits.
        """
        raise NotImplementedError

    def at(self, theta: float) -> tuple[float, float]:
        """The divergence at theta, and the variance of the losses under its weights."""
        near = self.is_small and theta * (self.top - self.centre) < _NEAR
        total, first, second = self.sums(theta, near)
        mass = 1.0 + total if near else total
        mean = first / mass
        spent = theta * mean - (math.log1p(total) if near else math.log(total))
        return spent, max(second / mass - mean * mean, 0.0)


class Losses(Tilt):
    """The losses of rows in parts."""

    def __init__(self, parts: Sequence[Part], radius: float) -> None:
        self.parts, self.is_small = parts, radius < _SMALL
        self.unit = 1.0 / sum(u.size for u, _ in parts)
        self.top = max(float(u.max()) for u, _ in parts)
        self.centre = self.top + self._sum(lambda u: u - self.top)
        # What rounding leaves of the mean; losses that are almost tied need it.
        self.offset = self._sum(lambda u: u - self.centre)
        self.variance = self._sum(lambda u: self._apart(u) ** 2)

    def _weighted(self, values: np.ndarray, p: np.ndarray | None) -> float:
        return self.unit * float(values.sum()) if p is None else float(np.dot(p, values))

    def _sum(self, of: Callable[[np.ndarray], np.ndarray]) -> float:
        return sum(self._weighted(of(u), p) for u, p in few(self.parts))

    def _apart(self, u: np.ndarray) -> np.ndarray:
        return (u - self.centre) - self.offset

    def tied(self) -> float:
        return self._sum(lambda u: (u == self.top).astype(np.float64))

    def sums(self, theta: float, near: bool) -> Sequence[float]:
        sums = np.zeros(3)
        for u, p in few(self.parts):
            d = self._apart(u) if near else u - self.top
            sums += [self._weighted(terms, p) for terms in tilt_terms(d, theta, near)]
        return sums.tolist()


def tilt_terms(
    d: np.ndarray, theta: float, near: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `Tilt.sums` are the sums of, from losses less their mean or the greatest."""
    if near:  # differences to 1, without the 1: tiny divergences keep their digits
        x = theta * d
        e = np.expm1(x)
        return e - x, e * d, (e + 1.0) * d * d
    e = np.exp(np.maximum(theta * d, FAINT))
    return e, e * d, e * d * d


def kl_ball(
    parts: Sequence[Part], c: float, radius: float, theta: float, room: Room = np.empty
) -> Tilted:
    """``argmax over D(q || p) <= radius of <u, q> - c D(q || p)``, for ``radius > 0``.

    Parameters
    ----------
    parts : sequence of pairs of arrays
        Losses and weights of each; weights of None are equal ones.
    theta : float
        Where to start, or NaN.
    """
    effective = price_in_ball(Losses(parts, radius), c, radius, theta)
    kind = KL if effective > 0.0 else VERTEX
    return Tilted(search_parts(kind, parts, effective, math.inf, None, room).q, effective)


def price_in_ball(losses: Tilt, c: float, radius: float, theta: float) -> float:
    """``c + lambda`` of a KL ball: what the losses are divided by; 0 for a vertex.

    Parameters
    ----------
    theta : float
        Where to start, or NaN.
    """
    high = math.inf
    if c > 0.0:
        high = 1.0 / c
        if losses.variance == 0.0 or losses.at(high)[0] <= radius:
            return c
    elif -math.log(losses.tied()) <= radius:
        return 0.0
    low, cold = 0.0, min(math.sqrt(2.0 * radius / losses.variance), 0.5 * high)
    if not 1e-6 * cold < theta < min(high, 1e6 * cold):
        theta = cold
    target = math.sqrt(2.0 * radius)
    for _ in range(_ROUNDS):
        spent, spread = losses.at(theta)
        low, high = (low, theta) if spent > radius else (theta, high)
        root, step = math.sqrt(2.0 * max(spent, 0.0)), math.nan
        if spread > 0.0:
            step = theta - (root - target) * root / (theta * spread)
        if not low < step < high:
            if high == math.inf:
                step = 4.0 * theta
            elif low > 0.0:
                step = math.sqrt(low * high)
            else:
                step = cold if cold < 0.5 * high else 0.125 * high
        if abs(step - theta) <= 4e-16 * theta or abs(spent - radius) <= 1e-14 * radius:
            break
        theta = step
    return 1.0 / theta
