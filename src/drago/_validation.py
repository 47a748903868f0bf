"""Checks of what a user gives: one sentence that names the argument, its value and what is allowed.

Every function here returns the value in the form that the library works with, or raises
`ValueError` or `TypeError`.
"""

from __future__ import annotations

import difflib
import math
import numbers
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Mean square of a target below which losses leave the range of floating point.
LEAST_SQUARE = 1e-300
# Entries up to which a sum of squares is none of BLAS's: it would wake threads, which may take
# milliseconds, from ten thousand entries on.
_SMALL = 1 << 20


def shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:55] + "[...]"


def check_number(
    name: str,
    value: Any,
    *,
    low: float = -np.inf,
    high: float = np.inf,
    open_low: bool = False,
    finite: bool = True,
    hint: str = "",
) -> float:
    """A real number in ``[low, high]`` (``(low, high]`` with `open_low`)."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
    number = math.nan
    if is_number:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf if value > 0 else -math.inf
        inside = low < number <= high if open_low else low <= number <= high
        if inside and not (finite and math.isinf(number)):
            return number
    left = ("(" if open_low else "[") + f"{low:g}" if low > -np.inf else "(-inf"
    right = f"{high:g}]" if high < np.inf else ("inf)" if finite else "inf]")
    given = f"{number:g}" if is_number else f"{shown(value)} ({type(value).__name__})"
    tail = f"; {hint}" if hint else ""
    message = f"{name} must be a number in {left}, {right}, but {given} was given{tail}."
    raise (ValueError if is_number else TypeError)(message)


def check_integer(name: str, value: Any, *, low: int) -> int:
    """An integer that is at least `low`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"{name} must be an integer >= {low}, but {shown(value)} "
            f"({type(value).__name__}) was given."
        )
    if int(value) < low:
        raise ValueError(f"{name} must be an integer >= {low}, but {value} was given.")
    return int(value)


def check_flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, but {shown(value)} was given.")
    return bool(value)


def check_option(name: str, value: Any, allowed: Iterable[str]) -> str:
    """One of a few words."""
    words = list(allowed)
    if not isinstance(value, str) or value not in words:
        listed = ", ".join(f"{word!r}" for word in words)
        near = difflib.get_close_matches(str(value).lower(), words, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name} must be one of {listed}, but {shown(value)} was given.{hint}")
    return value


def refuse_masked(name: str, value: Any) -> None:
    """An error where `value` has masked entries, which NumPy's functions would take for numbers."""
    if isinstance(value, np.ma.MaskedArray):
        count = int(np.ma.count_masked(value))
        if count:
            raise ValueError(
                f"{name} has {count} masked entries, and what lies under a mask is no datum; "
                "leave out these rows, or fill the entries (filled)."
            )


def refuse_model(X: Any, hint: str) -> None:
    """Models given in place of the rows are refused."""
    if hasattr(X, "fit") and hasattr(X, "predict"):
        name = X.__name__ if isinstance(X, type) else type(X).__name__
        raise TypeError(f"X must be a table of rows, but a model ({name}) was given; {hint}")


def numeric(name: str, value: Any) -> Array:
    """`value` as an array of real numbers, not copied where that is not needed."""
    if hasattr(value, "detach"):  # a tensor, maybe on a device or with a gradient
        value = value.detach().cpu()
    refuse_masked(name, value)
    try:
        array = np.asarray(value)
    except ValueError as error:
        reason = str(error).rstrip(".")
        raise ValueError(f"{name} could not be read as an array of numbers: {reason}.") from error
    if array.dtype == object:
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name} has dtype object and holds entries that are not numbers ({error}); "
                "convert it to float first."
            ) from error
    if array.dtype.kind in "USMmV":
        raise ValueError(
            f"{name} must hold numbers, but its dtype is {array.dtype}; encode it as numbers first."
        )
    if array.dtype.kind == "c":
        raise ValueError(f"{name} must hold real numbers, but its dtype is {array.dtype}.")
    return array


def sum_of_squares(values: Array) -> float:
    """In one pass and without a temporary array; not finite where an entry or a square is not."""
    flat = values.ravel("K")
    small = flat.size <= _SMALL
    return float(np.einsum("i,i->", flat, flat) if small else np.vdot(flat, flat))


def _require_finite(name: str, values: Array, sparse: Any = None) -> float:
    """The sum of the squares; an error where an entry is not finite."""
    total = sum_of_squares(values)
    if math.isfinite(total):
        return total
    bad = ~np.isfinite(values)
    if bad.any():
        first = tuple(int(k) for k in np.argwhere(bad)[0])
        if sparse is not None:  # from the place in the data to row and column
            row = int(np.searchsorted(sparse.indptr, first[0], side="right")) - 1
            first = (row, int(sparse.indices[first[0]]))
        where = first[0] if len(first) == 1 else first
        raise ValueError(
            f"{name} contains {int(bad.sum())} NaN or infinite entries, the first at {where}; "
            "remove or impute them."
        )
    return total


def is_of_scale(largest: float, size: int) -> bool:
    """Whether the squares of so many entries up to this one do not overflow, nor their sum."""
    return largest <= math.sqrt(sys.float_info.max / size)


def require_scale(largest: float, size: int) -> None:
    """An error where sums of squares overflow, of which norms and curvatures are made.

    Parameters
    ----------
    largest : float
        The largest absolute value of X.
    size : int
        How many entries it has.
    """
    if not is_of_scale(largest, size):
        raise ValueError(
            f"X holds entries as large as {largest:.3g}, and sums of their squares overflow; scale "
            "the features, as sklearn.preprocessing.StandardScaler does."
        )


