"""Dual steps that visit only the rows whose weight they can change.

With chi2 and weights ``0 <= q_i <= cap p_i``, DRAGO's dual step is

    q_i = p_i clip((u_i - tau)/(nu + s), 0, cap),    u_i = l_i + s q_i/p_i,

where ``tau`` makes the sum 1. A row at 0 stays there if ``l_i <= tau``, a row at the cap if
``l_i >= tau + nu cap``, whatever ``s`` is: these are settled, and soon nearly all of them are. So a
list is kept of each block's rows that are not, or would not be if ``tau`` moved a little, and steps
are made on the lists. Such a step is exact if ``tau`` has not moved further; if it has, or if the
lists grow long, the step is made on all rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago.terms.uncertainty.capped import CappedOracle

Vector = npt.NDArray[np.float64]

# Rows, blocks and rows in a block below which a step on all rows takes no longer.
LEAST_ROWS = 1 << 16
_LEAST_BLOCKS = 4
_LEAST_BLOCK = 64
# One row of so many has a place in the lists; steps on all rows after these were too short.
_SHARE = 4
_REST = 8
# How far tau may move, in multiples of its last move; how fast that falls when it moves less.
_ROOM = 3.0
_FORGET = 0.9
# What the sum of the weights may lack.
_ROUNDING = 1e-9
# More than any loss.
_HUGE = 1e100
_NONE = np.empty(0)


class Unsettled:
    """Lists of the rows whose weight can change.

    Parameters
    ----------
    slices : sequence of slice
        The places of each block.
    oracle : CappedOracle
        Whose threshold ``tau`` is used and kept.
    u : array of shape (n,)
        Room. Whoever else writes to it ends the lists before, by `forget`.
    """

    def __init__(self, slices: Sequence[slice], oracle: CappedOracle, u: Vector) -> None:
        self._slices, self._oracle = slices, oracle
        p = oracle.p
        self._p = p[:1] if p.min() == p.max() else p
        part = p.size // _SHARE
        # Rows of all lists and one more. Most of it lies in `u`, which others overwrite.
        places = [u[k * part : (k + 1) * part] for k in range(_SHARE)]
        self._u, self._new, self._level, self._weight = places
        self._mass = np.full(part, p[0])
        self._where = np.empty(part, np.int64 if p.size > np.iinfo(np.int32).max else np.int32)
        self._starts = np.array([rows.start // _SHARE for rows in slices])
        self._room = np.diff([*self._starts, part - 1])
        count = len(slices)
        self._sizes = np.zeros(count, np.int64)
        self._is_listed = [False] * count
        # Of each block: the mass of its settled rows at the cap, and the bounds on tau.
        self._capped, self._low, self._high = [0.0] * count, [np.nan] * count, [np.nan] * count
        self.memory: dict[str, float] = {"moved": np.nan, "rest": 0}

    @classmethod
    def made_for(
        cls, divergence: Any, slices: Sequence[slice], oracle: Any, u: Vector
    ) -> Unsettled | None:
        """Lists, where weights can be settled and it pays to know which are."""
        if not isinstance(oracle, CappedOracle) or not divergence.is_chi2:
            return None
        n, count = u.size, len(slices)
        is_large = n >= LEAST_ROWS and _LEAST_BLOCKS <= count <= n // _LEAST_BLOCK
        return cls(slices, oracle, u) if is_large and oracle.cap > 1 else None

    def step(
        self, table: Vector, q: Vector, j: int, change: Vector, k: int, nu: float, s: float
    ) -> bool:
        """A dual step after the losses of block `k` have changed.

        ``change`` is added to the losses of block `j`, for this step alone. Returns whether the
        step was made; if not, `q` are the weights before it.
        """
        if self.memory["rest"] > 0:
            self.memory["rest"] -= 1
            self.forget(q)
            return False
        before = self._oracle._tau
        self.forget(q, {j, k})
        if not self._list_all(table, q, j, change, nu) or not self._solve(nu + s, s):
            self.forget(q)
            return False
        self.observe(before)
        self.forget(q, [j])
        return True

    def observe(self, before: float) -> None:
        """Learn from a step how far the threshold moves, from where it was `before`."""
        moved, known = abs(self._oracle._tau - before), self.memory["moved"]
        self.memory["moved"] = moved if math.isnan(known) else max(moved, _FORGET * known)

    def write(self, q: Vector, blocks: Iterable[int] | None = None) -> None:
        """Put the weights of some or all blocks in their places."""
        write = kernels.unsettled_write
        for k in range(len(self._is_listed)) if blocks is None else blocks:
            if self._is_listed[k]:
                write(self._where, self._weight, self._starts[k], self._sizes[k], q)

    def forget(self, q: Vector, blocks: Iterable[int] | None = None) -> None:
        """Do that, and end their lists."""
        write, is_listed = kernels.unsettled_write, self._is_listed
        for k in range(len(is_listed)) if blocks is None else blocks:
            if is_listed[k]:
                write(self._where, self._weight, self._starts[k], self._sizes[k], q)
                is_listed[k] = False

    def clear(self) -> None:
        """End all lists: the weights are others."""
        self._is_listed = [False] * len(self._is_listed)

    def _list_all(self, table: Vector, q: Vector, j: int, change: Vector, nu: float) -> bool:
        """List the blocks that are not; returns whether there was room."""
        find, tau, cap = kernels.unsettled_find, self._oracle._tau, self._oracle.cap
        room = _ROOM * self.memory["moved"]
        if math.isnan(room):
            return False
        low, high = tau - room, tau + room
        for block, is_listed in enumerate(self._is_listed):
            if is_listed:
                continue
            rows = self._slices[block]
            size, self._capped[block] = find(
                table, change if block == j else _NONE, q, self._p, rows.start, rows.stop,
                low, high + (nu * cap if cap < np.inf else 0.0), cap,
                self._where, self._level, self._weight, self._starts[block], self._room[block],
            )  # fmt: skip
            if size < 0:
                self.memory["rest"] = _REST
                return False
            self._sizes[block], self._is_listed[block] = size, True
            self._low[block], self._high[block] = low, high
        return True

    def _solve(self, c: float, s: float) -> bool:
        """The step on the rows in the lists; returns whether ``tau`` stayed within its bounds."""
        size = kernels.unsettled_collect(
            self._where, self._level, self._weight, self._p, self._starts, self._sizes, s,
            self._u, self._mass,
        )  # fmt: skip
        capped = sum(self._capped)
        if capped > 0:  # the settled rows at the cap are one more row
            self._u[size], self._mass[size] = _HUGE, capped
            size += 1
        if size == 0:
            return False
        u, mass, new = self._u[:size], self._mass[:size], self._new[:size]
        tau = kernels.capped_chi2(u, mass, c, self._oracle.cap, self._oracle._tau, new)
        self._mass[size - 1] = self._p[0]
        is_inside = max(self._low) <= tau <= min(self._high)
        if not is_inside or abs(kernels.unsettled_total(new) - 1.0) > _ROUNDING:
            return False
        kernels.unsettled_deal(new, self._starts, self._sizes, self._weight)
        self._oracle._tau, self._oracle._c = tau, c
        return True
