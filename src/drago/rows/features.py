"""The features of rows in files: ranges of them for NumPy, and files for kernels that read."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago._threads import threads_for
from drago.files.blocks import Blocks, Column, SourceChangedError, checksum
from drago.rows.base import Index

Array = npt.NDArray[Any]

# Bytes between two rows up to which what lies between them is read too, where rows are picked.
GAP = 1 << 12
# Entries that are read at once for a check sum.
_SUMMED = 1 << 20
_WORD = 1 << 64
# What kernels say of numbers that cannot be (``kernels/filed.hpp``).
_DAMAGED = -2


class Reading(NamedTuple):
    """What kernels are given to read rows themselves, and what they tell of it.

    `report` has an error and the number of its column, the bytes that were read, and the check sums
    of two columns.
    """

    storage: tuple[Any, ...]
    report: npt.NDArray[np.int64]

    @property
    def sums(self) -> tuple[int, ...]:
        """The check sums of the columns."""
        return tuple(int(each) for each in self.report[3:])


class Near(NamedTuple):
    """Rows that a visit keeps: those whose losses are near two thresholds.

    Their features and, for each part of the visit, how many there are and which.
    """

    X: Array
    rows: npt.NDArray[np.int64]
    low: float = math.inf
    high: float = math.inf
    width: float = -1.0


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
        types = (np.float32, np.float64, np.int32)
        self.is_filed = all(
            isinstance(each, Column) and each.dtype in types for each in self.columns[:2]
        )
        """Whether kernels can read them by themselves."""

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

    def read(self, start: int, stop: int) -> Any:
        """Rows `start` to `stop`."""
        if not self.is_sparse:
            self._count((stop - start) * self.row_bytes)
            return self.columns[0].read(start, stop)
        from scipy.sparse import csr_array

        data, indices, pointers = self.columns
        ends = pointers.read(start, stop + 1)
        first, last = int(ends[0]), int(ends[-1])
        values, places = data.read(first, last), indices.read(first, last)
        local = (ends - first).astype(indices.dtype)
        self._count(values.nbytes + places.nbytes)
        return csr_array((values, places, local), shape=(stop - start, self.n_features))

    @contextlib.contextmanager
    def opened(
        self, start: int, stop: int, origin: int | None = None, near: Near | None = None
    ) -> Iterator[Reading]:
        """Rows `start` to `stop` for kernels that read them themselves (``kernels/filed.hpp``).

        With check sums that begin at the row `origin`; dense ones with those that are kept.
        """
        report = np.zeros(5, np.int64)
        with contextlib.ExitStack() as stack:
            places: list[int] = []
            for column in self.columns[:2]:
                assert isinstance(column, Column)
                places += [stack.enter_context(column.opened()), column.offset]
            storage = (*(near or self.none_near), *places, start, -1 if origin is None else origin)
            if self.is_sparse:
                storage = (*self._none, *places, *self._pointers(start, stop, origin))
            yield Reading((*storage, GAP, report), report)
            self._count(int(report[2]))
            error, number = int(report[0]), int(report[1])
            if error == _DAMAGED:
                raise SourceChangedError(f"{self._where(number)} is damaged. Make the source anew.")
            if error:
                raise self.columns[number].failed(places[2 * number], error)  # type: ignore[union-attr]

    def _pointers(self, start: int, stop: int, origin: int | None) -> tuple[Any, ...]:
        """The number of features, pointers to some CSR rows, and the one of the row `origin`."""
        pointers = self.columns[2]
        found = pointers.read(start, stop + 1)
        if found[0] < 0 or (np.diff(found) < 0).any() or found[-1] > self.columns[0].shape[0]:
            raise SourceChangedError(f"{self._where(2)} is damaged. Make the source anew.")
        first = -1 if origin is None else int(pointers.read(origin, origin + 1)[0])
        return self.n_features, found, first

    def _where(self, number: int) -> str:
        column = self.columns[number]
        return column.path if isinstance(column, Column) else self.names[number]

    def gathered(self, start: int, stop: int, index: Index) -> Array:
        """Some of the dense rows `start` to `stop`, in ascending order."""
        out = np.empty((index.size, self.n_features), self.dtype)
        with self.opened(start, stop) as reading:
            *_, file, place, start, _, gap, report = reading.storage
            n_threads = threads_for((stop - start) * self.n_features)  # they wait for the disk
            kernels.gather_filed(file, place, start, gap, index, n_threads, report, out)
        return out

    @functools.cached_property
    def none_near(self) -> Near:
        """No rows are kept."""
        return Near(np.empty((0, self.n_features), self.dtype), np.empty((0, 1), np.int64))

    @functools.cached_property
    def _none(self) -> list[Array]:
        """Tell kernels the types of CSR columns."""
        return [np.empty(0, each.dtype) for each in self.columns[:2]]

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
        places = [(a, min(a + _SUMMED, last)) for a in range(first, last, _SUMMED)]
        return tuple(
            sum(
                checksum(column.read(a, b), (a - first) * column.dtype.itemsize // 4)
                for a, b in places
            )
            for column in self.columns[:2]
        )

    def damaged(self, k: int, sums: tuple[int, ...]) -> SourceChangedError | None:
        """An error where the check sums of part `k` are not those of the scan."""
        for name, found in zip(self.names, sums):
            expected = self.sums.get(name)
            if expected is not None and found % _WORD != expected[k]:
                where = self._where(self.names.index(name))
                return SourceChangedError(
                    f"{where} is damaged: part {k} has another check sum than when it was scanned. "
                    "Make the source anew."
                )
        return None