def require_target_scale(largest: float) -> None:
    """An error for a target, other than 0, whose squares and with them its losses underflow."""
    if largest > 0:
        raise ValueError(
            f"y holds no entry larger than {largest:.3g}, and the squares underflow; scale the "
            "target: divide it by its standard deviation, say."
        )


def _require_two_dimensions(X: Any) -> None:
    if X.ndim != 2:
        raise ValueError(
            f"X must have two dimensions (rows, features), but has shape {X.shape}; "
            "reshape a single feature with X.reshape(-1, 1)."
        )


def check_features(X: Any) -> Any:
    """Features as a float32/float64 array or CSR matrix, finite and with at least one row."""
    X = as_features(X)
    require_features(X)
    return X


def as_features(X: Any) -> Any:
    """The same, whatever its entries are."""
    if hasattr(X, "tocsr") and hasattr(X, "nnz"):
        _require_two_dimensions(X)
        X = X.tocsr()
        if X.dtype not in (np.float32, np.float64):
            if X.dtype.kind not in "biuf":
                raise ValueError(f"X must hold real numbers, but its dtype is {X.dtype}.")
            X = X.astype(np.float64)
        if not X.has_canonical_format:
            X = X.copy()
            X.sum_duplicates()
    else:
        X = numeric("X", X)
        if X.dtype not in (np.float32, np.float64):
            X = X.astype(np.float64)
        if not (X.flags.c_contiguous or X.flags.f_contiguous):
            X = np.ascontiguousarray(X)
        _require_two_dimensions(X)
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise ValueError(f"X must have at least one row and one feature, but has shape {X.shape}.")
    return X


def require_features(X: Any) -> None:
    """An error where an entry is not finite, or squares of them overflow."""
    is_dense = isinstance(X, np.ndarray)
    entries = X if is_dense else X.data
    if not math.isfinite(_require_finite("X", entries, None if is_dense else X)):
        require_scale(float(np.abs(entries).max()), entries.size)


def check_vector(
    name: str, value: Any, length: int, *, what: str = "row"
) -> npt.NDArray[np.float64]:
    """A finite float64 vector with one entry a row."""
    array = numeric(name, value)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.shape[0] != length:
        raise ValueError(
            f"{name} must have one entry per {what}, shape ({length},), "
            f"but has shape {array.shape}."
        )
    array = np.ascontiguousarray(array, dtype=np.float64)
    _require_finite(name, array)
    return array


def check_sample_weight(value: Any, n: int) -> npt.NDArray[np.float64]:
    """Nonnegative weights with a positive sum, not yet normalised."""
    weight = check_vector("sample_weight", value, n)
    if weight.min() < 0:
        raise ValueError(
            f"sample_weight must be nonnegative, but entry {int(weight.argmin())} "
            f"is {weight.min():g}."
        )
    if not weight.any():
        raise ValueError("sample_weight must have a positive entry, but all of them are zero.")
    return weight


def check_nominal(p: Any) -> npt.NDArray[np.float64]:
    """A probability vector with positive entries."""
    p = np.ascontiguousarray(numeric("p", p), dtype=np.float64)
    if p.ndim != 1 or p.size == 0 or not (p > 0).all() or abs(p.sum() - 1.0) > 1e-8:
        raise ValueError(
            "p must be a vector of positive probabilities with sum 1, but has "
            f"shape {p.shape}, sum {p.sum():g} and minimum {p.min() if p.size else np.nan:g}."
        )
    return p


def check_groups(groups: Any, n: int) -> npt.NDArray[np.int64]:
    """Group labels of any sortable type as integers 0, 1, ..."""
    refuse_masked("groups", groups)
    try:
        labels = np.asarray(groups)
    except ValueError as error:
        raise ValueError(
            f"groups must have one label per row, shape ({n},), but has rows of unequal length."
        ) from error
    if labels.ndim != 1 or labels.shape[0] != n:
        raise ValueError(
            f"groups must have one label per row, shape ({n},), but has shape {labels.shape}."
        )
    kind, missing = labels.dtype.kind, np.zeros(0, bool)
    if kind == "O":
        missing = np.fromiter(map(is_missing, labels), bool, n)
    elif kind in "fMm":
        missing = labels != labels  # NaN and NaT
    if missing.any():
        first = int(np.argmax(missing))
        name = str(labels[first]).replace("nan", "NaN")
        raise ValueError(
            f"groups contains {name} labels, the first at {first}; give these rows a label."
        )
    try:
        codes = np.unique(labels, return_inverse=True)[1]
    except TypeError as error:
        raise TypeError(
            "groups must hold labels of one kind that can be sorted, but mixes types; "
            "convert them to strings."
        ) from error
    return codes.astype(np.int64).reshape(-1)


def is_missing(label: Any) -> bool:
    """Whether a label says that there is none: None, NaN, NaT or pandas.NA."""
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas.NA is neither equal to itself nor unequal
        return True


def are_finite(array: npt.NDArray[np.float64]) -> bool:
    """Whether all entries are; by the sum of their squares, unless that overflows."""
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def locked(array: Any) -> Any:
    """A read-only view, so that a problem cannot change behind a solver's back."""
    if not isinstance(array, np.ndarray):
        parts = tuple(locked(part) for part in (array.data, array.indices, array.indptr))
        view = type(array)(parts, shape=array.shape, copy=False)
        view.has_canonical_format = True  # checked at the door
        return view
    array = array.view()
    array.flags.writeable = False
    return array
