"""Rows in arrays: dense or CSR, in the memory of this process."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import are_finite, check_groups, check_vector, locked
from drago.rows.base import (
    Evaluation,
    Gradient,
    Index,
    Matrix,
    NonFiniteLossError,
    RowStore,
    Vector,
)

Array = npt.NDArray[Any]

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


class Chosen:
    """Some of the rows of `ArrayRows`, and their features once they were asked for."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._features: tuple[bool, Matrix] | None = None

    def features(self, rows: ArrayRows, intercept: bool) -> Matrix:
        """The rows, with a last 1 for an intercept."""
        if self._features is None or self._features[0] != intercept:
            found = rows.dense(self.index)
            if intercept:
                found = np.column_stack([found, np.ones(len(found))])
            self._features = intercept, found
        return self._features[1]

    def dense(self, rows: ArrayRows, part: slice) -> Matrix:
        """Some of them without the 1, as an array to be written to."""
        if self._features is None:
            return rows.dense(self.index[part])
        return self._features[1][part, : rows.n_features].copy()

    def keep(self, mask: npt.NDArray[np.bool_]) -> Chosen:
        """Some of them."""
        if mask.all():
            return self
        other = Chosen(self.index[mask])
        if self._features is not None:
            other._features = self._features[0], self._features[1][mask]
        return other


