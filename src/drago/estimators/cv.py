"""`DRORegressorCV` and `DROClassifierCV`: levels chosen by what they do on held-out rows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import is_classifier
from sklearn.model_selection import check_cv
from sklearn.utils.metadata_routing import get_routing_for_object

from drago._validation import (
    check_groups,
    check_number,
    check_option,
    check_sample_weight,
    shown,
)
from drago.estimators.base import Array, Vector
from drago.estimators.classifier import DROClassifier
from drago.estimators.path import levels_of, robust_path, with_tail
from drago.estimators.regressor import DRORegressor
from drago.scorers import tail_mean, worst_group_mean
from drago.terms.losses import Loss

_CRITERIA = ("tail", "mean", "worst_group")


class _ChosenByCV:
    """The choice of the levels, before the fit on all rows."""

    warm_start = False
    baseline = group_columns = None
    best_params_: dict[str, Any]

    def _levels(self) -> dict[str, Any]:
        levels = dict(self.best_params_)
        tail = levels.pop("tail_fraction", None)
        own = self.uncertainty  # type: ignore[attr-defined]
        return {**levels, "uncertainty": own if tail is None else with_tail(own, tail)}

    def _n_threads(self) -> int | None:
        return None  # `n_jobs` are folds here

    def _solve(self, X: Any, y: Array, weight: Any, metadata: dict[str, Any], start: Any) -> None:
        self._choose(X, y, weight, metadata["sample_weight"], metadata["groups"])
        super()._solve(X, y, weight, metadata, start)  # type: ignore[misc]

    def _choose(self: Any, X: Any, y: Array, weight: Any, sample_weight: Any, groups: Any) -> None:
        """Solve the path on each fold's training rows and judge it on the others.

        These count by their `sample_weight` alone; class weights are a means of fitting.
        """
        n, classifies = X.shape[0], is_classifier(self)
        weight = np.ones(n) if weight is None else check_sample_weight(weight, n)
        judged = weight
        if sample_weight is not None or classifies:
            judged = np.ones(n) if sample_weight is None else check_sample_weight(sample_weight, n)
            judged = np.where(weight > 0, judged, 0.0)
        criterion = check_option("criterion", self.criterion, _CRITERIA)
        tail = check_number("criterion_tail", self.criterion_tail, low=0, high=1, open_low=True)
        if groups is not None:
            check_groups(groups, n)
            groups = np.asarray(groups)
        by = groups
        if criterion == "worst_group" and by is None:
            if not classifies:
                raise ValueError(
                    "criterion='worst_group' needs the group of each row: give groups= to fit."
                )
            by = y
        grid = {
            "tail_fractions": levels_of("tail_fractions", self.tail_fractions),
            "shift_costs": levels_of("shift_costs", self.shift_costs, "auto"),
            "l2_regs": levels_of("l2_regs", self.l2_regs, 1e-3),
        }
        settings = {
            **{name: None if values == [None] else values for name, values in grid.items()},
            "loss": self._loss(),
            "uncertainty": self.uncertainty,
            "divergence": self.divergence,
            "fit_intercept": self.fit_intercept,
            "constraint": self.constraint,
            "solver": self.solver,
            "tol": self.tol,
            "max_iter": self.max_iter,
            "time_limit": self.time_limit,
            "random_state": self._seed(),
            "verbose": max(int(self.verbose) - 1, 0),
            "device": self.device,
        }
        codes = self._encode(y)
        splitter = check_cv(self.cv, y, classifier=classifies)
        # Those that do not look at groups warn when they are given some.
        looks = get_routing_for_object(splitter).consumes("split", ["groups"])
        folds = [
            (_fold(train, n), _fold(test, n))
            for train, test in splitter.split(X, y, groups if looks else None)
        ]
        if not folds:
            raise ValueError(
                f"cv={shown(self.cv)} gives no splits; give a number of folds, a splitter, or "
                "pairs of training and test rows (a generator gives them once)."
            )
        columns = Parallel(n_jobs=self.n_jobs)(
            delayed(_held_out)(
                X, codes, weight, judged, groups, by, train, test, settings, criterion, tail
            )
            for train, test in folds
        )
        if self.verbose:
            for k, column in enumerate(columns):
                print(f"fold {k + 1}: {criterion} loss {min(column):.6g} to {max(column):.6g}")
        losses = np.array(columns).T
        self.cv_results_ = {
            "params": [
                {"tail_fraction": t, "shift_cost": c, "l2_reg": r}
                for t, c, r in itertools.product(*grid.values())
            ],
            "loss": losses,
            "mean_loss": losses.mean(axis=1),
        }
        self.best_index_ = int(np.argmin(self.cv_results_["mean_loss"]))
        self.best_params_ = self.cv_results_["params"][self.best_index_]


def _fold(rows: Any, n: int) -> Array:
    """The numbers of a fold's rows, which may be given as a list or a mask."""
    found = np.asarray(rows)
    if found.dtype == bool and found.shape == (n,):
        return np.flatnonzero(found)
    if found.ndim != 1 or found.size == 0 or found.dtype.kind not in "iu":
        raise ValueError(
            "cv must give pairs of training and test rows, at least one of each, by their numbers, "
            f"but gives {shown(rows)}."
        )
    if found.min() < -n or found.max() >= n:
        raise ValueError(f"cv gives rows up to {found.max()}, but there are {n} of them.")
    return found


