"""Scorers for scikit-learn's model selection: the loss of the tail, and of the worst-off group.

They take any estimator, drago's or not: classifiers are judged by the logarithm of the probability
of the true class, regressors by half the squared error, unless another loss is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier
from sklearn.utils.metadata_routing import MetadataRequest

from drago._validation import (
    check_groups,
    check_number,
    check_option,
    check_sample_weight,
    check_vector,
    refuse_masked,
    shown,
)
from drago.terms.losses import as_loss
from drago.terms.uncertainty import CVaR

Vector = npt.NDArray[np.float64]


def tail_mean(losses: Vector, p: Vector, tail_fraction: float) -> float:
    """The mean of the worst `tail_fraction` of the mass ``p``."""
    return float(losses @ CVaR(tail_fraction).worst_case(losses, 0.0, "chi2", p))


def worst_group_mean(losses: Vector, p: Vector, groups: Any) -> float:
    """The mean loss of the group that has the largest one."""
    codes = check_groups(groups, losses.size)
    p = check_vector("p", p, losses.size)
    return float((np.bincount(codes, weights=p * losses) / np.bincount(codes, weights=p)).max())


def tail_loss_scorer(tail_fraction: float = 0.1, *, loss: Any = "auto") -> Scorer:
    """A scorer: minus the mean loss of the worst `tail_fraction` of the rows.

    Parameters
    ----------
    tail_fraction : float in (0, 1]
        1 is the mean.
    loss : {"auto", "zero_one", "squared", "huber"}, Loss or callable
        "auto" is the log loss for classifiers, half the squared error for regressors.

    Returns
    -------
    callable ``scorer(estimator, X, y, sample_weight=None)``
        For ``scoring=`` in `GridSearchCV`, `cross_val_score` and so on.

    Examples
    --------
    >>> import numpy as np, drago
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.model_selection import cross_val_score
    >>> X = np.arange(20.0).reshape(-1, 1)
    >>> scores = cross_val_score(Ridge(), X, X[:, 0] ** 2, scoring=drago.tail_loss_scorer(0.1))
    >>> bool((scores < 0).all())  # minus a loss, because scikit-learn maximises
    True
    """
    check_number("tail_fraction", tail_fraction, low=0, high=1, open_low=True)
    return Scorer(loss, tail_fraction=tail_fraction)


def worst_group_scorer(groups: Any = None, *, loss: Any = "auto") -> Scorer:
    """A scorer: minus the mean loss of the worst-off group.

    Parameters
    ----------
    groups : None, "class", name of a column or callable
        Where the groups come from: None for scikit-learn's metadata routing (``groups`` is asked
        for then), "class" for the labels in y, the name of a column of X, or a function ``(X, y)
        -> labels``.
    loss : {"auto", "zero_one", "squared", "huber"}, Loss or callable
        "auto" is the log loss for classifiers, half the squared error for regressors; "zero_one"
        makes this one minus the accuracy of the group that has the lowest.

    Returns
    -------
    callable ``scorer(estimator, X, y, sample_weight=None, groups=None)``
        For ``scoring=`` in `GridSearchCV`, `cross_val_score` and so on.

    Examples
    --------
    >>> import numpy as np, drago
    >>> from sklearn.linear_model import LogisticRegression
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]])
    >>> y = [0, 0, 1, 0, 1, 1]
    >>> model = LogisticRegression().fit(X, y)
    >>> worst = drago.worst_group_scorer("class", loss="zero_one")(model, X, y)
    >>> round(1 + worst, 2)  # the accuracy of the class that has the lower one
    0.67
    """
    return Scorer(loss, groups=groups)


class Scorer:
    """Minus a robust mean of the losses of a model; greater is better.

    Made by `tail_loss_scorer` and `worst_group_scorer`.
    """

    def __init__(
        self, loss: Any = "auto", *, tail_fraction: float | None = None, groups: Any = None
    ) -> None:
        if isinstance(loss, str):
            check_option("loss", loss, ("auto", "zero_one", "squared", "huber"))
        self.loss, self.tail_fraction, self.groups = loss, tail_fraction, groups
        self._weighted: bool | str | None = None

    def __repr__(self) -> str:
        if self.tail_fraction is not None:
            return f"tail_loss_scorer({self.tail_fraction:g}, loss={self.loss!r})"
        return f"worst_group_scorer({self.groups!r}, loss={self.loss!r})"

    def __call__(
        self, estimator: Any, X: Any, y: Any, sample_weight: Any = None, groups: Any = None
    ) -> float:
        losses = row_losses(estimator, X, y, self.loss)
        n = losses.size
        weight = np.ones(n) if sample_weight is None else check_sample_weight(sample_weight, n)
        there = weight > 0
        losses, p = losses[there], weight[there] / weight.sum()
        if self.tail_fraction is not None:
            return -tail_mean(losses, p, self.tail_fraction)
        labels = np.asarray(self._labels(estimator, X, y, groups))
        check_groups(labels, n)
        return -worst_group_mean(losses, p, labels[there])

    def _labels(self, estimator: Any, X: Any, y: Any, groups: Any) -> Any:
        if groups is not None:
            return groups
        if self.groups is None:
            raise ValueError(
                "worst_group_scorer needs the group of each row: enable scikit-learn's metadata "
                "routing and give groups= to fit, or say where they are, as in "
                "worst_group_scorer('class') or worst_group_scorer('a column')."
            )
        if callable(self.groups):
            return self.groups(X, y)
        columns = list(getattr(X, "columns", ()))
        if isinstance(self.groups, str) and self.groups == "class":
            if not is_classifier(estimator) or "class" in columns:
                raise ValueError(
                    "worst_group_scorer('class') takes the labels of a classification for groups, "
                    "but there are none, or X has a column 'class' too; give a function (X, y) -> "
                    "labels."
                )
            return y
        if self.groups not in columns:
            raise ValueError(
                f"worst_group_scorer({self.groups!r}) needs an X with a column of that name, but "
                f"X has {shown(columns) if columns else 'no named columns'}."
            )
        return X[self.groups]

    # ---------------------------------------------------------------- metadata routing

    def set_score_request(self, *, sample_weight: bool | str | None = None) -> Scorer:
        """Whether `sample_weight` is to be passed on to the scorer; see scikit-learn."""
        self._weighted = sample_weight
        return self

    def get_metadata_routing(self) -> MetadataRequest:
        """What the scorer asks for: the groups, where it was not told where they are."""
        request = MetadataRequest(owner=self)
        request.score.add_request(param="sample_weight", alias=self._weighted)
        if self.tail_fraction is None and self.groups is None:
            request.score.add_request(param="groups", alias=True)
        return request


def row_losses(
    estimator: Any, X: Any, y: Any, loss: str | Callable[..., Any] | Any = "auto"
) -> Vector:
    """The loss of each row under any scikit-learn estimator."""
    refuse_masked("X", X)
    refuse_masked("y", y)
    if isinstance(loss, str) and loss == "zero_one":
        labels = np.asarray(estimator.predict(X)).reshape(-1)
        return (labels != _target(y, labels.size)).astype(np.float64)
    if not is_classifier(estimator):
        prediction = np.asarray(estimator.predict(X), dtype=np.float64).reshape(-1, 1)
        wanted = as_loss("squared" if isinstance(loss, str) and loss == "auto" else loss)
        return wanted.evaluate(check_vector("y", y, len(prediction)), prediction)[0]
    if not (isinstance(loss, str) and loss == "auto"):
        raise ValueError(
            f"loss must be 'auto' or 'zero_one' for a classifier, but {shown(loss)} was given."
        )
    classes = np.asarray(estimator.classes_)
    y = _target(y, X.shape[0] if hasattr(X, "shape") else len(X))
    place = np.minimum(np.searchsorted(classes, y), classes.size - 1)
    if (classes[place] != y).any():
        unknown = y[classes[place] != y].tolist()[0]
        raise ValueError(
            f"y holds the label {unknown!r}, which the classifier was not fitted on; keep every "
            "class in every fold, as StratifiedKFold does."
        )
    rows, least = np.arange(y.size), np.finfo(np.float64).tiny
    # Probabilities of 0, as of trees, count as the least positive number.
    if hasattr(estimator, "predict_log_proba"):
        with np.errstate(divide="ignore"):
            logarithms = np.asarray(estimator.predict_log_proba(X), dtype=np.float64)
        return -np.maximum(logarithms[rows, place], np.log(least))
    if hasattr(estimator, "predict_proba"):
        proba = np.asarray(estimator.predict_proba(X), dtype=np.float64)[rows, place]
        return -np.log(np.maximum(proba, least))
    raise ValueError(
        f"{type(estimator).__name__} knows no probabilities for the log loss; use "
        "loss='zero_one', or CalibratedClassifierCV."
    )


def _target(y: Any, n: int) -> npt.NDArray[Any]:
    """The labels of `n` rows."""
    labels = np.asarray(y)
    if labels.shape not in ((n,), (n, 1)):
        raise ValueError(
            f"y must have one entry for each of the {n} rows of X, but has shape {labels.shape}."
        )
    return labels.reshape(-1)
