"""What is attainable on each row: the losses of another model that has not seen the row.

An excess over them tells rows that could be served better from rows that are noise. The losses are
out of fold throughout: one that was fitted on the row it judges would hide what is attainable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.utils.validation import has_fit_parameter
from threadpoolctl import threadpool_limits

from drago._validation import check_vector, shown
from drago.problem import DROProblem
from drago.solvers.solve import solve
from drago.terms.losses import Loss
from drago.terms.uncertainty import CVaR

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Judge = Callable[[Any], Matrix]
"""From features to raw predictions."""

N_FOLDS = 5
# Probabilities are kept that far from 0: one mistake of an overconfident model says little about
# what is attainable.
_LEAST_PROBABILITY = 1e-4
# Shares of the trees in their mixture with the linear fit.
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
# Of the linear fit, and of the trees, which have to be good quickly rather than perfect.
_L2_REG = 1e-3
_TREES = {"max_iter": 150, "max_leaf_nodes": 15, "n_iter_no_change": 8}
# Rows, and rows of the rarest class, from which on a part of them can tell when to stop; with fewer
# there are so many trees.
_LEAST_ROWS, _LEAST_OF_CLASS, _FEW_TREES = 500, 25, 50
# Entries of X up to which trees are grown by one thread: several wait for each other, for minutes
# on a busy machine.
_SMALL = 1 << 21


def folds(
    y: Array, classifies: bool, groups: Array | None, seed: int, count: int = N_FOLDS
) -> list[tuple[Array, Array]]:
    """Training and held-out rows: all classes and groups in every fold, where they are enough."""
    n = y.shape[0]
    count = max(2, min(count, n))
    labels = [values for values in (y if classifies else None, groups) if values is not None]
    codes = np.zeros(n, dtype=np.int64)
    for values in labels:
        found = np.unique(values, return_inverse=True)[1].reshape(-1)
        codes = codes * (int(found.max()) + 1) + found
    codes = np.unique(codes, return_inverse=True)[1].reshape(-1)
    sizes = np.bincount(codes)
    if labels and classifies and sizes[sizes > 0].min() < count:
        codes = np.unique(y, return_inverse=True)[1].reshape(-1)
        count = max(2, min(count, int(np.bincount(codes).min())))
    rest = np.zeros((n, 1))
    if labels and np.bincount(codes).min() >= count:
        return list(StratifiedKFold(count, shuffle=True, random_state=seed).split(rest, codes))
    return list(KFold(count, shuffle=True, random_state=seed).split(rest))


def out_of_fold_losses(
    model: Any,
    X: Any,
    y: Array,
    loss: Loss,
    *,
    weight: Vector | None = None,
    groups: Array | None = None,
    seed: int = 0,
    labels: Array | None = None,
    n_folds: int = N_FOLDS,
    with_groups: bool = True,
) -> Vector:
    """The loss of each row under a model that was fitted on the rows of other folds.

    Parameters
    ----------
    model : estimator, "linear" or "auto"
        A regressor, or a classifier with ``predict_proba``; the linear mean fit; "auto" is a
        mixture of boosted trees and the linear fit, with the share that does best on the rows of
        the other folds.
    X : array or sparse matrix of shape (n, n_features)
        For an estimator also a frame.
    y : array of shape (n,)
        As the loss takes it: numbers, or the numbers of the classes.
    loss : Loss
    weight : array of shape (n,), optional
        Rows of weight 0 are judged, and not fitted on.
    groups : array of shape (n,), optional
        Folds hold all of them in proportion, where they are enough. For "auto" they are features
        too: what is attainable on a row may depend on its group, also where the model that is
        judged by it may not.
    seed : int
    labels : array of shape (n_classes,), optional
        What the classes are called where an estimator is fitted, in their order; their numbers
        where they are not given.
    n_folds : int
    with_groups : bool
        Whether "auto" has the groups as features.
    """
    weight = np.ones(y.shape[0]) if weight is None else weight
    splits = folds(y, loss.is_classification, groups, seed, n_folds)
    extra = groups if with_groups and is_auto(model) else None
    features = X if extra is None else with_dummies(X, extra)
    return judges_of(model, features, y, loss, weight, splits, seed, labels)[0]


def is_auto(model: Any) -> bool:
    """Whether it is the mixture of trees and the linear fit."""
    return isinstance(model, str) and model == "auto"


def judges_of(
    model: Any,
    X: Any,
    y: Array,
    loss: Loss,
    weight: Vector,
    splits: list[tuple[Array, Array]],
    seed: int,
    labels: Array | None,
) -> tuple[Vector, list[Judge]]:
    """Out-of-fold losses, and for each fold what predicts rows that are none of its training rows.

    Parameters
    ----------
    model, X, y, loss, weight, seed, labels
        See `out_of_fold_losses`; for "auto" X has the groups as features already.
    splits : list of pairs of arrays
        Training rows and those that they judge.
    """
    if not is_auto(model):
        raw, judges = _out_of_fold(model, X, y, loss, weight, splits, labels)
        return loss.evaluate(y, raw)[0], judges
    trees = _trees(y, loss, len(splits), seed)
    dense = as_dense(X)
    with threadpool_limits(1 if dense.size <= _SMALL else None, user_api="openmp"):
        both = [
            _out_of_fold(each, rows, y, loss, weight, splits, None)
            for each, rows in (("linear", X), (trees, dense))
        ]
    (linear, linear_judges), (grown, tree_judges) = both
    mixtures = [
        loss.evaluate(y, np.ascontiguousarray((1.0 - share) * linear + share * grown))[0]
        for share in _SHARES
    ]
    out, judges = np.empty(y.shape[0]), []
    for k, (train, test) in enumerate(splits):
        best = min(range(len(_SHARES)), key=lambda j: float(weight[train] @ mixtures[j][train]))
        out[test] = mixtures[best][test]
        judges.append(_mixed(linear_judges[k], tree_judges[k], _SHARES[best]))
    return out, judges


def _mixed(linear: Judge, trees: Judge, share: float) -> Judge:
    return lambda rows: (1.0 - share) * linear(rows) + share * trees(as_dense(rows))


def as_dense(X: Any) -> Any:
    """An array of it, where it is sparse."""
    return X.toarray() if hasattr(X, "tocsr") else X


def with_dummies(X: Any, groups: Array) -> Any:
    """Features, and the group of each row as 0 and 1."""
    codes = np.unique(groups, return_inverse=True)[1].reshape(-1)
    return dummies(X, codes, int(codes.max()) + 1)


def dummies(X: Any, codes: Array, count: int) -> Any:
    """Features, and 0 and 1 for each of so many groups but the first."""
    found = (codes[:, None] == np.arange(1, count)).astype(X.dtype)
    if isinstance(X, np.ndarray):
        return np.hstack([X, found])
    from scipy import sparse

    return sparse.hstack([X, found], format="csr")


def _trees(y: Array, loss: Loss, n_folds: int, seed: int) -> Any:
    """Boosted trees that know when to stop, where there are rows enough to tell."""
    fitted, kind = y.size * (n_folds - 1) // n_folds, HistGradientBoostingRegressor
    stops = fitted >= _LEAST_ROWS
    if loss.is_classification:
        kind = HistGradientBoostingClassifier
        stops = stops and np.bincount(y.astype(np.intp)).min() >= _LEAST_OF_CLASS
    settings = _TREES if stops else {**_TREES, "max_iter": _FEW_TREES}
    return kind(**settings, early_stopping=stops, random_state=seed)


def _out_of_fold(
    model: Any,
    X: Any,
    y: Array,
    loss: Loss,
    weight: Vector,
    splits: list[tuple[Array, Array]],
    labels: Array | None,
) -> tuple[Matrix, list[Judge]]:
    """Raw predictions for each row by a model of the other folds, and these models."""
    out, judges = np.empty((y.shape[0], loss.n_outputs(y))), []
    for train, test in splits:
        fitted = train[weight[train] > 0]
        if isinstance(model, str):
            judge = _linear(X[fitted], y[fitted], loss, weight[fitted], out.shape[1])
        else:
            judge = _of_model(model, X, y, loss, weight, fitted, labels)
        out[test] = judge(_rows(X, test))
        judges.append(judge)
    return out, judges


def _rows(X: Any, index: Array) -> Any:
    return X.iloc[index] if hasattr(X, "iloc") else X[index]


def _linear(X: Any, y: Array, loss: Loss, weight: Vector, n_outputs: int) -> Judge:
    """Raw predictions of the linear mean fit for other rows."""
    present, codes = np.unique(y, return_inverse=True) if loss.is_classification else (y[:0], y)
    if present.size == 1 and n_outputs == 1:
        odds = np.log((1.0 - _LEAST_PROBABILITY) / _LEAST_PROBABILITY)
        only = float(odds if present[0] else -odds)
        return lambda rows: np.full((rows.shape[0], 1), only)
    coef, intercept = np.zeros((X.shape[1], 1)), np.zeros(1)
    mean, spread = np.zeros(1), np.ones(1)
    if present.size != 1:
        if isinstance(X, np.ndarray):  # in the units of their spread, which any solver likes
            mean, spread = X.mean(axis=0), X.std(axis=0)
            spread[~(spread > 0)] = 1.0
            X = (X - mean) / spread
        problem = DROProblem(
            X, codes, loss=loss, uncertainty=CVaR(1.0), shift_cost=1.0, l2_reg=_L2_REG,
            sample_weight=weight, fit_intercept=True,
        )  # fmt: skip
        result = solve(problem, tol=1e-4)
        coef, intercept = np.atleast_2d(result.coef).T, np.atleast_1d(result.intercept)

    def judge(rows: Any) -> Matrix:
        scaled = (rows - mean) / spread if isinstance(rows, np.ndarray) else rows
        raw = scaled @ coef + intercept
        if n_outputs == 1:
            return raw
        # Classes that are not among the rows of the fit are not impossible.
        least = np.logaddexp.reduce(raw, axis=1, keepdims=True) + np.log(_LEAST_PROBABILITY)
        whole = np.repeat(least, n_outputs, axis=1)
        whole[:, present] = raw
        return whole

    return judge


def _of_model(
    model: Any,
    X: Any,
    y: Array,
    loss: Loss,
    weight: Vector,
    fitted: Array,
    labels: Array | None,
) -> Judge:
    """Raw predictions of an estimator that was fitted on some rows."""
    own = clone(model)
    given = {}
    if np.ptp(weight[fitted]) > 0 and has_fit_parameter(own, "sample_weight"):
        given["sample_weight"] = weight[fitted]
    if loss.is_classification and np.unique(y[fitted]).size < 2:
        raise ValueError(
            "a cross-fitted model needs at least 2 rows of each class with a positive weight, "
            f"because it is fitted without some of the rows; rows of each class: "
            f"{_counts(y[weight > 0], labels)}. Give more rows, or no baseline (with a set such "
            "as CVaR(0.2) in place of 'excess_tail')."
        )
    here = _rows(X, fitted)
    if labels is None or not loss.is_classification:
        own.fit(here, y[fitted], **given)
    else:
        own.fit(here, labels[y[fitted].astype(np.intp)], **given)
    if not loss.is_classification:
        name = f"the predictions of {shown(model)}"
        return lambda rows: check_vector(name, own.predict(rows), rows.shape[0])[:, None]
    n_classes = max(loss.n_outputs(y), 2)
    known = np.asarray(own.classes_)
    places = (known if labels is None else np.searchsorted(labels, known)).astype(np.intp)

    def judge(rows: Any) -> Matrix:
        whole = np.zeros((rows.shape[0], n_classes))
        whole[:, places] = np.asarray(own.predict_proba(rows), dtype=np.float64)
        logs = np.log(np.clip(whole, _LEAST_PROBABILITY, 1.0 - _LEAST_PROBABILITY))
        return logs if loss.has_class_hessian else logs[:, 1:] - logs[:, :1]

    return judge


def _counts(y: Array, labels: Array | None) -> str:
    """How many rows each class has."""
    codes, counts = np.unique(y.astype(np.intp), return_counts=True)
    names = codes if labels is None else labels[codes]
    return shown(dict(zip(names.tolist(), counts.tolist())))


def check_baseline(baseline: Any, classifies: bool) -> Any:
    """None, "auto", or an estimator of the right kind."""
    if baseline is None or (isinstance(baseline, str) and baseline == "auto"):
        return baseline
    if isinstance(baseline, str) or not hasattr(baseline, "fit"):
        raise ValueError(
            "baseline must be None, 'auto' or an estimator, but "
            f"{shown(baseline)} was given; numbers for each row go to fit(X, y, baseline=...)."
        )
    return check_kind("baseline", baseline, classifies)


def check_kind(name: str, model: Any, classifies: bool) -> Any:
    """An estimator of the right kind for the target."""
    if classifies and not (is_classifier(model) and hasattr(model, "predict_proba")):
        raise ValueError(
            f"{name} must be a classifier with predict_proba here, but {shown(model)} was given."
        )
    if not classifies and not is_regressor(model):
        raise ValueError(f"{name} must be a regressor here, but {shown(model)} was given.")
    return model
