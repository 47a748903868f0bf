"""Who is served worse than they could be: groups that a small tree finds, judged on other rows."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier, is_regressor
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.multiclass import type_of_target

from drago._validation import (
    check_groups,
    check_integer,
    check_option,
    check_sample_weight,
    check_vector,
    is_missing,
    refuse_masked,
    refuse_model,
    shown,
)
from drago.estimators.baseline import check_kind, folds, out_of_fold_losses
from drago.estimators.columns import Columns, is_frame
from drago.estimators.dask import drawn as drawn_rows
from drago.estimators.dask import is_dask
from drago.estimators.data import scaled
from drago.estimators.group_table import FoundGroups, judge
from drago.estimators.groups import as_labels, given_names, labels_from
from drago.estimators.rules import numbers_of, rules_of
from drago.estimators.sources import drawn
from drago.sources.source import Source
from drago.terms.losses import Logistic, Loss, Multinomial, Squared

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]

TASKS = ("auto", "regression", "classification")
# Two rows to look for groups, two to judge them.
_LEAST_ROWS = 4
# Smallest group: that many rows, or that share of those searched.
_LEAST_SIZE, _LEAST_SHARE = 20, 0.03
# Different numbers from which on a target of whole numbers is no longer taken for labels.
_MANY_LABELS = 20


def find_groups(
    X: Any,
    y: Any = None,
    model: Any = None,
    *,
    max_groups: int = 8,
    min_size: int | None = None,
    baseline: Any = "auto",
    groups: Any = None,
    sample_weight: Any = None,
    task: str = "auto",
    random_state: Any = 0,
) -> FoundGroups:
    """Find groups of rows that a model serves worse than they could be served.

    The excess of a row is its loss under the model less its loss under a flexible baseline, both of
    models that have not seen the row: what is noise for both cancels. A small regression tree of
    the excess on the features is fitted to one half of the rows; its leaves are groups with a rule
    in words, and are judged on the other half alone. The loss is ``1/2 (prediction - y)^2``, or the
    log loss of the probabilities (those of an estimator at least 1e-4).

    Parameters
    ----------
    X : array or frame of shape (n, n_features)
        Of a frame, columns of numbers, bools and categories or words. What is missing is a category
        of its own, and goes to the side of a split of numbers where it fits: "age <= 30 or
        missing". Or a source, which has its own y, groups and weights: a sample of at most 100,000
        of its rows is searched, or as many as fill a quarter of its memory limit.
    y : array of shape (n,)
        Numbers or labels.
    model : estimator, optional
        A regressor, or a classifier with ``predict_proba``; pipelines are taken too. It is cloned
        and fitted on other folds than those it is judged on, with their weights where its ``fit``
        takes some. None is the linear mean fit of the scaled numbers and the categories, missing
        numbers at the median.
    max_groups : int
        Most leaves of the tree.
    min_size : int, optional
        Fewest rows of a group among those searched: 3% of them, and at least 20, where it is not
        given.
    baseline : "auto", estimator or None
        A model that shows what is attainable. "auto" is a mixture of boosted trees and the linear
        fit, chosen on other folds; None looks for groups by the loss itself, also where nothing
        can be done about it.
    groups : array of shape (n,), str or list of str, optional
        Labels that all folds and both halves are to hold in proportion, such as regions; or names
        of columns of X, which stay features.
    sample_weight : array of shape (n,), optional
        Rows of weight 0 are left out.
    task : {"auto", "regression", "classification"}
        "auto" asks the model; without one, y is a label where it is not a number, or a whole one of
        at most 20 different ones.
    random_state : int, RandomState or None
        Draws the folds and the halves; None is 0.

    Returns
    -------
    FoundGroups

    Notes
    -----
    Groups are found on one half of the rows and measured on the other, so their means are not
    flattered by the search. Intervals are by Student's t (Welch's for the difference to all rows)
    at level ``0.05 / n_groups``: all intervals of a column hold together with a confidence of about
    95% (Bonferroni). They allow for other rows of the same kind, not for other fits of the models.
    For few rows with a few very large losses they are too short, most of all at the upper end.
    Where the baseline predicts worse than the model, an excess above that of all rows may still be
    negative. A group therefore stands out only if its excess is above 0 as well.

    Examples
    --------
    >>> import numpy as np
    >>> import drago
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(1000, 3))
    >>> X[:, 0] = rng.random(1000) < 0.1  # a minority, for whom things are the other way round
    >>> y = np.where(X[:, 0] == 1, -1.0, 1.0) * X[:, 1] + 0.1 * rng.normal(size=1000)
    >>> found = drago.find_groups(X, y, max_groups=2)
    >>> found
    FoundGroups(2 groups, 1 of them worse off, found on 500 rows, judged on 500)
    >>> found.rules
    ['x0 > 0.5', 'x0 <= 0.5']
    >>> found.labels([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    array([0, 1])
    """
    refuse_model(X, "call find_groups(X, y, model).")
    if isinstance(X, Source):
        given = {"y": y, "groups": groups, "sample_weight": sample_weight}
        rows = drawn(X, "groups were found", _seed(random_state), task, **given)
        whole = find_groups(
            rows.frame(), rows.y, model, max_groups=max_groups, min_size=min_size,
            baseline=baseline, groups=rows.groups, sample_weight=rows.sample_weight, task=task,
            random_state=random_state,
        )  # fmt: skip
        drawn_from = None if rows.is_whole else rows.n_rows
        return replace(whole, judged_on=rows.numbers[whole.judged_on], drawn_from=drawn_from)
    if is_dask(X):
        some = drawn_rows(
            X, y, "groups were found", _seed(random_state), sample_weight=sample_weight,
            groups=groups,
        )  # fmt: skip
        whole = find_groups(
            some.X, some.y, model, max_groups=max_groups, min_size=min_size, baseline=baseline,
            groups=some.groups, sample_weight=some.sample_weight, task=task,
            random_state=random_state,
        )  # fmt: skip
        drawn_from = None if some.is_whole else some.n_rows
        return replace(whole, judged_on=some.numbers[whole.judged_on], drawn_from=drawn_from)
    max_groups = check_integer("max_groups", max_groups, low=1)
    refuse_masked("X", X)
    refuse_masked("y", y)
    X = _checked(X)
    columns, values = Columns.of(X)
    judges = {name: each for name, each in (("model", model), ("baseline", baseline))
              if _is_estimator(name, each)}  # fmt: skip
    y, classes = _target(y, X.shape[0], _classifies(judges.get("model"), y, task))
    loss = _loss(classes)
    for name, each in judges.items():
        check_kind(name, each, classes is not None)
    weight = np.ones(X.shape[0])
    if sample_weight is not None:
        weight = scaled(check_sample_weight(sample_weight, X.shape[0]))
    named = given_names(groups, X)
    groups = labels_from(X, named, "groups") if named else as_labels(groups)
    codes = None if groups is None else check_groups(groups, X.shape[0])
    seed = _seed(random_state)

    design = columns.design(values)

    def losses(each: Any) -> Vector:
        rows = design if isinstance(each, str) else X
        return out_of_fold_losses(
            each, rows, y, loss, weight=weight, groups=codes, seed=seed, labels=classes
        )

    own = losses("linear" if model is None else model)
    excess = own if baseline is None else own - losses(baseline)
    here, there = _halves(y, classes is not None, codes, weight, seed)
    if min_size is None:
        least = max(_LEAST_SIZE, int(np.ceil(_LEAST_SHARE * here.size)))
    else:
        least = check_integer("min_size", min_size, low=1)
    rules = rules_of(
        columns,
        [column[here] for column in values],
        excess[here],
        weight[here],
        max_groups=max_groups,
        min_size=least,
        seed=seed,
    )
    number = numbers_of(rules, values)
    found = np.array([
        np.average(excess[here], weights=weight[here] * (number[here] == k))
        for k in range(len(rules))
    ])  # fmt: skip
    order = np.argsort(-found, kind="stable")
    number = np.argsort(order)[number]
    rules = [rules[k] for k in order]
    words = [rule.words(columns) for rule in rules]
    judged = (number[there], weight[there], own[there], excess[there])
    table = {
        "group": np.arange(len(rules)),
        "rule": np.array(words, dtype=object),
        **judge(*judged, len(rules)),
        "found": found[order],
    }
    return FoundGroups(
        rules=words,
        table=table,
        overall={
            "loss": float(np.average(own[there], weights=weight[there])),
            "excess": float(np.average(excess[there], weights=weight[there])),
        },
        stands_out=(table["above_low"] > 0) & (table["excess_low"] > 0),
        n_found_on=here.size,
        judged_on=there,
        min_size=least,
        is_excess=baseline is not None,
        feature_names=columns.names,
        _columns=columns,
        _rules=rules,
    )


# ------------------------------------------------------------------------------ what is given


def _checked(X: Any) -> Any:
    """An array of numbers, or a frame with rows and columns."""
    if not is_frame(X):
        return check_array(
            X, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=_LEAST_ROWS,
            input_name="X",
        )  # fmt: skip
    if X.shape[0] < _LEAST_ROWS or X.shape[1] == 0:
        raise ValueError(
            f"X must have at least {_LEAST_ROWS} rows and one feature, but has shape {X.shape}: "
            f"{X.shape[0]} sample(s), {X.shape[1]} feature(s)."
        )
    return X


def _classifies(model: Any, y: Any, task: str) -> bool:
    """Whether y holds labels."""
    if check_option("task", task, TASKS) != "auto":
        return task == "classification"
    if model is not None and (is_classifier(model) or is_regressor(model)):
        return is_classifier(model)
    y = np.asarray(y)
    if _are_numbers(y):
        y = y.astype(np.float64)
    if y.dtype.kind not in "biuf":
        return True
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        return False  # refused as numbers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many classes: that is asked for below
        kind = type_of_target(y)
    return kind == "binary" or (kind == "multiclass" and np.unique(y).size <= _MANY_LABELS)


def _are_numbers(y: Array) -> bool:
    if y.dtype.kind != "O":
        return False
    return all(isinstance(value, (int, float)) for value in y.ravel())


def _target(y: Any, n: int, classifies: bool) -> tuple[Array, Array | None]:
    """The target as a loss takes it, and the classes where there are some."""
    if y is None:
        raise ValueError("find_groups requires y to be passed, but the target y is None.")
    shape = np.asarray(y).shape
    if len(shape) == 2 and shape[1] != 1:
        raise ValueError(f"y must be one target, shape ({n},), but has shape {shape}.")
    labels = column_or_1d(y, warn=True)
    if labels.shape[0] != n:
        raise ValueError(
            f"y must have one entry per row, shape ({n},), but has shape {labels.shape}."
        )
    if not classifies:
        return check_vector("y", labels, n), None
    missing = np.fromiter(map(is_missing, labels), bool, n)
    if missing.any():
        raise ValueError(
            f"y contains {int(missing.sum())} missing labels (NaN or None), the first at "
            f"{int(missing.argmax())}; leave out these rows."
        )
    classes, codes = np.unique(labels, return_inverse=True)
    if classes.size < 2:
        only = shown(classes.tolist()[0])
        raise ValueError(f"y must hold at least two classes, but holds {only} only.")
    return (codes.astype(np.float64) if classes.size == 2 else codes.astype(np.int64)), classes


def _loss(classes: Array | None) -> Loss:
    if classes is None:
        return Squared()
    return Logistic() if classes.size == 2 else Multinomial()


def target_of(y: Any, n: int, task: str) -> tuple[Array, Loss, Array | None]:
    """The target as its loss takes it, the loss, and the classes where there are some."""
    target, classes = _target(y, n, _classifies(None, y, task))
    return target, _loss(classes), classes


def _is_estimator(name: str, model: Any) -> bool:
    """Whether it is one, and neither None nor, for a baseline, "auto"."""
    if model is None or (name == "baseline" and isinstance(model, str) and model == "auto"):
        return False
    if isinstance(model, (str, type)) or not hasattr(model, "fit"):
        allowed = "None or an estimator" if name == "model" else "'auto', an estimator or None"
        raise ValueError(f"{name} must be {allowed}, but {shown(model)} was given.")
    return True


def _seed(random_state: Any) -> int:
    if random_state is None:
        return 0
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(np.iinfo(np.int32).max))
    return check_integer("random_state", random_state, low=0)


def _halves(
    y: Array, classifies: bool, groups: Array | None, weight: Vector, seed: int
) -> tuple[Array, Array]:
    """Rows to search and rows to judge, of those with weight; classes and groups in proportion."""
    there = np.flatnonzero(weight > 0)
    if there.size < _LEAST_ROWS:
        raise ValueError(
            f"at least {_LEAST_ROWS} rows must have a positive weight, but {there.size} have."
        )
    part = None if groups is None else groups[there]
    # Another seed than that of the folds, which are to lie across the halves.
    here, other = folds(y[there], classifies, part, seed + 1, count=2)[0]
    return there[here], there[other]
