"""Rows in arrays: dense or CSR, in the memory of this process."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago._threads import vector_threads
from drago._validation import check_groups, check_vector, locked, require_features, sum_of_squares
from drago.rows.array_near import ArrayNear
from drago.rows.array_visits import gathered
from drago.rows.base import (
    Index,
    Kept,
    Matrix,
    Vector,
)
from drago.rows.tables.arrays import ArrayTables
from drago.terms.sums import binary_masses

Array = npt.NDArray[Any]

# Entries of a vector at a time where temporary ones would be as long as the data.
_PART = 1 << 16


class ArrayRows(ArrayNear):
    """The rows of arrays.

    Parameters
    ----------
    X : array or CSR matrix of shape (n, n_features)
        float32 or float64.
    y : array of shape (n,)
    p : array of shape (n,), optional
        Positive, with sum 1. Without it all are alike.
    groups : array of int of shape (n,), optional
    baseline : array of shape (n,), optional
        What is subtracted from the losses.
    unread : bool
        Whether nobody has seen to it that X is finite: the first who reads it does.
    """

    capabilities = frozenset(
        {"single rows", "whole vectors", "compiled", "responses", "tables", "bounds"}
    )

    def __init__(
        self,
        X: Any,
        y: Array,
        p: Vector | None = None,
        groups: Array | None = None,
        baseline: Vector | None = None,
        *,
        unread: bool = False,
    ) -> None:
        self.stored, self.y = locked(X), locked(y)
        self.is_uniform = p is None
        if p is not None:
            self.p = locked(p)
        self.unread = unread
        self.groups = None if groups is None else locked(groups)
        self.baseline = None if baseline is None else locked(baseline)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle is made of; what was computed from it is computed again."""
        names = ("y", "groups", "baseline", "unread")
        own = {"X": self.stored, "p": None if self.is_uniform else self.p}
        return own | {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def X(self) -> Any:
        """The features; checked if they were not yet."""
        self.require_finite()
        return self.stored

    @cached_property
    def n_samples(self) -> int:  # type: ignore[override]
        return int(self.stored.shape[0])

    @cached_property
    def n_features(self) -> int:  # type: ignore[override]
        return int(self.stored.shape[1])

    @cached_property
    def n_entries(self) -> int:  # type: ignore[override]
        return int(self.stored.nnz) if self.is_sparse else self.n_samples * self.n_features

    @cached_property
    def is_sparse(self) -> bool:  # type: ignore[override]
        return not isinstance(self.stored, np.ndarray)

    @cached_property
    def is_plain(self) -> bool:
        """Whether X is a dense array of float64."""
        return not self.is_sparse and self.stored.dtype == np.float64

    @cached_property
    def norms(self) -> Vector:
        """Squares of the euclidean norms of the rows."""
        square, ones = np.empty(self.n_samples), np.ones(self.n_features)
        for rows in self._chunks():
            block = self.X[rows]
            if self.is_sparse:
                parts = (block.data.astype(np.float64) ** 2, block.indices, block.indptr)
                square[rows] = type(block)(parts, shape=block.shape) @ ones
            else:
                block = block.astype(np.float64, copy=False)
                square[rows] = np.einsum("ij,ij->i", block, block)
        return square

    def row_norms(self, intercept: bool) -> Vector:
        """Euclidean norms of the rows, with a last 1 for an intercept."""
        return np.sqrt(self.norms + float(intercept))

    def mean_square(self, intercept: bool) -> float:
        """The mean of the squares of `row_norms`."""
        if self.is_sparse and self.X.dtype == np.float64:  # the norms of each take longer
            return float(np.vdot(self.X.data, self.X.data)) / self.n_samples + float(intercept)
        return float(np.mean(self.row_norms(intercept) ** 2))

    def longest(self, intercept: bool) -> float:
        return float(self.row_norms(intercept).max())

    def steepest(self, b: float, radius: float, intercept: bool) -> float:
        norms = self.row_norms(intercept)
        return float(((abs(self.y - b) + norms * radius) * norms).max())

    # ------------------------------------------------------------------------ in and out

    def export(self, values: Any) -> Any:
        return values

    def content(self) -> tuple[Any, ...]:
        return self.X, self.y, self.p, self.groups, self.baseline

    def imported(self, array: Any) -> Any:
        return array

    def enter(self, name: str, values: Any, kept: Kept = None) -> Any:
        if kept is None:
            return check_vector(name, values, self.n_samples)
        return check_vector(name, values, kept.size)[kept]

    def take(self, index: Index) -> ArrayRows:
        y, p = self.y[index], None
        if self.shares.size == self.n_samples:
            p = self.p[index]
            p /= p.sum()
        groups = None if self.groups is None else check_groups(self.groups[index], y.size)
        X: Any = self.stored
        X, squares = (X[index], None) if self.is_sparse else gathered(X, index, X.dtype)
        if self.unread:
            if squares is None:
                squares = sum_of_squares(X.data if self.is_sparse else X)
            if not math.isfinite(squares):
                require_features(self.stored)
        baseline = None if self.baseline is None else self.baseline[index]
        return ArrayRows(X, y, p, groups, baseline)

    def sample(self, index: Index) -> ArrayRows:
        return self.take(index)

    def replaced(self, **changes: Any) -> ArrayRows:
        """The same rows but for this."""
        return ArrayRows(**(self.__getstate__() | changes))

    def with_baseline(self, baseline: Vector | None) -> ArrayRows:
        return self.replaced(baseline=baseline)

    def condensed(self, n_classes: int) -> ArrayRows | None:
        if self.baseline is not None:
            return None
        most = n_classes * (1 if self.groups is None else int(self.groups.max()) + 1)
        if most > self.n_samples:
            return None
        if self.groups is None:
            mass = self.class_masses(self.p, n_classes)
        else:
            labels = self.y.astype(np.int64) + n_classes * self.groups
            mass = np.bincount(labels, self.p).astype(np.float64, copy=False)
        there = np.flatnonzero(mass)
        mass = mass[there]
        groups = None if self.groups is None else there // n_classes
        y = (there % n_classes).astype(self.y.dtype)
        return ArrayRows(np.zeros((there.size, 1)), y, mass / mass.sum(), groups)

    def oracle(self, uncertainty: Any, divergence: Any) -> Any:
        # Set and divergence were checked at the door of the problem.
        one_will_do = uncertainty.is_capped and divergence.is_chi2
        p = self.shares if one_will_do else self.p
        found = uncertainty._oracle(p, divergence, self.groups)
        found.n_rows = self.n_samples
        return found

    @cached_property
    def p(self) -> Vector:
        return locked(np.full(self.n_samples, self.shares[0]))

    @cached_property
    def shares(self) -> Vector:
        """p, or one entry where all are alike: visits and searches then need no vector of it."""
        if self.is_uniform:
            return locked(np.array([1.0 / max(self.n_samples, 1)]))
        p = self.p
        first = p[:64]  # of unequal ones they tell
        is_even = p.size > 0 and (first == p[0]).all() and p.min() == p.max()
        return p[:1] if is_even else p

    def tables(self, problem: Any, kind: str, count: int, n_threads: int | None) -> ArrayTables:
        return ArrayTables(self, problem, kind, count, n_threads)

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
        if self.y.dtype.kind == "f":  # 0 and 1
            return np.array(binary_masses(self.y, weights)[:2])
        return np.bincount(self.y, weights, n_classes).astype(np.float64, copy=False)

    def dot(self, x: Vector, y: Vector) -> float:
        return float(np.dot(x, y))

    def count(self, q: Vector, above: float = 0.0) -> int:
        weights = np.ascontiguousarray(q, np.float64)
        return int(kernels.count_above(weights, above, vector_threads(q.size)))

    def slope_along(self, q: Vector, dlosses: Matrix, step: Matrix) -> float:
        if dlosses.shape[1] == 1:
            return float(np.einsum("i,ic,ic->", q, dlosses, step))
        return float(kernels.slope_along(q, dlosses, step))

    def slope_sums(self, q: Vector, dlosses: Matrix) -> tuple[Vector, Vector]:
        return q @ dlosses, q @ np.abs(dlosses)

    def primal(self, divergence: Any, nu: float, losses: Vector, q: Vector) -> float:
        if not (divergence.is_chi2 and nu > 0.0 and q.size > _PART):
            return super().primal(divergence, nu, losses, q)
        threads = vector_threads(q.size)
        return float(kernels.chi2_value(np.ascontiguousarray(losses), q, self.shares, nu, threads))

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
        p = self.shares if uncertainty.is_capped else self.p
        return uncertainty._violation(q, p, self.groups)

    def q_max(self, uncertainty: Any) -> float:
        return uncertainty._q_max(self.p, self.groups)

    def kappa_q(self, uncertainty: Any) -> float:
        return float(uncertainty._max_ratios(self.p, self.groups).max())

    # ----------------------------------------------------------------------- the intercept

    def balance(
        self, loss: Any, raw: Matrix, q: Vector, n_outputs: int
    ) -> tuple[Matrix, float] | None:
        index = np.flatnonzero(q)
        if n_outputs == 1 or 2 * index.size > q.size:
            found = loss.balance(self.y, raw, q)
            return None if found is None else (found[0], float(q @ found[1]))
        # With several outputs rows without weight would take most of the time.
        found = loss.balance(self.y[index], raw[index], q[index])
        if found is None:
            return None
        alpha = np.zeros(raw.shape)
        alpha[index] = found[0]
        return alpha, float(q[index] @ found[1])

    def tangent_excess(
        self, q: Vector, here: Vector, losses: Vector, dlosses: Matrix, shift: float
    ) -> float:
        return float(q @ np.maximum(here - losses + dlosses[:, 0] * shift, 0.0))

    def moments(self, raw: Matrix) -> Vector:
        return np.array([raw.sum(), np.vdot(raw, raw)])

    def offsets(self, raw: Matrix) -> tuple[float, float, float]:
        offsets = self.y - raw[:, 0]
        return float(offsets.min()), float(offsets.max()), float(self.p @ offsets)
