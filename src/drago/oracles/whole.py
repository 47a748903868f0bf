"""Exact weights for rows in parts whose vectors are whole arrays: by the search in memory."""

from __future__ import annotations

import math
from typing import Any

from drago.oracles.atoms import RowVector
from drago.oracles.rounds.oracle import SearchOracle


class WholeOracle(SearchOracle):
    """The dual oracle of a set that a threshold decides, for a store that makes whole vectors.

    Parameters
    ----------
    rows : store
        Its `whole_p` and ``whole(u)`` are arrays of all rows; ``cut(array)`` is a row vector.
    """

    def __init__(self, rows: Any, uncertainty: Any, divergence: Any) -> None:
        super().__init__(rows, uncertainty, divergence)
        self._compiled = uncertainty._oracle(rows.whole_p, divergence, None)

    def guess(self, c: float) -> tuple[int, float, float]:
        return self._recalled().guess(c)

    def with_mirror(self, u: RowVector, c: float) -> tuple[RowVector, RowVector]:
        rows, mirror = self.rows, self.rows.new_array()
        return self._filled(u, c, mirror), rows.cut(mirror)

    def _weigh(self, u: RowVector, c: float) -> tuple[RowVector, float]:
        if not self.is_free:
            return self.rows.p, math.inf
        q = self._filled(u, c)
        return q, self._compiled._effective if self.is_ball else math.nan

    def _filled(self, u: RowVector, c: float, *mirror: Any) -> RowVector:
        oracle, q = self._recalled(), self.rows.new_array()
        oracle.solve_into(self.rows.whole(u), c, q, *mirror)
        first, second = oracle.memory.values()
        self.memory |= {"threshold": first, "price": second}
        return self.rows.cut(q)

    def _recalled(self) -> Any:
        """The oracle in memory, with what it has to remember."""
        known = self.memory["threshold"], self.memory["price"]
        self._compiled.memory = dict(zip(self._compiled.memory, known))
        return self._compiled
