"""Blocks: the rows of a source as plain columns in files, read a range of rows at a time.

A column is a file of numbers without a header (or with one that is skipped), row after row. Columns
are read with `os.preadv` into memory of our own, never mapped: a mapped file that is cut short
while it is read ends the process, where a read can end in an error that names the file.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from drago import kernels

Array = npt.NDArray[Any]

# Bytes that are read by one call: Linux reads no more than 2 GiB.
_AT_ONCE = 1 << 30


class SourceChangedError(OSError):
    """A file of the source is gone, was changed or cannot be read any more.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np, drago
    >>> path = os.path.join(tempfile.mkdtemp(), "X.npy")
    >>> np.save(path, np.eye(3))
    >>> source = drago.from_arrays(path, [1.0, 2.0, 6.0])
    >>> os.remove(path)
    >>> try:
    ...     drago.DROProblem(source)
    ... except drago.SourceChangedError as error:
    ...     print("gone")
    gone
    """


def checksum(array: Array, start: int = 0) -> int:
    """A sum over an array's bytes that tells damage, and words that have changed places.

    With the bytes as halves h_0, h_1, ... of words, 32 bits each, little endian, the last one
    filled up with 0, and for word i the odd keys ``a_i = 0x9E3779B9 + i 0x7F4A7C16`` and
    ``b_i = 0x85EBCA6B + i 0xC2B2AE3E`` modulo 2^32::

        sum_i (h_2i xor a_i) b_i + (h_2i+1 xor b_i) a_i    modulo 2^64

    Whatever happens to one half of one word is seen for certain.

    Parameters
    ----------
    array : array
    start : int
        The place of its first half, where it is a piece of more: the check sums of pieces of whole
        halves sum to that of all of them, modulo 2^64.
    """
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return int(kernels.checksum(data, start))


@dataclass(frozen=True)
class Stamp:
    """What a file looked like when it was scanned."""

    size: int
    modified_ns: int
    inode: int

    @classmethod
    def of(cls, path: str) -> Stamp:
        """The stamp of a file as it is now."""
        return cls._from(os.stat(path))

    @classmethod
    def _from(cls, found: os.stat_result) -> Stamp:
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)


@dataclass(frozen=True)
class Column:
    """Numbers in a file.

    Parameters
    ----------
    path : str
    dtype : dtype
    shape : tuple of int
        Rows first, in C order.
    offset : int
        The byte at which they begin.
    stamp : Stamp, optional
        What the file looked like when it was scanned; every reading compares it.
    """

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int = 0
    stamp: Stamp | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def check(self) -> None:
        """Raise `SourceChangedError` where the file is not what it was."""
        try:
            self._compare(os.stat(self.path))
        except OSError as error:
            raise self._lost(error) from None

    def read(self, start: int, stop: int, out: Array | None = None) -> Array:
        """Rows `start` to `stop`, into `out` where it is given.

        Raises
        ------
        SourceChangedError
            Where the file is gone, has another stamp or is too short.
        """
        out = _room(self, start, stop, out)
        with self.opened() as file:
            self._fill(file, self.offset + start * self.row_bytes, out)
        return out

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """The file, for those who read it themselves; it must be what it was, before and after."""
        try:
            file = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            try:
                self._compare(os.fstat(file))
                yield file
                self._compare(os.fstat(file))
            finally:
                os.close(file)
        except OSError as error:
            raise self._lost(error) from None

    def expect(self, start: int, stop: int) -> None:
        """Have the system read rows `start` to `stop` in the background, where it can."""
        if hasattr(os, "posix_fadvise") and start < stop:
            place, size = self.offset + start * self.row_bytes, (stop - start) * self.row_bytes
            # Whether it is there, the reading itself will tell.
            with contextlib.suppress(OSError):
                file = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
                try:
                    os.posix_fadvise(file, place, size, os.POSIX_FADV_WILLNEED)
                finally:
                    os.close(file)

    def _fill(self, file: int, place: int, out: Array) -> None:
        # Empty arrays cannot be cast.
        left = out.reshape(-1).view(np.uint8).data if out.size else memoryview(b"")
        while left:
            count = os.preadv(file, [left[:_AT_ONCE]], place)
            if count == 0:
                raise self.failed(file)
            place, left = place + count, left[count:]

    def failed(self, file: int, error: int = 0) -> SourceChangedError:
        """The error where a reading of the open file failed, or came to its end (0) too early."""
        if error > 0:
            return self._lost(OSError(error, os.strerror(error)))
        size = os.fstat(file).st_size
        missing = self.offset + self.shape[0] * self.row_bytes - size
        return SourceChangedError(
            f"{self.path} ends at byte {size}, where {missing} bytes more are expected: it was cut "
            "short. Restore the file, or make the source anew."
        )

    def _compare(self, found: os.stat_result) -> None:
        if self.stamp is not None and Stamp._from(found) != self.stamp:
            raise SourceChangedError(
                f"{self.path} was changed since it was scanned: it had {self.stamp.size} bytes and "
                f"has {found.st_size}, or was written anew. Make the source anew."
            )

    def _lost(self, error: OSError) -> SourceChangedError:
        if isinstance(error, SourceChangedError):
            return error
        if isinstance(error, FileNotFoundError):
            return SourceChangedError(
                f"{self.path} is gone, which the rows are read from. Restore the file, or make the "
                "source anew."
            )
        return SourceChangedError(f"{self.path} cannot be read any more: {error}.")


@dataclass(frozen=True)
class Held:
    """The same for an array in memory (what was given as one, such as y beside a memmap X)."""

    array: Array

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the array."""
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the array."""
        return self.array.shape

    def check(self) -> None:
        """Nothing can happen to it."""

    def expect(self, start: int, stop: int) -> None:
        """It is there."""

    def read(self, start: int, stop: int, out: Array | None = None) -> Array:
        """Rows `start` to `stop`, a copy in `out` where it is given."""
        if out is None:
            return self.array[start:stop]
        out = _room(self, start, stop, out)
        out[...] = self.array[start:stop]
        return out


def _room(column: Column | Held, start: int, stop: int, out: Array | None) -> Array:
    """`out`, if rows `start` to `stop` of a column fit it exactly; a new array where it is None."""
    if not 0 <= start <= stop <= column.shape[0]:
        raise IndexError(
            f"rows {start} to {stop} were asked for, but there are {column.shape[0]} rows."
        )
    shape = (stop - start, *column.shape[1:])
    if out is None:
        return np.empty(shape, column.dtype)
    if out.shape != shape or out.dtype != column.dtype or not out.flags.c_contiguous:
        raise ValueError(
            f"out must be a C-contiguous array of shape {shape} and dtype {column.dtype}, but has "
            f"shape {out.shape} and dtype {out.dtype}."
        )
    return out


@dataclass(frozen=True)
class Blocks:
    """All that a store in files needs to know of the rows; made by the first scan.

    Parameters
    ----------
    n_samples, n_features : int
    columns : mapping of str to Column or Held
        "X" (n, d) of float32 or float64, or "data", "indices" and "indptr" of CSR (n + 1 entries of
        int64 over all rows; indices of int32, ascending in each row, those of int64 take longer);
        "y" of float64, or of int64 for labels 0..k-1. Where given "sample_weight" (float64,
        positive), "groups" (int64, 0..g-1) and "baseline" (float64). "order" (int64) where the
        rows of each part are in another order than in the source: the number there of each, from
        the start of the part.
    ends : tuple of int
        Rows at which the parts end; the last is `n_samples`. No part is empty.
    sums : mapping of str to tuple of int
        For some columns the check sum (`checksum`) of each part's bytes.
    feature_names : tuple of str, optional
    classes, group_names : array, optional
        What the labels of y and the numbers of groups stand for.
    mean, scale : array, optional
        The standardisation that was applied on the way.
    digest : str
        Tells the rows from others.
    keep_alive : object, optional
        Whatever must live as long, such as a temporary folder.
    memory_limit : int, optional
        Bytes that a store of these rows may hold.
    """

    n_samples: int
    n_features: int
    columns: Mapping[str, Column | Held]
    ends: tuple[int, ...]
    sums: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    feature_names: tuple[str, ...] | None = None
    classes: Array | None = None
    group_names: Array | None = None
    mean: Array | None = None
    scale: Array | None = None
    digest: str = ""
    keep_alive: Any = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        rises = all(a < b for a, b in itertools.pairwise((0, *self.ends)))
        if self.ends[-1:] != (self.n_samples,) or not rises:
            raise ValueError(
                f"ends must rise to n_samples={self.n_samples} without an empty part, but are "
                f"{self.ends[:4]} and so on to {self.ends[-1:]}."
            )
        if "y" not in self.columns or ("X" in self.columns) == ("data" in self.columns):
            raise ValueError(
                "columns must hold 'y' and either 'X' or 'data', 'indices' and 'indptr', but hold "
                f"{sorted(self.columns)}."
            )

    @property
    def is_sparse(self) -> bool:
        """Whether the rows are CSR."""
        return "X" not in self.columns

    def order(self, start: int, stop: int) -> Any:
        """The numbers in the source of the rows of a part, from its start on; as an index."""
        column = self.columns.get("order")
        return slice(None) if column is None else column.read(start, stop)

    def check(self) -> None:
        """Raise `SourceChangedError` where a file is not what it was."""
        for column in self.columns.values():
            column.check()
