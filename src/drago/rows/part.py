"""Rows in arrays that are a part of more: what rows in parts need of each of them besides."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from drago.rows.array_curvature import Chosen
from drago.rows.base import Evaluation, Index, Matrix, RowStore, RowVector, Vector, is_a
from drago.rows.memory import ArrayRows
from drago.rows.tables.arrays import ArrayTables
from drago.terms.uncertainty.capped import ON_BOUND


class Part(RowStore):
    """What rows in parts need of each part, beside what every store can do."""

    n_groups: int
    """Groups, by the numbers that occur here."""

    def tables_of_part(self, problem: Any, kind: str, count: int) -> Any:
        """DRAGO's tables of this part; the weights come from elsewhere."""
        raise NotImplementedError

    def profile(self, u: RowVector) -> tuple[Vector, Vector]:
        """The distinct values of a vector, ascending, and the nominal weight of each."""
        raise NotImplementedError

    @is_a("map")
    def looked_up(self, u: RowVector, values: Vector, of: Vector, with_p: bool) -> RowVector:
        """For each row the entry of `of` at its value, times ``p_i`` if `with_p`."""
        raise NotImplementedError

    @is_a("map")
    def of_groups(self, of: Vector, with_p: bool) -> RowVector:
        """For each row the entry of its group, times ``p_i`` if `with_p`."""
        raise NotImplementedError

    @is_a("map")
    def weighted(self, u: RowVector, less: float = 0.0) -> RowVector:
        """``p_i (u_i - less)``."""
        raise NotImplementedError

    @is_a("sum")
    def group_sums(self, values: RowVector, n_groups: int) -> Vector:
        """The sum over each group."""
        raise NotImplementedError

    @is_a("sum")
    def group_spread(self, q: RowVector, ratio: Vector) -> float:
        """``sum_i |q_i - p_i ratio_g|``, with the ratio of the row's group."""
        raise NotImplementedError

    @is_a("sum")
    def excess(self, q: RowVector, cap: float) -> float:
        """``sum_i max(q_i - cap p_i, 0)``."""
        raise NotImplementedError

    @is_a("map")
    def responding(
        self, divergence: Any, q: RowVector, cap: float, c: float
    ) -> tuple[RowVector, RowVector]:
        """How fast weights between 0 and ``cap p_i`` grow with the loss; 0 for these, -1 at an end.

        The price `c` is above 0. What `drago.terms.uncertainty.Response` calls rate and pool.
        """
        raise NotImplementedError

    @is_a("sum")
    def pooled_sums(self, rate: RowVector, pool: RowVector, u: RowVector, less: float) -> Vector:
        """The sums of ``rate_i`` and of ``rate_i (u_i - less)`` over the rows of a pool."""
        raise NotImplementedError

    @is_a("sum")
    def response_sums(
        self, loss: Any, ev: Evaluation, q: RowVector, response: Any, intercept: bool
    ) -> tuple[Matrix, Matrix, Vector, Vector, float]:
        """What `hessian` is made of, for pools of rows that move together.

        ``sum_i q_i l_i'' + rate_i z_i z_i'`` with the gradients z of the losses, the sums of
        ``rate_i z_i`` and of the rates by pool, ``sum_i rate_i direction_i z_i`` and
        ``sum_i rate_i direction_i^2``.
        """
        raise NotImplementedError

    @is_a("sum")
    def group_gradients(self, ev: Evaluation, mass: Vector, intercept: bool) -> Matrix:
        """``sum over each group of (p_i / mass_g) z_i`` with the gradients z of the losses."""
        raise NotImplementedError

    @is_a("sum")
    def balance_sums(self, loss: Any, raw: RowVector, q: RowVector, masses: Any) -> Vector:
        """What `drago.terms.losses.Loss.balance_with` needs to know of all rows."""
        raise NotImplementedError

    @is_a("map")
    def balanced(
        self, loss: Any, raw: RowVector, q: RowVector, sums: Vector, masses: Any
    ) -> tuple[RowVector, RowVector]:
        """Slopes of zero sum, and their Fenchel-Young terms."""
        raise NotImplementedError


class PartOfTables(ArrayTables):
    """DRAGO's tables of a part: what weights are, others say."""

    _unsettled = None