def _held_out(
    X: Any,
    y: Array,
    weight: Vector,
    judged_by: Vector,
    groups: Array | None,
    by: Array | None,
    train: Array,
    test: Array,
    settings: dict[str, Any],
    criterion: str,
    tail: float,
) -> list[float]:
    """What each model of the path, fitted on `train`, loses on `test`."""
    loss: Loss = settings["loss"]
    fitted = train[weight[train] > 0]
    if loss.is_classification:
        lost = np.setdiff1d(y, y[fitted])
        if lost.size:
            raise ValueError(
                f"the training rows of a fold hold no row of class number {int(lost[0])}; use "
                "fewer folds, or a splitter that keeps every class in every fold."
            )
    path = robust_path(
        X[train],
        y[train],
        sample_weight=weight[train],
        groups=None if groups is None else groups[train],
        **settings,
    )
    judged = test[judged_by[test] > 0]
    p = judged_by[judged] / judged_by[judged].sum()
    held_out = []
    for coef, intercept in zip(path.coefs, path.intercepts):
        raw = X[judged] @ np.atleast_2d(coef).T + intercept
        losses = loss.evaluate(y[judged], np.ascontiguousarray(raw, dtype=np.float64))[0]
        if criterion == "worst_group":
            assert by is not None
            held_out.append(worst_group_mean(losses, p, by[judged]))
        else:
            held_out.append(tail_mean(losses, p, tail if criterion == "tail" else 1.0))
    return held_out


class DRORegressorCV(_ChosenByCV, DRORegressor):
    """`DRORegressor` with its levels chosen by cross-validation.

    For each fold a path of models (`drago.robust_path`) is fitted on its training rows, each from
    its neighbour's answer, and judged on the others; the levels that are best on average are fitted
    on all rows.

    Parameters
    ----------
    tail_fractions : array or None
        Levels of the `CVaR`, or of one over groups; None takes `uncertainty` as it is.
    shift_costs : array or None
        Numbers or "auto"; None is "auto" alone.
    l2_regs : array or None
        None is 1e-3 alone.
    criterion : {"tail", "mean", "worst_group"}
        What counts on the held-out rows: the mean loss of the worst `criterion_tail` of them, of
        all of them, or of the worst-off of the ``groups`` given to `fit`.
    criterion_tail : float in (0, 1]
    cv : int, splitter, iterable or None
        As everywhere in scikit-learn; None is 5 folds.
    n_jobs : int, optional
        Folds at a time.
    time_limit : float, optional
        Seconds for each fold, and for the fit on all rows.
    verbose : int
        1 prints a line for each fold and for each certificate of the fit on all rows, 2 also those
        of the folds.
    uncertainty, loss, divergence, fit_intercept, constraint, solver, tol, max_iter, \
random_state, device : as for `DRORegressor`

    Attributes
    ----------
    best_params_ : dict
        The "tail_fraction", "shift_cost" and "l2_reg" chosen.
    best_index_ : int
    cv_results_ : dict
        "params", a list of dicts; "loss", an array of shape (n_models, n_folds); "mean_loss".

    All others are as for `DRORegressor`.
    """

    def __init__(
        self,
        tail_fractions: Any = (1.0, 0.5, 0.2, 0.1),
        shift_costs: Any = None,
        l2_regs: Any = (1.0, 0.1, 1e-2, 1e-3, 1e-4),
        *,
        criterion: str = "tail",
        criterion_tail: float = 0.1,
        cv: Any = None,
        uncertainty: Any = "cvar",
        loss: Any = "squared",
        divergence: Any = "auto",
        fit_intercept: bool = True,
        constraint: Any = None,
        solver: Any = "auto",
        tol: float = 1e-4,
        max_iter: int | None = None,
        time_limit: float | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        device: Any = None,
    ) -> None:
        self.tail_fractions = tail_fractions
        self.shift_costs = shift_costs
        self.l2_regs = l2_regs
        self.criterion = criterion
        self.criterion_tail = criterion_tail
        self.cv = cv
        self.uncertainty = uncertainty
        self.loss = loss
        self.divergence = divergence
        self.fit_intercept = fit_intercept
        self.constraint = constraint
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.time_limit = time_limit
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.device = device


