"""Parts whose features lie in files on the disk of the worker that has them.

A part is a value like any other: it can be sent, and its features go with it. Whoever gets it
writes files of its own, so no path is ever used by another process. Vectors with an entry for each
row stay in memory. What a task reads of the features it forgets when it ends; it computes with them
as with those of `drago.rows.part.ArrayPart`, so that the bits are the same.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from dask.sizeof import sizeof

from drago import kernels
from drago._threads import threads_for
from drago.files.blocks import Blocks, Column, Held, SourceChangedError, Stamp, checksum
from drago.rows.array_curvature import Chosen
from drago.rows.array_visits import NO_GUESS, NONE, Guess, Seen
from drago.rows.base import Gradient, Index, Matrix, Vector
from drago.rows.features import Features
from drago.rows.file_part import FilePart
from drago.rows.part import ArrayPart
from drago.sources.cache import Folder, default_dir, failed

# Share of the rows up to which they are picked from the files without a reading of all.
_FEW = 0.25
# Bytes that are written at once.
_AT_ONCE = 1 << 24


class Block:
    """The features of a part: in files, or in memory until they are first used after a journey.

    Parameters
    ----------
    X : sequence of arrays, or CSR matrix
        Arrays of rows below each other, of one type.
    cache_dir : str or None
        Where a folder is made for the files: None is the worker's own directory.
    """

    def __init__(self, X: Any, cache_dir: str | None) -> None:
        self.cache_dir, self._held, self._lock = cache_dir, X, threading.Lock()
        self.folder: Folder | None = None
        self._features: Features | None = None
        self._is_checked = False

    def __getstate__(self) -> dict[str, Any]:
        """All that is needed to make it anew elsewhere."""
        X = self._held if self._held is not None else self.whole()
        return {"X": [X] if isinstance(X, np.ndarray) else X, "cache_dir": self.cache_dir}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def n_bytes(self) -> int:
        """Bytes in memory."""
        held = self._held
        if held is None:
            return 0
        arrays = held if isinstance(held, (list, tuple)) else (held.data, held.indices, held.indptr)
        return sum(int(each.nbytes) for each in arrays)

    @property
    def features(self) -> Features:
        """Those in the files, which are written if they are not yet."""
        with self._lock:
            if self._features is None:
                self._features = self._written()
                self._held = None
            return self._features

    def whole(self) -> Any:
        """All rows, as an array or a CSR matrix; check sums are compared once."""
        features, n = self.features, self._n
        X = features.read(0, n)
        if not self._is_checked:
            arrays = (X,) if isinstance(X, np.ndarray) else (X.data, X.indices)
            self.check(tuple(map(checksum, arrays)))
        return X

    @property
    def is_checked(self) -> bool:
        """Whether the check sums were compared with those of what was written."""
        return self._is_checked

    def check(self, sums: tuple[int, ...]) -> None:
        """Compare check sums of all rows."""
        error = self.features.damaged(0, sums)
        if error is not None:
            raise SourceChangedError(
                f"{error.args[0].partition('. Make')[0]}: make the problem anew, so that the "
                "workers write it again; a solve with checkpoint= goes on from its file."
            )
        self._is_checked = True

    def _written(self) -> Features:
        place = self.cache_dir or worker_dir()
        self.folder = folder = Folder.new(place, warns=False)
        held = self._held
        columns: dict[str, Any] = {"y": Held(NONE)}
        sums: dict[str, tuple[int, ...]] = {}
        given: dict[str, Sequence[Any]] = {"X": held}
        if not isinstance(held, (list, tuple)):
            pointers = held.indptr.astype(np.int64)
            given = {"data": [held.data], "indices": [held.indices], "indptr": [pointers]}
        try:
            for name, arrays in given.items():
                path = folder.file(f"{name}.bin")
                sums[name] = (_write(path, arrays),)
                shape = (sum(each.shape[0] for each in arrays), *arrays[0].shape[1:])
                columns[name] = Column(path, arrays[0].dtype, shape, 0, Stamp.of(path))
        except BaseException as error:
            folder.discard()
            self.folder = None
            if isinstance(error, OSError):
                raise failed(place, error) from error
            raise
        if "X" in columns:
            self._n, width = columns["X"].shape
        else:
            self._n, width = held.shape
        return Features(Blocks(self._n, width, columns, (self._n,), sums))


def _write(path: str, arrays: Sequence[Any]) -> int:
    """Write arrays behind each other to a new file; their check sum."""
    total = start = 0
    with open(path, "xb", buffering=0) as file:
        for array in arrays:
            array = np.ascontiguousarray(array)
            left = memoryview(array.reshape(-1).view(np.uint8).data)
            while left:
                left = left[file.write(left[:_AT_ONCE]) :]
            total += checksum(array, start)
            start += array.nbytes // 4
    return total % (1 << 64)


def worker_dir() -> str:
    """A directory on this machine's disk: the worker's own, else that of sources."""
    with suppress(ImportError, ValueError):
        from distributed import get_worker

        # Dask removes it when the worker goes, and those of killed workers later.
        return os.path.join(get_worker().local_directory, "drago")
    return default_dir()


class DiskPart:
    """A part of the rows: vectors in memory, and its features on the disk.

    Parameters
    ----------
    block : Block
    y, p, groups, baseline : arrays
    """

    def __init__(self, block: Block, y: Any, p: Vector, groups: Any, baseline: Any = None) -> None:
        self.block, self._is_new = block, True
        self.y, self.p, self.groups, self.baseline = y, p, groups, baseline

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_is_new": False}

    @property
    def n_samples(self) -> int:
        return int(self.p.size)

    @property
    def n_bytes(self) -> int:
        """Bytes in memory; at the first look those on the disk, too.

        A worker looks first when it tells the scheduler, which decides by this what may be sent
        elsewhere; and then whenever it decides what of its memory to move to a disk.
        """
        vectors = (self.y, self.p, self.groups, self.baseline)
        held = sum(int(each.nbytes) for each in vectors if each is not None)
        sent = self.block.features.size if self._is_new else self.block.n_bytes
        self._is_new = False
        return held + sent

    def with_baseline(self, baseline: Vector | None) -> DiskPart:
        """The same rows in the same files."""
        return DiskPart(self.block, self.y, self.p, self.groups, baseline)

    def at_hand(self) -> ReadPart:
        """The part for one task, which may read its features."""
        return ReadPart(self)


class ReadPart(ArrayPart):
    """A part as one task sees it: the features are read when an operation needs all of them.

    Visits go through them a window at a time, and a few rows are picked, without holding all.
    """

    def __init__(self, part: DiskPart) -> None:
        self.block, features = part.block, part.block.features
        # A vector that was sent may begin anywhere in memory.
        vectors = (part.y, part.p, part.groups, part.baseline)
        self.y, self.p, self.groups, self.baseline = map(_aligned, vectors)
        self.n_samples, self.n_features = part.n_samples, features.n_features
        self.is_sparse, self.n_entries = features.is_sparse, features.entries(0, part.n_samples)
        self.is_plain = not self.is_sparse and features.dtype == np.float64
        self._filed = FilePart(
            features, 0, self.n_samples, self.y, self.p, self.groups, self.baseline, self.n_entries
        )

    unread = False

    @cached_property
    def X(self) -> Any:
        return self.block.whole()

    @property
    def stored(self) -> Any:
        return self.X

    @property
    def is_by_rows(self) -> bool:
        return not self.is_sparse

    @property
    def _is_read(self) -> bool:
        return "X" in self.__dict__

    def _picks(self, count: int) -> bool:
        """Whether so many rows are read by themselves."""
        return not self._is_read and count <= _FEW * self.n_samples

    # ------------------------------------------------------------------------- visits

    def visits_once(self, loss: Any, n_outputs: int) -> bool:
        return n_outputs == 1 and loss.has_kernels

    def _read(self, loss: Any, w: Matrix, b: Vector, guess: Guess) -> Seen:
        """By kernels that read the files, a window at a time: the same bits."""
        features = self.block.features
        if self._is_read or not features.is_filed:
            return super()._read(loss, w, b, guess)
        origin = None if self.block.is_checked else 0
        with features.opened(0, self.n_samples, origin) as reading:
            seen = self._seen_in(reading.storage, loss, w, b, guess)
        if origin is not None:
            self.block.check(reading.sums[: len(features.columns[:2])])
        return seen

    def _gradient(
        self, dlosses: Matrix, q: Vector, guess: Guess = NO_GUESS, seen: Seen | None = None
    ) -> Gradient:
        """Of sparse rows in the same way; dense ones are added in fours, wherever these lie."""
        features = self.block.features
        if self._is_read or not (self.is_sparse and features.is_filed):
            return super()._gradient(dlosses, q, guess, seen)
        out = np.empty(self.n_features + 1)
        slopes = np.ascontiguousarray(dlosses[:, 0])
        with features.opened(0, self.n_samples) as reading:
            kernels.gradient_after(
                *reading.storage, self._n_parts, threads_for(self.n_entries), self.p, q, q, slopes,
                *NO_GUESS, 0.0, 0.0, NONE, NONE, out,
            )  # fmt: skip
        return Gradient(out[:-1, None], out[-1:])

    # ------------------------------------------------------------------------- some of the rows

    def picked(self, index: Index) -> Any:
        return self._filed.picked(index) if self._picks(index.size) else super().picked(index)

    def _gathered(self, index: Index, dtype: Any, factors: Vector = NONE) -> Any:
        if self._picks(index.size):
            return self._filed._gathered(index, dtype, factors)
        return super()._gathered(index, dtype, factors)

    def pieces(self, index: Index) -> tuple[Any, ...]:
        return self._filed.pieces(index) if self._picks(index.size) else super().pieces(index)

    def gram(self, chosen: Chosen, weight: Vector, intercept: bool) -> Matrix:
        index = chosen.index
        if self.is_sparse or not self._picks(index.size):
            return super().gram(chosen, weight, intercept)
        some = ArrayPart(self._filed.picked(index), self.y[index], self.p[index])
        every = Chosen(np.arange(index.size))
        out = some.gram(every, weight[index], intercept)
        chosen.longest = every.longest
        return out


def _aligned(value: Any) -> Any:
    return value if value is None or value.flags.aligned else value.copy()


@sizeof.register(DiskPart)
def _size_of(part: DiskPart) -> int:
    return part.n_bytes
