"""Rows dealt out to blocks, and products with one block, on one thread or several.

Groups of neighbouring rows are dealt out, block k of M holds the groups ``k, k + M, k + 2M, ...``:
sorted data does no harm, and X is not copied unless it is small. A group is one row, or as many as
memory likes to be read at a time where there are plenty of groups. Vectors of length n are kept in
the order of the blocks, so that a block is a slice of them.

Work on a block is cut into parts by its size alone, and partial sums are added in their order:
whatever the number of threads, the result is the same to the last bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago._threads import threads_for
from drago.rows.tables.base import NOTICEABLE

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Entries of X in a part: a millisecond's work, far above what it costs to hand it to a thread.
_PART = 1 << 19
# Rows in a group at most, and how many groups a block must have before they grow.
_GROUP = 256
_PLENTY = 64
# Entries of X below which it is copied in the order of the blocks.
SMALL = 1 << 19
# Entries of X that are gathered at a time.
_CHUNK = 1 << 18


def deal_out(rows: Any, count: int) -> tuple[int, list[slice]]:
    """Rows in a group, and the places of each block."""
    n, group = rows.n_samples, 1
    if not rows.is_sparse and rows.n_entries > SMALL:
        while group < _GROUP and n // (2 * group * count) >= _PLENTY:
            group *= 2
    whole = n // group
    sizes = [group * len(range(k, whole, count)) for k in range(count)]
    sizes[whole % count] += n - group * whole
    ends = itertools.accumulate(sizes, initial=0)
    return group, [slice(a, b) for a, b in itertools.pairwise(ends)]


def has_kernels(rows: Any, loss: Any, n_outputs: int) -> bool:
    """Whether visits to large data are compiled: for one output and a loss of our own."""
    X = rows.X
    if rows.is_sparse or n_outputs > 1 or not loss.has_kernels:
        return False
    return bool(X.flags.c_contiguous) and X.dtype in (np.float64, np.float32)


class ArrayBlocks:
    """The blocks of rows in arrays.

    Parameters
    ----------
    rows : drago.rows.memory.ArrayRows
    loss : Loss
    n_outputs : int
    count : int
        The number M of blocks.
    n_threads : int or None
        None: all cores, where a block has work for them.

    Attributes
    ----------
    slices : list of slice
        The places of each block.
    largest : int
        Rows of the largest block.
    """

    def __init__(
        self, rows: Any, loss: Any, n_outputs: int, count: int, n_threads: int | None = 1
    ) -> None:
        self.rows, self.loss, self.n_outputs, self.count = rows, loss, n_outputs, count
        n, d, k = rows.n_samples, rows.n_features, n_outputs
        entries = rows.n_entries
        self._copied = not rows.is_sparse and entries <= SMALL
        self.y, self.baseline, self._rows, self._pool = rows.y, rows.baseline, [], None
        if count == 1 and self._copied and entries * k < 2 * _PART:  # one part, and no thread
            self._group, self._whole, self.largest = 1, n, n
            self.slices, self.sizes, self._parts = [slice(0, n)], [n], [[(0, n)]]
            self._rows, self._is_compiled = [np.ascontiguousarray(rows.X, np.float64)], False
            return
        self._group, self.slices = deal_out(rows, count)
        c = self._group
        self._whole = n // c  # groups; a last one may be smaller
        sizes = self.sizes = [places.stop - places.start for places in self.slices]
        self.largest = max(sizes)
        if count > 1:
            self.y = self.gather(rows.y)
            self.baseline = None if rows.baseline is None else self.gather(rows.baseline)
        parts = entries * k // (count * _PART)
        if rows.is_sparse:  # partial sums are dense
            parts = min(parts, entries // (4 * count * d))
        parts = max(1, min(parts, min(sizes) // c))
        self._parts = [self._cut(size, parts) for size in sizes]
        threads = threads_for(entries, n_threads)
        # A loss without kernels, as a user's function, holds the interpreter anyway.
        threads = min(threads, parts) if loss.has_kernels else 1
        if threads > 1:
            self._pool = ThreadPoolExecutor(threads)
        if self._copied:
            X = rows.X if count == 1 else self.gather(rows.X)
            X = np.ascontiguousarray(X, dtype=np.float64)
            self._rows = [X[places] for places in self.slices]
        self._is_compiled = (
            not self._copied and self._group >= 4 and has_kernels(rows, loss, n_outputs)
        )
        if self._pool is not None:
            self._partial  # noqa: B018  # made here, and not by several threads

    @cached_property
    def _partial(self) -> npt.NDArray[np.float64]:
        """Room for the sums over parts of a block."""
        most = max(map(len, self._parts))
        return np.empty((most, self.rows.n_features, self.n_outputs))

    @cached_property
    def _raw(self) -> Matrix:
        """Room for the raw predictions of a block, which compiled visits do not need."""
        return np.empty((0 if self._is_compiled else self.largest, self.n_outputs))

    @cached_property
    def _slopes(self) -> Matrix:
        return np.empty((self.largest, self.n_outputs))

    @cached_property
    def _losses(self) -> Vector:
        return np.empty(self.largest)

    @property
    def whole(self) -> Matrix:
        """The rows of a single block."""
        return self._rows[0] if self._rows else self.rows.X

    def _cut(self, size: int, parts: int) -> list[tuple[int, int]]:
        """The places of a block in parts of whole groups, and what is left of the last one."""
        whole = size // self._group
        ends = [self._group * (whole * i // parts) for i in range(parts + 1)]
        if ends[-1] < size:
            ends.append(size)
        return list(itertools.pairwise(ends))

    def gather(self, rows: Any) -> Any:
        """An array with a row for each of the problem's, in the order of the blocks."""
        if self.count == 1:
            return np.array(rows, order="C")
        out = np.empty_like(rows, order="C", subok=False)
        for k, places in enumerate(self.slices):
            groups, rest = self._of_block(rows, k)
            end = places.start + groups.shape[0] * self._group
            out[places.start : end].reshape(groups.shape)[:] = groups
            out[end : places.stop] = rest
        return out

    def scatter(self, places: Any) -> Any:
        """Back to the problem's order."""
        if self.count == 1:
            return places.copy()
        out = np.empty_like(places)
        for k, rows in enumerate(self.slices):
            groups, rest = self._of_block(out, k)
            end = rows.start + groups.shape[0] * self._group
            groups[:] = places[rows.start : end].reshape(groups.shape)
            rest[:] = places[end : rows.stop]
        return out

    def _of_block(self, rows: Any, k: int) -> tuple[Any, Any]:
        """Views of the whole groups of block `k` and of its rows beyond them."""
        end = self._whole * self._group
        groups = rows[:end].reshape(self._whole, self._group, *rows.shape[1:])[k :: self.count]
        return groups, rows[end:] if self._whole % self.count == k else rows[:0]

    def _row_of(self, k: int, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The problem's rows at places of block `k`, counted from its start."""
        group, inside = np.divmod(places, self._group)
        return (k + group * self.count) * self._group + inside

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def losses_of(self, k: int, w: Matrix, b: Vector, losses: Vector, slopes: Matrix) -> None:
        """Losses of block `k`, and slopes if it is less trouble to fill them than not to."""
        self.evaluate(k, w, b, losses, slopes[:0] if self._is_compiled else slopes)

    def evaluate(self, k: int, w: Matrix, b: Vector, losses: Vector, slopes: Matrix) -> None:
        """Losses, less the baseline, and slopes of block `k`, written to arrays of its size."""
        y, loss, baseline = self.y[self.slices[k]], self.loss, self.baseline
        if baseline is not None:
            baseline = baseline[self.slices[k]]
        raw = self._raw[: y.shape[0]]

        def part(lo: int, hi: int) -> None:
            if self._is_compiled:
                places, model = self._places(k, lo, hi), self._model(w, b)
                kernels.block_evaluate(*places, *model, y, losses, slopes[:, 0])
            else:
                self._predict(k, lo, hi, w, raw[lo:hi])
                if b.any():
                    raw[lo:hi] += b
                loss.evaluate_into(y[lo:hi], raw[lo:hi], losses[lo:hi], slopes[lo:hi])
            if baseline is not None:
                losses[lo:hi] -= baseline[lo:hi]

        self._each(part, self._parts[k])

    def accumulate(self, k: int, weights: Matrix) -> Matrix:
        """``X_k' weights``, a new array."""
        parts = self._parts[k]
        if len(parts) == 1:
            out = np.empty(self._partial.shape[1:])
            self._weighted(k, 0, weights.shape[0], weights, out)
            return out

        def part(lo: int, hi: int) -> None:
            self._weighted(k, lo, hi, weights, self._partial[parts.index((lo, hi))])

        self._each(part, parts)
        return self._partial[: len(parts)].sum(axis=0)

    def correction(
        self,
        k: int,
        w: Matrix,
        b: Vector,
        q: Vector,
        product: Matrix,
        losses: Vector,
        slopes: Matrix,
    ) -> tuple[Matrix, Vector]:
        """``sum x (q s - product)`` over block `k`, and the same sum without x.

        `losses` and `slopes` are room for those of the block.
        """
        if self._is_compiled:
            return self._compiled_correction(k, w, b, q, product)
        self.evaluate(k, w, b, losses, slopes)
        slopes *= q[:, None]
        slopes -= product
        return self.accumulate(k, slopes), slopes.sum(axis=0)

    def _compiled_correction(
        self, k: int, w: Matrix, b: Vector, q: Vector, product: Matrix
    ) -> tuple[Matrix, Vector]:
        """In one visit, and only to rows with a weight or a `product`."""
        parts, data = self._parts[k], (self.y[self.slices[k]], q, product[:, 0])
        sums = np.empty((len(parts), 1))

        def part(lo: int, hi: int) -> None:
            place = parts.index((lo, hi))
            out = self._partial[place, :, 0]
            places, model = self._places(k, lo, hi), self._model(w, b)
            sums[place] = kernels.block_correct(*places, *model, *data, self._room(), out)

        self._each(part, parts)
        if len(parts) == 1:
            return self._partial[0].copy(), sums[0]
        return self._partial[: len(parts)].sum(axis=0), sums.sum(axis=0)

    def gradient(
        self, q: Vector, w: Matrix, b: Vector, known: Mapping[int, Matrix]
    ) -> tuple[Matrix, Vector, int]:
        """``sum_i q_i grad l_i`` over the rows of noticeable weight; and how many were visited.

        Rows are gathered a few at a time, so that what is gathered stays in the cache. `known`
        holds the slopes at `w` of blocks that were evaluated already.
        """
        if self._copied:
            return self._gradient_of_all(q, w, b, known)
        if self._is_compiled:
            return self._compiled_gradient(q, w, b)
        chunks: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        chunk = max(64, _CHUNK // max(1, self.rows.n_entries // self.rows.n_samples))
        size = 0
        for k, rows in enumerate(self.slices):
            places = np.flatnonzero(q[rows] > NOTICEABLE / q.size)
            size += places.size
            for lo in range(0, places.size, chunk):
                some = places[lo : lo + chunk]
                chunks.append((some + rows.start, self._row_of(k, some)))
        partial: list[Any] = [None] * len(chunks)

        def part(index: int, _: int) -> None:
            places, rows = chunks[index]
            X = _take(self.rows, rows)
            raw = np.asarray(X @ w)
            if b.any():
                raw = raw + b
            losses, slopes = np.empty(rows.size), np.empty(raw.shape)
            self.loss.evaluate_into(self.y[places], raw, losses, slopes)
            slopes *= q[places][:, None]
            partial[index] = np.asarray(X.T @ slopes), slopes.sum(axis=0)

        self._each(part, [(index, 0) for index in range(len(chunks))])
        grad, grad_b = np.zeros(w.shape), np.zeros(w.shape[1])
        for one, one_b in partial:
            grad += one
            grad_b += one_b
        return grad, grad_b, size

    def _gradient_of_all(
        self, q: Vector, w: Matrix, b: Vector, known: Mapping[int, Matrix]
    ) -> tuple[Matrix, Vector, int]:
        """The same from all rows, where that is less trouble than to pick some."""
        grad, grad_b, size = np.zeros(w.shape), np.zeros(w.shape[1]), 0
        for k, rows in enumerate(self.slices):
            slopes = self._slopes[: rows.stop - rows.start]
            if k in known:
                np.multiply(known[k], q[rows][:, None], out=slopes)
            else:
                self.evaluate(k, w, b, self._losses[: slopes.shape[0]], slopes)
                slopes *= q[rows][:, None]
                size += slopes.shape[0]
            grad += self.accumulate(k, slopes)
            grad_b += slopes.sum(axis=0)
        return grad, grad_b, size

    def _compiled_gradient(self, q: Vector, w: Matrix, b: Vector) -> tuple[Matrix, Vector, int]:
        """The rows in the order of X, which is how memory likes them."""
        X, starts = self.rows.X, np.array([rows.start for rows in self.slices])
        groups = -(-self.rows.n_samples // self._group)
        count = min(groups, self.count * max(map(len, self._parts)))
        ends = [groups * i // count for i in range(count + 1)]
        partial, sums = np.empty((count, w.shape[0])), np.empty((count, 1))
        least = NOTICEABLE / q.size

        def part(index: int, _: int) -> None:
            sums[index] = kernels.block_gradient(
                X, starts, self._group, ends[index], ends[index + 1], *self._model(w, b),
                self.y, q, least, self._room(), partial[index],
            )  # fmt: skip

        self._each(part, [(index, 0) for index in range(count)])
        size = int(np.count_nonzero(q > least))
        return partial.sum(axis=0)[:, None], sums.sum(axis=0), size

    def _each(self, part: Callable[[int, int], None], parts: Sequence[tuple[int, int]]) -> None:
        if self._pool is None:
            for lo, hi in parts:
                part(lo, hi)
        else:
            for _ in self._pool.map(part, *zip(*parts)):
                pass

    def _predict(self, k: int, lo: int, hi: int, w: Matrix, raw: Matrix) -> None:
        X = self.rows.X
        if self.rows.is_sparse:
            first = k + lo * self.count
            kernels.csr_predict(X.data, X.indices, X.indptr, first, self.count, w, raw)
            return
        rows = self._block(k, lo, hi)
        if w.shape[1] == 1:
            np.matmul(rows, w[:, 0], out=raw[:, 0].reshape(rows.shape[:-1]))
        else:
            np.matmul(rows, w, out=raw.reshape(*rows.shape[:-1], w.shape[1]))

    def _places(self, k: int, lo: int, hi: int) -> tuple[Any, ...]:
        """Places of block `k` as the kernels take them."""
        return self.rows.X, k, self.count, self._group, lo, hi

    def _model(self, w: Matrix, b: Vector) -> tuple[Any, ...]:
        """Coefficients, intercept and loss as the kernels take them."""
        loss = self.loss
        return w.ravel(), float(b[0]), loss.code, loss.parameter

    def _room(self) -> npt.NDArray[np.int64]:
        """Where the kernels list rows."""
        return np.empty((2, kernels.TOGETHER), np.int64)

    def _weighted(self, k: int, lo: int, hi: int, weights: Matrix, out: Matrix) -> None:
        """``out = X' weights`` for places of block `k`, with the weights of all of it."""
        X = self.rows.X
        if self._is_compiled:
            places = self._places(k, lo, hi)
            kernels.block_accumulate(*places, weights[:, 0], self._room(), out[:, 0])
            return
        weights = weights[lo:hi]
        if self.rows.is_sparse:
            out[:] = 0.0
            first = k + lo * self.count
            kernels.csr_accumulate(X.data, X.indices, X.indptr, first, self.count, weights, out)
            return
        rows = self._block(k, lo, hi)
        if rows.ndim == 2:
            np.matmul(rows.T, weights, out=out)
        else:
            by_group = weights.reshape(*rows.shape[:-1], weights.shape[1])
            np.matmul(rows.transpose(0, 2, 1), by_group).sum(axis=0, out=out)

    def _block(self, k: int, lo: int, hi: int) -> Any:
        """Rows of block `k`, or groups of them (groups x rows x features)."""
        if self._rows:
            return self._rows[k][lo:hi]
        c = self._group
        groups, rest = self._of_block(self.rows.X, k)
        if lo >= groups.shape[0] * c:
            rows = rest
        else:
            rows = groups[lo // c : hi // c] if c > 1 else groups[lo:hi, 0]
        return rows.astype(np.float64, copy=False)


def _take(rows: Any, index: npt.NDArray[np.int64]) -> Any:
    X = rows.X
    if rows.is_sparse or X.dtype != np.float64:
        return X[index].astype(np.float64)
    return np.take(X, index, axis=0)
