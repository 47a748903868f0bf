"""What DRAGO's iteration asks of the rows: tables of what it last saw of each, in M blocks.

The iteration is written once (`drago.solvers.drago.iterations`), in the operations below. Tables
are opaque to it, as vectors of the rows are. There are three of them, and the weights:

    lhat    losses, each at the last visit to its row
    qhat s  weights times slopes, ``qhat_i grad l_i = x_i (qhat_i s_i)``, likewise
    q       the weights, with their mirror coordinate (``q/p``, or its logarithm for KL)

Coefficients and gradients are *small*: arrays, or tensors where the rows are on a device, so that
an iteration need not wait for it. `small` and `read` are the way there and back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from drago.rows.base import Evaluation, RowVector

Small = Any
"""Coefficients, gradients, numbers: an array, or a tensor on the device of the rows."""
BlockVector = Any
"""A vector with an entry for each row of a block: opaque."""

# The weight (times n) below which a row is not visited for the exact gradient.
NOTICEABLE = 1e-12


class Tables:
    """Tables of the rows, in blocks.

    Attributes
    ----------
    kind : {"blocks", "support", "lagged"}
        "support" has no table of ``qhat s``, "lagged" has those of a cycle before as well: the
        operations that look at tables then look at those.
    count : int
        The number M of blocks.
    sizes : sequence of int
        Rows of each block.
    xp : module
        NumPy or torch, for what is done with small arrays.
    oracle : dual oracle
        Finds the weights of the iterations; that of the estimates is another one.
    ring : small array of shape (M, ...)
        The last M points, which the iterations keep, for tables that go back to them.
    seen, again : int
        Rows that exact gradients have visited, and visits made again to save memory.
    """

    rows: Any
    problem: Any
    kind: str
    count: int
    sizes: list[int]
    xp: Any = np
    ring: Small
    oracle: Any
    _estimator: Any
    seen: int = 0
    again: int = 0

    def close(self) -> None:
        """End what runs beside, as threads."""

    def rest(self) -> None:
        """A round has ended: leave nothing behind that a resumed run would not have."""

    # ------------------------------------------------------------------------- small arrays

    def small(self, array: Any) -> Small:
        """An array where iterations work with it."""
        return array

    def read(self, *arrays: Small) -> tuple[Any, ...]:
        """Small arrays as NumPy's, and numbers as they are; in one transfer."""
        return arrays

    def kept(self, before: Small, now: Small) -> Small:
        """What takes the place of a small array, in its memory where that is recorded."""
        return now

    # ----------------------------------------------------------------------------- the start

    def evaluate(self, problem: Any, w: Any, b: Any) -> Evaluation:
        """A visit to all rows, before the tables are filled with it and its exact weights."""
        return problem.evaluate(w, b)

    def fill(self, start: Evaluation, q: RowVector | str) -> tuple[Small, Small]:
        """All tables at a point; returns ``ghat' qhat``, in w and b.

        `q` are the weights, "nominal", or "exact" for those at the point.
        """
        raise NotImplementedError

    def _first_weights(self, start: Evaluation, q: RowVector | str) -> tuple[RowVector, RowVector]:
        """The weights that `fill` is given, and their mirror coordinate where it is known."""
        rows, problem = self.rows, self.problem
        if not isinstance(q, str):
            return q, None
        if q == "nominal":
            return rows.p, None
        q, mirror = self.oracle.with_mirror(start.losses, problem.nu)
        if problem.nu == 0 and not problem.divergence.is_chi2:
            # A vertex has no mirror coordinate to start from.
            return rows.mix(q, rows.p, 0.5), None
        return q, mirror

    # ------------------------------------------------------------------------- the iteration

    def correction(self, i: Any, w: Small, b: Small) -> tuple[Small, Small]:
        """``sum over block i of (q grad l(w) - qhat ghat)``, in w and b."""
        raise NotImplementedError

    def gradient(self, w: Small, b: Small) -> tuple[Small, Small]:
        """``sum_i q_i grad l_i(w)`` over the rows of noticeable weight, in w and b."""
        raise NotImplementedError

    def visit(
        self, j: Any, k: Any, same: bool, w: Small, b: Small
    ) -> tuple[BlockVector, BlockVector, Any]:
        """Losses of block `j`; losses of block `k`, and what its gradients come from.

        `same` says that the two are known to be one block.
        """
        raise NotImplementedError

    def change(self, j: Any, losses: BlockVector, scale: Any) -> BlockVector:
        """``scale (losses - lhat)`` on block `j`."""
        raise NotImplementedError

    def put(self, k: Any, losses: BlockVector) -> None:
        """``lhat <- losses`` on block `k`."""
        raise NotImplementedError

    def reweigh(self, j: Any, change: BlockVector, nu: float, s: Any) -> None:
        """``q <- argmax <lhat + change e_j, .> - nu D(. || p) - s Bregman_D(., q)``."""
        raise NotImplementedError

    def renew(self, k: Any, slopes: Any, w: Small) -> tuple[Small, Small]:
        """``qhat s <- q slopes`` on block `k`; returns by how much its sum changed, in w and b."""
        raise NotImplementedError

    # ----------------------------------------------------------------- what others look at

    def values(self, nu: float, is_fresh: bool) -> tuple[Any, Any]:
        """``<lhat, .> - nu D(. || p)`` of the best weights for this table, and of q.

        `is_fresh` says that these are the same.
        """
        raise NotImplementedError

    def weights(self) -> RowVector:
        """A copy of q."""
        raise NotImplementedError

    def recorder(self, iterations: Any) -> Any:
        """What replays rounds of these iterations; None where they are run one by one."""
        return None

    # ----------------------------------------------------------------------------- to go on

    @property
    def names(self) -> tuple[str, ...]:
        """Of the vectors in a `state`."""
        raise NotImplementedError

    def state(self) -> dict[str, RowVector]:
        """All tables."""
        raise NotImplementedError

    def restore(self, state: dict[str, RowVector], known: tuple[int, int]) -> None:
        """Tables as they were, `known` the blocks J and K of the last visit, or -1."""
        raise NotImplementedError

    @property
    def memories(self) -> dict[str, dict[str, float]]:
        """Where the searches for weights ended ("oracle", "estimator"), and what else was learnt.

        May be set.
        """
        searches = {"oracle": self.oracle.memory, "estimator": self._estimator.memory}
        return {**searches, "unsettled": {}}

    @memories.setter
    def memories(self, memories: dict[str, dict[str, float]]) -> None:
        self.oracle.memory, self._estimator.memory = memories["oracle"], memories["estimator"]
