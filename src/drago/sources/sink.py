"""Where the rows of a scan go: to memory while they fit, else to a folder of blocks."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from drago.files.blocks import Column, Held, Stamp, checksum
from drago.sources.cache import Folder, failed, require_room

Array = npt.NDArray[Any]
Part = dict[str, Array]

# Bytes of a row that are set aside for what a solver keeps of it.
_ROW = 64
# Parts that may wait for their turn to be written.
_WAITING = 2


class Sink:
    """Takes the rows part by part.

    Parameters
    ----------
    limit : int
        Bytes up to which rows are held.
    cache_dir : str
        Where a folder is made for more of them.
    inspect : callable
        Is given each part and the row at which it begins, once, in their order.
    expected : tuple (rows, bytes), optional
        What is to come, where that is known.
    shuffle : int, optional
        The seed of a random order of the rows in each part, where these are written to files. The
        column "order" has their numbers in the part as it was given.
    """

    def __init__(
        self,
        limit: int,
        cache_dir: str,
        inspect: Callable[[Part, int], None],
        expected: tuple[int, int] | None = None,
        shuffle: int | None = None,
    ) -> None:
        self.folder: Folder | None = None
        self.ends: list[int] = []
        self._limit, self._cache_dir, self._inspect = limit, cache_dir, inspect
        self._shuffle = shuffle
        self._sums: dict[str, list[int]] = {}
        self._shapes: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self._held: list[Part] = []
        self._joined: Part = {}
        self._size = self._entries = 0
        self._files: dict[str, FileIO] = {}
        self._writer: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[Future[None], Part]] = deque()
        self._spare: list[Part] = []
        if expected is not None and expected[1] + expected[0] * _ROW > limit:
            require_room(cache_dir, expected[1])
            self._spill()

    @property
    def n_rows(self) -> int:
        """Rows that it was given so far."""
        return self.ends[-1] if self.ends else 0

    def room(self, shapes: Mapping[str, tuple[tuple[int, ...], Any]]) -> Part:
        """Arrays for a part to come, used ones where there are some."""
        if self._spare:
            return self._spare.pop()
        return {name: np.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}

    def put(self, part: Part, count: int) -> None:
        """Take the first rows of a part, which is the sink's from now on.

        "indptr" has the end of each row in this part.
        """
        first = self.n_rows
        # Those of CSR are as long as they should be.
        rows = {
            name: array if name in ("data", "indices") else array[:count]
            for name, array in part.items()
        }
        if "indptr" in rows:
            rows["indptr"] = rows["indptr"] + self._entries
            self._entries += rows["data"].size
        for name, array in rows.items():
            dtype, shape = self._shapes.get(name, (array.dtype, (0, *array.shape[1:])))
            self._shapes[name] = dtype, (shape[0] + array.shape[0], *shape[1:])
        self.ends.append(first + count)
        self._size += sum(array.nbytes for array in rows.values()) + count * _ROW
        if self.folder is None and self._size > self._limit:
            self._spill()
        if self._writer is None:
            self._inspect(rows, first)
            self._held.append(rows)
            return
        self._waiting.append((self._writer.submit(self._write, rows, first), part))
        while len(self._waiting) > _WAITING:
            self._settle()

    def close(self) -> None:
        """Wait until all is where it belongs."""
        while self._waiting:
            self._settle()
        self._spare.clear()
        self._inspect = _seen  # who looked at the parts is not needed any more
        if self._writer is not None:
            self._writer.shutdown()
            for file in self._files.values():
                file.close()
            return
        names = list(self._shapes)
        self._joined = {
            name: np.empty(shape, dtype) for name, (dtype, shape) in self._shapes.items()
        }
        starts = dict.fromkeys(names, 0)
        self._held.reverse()
        while self._held:  # and each is let go before the next one is copied
            part = self._held.pop()
            for name in names:
                stop = starts[name] + part[name].shape[0]
                self._joined[name][starts[name] : stop] = part[name]
                starts[name] = stop

    def abort(self) -> None:
        """Leave nothing behind."""
        if self._writer is not None:
            self._writer.shutdown(wait=True, cancel_futures=True)
        for file in self._files.values():
            file.close()
        if self.folder is not None:
            self.folder.discard()

    def rewrite(self, name: str, function: Callable[[Array, int], Array]) -> None:
        """Replace a column of rows, part by part; `function` is given a part and its number.

        What it returns has the same shape, and entries of the same size. For "data" a part is its
        entries.
        """
        dtype, shape = self._shapes[name]
        changed = dtype
        for k, (start, stop) in enumerate(self._spans(name)):
            if self.folder is None:
                part = self._joined[name][start:stop]
                new = np.ascontiguousarray(function(part, k))
                part[...] = new.view(dtype)  # the bits, whatever they stand for
            else:
                column = self._column(name, stamped=False)
                new = np.ascontiguousarray(function(column.read(start, stop), k))
                try:
                    with open(column.path, "r+b", buffering=0) as file:
                        file.seek(start * column.row_bytes)
                        _write_all(file, new)
                except OSError as error:
                    raise failed(self._cache_dir, error) from error
                self._sums[name][k] = checksum(new)
            changed = new.dtype
        self._shapes[name] = changed, shape
        if self.folder is None:
            self._joined[name] = self._joined[name].view(changed)

    def read(self, name: str, part: int) -> Array:
        """A part of a column, after `close`."""
        start, stop = self._spans(name)[part]
        if self.folder is None:
            return self._joined[name][start:stop]
        return self._column(name, stamped=False).read(start, stop)

    def columns(self) -> dict[str, Column | Held]:
        """What became of the rows, after `close`."""
        if self.folder is not None:
            return {name: self._column(name) for name in self._shapes}
        if "indptr" in self._joined:
            self._joined["indptr"] = np.concatenate([[0], self._joined["indptr"]])
        return {name: Held(array) for name, array in self._joined.items()}

    @property
    def sums(self) -> dict[str, tuple[int, ...]]:
        """The check sums of what lies in files, but for "indptr"."""
        return {name: tuple(found) for name, found in self._sums.items() if name != "indptr"}

    def sync(self) -> None:
        """Have the files on the disk."""
        for name in self._files:
            with open(self._path(name), "rb") as file:
                os.fsync(file.fileno())

    # ---------------------------------------------------------------------------- inside

    def _spans(self, name: str) -> list[tuple[int, int]]:
        edges = [0, *self.ends]
        if name in ("data", "indices"):
            edges = [0]
            for k in range(len(self.ends)):
                edges.append(int(self.read("indptr", k)[-1]))
        return list(pairwise(edges))

    def _path(self, name: str) -> str:
        assert self.folder is not None
        return self.folder.file(f"{name}.bin")

    def _column(self, name: str, stamped: bool = True) -> Column:
        dtype, shape = self._shapes[name]
        path, offset = self._path(name), 0
        if name == "indptr":  # with the 0 before all rows for those who read it from outside
            shape, offset = ((shape[0] + 1,), 0) if stamped else (shape, 8)
        return Column(path, dtype, shape, offset, Stamp.of(path) if stamped else None)

    def _spill(self) -> None:
        """To files from now on."""
        self.folder = Folder.new(self._cache_dir)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="drago-blocks")
        self._held.reverse()
        while self._held:
            self._store(self._held.pop())

    def _settle(self) -> None:
        """Wait for the oldest part that is being written, and take its arrays back."""
        future, part = self._waiting.popleft()
        future.result()
        if "data" not in part:
            self._spare.append(part)

    def _write(self, part: Part, first: int) -> None:
        self._inspect(part, first)
        self._store(part)

    def _store(self, part: Part) -> None:
        if self._shuffle is not None:
            part = _with_rows_in(self._new_order(part["y"].size), part)
        try:
            for name, array in part.items():
                if name not in self._files:
                    self._files[name] = open(self._path(name), "xb", buffering=0)  # noqa: SIM115
                    if name == "indptr":
                        _write_all(self._files[name], np.zeros(1, dtype=np.int64))
                _write_all(self._files[name], array)
                self._sums.setdefault(name, []).append(checksum(array))
        except OSError as error:
            raise failed(self._cache_dir, error) from error

    def _new_order(self, count: int) -> Array:
        """A random order of the rows of the next part."""
        number = len(self._sums.get("order", ()))
        dtype, shape = self._shapes.get("order", (np.dtype(np.int64), (0,)))
        self._shapes["order"] = dtype, (shape[0] + count,)
        assert self._shuffle is not None
        return np.random.default_rng([self._shuffle, number]).permutation(count)


def _with_rows_in(order: Array, part: Part) -> Part:
    """A part with its rows in another order, and that order."""
    csr = ("data", "indices", "indptr")
    found = {name: array[order] for name, array in part.items() if name not in csr}
    found["order"] = order
    if "indptr" not in part:
        return found
    from scipy.sparse import csr_matrix

    ends = part["indptr"]
    before = int(ends[-1]) - part["data"].size
    local = np.concatenate([[0], ends - before])
    width = int(part["indices"].max(initial=0)) + 1
    X = csr_matrix((part["data"], part["indices"], local), shape=(ends.size, width))[order]
    found["data"], found["indptr"] = X.data, before + X.indptr[1:].astype(np.int64)
    return {**found, "indices": X.indices.astype(part["indices"].dtype, copy=False)}


def _seen(part: Part, first: int) -> None:
    """No more parts come."""


def _write_all(file: FileIO, array: Array) -> None:
    left = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    while left:
        left = left[file.write(left) :]
