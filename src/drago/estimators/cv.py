"""`DRORegressorCV` and `DROClassifierCV`: levels chosen by what they do on held-out rows."""

from __future__ import annotations

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
    check_vector,
    shown,
)
from drago.estimators.base import Array, Vector
from drago.estimators.baseline import check_baseline, out_of_fold_losses
from drago.estimators.candidates import Fold, candidates_of
from drago.estimators.choice import CRITERIA, HeldOut, choose
from drago.estimators.classifier import DROClassifier
from drago.estimators.path import levels_of
from drago.estimators.regressor import DRORegressor
from drago.estimators.source_baseline import losses_on_source
from drago.estimators.source_folds import SourceFold, folds_wanted, sample_for
from drago.estimators.sources import say_sampled
from drago.sources.numbers import Sample
from drago.sources.source import Source


class _ChosenByCV:
    """The choice of the levels, before the fit on all rows."""

    warm_start = False
    uncertainty = "mild"  # until one is chosen
    shift_cost: Any = "auto"
    l2_reg: Any = 1e-3
    best_params_: dict[str, Any]

    def _levels(self) -> dict[str, Any]:
        names = ("uncertainty", "shift_cost", "l2_reg")
        return {name: self.best_params_[name] for name in names}

    def _attainable(self: Any, *given: Any) -> Vector | None:
        if self.best_params_["baseline"] is None:
            return None
        return self._baseline_of_rows

    def _attainable_on(self: Any, source: Source) -> Any:
        if self.best_params_["baseline"] is None:
            return 0.0
        return None if "baseline" in source.names else self._baseline_of_rows

    def _n_threads(self) -> int | None:
        return None  # `n_jobs` are folds here

    def _solve_source(self: Any, source: Source, given: dict[str, Any]) -> None:
        self._require_own(source, given)
        folds_wanted(self.cv)
        if is_classifier(self):
            self.classes_ = self._classes_of(source)
        sample = sample_for(source, self._loss(), self._seed(), max(1, np.size(self.l2_regs)))
        say_sampled(source, sample, "candidates were fitted on all rows, but judged")
        y = self.classes_[sample.y] if is_classifier(self) else sample.y
        metadata = {name: getattr(sample, name) for name in ("groups", "sample_weight", "baseline")}
        is_whole = self._choose(sample.X, y, sample.sample_weight, metadata, (source, sample))
        try:
            super()._solve_source(source, given)  # type: ignore[misc]
        finally:
            del self._baseline_of_rows
        if not is_whole:
            raise KeyboardInterrupt("the choice was interrupted; it rests on the folds before.")

    def _solve(self, X: Any, y: Array, weight: Any, metadata: dict[str, Any], start: Any) -> None:
        is_whole = self._choose(X, y, weight, metadata)
        try:
            super()._solve(X, y, weight, metadata, start)  # type: ignore[misc]
        finally:
            del self._baseline_of_rows
        if not is_whole:
            raise KeyboardInterrupt("the choice was interrupted; it rests on the folds before.")

    def _choose(
        self: Any,
        X: Any,
        y: Array,
        weight: Any,
        metadata: dict[str, Any],
        whole: tuple[Source, Sample] | None = None,
    ) -> bool:
        """Fit all candidates on each fold's training rows, and judge them on the others.

        These count by their `sample_weight` alone; class weights are a means of fitting. With
        `whole` the rows are a sample of a source, on all of whose rows models are fitted. Returns
        whether all folds were done.
        """
        n, classifies, seed = X.shape[0], is_classifier(self), self._seed()
        groups, sample_weight = metadata["groups"], metadata["sample_weight"]
        weight = np.ones(n) if weight is None else check_sample_weight(weight, n)
        judged = weight
        if sample_weight is not None or classifies:
            judged = np.ones(n) if sample_weight is None else check_sample_weight(sample_weight, n)
            judged = np.where(weight > 0, judged, 0.0)
        if groups is not None:
            check_groups(groups, n)
            groups = np.asarray(groups)
        criterion = check_option("criterion", self.criterion, CRITERIA)
        if criterion == "auto":
            criterion = "found_group_excess" if groups is None else "worst_group_excess"
        by = groups
        if criterion.startswith("worst_group") and by is None:
            if not classifies:
                raise ValueError(
                    f"criterion={criterion!r} needs the group of each row: give groups= to fit."
                )
            by = y
        tail = check_number("criterion_tail", self.criterion_tail, low=0, high=1, open_low=True)
        cap = check_number("max_mean_loss", self.max_mean_loss, low=1, finite=False)
        model = check_baseline(self.baseline, classifies)
        given = metadata["baseline"]
        given = None if given is None else check_vector("baseline", given, n)
        has_baseline = model is not None or given is not None
        candidates = candidates_of(self.candidates, groups is not None, has_baseline)
        regs = sorted(levels_of("l2_regs", self.l2_regs, 1e-3), reverse=True)
        codes, loss = self._encode(y), self._loss()
        needs = "excess" in criterion or any(each.is_excess for each in candidates)
        self._baseline_of_rows = attainable = np.zeros(n) if given is None else given
        if model is not None and given is None and needs:
            if whole is None or whole[1].is_whole:
                attainable = out_of_fold_losses(
                    model, X, codes, loss, weight=weight, groups=groups, seed=seed
                )
                self._baseline_of_rows = attainable
            else:
                labels = self.classes_ if classifies else None
                source, sample = whole
                every, fitted = losses_on_source(model, source, loss, seed=seed + 1, labels=labels)
                say_sampled(source, fitted, f"baseline={shown(model)} was fitted")
                self._baseline_of_rows, attainable = every, every[sample.numbers]
        settings = ("divergence", "fit_intercept", "constraint")
        solving = ("solver", "tol", "max_iter", "time_limit", "device")
        about: dict[str, Any] = {}
        kind: type[Fold] = Fold
        if whole is not None:
            kind, about = (
                SourceFold,
                {
                    "source": whole[0],
                    "sample": whole[1],
                    "n_folds": folds_wanted(self.cv),
                    "labels": self.classes_ if classifies else None,
                    "subtracted": self._baseline_of_rows,
                },
            )
        fold = kind(
            X=X,
            y=codes,
            weight=weight,
            judged_by=judged,
            groups=groups,
            by=by,
            attainable=attainable,
            loss=loss,
            candidates=candidates,
            regs=regs,
            baseline=model if given is None and needs else None,
            finds_groups=criterion == "found_group_excess",
            seed=seed,
            settings={name: getattr(self, name) for name in settings},
            solving={
                **{name: getattr(self, name) for name in solving},
                "random_state": seed,
                "verbose": max(int(self.verbose) - 1, 0),
            },
            **about,
        )
        if isinstance(fold, SourceFold):
            splits = fold.splits()
        else:
            splits = self._splits(X, y, groups, classifies)
        found, is_whole = self._each_fold(fold, splits)
        is_mean = np.repeat([each.is_mean_fit for each in candidates], len(regs))
        choice = choose(found, is_mean, criterion, tail, cap)
        subtracted = self.baseline if given is None else "given to fit"
        params = [
            {
                "uncertainty": each.uncertainty,
                "shift_cost": cost,
                "l2_reg": reg,
                "baseline": subtracted if each.is_excess else None,
            }
            for each, cost in zip(candidates, fold.costs())
            for reg in regs
        ]
        self.cv_results_ = {
            "params": params,
            **{name: [each[name] for each in params] for name in params[0]},
            "mean_loss": choice.mean_loss,
            "criterion": choice.criterion,
            "gain": choice.gain,
            "gain_error": choice.gain_error,
            "allowed": choice.allowed,
            **{
                f"split{k}_mean_loss": one.losses @ one.weight / one.weight.sum()
                for k, one in enumerate(found)
            },
        }
        self.criterion_, self.reference_index_ = criterion, choice.reference
        self.best_index_, self.best_params_ = choice.best, params[choice.best]
        return is_whole

    def _splits(self: Any, X: Any, y: Array, groups: Any, classifies: bool) -> list[Any]:
        splitter, n = check_cv(self.cv, y, classifier=classifies), X.shape[0]
        # Those that do not look at groups warn when they are given some.
        looks = get_routing_for_object(splitter).consumes("split", ["groups"])
        found = [
            (_fold(train, n), _fold(test, n))
            for train, test in splitter.split(X, y, groups if looks else None)
        ]
        if not found:
            raise ValueError(
                f"cv={shown(self.cv)} gives no splits; give a number of folds, a splitter, or "
                "pairs of training and test rows (a generator gives them once)."
            )
        return found

    def _each_fold(self: Any, fold: Fold, splits: list[Any]) -> tuple[list[HeldOut], bool]:
        """What is held out in each fold; after an interrupt, in those that were done before."""
        found: list[HeldOut] = []
        try:
            n_jobs = 1 if isinstance(fold, SourceFold) else self.n_jobs  # each reads the same files
            parallel = Parallel(n_jobs=n_jobs, return_as="generator")
            for k, one in enumerate(parallel(delayed(fold)(*split) for split in splits)):
                found.append(one)
                if self.verbose:
                    mean = one.losses @ one.weight / one.weight.sum()
                    print(
                        f"fold {k + 1} of {len(splits)}: mean loss {mean.min():.6g} to "
                        f"{mean.max():.6g} over {mean.size} models",
                        flush=True,
                    )
        except KeyboardInterrupt:
            if not found:
                raise
            return found, False
        return found, True


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


