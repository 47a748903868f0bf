"""Exact weights of spectral sets for rows in parts, without a sort of all losses at once.

The losses are sorted range by range (`drago.oracles.rounds.ranges`), and each atom is pushed on the
stack of pools. That stack is a vector with room for all rows, and only its top is touched, so that
it may be in a file. In the end each row finds its pool by its loss. No bound is needed for what
bins would leave out: the weights are those of one sort of all losses, and the memory is that of one
range. Rows of equal weight need no order of their numbers, only that of their losses, so that the
sort is the quick one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from drago import kernels
from drago._threads import threads_for
from drago.oracles.atoms import AtomOracle, AtomResponse, RowVector
from drago.oracles.rounds.ranges import EMPTY, Range, atoms, ranges_of
from drago.oracles.rounds.rows import Part, few
from drago.terms.uncertainty.base import price


class RangeOracle(AtomOracle):
    """The dual oracle of a spectral set, for a store in parts of arrays.

    Parameters
    ----------
    rows : PartedRows
        Its `sorting` says how many bytes a sort may take.
    uncertainty : SpectralSet
    divergence : Divergence
    """

    def weights(self, u: RowVector, c: float) -> RowVector:
        return self._weigh(u, price(float(c)), False)[0]

    def with_mirror(self, u: RowVector, c: float) -> tuple[RowVector, RowVector]:
        return self._weigh(u, price(float(c)), True)

    def response(
        self, u: RowVector, c: float, q: RowVector | None = None
    ) -> tuple[RowVector, AtomResponse | None]:
        """Not known where there is no memory for all losses, or for a gradient of each pool."""
        rows, memory = self.rows, self.rows.sorting
        if memory < 8 * rows.n_samples:
            return self.weights(u, c) if q is None else q, None
        q, found = super().response(u, c, q)
        is_large = found is not None and 8 * found.n_pools * rows.n_features > memory
        return q, None if is_large else found

    def _weigh(self, u: RowVector, c: float, with_mirror: bool) -> tuple[RowVector, RowVector]:
        rows, parts = self.rows, self.rows.pairs(u)
        kind = kernels.CHI2_POOLS if self.divergence.is_chi2 else kernels.KL_POOLS
        kind = kind if c > 0 else kernels.VERTEX_POOLS
        ranges, n_threads = ranges_of(parts, rows.sorting), threads_for(rows.n_entries)
        if not ranges:
            lost = rows.vector(np.full(some.size, np.nan) for some, _ in parts)
            return lost, lost if with_mirror else None
        first, last, _, level = self._pools(kind, parts, ranges, c)
        q = [rows.room(some.size) for some, _ in parts]
        mirror = [rows.room(some.size) if with_mirror else EMPTY for some, _ in parts]
        for low, high, _ in ranges:
            a, b = np.searchsorted(first, (low, high), "right")
            here = slice(max(int(a) - 1, 0), int(b))
            coarse = first[here][:: kernels.POOL_STRIDE].copy()
            for k, (losses, p) in enumerate(parts):
                kernels.pool_weights(
                    kind, losses, EMPTY if p is None else p, 1.0 / rows.n_samples, low, high, c,
                    first[here], coarse, last[here], level[here], q[k], mirror[k], n_threads,
                )  # fmt: skip
        if with_mirror and kind == kernels.VERTEX_POOLS and not self.divergence.is_chi2:
            with np.errstate(divide="ignore"):
                mirror = [np.log(ratio, out=ratio) for ratio in mirror]
        return rows.vector(q), rows.vector(mirror) if with_mirror else None

    def _pools(
        self, kind: int, parts: Sequence[Part], ranges: Sequence[Range], c: float
    ) -> list[np.ndarray]:
        """What ``kernels/dual_ranges.hpp`` keeps of each pool, ascending."""
        n = self.rows.n_samples
        unused = (1, 2) if kind == kernels.VERTEX_POOLS else ()
        pools = [EMPTY if k in unused else self.rows.room(n) for k in range(4)]
        total = float(n) if parts[0][1] is None else float(self.rows.total(self.rows.p))
        count, done, weight = 0, 0.0, 0.0
        for values, masses in atoms(parts, ranges):
            ends = _ends(done, masses)
            done = float(ends[-1])
            p = masses / total
            sigma = self.uncertainty._between(np.minimum(ends / total, 1.0), p)
            weight += float(sigma.sum())
            count = kernels.push_atoms(kind, values, p, sigma, c, *pools, count)
        pools = [each[:count] for each in pools]
        # The weights sum to 1 but for rounding, which is shared out.
        kernels.settle_pools(kind, c, 1.0 / weight, *pools[1:])
        return pools


def excess(uncertainty: Any, parts: Sequence[Part], memory: int) -> float:
    """How much more than G allows the rows of the largest ``q/p`` weigh; parts of ``q/p`` and p.

    The worst sets of rows are those, and rows of equal ``q/p`` go together.
    """
    total = sum(float(u.size if p is None else p.sum()) for u, p in few(parts))
    weight = sum(float(u.sum() if p is None else np.dot(u, p)) for u, p in few(parts))
    ranges = ranges_of(parts, memory)
    most, done, given = 0.0 if ranges else math.inf, 0.0, 0.0
    for values, masses in atoms(parts, ranges):
        below, lighter = _ends(done, masses), _ends(given, values * masses)
        done, given = float(below[-1]), float(lighter[-1])
        above = np.clip((total - below[:-1]) / total, 0.0, 1.0)
        taken = (weight - lighter[:-1]) / total - uncertainty.tail(above)
        most = max(most, float(taken.max()))
    return most


def _ends(start: float, lengths: np.ndarray) -> np.ndarray:
    """The ends of consecutive intervals, the first of which begins at `start`."""
    ends = np.empty(lengths.size + 1)
    ends[0] = start
    np.cumsum(lengths, out=ends[1:])
    ends[1:] += start
    return ends
