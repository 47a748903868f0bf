"""DRAGO's tables for losses by automatic differentiation.

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

from typing import Any

import torch
from torch import Tensor

from drago.rows.base import Evaluation
from drago.rows.tables.base import NOTICEABLE
from drago.rows.tables.tensors import TensorTables

Graph = tuple[Tensor, Tensor]  # a point, and losses that remember how they came about


class AutogradBlocks:
    """Blocks of rows: block k of M holds the rows ``k, k + M, k + 2M, ...``.

    Parameters
    ----------
    rows : drago.training.model_rows.ModelRows
    count : int
        The number M of blocks.
    """

    spare = 0

    def __init__(self, rows: Any, count: int) -> None:
        self.rows, self.flat, self.count = rows, rows.flat, count
        self.slices = [slice(k, None, count) for k in range(count)]
        self.sizes = [len(range(k, rows.n_samples, count)) for k in range(count)]

    def take(self, values: Tensor, k: int) -> Tensor:
        """The entries of a block."""
        return values[self.slices[k]]

    def put(self, values: Tensor, k: int, new: Tensor) -> None:
        """Write the entries of a block."""
        values[self.slices[k]] = new

    def evaluate(self, k: int, w: Tensor) -> tuple[Tensor, None]:
        """The losses of a block."""
        losses = self.flat.all_losses(self._point(w), self._rows(k))
        return losses.to(w.dtype), None

    def evaluate_with_graph(self, k: int, w: Tensor) -> tuple[Tensor, Graph | None]:
        """The same, and what autograd needs to go back, where the block is not too large for it."""
        flat = self.flat
        if self.sizes[k] > flat.chunk_size:
            return self.evaluate(k, w)[0], None
        graph = flat.with_graph(self._point(w), self._rows(k))
        return graph[1].detach().to(w.dtype), graph

    def weighted_sum(self, k: int, w: Tensor, q: Tensor, graph: Graph | None = None) -> Tensor:
        """``sum over the block of q_i grad l_i(w)``, shape (D, 1), `q` of all rows."""
        weights = self.take(q, k)
        if graph is None:
            found = self.flat.weighted_gradient(self._point(w), self._rows(k), weights)
        else:
            point, losses = graph
            found = torch.autograd.grad(losses, point, weights.to(losses.dtype))[0]
        return found.to(w.dtype)[:, None]

    def sample_gradients(self, k: int, w: Tensor) -> Tensor:
        """``grad l_i(w)`` of the rows of a block, shape (rows, D)."""
        return self.flat.sample_gradients(self._point(w), self._rows(k))

    def gradient(self, w: Tensor, b: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """``sum_i q_i grad l_i`` over the rows of noticeable weight."""
        noticeable = torch.where(q > NOTICEABLE / self.rows.n_samples, q, 0.0)
        found = self.rows.weighted_gradient(self._point(w), noticeable)
        return found.to(w.dtype)[:, None], torch.zeros_like(b)

    def _point(self, w: Tensor) -> Tensor:
        return w[:, 0].to(self.rows.dtype)

    def _rows(self, k: int) -> tuple[Tensor, ...]:
        return self.flat.rows(self.slices[k])


class ModelTables(TensorTables):
    """Old gradients as sums over blocks."""

    blocks: AutogradBlocks

    def __init__(self, rows: Any, problem: Any, kind: str, count: int) -> None:
        super().__init__(rows, problem, kind, AutogradBlocks(rows, count))

    def _fill_gradients(self, start: Evaluation) -> tuple[Tensor, Tensor]:
        w = self.small(start.w)
        grad = torch.zeros_like(w)
        for k in range(self.count):
            grad += self._first_sum(k, w)
        return grad, self.small(start.b) * 0.0

    def _first_sum(self, k: int, w: Tensor) -> Tensor:
        """The sum over block `k` at the starting point, for the tables too."""
        if k == 0:
            self._sums = w.new_empty((self.count, w.shape[0], 1))
        self._sums[k] = self.blocks.weighted_sum(k, w, self._q)
        return self._sums[k]

    def _old_sum(self, k: int) -> Tensor:
        """``S_k`` of the tables."""
        return self._sums[k]

    def _store_sum(self, k: int, new: Tensor, w: Tensor) -> None:
        """Let the tables hold block `k` at the present point and weights."""
        self._sums[k] = new

    def correction(self, i: Any, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.blocks.weighted_sum(i, w, self._q) - self._old_sum(i), torch.zeros_like(b)

    def visit(
        self, j: Any, k: Any, same: bool, w: Tensor, b: Tensor
    ) -> tuple[Tensor, Tensor, Graph | None]:
        losses, graph = self.blocks.evaluate_with_graph(k, w)
        return losses if same else self.blocks.evaluate(j, w)[0], losses, graph

    def renew(self, k: Any, slopes: Graph | None, w: Tensor) -> tuple[Tensor, Tensor]:
        new = self.blocks.weighted_sum(k, w, self._q, slopes)
        change = new - self._old_sum(k)
        self._store_sum(k, new, w)
        return change, w.new_zeros(w.shape[1])


class RingTables(ModelTables):
    """Old gradients computed again from the ring of past iterates, as in the paper.

    Block k was last visited at an iteration t with ``t mod M = k``, whose iterate the ring holds
    at place k, until that is visited again. Blocks not visited since the tables were filled are
    where the iterate was then.
    """

    ring: Tensor

    def _first_sum(self, k: int, w: Tensor) -> Tensor:
        if k == 0:
            self._weight_table, self._filled_at = self.q.clone(), w
            self._is_visited = [False] * self.count
        return self.blocks.weighted_sum(k, w, self._q)

    def _old_sum(self, k: int) -> Tensor:
        point = self.ring[k] if self._is_visited[k] else self._filled_at
        self.again += self.sizes[k]
        return self.blocks.weighted_sum(k, point, self._weight_table)

    def _store_sum(self, k: int, new: Tensor, w: Tensor) -> None:
        self.blocks.put(self._weight_table, k, self.blocks.take(self._q, k))
        self._is_visited[k] = True


class FullTables(ModelTables):
    """Old gradients in a table of all rows, by `torch.func.vmap`."""

    def _first_sum(self, k: int, w: Tensor) -> Tensor:
        if k == 0:
            shape = self.rows.n_samples, w.shape[0]
            self._gradient_table = w.new_empty(shape, dtype=self.rows.dtype)
            self._weight_table = self.q.clone()
        self._store_sum(k, w, w)
        return self._old_sum(k)

    def _old_sum(self, k: int) -> Tensor:
        weights = self.blocks.take(self._weight_table, k).to(self.rows.dtype)
        found = weights @ self.blocks.take(self._gradient_table, k)
        return found.to(self._q.dtype)[:, None]

    def _store_sum(self, k: int, new: Tensor, w: Tensor) -> None:
        self.blocks.put(self._gradient_table, k, self.blocks.sample_gradients(k, w))
        self.blocks.put(self._weight_table, k, self.blocks.take(self._q, k))


class ModelSupportTables(ModelTables):
    """For exact gradients over the rows that carry weight: there are no old ones."""

    def _fill_gradients(self, start: Evaluation) -> tuple[Tensor, Tensor]:
        return self.blocks.gradient(self.small(start.w), self.small(start.b), self.q)


_KINDS = {"blocks": ModelTables, "ring": RingTables, "full": FullTables}


def model_tables(rows: Any, problem: Any, kind: str, count: int) -> ModelTables:
    """The tables that a problem asks for."""
    if kind == "lagged":
        raise ValueError("tables='lagged' is for linear models; take Drago(tables='exact').")
    make = ModelSupportTables if kind == "support" else _KINDS[problem.tables_for(count)]
    return make(rows, problem, kind, count)
