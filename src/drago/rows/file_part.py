"""A part of rows in files: its vectors are at hand, its features are read when they are needed."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from drago.rows import features
from drago.rows.array_curvature import Chosen
from drago.rows.array_visits import NONE
from drago.rows.base import Gradient, Index, Matrix, Vector
from drago.rows.memory import ArrayRows
from drago.rows.part import ArrayPart

Array = npt.NDArray[Any]

# Bytes that are read at once where CSR rows are picked.
_AT_ONCE = 1 << 23
# Entries of X that are read and worked on at once: in a visit to all rows, and of chosen rows.
_VISITED = 1 << 20
_PIECE = 1 << 20


class Piece(ArrayPart):
    """Some rows of a part, with their features in memory.

    Parameters
    ----------
    part : FilePart
    X : array or CSR matrix
    rows : slice
        Which of the part's they are.
    """

    def __init__(self, part: FilePart, X: Any, rows: slice) -> None:
        others = (part.y, part.p, part.groups, part.baseline)
        super().__init__(X, *(None if each is None else each[rows] for each in others))  # type: ignore[arg-type]


class FilePart(ArrayPart):
    """A part of the rows in files.

    Parameters
    ----------
    source : Features
    start, stop : int
        Its rows.
    y, p, groups, baseline : arrays
    """

    def __init__(
        self,
        source: features.Features,
        start: int,
        stop: int,
        y: Array,
        p: Vector,
        groups: Array | None,
        baseline: Vector | None,
        n_entries: int,
    ) -> None:
        self.source, self.start, self.stop = source, start, stop
        self.y, self.p, self.groups, self.baseline = y, p, groups, baseline
        self.n_samples, self.n_features = stop - start, source.n_features
        self.is_sparse, self.n_entries = source.is_sparse, n_entries
        self.is_plain = not self.is_sparse and source.dtype == np.float64

    @property
    def X(self) -> Any:
        raise AttributeError("the features of a part in files are read by its store.")

    def with_baseline(self, baseline: Vector | None) -> FilePart:
        vectors = (self.y, self.p, self.groups, baseline)
        return FilePart(self.source, self.start, self.stop, *vectors, self.n_entries)

    def visits_once(self, loss: Any, n_outputs: int) -> bool:
        return n_outputs == 1 and loss.has_kernels and self.source.is_filed

    def pieces(self, index: Index) -> tuple[Any, ...]:
        others = (self.y, self.p, self.groups, self.baseline)
        return (self.picked(index), *(None if each is None else each[index] for each in others))

    # ------------------------------------------------------------------------- some of the rows

    def picked(self, index: Index) -> Any:
        if index.size > 1 and (np.diff(index) < 0).any():
            order = np.argsort(index, kind="stable")
            back = np.empty_like(order)
            back[order] = np.arange(order.size)
            return self.picked(index[order])[back]
        if self.source.is_filed and not self.is_sparse:
            return self.source.gathered(self.start, self.stop, index)
        found = [X for _, X in self._runs(index)]
        if len(found) == 1:
            return found[0]
        if not self.is_sparse:
            return np.concatenate(found) if found else np.empty((0, self.n_features))
        from scipy.sparse import csr_array, vstack

        return vstack(found, format="csr") if found else csr_array((0, self.n_features))

    def _runs(self, index: Index) -> Iterator[tuple[slice, Any]]:
        """Some rows of X, in ascending order, a few of them at a time.

        Rows near each other are read together, with what lies between them.
        """
        size = self.source.row_bytes
        most = max(1, _AT_ONCE // size)
        breaks = np.flatnonzero(np.diff(index) > max(1, features.GAP // size)) + 1
        for a, b in zip([0, *breaks], [*breaks, index.size]):
            while a < b:
                first = int(index[a])
                end = a + int(np.searchsorted(index[a:b], first + most))
                last = int(index[end - 1]) + 1
                X = self.source.read(self.start + first, self.start + last)
                yield slice(a, end), X if last - first == end - a else X[index[a:end] - first]
                a = end

    def _gathered(self, index: Index, dtype: Any, factors: Vector = NONE) -> Array:
        found = self.picked(index).astype(dtype, copy=False)
        return found * factors[:, None] if factors.size else found

    def cuts(self, is_dense: bool) -> Iterator[slice]:
        """Its rows, so few at a time that they stay in the cache from the reading on.

        With `is_dense`, so few that dense matrices of them do, too.
        """
        width = self.n_features if is_dense else self.n_entries / self.n_samples
        step = max(1, int(_VISITED / max(width, 1.0)))
        for start in range(0, self.n_samples, step):
            yield slice(start, min(start + step, self.n_samples))

    # ------------------------------------------------------- the curvature of some of the rows

    def _few(self, chosen: Chosen) -> Iterator[tuple[Index, ArrayRows, Chosen]]:
        """Numbers of chosen rows, and these rows in memory, a few at a time."""
        step = max(1, _PIECE // self.n_features)
        for start in range(0, max(chosen.index.size, 1), step):
            index = chosen.index[start : start + step]
            rows = ArrayRows(self.picked(index), self.y[index], self.p[index])
            yield index, rows, Chosen(np.arange(index.size))

    def gram(self, chosen: Chosen, weight: Vector, intercept: bool) -> Matrix:
        found, longest = [], 0.0
        for i, rows, every in self._few(chosen):
            found.append(rows.gram(every, weight[i], intercept))
            longest = max(longest, every.longest)
        chosen.longest = longest
        return _sum(found)

    def leverages(self, chosen: Chosen, root: Matrix, intercept: bool) -> Vector:
        few = self._few(chosen)
        return np.concatenate([rows.leverages(every, root, intercept) for _, rows, every in few])

    def unbent(self, chosen: Chosen, raw: Matrix, step: Gradient, delta: float) -> Chosen:
        few = self._few(chosen)
        kept = [i[rows.unbent(every, raw[i], step, delta).index] for i, rows, every in few]
        return Chosen(np.concatenate(kept))

    def class_hessian(
        self, loss: Any, chosen: Chosen, raw: Matrix, q: Vector, intercept: bool
    ) -> Matrix:
        few = self._few(chosen)
        return _sum(
            rows.class_hessian(loss, every, raw[i], q[i], intercept) for i, rows, every in few
        )

    def class_diagonal(
        self, loss: Any, chosen: Chosen, raw: Matrix, q: Vector, intercept: bool
    ) -> Matrix:
        few = self._few(chosen)
        return _sum(
            rows.class_diagonal(loss, every, raw[i], q[i], intercept) for i, rows, every in few
        )

    def class_leverages(self, chosen: Chosen, inverse: Matrix, intercept: bool) -> Vector:
        few = self._few(chosen)
        found = [rows.class_leverages(every, inverse, intercept) for _, rows, every in few]
        return np.concatenate(found)


def _sum(matrices: Iterable[Matrix]) -> Matrix:
    return functools.reduce(np.add, matrices)
