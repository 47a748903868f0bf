"""Some rows of a source as a reader gives them, and what a reader is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from drago._validation import check_vector, numeric
from drago.sources.labels import Coded

Array = npt.NDArray[Any]


class DenseRows(Protocol):
    """Features that can be written to an array, wherever they are."""

    def __len__(self) -> int: ...

    @property
    def width(self) -> int:
        """How many features there are."""

    def write(self, out: Array, start: int) -> None:
        """Write rows from `start` on, as many as `out` has."""

    def take(self, kept: Array) -> DenseRows:
        """The rows for which this is true."""


@dataclass(frozen=True)
class ArrayBlock:
    """The rows of an array."""

    X: Array

    def __len__(self) -> int:
        return int(self.X.shape[0])

    @property
    def width(self) -> int:
        return int(self.X.shape[1])

    def write(self, out: Array, start: int) -> None:
        out[...] = self.X[start : start + len(out)]

    def take(self, kept: Array) -> ArrayBlock:
        return ArrayBlock(self.X[kept])


@dataclass(frozen=True)
class Batch:
    """Rows in the order of the source.

    Parameters
    ----------
    X : DenseRows or CSR matrix
    y : array of float64, Coded or None
        Labels where these were asked for.
    sample_weight, baseline : array of float64 or None
    groups : Coded or None
    """

    X: Any
    y: Any = None
    sample_weight: Any = None
    groups: Any = None
    baseline: Any = None

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self.X.shape[0] if hasattr(self.X, "indptr") else len(self.X)

    def take(self, kept: Array) -> Batch:
        """The rows for which this is true."""
        X = self.X[kept] if hasattr(self.X, "indptr") else self.X.take(kept)
        others = (getattr(self, field.name) for field in fields(self)[1:])
        return Batch(
            X,
            *(
                None if given is None
                else given.take(kept) if isinstance(given, Coded)
                else given[kept]
                for given in others
            ),
        )  # fmt: skip


class Reader(Protocol):
    """What reads a source, from its beginning each time.

    Attributes
    ----------
    described : str
        The source in a few words.
    names : frozenset of str
        Which of "y", "sample_weight", "groups" and "baseline" there are.
    n_features : int
    dtype : dtype
        That of the features, float32 or float64.
    is_sparse : bool
    feature_names : tuple of str or None
    n_rows : int or None
        How many rows there are at most, where that is known.
    once : bool
        Whether it can be read once only.
    """

    described: str
    names: frozenset[str]
    dtype: np.dtype[Any]
    is_sparse: bool
    n_rows: int | None
    once: bool

    @property
    def n_features(self) -> int: ...

    @property
    def feature_names(self) -> tuple[str, ...] | None: ...

    def prepare(self, known: dict[str, Any] | None = None) -> None:
        """Find out what has to be known before the rows are read: here and from `known`."""

    def known(self) -> dict[str, Any]:
        """What `prepare` has found, as JSON can hold it."""

    def encoded(self, known: dict[str, Any]) -> Reader:
        """The same rows with what another source of the same columns knew."""

    def identity(self) -> Any:
        """What tells the source from others without reading it; None where nothing does."""

    def batches(self, labels: bool | None) -> Iterator[Batch]:
        """All rows; y as labels or as numbers, or features alone for None."""


def dense(rows: DenseRows) -> Array:
    """Rows as an array of float64."""
    out = np.empty((len(rows), rows.width))
    rows.write(out, 0)
    return out


def as_batch(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    groups: Any = None,
    baseline: Any = None,
    *,
    labels: bool | None,
) -> Batch:
    """A batch of arrays, each of as many rows as X."""
    n = X.shape[0]
    if labels is None:
        y = sample_weight = groups = baseline = None
    if y is not None:
        y = as_rows("y", Coded.of("y", y), n) if labels else check_vector("y", y, n)
    if groups is not None:
        groups = as_rows("groups", Coded.of("groups", groups), n)
    if sample_weight is not None:
        sample_weight = check_vector("sample_weight", sample_weight, n)
    if baseline is not None:
        baseline = check_vector("baseline", baseline, n)
    return Batch(X if hasattr(X, "indptr") else ArrayBlock(X), y, sample_weight, groups, baseline)


def as_rows(name: str, coded: Coded, n: int) -> Coded:
    """Labels, if there is one for each row."""
    if coded.codes.size != n:
        raise ValueError(
            f"{name} must have one entry for each of the {n} rows of X, but has {coded.codes.size}."
        )
    return coded


def as_features(X: Any) -> Any:
    """Features of a batch as an array of two dimensions or a canonical CSR matrix, of numbers."""
    if hasattr(X, "tocsr") and hasattr(X, "nnz"):
        X = X.tocsr()
        if X.dtype not in (np.float32, np.float64):
            X = X.astype(np.float64)
        if not X.has_canonical_format:
            X = X.copy()
            X.sum_duplicates()
        return X
    X = numeric("X", X)
    if X.ndim != 2:
        raise ValueError(
            f"X must have two dimensions (rows, features), but has shape {X.shape}; reshape a "
            "single feature with X.reshape(-1, 1)."
        )
    return X


def feature_dtype(dtype: Any) -> np.dtype[Any]:
    """float32 for float32, float64 for all other numbers."""
    return np.dtype(np.float32 if dtype == np.float32 else np.float64)
