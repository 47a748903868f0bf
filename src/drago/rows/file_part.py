"""A part of rows in files: its vectors are at hand, its features are read when they are needed."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from drago.files.blocks import Blocks, Column, SourceChangedError, checksum
from drago.rows.array_curvature import Chosen
from drago.rows.array_visits import NONE
from drago.rows.base import Gradient, Index, Matrix, Vector
from drago.rows.memory import ArrayRows
from drago.rows.part import ArrayPart
from drago.rows.room import Room

Array = npt.NDArray[Any]

# Bytes between two rows up to which what lies between them is read too, and the most that is read
# at once where rows are picked.
_GAP = 1 << 16
_AT_ONCE = 1 << 23
# Entries of X that are read and worked on at once: in a visit to all rows, and of chosen rows.
_VISITED = 1 << 20
_PIECE = 1 << 22
_LARGE = 1 << 23
_WORD = 1 << 64


class Features:
    """The features of all rows, in files: ranges of them as an array or a CSR matrix.

    Parameters
    ----------
    blocks : Blocks

    Attributes
    ----------
    size, read_so_far : int
        Bytes of all of them, and those that were read so far, some of them again and again.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.n_features, self.is_sparse = blocks.n_features, blocks.is_sparse
        self.sums = blocks.sums
        self.columns = [blocks.columns[name] for name in self.names]
        self.dtype = self.columns[0].dtype
        if self.is_sparse:
            self.row_bytes = max(1, 12 * self.columns[0].shape[0] // blocks.n_samples)
        else:
            self.row_bytes = max(1, self.n_features * self.dtype.itemsize)
        self.size = sum(math.prod(each.shape) * each.dtype.itemsize for each in self.columns[:2])
        self.read_so_far, self._lock = 0, threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that the features are in."""
        return ("data", "indices", "indptr") if self.is_sparse else ("X",)

    def entries(self, start: int, stop: int) -> int:
        """How many numbers rows `start` to `stop` have."""
        if not self.is_sparse:
            return (stop - start) * self.n_features
        pointers = self.columns[2]
        first, last = (int(pointers.read(row, row + 1)[0]) for row in (start, stop))
        return last - first

    def read(self, start: int, stop: int, buffers: Buffers | None = None) -> Any:
        """Rows `start` to `stop`, in memory of the buffers where these are given."""
        room: Callable[..., Any] = np.empty if buffers is None else buffers.array
        if not self.is_sparse:
            X = self.columns[0]
            self._count((stop - start) * self.row_bytes)
            return X.read(start, stop, room((stop - start, self.n_features), X.dtype))
        from scipy.sparse import csr_array

        data, indices, pointers = self.columns
        ends = pointers.read(start, stop + 1)
        first, last = int(ends[0]), int(ends[-1])
        # Next to each other in memory: the numbers, then their places.
        values = data.read(first, last, room((last - first,), data.dtype))
        places = indices.read(first, last, room((last - first,), indices.dtype))
        local = (ends - first).astype(indices.dtype)
        self._count(values.nbytes + places.nbytes)
        return csr_array((values, places, local), shape=(stop - start, self.n_features))

    def _count(self, size: int) -> None:
        with self._lock:  # readers are threads
            self.read_so_far += size

    def expect(self, start: int, stop: int) -> None:
        """Have the system read ahead; of CSR, whose ranges are not known yet, as it likes."""
        if not self.is_sparse:
            self.columns[0].expect(start, stop)

    def sums_of(self, start: int, stop: int) -> tuple[int, ...]:
        """The check sums of the columns of rows of CSR, by a reading of its own."""
        first, last = (int(self.columns[2].read(row, row + 1)[0]) for row in (start, stop))
        places = [(a, min(a + _VISITED, last)) for a in range(first, last, _VISITED)]
        return tuple(
            sum(
                checksum(column.read(a, b), (a - first) * column.dtype.itemsize // 4)
                for a, b in places
            )
            for column in self.columns[:2]
        )

    def damaged(self, k: int, sums: tuple[int, ...]) -> SourceChangedError | None:
        """An error where the check sums of part `k` are not those of the scan."""
        for name, column, found in zip(self.names, self.columns, sums):
            expected = self.sums.get(name)
            if expected is not None and found % _WORD != expected[k]:
                where = column.path if isinstance(column, Column) else name
                return SourceChangedError(
                    f"{where} is damaged: part {k} has another check sum than when it was scanned. "
                    "Make the source anew."
                )
        return None


class Buffers:
    """Memory that is used again: arrays behind each other, until it is cleared."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._used = 0

    def clear(self) -> Buffers:
        """Forget what is there; have room for as much as was asked for."""
        if self._used > self._memory.size:
            # Not less: to large arrays the system gives large pages, which are read into faster.
            self._memory = np.empty(max(self._used, _LARGE), np.uint8)
        self._used = 0
        return self

    def array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """The next array; of its own where there is no room."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        start, self._used = self._used, self._used + -(-size // 64) * 64
        if self._used > self._memory.size:
            return np.empty(shape, dtype)
        return self._memory[start : start + size].view(dtype).reshape(shape)


class Piece(ArrayPart):
    """Some rows of a part, with their features in memory.

    Parameters
    ----------
    part : FilePart
    X : array or CSR matrix
    rows : slice
        Which of the part's they are.
    out : sequence of arrays
        Vectors of the part that a visit fills; new ones where there are none.
    """

    def __init__(self, part: FilePart, X: Any, rows: slice, out: Sequence[Vector] = ()) -> None:
        others = (part.y, part.p, part.groups, part.baseline)
        super().__init__(X, *(None if each is None else each[rows] for each in others))  # type: ignore[arg-type]
        self._out = [each[rows] for each in out]

    def _vectors(self, count: int) -> Any:
        return self._out or super()._vectors(count)


class FilePart(ArrayPart):
    """A part of the rows in files.

    Parameters
    ----------
    features : Features
    start, stop : int
        Its rows.
    room : Room
        Where its vectors are.
    y, p, groups, baseline : arrays
    """

    def __init__(
        self,
        features: Features,
        start: int,
        stop: int,
        room: Room,
        y: Array,
        p: Vector,
        groups: Array | None,
        baseline: Vector | None,
        n_entries: int,
    ) -> None:
        self.source, self.start, self.stop, self.room = features, start, stop, room
        self.y, self.p, self.groups, self.baseline = y, p, groups, baseline
        self.n_samples, self.n_features = stop - start, features.n_features
        self.is_sparse, self.n_entries = features.is_sparse, n_entries
        self.is_plain = not self.is_sparse and features.dtype == np.float64

    @property
    def X(self) -> Any:
        raise AttributeError("the features of a part in files are read by its store.")

    def with_baseline(self, baseline: Vector | None) -> FilePart:
        vectors = (self.y, self.p, self.groups, baseline)
        return FilePart(self.source, self.start, self.stop, self.room, *vectors, self.n_entries)

    def visits_once(self, loss: Any, n_outputs: int) -> bool:
        return n_outputs == 1 and loss.has_kernels

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
        breaks = np.flatnonzero(np.diff(index) > max(1, _GAP // size)) + 1
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

    def sum_of(self, index: Index, values: Vector) -> Vector:
        """``sum_i values_i x_i`` over some rows."""
        out = np.zeros(self.n_features)
        for some, X in self._runs(index):
            out += X.T @ values[some] if self.is_sparse else values[some] @ X.astype(np.float64)
        return out

    def cuts(self, is_dense: bool) -> Iterator[slice]:
        """Its rows, so few at a time that they stay in the cache from the reading on.

        With `is_dense`, so few that dense matrices of them do, too.
        """
        width = self.n_features if is_dense else self.n_entries / self.n_samples
        # Of an even number, so that they are made of whole words.
        step = 2 * max(1, int(_VISITED / max(width, 1.0)) // 2)
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
