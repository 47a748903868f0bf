"""What the pictures read from models and from arrays of losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import check_sample_weight, check_vector, numeric, shown
from drago.terms.uncertainty import UncertaintySet

Vector = npt.NDArray[np.float64]

SCALES = ("auto", "linear", "log")
# An axis is logarithmic where the largest loss is so many times that which 90% of them stay below,
# and for tail risks where the largest is so many times the least.
HEAVY, WIDE = 20.0, 50.0


def is_heavy(losses: Any) -> bool:
    """Whether a few losses are far above all others."""
    found = np.asarray(losses, dtype=np.float64)
    if found.size < 2 or not found.min() >= 0:
        return False
    most = float(np.quantile(found, 0.9))
    return bool(most > 0 and found.max() > HEAVY * most)


def is_wide(risks: Any) -> bool:
    """Whether tail risks, which grow from the mean on, become many times as large."""
    found = np.asarray(risks, dtype=np.float64)
    return bool(found.size > 1 and found.max() > WIDE * found.min() > 0)


def unit_of(model: Any) -> str:
    """What a loss of a model is called on an axis, with its unit."""
    from sklearn.base import is_classifier

    found = inside(model)
    if found is None:
        return "log loss (nats)" if is_classifier(model) else "loss (half squared error)"
    loss = found[0].loss_
    known = {"squared": "loss (half squared error)", "huber": "loss (Huber)"}
    return known.get(loss.name, "log loss (nats)" if loss.is_classification else "loss")


def inside(model: Any, X: Any = None) -> tuple[Any, Any] | None:
    """The fitted model of this library in a pipeline or a search, and the features it sees."""
    from sklearn.pipeline import Pipeline
    from sklearn.utils.validation import check_is_fitted

    from drago.estimators.base import DROEstimator

    check_is_fitted(model)
    while not isinstance(model, DROEstimator):
        if hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        elif isinstance(model, Pipeline):
            if X is not None and len(model) > 1:
                X = model[:-1].transform(X)
            model = model[-1]
        else:
            return None
    check_is_fitted(model)
    return model, X


def unwrap(model: Any) -> Any:
    """The fitted model of this library in a pipeline or a search; an error where there is none."""
    found = inside(model)
    if found is None:
        raise TypeError(
            "model must be a DRORegressor or a DROClassifier, or a pipeline or a search that ends "
            f"in one, but {shown(model)} was given."
        )
    return found[0]


def losses_of(model: Any, X: Any, y: Any) -> tuple[Vector, str, float | None]:
    """The losses of any scikit-learn model, what it is called, and the tail it was fitted for."""
    from drago.scorers import row_losses

    found = inside(model, X)
    if found is None:
        last = model.steps[-1][1] if hasattr(model, "steps") else model
        return row_losses(model, X, y), type(last).__name__, None
    model, X = found
    tail = model.uncertainty_.tail_share
    return model.losses(X, y), model.uncertainty_.label, tail if tail and tail < 1 else None


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


def cap_of(uncertainty: UncertaintySet) -> float | None:
    """The largest multiple of the nominal weights that a `CVaR` allows, by rows or by groups."""
    share = uncertainty.ungrouped.tail_share
    return None if share is None else 1.0 / share
