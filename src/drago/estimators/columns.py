"""Columns of a table as rules speak of them: numbers, flags and words, with what is missing."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import is_missing, shown

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# A word that fewer rows have gets no coefficient of its own.
_LEAST_ROWS = 5


@dataclass(frozen=True)
class Column:
    """What is known of a column from the rows where groups were looked for.

    Attributes
    ----------
    name : str
    kind : {"number", "flag", "words"}
    has_missing : bool
    """

    name: str
    kind: str
    has_missing: bool = False

    def read(self, values: Any) -> Array:
        """The values of new rows: float64 with NaN, or words with None for what is missing."""
        if self.kind == "words":
            return _words(values)
        found = _numbers(values, bools=self.kind == "flag")
        if found is None:
            raise ValueError(
                f"column {self.name!r} must hold numbers, as it did where the groups were found, "
                f"but its dtype is {getattr(values, 'dtype', type(values).__name__)}."
            )
        if np.isinf(found).any():
            raise ValueError(
                f"column {self.name!r} contains infinite entries, the first at row "
                f"{int(np.isinf(found).argmax())}; remove or replace them."
            )
        return found


@dataclass(frozen=True)
class Columns:
    """The columns of a table, and how to read those of another one.

    Attributes
    ----------
    all : tuple of Column
    named : bool
        Whether the names are those of a frame.
    """

    all: tuple[Column, ...]
    named: bool

    @classmethod
    def of(cls, X: Any) -> tuple[Columns, list[Array]]:
        """The columns of a frame or an array, and their values."""
        raw, names = _raw(X), _names(X)
        named = names is not None
        names = [f"x{j}" for j in range(len(raw))] if names is None else names
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise ValueError(
                f"X has several columns of the name {double[0]!r}; rules in words need names that "
                "differ."
            )
        columns, values = [], []
        for name, given in zip(names, raw):
            column = _column(name, given)
            columns.append(column)
            values.append(column.read(given))
        return cls(tuple(columns), named), values

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.all]

    def read(self, X: Any) -> list[Array]:
        """The columns of other rows, which have to be the same ones."""
        raw, names = _raw(X), _names(X)
        if len(raw) != len(self.all):
            raise ValueError(
                f"X has {len(raw)} features, but the groups were found with {len(self.all)} "
                "features as input."
            )
        if self.named and names is not None and names != self.names:
            k = next(k for k, pair in enumerate(zip(names, self.names)) if pair[0] != pair[1])
            raise ValueError(
                "X must have the columns with which the groups were found, in their order, but "
                f"column {k} is {names[k]!r} where {self.names[k]!r} was."
            )
        return [column.read(values) for column, values in zip(self.all, raw)]

    def design(self, values: list[Array]) -> Matrix:
        """Features for linear models: numbers scaled, words and what is missing as 0 and 1.

        Made from features alone, missing numbers at the median.
        """
        parts: list[Array] = []
        for column, x in zip(self.all, values):
            if column.kind == "words":
                found, codes = levels(x)
                sizes = np.bincount(codes, minlength=len(found))
                parts += [codes == k for k in range(len(found)) if sizes[k] >= _LEAST_ROWS]
                continue
            missing = np.isnan(x)
            if missing.all():
                continue
            parts += [missing] if missing.any() else []
            filled = np.where(missing, np.median(x[~missing]), x)
            filled = filled / max(float(np.abs(filled).max()), np.finfo(np.float64).tiny)
            spread = float(filled.std())
            parts.append((filled - filled.mean()) / (spread if spread > 0 else 1.0))
        parts = [part for part in parts if np.ptp(part.astype(np.float64)) > 0]
        if not parts:
            return np.zeros((values[0].shape[0], 1))
        return np.ascontiguousarray(np.column_stack(parts), dtype=np.float64)


def levels(words: Array) -> tuple[list[str | None], Array]:
    """The words of a column in their order, None last, and which of them each row has."""
    known = sorted({word for word in words if word is not None})
    found: list[str | None] = [*known, None] if any(word is None for word in words) else [*known]
    place = {word: k for k, word in enumerate(found)}
    return found, np.fromiter((place[word] for word in words), np.int64, len(words))


def is_frame(X: Any) -> bool:
    """Whether it is a frame, of pandas or in its way."""
    return hasattr(X, "iloc") and hasattr(X, "columns")


def _raw(X: Any) -> list[Any]:
    """The columns as they are."""
    if is_frame(X):
        return [X.iloc[:, j] for j in range(X.shape[1])]
    if hasattr(X, "tocsr"):
        raise ValueError(
            f"X is a sparse matrix of shape {X.shape}, which this does not take; give X.toarray()."
        )
    if hasattr(X, "to_pandas"):
        raise ValueError(f"X is a frame of {type(X).__module__}; give X.to_pandas().")
    X = np.asarray(X)
    if X.ndim != 2:
        raise ValueError(
            f"X must have two dimensions (rows, features), but has shape {X.shape}. Reshape your "
            "data: X.reshape(-1, 1) is a single feature, X.reshape(1, -1) a single row."
        )
    return list(X.T)


def _names(X: Any) -> list[str] | None:
    return [str(name) for name in X.columns] if is_frame(X) else None


def _column(name: str, values: Any) -> Column:
    """What kind of a column it is."""
    kind = getattr(values.dtype, "kind", "O")
    if kind in "mM":
        raise ValueError(
            f"column {name!r} has dtype {values.dtype}, which has no place in a rule; give times "
            "as numbers."
        )
    if kind == "c":
        raise ValueError(f"column {name!r} must hold real numbers, but its dtype is complex.")
    found = None if str(values.dtype) == "category" else _numbers(values)
    if found is None:
        return Column(name, "words", True)
    missing = bool(np.isnan(found).any())
    if kind == "b":
        return Column(name, "words", True) if missing else Column(name, "flag")
    return Column(name, "number", missing)


def _numbers(values: Any, *, bools: bool = False) -> Vector | None:
    """A column as float64 with NaN for what is missing; None where it does not hold numbers.

    With `bools`, objects may be True and False too.
    """
    kind = getattr(values.dtype, "kind", "O")
    if kind in "biuf":
        if hasattr(values, "to_numpy"):
            return values.to_numpy(dtype=np.float64, na_value=np.nan)
        return np.ascontiguousarray(values, dtype=np.float64)
    entries = np.asarray(values, dtype=object)
    missing = np.fromiter(map(is_missing, entries), bool, entries.size)
    if missing.all() or not all(_is_number(value, bools) for value in entries[~missing]):
        return None
    out = np.full(entries.size, np.nan)
    out[~missing] = entries[~missing].astype(np.float64)
    return out


def _is_number(value: Any, bools: bool = False) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bools
    return isinstance(value, numbers.Real)


def _words(values: Any) -> Array:
    """A column as words, with None for what is missing."""
    out = np.empty(len(values), dtype=object)
    for k, value in enumerate(np.asarray(values, dtype=object)):
        out[k] = None if is_missing(value) else _word(value)
    return out


def _word(value: Any) -> str:
    """What a category is called: 3 and 3.0 are the same one."""
    if isinstance(value, (str, bool, np.bool_)):
        return str(value)
    if _is_number(value):
        value = float(value)
        return str(int(value)) if math.isfinite(value) and value == int(value) else str(value)
    if isinstance(value, (list, dict, set, np.ndarray)):
        raise ValueError(f"X holds {shown(value)}, which is neither a number nor a category.")
    return str(value)
