"""What a report says about a model, measured on the rows it is given."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier

from drago._validation import check_sample_weight, is_missing
from drago.estimators.groups import as_labels, given_names, labels_from
from drago.estimators.report import WorstCaseReport, half_width, make_report
from drago.estimators.sources import require_alone
from drago.plotting._models import inside, unwrap
from drago.report.privacy import LEAST, are_enough, equal_rows, pooled
from drago.sources.source import Source

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]

MISSING = "(missing)"
TAIL = 0.1
_BINS = 10
# Relative distance of two objectives that are of the same rows, for coefficients of 64 and 32 bits.
_SAME, _SAME_32 = 1e-6, 2e-5

TRAINING, HELD_OUT, UNCLEAR = "training", "held out", "unclear"


@dataclass(frozen=True)
class Facts:
    """A model on some rows.

    Attributes
    ----------
    model : fitted estimator of this library
    steps : fitted transformers before it, or None
    X : what was given
    y : array of shape (n,)
    groups : array of shape (n,) or None
        Labels; what is missing is a group of its own.
    weight : array of shape (n,)
        Of the rows; ones where none were given.
    worst : WorstCaseReport
    index : array of shape (n,)
        What the rows are called.
    origin : {"training", "held out", "unclear"}
        Whether the model was fitted on these rows, as far as its certificate tells.
    baseline : array of shape (n,) or None
        What was subtracted from the losses.
    score : float
        Accuracy, or R^2; NaN where it does not exist.
    calibration : dict of arrays or None
        "predicted", "observed", "low", "high" and "rows" of bins; None for a regression.
    n_pooled : int
        Groups that are one here, because some of them are too small to be shown.
    least : int
        Rows below which nothing is said of some of them; 0 where row data is shown.
    """

    model: Any
    steps: Any
    X: Any
    y: Array
    groups: Array | None
    weight: Vector
    worst: WorstCaseReport
    index: Array
    origin: str
    baseline: Vector | None
    score: float
    calibration: dict[str, Array] | None
    n_pooled: int = 0
    least: int = 0

    @property
    def classifies(self) -> bool:
        return is_classifier(self.model)

    @property
    def has_groups(self) -> bool:
        """Whether there are groups to compare."""
        return len(self.worst.groups.get("group", ())) > 1

    @property
    def tells_tail(self) -> bool:
        """Whether the loss of the worst tenth may be shown."""
        return are_enough(self.worst.nominal_weights, self.least, TAIL)

    @property
    def tells_worst_case(self) -> bool:
        """Whether the loss under worst-case weights may be shown."""
        return are_enough(self.worst.dual_weights, self.least)

    @property
    def n_rows(self) -> int:
        """Rows of positive weight."""
        return self.worst.n_samples

    @property
    def l2_reg(self) -> float:
        chosen = getattr(self.model, "best_params_", None)
        return float(chosen["l2_reg"] if chosen else self.model.l2_reg)

    @property
    def is_mean_fit(self) -> bool:
        """Whether the model's set holds the nominal weights alone."""
        return self.model.uncertainty_.ungrouped.tail_share == 1.0


