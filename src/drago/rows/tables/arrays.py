"""DRAGO's tables on arrays: in the order of the blocks, so that a block is a slice of them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago.rows.base import Evaluation
from drago.rows.tables.array_blocks import ArrayBlocks
from drago.rows.tables.base import Tables
from drago.rows.tables.unsettled import Unsettled

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class ArrayTables(Tables):
    """Tables of rows in arrays.

    The tables of slopes and weights are one, of their product: with linear predictors
    ``grad l_i = x_i s_i``, so that it has a number for each row and output.

    Parameters
    ----------
    rows : drago.rows.memory.ArrayRows
    problem : DROProblem
        For its terms; its rows may be more than these.
    kind, count :
        See `drago.rows.tables.base.Tables`.
    n_threads : int or None
        None: all cores, where a block has work for them.
    """

    loss_table: Vector
    product: Matrix
    mirror: Vector

    def __init__(
        self, rows: Any, problem: Any, kind: str, count: int, n_threads: int | None = 1
    ) -> None:
        self.rows, self.problem, self.kind, self.count = rows, problem, kind, count
        self.blocks = ArrayBlocks(rows, problem.loss, problem.n_outputs, count, n_threads)
        self.sizes = self.blocks.sizes
        self._known: dict[int, Matrix] = {}
        as_it_is = count == 1 or rows.p.min() == rows.p.max()
        self.p = rows.p if as_it_is else self.blocks.gather(rows.p)

    def close(self) -> None:
        self.blocks.close()

    @property
    def has_mirror(self) -> bool:
        """The mirror coordinate of chi2, q/p, is not worth a vector of its own."""
        return not self.problem.divergence.is_chi2

    # Each starts its search where its last one ended, so there is one for each purpose.

    @cached_property
    def oracle(self) -> Any:
        """For the weights of the iterations."""
        return self._new_oracle()

    @cached_property
    def _estimator(self) -> Any:
        return self._new_oracle()

    def _new_oracle(self) -> Any:
        groups = self.rows.groups
        groups = None if groups is None else self.blocks.gather(groups)
        # Set and divergence were checked at the door of the problem.
        return self.problem.uncertainty._oracle(self.p, self.problem.divergence, groups)

    @cached_property
    def _unsettled(self) -> Unsettled | None:
        if self.count == 1:
            return None
        return Unsettled.made_for(self.problem.divergence, self.blocks.slices, self.oracle, self._u)

    @cached_property
    def _u(self) -> Vector:
        return np.empty(self.rows.n_samples)

    @cached_property
    def _losses(self) -> Matrix:
        """Room for the losses of the blocks K and J."""
        return np.empty((2, self.blocks.largest))

    @cached_property
    def _slopes(self) -> npt.NDArray[np.float64]:
        return np.empty((2, self.blocks.largest, self.problem.n_outputs))

    # ----------------------------------------------------------------------------- weights

    @property
    def q(self) -> Vector:
        """The weights, in the order of the blocks."""
        if self._unsettled is not None:
            self._unsettled.write(self._q)
        return self._q

    def weights(self) -> Vector:
        return self.blocks.scatter(self.q)

    def _weights_of(self, block: int) -> Vector:
        if self._unsettled is not None:
            self._unsettled.write(self._q, [block])
        return self._q[self.blocks.slices[block]]

    # ----------------------------------------------------------------------------- the start

    def fill(self, start: Evaluation, q: Vector | str) -> tuple[Matrix, Vector]:
        self.take(start)
        if not isinstance(q, str):
            self.set_weights(q)
        elif q == "nominal":
            self.set_weights(self.rows.p)
        else:
            nu = self.problem.nu
            self.oracle.solve_into(self.loss_table, nu, self._q, self.mirror)
            if nu == 0 and self.has_mirror:
                # A vertex has no mirror coordinate to start from.
                self.set_weights(0.5 * (self.weights() + self.rows.p))
        return self.first_gradient(start)

    def take(self, start: Evaluation) -> None:
        """Losses and slopes at a point; weights are still to come."""
        blocks, n = self.blocks, self.rows.n_samples
        if self._unsettled is not None:
            self._unsettled.clear()
        self._known = {}
        self.loss_table = blocks.gather(start.losses)
        if self.kind != "support":
            self.product = blocks.gather(start.dlosses)
        self._q, self.mirror = np.empty(n), np.empty(n if self.has_mirror else 0)

    def set_weights(self, q: Vector, mirror: Vector | None = None) -> None:
        """Weights in the problem's order, and their mirror coordinate if it is known better."""
        if self._unsettled is not None:
            self._unsettled.clear()
        self._q = self.blocks.gather(q)
        if not self.has_mirror:
            return
        if mirror is None:
            self.problem.divergence._mirror(self._q, self.p, out=self.mirror)
        else:
            self.mirror = self.blocks.gather(mirror)

    def first_gradient(self, start: Evaluation) -> tuple[Matrix, Vector]:
        """``sum_i q_i grad l_i`` where the tables are filled."""
        if self.count == 1 and self.kind == "support":
            return self.rows.gradient(start.dlosses, self._q)
        if self.kind == "support":
            grad, grad_b, _ = self.blocks.gradient(self._q, start.w, start.b, {})
            return grad, grad_b
        self.product *= self._q[:, None]
        if self.kind == "lagged":
            self.old_losses, self.old_product = self.loss_table.copy(), self.product.copy()
        grad = np.zeros(start.w.shape)
        for block, rows in enumerate(self.blocks.slices):
            grad += self.blocks.accumulate(block, self.product[rows])
        return grad, self.product.sum(axis=0)

    # ------------------------------------------------------------------------- the iteration

    def correction(self, i: int, w: Matrix, b: Vector) -> tuple[Matrix, Vector]:
        size, rows = self.sizes[i], self.blocks.slices[i]
        before = (self.old_product if self.kind == "lagged" else self.product)[rows]
        room = self._losses[0, :size], self._slopes[0, :size]
        return self.blocks.correction(i, w, b, self._weights_of(i), before, *room)

    def gradient(self, w: Matrix, b: Vector) -> tuple[Matrix, Vector]:
        grad, grad_b, size = self.blocks.gradient(self.q, w, b, self._known)
        self.seen += size
        return grad, grad_b

    def visit(
        self, j: int, k: int, same: bool, w: Matrix, b: Vector
    ) -> tuple[Vector, Vector, Matrix]:
        blocks, size_j, size_k = self.blocks, self.sizes[j], self.sizes[k]
        there, here = self._losses[1, :size_j], self._losses[0, :size_k]
        slopes = self._slopes[0, :size_k]
        blocks.evaluate(k, w, b, here, slopes)
        self._known = {k: slopes}
        if same:
            there[:] = here
        else:
            self._known[j] = self._slopes[1, :size_j]
            blocks.losses_of(j, w, b, there, self._known[j])
        return there, here, slopes

    def change(self, j: int, losses: Vector, scale: float) -> Vector:
        table = self.old_losses if self.kind == "lagged" else self.loss_table
        kernels.scaled_change(losses, table[self.blocks.slices[j]], scale)
        return losses

    def put(self, k: int, losses: Vector) -> None:
        rows = self.blocks.slices[k]
        if self.kind == "lagged":
            self.old_losses[rows] = self.loss_table[rows]
        self.loss_table[rows] = losses
        self._last_put = k

    def reweigh(self, j: int, change: Vector, nu: float, s: float) -> None:
        lists, new = self._unsettled, self._last_put
        if lists is not None and lists.step(self.loss_table, self._q, j, change, new, nu, s):
            return
        self._fill_argument(j, change, s)
        if lists is None:
            self.oracle.solve_into(self._u, nu + s, self._q, self.mirror)
        else:
            before = self.oracle._tau
            self.oracle.solve_into(self._u, nu + s, self._q, self.mirror)
            lists.observe(before)

    def _fill_argument(self, j: int, change: Vector, s: float) -> None:
        """What the dual oracle takes: ``lhat + change e_j + s`` times the mirror coordinate."""
        if self.has_mirror:
            kernels.proximal_argument(self.loss_table, s, self.mirror, self._u)
        else:
            kernels.proximal_argument_chi2(self.loss_table, s, self._q, self.p, self._u)
        self._u[self.blocks.slices[j]] += change

    def argument(self, j: int, change: Vector, s: float) -> Vector:
        """The same, in the problem's order."""
        self._fill_argument(j, change, s)
        return self.blocks.scatter(self._u)

    def renew(self, k: int, slopes: Matrix, w: Matrix) -> tuple[Matrix, Vector]:
        rows, q = self.blocks.slices[k], self._weights_of(k)
        product = self.product[rows]
        if self.kind == "lagged":
            self.old_product[rows] = product
        # The slopes become the change.
        if product.shape[1] == 1:
            total = np.array([kernels.renew(slopes[:, 0], q, product[:, 0])])
        else:
            slopes *= q[:, None]
            slopes -= product
            product += slopes
            total = slopes.sum(axis=0)
        return self.blocks.accumulate(k, slopes), total

    # ------------------------------------------------------- one block, for compiled iterations

    def empty(self) -> tuple[Vector, Matrix, Vector]:
        """Room for losses, slopes and weights of all rows, to be written to."""
        n = self.rows.n_samples
        self.loss_table, self._q, self.mirror = np.empty(n), np.empty(n), np.empty(0)
        return self.loss_table, self._slopes[0], self._q

    def open(self) -> tuple[Vector, Matrix, Vector]:
        """Losses, slopes and weights as they are, to be written to."""
        self._known = {0: self._slopes[0]}
        return self.loss_table, self._slopes[0], self._q

    # ----------------------------------------------------------------- what others look at

    def values(self, nu: float, is_fresh: bool) -> tuple[float, float]:
        if self._unsettled is not None:
            self._unsettled.forget(self._q)  # the lists lie in _u
        exact, table, value = self._u, self.loss_table, self.problem.divergence._value
        self._estimator.solve_into(table, nu, exact)
        best, own = (float(np.dot(q, table)) - nu * value(q, self.p) for q in (exact, self._q))
        return best, own

    def losses(self) -> Vector:
        """The table of losses, in the problem's order."""
        return self.blocks.scatter(self.loss_table)

    def rest(self) -> None:
        if self._unsettled is not None:
            self._unsettled.forget(self._q)

    # ----------------------------------------------------------------------------- to go on

    @property
    def names(self) -> tuple[str, ...]:
        mirror = ("mirror",) if self.has_mirror else ()
        last = {
            "blocks": ("product",),
            "support": ("slopes",),
            "lagged": ("product", "old_losses", "old_product"),
        }
        return ("loss_table", "q", *mirror, *last[self.kind])

    @property
    def slopes(self) -> Matrix:
        """Those of the blocks that were visited last, and 0 elsewhere."""
        slopes = np.zeros((self.rows.n_samples, self.problem.n_outputs))
        for k, known in self._known.items():
            slopes[self.blocks.slices[k]] = known
        return slopes

    def state(self) -> dict[str, Any]:
        return {name: self.blocks.scatter(getattr(self, name)) for name in self.names}

    def restore(self, state: dict[str, Any], known: tuple[int, int]) -> None:
        self.mirror = np.empty(0)
        tables = {name: self.blocks.gather(state[name]) for name in self.names}
        self._q, slopes = tables.pop("q"), tables.pop("slopes", None)
        for name, table in tables.items():
            setattr(self, name, table)
        for room, block in zip((1, 0), known):
            if slopes is not None and block >= 0:
                self._known[block] = self._slopes[room, : self.sizes[block]]
                self._known[block][:] = slopes[self.blocks.slices[block]]

    @property
    def memories(self) -> dict[str, dict[str, float]]:
        lists = {} if self._unsettled is None else dict(self._unsettled.memory)
        searches = {"oracle": self.oracle.memory, "estimator": self._estimator.memory}
        return {**searches, "unsettled": lists}

    @memories.setter
    def memories(self, memories: dict[str, dict[str, float]]) -> None:
        self.oracle.memory = memories["oracle"]
        self._estimator.memory = memories["estimator"]
        if self._unsettled is not None:
            self._unsettled.memory = memories["unsettled"]
