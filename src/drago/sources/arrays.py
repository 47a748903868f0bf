"""Sources of arrays: in files, in stores with slices such as Zarr's, or in memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import shown
from drago.files.blocks import Column, SourceChangedError, Stamp
from drago.sources.batch import Batch, as_batch, as_features, feature_dtype

Array = npt.NDArray[Any]

# Bytes of X that are read at once.
_BYTES = 16 << 20


class ArraysReader:
    """Arrays, memory maps, ``.npy`` files, CSR matrices in ``.npz`` files, or what has slices.

    Parameters
    ----------
    X : array, path, list of paths, or an object with `shape`, `dtype` and slices of rows
    y, sample_weight, groups, baseline : the same of one dimension, or None
    feature_names : sequence of str, optional
    dtype : dtype, optional
        float32 or float64, in place of that of X.
    """

    once = False

    def __init__(
        self,
        X: Any,
        vectors: dict[str, Any],
        feature_names: Any = None,
        dtype: np.dtype[Any] | None = None,
    ) -> None:
        self._X: Any = _opened("X", X)
        self._vectors = {
            name: _opened(name, value) for name, value in vectors.items() if value is not None
        }
        self.names = frozenset(self._vectors)
        self.is_sparse = isinstance(self._X, CsrFiles) or hasattr(self._X, "tocsr")
        if self.is_sparse and not isinstance(self._X, CsrFiles):
            self._X = as_features(self._X)
        shape = getattr(self._X, "shape", None)
        if shape is None or len(shape) != 2:
            raise ValueError(
                f"X must have two dimensions (rows, features), but {shown(X)} has shape {shape}."
            )
        self._n = int(shape[0])
        self.n_rows: int | None = self._n
        self.n_features = int(shape[1])
        if self._n == 0 or self.n_features == 0:
            raise ValueError(
                f"X must have at least one row and one feature, but its shape is {shape}."
            )
        kind = getattr(self._X, "dtype", np.dtype(np.float64))
        if np.dtype(kind).kind not in "biuf":
            raise ValueError(f"X must hold real numbers, but its dtype is {kind}.")
        self.dtype = feature_dtype(kind) if dtype is None else dtype
        for name, values in self._vectors.items():
            if np.shape(values)[:1] != (self.n_rows,):
                raise ValueError(
                    f"{name} must have one entry for each of the {self.n_rows} rows of X, but has "
                    f"shape {np.shape(values)}."
                )
        if feature_names is None and hasattr(X, "iloc"):
            feature_names = X.columns
        self.feature_names = as_feature_names(feature_names, self.n_features)
        kept = type(X).__name__
        if isinstance(X, (str, os.PathLike)):
            kept = os.path.basename(os.fsdecode(X))
        elif isinstance(self._X, CsrFiles):
            kept = f"{len(self._X.paths)} files"
        self.described = f"arrays ({kept}, {self.n_rows} x {self.n_features} of {self.dtype})"

    def prepare(self, known: dict[str, Any] | None = None) -> None:
        """Nothing has to be known."""

    def known(self) -> dict[str, Any]:
        return {}

    def encoded(self, known: dict[str, Any]) -> Any:
        return self

    def identity(self) -> Any:
        parts = {"X": self._X, **self._vectors}
        found = {name: _identity(value) for name, value in parts.items()}
        return None if None in found.values() else found

    @property
    def in_memory(self) -> bool:
        """Whether X is an array or a matrix in memory already, in a form that needs no copy."""
        X = self._X
        plain = type(X) is np.ndarray and (X.flags.c_contiguous or X.flags.f_contiguous)
        return (plain or hasattr(X, "tocsr")) and X.dtype == self.dtype

    def whole(self) -> Any:
        """X, where it is in memory."""
        return self._X

    def in_place(self) -> Column | None:
        """X as a column of the file that it lies in, where it can be read from there."""
        column = _column(self._X)
        return column if column is not None and column.dtype == self.dtype else None

    def batches(self, labels: bool | None) -> Iterator[Batch]:
        """All rows, some 16 MB at a time."""
        vectors = {} if labels is None else self._vectors
        for start, X in self._features():
            rows = slice(start, start + X.shape[0])
            some = {name: np.asarray(values[rows]) for name, values in vectors.items()}
            yield as_batch(X, **some, labels=labels)

    def _features(self) -> Iterator[tuple[int, Any]]:
        start = 0
        if isinstance(self._X, CsrFiles):
            for X in self._X.matrices():
                yield start, X
                start += X.shape[0]
            return
        # What is mapped may be cut short while it is read, and that would end the process.
        column = _column(self._X)
        if self.is_sparse:
            step = self._n
        else:
            step = max(1, _BYTES // (self.n_features * self.dtype.itemsize))
        if column is None and hasattr(self._X, "chunks") and self._X.chunks:
            each = int(self._X.chunks[0])  # whole chunks, each of which is unpacked once
            step = max(1, round(step / each)) * each
        for start in range(0, self._n, step):
            stop = min(start + step, self._n)
            if column is not None:
                yield start, column.read(start, stop)
            else:
                X = self._X[start:stop]
                yield start, X if self.is_sparse else as_features(X)


class CsrFiles:
    """CSR matrices in ``.npz`` files, as `scipy.sparse.save_npz` writes them, one below another."""

    def __init__(self, paths: list[str]) -> None:
        self.paths, self._stamps = paths, [Stamp.of(path) for path in paths]
        n_rows, widths, dtypes = 0, set(), set()
        for path in paths:
            with np.load(path) as file:
                if "shape" not in file or "format" not in file:
                    raise ValueError(
                        f"{path} must be a sparse matrix of scipy.sparse.save_npz, but holds "
                        f"{shown(list(file))}."
                    )
                shape = file["shape"]
                n_rows += int(shape[0])
                widths.add(int(shape[1]))
                dtypes.add(_member_dtype(file, "data"))
        if len(widths) > 1:
            raise ValueError(
                f"the matrices in {shown(paths)} must have as many columns each, but have "
                f"{sorted(widths)}."
            )
        self.shape = n_rows, widths.pop()
        self.dtype = np.result_type(*dtypes)

    def matrices(self) -> Iterator[Any]:
        from scipy.sparse import load_npz

        for path, stamp in zip(self.paths, self._stamps):
            Column(path, np.dtype(np.uint8), (stamp.size,), 0, stamp).check()
            yield as_features(load_npz(path)).astype(feature_dtype(self.dtype), copy=False)


def as_feature_names(names: Any, n_features: int) -> tuple[str, ...] | None:
    """Names of the features, one for each."""
    if names is None:
        return None
    names = tuple(str(name) for name in names)
    if len(names) != n_features:
        raise ValueError(
            f"feature_names must have {n_features} names, one for each feature, but has "
            f"{len(names)}."
        )
    return names


def _member_dtype(file: Any, name: str) -> np.dtype[Any]:
    """The dtype of an array in an ``.npz`` file, from its header."""
    from numpy.lib import format as npy

    with file.zip.open(f"{name}.npy") as member:
        version = npy.read_magic(member)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        return read(member)[2]


def _opened(name: str, value: Any) -> Any:
    """What a path leads to, or what was given."""
    if isinstance(value, (str, os.PathLike)):
        path = os.path.abspath(os.fsdecode(value))
        if path.endswith(".npz") and name == "X":
            return CsrFiles([path])
        if not path.endswith(".npy"):
            raise ValueError(
                f"{name} must be an array or the path of a .npy file"
                f"{' or of a .npz file with a CSR matrix' if name == 'X' else ''}, but "
                f"{shown(value)} was given."
            )
        return np.load(path, mmap_mode="r")
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    if name == "X" and is_list and all(isinstance(part, (str, os.PathLike)) for part in value):
        return CsrFiles([os.path.abspath(os.fsdecode(part)) for part in value])
    if hasattr(value, "iloc"):  # a frame or a series
        return value.to_numpy()
    if not hasattr(value, "shape"):
        return np.asarray(value)
    return value


def _mapped(array: Any) -> Column | None:
    """The file that a memory map lies in, from its first byte on; None where it is none."""
    mapped = getattr(array, "_mmap", None)
    name = getattr(array, "filename", None)
    if mapped is None or name is None or array.mode == "c":
        return None
    # `offset` is that of the array which a slice was taken from; this is the slice's own.
    begin = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    start = np.frombuffer(mapped, dtype=np.uint8).__array_interface__["data"][0]
    offset = begin + array.__array_interface__["data"][0] - start
    path = os.path.abspath(os.fsdecode(name))
    try:
        return Column(path, array.dtype, array.shape, offset, Stamp.of(path))
    except OSError as error:
        raise SourceChangedError(
            f"{path} is gone, which the rows are read from ({error.strerror}). Restore the file, "
            "or make the source anew."
        ) from error


def _column(array: Any) -> Column | None:
    """A memory map as a column of its file; None where it is none, or not row after row."""
    column = _mapped(array)
    if column is None or not array.flags.c_contiguous or array.dtype.byteorder == ">":
        return None
    return column


def _identity(value: Any) -> Any:
    """What tells an array in a file from others; None for what is in memory or elsewhere."""
    if isinstance(value, CsrFiles):
        return [[path, *vars(Stamp.of(path)).values()] for path in value.paths]
    column = _mapped(value)
    if column is None or column.stamp is None:
        return None
    place = [column.offset, value.dtype.str, list(value.shape), list(value.strides)]
    return [column.path, *vars(column.stamp).values(), *place]
