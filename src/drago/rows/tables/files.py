"""DRAGO's tables for rows in files: whole vectors, in memory up to a limit and in files beyond."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago.rows.base import Evaluation, RowStore, RowVector, Visit
from drago.rows.tables.base import Tables
from drago.rows.tables.file_blocks import GAP, FileBlocks

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


def thin_for(row_bytes: int) -> float:
    """The share of `RowStore.thin` for rows of so many bytes: they have to be far apart.

    What lies between rows that are near each other is read with them.
    """
    return min(RowStore.thin, row_bytes / GAP)


class FileTables(Tables):
    """Tables of rows in files.

    Each is one array in the order of the rows, of which the vectors of the store are views. The
    weights are as the oracle of the store gives them.

    Parameters
    ----------
    rows : drago.rows.files.FileRows
    problem : DROProblem
        For its terms.
    kind, count :
        See `drago.rows.tables.base.Tables`.
    n_threads : int or None
        None: all cores, where there is work for them.
    """

    q: Any
    mirror: Any

    def __init__(
        self, rows: Any, problem: Any, kind: str, count: int, n_threads: int | None
    ) -> None:
        self.rows, self.problem, self.kind, self.count = rows, problem, kind, count
        self.blocks = FileBlocks(rows, problem.loss, problem.n_outputs, count, n_threads)
        self.sizes = self.blocks.sizes
        # Each starts its search where its last one ended, so there is one for each purpose.
        self.oracle, self._estimator = (
            rows.oracle(problem.uncertainty, problem.divergence) for _ in range(2)
        )
        self._visit: Visit | None = None

    @property
    def has_mirror(self) -> bool:
        """The mirror coordinate of chi2, q/p, is not worth a vector of its own."""
        return not self.problem.divergence.is_chi2

    # Made when they are first written to.

    @cached_property
    def loss_table(self) -> Vector:
        return self.rows.room(self.rows.n_samples)

    @cached_property
    def old_losses(self) -> Vector:
        return self.rows.room(self.rows.n_samples)

    @cached_property
    def product(self) -> Matrix:
        return self._matrix(self.rows.n_samples)

    @cached_property
    def old_product(self) -> Matrix:
        return self._matrix(self.rows.n_samples)

    @cached_property
    def _u(self) -> Vector:
        return self.rows.room(self.rows.n_samples)

    @cached_property
    def _losses(self) -> tuple[Vector, Vector]:
        """Room for the losses of the blocks K and J."""
        size = max(self.sizes)
        return self.rows.room(size), self.rows.room(size)

    @cached_property
    def _slopes(self) -> Matrix:
        return self._matrix(max(self.sizes))

    def _matrix(self, size: int) -> Matrix:
        k = self.problem.n_outputs
        return self.rows.room(size * k).reshape(size, k)

    def _vector(self, table: Any) -> RowVector:
        """A table as a vector of the store; the same memory."""
        return self.rows.cut(table)

    def _put(self, table: Any, vector: RowVector) -> None:
        for part, values in zip(self.rows.parts, vector.parts):
            table[part.start : part.stop] = values

    # ----------------------------------------------------------------------------- the start

    def evaluate(self, problem: Any, w: Matrix, b: Vector) -> Evaluation:
        """Weights and gradient too, which take hardly more than the one reading."""
        self._visit = self.rows.visit(problem.loss, w, b, self._estimator, problem.nu)
        return self._visit.evaluation

    def fill(self, start: Evaluation, q: RowVector | str) -> tuple[Matrix, Vector]:
        visit, self._visit = self._visit, None
        rows, nu = self.rows, self.problem.nu
        if visit is not None and (visit.evaluation is not start or not isinstance(q, str)):
            visit = None
        self._put(self.loss_table, start.losses)
        if not isinstance(q, str):
            self._set_weights(q)
        elif q == "nominal":
            self._set_weights(rows.p)
        elif visit is not None and not self.has_mirror:
            self._set_weights(visit.q)
        else:
            self._set_weights(*self._exact(start.losses, nu))
            if nu == 0 and self.has_mirror:
                # A vertex has no mirror coordinate to start from.
                self._set_weights(rows.mix(self.q, rows.p, 0.5))
                visit = None
        if self.kind != "support":
            for part, slopes, weights in zip(rows.parts, start.dlosses.parts, self.q.parts):
                room = self.product[part.start : part.stop]
                np.multiply(slopes, weights[:, None], out=room)
        if self.kind == "lagged":
            self.old_losses[:], self.old_product[:] = self.loss_table, self.product
        if visit is not None:
            return visit.gradient
        if self.kind == "support":
            return self.blocks.gradient(self.q, start.w, start.b)[:2]
        return rows.gradient(start.dlosses, self.q)

    def _exact(self, u: RowVector, c: float) -> tuple[RowVector, RowVector | None]:
        """The weights, and their mirror coordinate where it is kept."""
        if self.has_mirror:
            return self.oracle.with_mirror(u, c)
        return self.oracle.weights(u, c), None

    def _set_weights(self, q: RowVector, mirror: RowVector | None = None) -> None:
        self.q, self.mirror = q, mirror
        if self.has_mirror and mirror is None:
            parts = zip(self.rows.parts, q.parts)
            self.mirror = self.rows.vector(
                self.problem.divergence._mirror(values, part.p, out=self.rows.room(values.size))
                for part, values in parts
            )

    # ------------------------------------------------------------------------- the iteration

    def correction(self, i: int, w: Matrix, b: Vector) -> tuple[Matrix, Vector]:
        before = self.old_product if self.kind == "lagged" else self.product
        return self.blocks.correction(i, w, b, self.q, before)

    def gradient(self, w: Matrix, b: Vector) -> tuple[Matrix, Vector]:
        grad, grad_b, size = self.blocks.gradient(self.q, w, b)
        self.seen += size
        return grad, grad_b

    def visit(
        self, j: int, k: int, same: bool, w: Matrix, b: Vector
    ) -> tuple[Vector, Vector, Matrix | None]:
        here, there = (room[: self.sizes[of]] for room, of in zip(self._losses, (k, j)))
        slopes = None if self.kind == "support" else self._slopes[: self.sizes[k]]
        self.blocks.evaluate(k, w, b, here, slopes)
        if same:
            there[:] = here
        else:
            self.blocks.evaluate(j, w, b, there)
        return there, here, slopes

    def change(self, j: int, losses: Vector, scale: float) -> Vector:
        table = self.old_losses if self.kind == "lagged" else self.loss_table
        for span in self.blocks.spans[j]:
            kernels.scaled_change(losses[span.of_block], table[span.of_all], scale)
        return losses

    def put(self, k: int, losses: Vector) -> None:
        for span in self.blocks.spans[k]:
            if self.kind == "lagged":
                self.old_losses[span.of_all] = self.loss_table[span.of_all]
            self.loss_table[span.of_all] = losses[span.of_block]

    def reweigh(self, j: int, change: Vector, nu: float, s: float) -> None:
        for k, part in enumerate(self.rows.parts):
            some = slice(part.start, part.stop)
            table, u = self.loss_table[some], self._u[some]
            if self.has_mirror:
                kernels.proximal_argument(table, s, self.mirror.parts[k], u)
            else:
                kernels.proximal_argument_chi2(table, s, self.q.parts[k], part.p, u)
        for span in self.blocks.spans[j]:
            self._u[span.of_all] += change[span.of_block]
        self._set_weights(*self._exact(self._vector(self._u), nu + s))

    def renew(self, k: int, slopes: Matrix, w: Matrix) -> tuple[Matrix, Vector]:
        total = np.zeros(slopes.shape[1])
        for span in self.blocks.spans[k]:
            product, q = self.product[span.of_all], self.q.parts[span.part][span.of_part]
            change = slopes[span.of_block]
            if self.kind == "lagged":
                self.old_product[span.of_all] = product
            # The slopes become the change.
            if product.shape[1] == 1:
                total += kernels.renew(change[:, 0], q, product[:, 0])
            else:
                change *= q[:, None]
                change -= product
                product += change
                total += change.sum(axis=0)
        return self.blocks.accumulate(k, slopes), total

    # ----------------------------------------------------------------- what others look at

    def values(self, nu: float, is_fresh: bool) -> tuple[float, float]:
        rows, divergence, losses = self.rows, self.problem.divergence, self._vector(self.loss_table)
        exact = self._estimator.weights(losses, nu)
        best, own = (rows.primal(divergence, nu, losses, q) for q in (exact, self.q))
        return best, own

    def weights(self) -> RowVector:
        return self.q  # nobody writes to it: a step makes new ones

    # ----------------------------------------------------------------------------- to go on

    @property
    def names(self) -> tuple[str, ...]:
        mirror = ("mirror",) if self.has_mirror else ()
        last: dict[str, tuple[str, ...]] = {
            "blocks": ("product",),
            "support": (),
            "lagged": ("product", "old_losses", "old_product"),
        }
        return ("loss_table", "q", *mirror, *last[self.kind])

    def state(self) -> dict[str, RowVector]:
        found = {name: getattr(self, name) for name in self.names}
        return {
            name: self._vector(table) if isinstance(table, np.ndarray) else table
            for name, table in found.items()
        }

    def restore(self, state: dict[str, RowVector], known: tuple[int, int]) -> None:
        self.q, self.mirror = state["q"], state.get("mirror")
        for name in self.names:
            if name not in ("q", "mirror"):
                self._put(getattr(self, name), state[name])