class ArrayRows(RowStore):
    """The rows of arrays.

    Parameters
    ----------
    X : array or CSR matrix of shape (n, n_features)
        float32 or float64.
    y : array of shape (n,)
    p : array of shape (n,)
        Positive, with sum 1.
    groups : array of int of shape (n,), optional
    """

    capabilities = frozenset({"single rows", "whole vectors", "compiled", "responses"})

    def __init__(self, X: Any, y: Array, p: Vector, groups: Array | None = None) -> None:
        # Locked: to Numba a read-only array is another type, compiled anew.
        self.X, self.y, self.p = locked(X), locked(y), locked(p)
        self.groups = None if groups is None else locked(groups)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle is made of; what was computed from it is computed again."""
        return {name: getattr(self, name) for name in ("X", "y", "p", "groups")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @cached_property
    def n_samples(self) -> int:  # type: ignore[override]
        return int(self.X.shape[0])

    @cached_property
    def n_features(self) -> int:  # type: ignore[override]
        return int(self.X.shape[1])

    @cached_property
    def n_entries(self) -> int:  # type: ignore[override]
        return int(self.X.nnz) if self.is_sparse else self.n_samples * self.n_features

    @cached_property
    def is_sparse(self) -> bool:  # type: ignore[override]
        return not isinstance(self.X, np.ndarray)

    @cached_property
    def is_plain(self) -> bool:
        """Whether X is a dense array of float64."""
        return not self.is_sparse and self.X.dtype == np.float64

    @cached_property
    def norms(self) -> Vector:
        """Squares of the euclidean norms of the rows."""
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
        return square

    def row_norms(self, intercept: bool) -> Vector:
        """Euclidean norms of the rows, with a last 1 for an intercept."""
        return np.sqrt(self.norms + float(intercept))

    def longest(self, intercept: bool) -> float:
        return float(self.row_norms(intercept).max())

    def steepest(self, b: float, radius: float, intercept: bool) -> float:
        norms = self.row_norms(intercept)
        return float(((abs(self.y - b) + norms * radius) * norms).max())

    # ------------------------------------------------------------------------ in and out

    def export(self, values: Any) -> Any:
        return values

    def enter(self, name: str, values: Any) -> Any:
        return check_vector(name, values, self.n_samples)

    def take(self, index: Index) -> ArrayRows:
        p = self.p[index] / self.p[index].sum()
        groups = None if self.groups is None else check_groups(self.groups[index], p.size)
        return ArrayRows(self.X[index], self.y[index], p, groups)

    def sample(self, index: Index) -> ArrayRows:
        return self.take(index)

    def replaced(self, **changes: Any) -> ArrayRows:
        """The same rows but for this."""
        return ArrayRows(**(self.__getstate__() | changes))

    def spread(self, weights: Vector, kept: npt.NDArray[np.bool_]) -> Vector:
        """Weights of the rows as weights of all that were given, of which these were kept."""
        out = np.zeros(kept.size)
        out[kept] = weights
        return out

    def condensed(self, n_classes: int) -> ArrayRows | None:
        labels = self.y.astype(np.int64)
        if self.groups is not None:
            labels = labels + n_classes * self.groups
        if int(labels.max()) >= self.n_samples:
            return None
        mass = np.bincount(labels, self.p)
        there = np.flatnonzero(mass)
        mass = mass[there]
        groups = None if self.groups is None else there // n_classes
        y = (there % n_classes).astype(self.y.dtype)
        return ArrayRows(np.zeros((there.size, 1)), y, mass / mass.sum(), groups)

    def few(self, n: int, n_outputs: int) -> ArrayRows:
        """A few harmless rows that run the same compiled code."""
        X = self.X[:n] * 0
        if isinstance(X, np.ndarray):
            X = X + X.dtype.type(1)
        y = np.arange(n) % n_outputs if n_outputs > 1 else np.arange(n) % 2
        groups = None if self.groups is None else np.arange(n) % 2
        return ArrayRows(X, y.astype(self.y.dtype), np.full(n, 1.0 / n), groups)

    def oracle(self, uncertainty: Any, divergence: Any) -> Any:
        # Set and divergence were checked at the door of the problem.
        return uncertainty._oracle(self.p, divergence, self.groups)

    # ------------------------------------------------------------------------ visits to X

    def _chunks(self) -> list[slice]:
        rows = max(1, _CHUNK // self.n_features)
        return [slice(k, min(k + rows, self.n_samples)) for k in range(0, self.n_samples, rows)]

    def predict(self, w: Matrix, b: Vector) -> Matrix:
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

    def evaluate(self, loss: Any, w: Matrix, b: Vector, raw: Any = None) -> Evaluation:
        raw = self.predict(w, b) if raw is None else raw
        losses, dlosses = loss.evaluate(self.y, raw)  # as `apply` does
        if not (are_finite(losses) and are_finite(dlosses)):
            bad = ~(np.isfinite(losses) & np.isfinite(dlosses).all(axis=1))
            i = int(np.argmax(bad))
            raise NonFiniteLossError(
                f"the loss {loss.name!r} is NaN or infinite on {int(bad.sum())} rows, "
                f"first on row {i} at the raw prediction {raw[i]}; "
                "check the loss, or scale the features and the target."
            )
        return Evaluation(w, b, raw, losses, dlosses)

    def apply(self, loss: Any, raw: Matrix) -> tuple[Vector, Matrix]:
        return loss.evaluate(self.y, raw)

    def weighted_sum(self, c: Matrix) -> Matrix:
        """``X' c`` in float64, shape (n_features, columns of c).

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

    def gradient(self, dlosses: Matrix, q: Vector) -> Gradient:
        if dlosses.shape[1] == 1:
            weighted = q * dlosses[:, 0]
            return Gradient(self.weighted_sum(weighted[:, None]), weighted.sum(keepdims=True))
        weighted = q[:, None] * dlosses
        return Gradient(self.weighted_sum(weighted), weighted.sum(axis=0))

    def centre(self) -> Vector:
        return self.weighted_sum(self.p[:, None])[:, 0]

    def dense(self, index: Index) -> Matrix:
        """Some rows of X as a dense float64 array."""
        block = self.X[index].toarray() if self.is_sparse else self.X.take(index, axis=0)
        return np.ascontiguousarray(block, dtype=np.float64)

    def weighted_squares(self, q: Vector) -> Vector:
        index = np.flatnonzero(q)
        return q[index] @ self.dense(index) ** 2

    def steepest_of(self, dlosses: Matrix, index: Index, lengths: Vector) -> float:
        return float((np.linalg.norm(dlosses[index], axis=1) * lengths).max())

    def drift(self, loss: Any, ev: Evaluation, index: Index, scale: float) -> float:
        rows = self.X[index] if self.is_sparse else self.dense(index)
        off = np.abs(rows @ ev.w + ev.b - ev.raw[index])
        # What that makes of the losses, at most.
        slope = np.abs(ev.dlosses[index])
        if np.isfinite(loss.curvature):
            slope = np.minimum(slope + loss.curvature * off, loss.lipschitz)
        size = np.maximum(np.abs(ev.losses[index]), max(scale, np.finfo(float).tiny))
        return float((slope * off / size[:, None]).max())

    # ------------------------------------------------------------- the curvature of some rows

    def curvature(self, loss: Any, raw: Matrix, q: Vector) -> Vector:
        if raw.shape[1] > 1:
            return loss.curvature * q
        return q * loss.second(self.y, raw)

    def heaviest(self, weight: Vector, size: int) -> Chosen:
        about_equal = np.flatnonzero(weight > 0.5 * weight.max())
        if about_equal.size > size:
            return Chosen(about_equal[np.arange(size, dtype=np.int64) * about_equal.size // size])
        index = np.flatnonzero(weight > 0)
        if index.size > size:
            index = index[np.argpartition(-weight[index], size)[:size]]
            index.sort()
        return Chosen(index)

    def size(self, chosen: Chosen) -> int:
        return int(chosen.index.size)

    def total(self, values: Vector, chosen: Chosen | None = None) -> float:
        return float((values if chosen is None else values[chosen.index]).sum())

    def gram(self, chosen: Chosen, weight: Vector, intercept: bool) -> Matrix:
        """As many rows at a time as stay in the cache.

        The weights are not negative: with their roots it is the square of one matrix.
        """
        index, d = chosen.index, self.n_features
        m = d + int(intercept)
        out, step = np.zeros((m, m)), max(64, _IN_CACHE // m)
        for k in range(0, index.size, step):
            part = slice(k, k + step)
            root = np.sqrt(weight[index[part]])
            rows = chosen.dense(self, part)
            rows *= root[:, None]
            out[:d, :d] += rows.T @ rows
            if intercept:
                out[d, :d] += root @ rows
                out[d, d] += root @ root
        out[:d, d:] = out[d:, :d].T
        return out

    def leverages(self, chosen: Chosen, root: Matrix, intercept: bool) -> Vector:
        F = chosen.features(self, intercept)
        out, step = np.empty(len(F)), max(1, _CHUNK // root.shape[0])
        for k in range(0, len(F), step):
            part = F[k : k + step] @ root.T
            out[k : k + step] = np.einsum("ij,ij->i", part, part)
        return np.sqrt(out)

    def greatest(self, values: Vector) -> float:
        return float(values.max(initial=-np.inf))

    def narrow(self, chosen: Chosen, values: Vector, most: float) -> Chosen:
        return chosen.keep(values <= most)

    def unbent(self, chosen: Chosen, raw: Matrix, step: Gradient, delta: float) -> Chosen:
        rows = chosen.features(self, True) if step.b.any() else chosen.features(self, False)
        move = np.append(step.w, step.b) if step.b.any() else step.w[:, 0]
        residual = raw[chosen.index, 0] - self.y[chosen.index]
        return chosen.keep(np.abs(residual - rows @ move) <= delta)

    def class_hessian(
        self, loss: Any, chosen: Chosen, raw: Matrix, q: Vector, intercept: bool
    ) -> Matrix:
        F, weight = chosen.features(self, intercept), q[chosen.index]
        pi = loss.probabilities(raw[chosen.index])
        k, m = pi.shape[1], F.shape[1]
        H = np.empty((k, m, k, m))
        for a in range(k):
            of_class = weight * pi[:, a]
            for c in range(a, k):
                moved = of_class * ((1.0 if a == c else 0.0) - pi[:, c])
                part = (F * moved[:, None]).T @ F
                H[a, :, c, :], H[c, :, a, :] = part, part.T
        return H.reshape(k * m, k * m)

    def class_diagonal(self, loss: Any, chosen: Chosen, raw: Matrix, q: Vector) -> Matrix:
        pi, d = loss.probabilities(raw[chosen.index]), self.n_features
        weight = q[chosen.index][:, None] * pi * (1 - pi)
        return (chosen.features(self, True)[:, :d] ** 2).T @ weight

    def class_leverages(self, chosen: Chosen, inverse: Matrix, intercept: bool) -> Vector:
        F, k = chosen.features(self, intercept), inverse.shape[0]
        blocks = np.ascontiguousarray(inverse.transpose(0, 2, 1, 3))
        own = [((F @ blocks[a, a]) * F).sum(1) for a in range(k)]
        found = np.zeros(len(F))
        for a in range(k):
            for c in range(a + 1, k):
                pair = own[a] + own[c] - 2.0 * ((F @ blocks[a, c]) * F).sum(1)
                np.maximum(found, pair, out=found)
        return np.sqrt(found)

    def hessian(
        self, loss: Any, ev: Evaluation, q: Vector, response: Any, intercept: bool
    ) -> Matrix:
        if ev.dlosses.shape[1] == 1 and response.is_one_pool:
            return self._one_pool(loss, ev, q, response, intercept)
        # Rows that have weight or whose weight responds; all of them for grouped sets.
        index = np.arange(q.size)
        if response.aggregate is None:
            index = np.flatnonzero((q > 0) | (response.pool >= 0))
        chosen = Chosen(index)
        if loss.has_class_hessian:
            H = self.class_hessian(loss, chosen, ev.raw, q, intercept)
        else:
            H = self.gram(chosen, self.curvature(loss, ev.raw, q), intercept)
        F = chosen.features(self, intercept)
        # Rows of Z are class-major, as H is.
        Z = ev.dlosses[index][:, :, None] * F[:, None, :]
        Z = Z.reshape(len(index), Z.shape[1] * Z.shape[2])
        return H + response.restricted(index).curvature(Z)

    def _one_pool(
        self, loss: Any, ev: Evaluation, q: Vector, response: Any, intercept: bool
    ) -> Matrix:
        """Where all rows that move move together: the square of one matrix."""
        slopes = ev.dlosses[:, 0]
        moving = np.where(response.pool >= 0, response.rate * slopes, 0.0)
        weight = q * loss.second(self.y, ev.raw) + moving * slopes
        H = self.gram(Chosen(np.flatnonzero(weight)), weight, intercept)

        def drop(by: Vector, mass: float) -> None:
            """The moves have no part along this."""
            if mass > 0:
                along = self.weighted_sum(by[:, None])[:, 0]
                if intercept:
                    along = np.append(along, by.sum())
                H[...] -= np.outer(along, along / mass)

        drop(moving, float(response.rate[response.pool >= 0].sum()))
        if response.direction is not None:
            z = np.where(response.pool >= 0, response.direction, 0.0)
            drop(moving * z, float(np.dot(response.rate, z * z)))
        return H

    # ------------------------------------------------------------------- vectors of the rows

    def add(self, x: Array, y: Array, t: float = 1.0) -> Array:
        return x + t * y

    def scaled(self, x: Array, t: float) -> Array:
        return t * x

    def mix(self, x: Array, y: Array, share: float) -> Array:
        return (1.0 - share) * x + share * y

    def relative(self, q: Vector) -> Vector:
        return q / self.p

    def second_moment(self, x: Vector) -> float:
        return float(np.dot(self.p * x, x))

    def shift(self, raw: Matrix, b: Vector) -> Matrix:
        return np.ascontiguousarray(raw + b)

    def by_class(self, values: Vector) -> Vector:
        return values[self.y.astype(np.int64)]

    def class_masses(self, weights: Vector, n_classes: int) -> Vector:
        labels = self.y.astype(np.int64)
        return np.bincount(labels, weights, n_classes).astype(np.float64, copy=False)

    def dot(self, x: Vector, y: Vector) -> float:
        return float(np.dot(x, y))

    def count(self, q: Vector, above: float = 0.0) -> int:
        return int(np.count_nonzero(q > above))

    def slope_along(self, q: Vector, dlosses: Matrix, step: Matrix) -> float:
        return float(np.einsum("i,ic,ic->", q, dlosses, step))

    def slope_sums(self, q: Vector, dlosses: Matrix) -> tuple[Vector, Vector]:
        return q @ dlosses, q @ np.abs(dlosses)

    def distance(self, divergence: Any, q: Vector) -> float:
        return divergence._value(q, self.p)

    # --------------------------------------------------------------- what weights are worth

    def _parts(self) -> list[slice]:
        """The rows in parts of which temporary vectors are small."""
        return [slice(k, k + _PART) for k in range(0, self.n_samples, _PART)]

    def _mirror(self, is_kl: bool, nu: float, exact: Vector, rows: slice) -> Vector:
        """``exact / p`` or its logarithm, 0 where there is no weight or no shift cost."""
        if nu == 0:
            return np.zeros(exact[rows].size)
        ratio = exact[rows] / self.p[rows]
        return np.log(np.where(ratio > 0, ratio, 1.0)) if is_kl else ratio

    def slack_sums(
        self, is_kl: bool, nu: float, losses: Vector, exact: Vector, q: Vector
    ) -> Vector:
        found = np.zeros(3)
        for s in self._parts():
            found[0] += exact[s] @ self._mirror(is_kl, nu, exact, s)
            found[2] += np.count_nonzero((exact[s] == 0) & (q[s] > 0))
        found[1] = losses.sum()
        return found

    def slack_terms(
        self,
        is_kl: bool,
        nu: float,
        losses: Vector,
        exact: Vector,
        q: Vector,
        mean: float,
        centre: float,
    ) -> Vector:
        found = np.zeros(3)
        for s in self._parts():
            step, slope = exact[s] - q[s], nu * (self._mirror(is_kl, nu, exact, s) - centre)
            found[0] += step @ ((losses[s] - mean) - slope)
            found[2] += np.abs(step).sum()
            if nu > 0 and is_kl:
                some = exact[s] > 0
                ratio = np.where(some, q[s] / np.where(some, exact[s], 1.0), 1.0)
                logs = np.log(np.where(ratio > 0, ratio, 1.0))
                found[1] += exact[s] @ (ratio * logs - (ratio - 1.0))
            elif nu > 0:
                found[1] += 0.5 * (step @ (step / self.p[s]))
        return found

    def slack_scale(self, is_kl: bool, nu: float, exact: Vector, centre: float) -> float:
        if nu == 0:
            return 0.0
        slopes = (self._mirror(is_kl, nu, exact, s) - centre for s in self._parts())
        return nu * max(float(np.abs(slope).max()) for slope in slopes)

    def extremes(self, values: Vector) -> tuple[float, float]:
        return float(values.min()), float(values.max())

    def violation(self, uncertainty: Any, q: Vector) -> float:
        return uncertainty._violation(q, self.p, self.groups)

    def q_max(self, uncertainty: Any) -> float:
        return uncertainty._q_max(self.p, self.groups)

    def kappa_q(self, uncertainty: Any) -> float:
        return float(uncertainty._max_ratios(self.p, self.groups).max())

    # ----------------------------------------------------------------------- the intercept

    def balance(
        self, loss: Any, raw: Matrix, q: Vector, n_outputs: int
    ) -> tuple[Matrix, float] | None:
        found = loss.balance(self.y, raw, q)
        return None if found is None else (found[0], float(q @ found[1]))

    def tangent_excess(
        self, q: Vector, here: Vector, losses: Vector, dlosses: Matrix, shift: float
    ) -> float:
        return float(q @ np.maximum(here - losses + dlosses[:, 0] * shift, 0.0))

    def moments(self, raw: Matrix) -> Vector:
        return np.array([raw.sum(), np.vdot(raw, raw)])

    def offsets(self, raw: Matrix) -> tuple[float, float, float]:
        offsets = self.y - raw[:, 0]
        return float(offsets.min()), float(offsets.max()), float(self.p @ offsets)
