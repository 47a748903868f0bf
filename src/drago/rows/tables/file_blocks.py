"""Blocks of rows in files: what an iteration needs of X is read, and nothing more.

Ranges of neighbouring rows are dealt out, block k of M holds the ranges ``k, k + M, k + 2M, ...``.
A range is a few megabytes, which a disk reads in one go, and there are several of them in a block
where there are rows enough: blocks of sorted rows are alike then. Ranges go by the number of the
row, and do not depend on the parts.

Work on a block is cut by its size alone, and sums are added in the order of the rows: whatever the
number of threads, the result is the same to the last bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from drago._interrupts import poll
from drago._progress import tell
from drago._threads import limited, threads_for
from drago.rows.in_order import in_order
from drago.rows.memory import ArrayRows
from drago.rows.tables.array_blocks import ArrayBlocks
from drago.rows.tables.base import NOTICEABLE

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Places = slice | npt.NDArray[np.int64]
Sums = tuple[Matrix, Vector]

# Entries of X in a range at most, and how many ranges a block shall have, where it has the rows.
_RANGE = 1 << 20
_PLENTY = 16
# Bytes between two rows up to which what lies between them is read too: more than in
# `drago.rows.features`, because each reading here is a call of Python.
GAP = 1 << 16
# The share of the memory limit that one block may be kept in, so that it is read once.
_KEPT = 0.125


class Span(NamedTuple):
    """Neighbouring rows of one part and one block.

    Parameters
    ----------
    part : int
    first, last : int
        Their numbers in the part.
    start : int
        The number of the first of them among all rows.
    place : int
        The place of the first of them in the block.
    """

    part: int
    first: int
    last: int
    start: int
    place: int

    @property
    def size(self) -> int:
        return self.last - self.first

    @property
    def of_part(self) -> slice:
        return slice(self.first, self.last)

    @property
    def of_all(self) -> slice:
        return slice(self.start, self.start + self.size)

    @property
    def of_block(self) -> slice:
        return slice(self.place, self.place + self.size)


def deal_out(ends: Sequence[int], count: int, longest: int) -> list[list[Span]]:
    """The spans of each block, of rows in parts with these ends."""
    n = ends[-1]
    size = max(1, min(longest, n // (count * _PLENTY)))
    parts, starts = np.array(ends), np.array([0, *ends])
    blocks: list[list[Span]] = [[] for _ in range(count)]
    places = [0] * count
    for number, a in enumerate(range(0, n, size)):
        k, b = number % count, min(a + size, n)
        while a < b:
            part = int(np.searchsorted(parts, a, side="right"))
            first, stop = int(starts[part]), min(b, int(parts[part]))
            blocks[k].append(Span(part, a - first, stop - first, a, places[k]))
            places[k] += stop - a
            a = stop
    return blocks


class FileBlocks:
    """The blocks of rows in files.

    Parameters
    ----------
    rows : drago.rows.files.FileRows
    loss : Loss
    n_outputs : int
    count : int
        The number M of blocks.
    n_threads : int or None
        None: all cores, where there is work for them.

    Attributes
    ----------
    spans : list of list of Span
        The rows of each block.
    sizes : list of int
        How many these are.
    """

    def __init__(
        self, rows: Any, loss: Any, n_outputs: int, count: int, n_threads: int | None = None
    ) -> None:
        self.rows, self.loss, self.n_outputs = rows, loss, n_outputs
        n, width = rows.n_samples, max(1.0, rows.n_entries / rows.n_samples)
        ends = [part.stop for part in rows.parts]
        self.spans = deal_out(ends, count, max(1, int(_RANGE / width)))
        self.sizes = [sum(span.size for span in spans) for spans in self.spans]
        self.all = sorted(itertools.chain(*self.spans), key=lambda span: span.start)
        self._least, self._gap = NOTICEABLE / n, max(1, GAP // rows.source.row_bytes)
        self._keeps = max(self.sizes) * rows.source.row_bytes <= _KEPT * rows.limit
        self._kept: tuple[int, list[Any]] = -1, []
        threads = threads_for(rows.n_entries, n_threads)
        # A loss without kernels, as a user's function, holds the interpreter anyway.
        self._threads = threads if loss.has_kernels else 1

    def evaluate(
        self, k: int, w: Matrix, b: Vector, losses: Vector, slopes: Matrix | None = None
    ) -> None:
        """Losses of block `k`, less the baseline, and slopes where there is room for them.

        The features stay in memory for the next `accumulate` where slopes are asked for and they
        are not too many.
        """

        def work(span: Span) -> Any:
            X = self._read(span, 0, span.size)
            here, found = self._made(span, slice(None), X), losses[span.of_block]
            if slopes is None:
                here.losses_of(0, w, b, found, np.empty((span.size, self.n_outputs)))
                return None
            here.evaluate(0, w, b, found, slopes[span.of_block])
            return X if self._keeps else None

        found = list(self._each(work, self.spans[k]))
        if slopes is not None:
            self._kept = (k, found) if self._keeps else (-1, [])

    def accumulate(self, k: int, weights: Matrix) -> Matrix:
        """``X_k' weights``, a new array."""
        known, kept = self._kept
        self._kept = -1, []

        def product(here: ArrayBlocks, span: Span, at: Places) -> Sums:
            return here.accumulate(0, weights[span.of_block][at]), _NONE

        def work(turn: tuple[Span, Any]) -> Sums:
            span, X = turn
            return self._summed(span, weights[span.of_block].any(axis=1), product, X)

        spans = self.spans[k]
        turns = list(zip(spans, kept if known == k else [None] * len(spans)))
        return self._total(self._each(work, turns))[0]

    def correction(self, k: int, w: Matrix, b: Vector, q: Any, product: Matrix) -> Sums:
        """``sum x (q s - product)`` over block `k`, and the same sum without x."""

        def work(span: Span) -> Sums:
            weights, before = q.parts[span.part][span.of_part], product[span.of_all]
            needed = (weights != 0.0) | before.any(axis=1)

            def found(here: ArrayBlocks, span: Span, at: Places) -> Sums:
                return _corrected(here, w, b, weights[at], before[at])

            return self._summed(span, needed, found)

        return self._total(self._each(work, self.spans[k]))

    def gradient(self, q: Any, w: Matrix, b: Vector) -> tuple[Matrix, Vector, int]:
        """``sum_i q_i grad l_i`` over the rows of noticeable weight; and how many were visited."""

        def work(span: Span) -> tuple[Sums, int]:
            weights = q.parts[span.part][span.of_part]
            needed = weights > self._least

            def found(here: ArrayBlocks, span: Span, at: Places) -> Sums:
                some = weights[at]
                return _corrected(here, w, b, some, np.zeros((some.size, self.n_outputs)))

            return self._summed(span, needed, found), int(np.count_nonzero(needed))

        count = 0

        def counted() -> Iterator[Sums]:
            nonlocal count
            for sums, size in self._each(work, self.all):
                count += size
                yield sums

        return (*self._total(counted()), count)

    # ---------------------------------------------------------------------------- inside

    def _read(self, span: Span, a: int, b: int) -> Any:
        return self.rows.source.read(span.start + a, span.start + b)

    def _made(self, span: Span, at: Places, X: Any) -> ArrayBlocks:
        """Some rows of a span, whose features these are, as one block in memory."""
        part = self.rows.parts[span.part]
        y, p = part.y[span.of_part][at], part.p[span.of_part][at]
        baseline = None if part.baseline is None else part.baseline[span.of_part][at]
        return ArrayBlocks(ArrayRows(X, y, p, None, baseline), self.loss, self.n_outputs, 1)

    def _summed(self, span: Span, needed: Any, work: Callable[..., Sums], X: Any = None) -> Sums:
        """The sums of `work` over the rows that are needed; neighbours are read together.

        `work` is given the rows, the span, and which of the span's rows they are. `X` are the
        features of the span, where they are at hand.
        """
        index, found = np.flatnonzero(needed), []
        breaks = np.flatnonzero(np.diff(index) > self._gap) + 1
        for some in np.split(index, breaks) if index.size else ():
            a, b = int(some[0]), int(some[-1]) + 1
            at: Places = slice(a, b)
            read = self._read(span, a, b) if X is None else X[a:b]
            if 2 * some.size < b - a:  # to pick them is less work than to compute with all
                read, at = read[some - a], some
            found.append(work(self._made(span, at, read), span, at))
        return self._total(iter(found))

    def _total(self, found: Iterator[Sums]) -> Sums:
        grad, grad_b = np.zeros((self.rows.n_features, self.n_outputs)), np.zeros(self.n_outputs)
        for more, more_b in found:
            grad += more
            if more_b.size:
                grad_b += more_b
        return grad, grad_b

    def _each(self, work: Callable[[Any], Any], turns: Sequence[Any]) -> Iterator[Any]:
        """What `work` returns for each, in their order; no more than a few are under way."""
        errors = np.geterr()

        def go(turn: Any) -> Any:
            with limited(1), np.errstate(**errors):
                return work(turn)

        source, before = self.rows.source, self.rows.source.read_so_far
        for found in in_order(go, [(turn,) for turn in turns], self._threads):
            poll()
            now = source.read_so_far
            tell((now - before) // source.row_bytes)
            before = now
            yield found


_NONE = np.empty(0)


def _corrected(here: ArrayBlocks, w: Matrix, b: Vector, q: Vector, product: Matrix) -> Sums:
    room = np.empty(q.size), np.empty(product.shape)
    return here.correction(0, w, b, np.ascontiguousarray(q), product, *room)
