"""Means and variances of the features, from parts of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]

# Entries at a time, so that what is made of them in float64 stays small.
_ENTRIES = 1 << 20


class Moments:
    """Weighted means and sums of squared deviations, brought up to date part by part.

    Two parts are joined by ``m = m_1 + d w_2 / w`` and ``S = S_1 + S_2 + d^2 w_1 w_2 / w`` with
    ``d = m_2 - m_1``, which does not cancel as ``sum x^2 - n m^2`` does.
    """

    def __init__(self, n_features: int) -> None:
        self._weight = 0.0
        self._mean, self._spread = np.zeros(n_features), np.zeros(n_features)
        self._low, self._high = np.full(n_features, np.inf), np.full(n_features, -np.inf)

    def add(self, X: Any, weight: Vector | None) -> None:
        """Bring in rows of an array, or of a CSR matrix whose other entries are 0."""
        step = max(1, _ENTRIES // max(1, X.shape[1]))
        for start in range(0, X.shape[0], step):
            rows = X[start : start + step]
            w = np.ones(rows.shape[0]) if weight is None else weight[start : start + step]
            if isinstance(rows, np.ndarray):
                self._add_dense(rows.astype(np.float64), w)
            else:
                self._add_sparse(rows.astype(np.float64), w)

    def settled(self, centred: bool) -> tuple[Vector, Vector]:
        """The means (0 where not `centred`) and the standard deviations, 1 where there is none."""
        scale = np.sqrt(self._spread / self._weight)
        # What rounding leaves of a feature that does not change.
        same = (self._low == self._high) | ~(scale > 0)
        scale[same] = 1.0
        return self._mean if centred else np.zeros_like(self._mean), scale

    def _add_dense(self, rows: Array, w: Vector) -> None:
        np.minimum(self._low, rows.min(axis=0), out=self._low)
        np.maximum(self._high, rows.max(axis=0), out=self._high)
        total = float(w.sum())
        mean = (w @ rows) / total
        rows -= mean
        self._join(total, mean, w @ np.square(rows, out=rows))

    def _add_sparse(self, rows: Any, w: Vector) -> None:
        total = float(w.sum())
        mean = (rows.T @ w) / total
        counts = np.bincount(rows.indices, minlength=rows.shape[1])
        there = type(rows)((np.ones_like(rows.data), rows.indices, rows.indptr), shape=rows.shape)
        rest = total - there.T @ w  # the weight of the rows without an entry
        deviations = type(rows)(
            ((rows.data - mean[rows.indices]) ** 2, rows.indices, rows.indptr), shape=rows.shape
        )
        full = counts == rows.shape[0]
        low, high = rows.min(axis=0).toarray()[0], rows.max(axis=0).toarray()[0]
        np.minimum(self._low, low, out=self._low)
        np.maximum(self._high, high, out=self._high)
        spread = deviations.T @ w + np.where(full, 0.0, np.maximum(rest, 0.0)) * mean**2
        self._join(total, mean, spread)

    def _join(self, total: float, mean: Vector, spread: Vector) -> None:
        before = self._weight
        self._weight += total
        change = mean - self._mean
        self._mean += change * (total / self._weight)
        self._spread += spread + change**2 * (before * total / self._weight)