def read(model: Any, X: Any, y: Any, groups: Any, sample_weight: Any) -> Facts:
    """Measure a model on some rows."""
    inner = unwrap(model)
    steps = None
    if isinstance(X, Source):
        if inner is not model and steps_of(model) is not None:
            raise TypeError(
                f"a pipeline takes no source, but {X!r} was given; give the frame that the "
                "pipeline was fitted on, or one like it."
            )
        require_alone(X, y=y, groups=groups, sample_weight=sample_weight)
        _, y, groups, sample_weight, baseline = inner._gather(X)
        seen = X
    else:
        named = given_names(groups, X)
        if named:
            groups = labels_from(X, named, "groups")
        elif groups is None and inner.group_columns is not None and hasattr(X, "columns"):
            groups = labels_from(X, inner.group_columns)
        found = inside(model, X)
        assert found is not None
        seen, baseline = found[1], None
        steps = steps_of(model)
    y = np.asarray(y)
    if y.ndim == 0:
        raise ValueError(f"y must have one entry for each row of X, but {y.item()!r} was given.")
    y = y.reshape(-1) if y.ndim < 3 and y.size == y.shape[0] else y
    labels = None if groups is None else named_groups(as_labels(groups))
    n = y.shape[0]
    weight = np.ones(n) if sample_weight is None else check_sample_weight(sample_weight, n)
    own: Any = getattr(inner, "baseline_", None)
    if baseline is None and own is not None and np.size(own) == n:
        baseline = own
    worst = _worst_case(inner, seen, y, labels, weight, baseline)
    origin = _origin(inner, worst, baseline)
    if baseline is not None and origin != TRAINING and not isinstance(X, Source):
        baseline = None  # of other rows that are as many
        worst = _worst_case(inner, seen, y, labels, weight, None)
    calibration = None
    if is_classifier(inner):
        calibration = _calibration(inner.predict_proba(seen), inner, y, weight)
    index = np.asarray(X.index) if hasattr(X, "iloc") else np.arange(n)
    return Facts(
        inner, steps, X, y, labels, weight, worst, index, origin, baseline,
        _score(inner, seen, y, weight), calibration,
    )  # fmt: skip


def _worst_case(
    model: Any, X: Any, y: Array, groups: Any, weight: Vector, baseline: Any
) -> WorstCaseReport:
    with warnings.catch_warnings():  # the report says itself where a baseline is not known
        warnings.simplefilter("ignore", UserWarning)
        if isinstance(X, Source):
            return model.worst_case_report(X, tail_fraction=TAIL)
        return model.worst_case_report(
            X, y, groups=groups, sample_weight=weight, baseline=baseline, tail_fraction=TAIL
        )


def without_small_groups(facts: Facts, least: int) -> Facts:
    """The same with the groups that are too small as one, for the worst-case weights too.

    Which these are is said by `drago.report.privacy`. Where only one would be left, there are none.
    """
    facts = replace(facts, least=least)
    worst = facts.worst
    if facts.groups is None:
        return facts
    there = worst.nominal_weights > 0
    labels, count = pooled(facts.groups[there], worst.nominal_weights[there], least)
    if not count:
        return facts
    every = facts.groups.astype(str)  # of rows without weight nothing is said
    every = every.astype(np.result_type(every, labels))
    every[there] = labels
    q = worst.dual_weights
    if facts.model.uncertainty_.needs_groups:
        losses = worst.losses if facts.baseline is None else worst.losses - facts.baseline
        codes = np.unique(labels, return_inverse=True)[1].reshape(-1)
        p = worst.nominal_weights[there]
        oracle = facts.model.uncertainty_.oracle(p, facts.model.divergence_, codes)
        q = np.zeros_like(q)
        q[there] = oracle.weights(losses[there], facts.model.shift_cost_)
    worst = make_report(
        worst.losses, worst.nominal_weights, q, tail_fraction=worst.tail_fraction, n_rows=0,
        index=facts.index, groups=every if np.unique(labels).size > 1 else None,
    )  # fmt: skip
    return replace(facts, groups=every, worst=worst, n_pooled=count)


def steps_of(model: Any) -> Any:
    """The transformers of a pipeline, also of one in a search; None where there are none."""
    while hasattr(model, "best_estimator_"):
        model = model.best_estimator_
    return model[:-1] if hasattr(model, "steps") and len(model) > 1 else None


def named_groups(groups: Any) -> Array:
    """Labels of one kind; missing ones are a group of their own."""
    labels = np.asarray(groups)
    if labels.ndim != 1:
        raise ValueError(f"groups must have one label per row, but has shape {labels.shape}.")
    kind = labels.dtype.kind
    if kind == "O" or (kind in "fMm" and bool((labels != labels).any())):
        return np.array([MISSING if is_missing(one) else str(one) for one in labels.tolist()])
    return labels


def label_of(group: Any) -> str:
    """A group's label as text."""
    return f"{group:.6g}" if isinstance(group, float) else str(group)


