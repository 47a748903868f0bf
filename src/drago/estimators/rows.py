"""Equal rows of small data made one, so that weight k is k copies to the last bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]

# Entries of X up to which looking for equal rows costs next to nothing.
_SMALL = 1 << 17


@dataclass(frozen=True)
class Rows:
    """What a problem is made of.

    Made one, equal rows let a solver take the same steps whether a row has weight k or is there k
    times. Weights are summed before they are normalised: whole numbers stay exact.
    """

    X: Any
    y: Array
    weight: Vector | None
    groups: Array | None
    _place: Array | None = None
    _share: Vector | None = None

    def merged(self) -> Rows:
        """The data with equal rows (in target and group too) made one, where it is small.

        Its order does not depend on that of the rows.
        """
        X, y, groups = self.X, self.y, self.groups
        n, d = X.shape
        if n * d > _SMALL:
            return self
        dense = X if isinstance(X, np.ndarray) else X.toarray()
        columns = [dense, y[:, None]] if groups is None else [dense, y[:, None], groups[:, None]]
        # Adding 0 turns -0 into 0: they are equal, but their bytes are not.
        keys = np.ascontiguousarray(np.hstack(columns).astype(np.float64) + 0.0)
        keys = keys.view([("", np.void, keys.itemsize * keys.shape[1])]).reshape(-1)
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        place = place.reshape(-1)
        each = np.ones(n) if self.weight is None else self.weight
        mass = np.bincount(place, weights=each).astype(np.float64, copy=False)
        share = each / np.where(mass > 0, mass, 1.0)[place]
        together = None if groups is None else groups[first]
        return Rows(X[first], y[first], mass, together, place, share)

    def on_all_rows(self, weights: Vector) -> Vector:
        """Weights of the distinct rows, shared among their copies."""
        if self._place is None or self._share is None:
            return weights
        return weights[self._place] * self._share
