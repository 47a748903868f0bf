"""Blocks of rows on a device: the same ones as `drago.rows.tables.array_blocks` deals out.

Vectors keep the problem's order. A block is named by a number, or by a tensor that holds the
number. With a tensor the operations do not depend on which block it is, so that they can be
recorded once and replayed for any; a block is then taken as large as the largest one, and vectors
have `spare` entries at their end for what is beyond its own rows.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from drago.rows.tables.array_blocks import SMALL, deal_out
from drago.rows.tables.base import NOTICEABLE
from drago.rows.tensor_losses import on_tensors

# Entries of X that are gathered at a time.
_GATHERED = 1 << 24
Block: TypeAlias = int | Tensor


class TensorBlocks:
    """The blocks of rows on a device.

    Parameters
    ----------
    rows : drago.rows.device.TensorRows
    loss : Loss
    count : int
        The number M of blocks.

    Attributes
    ----------
    sizes : list of int
        The number of rows of each block.
    spare : int
        Entries that vectors need beyond those of the rows.
    """

    def __init__(self, rows: Any, loss: Any, count: int) -> None:
        self.store, self.loss, self.count = rows, loss, count
        self._loss = on_tensors(loss)
        self._kernels = rows.kernels_for(loss)
        self.group, slices = deal_out(rows, count)
        self.sizes = [places.stop - places.start for places in slices]
        self.spare = (count + 1) * self.group
        self._largest = max(self.sizes)
        self._baseline = rows.baseline
        if rows.baseline is not None:
            self._baseline = torch.nn.functional.pad(rows.baseline, (0, self.spare))
        local = torch.arange(self._largest, device=self.store.device)
        # Block k has the groups k, k + M, k + 2M, ...
        self._first = local // self.group * (count * self.group) + local % self.group
        self._copies: list[Tensor] = []
        if rows.n_entries <= SMALL:
            self._copies = [self._some(rows.X, k).to(rows.p.dtype) for k in range(count)]
        if self._kernels is not None:
            starts = [0, *(places.stop for places in slices)]
            self._names = torch.arange(count, device=self.store.device)
            self._rows = self._kernels.Rows(
                torch.tensor(starts, device=self.store.device), count, self.group, self._largest
            )

    def _name(self, k: Block) -> Tensor:
        """A block as the fused kernels want it."""
        return self._names[k : k + 1] if isinstance(k, int) else k

    # ------------------------------------------------------------------- vectors of a block

    def rows(self, k: Block) -> Tensor:
        """The rows of a block; named by a tensor, with some beyond the last row of all."""
        first = self._first[: self.sizes[k]] if isinstance(k, int) else self._first
        return first + self.group * k

    def take(self, values: Tensor, k: Block) -> Tensor:
        """The entries of a block."""
        return values.index_select(0, self.rows(k))

    def put(self, values: Tensor, k: Block, new: Tensor) -> None:
        """Write the entries of a block."""
        values.index_copy_(0, self.rows(k), new)

    # ----------------------------------------------------------------------- products with X

    def evaluate(self, k: Block, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Losses, less the baseline, and slopes of a block."""
        losses, slopes = self._plain(k, w, b)
        if self._baseline is not None:
            losses = losses - self.take(self._baseline, k)
        return losses, slopes

    def _plain(self, k: Block, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        store, loss = self.store, self.loss
        if self._kernels is not None:
            found = w.new_zeros((2, self._largest))
            self._kernels.evaluate(
                store.X, store.y, w[:, 0], b, self._rows, self._name(k), found[0], found[1],
                code=loss.code, parameter=loss.parameter,
            )  # fmt: skip
            found = found[:, : self.sizes[k]] if isinstance(k, int) else found
            return found[0], found[1][:, None]
        y = store.y.index_select(0, self.rows(k))
        raw = [torch.matmul(X, w).view(-1, w.shape[1]) for X, _ in self._block(k)]
        return self._loss.evaluate(y, (raw[0] if len(raw) == 1 else torch.cat(raw)) + b)

    def accumulate(self, k: Block, c: Tensor) -> tuple[Tensor, Tensor]:
        """``X_k' c`` and the sum of `c`."""
        store = self.store
        if self._kernels is not None:
            found = self._kernels.accumulate(store.X, c[:, 0], self._rows, self._name(k))
            return found[0][:, None], found[1]
        grad = c.new_zeros(store.n_features, c.shape[1])
        for X, places in self._block(k):
            part = c[places]
            if X.ndim == 3:
                part = part.view(*X.shape[:2], -1)
                grad += torch.matmul(X.transpose(1, 2), part).sum(0)
            else:
                grad += X.T @ part
        return grad, c.sum(0)

    def correction(
        self, k: Block, w: Tensor, b: Tensor, q: Tensor, minus: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``sum over a block of x (q s - minus)``, with vectors `q` and `minus` of all rows."""
        store, loss = self.store, self.loss
        if self._kernels is not None:
            found = self._kernels.visit(
                store.X, store.y, w[:, 0], b, q, minus[:, 0], self._rows, self._name(k),
                code=loss.code, parameter=loss.parameter,
            )  # fmt: skip
            return found[0][:, None], found[1]
        slopes = self._plain(k, w, b)[1]
        return self.accumulate(k, self.take(q, k)[:, None] * slopes - self.take(minus, k))

    def gradient(self, w: Tensor, b: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """``sum_i q_i grad l_i`` over the rows of noticeable weight."""
        store, loss = self.store, self.loss
        least = NOTICEABLE / store.n_samples
        if self._kernels is not None:
            found = self._kernels.visit(
                store.X, store.y, w[:, 0], b, q, None, *store.all_rows,
                code=loss.code, parameter=loss.parameter, negligible=least,
            )  # fmt: skip
            return found[0][:, None], found[1]
        grad, total = torch.zeros_like(w), torch.zeros_like(b)
        for some in torch.nonzero(q > least)[:, 0].split(max(64, _GATHERED // w.shape[0])):
            X = store.X[some].to(w.dtype)
            slopes = self._loss.evaluate(store.y[some], X @ w + b)[1] * q[some, None]
            grad += X.T @ slopes
            total += slopes.sum(0)
        return grad, total

    def _some(self, X: Tensor, k: int) -> Tensor:
        return X.index_select(0, self.rows(k))

    def _block(self, k: Block) -> list[tuple[Tensor, slice]]:
        """Rows of X, or groups of them, with their places in the block."""
        assert isinstance(k, int)
        size = self.sizes[k]
        if self._copies:
            return [(self._copies[k], slice(0, size))]
        X, kind = self.store.X, self.store.p.dtype
        whole = X.shape[0] // self.group
        groups = X[: whole * self.group].view(whole, self.group, -1)[k :: self.count]
        inside = groups.shape[0] * self.group
        parts = [(groups[:, 0] if self.group == 1 else groups, slice(0, inside))]
        if inside < size:
            parts.append((X[whole * self.group :], slice(inside, size)))
        return [(rows.to(kind), places) for rows, places in parts if rows.shape[0]]