def _origin(model: Any, worst: WorstCaseReport, baseline: Any) -> str:
    """Whether the objective on these rows is the one that was certified."""
    result: Any = getattr(model, "result_", None)
    if result is None:
        return UNCLEAR
    certified = result.primal
    p, q = worst.nominal_weights, worst.dual_weights
    there = p > 0
    losses = worst.losses if baseline is None else worst.losses - baseline
    chosen = getattr(model, "best_params_", None)
    reg = float(chosen["l2_reg"] if chosen else model.l2_reg)
    own = float(q @ losses) + 0.5 * reg * float(np.sum(np.square(result.coef)))
    if model.shift_cost_:
        own -= model.shift_cost_ * float(model.divergence_.value(q[there], p[there]))
    same = _SAME_32 if np.asarray(model.coef_).dtype == np.float32 else _SAME
    size = max(abs(certified), float(np.abs(p @ losses)), np.finfo(float).tiny)
    if abs(own - certified) <= same * size:
        return TRAINING
    known: Any = getattr(model, "baseline_", None)
    if known is not None and np.size(known) == 0 and baseline is None:
        return UNCLEAR  # a baseline that was not saved with the model: its objective is unknown
    kept: Any = getattr(model, "dual_weights_", None)
    return UNCLEAR if kept is not None and np.size(kept) == p.size else HELD_OUT


def _score(model: Any, X: Any, y: Array, weight: Vector) -> float:
    """Accuracy or R^2, which does not exist for a constant target."""
    if not is_classifier(model) and (np.ndim(y) != 1 or not np.ptp(y[weight > 0]) > 0):
        return float("nan")
    if isinstance(X, Source):
        return float(model.score(X))
    return float(model.score(X, y, sample_weight=weight))


def _calibration(shares: Array, model: Any, y: Array, weight: Vector) -> dict[str, Array]:
    """Probabilities against frequencies, in bins of equal weight.

    For two classes the probability of the second one; for more, that of the predicted class.
    """
    shares = np.asarray(shares, dtype=np.float64)
    codes = model._encode(y).astype(np.int64)
    if shares.shape[1] == 2:
        confidence, right = shares[:, 1], codes == 1
    else:
        confidence, right = shares.max(axis=1), shares.argmax(axis=1) == codes
    there = np.flatnonzero(weight > 0)
    order = there[np.argsort(confidence[there], kind="stable")]
    # A bin lacks at most a row of the weight of its share.
    count = max(1, min(_BINS, int(equal_rows(weight[there]) / (LEAST + 1))))
    mass = np.cumsum(weight[order])
    ends = np.searchsorted(mass, mass[-1] * np.arange(1, count) / count)
    lines = []
    for rows in np.split(order, ends):
        p = weight[rows] / weight[rows].sum()
        seen = float(p @ right[rows])
        # A share of 0 or 1 has an interval too: as if two of each had been seen.
        m = 1.0 / float(p @ p)
        centre = (seen * m + 2.0) / (m + 4.0)
        half = 1.96 * float(np.sqrt(centre * (1.0 - centre) / (m + 4.0)))
        low, high = max(0.0, centre - half), min(1.0, centre + half)
        lines.append(
            (float(p @ confidence[rows]), seen, min(low, seen), max(high, seen), rows.size)
        )
    names = ("predicted", "observed", "low", "high", "rows")
    return {name: np.array(column) for name, column in zip(names, zip(*lines))}


def calibration_error(bins: dict[str, Array]) -> float:
    """The mean distance between probabilities and frequencies."""
    away = np.abs(bins["predicted"] - bins["observed"])
    return float(away @ bins["rows"] / bins["rows"].sum())


def mean_interval(losses: Vector, weight: Vector) -> tuple[float, float, float]:
    """A weighted mean with the ends of its 95% interval."""
    p = weight / weight.sum()
    mean = float(p @ losses)
    half = half_width(p * (losses - mean), int((p > 0).sum()))
    return mean, mean - half, mean + half
