"""The registry: from what a user gives to the store that holds it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from drago._validation import (
    as_features,
    check_groups,
    check_number,
    check_sample_weight,
    require_features,
)
from drago.files.blocks import Blocks
from drago.rows.base import RowStore
from drago.rows.memory import ArrayRows

# Share of the total weight below which a row counts as dropped: its inverse must be finite.
NEGLIGIBLE = 1e-200
# Entries of X from which on they are checked while they are first read: twice would take longer.
_LONG = 1 << 22


class Opened(NamedTuple):
    """Rows behind their door."""

    rows: RowStore
    kept: Any
    """Which of the given rows have weight; None for all of them."""
    n_outputs: int


# Packages whose objects are not arrays, and the modules that open them when they are first met.
_HOMES = {
    "torch": "drago.rows.device",
    "drago": "drago.rows.sources",
    "dask": "drago.rows.cluster.open",
}


def _open_blocks(X: Blocks, y: Any, *, loss: Any, sample_weight: Any, groups: Any) -> Opened:
    for name, given in (("y", y), ("sample_weight", sample_weight), ("groups", groups)):
        if given is not None:
            raise ValueError(
                f"rows in files come with all that belongs to them, but {name}= was given: name "
                "its column where the source is made."
            )
    rows = importlib.import_module("drago.rows.files").FileRows(X, loss)
    return Opened(rows, None, rows.n_outputs)


# Types that were registered, and what opens them; the last ones first.
_OPENERS: list[tuple[type, Callable[..., Opened]]] = [(Blocks, _open_blocks)]


def register(kind: type, opener: Callable[..., Opened]) -> None:
    """Have X of a type opened by a function, which takes what `open_rows` takes."""
    _OPENERS.insert(0, (kind, opener))


def open_rows(
    X: Any, y: Any, *, loss: Any, sample_weight: Any, groups: Any, process_group: Any = None
) -> Opened:
    """The store for some data.

    Parameters
    ----------
    X : array, sparse matrix, tensor, source, Dask collection, `Blocks`, or what was registered
    y : array of shape (n,)
        None where X comes with it.
    loss : Loss
        Says what the target has to be.
    sample_weight, groups : arrays of shape (n,) or None
    process_group : process group, None or False
        Whose ranks share the rows; for tensors.
    """
    more = {}
    if type(X).__module__.partition(".")[0] == "torch":
        more = {"process_group": process_group}
    elif process_group:
        raise ValueError(
            "process_group was given, but X is no tensor: give each rank its own rows as tensors, "
            "or all rows as arrays and solve with device= and process_group=."
        )
    home = _HOMES.get(type(X).__module__.partition(".")[0])
    opener: Callable[..., Opened] = open_arrays
    if home is not None:
        opener = importlib.import_module(home).open_rows
    opener = next((found for kind, found in _OPENERS if isinstance(X, kind)), opener)
    return opener(X, y, loss=loss, sample_weight=sample_weight, groups=groups, **more)


def open_arrays(X: Any, y: Any, *, loss: Any, sample_weight: Any, groups: Any) -> Opened:
    """The store of arrays."""
    if y is None:
        raise ValueError(
            "y is missing: give the target of each row of X; only a source has its own."
        )
    X = as_features(X)
    n, kept = X.shape[0], None
    unread = math.prod(X.shape) >= _LONG if isinstance(X, np.ndarray) else X.nnz >= _LONG
    if not unread:
        require_features(X)
    y = loss.check_target(y, n)
    groups = None if groups is None else check_groups(groups, n)
    if sample_weight is None:
        p = None
    else:
        p = check_sample_weight(sample_weight, n)
        # Divided by the largest first: a sum of huge weights must not overflow.
        p = p / p.max()
        p = p / p.sum()
        some = p > NEGLIGIBLE
        if not some.all():
            if unread:
                require_features(X)
            kept, unread = some, False
            X, y, p = X[kept], y[kept], p[kept]
            groups = None if groups is None else check_groups(groups[kept], int(kept.sum()))
    return Opened(ArrayRows(X, y, p, groups, unread=unread), kept, loss.n_outputs(y))


def with_baseline(rows: RowStore, baseline: Any, kept: Any) -> RowStore:
    """Rows with a baseline that a user has given for all of them, some of which were kept."""
    if np.ndim(baseline) == 0:
        baseline, kept = np.full(rows.n_given, check_number("baseline", baseline)), None
    values = rows.enter("baseline", baseline, kept)
    if rows.extremes(values) != (0.0, 0.0):
        return rows.with_baseline(values)
    return rows if rows.baseline is None else rows.with_baseline(None)


def on_device(
    rows: RowStore, device: Any, loss: Any, uncertainty: Any, process_group: Any = None
) -> RowStore:
    """The same rows on a device of torch, or this rank's share of them."""
    if hasattr(rows, "parts"):
        raise ValueError(
            f"rows in files or in parts stay where they are and cannot go to device={device!r}"
            ": leave device=None, or give X and y as arrays or tensors that fit the device."
        )
    home = importlib.import_module(_HOMES["torch"])
    return home.moved(rows, device, loss, uncertainty, process_group)
