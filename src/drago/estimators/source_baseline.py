"""What is attainable on each row of a source: by models of a sample, on all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from drago._interrupts import poll
from drago._progress import begin, tell
from drago.estimators.baseline import N_FOLDS, dummies, is_auto, judges_of
from drago.sources.batch import dense
from drago.sources.labels import Coded
from drago.sources.numbers import Sample, folds_of
from drago.sources.source import SAMPLE_ROWS, Source
from drago.terms.losses import Loss

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]


def losses_on_source(
    model: Any,
    source: Source,
    loss: Loss,
    *,
    seed: int = 0,
    labels: Array | None = None,
    n_folds: int = N_FOLDS,
    size: int = SAMPLE_ROWS,
) -> tuple[Vector, Sample]:
    """The loss of each row under a model that was fitted on a sample of the rows of other folds.

    Folds are by a hash of the rows' numbers.

    Parameters
    ----------
    model : estimator, "linear" or "auto"
        See `drago.estimators.baseline.out_of_fold_losses`.
    source : Source
    loss : Loss
    seed : int
    labels : array of shape (n_classes,), optional
        What the classes are called where an estimator is fitted.
    n_folds : int
    size : int
        Rows of the sample, at most.

    Returns
    -------
    losses : array of shape (n,)
    sample : Sample
        What the models were fitted on.
    """
    classifies = loss.is_classification
    blocks = source.scanned(classifies)
    rows = source.part(classifies, None, "rows")
    sample = rows._sample(size, seed, labels=classifies)
    count = 0
    if is_auto(model) and blocks.group_names is not None:
        count = len(blocks.group_names)
    n_classes = 0 if blocks.classes is None else len(blocks.classes)

    def target(y: Any) -> Array:
        codes = y.codes if isinstance(y, Coded) else y
        values = np.array(y.values)[codes] if isinstance(y, Coded) else codes
        if not classifies:
            return values
        return values.astype(np.float64 if n_classes == 2 else np.int64)

    def features(X: Any, groups: Any) -> Any:
        return dummies(X, np.asarray(groups), count) if count > 1 else X

    fold = folds_of(sample.numbers, n_folds, seed)
    splits = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(n_folds)]
    weight = sample.sample_weight
    weight = np.ones(sample.numbers.size) if weight is None else weight
    known = features(sample.X, sample.groups)
    _, judges = judges_of(model, known, target(sample.y), loss, weight, splits, seed, labels)

    out = np.empty(blocks.n_samples)
    start = 0
    begin("baseline", blocks.n_samples)
    for batch in rows.batches(None, labels=classifies):
        poll()
        X = batch.X if hasattr(batch.X, "indptr") else dense(batch.X)
        groups = None if batch.groups is None else np.array(batch.groups.values)[batch.groups.codes]
        X, y = features(X, groups), target(batch.y)
        here = out[start : start + batch.n_rows]
        own = folds_of(np.arange(start, start + batch.n_rows), n_folds, seed)
        for k in range(n_folds):
            chosen = np.flatnonzero(own == k)
            if chosen.size:
                raw = np.ascontiguousarray(judges[k](X[chosen]), dtype=np.float64)
                here[chosen] = loss.evaluate(y[chosen], raw)[0]
        start += batch.n_rows
        tell(batch.n_rows)
    return out, sample
