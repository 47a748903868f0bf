"""What may be said where row data is left out: nothing about fewer than ten rows.

Nor about more rows of which one has more than a tenth of the weight, because a mean over them is
nearly that one's value. And nothing from which such a figure could be computed: what all rows lose,
less what the groups that are shown lose, is what the others lose.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from drago.advice.audit import Audit
from drago.advice.table import Comparison, side_by_side
from drago.advice.verdict import verdict_of

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]

SMALLER = "(smaller groups)"
# Rows below which nothing is said of some of them.
LEAST = 10
# Sums of equal weights are equal to their number up to rounding.
_ALMOST = 1.0 - 1e-9


def equal_rows(weight: Vector) -> float:
    """The number of rows where all weigh the same; else how many times the heaviest they weigh."""
    heaviest = float(np.max(weight, initial=0.0))
    return float(np.sum(weight)) / heaviest if heaviest > 0 else 0.0


def are_enough(weight: Vector, least: int, share: float = 1.0) -> bool:
    """Whether something may be said of rows with these weights, or of a share of them."""
    return share * equal_rows(weight) >= least * _ALMOST


def to_pool(codes: Array, weight: Vector, least: int) -> Array:
    """Which groups to show as one: those of too few rows, as far as these are enough together.

    Else the next smallest ones too: what is shown of all rows and of the other groups tells what
    holds for the rest, so the rest must not be too few rows either.

    Parameters
    ----------
    codes : array of int of shape (n,)
        The group of each row, from 0 on.
    weight : array of shape (n,)
    least : int

    Returns
    -------
    array of bool of shape (n_groups,)
    """
    mass = np.bincount(codes, weights=weight)
    heaviest = np.zeros(mass.size)
    np.maximum.at(heaviest, codes, weight)
    size = mass / heaviest
    order = np.argsort(size, kind="stable")
    hidden = int((size < least * _ALMOST).sum())
    if hidden:
        together = np.cumsum(mass[order]) / np.maximum.accumulate(heaviest[order])
        enough = np.flatnonzero(together[hidden - 1 :] >= least * _ALMOST)
        hidden = hidden + int(enough[0]) if enough.size else mass.size
    found = np.zeros(mass.size, dtype=bool)
    found[order[:hidden]] = True
    return found


def pooled(groups: Array, weight: Vector, least: int) -> tuple[Array, int]:
    """Labels with the groups that `to_pool` names as one, and how many these are."""
    _, codes = np.unique(groups, return_inverse=True)
    codes = codes.reshape(-1)
    hidden = to_pool(codes, weight, least)
    if not hidden.any():
        return groups, 0
    return np.where(hidden[codes], SMALLER, groups.astype(str)), int(hidden.sum())


def without_rows(audit: Audit) -> tuple[Comparison, list[str], int]:
    """The table of an audit, its verdict, and the number of its groups that are shown as one."""
    found = audit.comparison
    judged, count = replace(found.judged, least=LEAST), 0
    if judged.groups is not None:
        once = np.arange(judged.groups.size)
        if judged.names is not None:
            once = np.unique(judged.names, return_index=True)[1]
        labels, count = pooled(judged.groups[once], judged.row_weight, LEAST)
        if np.unique(labels).size > 1:
            judged = replace(judged, groups=judged.of_rows(labels))
        else:
            judged = replace(judged, groups=None)
    again = side_by_side(found.models, found.reference, judged, found.seed)
    return again, verdict_of(again, audit.recommended, judged.groups is not None), count
