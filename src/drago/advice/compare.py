"""`compare`: fitted models side by side on rows that they have not seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from drago._interrupts import interruptible
from drago._validation import check_groups, check_sample_weight, shown
from drago.advice.table import Comparison, Judged, calibration_error, side_by_side
from drago.estimators.baseline import out_of_fold_losses
from drago.estimators.choice import found_leaves
from drago.estimators.columns import Columns
from drago.estimators.groups import as_labels, labels_from
from drago.scorers import row_losses
from drago.terms.losses import Logistic, Loss, Multinomial, Squared

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]


@interruptible
def compare(
    models: dict[str, Any],
    X: Any,
    y: Any,
    *,
    groups: Any = None,
    sample_weight: Any = None,
    baseline: Any = "auto",
    reference: str | None = None,
    random_state: int = 0,
) -> Comparison:
    """Compare fitted models on rows that none of them has seen.

    Parameters
    ----------
    models : dict
        Names and fitted scikit-learn models, pipelines included: classifiers with probabilities, or
        regressors.
    X : array or frame of shape (n, n_features)
    y : array of shape (n,)
    groups : array of shape (n,) or (n, n_columns), str or list of str, optional
        Labels, several columns of them to be crossed, or names of columns of X.
    sample_weight : array of shape (n,), optional
    baseline : "auto", array of shape (n,) or None
        What is attainable on each row, which an excess is over: "auto" fits boosted trees mixed
        with a linear model to folds of these rows; None counts plain losses.
    reference : str, optional
        The model that the others are compared with; the first one where it is not given.
    random_state : int

    Returns
    -------
    Comparison

    Examples
    --------
    >>> import numpy as np
    >>> import drago
    >>> from sklearn.linear_model import LinearRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> y = X[:, 0] + rng.normal(size=300)
    >>> models = {"mean": LinearRegression(), "robust": drago.DRORegressor()}
    >>> fitted = {name: model.fit(X[:200], y[:200]) for name, model in models.items()}
    >>> drago.compare(fitted, X[200:], y[200:], groups=X[200:, 1] > 0)
    Comparison(mean, robust; 100 rows)
    """
    if not isinstance(models, dict) or not models:
        raise ValueError(
            f"models must be a dict of names and fitted models, but {shown(models)} was given."
        )
    for model in models.values():
        check_is_fitted(model)
    kinds = {is_classifier(model) for model in models.values()}
    if len(kinds) > 1:
        raise ValueError("models must be classifiers, or regressors, but some are either.")
    names = list(models)
    reference = names[0] if reference is None else reference
    if reference not in models:
        raise ValueError(f"reference must be one of {shown(names)}, but is {shown(reference)}.")
    if isinstance(groups, str) or (isinstance(groups, list) and _are_names(groups, X)):
        groups = labels_from(X, groups)
    groups = as_labels(groups)
    losses = np.array([row_losses(model, X, y) for model in models.values()])
    n = losses.shape[1]
    weight = np.ones(n) if sample_weight is None else check_sample_weight(sample_weight, n)
    if groups is not None:
        check_groups(groups, n)
        groups = np.asarray(groups)
    target, loss, classes = _target(y, kinds.pop())
    columns, values = Columns.of(X)
    design = columns.design(values)
    attainable = attained(baseline, design, target, loss, weight, random_state)
    found, parts = cross_found(
        design, losses[names.index(reference)] - attainable, weight, random_state
    )
    errors = np.full(len(names), np.nan)
    if classes is not None:
        for k, model in enumerate(models.values()):
            p = np.asarray(model.predict_proba(X), dtype=np.float64)
            codes = np.searchsorted(model.classes_, np.asarray(y).reshape(-1))
            errors[k] = calibration_error(p, codes, weight)
    there = weight > 0
    judged = Judged(
        losses[:, there],
        weight[there],
        attainable[there],
        None if groups is None else groups[there],
        found[there],
        parts[there],
        errors,
    )
    return side_by_side(names, reference, judged, random_state)


def _are_names(groups: list[Any], X: Any) -> bool:
    return hasattr(X, "columns") and all(name in set(X.columns) for name in groups)


def _target(y: Any, classifies: bool) -> tuple[Array, Loss, Array | None]:
    """The target as its loss takes it, the loss, and the classes."""
    values = np.asarray(y).reshape(-1)
    if not classifies:
        return values.astype(np.float64), Squared(), None
    classes, codes = np.unique(values, return_inverse=True)
    if classes.size <= 2:
        return codes.astype(np.float64), Logistic(), classes
    return codes.astype(np.int64), Multinomial(), classes


def attained(baseline: Any, design: Any, y: Array, loss: Loss, weight: Vector, seed: int) -> Vector:
    """What is attainable on each row."""
    if baseline is None:
        return np.zeros(y.shape[0])
    if isinstance(baseline, str) and baseline == "auto":
        return out_of_fold_losses("auto", design, y, loss, weight=weight, seed=seed)
    found = np.asarray(baseline, dtype=np.float64)
    if found.shape != (y.shape[0],):
        raise ValueError(
            f"baseline must be 'auto', None or an array of shape ({y.shape[0]},), but has shape "
            f"{found.shape}."
        )
    return found


def cross_found(design: Any, excess: Vector, weight: Vector, seed: int) -> tuple[Array, Array]:
    """Found groups of two halves of the rows, each by a tree of the other half."""
    n = excess.size
    parts = np.zeros(n, dtype=np.int64)
    parts[np.random.default_rng(seed).permutation(n)[: n // 2]] = 1
    found = np.zeros(n, dtype=np.int64)
    for k in (0, 1):
        here, there = np.flatnonzero(parts != k), np.flatnonzero(parts == k)
        if here.size and there.size:
            tree = found_leaves(design[here], excess[here], weight[here], seed)
            found[there] = tree(design[there])
    return found, parts
