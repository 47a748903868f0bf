"""Rows dealt out to blocks, and products with one block, on one thread or several.

Block k of M holds the rows ``k, k + M, k + 2M, ...``: sorted data does no harm, and X is not copied
unless it is small. Vectors of length n are kept in the order of the blocks, so that a block is a
slice of them.

Work on a block is cut into parts by its size alone, and partial sums are added in their order:
whatever the number of threads, the result is the same to the last bit.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from drago.losses import UserLoss
from drago.problem import DROProblem

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Entries of X in a part: a millisecond's work, far above what it costs to hand it to a thread.
_PART = 1 << 19
# Entries of X below which it is copied in the order of the blocks.
SMALL = 1 << 19
# Entries of X that are gathered at a time, and the weight (times n) below which a row is not.
_CHUNK = 1 << 16
NOTICEABLE = 1e-12


class Blocks:
    """The blocks of a problem's rows.

    Parameters
    ----------
    problem : DROProblem
    count : int
        The number M of blocks.
    n_threads : int or None
        None: all cores, where a block has work for them.

    Attributes
    ----------
    slices : list of slice
        The places of each block.
    """

    def __init__(self, problem: DROProblem, count: int, n_threads: int | None = 1) -> None:
        self.problem, self.count = problem, count
        n, d, k = problem.n_samples, problem.n_features, problem.n_outputs
        sizes = [len(range(k, n, count)) for k in range(count)]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        self.slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
        self.y = self.gather(problem.y)
        entries = problem.X.nnz if problem.is_sparse else n * d
        parts = entries * k // (count * _PART)
        if problem.is_sparse:  # partial sums are dense
            parts = min(parts, entries // (4 * count * d))
        parts = max(1, min(parts, min(sizes)))
        self._parts = [
            [(s * i // parts, s * (i + 1) // parts) for i in range(parts)] for s in sizes
        ]
        self._partial = np.empty((parts, d, k))
        self._chunk = max(64, _CHUNK // max(1, entries // n))
        threads = (os.cpu_count() or 1) if n_threads is None else n_threads
        # A user's Python function holds the interpreter anyway.
        threads = 1 if isinstance(problem.loss, UserLoss) else min(threads, parts)
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._rows: list[Any] = []
        self._copied = not problem.is_sparse and entries <= SMALL
        if self._copied:
            X = self.gather(problem.X).astype(np.float64, copy=False)
            self._rows = [X[rows] for rows in self.slices]
        elif not problem.is_sparse and problem.X.dtype == np.float64:
            self._rows = [problem.X[k::count] for k in range(count)]
        self._raw, self._slopes = np.empty((max(sizes), k)), np.empty((max(sizes), k))
        self._losses = np.empty(max(sizes))

    def gather(self, rows: Any) -> Any:
        """An array with a row for each of the problem's, in the order of the blocks."""
        out = np.empty_like(rows, order="C", subok=False)
        for k, places in enumerate(self.slices):
            out[places] = rows[k :: self.count]
        return out

    def scatter(self, places: Any) -> Any:
        """Back to the problem's order."""
        out = np.empty_like(places)
        for k, rows in enumerate(self.slices):
            out[k :: self.count] = places[rows]
        return out

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def evaluate(self, k: int, w: Matrix, b: Vector, losses: Vector, slopes: Matrix) -> None:
        """Losses and slopes of block `k`, written to arrays of its size."""
        y, loss = self.y[self.slices[k]], self.problem.loss
        raw = self._raw[: y.shape[0]]

        def part(lo: int, hi: int) -> None:
            self._predict(k, lo, hi, w, raw[lo:hi])
            if b.any():
                raw[lo:hi] += b
            loss.evaluate_into(y[lo:hi], raw[lo:hi], losses[lo:hi], slopes[lo:hi])

        self._each(part, self._parts[k])

    def accumulate(self, k: int, weights: Matrix) -> Matrix:
        """``X_k' weights``, a new array."""
        parts = self._parts[k]
        if len(parts) == 1:
            out = np.empty(self._partial.shape[1:])
            self._weighted(k, 0, weights.shape[0], weights, out)
            return out

        def part(lo: int, hi: int) -> None:
            self._weighted(k, lo, hi, weights[lo:hi], self._partial[parts.index((lo, hi))])

        self._each(part, parts)
        return self._partial.sum(axis=0)

    def gradient(
        self, q: Vector, w: Matrix, b: Vector, known: Mapping[int, Matrix]
    ) -> tuple[Matrix, Vector, int]:
        """``sum_i q_i grad l_i`` over the rows of noticeable weight; and how many were visited.

        Rows are gathered a few at a time, so that what is gathered stays in the cache. `known`
        holds the slopes at `w` of blocks that were evaluated already.
        """
        problem = self.problem
        if self._copied:
            return self._gradient_of_all(q, w, b, known)
        chunks: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        size = 0
        for k, rows in enumerate(self.slices):
            places = np.flatnonzero(q[rows] > NOTICEABLE / q.size)
            size += places.size
            for lo in range(0, places.size, self._chunk):
                some = places[lo : lo + self._chunk]
                chunks.append((some + rows.start, k + some * self.count))
        partial: list[Any] = [None] * len(chunks)

        def part(index: int, _: int) -> None:
            places, rows = chunks[index]
            X = _take(problem, rows)
            raw = np.asarray(X @ w)
            if b.any():
                raw = raw + b
            losses, slopes = np.empty(rows.size), np.empty(raw.shape)
            problem.loss.evaluate_into(self.y[places], raw, losses, slopes)
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

    def _each(self, part: Callable[[int, int], None], parts: Sequence[tuple[int, int]]) -> None:
        done: Iterable[None]
        if self._pool is None:
            done = itertools.starmap(part, parts)
        else:
            done = self._pool.map(part, *zip(*parts))
        for _ in done:
            pass

    def _predict(self, k: int, lo: int, hi: int, w: Matrix, raw: Matrix) -> None:
        X = self.problem.X
        if self.problem.is_sparse:
            from drago.kernels.drago import csr_predict

            first = k + lo * self.count
            csr_predict(X.data, X.indices, X.indptr, first, self.count, w, raw)
        else:
            np.matmul(self._block(k, lo, hi), w, out=raw)

    def _weighted(self, k: int, lo: int, hi: int, weights: Matrix, out: Matrix) -> None:
        X = self.problem.X
        if self.problem.is_sparse:
            from drago.kernels.drago import csr_accumulate

            out[:] = 0.0
            first = k + lo * self.count
            csr_accumulate(X.data, X.indices, X.indptr, first, self.count, weights, out)
        else:
            np.matmul(self._block(k, lo, hi).T, weights, out=out)

    def _block(self, k: int, lo: int, hi: int) -> Any:
        if self._rows:
            return self._rows[k][lo:hi]
        return self.problem.X[k :: self.count][lo:hi].astype(np.float64)


def _take(problem: DROProblem, rows: npt.NDArray[np.int64]) -> Any:
    X = problem.X
    if problem.is_sparse or X.dtype != np.float64:
        return X[rows].astype(np.float64)
    return np.take(X, rows, axis=0)
