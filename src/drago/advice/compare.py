"""`compare`: fitted models side by side on rows that they have not seen."""

from __future__ import annotations

import warnings
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
from drago.estimators.groups import as_labels, given_names, labels_from
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
        with a linear model to folds of these rows; None counts plain losses. Where X is not a
        table of numbers and words (sparse, texts, times), excesses are unknown, and so are found
        groups.
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
    for name, model in models.items():
        check_is_fitted(
            model, msg=f"models[{name!r}], a %(name)s, is not fitted yet; call its 'fit' first."
        )
    kinds = {is_classifier(model) for model in models.values()}
    if len(kinds) > 1:
        labelling = [name for name, model in models.items() if is_classifier(model)]
        raise ValueError(
            f"models must all be classifiers or all be regressors, but of {shown(list(models))} "
            f"only {shown(labelling)} are classifiers."
        )
    for name, model in models.items():
        if is_classifier(model) and not hasattr(model, "predict_proba"):
            raise ValueError(
                f"models[{name!r}], a {type(model).__name__}, knows no probabilities, by which "
                "classifiers are judged; CalibratedClassifierCV gives them."
            )
    names = list(models)
    reference = names[0] if reference is None else reference
    if reference not in models:
        raise ValueError(f"reference must be one of {shown(names)}, but is {shown(reference)}.")
    named = given_names(groups, X)
    groups = labels_from(X, named, "groups") if named else as_labels(groups)
    losses = np.array([row_losses(model, X, y) for model in models.values()])
    n = losses.shape[1]
    weight = np.ones(n) if sample_weight is None else check_sample_weight(sample_weight, n)
    if groups is not None:
        check_groups(groups, n)
        groups = np.asarray(groups)
    target, loss, classes = _target(y, models[reference])
    codes = None if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    parts = np.zeros(n, dtype=np.int64)
    parts[np.random.default_rng(random_state).permutation(n)[: n // 2]] = 1
    found = None
    try:
        columns, values = Columns.of(X)
    except (ValueError, TypeError) as error:  # models may read it, we cannot
        warnings.warn(
            f"what is attainable and which groups are found is left out of the comparison: {error}",
            UserWarning,
            stacklevel=3,
        )
        attainable = np.zeros(n) if baseline is None else np.full(n, np.nan)
        if not isinstance(baseline, (str, type(None))):
            attainable = _given(baseline, n)
    else:
        design = columns.design(values)
        attainable = attained(baseline, design, target, loss, weight, codes, random_state)
        excess = losses[names.index(reference)] - attainable
        found = cross_found(design, excess, weight, parts, random_state)
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
        parts[there],
        None if found is None else found[:, there],
        errors,
    )
    return side_by_side(names, reference, judged, random_state)


def _target(y: Any, model: Any) -> tuple[Array, Loss, Array | None]:
    """The target as its loss takes it, the loss, and the classes."""
    values = np.asarray(y).reshape(-1)
    if not is_classifier(model):
        return values.astype(np.float64), Squared(), None
    classes = np.asarray(model.classes_)
    codes = np.searchsorted(classes, values)  # `row_losses` has refused other labels
    if classes.size <= 2:
        return codes.astype(np.float64), Logistic(), classes
    return codes.astype(np.int64), Multinomial(), classes


def attained(
    baseline: Any,
    design: Any,
    y: Array,
    loss: Loss,
    weight: Vector,
    groups: Array | None,
    seed: int,
) -> Vector:
    """What is attainable on each row."""
    if baseline is None:
        return np.zeros(y.shape[0])
    if isinstance(baseline, str) and baseline == "auto":
        return out_of_fold_losses("auto", design, y, loss, weight=weight, groups=groups, seed=seed)
    return _given(baseline, y.shape[0])


def _given(baseline: Any, n: int) -> Vector:
    found = np.asarray(baseline, dtype=np.float64)
    if found.shape != (n,):
        raise ValueError(
            f"baseline must be 'auto', None or an array of shape ({n},), but has shape "
            f"{found.shape}."
        )
    return found


def cross_found(design: Any, excess: Vector, weight: Vector, parts: Array, seed: int) -> Array:
    """For each of two parts, the groups of all rows by a tree of the other one."""
    found = np.zeros((2, excess.size), dtype=np.int64)
    for k in (0, 1):
        other = np.flatnonzero(parts != k)
        if other.size:
            found[k] = found_leaves(design[other], excess[other], weight[other], seed)(design)
    return found
