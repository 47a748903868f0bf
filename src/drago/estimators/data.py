"""What a fit is given; equal rows of small data are made one, so that weight k is k copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drago.terms.uncertainty.grouped import group_sums

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]

# Entries of X up to which looking for equal rows costs next to nothing.
_SMALL = 1 << 17


def scaled(weight: Vector) -> Vector:
    """The weights times a power of two, which is exact: sums of huge ones stay finite."""
    return np.ldexp(weight, -np.frexp(weight.max())[1])


@dataclass(frozen=True)
class TrainingData:
    """Features and targets, with weights, groups and a baseline where there are some.

    Once equal rows are made one, a solver takes the same steps whether a row has weight k or is
    there k times, to the last bit. Weights are summed before they are normalised, so that whole
    numbers stay exact; and k copies of one weight are k times that weight, rounded once.
    """

    X: Any
    y: Array
    weight: Vector | None
    groups: Array | None
    baseline: Vector | None = None
    _place: Array | None = None
    _share: Vector | None = None

    def merged(self) -> TrainingData:
        """The data with equal rows (in target, group and baseline) made one, where it is small.

        Its order does not depend on that of the rows, and rows without weight are not there.
        """
        X, y, groups = self.X, self.y, self.groups
        n, d = X.shape
        if n * d > _SMALL:
            return self
        dense = X if isinstance(X, np.ndarray) else X.toarray()
        others = [values for values in (y, groups, self.baseline) if values is not None]
        columns = [dense, *(values[:, None] for values in others)]
        # Adding 0 turns -0 into 0: they are equal, but their bytes are not.
        keys = np.ascontiguousarray(np.hstack(columns).astype(np.float64, copy=False) + 0.0)
        # Bytes without a field in between, which are sorted several times as fast.
        whole_rows = keys.view(np.dtype((np.void, keys.itemsize * keys.shape[1]))).reshape(-1)
        _, first, place = np.unique(whole_rows, return_index=True, return_inverse=True)
        place = place.reshape(-1)
        each = np.ones(n) if self.weight is None else scaled(self.weight)
        mass = each[first]
        if first.size < n:
            rising = np.argsort(each, kind="stable")  # a sum that the rows' order does not change
            sums = group_sums(place[rising], each[rising])
            mixed = group_sums(place, each != mass[place]) > 0
            mass = np.where(mixed, sums, np.bincount(place) * mass)
        share = each / np.where(mass > 0, mass, 1.0)[place]
        kept = mass > 0
        first, mass = first[kept], mass[kept]
        place = np.maximum(np.cumsum(kept) - 1, 0)[place]  # their share is 0, wherever they are
        groups, baseline = (
            None if values is None else values[first] for values in (groups, self.baseline)
        )
        return TrainingData(X[first], y[first], mass, groups, baseline, place, share)

    @property
    def n_given(self) -> int:
        """How many rows there were before equal ones were made one."""
        return self.X.shape[0] if self._place is None else self._place.size

    def on_distinct_rows(self, weights: Vector) -> Vector:
        """Weights of all rows, those of copies added up."""
        if self._place is None or self._share is None:
            return weights
        return group_sums(self._place, weights * (self._share > 0))

    def on_all_rows(self, weights: Vector) -> Vector:
        """Weights of the distinct rows, shared among their copies."""
        if self._place is None or self._share is None:
            return weights
        return weights[self._place] * self._share
