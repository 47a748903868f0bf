"""DRAGO's tables on tensors: the rows stay on their device, and iterations read nothing back.

So the processor runs ahead of the device, and looks once a round. Where there are fused kernels, an
iteration and the visit to all rows at the end of a round are recorded in CUDA graphs and replayed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drago.rows.base import Evaluation
from drago.rows.tables.base import NOTICEABLE, Tables
from drago.rows.tables.recorded import Rounds
from drago.rows.tables.tensor_blocks import Block, TensorBlocks

# The least ratio q/p whose logarithm is taken as it is: below, digits are lost.
_TINY = 1e-280


class TensorTables(Tables):
    """The weights and the table of losses, in the problem's order; what gradients need is below.

    Parameters
    ----------
    rows : drago.rows.tensors.TensorVectors
    problem : DROProblem or AutogradProblem
    kind : str
    blocks : TensorBlocks or the like
    """

    xp = torch

    def __init__(self, rows: Any, problem: Any, kind: str, blocks: Any) -> None:
        self.rows, self.problem, self.kind, self.blocks = rows, problem, kind, blocks
        self.count, self.sizes, self.p = blocks.count, blocks.sizes, rows.p
        # Each starts its search where its last one ended, so there is one for each purpose.
        self.oracle, self._exact = (
            rows.oracle(problem.uncertainty, problem.divergence) for _ in range(2)
        )
        n, room = rows.n_samples, rows.n_samples + blocks.spare
        # Vectors with entries to spare, see `drago.rows.tables.tensor_blocks`.
        self._q, self._losses, self._u = (self.p.new_zeros(room) for _ in range(3))
        self._mirror = self.p.new_zeros(0 if problem.divergence.is_chi2 else n)
        self._seen = torch.zeros((), dtype=torch.int64, device=self.p.device)

    @property
    def seen(self) -> int:  # type: ignore[override]
        return int(self._seen)

    @property
    def q(self) -> Tensor:
        return self._q[: self.rows.n_samples]

    @property
    def loss_table(self) -> Tensor:
        return self._losses[: self.rows.n_samples]

    # ------------------------------------------------------------------------- small arrays

    def small(self, array: Any) -> Tensor:
        return self.rows.on_device(array)

    def read(self, *arrays: Tensor) -> tuple[Any, ...]:
        return self.unpacked(self.packed(arrays), [array.shape for array in arrays])

    @staticmethod
    def packed(arrays: Sequence[Tensor]) -> Tensor:
        """Small tensors as one vector."""
        return torch.cat([array.reshape(-1) for array in arrays])

    @staticmethod
    def unpacked(vector: Tensor, shapes: Sequence[Sequence[int]]) -> tuple[Any, ...]:
        """Arrays of these shapes from such a vector, or numbers; in one transfer."""
        found, out, start = vector.cpu().numpy().astype(np.float64), [], 0
        for shape in shapes:
            size = math.prod(shape)
            part = found[start : start + size]
            out.append(part.reshape(tuple(shape)) if len(shape) else float(part[0]))
            start += size
        return tuple(out)

    def kept(self, before: Tensor, now: Tensor) -> Tensor:
        return before.copy_(now)

    # ----------------------------------------------------------------------------- weights

    def fill(self, start: Evaluation, q: Any) -> tuple[Tensor, Tensor]:
        self.loss_table.copy_(start.losses)
        exact = isinstance(q, str) and q == "exact"
        if exact:
            self._solve(self.loss_table, self.problem.nu, self._exact)
            if self.problem.nu == 0 and self._mirror.numel():
                # A vertex has no mirror coordinate to start from.
                self.q.copy_(0.5 * (self.q + self.p))
                exact = False
        else:
            self.q.copy_(self.p if isinstance(q, str) else torch.as_tensor(q))
        if not exact and self._mirror.numel():
            self._mirror.copy_(torch.log(self.q / self.p))
        return self._fill_gradients(start)

    def _fill_gradients(self, start: Evaluation) -> tuple[Tensor, Tensor]:
        """The tables that gradients need, and ``sum_i q_i grad l_i``."""
        raise NotImplementedError

    def _solve(self, u: Tensor, c: float | Tensor, oracle: Any) -> None:
        """The weights and their mirror coordinate."""
        q = oracle.weights(u, c, out=self.q)
        if self._mirror.numel():
            self._mirror.copy_(self._mirror_of(u, q))

    def _mirror_of(self, u: Tensor, q: Tensor) -> Tensor:
        """``log(q / p)``; for weights that underflow, along the line of the others."""
        ratio = q / self.p
        some = ratio > _TINY
        logs = torch.log(torch.where(some, ratio, 1.0))
        top = torch.where(some, u, -np.inf).argmax(0, keepdim=True)
        low = torch.where(some, u, np.inf).argmin(0, keepdim=True)
        from_u, from_log = u.gather(0, low), logs.gather(0, low)
        run = (u.gather(0, top) - from_u).clamp(min=1e-300)
        rate = ((logs.gather(0, top) - from_log) / run).clamp(min=0.0)
        return torch.where(some, logs, from_log + rate * (u - from_u))

    def gradient(self, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        self._seen += (self.q > NOTICEABLE / self.rows.n_samples).sum()
        return self.blocks.gradient(w, b, self.q)

    def change(self, j: Block, losses: Tensor, scale: Any) -> Tensor:
        return scale * (losses - self.blocks.take(self._losses, j))

    def put(self, k: Block, losses: Tensor) -> None:
        self.blocks.put(self._losses, k, losses)

    def reweigh(self, j: Block, change: Tensor, nu: float, s: Any) -> None:
        n, blocks = self.rows.n_samples, self.blocks
        u = self._u[:n]
        if self._mirror.numel():
            torch.addcmul(self.loss_table, self._mirror, _tensor(s, self.p), out=u)
        elif self.rows.is_uniform:
            torch.addcmul(self.loss_table, self.q, _tensor(s * float(n), self.p), out=u)
        else:
            torch.add(self.loss_table, s * (self.q / self.p), out=u)
        blocks.put(self._u, j, blocks.take(self._u, j) + change)
        self._solve(u, nu + s, self.oracle)

    def values(self, nu: float, is_fresh: bool) -> tuple[Tensor, Tensor]:
        problem, losses = self.problem, self.loss_table
        exact = self.q if is_fresh else self._exact.weights(losses, nu)
        distance = self.rows.distance_of
        best, own = (x @ losses - nu * distance(problem.divergence, x) for x in (exact, self.q))
        return best, own

    def weights(self) -> Tensor:
        return self.q.clone()


class LinearTensorTables(TensorTables):
    """For predictions ``X w + b``: the tables of slopes and weights are one, of their product.

    Parameters
    ----------
    rows : drago.rows.device.TensorRows
    problem : DROProblem
    kind : str
    count : int
    """

    blocks: TensorBlocks

    def __init__(self, rows: Any, problem: Any, kind: str, count: int) -> None:
        super().__init__(rows, problem, kind, TensorBlocks(rows, problem.loss, count))
        has_product, room = kind != "support", rows.n_samples + self.blocks.spare
        self._product = self.p.new_zeros(room if has_product else 0, problem.n_outputs)

    def recorder(self, iterations: Any) -> Rounds | None:
        problem = self.problem
        asked = "Spectrum" in problem.uncertainty.kind  # by the host, for its values
        has_kernels = self.rows.kernels_for(problem.loss) is not None
        can = has_kernels and iterations.is_plain and self.kind != "lagged" and not asked
        return Rounds(iterations) if can else None

    def _fill_gradients(self, start: Evaluation) -> tuple[Tensor, Tensor]:
        weighted = self.q[:, None] * start.dlosses
        if self.kind != "support":
            self._product[: self.rows.n_samples] = weighted
        if self.kind == "lagged":
            self._old_losses, self._old_product = self._losses.clone(), self._product.clone()
        return self.rows.accumulate(weighted), weighted.sum(0)

    def correction(self, i: Block, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        older = self._old_product if self.kind == "lagged" else self._product
        return self.blocks.correction(i, w, b, self._q, older)

    def visit(
        self, j: Block, k: Block, same: bool, w: Tensor, b: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        losses, slopes = self.blocks.evaluate(k, w, b)
        return losses if same else self.blocks.evaluate(j, w, b)[0], losses, slopes

    def change(self, j: Block, losses: Tensor, scale: Any) -> Tensor:
        if self.kind != "lagged":
            return super().change(j, losses, scale)
        return scale * (losses - self.blocks.take(self._old_losses, j))

    def put(self, k: Block, losses: Tensor) -> None:
        if self.kind == "lagged":
            self.blocks.put(self._old_losses, k, self.blocks.take(self._losses, k))
        super().put(k, losses)

    def renew(self, k: Block, slopes: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        blocks = self.blocks
        before, new = blocks.take(self._product, k), blocks.take(self._q, k)[:, None] * slopes
        if self.kind == "lagged":
            blocks.put(self._old_product, k, before)
        blocks.put(self._product, k, new)
        return blocks.accumulate(k, new - before)


def _tensor(value: Any, like: Tensor) -> Tensor:
    """A number as a tensor; one that is a tensor already as it is."""
    return value if isinstance(value, Tensor) else like.new_full((), value)
