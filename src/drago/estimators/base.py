"""What the estimators share: scikit-learn's conventions on one side, `DROProblem` on the other."""

from __future__ import annotations

import copy
import numbers
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator, RegressorMixin, is_classifier
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted, validate_data

from drago._interrupts import interruptible
from drago._validation import (
    check_flag,
    check_groups,
    check_integer,
    check_number,
    check_sample_weight,
    check_vector,
    refuse_masked,
    shown,
)
from drago.estimators.baseline import check_baseline, out_of_fold_losses
from drago.estimators.callbacks import CallbackSupport, FitTask
from drago.estimators.collapse import measure_skill, warn_of_collapse
from drago.estimators.dask import DaskSupport, is_dask, losses_of
from drago.estimators.data import TrainingData, scaled
from drago.estimators.groups import as_labels, labels_from, without_columns
from drago.estimators.plain import PlainSupport
from drago.estimators.presets import as_set, own_baseline
from drago.estimators.report import WorstCaseReport, make_report
from drago.estimators.sources import SourceSupport, require_alone
from drago.loop.messages import warn
from drago.problem import DROProblem
from drago.result import SolverResult, Status
from drago.solvers.solve import solve
from drago.sources.source import Source
from drago.terms.losses import Loss
from drago.terms.uncertainty import as_uncertainty

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class DROEstimator(SourceSupport, DaskSupport, PlainSupport, CallbackSupport, BaseEstimator):
    """What both estimators share."""

    uncertainty: Any
    divergence: Any
    shift_cost: float | str
    l2_reg: float
    fit_intercept: bool
    constraint: Any
    baseline: Any
    group_columns: Any
    solver: Any
    tol: float
    max_iter: int | None
    time_limit: float | None
    warm_start: bool
    random_state: Any
    n_jobs: int | None
    verbose: int
    device: Any

    def set_params(self, **params: Any) -> Any:
        """Set parameters by name; ``uncertainty__tail_fraction`` also where the set is a name."""
        named = params.get("uncertainty", self.uncertainty)
        if isinstance(named, str) and any(key.startswith("uncertainty__") for key in params):
            params["uncertainty"] = as_set(named)
            if self.baseline is None:  # that of a preset goes with it
                params.setdefault("baseline", own_baseline(named))
        return super().set_params(**params)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # ---------------------------------------------------------------- for the two below

    def _encode(self, y: Array) -> Array:
        """The target as the loss takes it."""
        raise NotImplementedError  # pragma: no cover

    def _loss(self) -> Loss:
        """The loss of the fitted model."""
        raise NotImplementedError  # pragma: no cover

    def _shapes(self, coef: Array, intercept: Any, dtype: Any) -> dict[str, Any]:
        """The fitted attributes of coefficients in the solver's shapes."""
        raise NotImplementedError  # pragma: no cover

    def _levels(self) -> dict[str, Any]:
        """What there is to choose: the set, the shift cost and the penalty."""
        return {
            "uncertainty": as_set(self.uncertainty),
            "shift_cost": self.shift_cost,
            "l2_reg": self.l2_reg,
        }

    def _weight_of_labels(self, y: Any) -> Any:
        """What the weights of rows with these targets are multiplied by."""
        return 1.0

    def _take_groups(self, X: Any, groups: Any) -> tuple[Any, Any]:
        """X without the columns that hold groups, and the label of each row."""
        if isinstance(groups, str):
            raise ValueError(
                f"groups must have a label for each row, but is the name {shown(groups)}; give "
                f"group_columns={shown(groups)} to the estimator for a column of X."
            )
        if self.group_columns is None:
            wanted = getattr(self, "uncertainty", None)  # none where it is chosen among candidates
            if groups is None and wanted is not None and as_set(wanted).needs_groups:
                raise ValueError(
                    f"uncertainty={shown(self.uncertainty)} needs to know the group of each row: "
                    "give groups= to fit (in a pipeline with the step's name, as in "
                    "droclassifier__groups=), or group_columns= to the estimator for columns of X."
                )
            return X, as_labels(groups)
        if groups is not None:
            raise ValueError(
                f"groups= was given to fit, and group_columns={shown(self.group_columns)} too: "
                "give one of them."
            )
        return without_columns(X, self.group_columns), labels_from(X, self.group_columns)

    def _attainable(
        self, X: Any, y: Array, weight: Vector | None, codes: Array | None, given: Any
    ) -> Vector | None:
        """What is subtracted from the losses of the training rows."""
        if given is not None:
            return check_vector("baseline", given, X.shape[0])
        model = check_baseline(self.baseline, is_classifier(self)) or own_baseline(self.uncertainty)
        if model is None:
            return None
        return out_of_fold_losses(
            model, X, y, self._loss(), weight=weight, groups=codes, seed=self._seed()
        )

    def _n_threads(self) -> int | None:
        if self.n_jobs is None:
            return None
        if not isinstance(self.n_jobs, numbers.Integral):
            raise TypeError(
                f"n_jobs must be an integer or None, but {shown(self.n_jobs)} was given."
            )
        return effective_n_jobs(self.n_jobs)

    # ---------------------------------------------------------------- fitting

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A fit that fails leaves the model that was fitted before.

        So does an interrupted one, unless it has an answer already.
        """
        before = {name: value for name, value in vars(self).items() if name.endswith("_")}
        try:
            yield
        except BaseException:
            if getattr(self, "result_", None) is not before.get("result_"):
                raise
            for name in [name for name in vars(self) if name.endswith("_")]:
                del self.__dict__[name]
            self.__dict__.update(before)
            raise

    def _check_data(self, X: Any, y: Any, **options: Any) -> tuple[Any, Array]:
        refuse_masked("X", X)
        refuse_masked("y", y)
        shape = np.asarray(y).shape
        if len(shape) == 2 and shape[1] > 1:
            kind = "Regressor" if isinstance(self, RegressorMixin) else "Classifier"
            raise ValueError(
                f"{type(self).__name__} fits one target, but y has {shape[1]} columns; fit a model "
                f"for each column, as sklearn.multioutput.MultiOutput{kind} does."
            )
        return validate_data(
            self, X, y, accept_sparse="csr", dtype=(np.float64, np.float32), **options
        )

    @interruptible
    def _solve(self, X: Any, y: Array, weight: Any, metadata: dict[str, Any], start: Any) -> None:
        """Solve the problem and set the fitted attributes."""
        n, groups, loss = X.shape[0], metadata["groups"], self._loss()
        weight = None if weight is None else check_sample_weight(weight, n)
        codes = None if groups is None else check_groups(groups, n)
        target, levels = self._encode(y), self._levels()
        baseline = self._attainable(X, target, weight, codes, metadata["baseline"])
        began = time.perf_counter()  # the other model has a time of its own
        data = TrainingData(X, target, weight, codes, baseline)
        if not loss.is_users:
            data = data.merged()
        problem = DROProblem(
            data.X,
            data.y,
            loss=loss,
            divergence=self.divergence,
            **levels,
            sample_weight=data.weight,
            groups=data.groups,
            fit_intercept=self.fit_intercept,
            constraint=self.constraint,
            baseline=data.baseline,
        )
        task = FitTask(self, X, y, metadata, lambda w, b: self._shapes(w, b, X.dtype))
        warm_start = self._start(start, data, problem)
        result = self._run(problem, task, time.perf_counter() - began, warm_start)
        q = data.on_all_rows(problem.on_all_rows(result.dual_weights))
        fitted = self._shapes(result.coef, result.intercept, X.dtype)
        self.__dict__.pop("source_columns_", None)
        self._keep(problem, result, q, fitted, levels["uncertainty"], baseline, task)

    def _run(self, problem: DROProblem, task: FitTask, spent: float, start: Any) -> SolverResult:
        """Solve a problem by the settings of the estimator."""
        return solve(
            problem,
            self.solver,
            tol=self.tol,
            max_iter=self.max_iter,
            time_limit=self.time_limit,
            time_spent=spent,
            random_state=self._seed(),
            callback=task.certificate if task.has_callbacks else None,
            warm_start=start,
            n_threads=self._n_threads(),
            verbose=int(self.verbose) if isinstance(self.verbose, bool) else self.verbose,
            device=self.device,
        )

    def _keep(
        self,
        problem: DROProblem,
        result: SolverResult,
        q: Vector,
        fitted: dict[str, Any],
        uncertainty: Any,
        baseline: Vector | None,
        task: FitTask,
    ) -> None:
        """Set the fitted attributes, and look at what was found."""
        self.__dict__.update(fitted)
        self.dual_weights_ = q
        self.dual_gap_ = result.gap
        self.uncertainty_ = copy.deepcopy(as_uncertainty(uncertainty))
        self.baseline_ = baseline
        self.divergence_ = problem.divergence
        self.loss_ = problem.loss
        self.shift_cost_ = problem.shift_cost
        self.n_iter_ = result.n_iter
        self.history_ = result.history
        self.result_ = replace(result, dual_weights=q)
        task.end()
        if result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt(result.message)
        self.skill_ = measure_skill(problem, result, self.time_limit)
        if self.skill_.has_collapsed and result.status is Status.OPTIMAL:
            warn_of_collapse(self.skill_, problem.baseline is not None)

    def _seed(self) -> int:
        if self.random_state is None:
            return 0
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(np.iinfo(np.int32).max))
        return check_integer("random_state", self.random_state, low=0)

    def _last_fit(self, n_features: int) -> Any:
        """Where to start: what was fitted before, where that is wanted and of use."""
        last = getattr(self, "result_", None)
        if not check_flag("warm_start", self.warm_start) or last is None:
            return None
        return last if last.coef.shape[-1] == n_features else None

    def _start(self, last: SolverResult | None, data: TrainingData, problem: DROProblem) -> Any:
        """The last fit as a start; its weights too, where they are of as many rows."""
        if last is None or last.coef.size != problem.n_features * problem.n_outputs:
            return None
        intercept = last.intercept if problem.fit_intercept else 0.0
        if last.dual_weights.size != data.n_given:
            return last.coef, intercept
        kept = problem.on_all_rows(np.ones(problem.n_samples)) > 0
        q = data.on_distinct_rows(last.dual_weights)[kept]
        return replace(last, intercept=intercept, dual_weights=q)

    # ---------------------------------------------------------------- after it

    def _raw_prediction(self, X: Any) -> Matrix:
        """Raw predictions in the dtype of X and the coefficients, shape (n, n_outputs)."""
        check_is_fitted(self)
        if isinstance(X, Source):
            return self._raw_of_source(X)
        if is_dask(X):
            return self._lazily(X, "_raw_prediction")
        refuse_masked("X", X)
        X = without_columns(X, self.group_columns)
        X = validate_data(self, X, accept_sparse="csr", dtype=(np.float64, np.float32), reset=False)
        raw = safe_sparse_dot(X, np.atleast_2d(self.coef_).T, dense_output=True)
        return raw + self.intercept_

    def losses(self, X: Any, y: Any = None) -> Vector:
        """The loss of each row, the one that was fitted; shape (n,). A source has its own y."""
        if isinstance(X, Source):
            require_alone(X, y=y)
            return self._gather(X).losses
        if is_dask(X):
            return losses_of(self, X, y)
        raw = np.ascontiguousarray(self._raw_prediction(X), dtype=np.float64)
        refuse_masked("y", y)
        shape = np.shape(y)
        if shape not in ((len(raw),), (len(raw), 1)):
            raise ValueError(
                f"y must have one entry for each of the {raw.shape[0]} rows of X, but has shape "
                f"{shape}."
            )
        return self.loss_.evaluate(self._encode(np.asarray(y).reshape(-1)), raw)[0]

    def worst_case_report(
        self,
        X: Any,
        y: Any = None,
        *,
        groups: Any = None,
        sample_weight: Any = None,
        baseline: Any = None,
        tail_fraction: float | None = None,
        n_rows: int = 10,
    ) -> WorstCaseReport:
        """Which rows and groups of some data this model serves worst.

        The weights are the worst-case ones for the losses of *this* data, under the set, the
        divergence, the shift cost and the class weights of the fit. For the training rows they
        are in `dual_weights_` already.

        Parameters
        ----------
        X, y : the data, training or held out
            Or a source, which has its own y, groups, weights and baseline.
        groups : array of shape (n,), optional
            Labels to report losses by; needed for a `Grouped` set. The `group_columns` of a frame
            where there are some.
        sample_weight : array of shape (n,), optional
        baseline : array of shape (n,), optional
            Subtracted from the losses before the worst-case weights are found, as in a fit with a
            baseline. `baseline_` for the training rows.
        tail_fraction : float in (0, 1], optional
            The share of the rows whose mean loss is reported as the tail's; a `CVaR`'s own where
            that is below 1, else 0.1.
        n_rows : int
            How many of the rows to name.

        Returns
        -------
        WorstCaseReport
        """
        if isinstance(X, Source):
            require_alone(X, y=y, groups=groups, sample_weight=sample_weight, baseline=baseline)
            losses, y, groups, sample_weight, baseline = self._gather(X)
        elif is_dask(X):
            raise ValueError(
                "worst_case_report takes rows in memory, but a Dask collection was given: give it "
                "some of them (X.partitions[:k].compute()), or look at dual_weights_."
            )
        else:
            losses = self.losses(X, y)
        if baseline is None and getattr(self, "baseline_", None) is not None:
            warn(
                "the model was fitted for the excess over a baseline, but none was given: the "
                "weights are those of the plain losses; give baseline=, model.baseline_ for the "
                "training rows.",
                UserWarning,
            )
        if groups is None and self.group_columns is not None and hasattr(X, "columns"):
            groups = labels_from(X, self.group_columns)
        groups = as_labels(groups)
        n, uncertainty, codes = losses.size, self.uncertainty_, None
        weight = np.ones(n)
        if sample_weight is not None:
            weight = scaled(check_sample_weight(sample_weight, n))
        weight = weight * self._weight_of_labels(y)
        there = weight > 0
        p = weight / weight.sum()
        if uncertainty.needs_groups and groups is None:
            raise ValueError(f"{uncertainty!r} needs to know the group of each row: give groups=.")
        if groups is not None:
            check_groups(groups, n)
            groups = np.asarray(groups)
            codes = check_groups(groups[there], int(there.sum()))
        if tail_fraction is None:
            own = uncertainty.tail_share or 1.0
            tail_fraction = own if own < 1 else 0.1
        q = np.zeros(n)
        oracle = uncertainty.oracle(p[there], self.divergence_, codes)
        excess = losses
        if baseline is not None:
            excess = losses - check_vector("baseline", baseline, n)
        q[there] = oracle.weights(excess[there], self.shift_cost_)
        return make_report(
            losses,
            p,
            q,
            tail_fraction=check_number(
                "tail_fraction", tail_fraction, low=0, high=1, open_low=True
            ),
            n_rows=check_integer("n_rows", n_rows, low=0),
            index=np.asarray(X.index) if hasattr(X, "iloc") else np.arange(n),
            groups=groups,
        )
