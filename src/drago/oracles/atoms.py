"""Exact weights for rows in parts: what the sets see of the rows are values and their masses.

Rows of equal loss share their weight in proportion to ``p``. So each part sends the distinct values
of its losses with the mass of each, the *atoms*; the oracle of the set, in memory, weighs these;
and every part looks up what its rows get. Sets over groups need the sums by group alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
RowVector = Any


def merged(parts: list[tuple[Vector, Vector]]) -> tuple[Vector, Vector]:
    """The atoms of all parts: distinct values, ascending, and the mass of each."""
    values = np.concatenate([part[0] for part in parts])
    masses = np.concatenate([part[1] for part in parts])
    found, place = np.unique(values, return_inverse=True)
    return found, np.bincount(place, masses).astype(np.float64, copy=False)


class AtomResponse:
    """How weights move with the losses (`drago.terms.uncertainty.Response`), row by row.

    Parameters
    ----------
    rate, pool : row vectors
    direction : row vector or None
    n_pools : int
    inner : Response or None
        That of the groups, where it is about groups.
    """

    def __init__(
        self,
        rate: RowVector,
        pool: RowVector,
        direction: RowVector | None,
        n_pools: int,
        inner: Any = None,
    ) -> None:
        self.rate, self.pool, self.direction = rate, pool, direction
        self.n_pools, self.inner = n_pools, inner

    def part(self, k: int, of: Callable[[Any, int], Any]) -> AtomResponse:
        """That of a part of the rows; `of` gives the part of a vector."""
        rate, pool, direction = (of(each, k) for each in (self.rate, self.pool, self.direction))
        return AtomResponse(rate, pool, direction, self.n_pools, self.inner)


class AtomOracle:
    """The dual oracle of a set for a store in parts."""

    def __init__(self, rows: Any, uncertainty: Any, divergence: Any) -> None:
        if uncertainty.is_users:
            raise ValueError(
                f"{uncertainty!r} is a set of your own, whose worst_case takes whole vectors of "
                "the rows, which rows in parts do not offer: take a built-in set, or give X as an "
                "array."
            )
        self.rows, self.divergence, self.uncertainty = rows, divergence, uncertainty
        self.group_mass: Vector | None = None
        if uncertainty.needs_groups:
            self.group_mass = rows.group_sums(rows.p, rows.n_groups)
            self.uncertainty = uncertainty._inner
        self.memory: dict[str, float] = self._new_oracle(np.ones(1)).memory

    def guess(self, c: float) -> tuple[int, float, float]:
        """What can be said of weights before the losses are known: nothing."""
        return 0, np.nan, np.inf

    def weights(self, u: RowVector, c: float) -> RowVector:
        """``argmax over q in Q of <u, q> - c Omega(q)``."""
        return self.with_mirror(u, c)[0]

    def with_mirror(self, u: RowVector, c: float) -> tuple[RowVector, RowVector]:
        """`weights`, and their mirror coordinate."""
        values, masses = self._atoms(u)
        oracle = self._oracle(masses)
        found, mirror = oracle.with_mirror(values, float(c))
        self.memory = oracle.memory
        return self._of(u, values, found / masses, True), self._of(u, values, mirror, False)

    def response(
        self, u: RowVector, c: float, q: RowVector | None = None
    ) -> tuple[RowVector, AtomResponse | None]:
        """The weights and their derivative; None where it is not known or does not exist."""
        values, masses = self._atoms(u)
        oracle = self._oracle(masses)
        found, response = oracle.response(values, float(c))
        self.memory = oracle.memory
        q = self._of(u, values, found / masses, True)
        if response is None:
            return q, None
        if self.group_mass is not None:
            return q, AtomResponse(None, None, None, 0, response)
        direction = response.direction
        return q, AtomResponse(
            self._of(u, values, response.rate / masses, True),
            self._of(u, values, response.pool.astype(np.float64), False),
            None if direction is None else self._of(u, values, direction, False),
            int(response.pool.max(initial=-1)) + 1,
        )

    def _atoms(self, u: RowVector) -> tuple[Vector, Vector]:
        rows = self.rows
        if self.group_mass is None:
            return merged(self.rows.profiles(u))
        # From the maximum, so that equal losses give equal means and a constant changes nothing.
        top = rows.extremes(u)[1]
        sums = self.rows.group_sums(rows.weighted(u, top), self.rows.n_groups)
        return sums / self.group_mass, self.group_mass

    def _oracle(self, masses: Vector) -> Any:
        """It starts its search where the last one ended."""
        oracle = self._new_oracle(masses)
        oracle.memory = self.memory
        return oracle

    def _new_oracle(self, masses: Vector) -> Any:
        return self.uncertainty._oracle(masses / masses.sum(), self.divergence, None)

    def _of(self, u: RowVector, values: Vector, of_atoms: Vector, with_p: bool) -> RowVector:
        if self.group_mass is not None:
            return self.rows.of_groups(of_atoms, with_p)
        return self.rows.looked_up(u, values, of_atoms, with_p)