class DRORegressorCV(_ChosenByCV, DRORegressor):
    """`DRORegressor` with its robustness chosen by cross-validation, under a cap on the mean loss.

    Parameters
    ----------
    candidates : "auto" or a list
        What is tried beside the mean fit. An entry is a set, its name, or a dict with "uncertainty"
        and, if you like, "shift_cost" and "baseline" ("auto": the excess over the `baseline` below;
        None: plain losses). "auto" is "mild" and ``CVaR(0.9)``; with a baseline also ``CVaR`` of
        0.5, 0.3 and 0.1 of the excess; with groups also ``Grouped(Simplex())`` at several shift
        costs.
    l2_regs : array or None
        Penalties, each tried with each candidate; None is 1e-3 alone.
    criterion : {"auto", "worst_group_excess", "found_group_excess", "tail_excess", "mean", \
"worst_group", "tail"}
        What counts on the held-out rows; "auto" is the first with groups, the second without.

        - "worst_group_excess": mean excess of the worst-off of the ``groups`` given to `fit`
        - "found_group_excess": the same for groups that a small tree finds in each fold
        - "tail_excess": mean excess of the worst `criterion_tail` of the rows
        - "mean": mean loss of all rows
        - "worst_group", "tail": as above, of the plain loss; they reward collapsed fits
    criterion_tail : float in (0, 1]
    max_mean_loss : float >= 1
        The cap: at most so many times the held-out mean loss of the best mean fit.
    cv : int, splitter, iterable or None
        As everywhere in scikit-learn; None is 5 folds. For a source give only the number of folds;
        rows are assigned to them by a hash of row number and `random_state`.
    baseline : "auto", an estimator or None
        What the excess is over, as for `DRORegressor`, fitted out of fold within each fold. None:
        plain losses throughout.
    n_jobs : int, optional
        Folds at a time.
    time_limit : float, optional
        Seconds for each model.
    verbose : int
        1 prints a line for each fold and for each certificate of the fit on all rows, 2 also those
        of the folds.
    loss, group_columns, divergence, fit_intercept, constraint, solver, tol, max_iter, \
random_state, device : as for `DRORegressor`

    Attributes
    ----------
    best_params_ : dict
        The "uncertainty", "shift_cost", "l2_reg" and "baseline" chosen.
    best_index_, reference_index_ : int
        The chosen model, and the best mean fit.
    criterion_ : str
        The criterion that "auto" stands for.
    cv_results_ : dict
        A column for each name, ``pandas.DataFrame(cv_results_)`` makes a frame of it: "params" and
        each of them, the held-out "mean_loss" (and "split0_mean_loss", ...) and "criterion", "gain"
        (by how much that is below the reference's) with its standard error "gain_error", and
        "allowed", whether it is under the cap.

    All others are as for `DRORegressor`.

    Notes
    -----
    Of the models under the cap, the one with the least criterion is taken if it beats the best mean
    fit by more than one standard error of the paired difference; otherwise the best mean fit is.
    Whole-number weights count as copies of the row; other weights are relative only. Groups of
    fewer than 10 held-out rows are not called the worst, unless all are as small. An interrupt ends
    the search: the choice rests on the folds that were done, and `KeyboardInterrupt` is raised
    after the fit on all rows.

    Examples
    --------
    >>> import numpy as np, drago
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> drago.DRORegressorCV(["mild"], cv=3, baseline=None).fit(X, X[:, 0]).criterion_
    'found_group_excess'
    """

    def __init__(
        self,
        candidates: Any = "auto",
        *,
        l2_regs: Any = (1.0, 0.1, 1e-2, 1e-3, 1e-4),
        criterion: str = "auto",
        criterion_tail: float = 0.1,
        max_mean_loss: float = 1.02,
        cv: Any = None,
        baseline: Any = "auto",
        group_columns: Any = None,
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
        self.candidates = candidates
        self.l2_regs = l2_regs
        self.criterion = criterion
        self.criterion_tail = criterion_tail
        self.max_mean_loss = max_mean_loss
        self.cv = cv
        self.baseline = baseline
        self.group_columns = group_columns
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
    """`DROClassifier` with its robustness chosen by cross-validation, under a cap on the mean loss.

    Parameters
    ----------
    candidates : "auto" or a list
        What is tried beside the mean fit. An entry is a set, its name, or a dict with "uncertainty"
        and, if you like, "shift_cost" and "baseline" ("auto": the excess over the `baseline` below;
        None: plain losses). "auto" is "mild" and ``CVaR(0.9)``; with a baseline also ``CVaR`` of
        0.5, 0.3 and 0.1 of the excess; with groups also ``Grouped(Simplex())`` at several shift
        costs.
    l2_regs : array or None
        Penalties, each tried with each candidate; None is 1e-3 alone.
    criterion : {"auto", "worst_group_excess", "found_group_excess", "tail_excess", "mean", \
"worst_group", "tail"}
        What counts on the held-out rows; "auto" is the first with groups, the second without.

        - "worst_group_excess": mean excess of the worst-off group (of the classes without groups)
        - "found_group_excess": the same for groups that a small tree finds in each fold
        - "tail_excess": mean excess of the worst `criterion_tail` of the rows
        - "mean": mean loss of all rows
        - "worst_group", "tail": as above, of the plain loss; they reward collapsed fits
    criterion_tail : float in (0, 1]
    max_mean_loss : float >= 1
        The cap: at most so many times the held-out mean loss of the best mean fit.
    cv : int, splitter, iterable or None
        As everywhere in scikit-learn; None is 5 folds, with the classes in proportion. For a source
        give only the number of folds; see `DRORegressorCV`.
    baseline : "auto", an estimator or None
        What the excess is over, as for `DROClassifier`, fitted out of fold within each fold. None:
        plain losses throughout.
    n_jobs : int, optional
        Folds at a time.
    time_limit : float, optional
        Seconds for each model.
    verbose : int
        1 prints a line for each fold and for each certificate of the fit on all rows, 2 also those
        of the folds.
    group_columns, class_weight, divergence, fit_intercept, constraint, solver, tol, max_iter, \
random_state, device : as for `DROClassifier`

    Attributes
    ----------
    best_params_ : dict
        The "uncertainty", "shift_cost", "l2_reg" and "baseline" chosen.
    best_index_, reference_index_ : int
        The chosen model, and the best mean fit.
    criterion_ : str
        The criterion that "auto" stands for.
    cv_results_ : dict
        A column for each name, ``pandas.DataFrame(cv_results_)`` makes a frame of it: "params" and
        each of them, the held-out "mean_loss" (and "split0_mean_loss", ...) and "criterion", "gain"
        (by how much that is below the reference's) with its standard error "gain_error", and
        "allowed", whether it is under the cap.

    All others are as for `DROClassifier`.

    Notes
    -----
    The choice is made as by `DRORegressorCV`, see there.

    Examples
    --------
    >>> import numpy as np, drago
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> drago.DROClassifierCV(["mild"], cv=3, baseline=None).fit(X, X[:, 0] > 0).criterion_
    'found_group_excess'
    """

    def __init__(
        self,
        candidates: Any = "auto",
        *,
        l2_regs: Any = (1.0, 0.1, 1e-2, 1e-3, 1e-4),
        criterion: str = "auto",
        criterion_tail: float = 0.1,
        max_mean_loss: float = 1.02,
        cv: Any = None,
        baseline: Any = "auto",
        group_columns: Any = None,
        class_weight: Any = None,
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
        self.candidates = candidates
        self.l2_regs = l2_regs
        self.criterion = criterion
        self.criterion_tail = criterion_tail
        self.max_mean_loss = max_mean_loss
        self.cv = cv
        self.baseline = baseline
        self.group_columns = group_columns
        self.class_weight = class_weight
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
