"""What the pictures read from models and from arrays of losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import check_sample_weight, check_vector, numeric, shown
from drago.terms.uncertainty import UncertaintySet

Vector = npt.NDArray[np.float64]


def unwrap(model: Any, X: Any = None) -> tuple[Any, Any]:
    """The fitted model of this library inside a pipeline or a search, and the features it sees."""
    from sklearn.pipeline import Pipeline
    from sklearn.utils.validation import check_is_fitted

    from drago.estimators.base import DROEstimator

    given = model
    check_is_fitted(model)
    while not isinstance(model, DROEstimator):
        if hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        elif isinstance(model, Pipeline):
            if X is not None and len(model) > 1:
                X = model[:-1].transform(X)
            model = model[-1]
        else:
            raise TypeError(
                "model must be a DRORegressor or a DROClassifier, or a pipeline or a search that "
                f"ends in one, but {shown(given)} was given; for another model compute the loss of "
                "each row and use from_predictions."
            )
    check_is_fitted(model)
    return model, X


def curves(**columns: Any) -> list[Vector]:
    """The columns of a curve as vectors of one length; entries may be infinite."""
    found = [np.asarray(numeric(name, values), np.float64) for name, values in columns.items()]
    if any(column.ndim != 1 or column.size != found[0].size for column in found):
        raise ValueError(
            f"{', '.join(columns)} must be vectors of one length, but have the shapes "
            f"{', '.join(str(column.shape) for column in found)}."
        )
    return found


def nominal(losses: Any, sample_weight: Any = None) -> tuple[Vector, Vector, Any]:
    """Losses and nominal weights of the rows of positive weight, and which rows these are."""
    size = numeric("losses", losses).size
    if size == 0:
        raise ValueError("losses must have at least one entry, but is empty.")
    losses = check_vector("losses", losses, size)
    weight = np.ones(size) if sample_weight is None else check_sample_weight(sample_weight, size)
    there = weight > 0
    return losses[there], weight[there] / weight.sum(), there


def set_of(model: Any) -> UncertaintySet:
    """The set that a model was fitted with, also where it was chosen by cross-validation."""
    return model.uncertainty_


def tail_of(model: Any) -> float | None:
    """The share of the rows that the model is fitted for, where it says so."""
    share = set_of(model).tail_share
    return share if share is not None and share < 1 else None


def cap_of(model: Any) -> float | None:
    """The largest multiple of the nominal weights that a `CVaR` allows, by rows or by groups."""
    share = set_of(model).ungrouped.tail_share
    return None if share is None else 1.0 / share


def name_of(model: Any) -> str:
    """What a model is called in a legend, where no name is given: its uncertainty set."""
    return set_of(model).label
