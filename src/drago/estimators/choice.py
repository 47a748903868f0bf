"""Choosing under a cap: which of several fits to take, by what they do on held-out rows.

The rule: the *reference* is the mean fit (over all l2_regs) with the least mean loss. Allowed is
what loses at most `max_mean_loss` times as much in the mean. Of these the one with the least
criterion is taken, if it beats the reference by more than one standard error of the paired
difference; otherwise the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.tree import DecisionTreeRegressor

from drago.scorers import tail_mean

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

CRITERIA = (
    "auto",
    "worst_group_excess",
    "found_group_excess",
    "tail_excess",
    "mean",
    "worst_group",
    "tail",
)
# Held-out rows without which a group is not called the worst, unless all are as small.
LEAST_GROUP = 10
# Leaves of the tree that finds groups, and the least share of the rows in one.
_LEAVES = 6
_LEAST_SHARE = 0.05


def found_leaves(X: Any, excess: Vector, weight: Vector, seed: int) -> Any:
    """A function from rows to numbers of groups, found where an excess is large."""
    dense = X if isinstance(X, np.ndarray) else X.toarray()
    least = max(20, int(_LEAST_SHARE * len(excess)))
    tree = DecisionTreeRegressor(
        max_leaf_nodes=_LEAVES, min_samples_leaf=min(least, max(1, len(excess) // 2)),
        random_state=seed,
    )  # fmt: skip
    tree.fit(dense, excess, sample_weight=weight)
    return lambda rows: tree.apply(rows if isinstance(rows, np.ndarray) else rows.toarray())


@dataclass(frozen=True)
class HeldOut:
    """What the models of a fold lose on rows that they have not seen.

    Attributes
    ----------
    losses : array of shape (n_models, n_rows)
    weight : array of shape (n_rows,)
    baseline : array of shape (n_rows,)
        What is attainable; zeros where nothing is subtracted.
    groups : array of shape (n_rows,)
        Labels of given or found groups; found ones have other names in each fold.
    """

    losses: Matrix
    weight: Vector
    baseline: Vector
    groups: Array


@dataclass(frozen=True)
class Choice:
    """What was chosen, and why.

    Attributes
    ----------
    best, reference : int
        Numbers of the chosen model and of the best mean fit.
    mean_loss, criterion, gain, gain_error : arrays of shape (n_models,)
        The held-out mean loss and criterion; by how much that is below the reference's, and the
        standard error of the paired difference.
    allowed : array of bool of shape (n_models,)
        Whether the mean loss is under the cap.
    """

    best: int
    reference: int
    mean_loss: Vector
    criterion: Vector
    gain: Vector
    gain_error: Vector
    allowed: npt.NDArray[np.bool_]


def choose(
    folds: list[HeldOut],
    is_mean_fit: npt.NDArray[np.bool_],
    criterion: str,
    tail: float,
    max_mean_loss: float,
) -> Choice:
    """Apply the rule to what was held out.

    Parameters
    ----------
    folds : list of HeldOut
    is_mean_fit : array of bool of shape (n_models,)
    criterion : one of `CRITERIA` but "auto"
    tail : float
        The share of the rows in a tail.
    max_mean_loss : float
        The cap, in units of the reference's mean loss.
    """
    losses = np.hstack([fold.losses for fold in folds])
    weight = np.concatenate([fold.weight for fold in folds])
    mean = losses @ weight / weight.sum()
    reference = int(np.flatnonzero(is_mean_fit)[np.argmin(mean[is_mean_fit])])
    values, errors = np.empty(mean.size), np.empty(mean.size)
    if criterion == "mean":
        values, gains = mean, losses[reference] - losses
        errors = np.array([_error(gain, weight) for gain in gains])
    else:
        baseline = np.concatenate([fold.baseline for fold in folds])
        if "excess" not in criterion:
            baseline = np.zeros_like(baseline)
        if criterion in ("tail", "tail_excess"):
            p = weight / weight.sum()
            values = np.array([tail_mean(row - baseline, p, tail) for row in losses])
            far = losses[reference] - baseline
            worst = far >= np.quantile(far, 1.0 - tail)
        else:
            values, worst = _worst_groups(folds, criterion, reference)
        errors = np.array(
            [_error((losses[reference] - row)[worst], weight[worst]) for row in losses]
        )
    gain = values[reference] - values
    # The mean loss may be 0, or below it for a loss of one's own.
    allowed = mean <= mean[reference] + (max_mean_loss - 1.0) * abs(mean[reference])
    best = int(np.flatnonzero(allowed)[np.argmin(values[allowed])])
    if not gain[best] > errors[best]:
        best = reference
    return Choice(best, reference, mean, values, gain, errors, allowed)


def _worst_groups(
    folds: list[HeldOut], criterion: str, reference: int
) -> tuple[Vector, npt.NDArray[np.bool_]]:
    """The worst group's mean for each model, and the rows of the reference's worst group.

    Given groups are those of all folds together. Found ones differ from fold to fold: the worst of
    each counts, in the mean. Groups of fewer than 10 rows are left out.
    """
    parts = folds
    if criterion != "found_group_excess":
        parts = [
            HeldOut(
                np.hstack([fold.losses for fold in folds]),
                *(
                    np.concatenate([getattr(fold, name) for fold in folds])
                    for name in ("weight", "baseline", "groups")
                ),
            )
        ]
    values, rows, total = 0.0, [], 0.0
    for part in parts:
        excess = part.losses - (part.baseline if "excess" in criterion else 0.0)
        codes = np.unique(part.groups, return_inverse=True)[1].reshape(-1)
        mass = np.bincount(codes, weights=part.weight)
        means = np.array([np.bincount(codes, weights=part.weight * row) for row in excess]) / mass
        means[:, ~eligible(codes, part.weight)] = -np.inf
        share = float(part.weight.sum())
        values, total = values + share * means.max(axis=1), total + share
        rows.append(codes == int(np.argmax(means[reference])))
    return values / total, np.concatenate(rows)  # type: ignore[return-value]


def _error(values: Vector, weight: Vector) -> float:
    """The standard error of a weighted mean; infinite for a single row.

    Whole weights are numbers of rows. For others ``sum w^2 r^2 / (sum w)^2`` estimates its square,
    whatever their unit. Either way ``m / (m - 1)`` allows for the mean of m rows.
    """
    total = float(weight.sum())
    away = values - float(weight @ values) / total
    if (weight == np.round(weight)).all():
        square, rows = float(weight @ away**2) / total**2, total
    else:
        square = float(weight**2 @ away**2) / total**2
        rows = total**2 / float(weight @ weight)
    return float(np.sqrt(square * rows / (rows - 1.0))) if rows > 1.0 + 1e-9 else np.inf


def eligible(codes: Array, weight: Vector) -> npt.NDArray[np.bool_]:
    """Which groups have enough rows to be called the worst; all where none has."""
    whole = (weight == np.round(weight)).all()
    sizes = np.bincount(codes, weights=weight if whole else None)
    enough = sizes >= LEAST_GROUP
    return enough if enough.any() else np.ones_like(enough)