class ArrayPart(Part, ArrayRows):
    """A part of the rows, in arrays; its weights sum to less than 1."""

    capabilities = ArrayRows.capabilities - {"bounds"}

    @property
    def n_groups(self) -> int:  # type: ignore[override]
        return 0 if self.groups is None else int(self.groups.max()) + 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Arrays that were sent may begin anywhere in memory; compiled code wants them aligned."""
        arrays = {name: _aligned(state[name]) for name in state if name != "unread"}
        super().__setstate__(state | arrays)

    def at_hand(self) -> ArrayPart:
        """The part for one task."""
        return self

    def with_baseline(self, baseline: Vector | None) -> ArrayPart:
        return ArrayPart(**(self.__getstate__() | {"baseline": baseline}))

    def pieces(self, index: Index) -> tuple[Any, ...]:
        """Features, targets, nominal weights, groups and baseline of some rows."""
        given = self.content()
        return tuple(None if each is None else each[index] for each in given)

    def tables_of_part(self, problem: Any, kind: str, count: int) -> PartOfTables:
        return PartOfTables(self, problem, kind, count)

    def none(self) -> Chosen:
        """No rows."""
        return Chosen(np.empty(0, dtype=np.int64))

    def cells(self, n_classes: int, n_groups: int) -> Vector:
        """The nominal weight of each class and group."""
        labels = self.y.astype(np.int64)
        if self.groups is not None:
            labels = labels + n_classes * self.groups
        return _bins(labels, self.p, n_classes * max(n_groups, 1))

    # --------------------------------------------------------------------------- weights

    def profile(self, u: Vector) -> tuple[Vector, Vector]:
        values, place = np.unique(u, return_inverse=True)
        return values, _bins(place, self.p, values.size)

    def looked_up(self, u: Vector, values: Vector, of: Vector, with_p: bool) -> Vector:
        found = of[np.searchsorted(values, u)]
        return self.p * found if with_p else found

    def of_groups(self, of: Vector, with_p: bool) -> Vector:
        found = of[self.groups]
        return self.p * found if with_p else found

    def weighted(self, u: Vector, less: float = 0.0) -> Vector:
        return self.p * (u - less)

    def group_sums(self, values: Vector, n_groups: int) -> Vector:
        return _bins(self.groups, values, n_groups)

    def group_greatest(self, values: Vector, n_groups: int) -> Vector:
        """The greatest value of each group; 0 where it has none here."""
        out = np.zeros(n_groups)
        np.maximum.at(out, self.groups, values)  # type: ignore[arg-type]
        return out

    def group_spread(self, q: Vector, ratio: Vector) -> float:
        return float(np.abs(q - self.p * ratio[self.groups]).sum())

    def excess(self, q: Vector, cap: float) -> float:
        return float(np.maximum(q - cap * self.p, 0.0).sum())

    # ----------------------------------------------------------------- how weights respond

    def responding(self, divergence: Any, q: Vector, cap: float, c: float) -> tuple[Vector, Vector]:
        free = (q > 0) & (q < cap * self.p * (1 - ON_BOUND)) if cap > 1 else np.zeros(q.size, bool)
        return divergence._rate(q, self.p) / c, np.where(free, 0.0, -1.0)

    def pooled_sums(self, rate: Vector, pool: Vector, u: Vector, less: float) -> Vector:
        moving = np.where(pool >= 0, rate, 0.0)
        return np.array([moving.sum(), np.dot(moving, u - less)])

    def response_sums(
        self, loss: Any, ev: Evaluation, q: Vector, response: Any, intercept: bool
    ) -> tuple[Matrix, Matrix, Vector, Vector, float]:
        chosen = Chosen(np.flatnonzero((q > 0) | (response.pool >= 0)))
        H = self.plain_hessian(loss, ev, q, chosen, intercept)
        moving = np.flatnonzero(response.pool >= 0)
        Z, rate = self.gradients(ev, Chosen(moving), intercept), response.rate[moving]
        pool, scaled = response.pool[moving].astype(np.int64), Z * rate[:, None]
        sums = np.zeros((response.n_pools, Z.shape[1]))
        np.add.at(sums, pool, scaled)
        mass = _bins(pool, rate, response.n_pools)
        along, norm = np.zeros(Z.shape[1]), 0.0
        if response.direction is not None:
            z = response.direction[moving]
            along, norm = scaled.T @ z, float(rate @ (z * z))
        return H + Z.T @ scaled, sums, mass, along, norm

    def group_gradients(self, ev: Evaluation, mass: Vector, intercept: bool) -> Matrix:
        Z = self.gradients(ev, Chosen(np.arange(self.n_samples)), intercept)
        out = np.zeros((mass.size, Z.shape[1]))
        assert self.groups is not None
        np.add.at(out, self.groups, Z * (self.p / mass[self.groups])[:, None])
        return out

    # ----------------------------------------------------------------------- the intercept

    def balance_sums(self, loss: Any, raw: Matrix, q: Vector, masses: Any) -> Vector:
        return loss.balance_sums(self.y, raw, q, masses)

    def balanced(
        self, loss: Any, raw: Matrix, q: Vector, sums: Vector, masses: Any
    ) -> tuple[Matrix, Vector]:
        return loss.balance_with(self.y, raw, q, sums, masses)


def _aligned(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value if value.flags.aligned else value.copy()
    if value is None or all(each.flags.aligned for each in (value.data, value.indices)):
        return value
    return value.copy()


def _bins(labels: Any, values: Vector, size: int) -> Vector:
    """The sum of the values with each label."""
    return np.bincount(labels, values, size).astype(np.float64, copy=False)


def cut(rows: ArrayRows, ends: Sequence[int]) -> list[ArrayPart]:
    """Rows of arrays in parts that end at these numbers and at the last row."""
    places = [0, *ends, rows.n_samples]
    given = rows.content()
    return [
        ArrayPart(*[None if each is None else each[a:b] for each in given])  # type: ignore[arg-type]
        for a, b in itertools.pairwise(places)
    ]
