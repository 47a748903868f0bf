"""DRAGO's iteration for losses by automatic differentiation.

It is Algorithm 1 as in `drago.solvers.drago.iterations`, with the same blocks and the same draws.
Rows are visited in whole blocks, which do not change, so the algorithm needs old gradients in one
form only: the sums ``S_k = sum over block k of qhat_i ghat_i``. The aggregate ``ghat' qhat`` is the
sum of all of them, and the primal correction is, with the block I drawn,

    sum over block I of q_i grad l_i(w)  -  S_I

There are three ways to keep them, which give the same iterates up to rounding:

*blocks*  the M vectors ``S_k`` themselves: O(n + M D) numbers, nothing is computed twice, and a
          gradient is always that of a weighted sum, one backward pass.
*ring*    nothing: ``S_k`` is computed again from the weights ``qhat`` of the block and the past
          iterate at which it was last visited, the paper's variant. These iterates are the ring
          that the proximal terms need anyway: half the memory of *blocks*, for another visit to
          block I and to block K in each iteration.
*full*    the n x D table ``ghat`` of the gradients of single rows, by `torch.func.vmap`.

Iterates and sums are float64; the model computes in the dtype of the problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drago.rows.base import Evaluation
from drago.solvers.drago.blocks import NOTICEABLE
from drago.torch_engine.iterations import TensorIterations, TensorSupportIterations
from drago.training.curvature import curvature_metric

if TYPE_CHECKING:
    from drago.training.autograd import AutogradProblem

Graph = tuple[Tensor, Tensor]  # a point, and losses that remember how they came about


class AutogradBlocks:
    """Blocks of rows: block k of M holds the rows ``k, k + M, k + 2M, ...``.

    Parameters
    ----------
    problem : AutogradProblem
    count : int
        The number M of blocks.
    n_threads : ignored
        Torch has its own.
    """

    spare = 0

    def __init__(self, problem: AutogradProblem, count: int, n_threads: int | None = None) -> None:
        self.problem, self.count = problem, count
        self.slices = [slice(k, None, count) for k in range(count)]
        self.sizes = [len(range(k, problem.n_samples, count)) for k in range(count)]

    def close(self) -> None:
        """There is nothing to end."""

    def take(self, values: Tensor, k: int) -> Tensor:
        """The entries of a block."""
        return values[self.slices[k]]

    def put(self, values: Tensor, k: int, new: Tensor) -> None:
        """Write the entries of a block."""
        values[self.slices[k]] = new

    def evaluate(self, k: int, w: Tensor, b: Tensor) -> tuple[Tensor, None]:
        """The losses of a block."""
        losses = self.problem.flat.all_losses(self._point(w), self._rows(k))
        return losses.to(w.dtype), None

    def evaluate_with_graph(self, k: int, w: Tensor) -> tuple[Tensor, Graph | None]:
        """The same, and what autograd needs to go back, where the block is not too large for it."""
        flat = self.problem.flat
        if self.sizes[k] > flat.chunk_size:
            return self.evaluate(k, w, w)[0], None
        graph = flat.with_graph(self._point(w), self._rows(k))
        return graph[1].detach().to(w.dtype), graph

    def weighted_sum(self, k: int, w: Tensor, q: Tensor, graph: Graph | None = None) -> Tensor:
        """``sum over the block of q_i grad l_i(w)``, shape (D, 1), `q` of all rows."""
        weights = self.take(q, k)
        if graph is None:
            found = self.problem.flat.weighted_gradient(self._point(w), self._rows(k), weights)
        else:
            point, losses = graph
            found = torch.autograd.grad(losses, point, weights.to(losses.dtype))[0]
        return found.to(w.dtype)[:, None]

    def sample_gradients(self, k: int, w: Tensor) -> Tensor:
        """``grad l_i(w)`` of the rows of a block, shape (rows, D)."""
        return self.problem.flat.sample_gradients(self._point(w), self._rows(k))

    def gradient(self, w: Tensor, b: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """``sum_i q_i grad l_i`` over the rows of noticeable weight."""
        noticeable = torch.where(q > NOTICEABLE / self.problem.n_samples, q, 0.0)
        found = self.problem.rows.weighted_gradient(self._point(w), noticeable)
        return found.to(w.dtype)[:, None], torch.zeros_like(b)

    def _point(self, w: Tensor) -> Tensor:
        return w[:, 0].to(self.problem.dtype)

    def _rows(self, k: int) -> tuple[Tensor, ...]:
        return self.problem.flat.rows(self.slices[k])


class AutogradIterations(TensorIterations):
    """The state of DRAGO and its iteration, old gradients as sums over blocks.

    The parameters and the meaning of everything are those of
    `drago.solvers.drago.iterations.Iterations`.
    """

    problem: AutogradProblem
    blocks: AutogradBlocks  # type: ignore[assignment]
    _has_product = False

    def _fill_aggregate(self, start: Evaluation) -> None:
        self._aggregate.zero_()
        for k in range(self.blocks.count):
            self._aggregate += self._first_sum(k)
        self._aggregate_b.zero_()

    def _first_sum(self, k: int) -> Tensor:
        """The sum over block `k` at the starting point, for the tables too."""
        if k == 0:
            self._sums = self._w.new_empty((self.blocks.count, self._w.shape[0], 1))
        self._sums[k] = self.blocks.weighted_sum(k, self._w, self._q)
        return self._sums[k]

    def _old_sum(self, k: int) -> Tensor:
        """``S_k`` of the tables."""
        return self._sums[k]

    def _store_sum(self, k: int, new: Tensor) -> None:
        """Let the tables hold block `k` at the present point and weights."""
        self._sums[k] = new

    def _primal_gradient(self, i: Any, scale: Any, known: Any) -> tuple[Tensor, Tensor]:
        change = self._last_change
        if not known:
            change = self.blocks.weighted_sum(i, self._w, self._q) - self._old_sum(i)
        return self._aggregate + scale * change, self._aggregate_b

    def _dual_step(self, j: Any, k: Any, same: bool, scale: Any, s: Any) -> None:
        blocks = self.blocks
        losses, graph = blocks.evaluate_with_graph(k, self._w)
        there = losses if same else blocks.evaluate(j, self._w, self._b)[0]
        change = scale * (there - blocks.take(self._losses, j))
        blocks.put(self._losses, k, losses)
        mirror = self._mirror if self._mirror.numel() else self.q / self.p
        u = self.loss_table + s * mirror
        u[blocks.slices[j]] += change
        self._solve(u, self.problem.nu + s)
        new = blocks.weighted_sum(k, self._w, self._q, graph)
        self._last_change.copy_(new - self._old_sum(k))
        self._store_sum(k, new)
        self._aggregate += self._last_change


class RingIterations(AutogradIterations):
    """Old gradients computed again from the ring of past iterates, as in the paper.

    Block k was last visited at an iteration t with ``t mod M = k``, whose iterate the ring holds
    at place k, until it turns. Blocks not visited since the tables were filled are where the
    iterate was then.
    """

    def _first_sum(self, k: int) -> Tensor:
        if k == 0:
            self._weight_table = self.q.clone()
            self._filled_at, self._filled = self._w.clone(), self.t
            self._left: Tensor | None = None
        return self.blocks.weighted_sum(k, self._w, self._q)

    def _old_sum(self, k: int) -> Tensor:
        # The last iteration before this one that visited block k.
        visited = self.t - 1 - (self.t - 1 - k) % self.blocks.count
        point = self._filled_at
        if visited > self._filled:
            point = self._ring[k] if self._left is None else self._left
        self._visits += self.blocks.sizes[k]
        return self.blocks.weighted_sum(k, point, self._weight_table)

    def _move(self, k: Any, grad: Tensor, grad_b: Tensor, near: Any, far: Any) -> None:
        self._left = self._ring[k].clone()
        super()._move(k, grad, grad_b, near, far)

    def _store_sum(self, k: int, new: Tensor) -> None:
        self.blocks.put(self._weight_table, k, self.blocks.take(self._q, k))
        self._left = None


class FullIterations(AutogradIterations):
    """Old gradients in a table of all rows, by `torch.func.vmap`."""

    def _first_sum(self, k: int) -> Tensor:
        if k == 0:
            shape = self.problem.n_samples, self._w.shape[0]
            self._gradient_table = self._w.new_empty(shape, dtype=self.problem.dtype)
            self._weight_table = self.q.clone()
        self._store_sum(k, self._w)
        return self._old_sum(k)

    def _old_sum(self, k: int) -> Tensor:
        weights = self.blocks.take(self._weight_table, k).to(self.problem.dtype)
        found = weights @ self.blocks.take(self._gradient_table, k)
        return found.to(self._w.dtype)[:, None]

    def _store_sum(self, k: int, new: Tensor) -> None:
        self.blocks.put(self._gradient_table, k, self.blocks.sample_gradients(k, self._w))
        self.blocks.put(self._weight_table, k, self.blocks.take(self._q, k))


class AutogradSupportIterations(TensorSupportIterations):
    """The exact primal gradient over the rows that carry weight; there are no old gradients."""

    def _fill_aggregate(self, start: Evaluation) -> None:
        blocks: Any = self.blocks
        self._aggregate.copy_(blocks.gradient(self._w, self._b, self.q)[0])
        self._aggregate_b.zero_()


def iterations(problem: AutogradProblem, blocks: AutogradBlocks, *settings: Any) -> Any:
    """Iterations with the tables that the problem asks for."""
    kinds = {"blocks": AutogradIterations, "ring": RingIterations, "full": FullIterations}
    kind: Any = kinds[problem.tables_for(blocks.count)]
    return kind(problem, blocks, *settings)


def _refuse(*settings: Any) -> Any:
    raise ValueError("tables='lagged' is for linear models; take Drago(tables='exact').")


ENGINE = {
    "rows": AutogradBlocks,
    "blocks": iterations,
    "support": AutogradSupportIterations,
    "lagged": _refuse,
    "metric": curvature_metric,
}
