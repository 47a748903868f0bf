"""`audit`: what robustness would buy on a user's own data, and what would help more."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._interrupts import interruptible
from drago._validation import (
    check_groups,
    check_integer,
    check_number,
    check_sample_weight,
    refuse_masked,
)
from drago.advice.compare import attained
from drago.advice.methods import (
    INTERACTIONS,
    MEAN,
    REWEIGHTED,
    ROBUST,
    TREES,
    Task,
    preparation,
    rows_of,
)
from drago.advice.table import Comparison, Judged, calibration_error, side_by_side
from drago.advice.verdict import verdict_of
from drago.estimators.baseline import folds
from drago.estimators.columns import Columns
from drago.estimators.found_groups import target_of
from drago.estimators.groups import as_labels, labels_from, names_of, without_columns

Array = npt.NDArray[Any]

# Rows that models are tried on, at most.
MOST_ROWS = 20_000
# What a recommended model may lose more in the mean than the mean fit, relative to that.
CAP = 0.01


@dataclass(frozen=True, repr=False, eq=False)
class Audit:
    """What was tried, what it says, and what to use; ``print(audit)`` shows it.

    Attributes
    ----------
    comparison : Comparison
        The methods on rows that they were not fitted on.
    verdict : list of str
        What it says, in sentences.
    recommended : str
        The method to use.
    model : pipeline
        It, fitted on all rows.
    code : str
        How to make it without an audit.
    notes : list of str
        What was left out, and why: rows, folds.
    time : float
        Seconds.
    """

    comparison: Comparison
    verdict: list[str]
    recommended: str
    model: Any
    code: str
    notes: list[str]
    time: float

    def __repr__(self) -> str:
        return f"Audit(recommended={self.recommended!r}, {self.comparison.n_rows} rows)"

    def __str__(self) -> str:
        parts = [str(self.comparison), *self.notes, "", *self.verdict, "", self.code]
        return "\n".join(parts)


@interruptible
def audit(
    X: Any,
    y: Any,
    groups: Any = None,
    sample_weight: Any = None,
    *,
    task: str = "auto",
    n_repeats: int = 3,
    time_budget: float = 60.0,
    random_state: int = 0,
    verbose: int = 1,
) -> Audit:
    """Try what may help the worst-hit part of the data, and say what does.

    By cross-validation on the rows given: the mean fit with its l2_reg chosen, robust fits chosen
    under a cap on the mean loss (`DROClassifierCV`, `DRORegressorCV`), the mean fit with found
    groups as features, with group interactions, with groups of equal weight, and boosted trees.

    Parameters
    ----------
    X : array or frame of shape (n, n_features)
        Of a frame, columns of numbers, bools and categories.
    y : array of shape (n,)
    groups : array of shape (n,) or (n, n_columns), str or list of str, optional
        Labels, several columns of them to be crossed, or names of columns of X, which are then no
        features.
    sample_weight : array of shape (n,), optional
    task : {"auto", "regression", "classification"}
    n_repeats : int
        How often every row is judged, in other folds each time, where there is time for it.
    time_budget : float
        Seconds after which no other fold is begun; the first one is always finished, and so is the
        fit of the recommended model.
    random_state : int
    verbose : int
        0 is silent, 1 prints a line for each fold.

    Returns
    -------
    Audit

    Notes
    -----
    Recommended is the method with the least excess of the worst group (given, else found) among
    those whose mean loss is at most 1% above the mean fit's, if that is below the mean fit's by
    more than a standard error; otherwise the mean fit. Group interactions need the group of every
    new row, so they are reported and not recommended. Of more than 20,000 rows, so many are drawn.
    """
    began = time.perf_counter()
    check_integer("n_repeats", n_repeats, low=1)
    check_number("time_budget", time_budget, low=0)
    refuse_masked("X", X)
    notes: list[str] = []
    if isinstance(groups, str) or (hasattr(X, "columns") and _are_names(groups, X)):
        groups, X = labels_from(X, groups), without_columns(X, names_of(groups))
    labels = as_labels(groups)
    columns, _ = Columns.of(X)
    n = X.shape[0]
    target, loss, classes = target_of(y, n, task)
    weight = np.ones(n) if sample_weight is None else check_sample_weight(sample_weight, n)
    if labels is not None:
        check_groups(labels, n)
        labels = np.asarray(labels)
    given = np.asarray(y).reshape(-1)
    prepare, prepare_code = preparation(X, columns)
    whole = Task(
        X, given if classes is not None else target, labels, weight, classes is not None, prepare,
        random_state,
    )  # fmt: skip
    index = np.flatnonzero(weight > 0)
    if index.size > MOST_ROWS:
        index = np.sort(np.random.default_rng(random_state).choice(index, MOST_ROWS, replace=False))
        notes.append(f"Tried on {MOST_ROWS} rows drawn from {n}.")
    part = replace(
        whole,
        X=rows_of(X, index),
        y=whole.y[index],
        groups=None if labels is None else labels[index],
        weight=weight[index],
    )
    comparison = _tried(part, target[index], loss, n_repeats, began, time_budget, notes, verbose)
    recommended = _recommended(comparison, labels is not None)
    prepared = part.prepare_on(np.arange(index.size)).transform(part.X)
    tuned = part.chosen(np.asarray(prepared, dtype=np.float64), np.arange(index.size))
    reg = tuned.cv_results_["l2_reg"][tuned.reference_index_]
    model, last, extra = whole.made(recommended, tuned.best_params_, reg)
    model.fit(X, whole.y, **extra)
    verdict = verdict_of(comparison, recommended, labels is not None)
    return Audit(
        comparison, verdict, recommended, model, _code(recommended, prepare_code, last), notes,
        time.perf_counter() - began,
    )  # fmt: skip


def _are_names(groups: Any, X: Any) -> bool:
    return isinstance(groups, (list, tuple)) and all(name in set(X.columns) for name in groups)


def _tried(
    task: Task,
    y: Array,
    loss: Any,
    n_repeats: int,
    began: float,
    budget: float,
    notes: list[str],
    verbose: int,
) -> Comparison:
    """All methods on the folds that there was time for."""
    columns, values = Columns.of(task.X)
    design = columns.design(values)
    attainable = attained("auto", design, y, loss, task.weight, task.seed)
    codes = None
    if task.groups is not None:
        codes = np.unique(task.groups, return_inverse=True)[1].reshape(-1)
    splits = [
        split
        for repeat in range(n_repeats)
        for split in folds(y, task.classifies, codes, task.seed + repeat)
    ]
    once = len(splits) // n_repeats
    found: list[dict[str, Any]] = []
    last = began
    try:
        for k, (train, test) in enumerate(splits):
            spent = time.perf_counter() - began
            # The fit of the recommended model takes about as long as a fold.
            if found and spent + 2.0 * (time.perf_counter() - last) > budget:
                break
            last = time.perf_counter()
            found.append(task.judge_fold(train, test))
            if verbose:
                _tell(k, once, time.perf_counter() - began)
    except KeyboardInterrupt:
        if not found:
            raise
        notes.append("Interrupted.")
    if len(found) < once:
        notes.append(
            f"Judged on {len(found)} of {once} folds, in the time that there was; more "
            "time_budget narrows the intervals."
        )
    elif len(found) > once:
        notes.append(f"Judged on {len(found)} folds, {once} a pass over the rows.")
    rows = np.concatenate([each["rows"] for each in found])
    losses = np.hstack([each["losses"] for each in found])
    errors = np.full(len(task.names), np.nan)
    if task.classifies:
        classes = np.unique(task.y)
        labels = np.searchsorted(classes, task.y[rows])
        for k in range(len(task.names)):
            p = np.vstack([each["probabilities"][k] for each in found])
            errors[k] = calibration_error(p, labels, task.weight[rows])
    _, names, times = np.unique(rows, return_inverse=True, return_counts=True)
    judged = Judged(
        losses,
        task.weight[rows] / times[names],
        attainable[rows],
        None if task.groups is None else task.groups[rows],
        np.concatenate([each["found"] for each in found]),
        np.concatenate([np.full(each["rows"].size, k) for k, each in enumerate(found)]),
        errors,
        names.reshape(-1),
    )
    return side_by_side(task.names, MEAN, judged, task.seed)


def _tell(k: int, once: int, spent: float) -> None:
    which = f"pass {k // once + 1}, fold {k % once + 1} of {once}"
    print(f"audit: {which}, {spent:.0f} s", flush=True)


def _recommended(found: Comparison, has_groups: bool) -> str:
    """The method to use."""
    table, first = found.table, found.models.index(MEAN)
    name = "worst_group_excess" if has_groups else "found_group_excess"
    cap = (1.0 + CAP) * table["mean_loss"][first]
    best = MEAN
    for k, model in enumerate(found.models):
        error = (table[f"{name}_high"][k] - table[f"{name}_low"][k]) / (2 * 1.96)
        gain = -table[f"{name}_change"][k]
        if model == INTERACTIONS or table["mean_loss"][k] > cap or not gain > error:
            continue
        if table[name][k] < table[name][found.models.index(best)]:
            best = model
    return best


def _code(name: str, prepare: str, last: str) -> str:
    """The recommended model in Python."""
    lines = [f"# {name}", f"prepare = {prepare}"]
    if "found groups" in name:
        lines.append("prepare = make_union(prepare, drago.GroupFinder())")
    lines.append(f"model = make_pipeline(prepare, {' '.join(last.split())})")
    if name == REWEIGHTED:
        lines.append("# fitted with sample_weight = 1 / (rows of the group)")
    elif name == ROBUST and "Grouped" in last:
        lines.append("# fitted with groups")
    elif name == TREES:
        lines.append("# from sklearn.ensemble")
    return "\n".join(lines)
