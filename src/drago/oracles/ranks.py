"""Exact weights for rows that are shared by the ranks of a process group.

Where a threshold decides, the ranks look for it in rounds (`drago.oracles.rank_search`); for a KL
ball, for the exponent. Spectral sets need the order of all losses: these go to all ranks. Sets over
groups need the sums of these.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from drago.oracles.rank_search import RankSearch, highest
from drago.oracles.rounds.arrays import BALL, CHI2, KL, VERTEX
from drago.oracles.rounds.tilt import Tilt, price_in_ball
from drago.oracles.tensors import BoundOracle, TensorOracle
from drago.oracles.thresholds import is_zero


class RankOracle(BoundOracle):
    """A `TensorOracle` for rows that ranks share, each of which has its own."""

    def __init__(self, rows: Any, oracle: TensorOracle) -> None:
        super().__init__(rows, oracle)
        self._known = {"threshold": math.nan, "moved": math.nan}
        self._all_p: Tensor | None = None

    @property
    def memory(self) -> dict[str, float]:
        """Where the last search ended (theta of a KL ball), and how far that had moved."""
        return self._known

    @memory.setter
    def memory(self, values: dict[str, float]) -> None:
        self._known = dict(values)

    def weights(self, u: Tensor, c: float | Tensor, out: Tensor | None = None) -> Tensor:
        q = self._found(u, float(c))
        return q if out is None else out.copy_(q)

    def _found(self, u: Tensor, c: float) -> Tensor:
        oracle, rows, c = self.oracle, self.rows, 0.0 if is_zero(c) else c
        inner: Any = oracle.uncertainty
        if self._mass is not None:
            return self._of_groups(u, c, self._mass)
        if inner.is_spectral:
            return self._sorted(u, c)
        is_ball = inner.own_divergence is not None
        if (inner.radius if is_ball else self._cap - 1.0) <= 0:
            return rows.p
        if is_ball and not oracle.divergence.is_chi2:
            return self._tilted(u, c, inner.radius)
        if is_ball:
            search = RankSearch(rows, BALL, u, c, inner.radius)
        else:
            kind = VERTEX if c == 0 else (CHI2 if oracle.divergence.is_chi2 else KL)
            search = RankSearch(rows, kind, u, c, self._cap)
        q, threshold = search.run(self.memory["threshold"], self.memory["moved"])
        old = self.memory["threshold"]
        moved = threshold - old if math.isfinite(old) else math.nan
        self.memory = {"threshold": threshold, "moved": moved}
        return q

    def _sorted(self, u: Tensor, c: float) -> Tensor:
        """Of a spectral set: every rank weighs the losses of all."""
        rows, ranks = self.rows, self.rows.ranks
        if self.p is not None and self._all_p is None:
            self._all_p = ranks.joined(rows.p)
        return ranks.own(self.oracle.exact_weights(ranks.joined(u), c, self._all_p, None))

    def _tilted(self, u: Tensor, c: float, radius: float) -> Tensor:
        """Of a KL ball."""
        rows = self.rows
        losses = _Losses(rows, u, radius)
        effective = price_in_ball(losses, c, radius, self.memory["threshold"])
        if effective > c:
            self.memory = {"threshold": 1.0 / effective, "moved": math.nan}
        return highest(rows, u, losses.top, effective)


class _Losses(Tilt):
    """The losses of all ranks for a KL ball."""

    def __init__(self, rows: Any, u: Tensor, radius: float) -> None:
        self.rows, self.u, self.is_small = rows, u, radius < self.SMALL
        self.top = float(rows.top(u))
        self.centre = self.top + self._sums(u - self.top)[0]
        apart = u - self.centre
        self.offset, square = self._sums(apart, apart * apart)
        self.variance = max(square - self.offset**2, 0.0)

    def _sums(self, *values: Tensor) -> list[float]:
        """Of ``p_i`` times these, in one exchange."""
        here = torch.stack([self.rows.p @ each for each in values])
        return self.rows.ranks.sum(here).tolist()

    def tied(self) -> float:
        return self._sums((self.u == self.top).to(self.u))[0]

    def sums(self, theta: float, near: bool) -> list[float]:
        if near:
            d = (self.u - self.centre) - self.offset
            e = torch.expm1(theta * d)
            return self._sums(e - theta * d, e * d, (e + 1.0) * d * d)
        d = self.u - self.top
        e = torch.exp(theta * d)
        return self._sums(e, e * d, e * d * d)
