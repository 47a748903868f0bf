"""What parts tell of a KL ball at one theta, so that it tells the sums at others around it.

The weights are ``q_i ~ p_i exp(theta u_i)``. The greatest losses of each part come one by one: of
heavy tails these decide, and no moment tells of them. Of all others there are moments,

    ``S_k = sum_i p_i exp(theta (u_i - edge)) d_i^k``, with ``d_i = theta (u_i - about)``,

from which their sums follow at ``theta (1 + r)``, for ``|r d_i|`` up to a few units, by

    ``sum_i p_i exp(theta (1 + r) u_i) d_i^j ~ sum_k S_(j + k) r^k / k!``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from drago.oracles.rounds.rows import FAINT, few

# Greatest losses that a part sends, and the highest moment of the others: an even one, whose terms
# are not negative.
TOP, _ORDER = 128, 12
# How far the moments lead, in ``r d``, and theta at most, as a factor.
_REACH, _FARTHEST = 4.0, 16.0
# Below the edge, in units of ``1 / theta``: how far down most of the weight is, and from where on
# rows weigh nothing at theta, nor where moments lead to from there, however many they are.
_MOST, _DEPTH = 8.0, 80.0
_FACTORIALS = np.cumprod([1.0, *range(1, _ORDER + 1)])
# Newton steps on what the moments tell.
_STEPS = 60


class Told(NamedTuple):
    """What a part tells: its greatest losses with their weights, and of the others the moments.

    And the greatest of the others, and how far from 0 a ``d_i`` of any weight is at most.
    """

    top: np.ndarray
    p: np.ndarray
    edge: float
    sums: np.ndarray
    farthest: float


def tilts(part: Any, u: np.ndarray, about: float, theta: float) -> Told:
    """The greatest losses of a part, and the moments of the others at theta."""
    least, cut = float(u.min()), -math.inf
    if u.size > TOP:
        cut = float(np.partition(u, u.size - TOP - 1)[u.size - TOP - 1])
    is_top = u > cut  # of tied losses all, or none
    edge, sums = max(cut, least), np.zeros(_ORDER + 1)
    for some, p in few([(u, part.p)]):
        assert p is not None
        d = theta * (some - about)
        term = np.where(some > cut, 0.0, p * np.exp(np.clip(theta * (some - edge), FAINT, 0.0)))
        sums[0] += term.sum()
        for k in range(1, _ORDER + 1):
            term *= d
            sums[k] += term.sum()
    lowest = max(least, edge - _DEPTH / theta)
    farthest = theta * max(abs(edge - about), abs(lowest - about)) if sums[0] > 0.0 else 0.0
    return Told(u[is_top], part.p[is_top], edge, sums, farthest)


def middle(losses: np.ndarray, share: float, theta: float) -> float:
    """About which losses to take moments: the middle of those of weight that are not sent.

    `share` is that of the rows which are sent.
    """
    rank = int(max(1.0 - share, 0.0) * (losses.size - 1))
    edge = float(np.partition(losses, rank)[rank])
    return edge - 0.5 * min(edge - float(losses.min()), _MOST / theta)


class Tilted(NamedTuple):
    """Weights ``p_i exp(theta (u_i - top)) / total``.

    With the mean of the losses under them, from the top, their variance, and how far off the
    divergence and the logarithm of the total may be.
    """

    theta: float
    top: float
    total: float
    mean: float
    variance: float
    error: float = 0.0

    @property
    def spent(self) -> float:
        """Their divergence."""
        return self.theta * self.mean - math.log(self.total)


class Tilts:
    """What all parts told at a theta."""

    def __init__(self, told: Sequence[Told], about: float, theta: float) -> None:
        self.about, self.theta = about, theta
        self.high = np.concatenate([each.top for each in told])
        self.p = np.concatenate([each.p for each in told])
        others = [each for each in told if each.sums[0] > 0.0]
        self.edge = max((each.edge for each in others), default=-math.inf)
        self.top = max(self.edge, float(self.high.max(initial=-math.inf)))
        self.sums, self.farthest = np.zeros(_ORDER + 1), 0.0
        for each in others:
            self.sums += math.exp(theta * (each.edge - self.edge)) * each.sums
            self.farthest = max(self.farthest, each.farthest)

    def at(self, theta: float) -> Tilted:
        """The weights at another theta, as far as the moments tell."""
        r = theta / self.theta - 1.0
        powers = r ** np.arange(_ORDER + 1) / _FACTORIALS
        others, e = self.sums, self.p * np.exp(np.maximum(theta * (self.high - self.top), FAINT))
        if others[0] > 0.0:
            exponent = self.theta * (self.edge - self.about) + theta * (self.about - self.top)
            others = math.exp(min(max(exponent, FAINT), -FAINT)) * others
        below, away = self.high - self.top, self.about - self.top
        zeroth, first, second = (
            float(np.dot(others[j:], powers[: _ORDER + 1 - j])) / self.theta**j for j in range(3)
        )
        total = float(e.sum()) + zeroth
        # From the top: from anywhere else the terms of losses that are almost tied there cancel.
        mean = (float(np.dot(e, below)) + first + away * zeroth) / total
        square = float(np.dot(e, below**2)) + second + away * (2.0 * first + away * zeroth)
        # Beyond the last term of a sum, each is less than half of the one before.
        left_out = others[-1] / total * np.abs(powers[-2:])
        return Tilted(
            theta,
            self.top,
            total,
            mean,
            square / total - mean * mean,
            float(left_out[1] * (1.0 + theta * abs(mean - away)) + (1.0 + r) * left_out[0]),
        )

    def where(self, radius: float, most: float) -> Tilted | None:
        """The weights whose divergence is `radius`, or those at `most` where it is less there.

        By Newton's method on the root of the divergence. None where that is too far from here.
        """
        reach = _REACH / self.farthest if self.farthest > 0.0 else math.inf
        low = self.theta * max(1.0 - reach, 1.0 / _FARTHEST)
        high = min(self.theta * min(1.0 + reach, _FARTHEST), most)
        here, target = self.at(self.theta), math.sqrt(2.0 * radius)
        if here.spent <= radius:
            end = self.at(high)
            if end.spent <= radius:
                return end if high == most else None
        elif not self.at(low).spent <= radius:
            return None
        for _ in range(_STEPS):
            low, high = (low, here.theta) if here.spent > radius else (here.theta, high)
            root, step = math.sqrt(2.0 * max(here.spent, 0.0)), math.nan
            if here.variance > 0.0:
                step = here.theta - (root - target) * root / (here.theta * here.variance)
            if abs(step - here.theta) <= 4e-16 * here.theta:
                break
            here = self.at(step if low < step < high else 0.5 * (low + high))
        return here
