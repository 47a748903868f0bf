"""Groups of rows: from columns of a frame, several crossed, small ones merged."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import check_number, shown
from drago.loop.messages import warn

Array = npt.NDArray[Any]

MIN_SHARE = 0.03
OTHER = "other"


def cross_groups(columns: Any, *, min_share: float = MIN_SHARE) -> Array:
    """Labels for the combinations of several columns, small ones merged.

    Parameters
    ----------
    columns : frame, array of shape (n, n_columns), or dict of arrays of shape (n,)
    min_share : float in [0, 1]
        Two or more combinations with a smaller share of the rows than this are merged into one
        group, "other", and a warning names them. A single small one stays as it is. 0 merges none.

    Returns
    -------
    labels : array of str of shape (n,)
        "black, F" for the values of two columns.

    Examples
    --------
    >>> import drago
    >>> columns = {"race": ["black", "white", "white", "white"], "sex": ["F", "F", "M", "M"]}
    >>> drago.cross_groups(columns, min_share=0.0).tolist()
    ['black, F', 'white, F', 'white, M', 'white, M']
    """
    check_number("min_share", min_share, low=0, high=1)
    parts = _columns(columns)
    labels = np.array([", ".join(values) for values in zip(*parts)], dtype=str)
    names, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    small = counts < min_share * labels.size
    # One alone would only change its name.
    if int(small.sum()) < 2:
        return labels
    merged = [f"{name!r} ({count})" for name, count in zip(names[small].tolist(), counts[small])]
    warn(
        f"groups of fewer than {min_share:.0%} of the {labels.size} rows were merged into "
        f"{OTHER!r}: {', '.join(merged[:20])}{', ...' if len(merged) > 20 else ''}; "
        "give labels of your own as groups= to group them otherwise.",
        UserWarning,
    )
    return np.where(small[codes.reshape(-1)], OTHER, labels)


def _columns(columns: Any) -> list[list[str]]:
    """The columns as lists of text, all of one length."""
    if isinstance(columns, dict):
        parts = [np.asarray(values) for values in columns.values()]
    elif hasattr(columns, "iloc"):
        parts = [np.asarray(columns[name]) for name in columns.columns]
    else:
        table = np.asarray(columns)
        parts = list(table.T) if table.ndim == 2 else [table]
    if not parts or any(part.shape != parts[0].shape or part.ndim != 1 for part in parts):
        raise ValueError(
            "columns must be a frame, an array of shape (n, n_columns) or a dict of arrays of one "
            f"length, but {shown(columns)} was given."
        )
    return [[str(value) for value in part.tolist()] for part in parts]


def as_labels(groups: Any) -> Any:
    """Groups as one label a row: those of several columns are crossed."""
    if groups is None:
        return None
    shape = np.shape(groups)
    if isinstance(groups, dict) or (len(shape) == 2 and shape[1] > 1):
        return cross_groups(groups)
    if len(shape) == 2 and shape[1] == 1:
        return np.asarray(groups).reshape(-1)
    return groups


def given_names(groups: Any, X: Any) -> list[Any]:
    """The columns of X that were given as groups by their names; [] for labels."""
    if isinstance(groups, (str, int)):
        return [groups]
    if not (isinstance(groups, (list, tuple)) and hasattr(X, "columns")):
        return []
    columns = set(X.columns)
    named = all(isinstance(name, (str, int)) and name in columns for name in groups)
    return list(groups) if named else []


def names_of(columns: Any) -> list[Any]:
    """Names of group columns as a list."""
    if columns is None:
        return []
    return [columns] if isinstance(columns, (str, int)) else list(columns)


def without_columns(X: Any, columns: Any) -> Any:
    """A frame without some columns; what has none of them is returned as it is."""
    names = names_of(columns)
    if not names or not hasattr(X, "columns"):
        return X
    there = [name for name in names if name in set(X.columns)]
    return X[[name for name in X.columns if name not in there]] if there else X


def labels_from(X: Any, columns: Any, parameter: str = "group_columns") -> Any:
    """The labels that columns of a frame hold; messages name the parameter that named them."""
    names = names_of(columns)
    if not hasattr(X, "columns"):
        raise ValueError(
            f"{parameter}={shown(columns)} was given, but X is a {type(X).__name__} and has no "
            "columns with names; give a frame, or the labels to fit as groups=."
        )
    missing = [name for name in names if name not in set(X.columns)]
    if missing or not names:
        raise ValueError(
            f"{parameter} must name columns of X, but {shown(missing or columns)} is none of "
            f"{shown(list(X.columns))}."
        )
    return np.asarray(X[names[0]]) if len(names) == 1 else cross_groups(X[names])
