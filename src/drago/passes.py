"""Visits to the data of a problem, and what is done with vectors of its rows.

Everything that touches an array with an entry for each row is here, so that an engine which keeps
them elsewhere has one place to replace. Coefficients are small and stay NumPy arrays everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from drago._validation import check_vector
from drago.terms.divergences import Divergence

if TYPE_CHECKING:
    from types import ModuleType

    from drago.terms.uncertainty import DualOracle, UncertaintySet

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Entries of a block of X that is converted to float64 at a time.
_CHUNK = 1 << 18
# Those of which a matrix stays in the cache between two operations.
_IN_CACHE = 1 << 15
# Share of the rows below which they are worth being picked out of a matrix that large, and how
# many are looked at to tell.
_FEW = 0.25
LARGE = 1 << 22
_STRIDE = 61
# Entries of a vector at a time where temporary ones would be as long as the data.
_PART = 1 << 16


class Evaluation(NamedTuple):
    """What one visit to the data at ``(w, b)`` yields."""

    w: Matrix
    b: Vector
    raw: Any
    losses: Any
    dlosses: Any


class Passes:
    """What a problem can do with its rows, on arrays."""

    X: Any
    y: Any
    p: Any
    groups: Any
    loss: Any
    uncertainty: UncertaintySet
    divergence: Divergence
    n_outputs: int
    mu: float
    nu: float
    fit_intercept: bool

    xp: ModuleType = np
    """The module with the functions of vectors."""
    engine: Mapping[str, Any] = MappingProxyType({})
    """Classes that take the place of a solver's own, for vectors that are no arrays."""
    is_linear = True
    """Whether predictions are ``X w + b``."""
    least_part = 2000
    """Rows below which a smaller problem takes no less time."""
    small = 1 << 19
    """Entries of X below which a visit costs less than what goes with it."""
    is_gram_cheap = False
    """Whether the Gram matrix of all rows takes no longer than that of a few."""

    @property
    def is_convex(self) -> bool:
        """Whether the losses are convex in w: without that there is no certificate."""
        return True

    @property
    def reference_slope(self) -> float:
        """``||grad P||`` where a solve starts, for a problem without certificate."""
        return np.nan

    @property
    def in_float64(self) -> Any:
        """The problem in float64, for certificates."""
        return self

    @cached_property
    def n_samples(self) -> int:
        return int(self.X.shape[0])

    @cached_property
    def n_features(self) -> int:
        return int(self.X.shape[1])

    @cached_property
    def n_entries(self) -> int:
        """Numbers that a visit to all rows reads."""
        return int(self.X.nnz) if self.is_sparse else self.n_samples * self.n_features

    @cached_property
    def is_sparse(self) -> bool:
        return not isinstance(self.X, np.ndarray)

    @cached_property
    def row_norms(self) -> Vector:
        """Euclidean norms of the rows, the intercept's 1 included."""
        square = np.empty(self.n_samples)
        for rows in self._chunks():
            block = self.X[rows]
            if self.is_sparse:
                block = block.astype(np.float64)
                sums = block.multiply(block).sum(axis=1)
                square[rows] = np.asarray(sums, dtype=float).reshape(-1)
            else:
                block = block.astype(np.float64, copy=False)
                square[rows] = np.einsum("ij,ij->i", block, block)
        return np.sqrt(square + float(self.fit_intercept))

    # ------------------------------------------------------------------------ products with X

    def _chunks(self) -> list[slice]:
        rows = max(1, _CHUNK // self.n_features)
        return [slice(k, min(k + rows, self.n_samples)) for k in range(0, self.n_samples, rows)]

    def raw_prediction(self, w: Matrix, b: Vector) -> Matrix:
        """``X w + b`` in float64, shape (n, n_outputs); one pass, none for w = 0."""
        X = self.X
        if not w.any():
            raw = np.empty((self.n_samples, b.size))
            raw[:] = b
            return raw
        if X.dtype == np.float64:
            product = X @ (w[:, 0] if w.shape[1] == 1 else w)
            raw = np.asarray(product, dtype=np.float64).reshape(self.n_samples, -1)
        else:
            raw = np.empty((self.n_samples, w.shape[1]))
            for rows in self._chunks():
                raw[rows] = X[rows].astype(np.float64) @ w
        if b.any():
            raw = raw + b
        return np.ascontiguousarray(raw)

    def weighted_rows(self, c: Matrix) -> Matrix:
        """``X' c`` in float64, shape (n_features, columns of c); one pass.

        Rows of X whose entries of `c` are all 0, as those outside of a tail, are not visited where
        they are many.
        """
        X = self.X
        if self._are_few(c):
            from drago.kernels.rows import accumulate

            out = np.zeros(self.n_features)
            accumulate(X, np.flatnonzero(c[:, 0]), c[:, 0], out)
            return out[:, None]
        if X.dtype == np.float64:
            product = X.T @ (c[:, 0] if c.shape[1] == 1 else c)
            return product[:, None] if product.ndim == 1 else product
        out = np.zeros((self.n_features, c.shape[1]))
        for rows in self._chunks():
            out += X[rows].astype(np.float64).T @ c[rows]
        return out

    def _are_few(self, c: Matrix) -> bool:
        """Whether to pick out the rows with an entry in `c`; judged by some of them."""
        if c.shape[1] > 1 or self.is_sparse or self.n_entries < LARGE:
            return False
        some = c[::_STRIDE, 0]
        return bool(self.X.flags.c_contiguous and np.count_nonzero(some) < _FEW * some.size)

    def rows(self, index: Array) -> Matrix:
        """Some rows of X as a dense float64 array."""
        block = self.X[index].toarray() if self.is_sparse else self.X.take(index, axis=0)
        return np.ascontiguousarray(block, dtype=np.float64)

    def gradient(self, ev: Evaluation, q: Any) -> tuple[Matrix, Vector]:
        """``X' (q s)`` and ``q' s``, the gradient of ``sum_i q_i l_i`` in w and b; one pass."""
        if self.n_outputs == 1:
            weighted = q * ev.dlosses[:, 0]
            return self.weighted_rows(weighted[:, None]), weighted.sum(keepdims=True)
        weighted = q[:, None] * ev.dlosses
        return self.weighted_rows(weighted), weighted.sum(axis=0)

    def gram(self, index: Array, weight: Any) -> Matrix:
        """``sum_i weight_i f_i f_i'`` over some rows, as many at a time as stay in the cache.

        The weights are not negative: with their roots it is the square of one matrix.
        """
        d = self.n_features
        m = d + int(self.fit_intercept)
        out, step = np.zeros((m, m)), max(64, _IN_CACHE // m)
        for k in range(0, index.size, step):
            part = index[k : k + step]
            root = np.sqrt(weight[part])
            rows = self.rows(part)
            rows *= root[:, None]
            out[:d, :d] += rows.T @ rows
            if self.fit_intercept:
                out[d, :d] += root @ rows
                out[d, d] += root @ root
        out[:d, d:] = out[d:, :d].T
        return out

    def features(self, index: Array) -> Matrix:
        """Rows of X, with the intercept's 1 where one is fitted."""
        rows = self.rows(index)
        return np.column_stack([rows, np.ones(len(rows))]) if self.fit_intercept else rows

    def own_features(self, index: Any) -> Any:
        """`features` as what the problem's vectors are."""
        return self.features(index)

    # ------------------------------------------------------------------- vectors of the rows

    def dual_oracle(self) -> DualOracle:
        """A new oracle for the weights; it starts each search where its last one ended."""
        # Set and divergence were checked at the door.
        return self.uncertainty._oracle(self.p, self.divergence, self.groups)

    def violation(self, q: Any) -> float:
        """How far weights are from the set, in mass."""
        return self.uncertainty._violation(q, self.p, self.groups)

    def distance(self, q: Any) -> float:
        """``D(q || p)``."""
        return self.divergence._value(q, self.p)

    def primal(self, w: Matrix, losses: Any, q: Any) -> float:
        """``sum q l - nu D(q || p) + (mu/2) ||w||^2``."""
        penalty = self.nu * self.distance(q) if self.nu > 0 else 0.0
        return float(np.dot(q, losses) - penalty + 0.5 * self.mu * np.vdot(w, w))

    def slope_along(self, q: Any, dlosses: Any, step: Any) -> float:
        """``sum_i q_i <s_i, step_i>``."""
        return float(np.einsum("i,ic,ic->", q, dlosses, step))

    def shift(self, raw: Any, b: Vector) -> Any:
        """``raw + b``."""
        return np.ascontiguousarray(raw + b)

    def to_host(self, values: Any) -> Array:
        """A vector as a NumPy array."""
        return values

    def from_host(self, values: Array) -> Any:
        """An array as what the problem's vectors are."""
        return values

    def from_user(self, name: str, values: Any) -> Any:
        """A vector of the rows that was given."""
        return check_vector(name, values, self.n_samples)

    def to_user(self, values: Any) -> Any:
        """A vector of the rows in the form in which they were given."""
        return values

    def pick(self, values: Any, index: Array) -> Array:
        """Some of its entries, as a NumPy array."""
        return values[index]

    def parts(self) -> list[slice]:
        """The rows in parts of which temporary vectors are small."""
        return [slice(k, k + _PART) for k in range(0, self.n_samples, _PART)]

    def heaviest(self, weight: Any, size: int) -> npt.NDArray[np.int64]:
        """Rows of the greatest weight; where more of them weigh about the same, some of these."""
        about_equal = np.flatnonzero(weight > 0.5 * weight.max())
        if about_equal.size > size:
            return about_equal[np.arange(size, dtype=np.int64) * about_equal.size // size]
        index = np.flatnonzero(weight > 0)
        if index.size > size:
            index = index[np.argpartition(-weight[index], size)[:size]]
            index.sort()
        return index

    def class_masses(self, weights: Any, n_classes: int) -> Vector:
        """The weight of each class."""
        labels = self.y.astype(np.int64)
        return np.bincount(labels, weights, n_classes).astype(np.float64, copy=False)

    def by_class(self, values: Vector) -> Any:
        """The value of each row's class."""
        return values[self.y.astype(np.int64)]
