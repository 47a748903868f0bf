"""The curvature of some of the rows of arrays: what bounds and Newton steps are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago._threads import threads_for, vector_threads
from drago.rows.base import Evaluation, Gradient, Index, Matrix, RowStore, Vector
from drago.rows.classes import class_minimum

# Entries of a matrix of rows that stays in the cache.
_IN_CACHE = 1 << 15
# Entries of rows up to which their leverages take no time to speak of.
_FEW_ENTRIES = 1 << 18
# Over one in so many ranks it is looked at how weights rise with the losses.
_RANKS = 64
# Rows that are looked at for each that is wanted.
_LOOKED_AT = 32
# Rows of which a selection takes longer than two looks at all of them.
_MANY = 1 << 17
# Rows of weight next to those that are wanted, up to which these are about all of them.
_ABOUT_ALL = 1.05


def _above(weight: Vector, level: float = 0.0) -> Index:
    """The rows whose weight is greater."""
    return kernels.places_above(weight, level, vector_threads(weight.size))


def _spread(index: Index, size: int) -> Index:
    """So many of them, evenly spaced."""
    return index[np.arange(size, dtype=np.int64) * index.size // size]


def _about_least(weight: Vector, size: int) -> float:
    """About the least of the `size` greatest weights, as one in so many rows tell it.

    0 where about all that there are would be among them.
    """
    some = weight[:: weight.size // (_MANY // 8)]
    if np.count_nonzero(some) * weight.size <= _ABOUT_ALL * size * some.size:
        return 0.0
    few = some.size * size / weight.size
    rank = max(0, some.size - 1 - int(few + 2.0 * few**0.5))  # rather some more than too few
    return float(np.partition(some, rank)[rank])


def _greatest(weight: Vector, index: Index, size: int) -> Index:
    """So many of the rows that have the greatest weights; evenly spaced where these are alike."""
    weight = weight[index]
    about_equal = index[weight > 0.5 * weight.max()]
    if about_equal.size > size:
        return _spread(about_equal, size)
    return np.sort(index[np.argpartition(-weight, size)[:size]])


class Chosen:
    """Some of the rows of `ArrayCurvature`, and their features once they were asked for."""

    def __init__(self, index: Index, longest: float = np.inf) -> None:
        self.index = index
        self.longest = longest  # no norm of a row of these is greater
        self._features: tuple[bool, Matrix] | None = None

    def features(self, rows: ArrayCurvature, intercept: bool) -> Matrix:
        """The rows, with a last 1 for an intercept."""
        if self._features is None or self._features[0] != intercept:
            found = rows.dense(self.index)
            if intercept:
                found = np.column_stack([found, np.ones(len(found))])
            self._features = intercept, found
        return self._features[1]

    def rows(self, rows: ArrayCurvature, part: slice) -> Matrix:
        """Some of them without the 1."""
        if self._features is None:
            return rows.dense(self.index[part])
        return self._features[1][part, : rows.n_features]

    def scaled(self, rows: ArrayCurvature, part: slice, factors: Vector) -> Matrix:
        """Some of them without the 1, each times its factor."""
        if self._features is None:
            return rows.scaled_rows(self.index[part], factors)
        return self._features[1][part, : rows.n_features] * factors[:, None]

    def keep(self, mask: npt.NDArray[np.bool_]) -> Chosen:
        """Some of them."""
        if mask.all():
            return self
        other = Chosen(self.index[mask], self.longest)
        if self._features is not None:
            other._features = self._features[0], self._features[1][mask]
        return other


class ArrayCurvature(RowStore):
    """What `drago.rows.memory.ArrayRows` knows of curvature."""

    X: Any
    y: Any
    p: Any

    @property
    def is_by_rows(self) -> bool:
        """Whether X is dense and the entries of a row lie next to each other."""
        raise NotImplementedError  # pragma: no cover

    def dense(self, index: Index) -> Matrix:
        """Some rows of X as a dense float64 array."""
        raise NotImplementedError  # pragma: no cover

    def scaled_rows(self, index: Index, factors: Vector) -> Matrix:
        """The same, each times its factor."""
        raise NotImplementedError  # pragma: no cover

    def weighted_sum(self, c: Matrix) -> Matrix:
        raise NotImplementedError  # pragma: no cover

    def curvature(self, loss: Any, raw: Matrix, q: Vector) -> Vector:
        if loss.is_quadratic:
            return q
        if raw.shape[1] > 1:
            return loss.curvature * q
        return self._second(loss, raw, q)

    def _second(self, loss: Any, raw: Matrix, q: Vector) -> Vector:
        """``q_i l_i''`` in the raw prediction."""
        if not loss.has_kernels:
            return q * loss.second(self.y, raw)
        return loss._weighted_second(self.y, raw, q)

    def heaviest(self, weight: Vector, size: int) -> Chosen:
        # Of many rows some tell enough of where the weight lies.
        step = weight.size // (_LOOKED_AT * size + 1)
        if step > 1:
            greatest = kernels.extremes(weight, vector_threads(weight.size))[1]
            about_equal = step * np.flatnonzero(weight[::step] > 0.5 * greatest)
            if about_equal.size >= size:
                return Chosen(_spread(about_equal, size))
        least = _about_least(weight, size) if weight.size >= _MANY else 0.0
        if least > 0.0:
            index = _above(weight, np.nextafter(least, 0.0))
            if 0.9 * size <= index.size <= size and self.count(weight) > size:
                return Chosen(index)
            if size < index.size <= 1.1 * size:
                return Chosen(_spread(index, size))
            if size < index.size:
                return Chosen(_greatest(weight, index, size))
        index = _above(weight)
        if index.size <= size:
            return Chosen(index)
        return Chosen(_greatest(weight, index, size))

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
        if self.is_by_rows:
            out, n_threads = np.empty((m, m)), threads_for(index.size * d)
            square = kernels.gram(self.X, index, weight, intercept, n_threads, out)
            chosen.longest = float(np.sqrt(square))
            return out
        out, step = np.zeros((m, m)), max(64, _IN_CACHE // m)
        for k in range(0, index.size, step):
            part = slice(k, k + step)
            root = np.sqrt(weight[index[part]])
            rows = chosen.scaled(self, part, root)
            out[:d, :d] += rows.T @ rows
            if intercept:
                out[d, :d] += root @ rows
                out[d, d] += root @ root
        out[:d, d:] = out[d:, :d].T
        return out

    def leverages(self, chosen: Chosen, root: Matrix, intercept: bool) -> Vector:
        """As many rows at a time as stay in the cache."""
        d = self.n_features
        out, step = np.empty(chosen.index.size), max(64, _IN_CACHE // root.shape[0])
        turned = np.ascontiguousarray(root[:, :d].T)
        for k in range(0, out.size, step):
            rows = slice(k, k + step)
            part = chosen.rows(self, rows) @ turned
            if intercept:
                part += root[:, d]
            out[rows] = np.einsum("ij,ij->i", part, part)
        return np.sqrt(out)

    def leverage_bound(self, chosen: Chosen, root: Matrix, intercept: bool) -> float:
        """By the greatest norm of a row, and what is no less than that of the matrix.

        Leverages of a few rows are had at once, and exact.
        """
        if chosen.index.size * self.n_features < _FEW_ENTRIES:
            return np.inf
        size = np.abs(root)
        most = min(np.sqrt(size.sum(0).max() * size.sum(1).max()), np.linalg.norm(root))
        return float(most * np.hypot(chosen.longest, float(intercept)))

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
        index, k = chosen.index, raw.shape[1]
        X, labels = chosen.rows(self, slice(None)), self.y[index]
        slopes, m = loss.evaluate(labels, raw[index])[1], X.shape[1] + int(intercept)
        H = np.zeros((m * k, m * k))
        fits = kernels.class_hessian(
            np.ascontiguousarray(X), labels, slopes, q[index], intercept, H
        )
        assert fits
        H = np.tril(H)
        H += np.tril(H, -1).T
        return np.ascontiguousarray(H.reshape(m, k, m, k).transpose(1, 0, 3, 2)).reshape(H.shape)

    def class_diagonal(
        self, loss: Any, chosen: Chosen, raw: Matrix, q: Vector, intercept: bool
    ) -> Matrix:
        pi, d = loss.probabilities(raw[chosen.index]), self.n_features
        weight = q[chosen.index][:, None] * pi * (1 - pi)
        return (chosen.features(self, intercept)[:, :d] ** 2).T @ weight

    def class_curvature(self, dlosses: Matrix, q: Vector) -> Matrix:
        """``sum_i q_i l_i''`` in the raw predictions."""
        out = np.empty((dlosses.shape[1],) * 2)
        fits = kernels.class_curvature(self.y, dlosses, q, out)
        assert fits
        return out

    def rates(self, losses: Vector, q: Vector, nu: float, is_kl: bool) -> Vector:
        """About how the weights respond to the losses, each to its own, where ranks decide.

        A weight that jumps when two losses change places responds to neither of them alone. So it
        is looked at how the weights rise with the losses over a few ranks.
        """
        n = q.size
        order, few = np.argsort(losses), max(1, n // _RANKS)
        ranks = np.arange(n)
        low, high = np.maximum(ranks - few, 0), np.minimum(ranks + few, n - 1)
        u, level = losses[order], (q / self.p)[order]
        rise, width = level[high] - level[low], u[high] - u[low]
        most = (level if is_kl else 1.0) / nu
        found = np.empty(n)
        found[order] = np.where(rise < most * width, rise / np.where(width > 0, width, 1.0), most)
        return np.maximum(found, 0.0) * self.p

    def class_minimum(
        self,
        ev: Evaluation,
        q: Vector,
        mu: float,
        intercept: bool,
        wanted: float,
        room: float,
        most: int,
        is_patient: bool = True,
    ) -> tuple[Matrix, Vector, int]:
        """Near the minimum of ``sum_i q_i l_i + (mu/2) ||w||^2``, see `class_minimum`."""
        index = np.flatnonzero(q)
        X, p = np.ascontiguousarray(self.dense(index)), q[index] / q[index].sum()
        y, start = self.y[index], (ev.w, ev.b)
        return class_minimum(X, y, p, mu, start, intercept, wanted, room, most, is_patient)

    def class_leverages(self, chosen: Chosen, inverse: Matrix, intercept: bool) -> Vector:
        F, k = chosen.features(self, intercept), inverse.shape[0]
        own = np.empty((len(F), k))
        for a in range(k):
            own[:, a] = ((F @ np.ascontiguousarray(inverse[a, :, a, :])) * F).sum(1)
        # M_aa + M_bb - 2 M_ab is at most twice M_aa + M_bb: the two greatest.
        if k > 2:
            own = np.partition(own, k - 2, axis=1)[:, k - 2 :]
        return np.sqrt(2.0 * own.sum(axis=1))

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
        H = self.plain_hessian(loss, ev, q, chosen, intercept)
        Z = self.gradients(ev, chosen, intercept)
        return H + response.restricted(index).curvature(Z)

    def plain_hessian(
        self, loss: Any, ev: Evaluation, q: Vector, chosen: Chosen | None, intercept: bool
    ) -> Matrix:
        """``sum_i q_i l_i''``, class-major; over all rows of weight where none are chosen."""
        chosen = Chosen(np.flatnonzero(q)) if chosen is None else chosen
        if loss.has_class_hessian:
            return self.class_hessian(loss, chosen, ev.raw, q, intercept)
        return self.gram(chosen, self.curvature(loss, ev.raw, q), intercept)

    def gradients(self, ev: Evaluation, chosen: Chosen, intercept: bool) -> Matrix:
        """Those of the losses of some rows, class-major as the Hessian is."""
        F = chosen.features(self, intercept)
        Z = ev.dlosses[chosen.index][:, :, None] * F[:, None, :]
        return Z.reshape(len(F), Z.shape[1] * Z.shape[2])

    def _one_pool(
        self, loss: Any, ev: Evaluation, q: Vector, response: Any, intercept: bool
    ) -> Matrix:
        """Where all rows that move move together: the square of one matrix."""
        slopes = ev.dlosses[:, 0]
        moving = np.where(response.pool >= 0, response.rate * slopes, 0.0)
        weight = self._second(loss, ev.raw, q) + moving * slopes
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
