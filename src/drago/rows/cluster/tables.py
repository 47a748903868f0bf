"""DRAGO's tables for rows on a cluster: those of a part stay with it, the weights are found once.

Block k are the blocks k of all parts, so that all workers are busy in every iteration. The tables
of a part are a value that tasks make anew from the last one: a task is a pure function, and may run
again elsewhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from drago.rows.base import Evaluation, RowVector
from drago.rows.cluster import work
from drago.rows.cluster.vectors import Call, Node, nodes_of
from drago.rows.part import ArrayPart, PartOfTables
from drago.rows.tables.array_blocks import ArrayBlocks
from drago.rows.tables.base import Small, Tables
from drago.rows.tables.parts import _sum

# What the tables of a part are made of.
_ARRAYS = ("loss_table", "product", "_q", "mirror", "old_losses", "old_product")


class Terms(NamedTuple):
    """What tables need to know of a problem, and of themselves."""

    loss: Any
    n_outputs: int
    divergence: Any
    uncertainty: Any
    kind: str
    n_blocks: int


class Kept(NamedTuple):
    """The tables of a part, without the part; nobody writes to its arrays."""

    arrays: dict[str, Any]
    known: dict[int, Any]

    @classmethod
    def of(cls, tables: PartOfTables) -> Kept:
        found = {name: getattr(tables, name, None) for name in _ARRAYS}
        return cls(found, dict(tables._known))


def _opened(part: ArrayPart, terms: Terms, kept: Kept | None, *written: str) -> PartOfTables:
    """The tables of a part, with copies of the arrays that are written to."""
    key = f"_blocks_{terms.n_blocks}_{terms.n_outputs}_{terms.loss.name}"
    blocks = part.__dict__.get(key)
    if blocks is None:  # it takes long, and depends on the part alone
        blocks = ArrayBlocks(part, terms.loss, terms.n_outputs, terms.n_blocks, 1)
        part.__dict__[key] = blocks
    tables = object.__new__(PartOfTables)
    tables.rows, tables.problem = part, terms
    tables.kind, tables.count = terms.kind, terms.n_blocks
    tables.blocks, tables.sizes = blocks, blocks.sizes
    tables._known, tables.seen = {}, 0
    as_it_is = terms.n_blocks == 1 or part.p.min() == part.p.max()
    tables.p = part.p if as_it_is else blocks.gather(part.p)
    if kept is not None:
        for name, array in kept.arrays.items():
            if array is not None:
                setattr(tables, name, array.copy() if name in written else array)
        tables._known = dict(kept.known)
    return tables


# ----------------------------------------------------------------------------------- the tasks


def sizes_of(part: ArrayPart, terms: Terms) -> Any:
    return np.array(_opened(part, terms, None).sizes)


def filled(part: ArrayPart, terms: Terms, start: Evaluation) -> Kept:
    tables = _opened(part, terms, None)
    tables.take(start)
    return Kept.of(tables)


def weighted(part: ArrayPart, terms: Terms, kept: Kept, q: Any, mirror: Any) -> Kept:
    tables = _opened(part, terms, kept, "mirror")
    tables.set_weights(q, mirror)
    return Kept.of(tables)


def first_gradient(part: ArrayPart, terms: Terms, kept: Kept, start: Evaluation) -> Any:
    tables = _opened(part, terms, kept, "product")
    found = tables.first_gradient(start)
    return Kept.of(tables), tuple(found)


def correction(part: ArrayPart, terms: Terms, kept: Kept, i: int, w: Any, b: Any) -> Any:
    return tuple(_opened(part, terms, kept).correction(i, w, b))


def gradient(part: ArrayPart, terms: Terms, kept: Kept, w: Any, b: Any) -> Any:
    tables = _opened(part, terms, kept)
    return *tables.gradient(w, b), tables.seen


def visited(
    part: ArrayPart, terms: Terms, kept: Kept, j: int, k: int, same: bool, w: Any, b: Any
) -> Any:
    tables = _opened(part, terms, kept)
    found = tables.visit(j, k, same, w, b)
    return Kept.of(tables), *(each.copy() for each in found)


def changed(part: ArrayPart, terms: Terms, kept: Kept, j: int, losses: Any, scale: float) -> Any:
    return _opened(part, terms, kept).change(j, losses.copy(), scale)


def put(part: ArrayPart, terms: Terms, kept: Kept, k: int, losses: Any) -> Kept:
    tables = _opened(part, terms, kept, "loss_table", "old_losses")
    tables.put(k, losses)
    return Kept.of(tables)


def argument(part: ArrayPart, terms: Terms, kept: Kept, j: int, change: Any, s: float) -> Any:
    return _opened(part, terms, kept).argument(j, change, s)


def renewed(part: ArrayPart, terms: Terms, kept: Kept, k: int, slopes: Any, w: Any) -> Any:
    tables = _opened(part, terms, kept, "product", "old_product")
    found = tables.renew(k, slopes.copy(), w)
    return Kept.of(tables), tuple(found)


def losses_of(part: ArrayPart, terms: Terms, kept: Kept) -> Any:
    return _opened(part, terms, kept).losses()


def weights_of(part: ArrayPart, terms: Terms, kept: Kept) -> Any:
    return _opened(part, terms, kept).weights()


def vector_of(part: ArrayPart, terms: Terms, kept: Kept, name: str) -> Any:
    return _opened(part, terms, kept).state()[name]


def restored(part: ArrayPart, terms: Terms, names: Any, known: Any, *vectors: Any) -> Kept:
    tables = _opened(part, terms, None)
    tables.restore(dict(zip(names, vectors)), known)
    return Kept.of(tables)


# ---------------------------------------------------------------------------------- the driver


class RemoteTables(Tables):
    """Tables of rows on a cluster.

    Parameters
    ----------
    rows : drago.rows.cluster.store.DaskRows
    problem : DROProblem
    kind, count :
        See `drago.rows.tables.base.Tables`.
    """

    def __init__(self, rows: Any, problem: Any, kind: str, count: int) -> None:
        self.rows, self.problem, self.kind, self.count = rows, problem, kind, count
        self.terms = Terms(
            problem.loss, problem.n_outputs, problem.divergence, problem.uncertainty, kind, count
        )
        self.sizes = np.sum(rows._each(sizes_of, (self.terms,), {}), axis=0).tolist()
        self.oracle, self._estimator = (
            rows.oracle(problem.uncertainty, problem.divergence) for _ in range(2)
        )
        self._tables: Node = Node()

    def _made(self, function: Any, *given: Any, count: int = 1) -> Any:
        """What a function makes of the tables: a vector, or several."""
        call = Call(function, (self.terms, *given), {}, is_tuple=count > 1)
        try:
            shadows = self.rows._shadows(function, (self.terms, *given), {}, count)
        except (ValueError, IndexError):  # there are more blocks than witnesses
            shadows = [None] * count
        nodes = nodes_of(call, shadows)
        return nodes if count > 1 else nodes[0]

    def _told(self, node: Node) -> Any:
        """The sum over the parts of what a node holds, and the tables are made."""
        return _sum(self.rows._ask([(work.itself, (node,), {})], [self._tables])[0])

    # ----------------------------------------------------------------------------- the start

    def fill(self, start: Evaluation, q: RowVector | str) -> tuple[Small, Small]:
        weights = self._first_weights(start, q)
        tables = self._made(weighted, self._made(filled, start), *weights)
        self._tables, found = self._made(first_gradient, tables, start, count=2)
        return self._told(found)

    # ------------------------------------------------------------------------- the iteration

    def correction(self, i: int, w: Small, b: Small) -> tuple[Small, Small]:
        return _sum(self.rows._each(correction, (self.terms, self._tables, i, w, b), {}))

    def gradient(self, w: Small, b: Small) -> tuple[Small, Small]:
        told = self.rows._each(gradient, (self.terms, self._tables, w, b), {})
        self.seen += sum(each[2] for each in told)
        return _sum([each[:2] for each in told])

    def visit(self, j: int, k: int, same: bool, w: Small, b: Small) -> tuple[Any, Any, Any]:
        self._tables, *found = self._made(visited, self._tables, j, k, same, w, b, count=4)
        there, here, slopes = found
        return there, here, slopes

    def change(self, j: int, losses: Any, scale: float) -> Any:
        return self._made(changed, self._tables, j, losses, scale)

    def put(self, k: int, losses: Any) -> None:
        self._tables = self._made(put, self._tables, k, losses)

    def reweigh(self, j: int, change: Any, nu: float, s: float) -> None:
        u = self._made(argument, self._tables, j, change, s)
        self._tables = self._made(weighted, self._tables, *self.oracle.with_mirror(u, nu + s))

    def renew(self, k: int, slopes: Any, w: Small) -> tuple[Small, Small]:
        self._tables, found = self._made(renewed, self._tables, k, slopes, w, count=2)
        return self._told(found)

    # ----------------------------------------------------------------- what others look at

    def values(self, nu: float, is_fresh: bool) -> tuple[float, float]:
        rows, divergence = self.rows, self.problem.divergence
        losses, q = self._made(losses_of, self._tables), self.weights()
        exact = self._estimator.weights(losses, nu)
        best, own = (rows.primal(divergence, nu, losses, x) for x in (exact, q))
        return best, own

    def weights(self) -> RowVector:
        return self._made(weights_of, self._tables)

    # ----------------------------------------------------------------------------- to go on

    @property
    def names(self) -> tuple[str, ...]:
        return _opened(self.rows.witness, self.terms, None).names

    def state(self) -> dict[str, RowVector]:
        return {name: self._made(vector_of, self._tables, name) for name in self.names}

    def restore(self, state: dict[str, RowVector], known: tuple[int, int]) -> None:
        self._tables = self._made(restored, tuple(state), known, *state.values())

    @property
    def memories(self) -> dict[str, dict[str, float]]:
        searches = {"oracle": self.oracle.memory, "estimator": self._estimator.memory}
        return {**searches, "unsettled": {}}

    @memories.setter
    def memories(self, memories: dict[str, dict[str, float]]) -> None:
        self.oracle.memory, self._estimator.memory = memories["oracle"], memories["estimator"]
