"""DRAGO's tables for rows in parts: tables of each part, and one search for the weights."""

from __future__ import annotations

from typing import Any

from drago.rows.base import Evaluation, RowVector
from drago.rows.tables.base import Small, Tables


class PartTables(Tables):
    """Tables of rows in parts; block k are the blocks k of all parts.

    Parameters
    ----------
    rows : drago.rows.parts.PartedRows
    problem : DROProblem
    parts : sequence of ArrayTables
        Of each part, in as many blocks.
    """

    def __init__(self, rows: Any, problem: Any, parts: list[Any]) -> None:
        self.rows, self.problem, self.parts = rows, problem, parts
        self.kind, self.count = parts[0].kind, parts[0].count
        self.sizes = [sum(sizes) for sizes in zip(*(part.sizes for part in parts))]
        self.oracle, self._estimator = (
            rows.oracle(problem.uncertainty, problem.divergence) for _ in range(2)
        )

    def _vector(self, vectors: Any) -> RowVector:
        return self.rows.vector(vectors)

    @property
    def seen(self) -> int:  # type: ignore[override]
        return sum(part.seen for part in self.parts)

    # ----------------------------------------------------------------------------- the start

    def fill(self, start: Evaluation, q: RowVector | str) -> tuple[Small, Small]:
        starts = self.rows.split(start)
        for part, here in zip(self.parts, starts):
            part.take(here)
        self._set_weights(*self._first_weights(start, q))
        return _sum([part.first_gradient(here) for part, here in zip(self.parts, starts)])

    def _set_weights(self, q: RowVector, mirror: RowVector | None) -> None:
        for part, some, more in zip(self.parts, self.rows.split(q), self.rows.split(mirror)):
            part.set_weights(some, more)

    # ------------------------------------------------------------------------- the iteration

    def correction(self, i: int, w: Small, b: Small) -> tuple[Small, Small]:
        return _sum([part.correction(i, w, b) for part in self.parts])

    def gradient(self, w: Small, b: Small) -> tuple[Small, Small]:
        return _sum([part.gradient(w, b) for part in self.parts])

    def visit(self, j: int, k: int, same: bool, w: Small, b: Small) -> tuple[Any, Any, Any]:
        found = [part.visit(j, k, same, w, b) for part in self.parts]
        there, here, slopes = zip(*found)
        return there, here, slopes

    def change(self, j: int, losses: Any, scale: float) -> Any:
        return [part.change(j, some, scale) for part, some in zip(self.parts, losses)]

    def put(self, k: int, losses: Any) -> None:
        for part, some in zip(self.parts, losses):
            part.put(k, some)

    def reweigh(self, j: int, change: Any, nu: float, s: float) -> None:
        u = self._vector(part.argument(j, some, s) for part, some in zip(self.parts, change))
        self._set_weights(*self.oracle.with_mirror(u, nu + s))

    def renew(self, k: int, slopes: Any, w: Small) -> tuple[Small, Small]:
        return _sum([part.renew(k, some, w) for part, some in zip(self.parts, slopes)])

    # ----------------------------------------------------------------- what others look at

    def values(self, nu: float, is_fresh: bool) -> tuple[float, float]:
        rows, divergence = self.rows, self.problem.divergence
        losses, q = self._vector(part.losses() for part in self.parts), self.weights()
        exact = self._estimator.weights(losses, nu)
        best, own = (rows.primal(divergence, nu, losses, x) for x in (exact, q))
        return best, own

    def weights(self) -> RowVector:
        return self._vector(part.weights() for part in self.parts)

    # ----------------------------------------------------------------------------- to go on

    @property
    def names(self) -> tuple[str, ...]:
        return self.parts[0].names

    def state(self) -> dict[str, RowVector]:
        states = [part.state() for part in self.parts]
        return {name: self._vector(state[name] for state in states) for name in states[0]}

    def restore(self, state: dict[str, RowVector], known: tuple[int, int]) -> None:
        parts = zip(*(self.rows.split(vector) for vector in state.values()))
        for part, vectors in zip(self.parts, parts):
            part.restore(dict(zip(state, vectors)), known)


def _sum(found: list[tuple[Small, Small]]) -> tuple[Small, Small]:
    """Sums over the parts, in w and b, in their order."""
    in_w, in_b = (sum(each[1:], each[0]) for each in zip(*found))
    return in_w, in_b