class DROClassifierCV(_ChosenByCV, DROClassifier):
    """`DROClassifier` with its levels chosen by cross-validation.

    For each fold a path of models (`drago.robust_path`) is fitted on its training rows, each from
    its neighbour's answer, and judged on the others; the levels that are best on average are fitted
    on all rows.

    Parameters
    ----------
    tail_fractions : array or None
        Levels of the `CVaR`, or of one over groups; None takes `uncertainty` as it is.
    shift_costs : array or None
        Numbers or "auto"; None is "auto" alone.
    l2_regs : array or None
        None is 1e-3 alone.
    criterion : {"tail", "mean", "worst_group"}
        What counts on the held-out rows: the mean loss of the worst `criterion_tail` of them, of
        all of them, or of the worst-off of the ``groups`` given to `fit`, the classes where none
        are given.
    criterion_tail : float in (0, 1]
    cv : int, splitter, iterable or None
        As everywhere in scikit-learn; None is 5 folds, with the classes in proportion.
    n_jobs : int, optional
        Folds at a time.
    time_limit : float, optional
        Seconds for each fold, and for the fit on all rows.
    verbose : int
        1 prints a line for each fold and for each certificate of the fit on all rows, 2 also those
        of the folds.
    uncertainty, divergence, fit_intercept, constraint, class_weight, solver, tol, max_iter, \
random_state, device : as for `DROClassifier`

    Attributes
    ----------
    best_params_ : dict
        The "tail_fraction", "shift_cost" and "l2_reg" chosen.
    best_index_ : int
    cv_results_ : dict
        "params", a list of dicts; "loss", an array of shape (n_models, n_folds); "mean_loss".

    All others are as for `DROClassifier`.
    """

    def __init__(
        self,
        tail_fractions: Any = (1.0, 0.5, 0.2, 0.1),
        shift_costs: Any = None,
        l2_regs: Any = (1.0, 0.1, 1e-2, 1e-3, 1e-4),
        *,
        criterion: str = "tail",
        criterion_tail: float = 0.1,
        cv: Any = None,
        uncertainty: Any = "cvar",
        divergence: Any = "auto",
        fit_intercept: bool = True,
        constraint: Any = None,
        class_weight: Any = None,
        solver: Any = "auto",
        tol: float = 1e-4,
        max_iter: int | None = None,
        time_limit: float | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        device: Any = None,
    ) -> None:
        self.tail_fractions = tail_fractions
        self.shift_costs = shift_costs
        self.l2_regs = l2_regs
        self.criterion = criterion
        self.criterion_tail = criterion_tail
        self.cv = cv
        self.uncertainty = uncertainty
        self.divergence = divergence
        self.fit_intercept = fit_intercept
        self.constraint = constraint
        self.class_weight = class_weight
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.time_limit = time_limit
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.device = device
