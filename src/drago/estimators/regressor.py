"""`DRORegressor`."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from drago._validation import check_option, check_vector, shown
from drago.estimators.base import Array, DROEstimator
from drago.estimators.callbacks import with_callbacks
from drago.estimators.dask import is_dask
from drago.estimators.sources import require_alone
from drago.sources.source import Source
from drago.terms.losses import Loss, as_loss


class DRORegressor(RegressorMixin, DROEstimator):
    """Linear regression that stays good for the worst-served part of the data.

    The rows get new weights q, chosen to make the loss as large as the uncertainty set Q allows;
    the model is fitted for those weights:

    ``min over w, b  max over q in Q  sum_i q_i loss(y_i, x_i w + b) - nu D(q || p) +
    (mu/2) ||w||^2``

    p are the normal (nominal) weights, D measures how far q is from p, nu is `shift_cost` and mu is
    `l2_reg`. The mean fit is the ordinary fit, with q = p. The result comes with a proof of how
    close it is to the minimum.

    Parameters
    ----------
    uncertainty : {"mild", "worst_group", "excess_tail"}, a set, or a set's short name
        How pessimistic the fit is: which new weights of the rows it must do well under. Start with
        "mild"; use "worst_group" if you know the groups, "excess_tail" if you do not. Or give an
        uncertainty set such as ``CVaR(0.2)``. "mild" is ``ESRM(0.4)``: the
        worst row counts 1.2 times, the best one 0.8 times. "worst_group" is
        ``Grouped(Simplex())``, which needs ``groups`` in `fit` or `group_columns`. "excess_tail" is
        ``CVaR(0.2)`` with ``baseline="auto"``. Short names: "cvar" (``CVaR(0.1)``, the mean loss of
        the worst tenth), "extremile", "esrm", "chi2_ball", "kl_ball", "simplex".
    loss : {"squared", "huber"}, Loss or callable
        "huber" is ``Huber(1.0)``; for a function see `DROProblem`.
    divergence : {"auto", "chi2", "kl"} or Divergence
        How the distance between new and normal weights is measured. "auto": "kl" for `KLBall`,
        otherwise "chi2".
    shift_cost : float >= 0 or "auto"
        The nu of the formula, in the unit of the loss. 0 allows every reweighting in the set at no
        cost; larger values keep the fit closer to an ordinary one. "auto": 0.1 times the mean loss
        of the best constant prediction (1.0 times for `Grouped` without a baseline).
    l2_reg : float >= 0
        The mu of the formula. Losses are averages here: this is `Ridge`'s ``alpha / n``.
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
    solver : str or a settings object, such as ``drago.Drago()``
        See `drago.solve`.
    tol : float >= 0
        Certified relative gap at which to stop.
    max_iter : int, optional
    time_limit : float, optional
        Seconds.
    warm_start : bool
        Start from the last fit.
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
    coef_ : array of shape (n_features,)
        In the dtype of X, as `intercept_`.
    intercept_ : float
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
    There is no ``partial_fit``: which rows are served worst can only be said with all of them in
    view. To fit again when there is more data, use ``warm_start=True``.

    Examples
    --------
    >>> import numpy as np
    >>> from drago import CVaR, DRORegressor
    >>> X = np.arange(10.0).reshape(-1, 1)
    >>> y = np.where(X[:, 0] < 9, X[:, 0], 14.0)
    >>> mean = DRORegressor(CVaR(1.0)).fit(X, y)
    >>> robust = DRORegressor(CVaR(0.1), shift_cost=0.01).fit(X, y)
    >>> [round(float(np.abs(y - model.predict(X)).max()), 1) for model in (mean, robust)]
    [3.3, 2.2]
    """

    def __init__(
        self,
        uncertainty: Any = "mild",
        *,
        loss: Any = "squared",
        divergence: Any = "auto",
        shift_cost: float | str = "auto",
        l2_reg: float = 1e-3,
        fit_intercept: bool = True,
        constraint: Any = None,
        baseline: Any = None,
        group_columns: Any = None,
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
        self.loss = loss
        self.divergence = divergence
        self.shift_cost = shift_cost
        self.l2_reg = l2_reg
        self.fit_intercept = fit_intercept
        self.constraint = constraint
        self.baseline = baseline
        self.group_columns = group_columns
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
    ) -> DRORegressor:
        """Fit the model.

        Parameters
        ----------
        X : array, sparse matrix or frame of shape (n, n_features), or a source
            A source (`drago.read_parquet` and its like) has its own y, weights, groups and
            baseline, and need not fit memory. Dask collections are fitted on the workers of the
            current client; so are y, weights, groups and baseline that come with them.
        y : array of shape (n,)
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
            X, y = self._check_data(X, y, y_numeric=True)
            metadata = {"sample_weight": sample_weight, "groups": groups, "baseline": baseline}
            self._solve(X, y, sample_weight, metadata, self._last_fit(X.shape[1]))
        return self

    def predict(self, X: Any) -> Array:
        """Predictions, shape (n,), or (n, n_outputs) for a loss of several outputs."""
        if is_dask(X):
            return self._lazily(X, "predict")
        raw = self._raw_prediction(X)
        return raw[:, 0] if raw.shape[1] == 1 else raw

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """``R^2`` of the predictions; by the weights of a source for one."""
        if isinstance(X, Source):
            require_alone(X, y=y, sample_weight=sample_weight)
            return self._score_source(X)
        if is_dask(X):
            return self._score_dask(X, y, sample_weight)
        return super().score(X, y, sample_weight)

    def _encode(self, y: Array) -> Array:
        return check_vector("y", y, y.shape[0])

    def _loss(self) -> Loss:
        if isinstance(self.loss, str) and self.loss not in ("logistic", "multinomial"):
            check_option("loss", self.loss, ("squared", "huber"))
        loss = as_loss(self.loss)
        if loss.is_classification:
            raise ValueError(
                f"loss must be 'squared', 'huber', an object or a function for a regression, but "
                f"{shown(self.loss)} was given; use DROClassifier."
            )
        return loss

    def _shapes(self, coef: Array, intercept: Any, dtype: Any) -> dict[str, Any]:
        return {"coef_": coef.astype(dtype), "intercept_": np.dtype(dtype).type(intercept)}
