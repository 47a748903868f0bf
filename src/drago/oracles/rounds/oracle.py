"""Exact weights of capped simplices and balls for rows in parts, without a sort of their losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from drago.oracles.atoms import AtomOracle, AtomResponse, RowVector
from drago.oracles.rounds.arrays import BALL, CHI2, KL, VERTEX, Found, search_parts
from drago.oracles.rounds.tilt import kl_ball
from drago.terms.uncertainty.base import price
from drago.terms.uncertainty.capped import ON_BOUND


class SearchOracle(AtomOracle):
    """The dual oracle of a set that a threshold decides, for a store in parts of arrays."""

    def __init__(self, rows: Any, uncertainty: Any, divergence: Any) -> None:
        super().__init__(rows, uncertainty, divergence)
        self.is_ball = uncertainty.own_divergence is not None
        share = uncertainty.tail_share
        cap = math.inf if share is None else 1.0 / share
        # A cap that no weight can reach is none.
        self.cap = cap if cap * rows.extremes(rows.p)[0] < 1.0 else math.inf
        # Where the last search ended: its threshold (theta of a KL ball), how far that had moved,
        # and the price. And where the last visit did: the threshold of all rows, and of a sample.
        names = ("threshold", "moved", "price", "anchor", "sampled")
        self.memory = {**self.memory, **dict.fromkeys(names, math.nan)}

    @staticmethod
    def takes(uncertainty: Any) -> bool:
        """Whether a threshold decides on the weights of a set."""
        return uncertainty.is_capped or uncertainty.own_divergence is not None

    @property
    def is_free(self) -> bool:
        """Whether the set leaves any choice."""
        return self.uncertainty.radius > 0 if self.is_ball else self.cap > 1.0

    def guess(self, c: float) -> tuple[int, float, float]:
        """See `drago.terms.uncertainty.DualOracle.guess`."""
        if self.is_ball:
            return 0, math.nan, math.inf
        if not self.is_free:
            return 1, -math.inf, 1.0  # all rows are at the cap
        if price(c) == 0:
            return 0, math.nan, math.inf
        if self.divergence.is_chi2:
            return 1, self._remembered(c), self.cap
        above = c * math.log(self.cap) if self.cap < math.inf else 0.0
        return 2, self._remembered(c) - above, self.cap

    def _remembered(self, c: float) -> float:
        """The last threshold, where the price is not another one."""
        before = self.memory["price"]
        return self.memory["threshold"] if 0.5 * before <= c <= 2.0 * before else math.nan

    def weights(self, u: RowVector, c: float) -> RowVector:
        return self._weigh(u, price(float(c)))[0]

    def _weigh(self, u: RowVector, c: float) -> tuple[RowVector, float]:
        """The weights, and what the losses of a ball were divided by."""
        rows = self.rows
        if not self.is_free:
            return rows.p, math.inf
        parts = rows.pairs(u)
        if self.is_ball and not self.divergence.is_chi2:
            return self._tilt(parts, c)
        if self.is_ball:
            kind, bound = BALL, float(self.uncertainty.radius)
        else:
            kind, bound = (CHI2 if self.divergence.is_chi2 else KL) if c > 0 else VERTEX, self.cap
        start = self._remembered(c), self.memory["moved"]
        found = search_parts(kind, parts, c, bound, start, rows.room)
        self.memory |= {"threshold": found.threshold, "moved": found.moved, "price": c}
        if kind == KL and bound == math.inf:
            self.memory["threshold"] = self._whole(found, parts, c)
        return rows.vector(found.q), found.effective

    def _tilt(self, parts: Any, c: float) -> tuple[RowVector, float]:
        q, effective = kl_ball(
            parts, c, float(self.uncertainty.radius), self.memory["threshold"], self.rows.room
        )
        if effective > c:
            self.memory["threshold"] = 1.0 / effective
        return self.rows.vector(q), effective

    @staticmethod
    def _whole(found: Found, parts: Any, c: float) -> float:
        """tau with ``q_i = p_i exp((u_i - tau) / c)``, from the row of the greatest loss."""
        k = next(k for k, (u, _) in enumerate(parts) if u.max() == found.threshold)
        i = int(np.argmax(parts[k][0]))
        p = 1.0 / sum(u.size for u, _ in parts) if parts[k][1] is None else parts[k][1][i]
        return found.threshold - c * math.log(found.q[k][i] / p)

    def with_mirror(self, u: RowVector, c: float) -> tuple[RowVector, RowVector]:
        rows, c = self.rows, price(float(c))
        q, effective = self._weigh(u, c)
        effective = effective if self.is_ball else c
        if self.divergence.is_chi2:
            return q, rows.relative(q)
        if not self.is_free or effective == 0:  # a vertex has no other one
            mirror = self.divergence._mirror
            return q, rows.vector(mirror(own, p) for own, p in zip(q.parts, rows.p.parts))
        return q, self._logarithm(u, q, effective)

    def _logarithm(self, u: RowVector, q: RowVector, c: float) -> RowVector:
        """``log(q/p)``, finite where the weights are too small for a float.

        It rises with the loss by 1/c up to the cap: from that of the greatest loss below the cap.
        """
        most, top, level = math.log(self.cap), -math.inf, 0.0
        for losses, own, p in zip(u.parts, q.parts, self.rows.p.parts):
            between = (own > 0.0) & (own < self.cap * p * (1.0 - ON_BOUND))
            i = int(np.argmax(np.where(between, losses, -math.inf)))
            if between[i] and losses[i] > top:
                top, level = float(losses[i]), math.log(own[i] / p[i])
        if top == -math.inf:  # all that have weight are at the cap
            top, level = self.memory["threshold"], most

        def written(losses: np.ndarray) -> np.ndarray:
            out = np.subtract(losses, top, out=self.rows.room(losses.size))
            out /= c
            out += level
            return np.minimum(out, most, out=out)

        return self.rows.vector(map(written, u.parts))

    def response(
        self, u: RowVector, c: float, q: RowVector | None = None
    ) -> tuple[RowVector, AtomResponse | None]:
        rows, c = self.rows, price(float(c))
        if not self.is_ball:
            q = self.weights(u, c) if q is None else q
            if c == 0:
                return q, None
            rate, pool = rows.responding(self.divergence, q, self.cap, c)
            return q, AtomResponse(rate, pool, None, 1)
        q, effective = self._weigh(u, c)
        if not 0 < effective < math.inf:
            return q, None
        rate, pool = rows.responding(self.divergence, q, math.inf, effective)
        direction = None
        if effective > c * (1 + 1e-12):  # on the boundary; from the greatest loss: little cancels
            top = rows.extremes(u)[1]
            mass, first = rows.pooled_sums(rate, pool, u, top)
            direction = rows.shift(u, np.array([-(top + first / mass)]))
        return q, AtomResponse(rate, pool, direction, 1)
