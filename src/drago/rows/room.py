"""Room for vectors with an entry for each row: in memory up to a limit, in unnamed files beyond.

Those in files are mapped. The files have no name, so that nobody else can change them and nothing
is left of them whatever ends the process; and their space on the disk is reserved, so that a full
disk is an error here and not a signal in the middle of a sum.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from drago.files.disk import is_in_memory as is_in_memory

Array = npt.NDArray[Any]

# Bytes of a file, at least: few files, since each of them stays open.
_FILE = 1 << 28
# Vectors in files begin at multiples of this.
_PAGE = mmap.ALLOCATIONGRANULARITY


class Room:
    """Arrays, in memory as long as all of them together fit a limit, and in files beyond it.

    Parameters
    ----------
    limit : int
        Bytes that are kept in memory.
    folder : str
        Where the files are made.

    Attributes
    ----------
    held, spilled : int
        Bytes of arrays that are alive in memory, and of all files.
    """

    def __init__(self, limit: int, folder: str) -> None:
        self.limit, self.folder = limit, folder
        self.held = self.spilled = 0
        self._known: set[int] = set()
        self._free: dict[int, list[tuple[mmap.mmap, int]]] = {}
        self._open: tuple[mmap.mmap, int] | None = None  # the last file, and what of it is used

    def empty(self, shape: Any, dtype: Any = np.float64) -> Array:
        """A new array, not filled."""
        dtype = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        count = int(np.prod(shape, dtype=np.int64))
        size = count * dtype.itemsize
        if self.held + size <= self.limit or size == 0:
            return self._counted(np.empty(shape, dtype))
        size = -(-size // _PAGE) * _PAGE
        file, place = self._space(size)
        # Views refer to this very array and keep it alive, because it stands on no other array.
        array: Array = np.frombuffer(file, dtype, count, place)
        self._known.add(id(array))
        weakref.finalize(array, self._release, id(array), size, (file, place)).atexit = False
        return array.reshape(shape)

    def kept(self, value: Any) -> Any:
        """An array that was made elsewhere, or a tuple of these, counted and in its place."""
        if isinstance(value, tuple):
            return tuple(self.kept(each) for each in value)
        if not isinstance(value, np.ndarray) or id(_owner(value)) in self._known:
            return value
        if self.held + value.nbytes <= self.limit:
            return self._counted(value)
        out = self.empty(value.shape, value.dtype)
        out[...] = value
        return out

    def _counted(self, array: Array) -> Array:
        owner = _owner(array)
        self.held += owner.nbytes
        self._known.add(id(owner))
        weakref.finalize(owner, self._forget, id(owner), owner.nbytes).atexit = False
        return array

    def _forget(self, name: int, size: int) -> None:
        self._known.discard(name)
        self.held -= size

    def _release(self, name: int, size: int, space: tuple[mmap.mmap, int]) -> None:
        self._known.discard(name)
        self._free.setdefault(size, []).append(space)

    def _space(self, size: int) -> tuple[mmap.mmap, int]:
        """So many bytes of a file: what another array of this size has left, or new ones."""
        if self._free.get(size):
            return self._free[size].pop()
        if self._open is None or self._open[1] + size > len(self._open[0]):
            self._open = self._new_file(max(size, _FILE)), 0
        file, used = self._open
        self._open = file, used + size
        return file, used

    def _new_file(self, size: int) -> mmap.mmap:
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:  # pragma: no cover
                    file.truncate(size)
                self.spilled += size
                return mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{self.folder} has no room for {size} bytes of vectors that do not fit the memory "
                f"limit ({error.strerror}): free some of it, raise memory_limit=, or set TMPDIR to "
                "a folder on a larger disk",
            ) from None


def _owner(array: Array) -> Array:
    """The array whose memory it is."""
    return array.base if isinstance(array.base, np.ndarray) else array


def scratch_folder() -> str:
    """Where files of vectors are made: not in memory, where another folder is known."""
    folder = tempfile.gettempdir()
    if "TMPDIR" not in os.environ and is_in_memory(folder) and os.access("/var/tmp", os.W_OK):
        return "/var/tmp"
    return folder
