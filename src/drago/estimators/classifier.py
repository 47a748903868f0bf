"""`DROClassifier`."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets

from drago._validation import check_sample_weight, shown
from drago.estimators.base import Array, DROEstimator, Matrix, Vector
from drago.estimators.callbacks import with_callbacks
from drago.estimators.dask import is_dask
from drago.estimators.data import scaled
from drago.estimators.sources import require_alone
from drago.sources.source import Source
from drago.terms.losses import Logistic, Loss, Multinomial


class DROClassifier(ClassifierMixin, DROEstimator):
    """Logistic regression that stays good for the worst-served part of the data.

    The rows get new weights q, chosen to make the loss as large as the uncertainty set Q allows;
    the model is fitted for those weights:

    ``min over w, b  max over q in Q  sum_i q_i loss(y_i, x_i w + b) - nu D(q || p) +
    (mu/2) ||w||^2``

    p are the normal (nominal) weights, D measures how far q is from p, nu is `shift_cost` and mu is
    `l2_reg`. The mean fit is the ordinary fit, with q = p. The result comes with a proof of how
    close it is to the minimum. The loss is the logistic one for two classes and the multinomial one
    for more.

    Parameters
    ----------
    uncertainty : {"mild", "worst_group", "excess_tail"}, a set, or a set's short name
        How pessimistic the fit is: which new weights of the rows it must do well under. Start with
        "mild"; use "worst_group" if you know the groups, "excess_tail" if you do not. Or give an
        uncertainty set such as ``CVaR(0.2)``. "mild" is ``ESRM(0.4)``: the
        worst row counts 1.2 times, the best one 0.8 times. "worst_group" is
        ``Grouped(Simplex())``, which needs ``groups`` in `fit` or `group_columns`; with
        ``groups=y`` the classes are the groups. "excess_tail" is ``CVaR(0.2)`` with
        ``baseline="auto"``. Short names: "cvar" (``CVaR(0.1)``), "extremile", "esrm", "chi2_ball",
        "kl_ball", "simplex". A ``CVaR`` of a small tail without a baseline often collapses to a
        constant model, see `skill_`.
    divergence : {"auto", "chi2", "kl"} or Divergence
        How the distance between new and normal weights is measured. "auto": "kl" for `KLBall`,
        otherwise "chi2".
    shift_cost : float >= 0 or "auto"
        The nu of the formula, in the unit of the loss. 0 allows every reweighting in the set at no
        cost; larger values keep the fit closer to an ordinary one. "auto": 0.1 times the mean loss
        of the best constant prediction (1.0 times for `Grouped` without a baseline).
    l2_reg : float >= 0
        The mu of the formula. Losses are averages here: this is `LogisticRegression`'s
        ``1 / (n C)``.
    fit_intercept : bool
        The intercept is not penalised.
    constraint : L2Ball, Box, NonNegative or None
        Limits on the coefficients.
    baseline : None, "auto" or an estimator
        A flexible model to compare with. It is cross-fitted (5 folds), and its loss on each row is
        subtracted, so that the fit attends to rows that can be predicted better and not to noise.
        "auto" is a mixture of boosted trees and a linear model, which uses the groups as features
        where there are some.
    group_columns : str, list of str or None
        Columns of a frame that hold the groups, in place of ``groups`` in `fit`. They are not
        used as features.
    class_weight : dict, "balanced" or None
        Multiplies the sample weights, and so changes the weights that the worst case starts from.
    solver : str or a settings object, such as ``drago.Drago()``
        See `drago.solve`.
    tol : float >= 0
        Certified relative gap at which to stop.
    max_iter : int, optional
    time_limit : float, optional
        Seconds.
    warm_start : bool
        Start from the last fit, where the classes are the same.
    random_state : int, RandomState or None
        Seed of the solvers that use random numbers; None is 0, so that a fit can be repeated.
    n_jobs : int, optional
        Threads for what is large enough to gain by them; None leaves them to the solver, -1 takes
        all cores.
    verbose : int
        1 prints a line for each certificate, and shows progress on rows in files in between.
    device : None or a device of torch, such as "cuda"
        Where to solve, see `drago.solve`; None is the processor, with compiled code.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        The labels, of rows of positive weight.
    class_weight_ : dict
        The factor for the rows of each label.
    coef_ : array of shape (1, n_features) or (n_classes, n_features)
        In the dtype of X, as `intercept_`.
    intercept_ : array of shape (1,) or (n_classes,)
    dual_weights_ : array of shape (n,)
        The weights of the training rows in the worst case: which rows decide the model. 0 for
        rows of weight 0.
    baseline_ : array of shape (n,) or None
        What was subtracted from the losses of the training rows.
    skill_ : tuple (fit, mean_fit)
        Skill of this fit and of the ordinary fit with the same `l2_reg`: ``1 - mean loss / mean
        loss of the best constant`` on the training rows (at most 10,000 of them). 1 is perfect, 0
        is no better than a constant. The second is computed only if the first is less than 0.5,
        else NaN. A `CollapseWarning` tells of a solved fit with less than half of the second.
    dual_gap_ : float
        Proven bound on how far the objective is from its minimum, in the unit of the loss.
    uncertainty_, divergence_, shift_cost_, loss_ : objects and a float
        What was used in the fit, with presets and "auto" replaced by what they stand for.
    n_iter_ : int
    history_ : History
        The certificates during the solve, in order.
    result_ : SolverResult
        All that the solver returned, in float64.
    n_features_in_, feature_names_in_ : as everywhere in scikit-learn

    Notes
    -----
    There is no ``partial_fit``; see `DRORegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> from drago import CVaR, DROClassifier
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> model = DROClassifier(CVaR(0.5), l2_reg=0.1).fit(X, ["no", "no", "yes", "yes"])
    >>> model.predict([[0.2], [2.8]]).tolist()
    ['no', 'yes']
    """

    def __init__(
        self,
        uncertainty: Any = "mild",
        *,
        divergence: Any = "auto",
        shift_cost: float | str = "auto",
        l2_reg: float = 1e-3,
        fit_intercept: bool = True,
        constraint: Any = None,
        baseline: Any = None,
        group_columns: Any = None,
        class_weight: Any = None,
        solver: Any = "auto",
        tol: float = 1e-4,
        max_iter: int | None = None,
        time_limit: float | None = None,
        warm_start: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        device: Any = None,
    ) -> None:
        self.uncertainty = uncertainty
        self.divergence = divergence
        self.shift_cost = shift_cost
        self.l2_reg = l2_reg
        self.fit_intercept = fit_intercept
        self.constraint = constraint
        self.baseline = baseline
        self.group_columns = group_columns
        self.class_weight = class_weight
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.time_limit = time_limit
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.device = device

    @with_callbacks
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        groups: Any = None,
        baseline: Any = None,
    ) -> DROClassifier:
        """Fit the model.

        Parameters
        ----------
        X : array, sparse matrix or frame of shape (n, n_features), or a source
            A source (`drago.read_parquet` and its like) has its own y, weights, groups and
            baseline, and need not fit memory. Dask collections are fitted on the workers of the
            current client; so are y, weights, groups and baseline that come with them.
        y : array of shape (n,)
            Labels of any kind.
        sample_weight : array of shape (n,), optional
            Weight k equals k copies of the row.
        groups : array of shape (n,) or (n, n_columns), optional
            Labels for a `Grouped` set; several columns are crossed (`drago.cross_groups`). With
            scikit-learn's metadata routing: ``set_fit_request(groups=True)``.
        baseline : array of shape (n,), optional
            Subtracted from the losses, in place of the estimator's own: losses of a model that has
            not seen the row.

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            if isinstance(X, Source):
                self._fit_source(
                    X, y=y, sample_weight=sample_weight, groups=groups, baseline=baseline
                )
                return self
            if is_dask(X):
                self._fit_dask(X, y, sample_weight=sample_weight, groups=groups, baseline=baseline)
                return self
            X, groups = self._take_groups(X, groups)
            X, y = self._check_data(X, y)
            check_classification_targets(y)
            before = getattr(self, "classes_", None)
            weight = self._weights(y, sample_weight)
            there = weight > 0
            self.classes_ = np.unique(y[there])
            if self.classes_.size < 2:
                raise ValueError(
                    f"{type(self).__name__} needs rows of at least two classes with positive "
                    f"weight, but there is one class only: {self.classes_.tolist()[0]!r}."
                )
            start = self._last_fit(X.shape[1])
            if before is None or not np.array_equal(before, self.classes_):
                start = None
            # Rows of weight 0 count for nothing, whatever their label.
            y = np.where(there, y, self.classes_[0])
            metadata = {"sample_weight": sample_weight, "groups": groups, "baseline": baseline}
            self._solve(X, y, weight, metadata, start)
        return self

    def _weights(self, y: Array, sample_weight: Any) -> Vector:
        """Sample weights times class weights."""
        n = y.shape[0]
        weight = np.ones(n)
        if sample_weight is not None:
            weight = scaled(check_sample_weight(sample_weight, n))
        classes = np.unique(y)
        codes = np.searchsorted(classes, y)  # quicker than the inverse, which sorts all rows
        if self.class_weight is None:
            of_class = np.ones(classes.size)
        elif isinstance(self.class_weight, str) and self.class_weight == "balanced":
            mass = np.bincount(codes, weights=weight)
            of_class = np.where(mass > 0, weight.sum() / np.where(mass > 0, mass, 1.0), 0.0)
        else:
            of_class = compute_class_weight(self.class_weight, classes=classes, y=y)
            if not (np.isfinite(of_class).all() and of_class.min() >= 0 and of_class.any()):
                raise ValueError(
                    "class_weight must hold nonnegative numbers, one of them positive, but "
                    f"{shown(self.class_weight)} was given."
                )
        self.class_weight_ = dict(zip(classes.tolist(), of_class.tolist()))
        return check_sample_weight(weight * of_class[codes], n)

    def _weight_of_labels(self, y: Any) -> Any:
        of_class = np.array([self.class_weight_[label] for label in self.classes_.tolist()])
        return of_class[self._encode(np.asarray(y).reshape(-1)).astype(np.intp)]

    def decision_function(self, X: Any) -> Array:
        """Raw predictions: log-odds of ``classes_[1]``, shape (n,), or (n, n_classes) of them."""
        if is_dask(X):
            return self._lazily(X, "decision_function")
        raw = self._raw_prediction(X)
        return raw[:, 0] if raw.shape[1] == 1 else raw

    def predict(self, X: Any) -> Array:
        """The most probable label of each row; of Dask collections lazily."""
        if is_dask(X):
            return self._lazily(X, "predict")
        return self._labels(self._raw_prediction(X))

    def _labels(self, raw: Matrix) -> Array:
        return self.classes_[self._best(raw)]

    def _best(self, raw: Matrix) -> Array:
        return (raw[:, 0] > 0).astype(np.intp) if raw.shape[1] == 1 else raw.argmax(axis=1)

    def predict_log_proba(self, X: Any) -> Matrix:
        """Logarithms of the classes' probabilities, shape (n, n_classes)."""
        if is_dask(X):
            return self._lazily(X, "predict_log_proba")
        return self._log_shares(self._raw_prediction(X))

    def _log_shares(self, raw: Matrix) -> Matrix:
        if raw.shape[1] == 1:
            raw = np.hstack([np.zeros_like(raw), raw])
        top = raw.max(axis=1, keepdims=True)
        return raw - (top + np.log(np.exp(raw - top).sum(axis=1, keepdims=True)))

    def predict_proba(self, X: Any) -> Matrix:
        """The classes' probabilities, shape (n, n_classes)."""
        if is_dask(X):
            return self._lazily(X, "predict_proba")
        return np.exp(self.predict_log_proba(X))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The share of the rows whose label is predicted; by the weights of a source for one."""
        if isinstance(X, Source):
            require_alone(X, y=y, sample_weight=sample_weight)
            return self._score_source(X)
        if is_dask(X):
            return self._score_dask(X, y, sample_weight)
        return super().score(X, y, sample_weight)

    def _encode(self, y: Array) -> Array:
        try:
            codes = np.minimum(np.searchsorted(self.classes_, y), self.classes_.size - 1)
            unknown = self.classes_[codes] != y
        except TypeError:  # labels that cannot be compared with the classes
            unknown = np.array([label not in self.classes_.tolist() for label in y.tolist()])
        if unknown.any():
            raise ValueError(
                f"y holds the label {y[unknown].tolist()[0]!r}, which is none of the classes "
                f"{shown(self.classes_.tolist())} that the model was fitted on."
            )
        return codes.astype(np.float64 if self.classes_.size == 2 else np.int64)

    def _loss(self) -> Loss:
        return Logistic() if self.classes_.size == 2 else Multinomial()

    def _shapes(self, coef: Array, intercept: Any, dtype: Any) -> dict[str, Any]:
        coef, intercept = np.atleast_2d(coef), np.atleast_1d(intercept)
        if intercept.size > 1:  # they count up to a constant only
            intercept = intercept - intercept.mean()
        return {"coef_": coef.astype(dtype), "intercept_": intercept.astype(dtype)}
