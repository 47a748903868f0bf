"""Sets over groups of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from drago.terms.divergences import Divergence
from drago.terms.uncertainty.base import (
    EMPTY,
    DualOracle,
    Labels,
    Response,
    UncertaintySet,
    Vector,
    as_uncertainty,
)


def group_sums(groups: Labels, weights: Vector) -> Vector:
    """The sum of the weights of each group."""
    return np.bincount(groups, weights=weights).astype(np.float64, copy=False)


class Grouped(UncertaintySet):
    """Weight moves between groups of rows, and not within them.

    ``q_i = p_i r_g / P_g`` for a row of group g, with ``P_g`` the share of the group and ``r`` new
    shares in an inner set. The labels of the rows are data, not a parameter: give them as
    ``groups=`` to `DROProblem` or to ``fit``.

    Parameters
    ----------
    inner : UncertaintySet or str
        The set for the shares of the groups: `Simplex` lets them change freely, at the shift cost.

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.zeros((4, 1)), np.zeros(4), groups=["a", "a", "b", "b"],
    ...                            uncertainty=drago.Grouped(drago.Simplex()), shift_cost=0.0)
    >>> problem.worst_case_weights(np.array([1.0, 2.0, 0.0, 4.0]))  # group b has the larger mean
    array([0. , 0. , 0.5, 0.5])
    """

    needs_groups = True

    def __init__(self, inner: UncertaintySet | str = "cvar") -> None:
        self.inner = inner
        self._check()

    def _check(self) -> None:
        if isinstance(self._inner, Grouped):
            raise ValueError("Grouped takes an ungrouped inner set, but another Grouped was given.")

    def auto_cost(self, has_baseline: bool) -> float:
        """Groups are few: where their plain losses count, a low price leads to the worst alone."""
        return 0.1 if has_baseline else 1.0

    @property
    def _inner(self) -> UncertaintySet:
        return as_uncertainty(self.inner)

    @property
    def ungrouped(self) -> UncertaintySet:
        return self._inner

    @property
    def label(self) -> str:
        return f"Grouped({self._inner.label})"

    @property
    def kind(self) -> str:
        return f"Grouped({self._inner.kind})"

    @property
    def is_users(self) -> bool:  # type: ignore[override]
        return self._inner.is_users

    @property
    def can_check(self) -> bool:  # type: ignore[override]
        return self._inner.can_check

    def match(self, divergence: Divergence | str) -> Divergence:
        return self._inner.match(divergence)

    def _labels(self, groups: Labels | None) -> Labels:
        if groups is None:
            raise ValueError(
                "Grouped needs to know the group of each row: give groups= to DROProblem."
            )
        return groups

    def _oracle(self, p: Vector, divergence: Divergence, groups: Any) -> DualOracle:
        return GroupedOracle(self, divergence, p, self._labels(groups), self._inner)

    def _max_ratios(self, p: Vector, groups: Any) -> Vector:
        labels = self._labels(groups)
        return self._inner._max_ratios(group_sums(labels, p), None)[labels]

    def _excess(self, q: Vector, p: Vector, groups: Any) -> float:
        labels = self._labels(groups)
        mass, r = group_sums(labels, p), group_sums(labels, q)
        spread = float(np.abs(q - p * (r / mass)[labels]).sum())
        return max(spread, self._inner._violation(r, mass, None))


class GroupedOracle(DualOracle):
    """``q_i = p_i r_g / P_g`` with ``r`` in an inner set over the groups."""

    def __init__(
        self,
        uncertainty: Any,
        divergence: Divergence,
        p: Vector,
        groups: Labels,
        inner: Any,
    ) -> None:
        super().__init__(uncertainty, divergence, p)
        self.groups = groups
        self.mass = group_sums(groups, p)
        self.inner: DualOracle = inner._oracle(self.mass / self.mass.sum(), divergence, None)

    @property
    def memory(self) -> dict[str, float]:
        return self.inner.memory

    @memory.setter
    def memory(self, values: dict[str, float]) -> None:
        self.inner.memory = values

    def _means(self, u: Vector) -> Vector:
        # From the maximum, so that equal losses give equal means and a constant changes nothing.
        return group_sums(self.groups, self.p * (u - u.max())) / self.mass

    def _fill(self, u: Vector, c: float, q: Vector, mirror: Vector) -> None:
        r = np.empty_like(self.mass)
        inner = np.empty_like(r) if mirror.size else EMPTY
        self.inner.solve_into(self._means(u), c, r, inner)
        np.multiply(self.p, (r / self.mass)[self.groups], out=q)
        if mirror.size:
            mirror[:] = inner[self.groups]

    def _respond(self, u: Vector, c: float, q: Vector | None) -> tuple[Vector, Response | None]:
        from scipy.sparse import csr_array

        r, inner = self.inner.response(self._means(u), c)
        q = self.p * (r / self.mass)[self.groups]
        if inner is None:
            return q, None
        n = self.p.size
        share = self.p / self.mass[self.groups]
        aggregate = csr_array((share, (self.groups, np.arange(n))), shape=(self.mass.size, n))
        return q, Response(inner.rate, inner.pool, inner.direction, aggregate)
