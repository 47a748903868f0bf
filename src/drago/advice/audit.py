"""`audit`: what robustness would buy on a user's own data, and what would help more."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn import config_context

from drago._html import card, pairs, paragraph, text
from drago._interrupts import interruptible
from drago._validation import (
    check_groups,
    check_integer,
    check_number,
    check_sample_weight,
    refuse_masked,
    refuse_model,
    shown,
)
from drago.advice.code import code_of
from drago.advice.compare import attained
from drago.advice.methods import ABOUT, CAP, INTERACTIONS, MEAN, Task, preparation, rows_of
from drago.advice.table import Comparison, Judged, calibration_error, side_by_side
from drago.advice.verdict import verdict_of
from drago.estimators.baseline import folds
from drago.estimators.columns import Columns
from drago.estimators.dask import drawn as drawn_rows
from drago.estimators.dask import is_dask
from drago.estimators.found_groups import target_of
from drago.estimators.groups import as_labels, given_names, labels_from, without_columns
from drago.estimators.sources import drawn
from drago.sources.source import Source

Array = npt.NDArray[Any]

# Rows that models are tried on, at most.
MOST_ROWS = 20_000
# Rows of each class: one in every fold to fit on, and in the folds within it.
LEAST_OF_CLASS = 8


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
        How to make it without an audit, from X, y and, where they were given, groups and
        sample_weight.
    notes : list of str
        What was left out, and why: rows, folds.
    time : float
        Seconds.

    Examples
    --------
    >>> import numpy as np, drago
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(120, 2))
    >>> y = X[:, 0] + rng.normal(size=120)
    >>> audit = drago.audit(X, y, n_repeats=1, time_budget=0.0, verbose=0)
    >>> audit.recommended in audit.comparison.models
    True
    >>> audit.model.predict(X).shape
    (120,)
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
        about = [f"{name}: {what}" for name, what in self.methods.items()]
        parts = [str(self.comparison), "", *about, "", *self.notes, *self.verdict, "", self.code]
        return "\n".join(parts)

    @property
    def methods(self) -> dict[str, str]:
        """What was tried, by its name in the tables, in words."""
        return {name: ABOUT[name] for name in self.comparison.models}

    def to_frame(self) -> Any:
        """The table of methods as a frame of pandas."""
        return self.comparison.to_frame()

    def groups_to_frame(self) -> Any:
        """The table of groups as a frame of pandas."""
        return self.comparison.groups_to_frame()

    def _repr_html_(self) -> str:
        said = [paragraph(line) for line in (*self.verdict, *self.notes)]
        about = pairs(self.methods)
        code = f"<pre>{text(self.code, None)}</pre>"
        return card(repr(self), *said, self.comparison._repr_html_(), about, code)


@interruptible
def audit(
    X: Any,
    y: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    *,
    task: str = "auto",
    n_repeats: int = 3,
    time_budget: float = 60.0,
    random_state: int = 0,
    verbose: int = 1,
) -> Audit:
    """Compare several ways to help the worst-served rows, by cross-validation, and recommend one.

    You give data, not a model (to compare your own models use `compare`). Tried are: the ordinary
    (mean) fit with its l2_reg chosen; robust fits chosen under a cap on the mean loss
    (`DROClassifierCV`, `DRORegressorCV`); the mean fit with found groups as features, with
    interactions of groups and features, and with groups of equal weight; and boosted trees.

    Parameters
    ----------
    X : array or frame of shape (n, n_features)
        Of a frame, columns of numbers, bools and categories. Or a source, which has its own y,
        groups and weights: a sample of at most 100,000 of its rows is audited, or as many as fill
        a quarter of its memory limit, and the recommended model is fitted on the sample.
    y : array of shape (n,)
    groups : array of shape (n,) or (n, n_columns), str or list of str, optional
        Labels, or several columns of labels, which are crossed; or names of columns of X, which are
        then not features of the models, but are used to find out what is attainable on a row.
    sample_weight : array of shape (n,), optional
    task : {"auto", "regression", "classification"}
        "auto": words, bools and up to 20 different whole numbers are classes.
    n_repeats : int
        How often every row is judged, in other folds each time, where there is time for it.
    time_budget : float
        Seconds after which no other fold is begun. The first one is always finished, and so is the
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
    those that surely lower it and surely cost little. Surely lower it: the 95% interval of its
    change lies below 0. Surely cost little: the 95% interval of the change of the mean loss ends
    below +2% of the mean fit's. If there is none, it is the mean fit.
    Group interactions need the group of every new row, so they are reported and not recommended.
    Where there are more than 20,000 rows, 20,000 are drawn. Weights do not enter the search for
    groups.

    Examples
    --------
    >>> import numpy as np, drago
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(120, 2))
    >>> y = X[:, 0] + rng.normal(size=120)
    >>> audit = drago.audit(X, y, n_repeats=1, time_budget=0.0, verbose=0)  # more time tells more
    >>> print(audit.verdict[-1])
    Use the mean fit.
    """
    began = time.perf_counter()
    check_integer("n_repeats", n_repeats, low=1)
    check_number("time_budget", time_budget, low=0)
    refuse_model(X, "audit chooses its own models: call audit(X, y).")
    notes: list[str] = []
    if isinstance(X, Source):
        X, y, groups, sample_weight = _drawn(X, y, groups, sample_weight, task, random_state, notes)
    elif is_dask(X):
        some = drawn_rows(
            X, y, "the audit is made", random_state, sample_weight=sample_weight, groups=groups
        )
        X, y, groups, sample_weight = some.X, some.y, some.groups, some.sample_weight
        if not some.is_whole:
            notes.append(
                f"Dask collections of {some.n_rows} rows: this is about {some.numbers.size} of "
                f"them, a uniform sample (random_state={random_state}), and so is the recommended "
                "model; fit it on the collections."
            )
    refuse_masked("X", X)
    X = X if hasattr(X, "shape") else np.asarray(X)
    names = given_names(groups, X)
    if names:
        groups, X = labels_from(X, names, "groups"), without_columns(X, names)
        which = ", ".join(repr(name) for name in names)
        notes.append(f"{which} is the group, and no feature of these models.")
    whole, target, loss, prepare_code = _read(
        X, y, as_labels(groups), sample_weight, task, random_state
    )
    n, part = whole.y.shape[0], whole
    if n > MOST_ROWS:
        drawn = np.random.default_rng(random_state).choice(n, MOST_ROWS, replace=False)
        part, target = whole.taken(np.sort(drawn)), target[np.sort(drawn)]
        notes.append(f"Tried on {MOST_ROWS} rows drawn from {n}.")
    if verbose:
        kind = "classification" if whole.classifies else "regression"
        size = f"{part.y.shape[0]} rows, {len(part.names)} methods"
        print(f"audit: {kind}, {size}; the first fold takes longest", flush=True)
    comparison = _tried(part, target, loss, n_repeats, began, time_budget, notes, verbose)
    has_groups = whole.groups is not None
    recommended = _recommended(comparison, has_groups)
    if verbose:
        print(f"audit: fitting what is recommended, {recommended!r}, on all rows", flush=True)
    rows = np.arange(part.y.shape[0])
    prepared = part.prepare_on(rows).transform(part.X)
    tuned = part.chosen(np.asarray(prepared, dtype=np.float64), rows)
    reg = tuned.cv_results_["l2_reg"][tuned.reference_index_]
    model, extra = whole.made(recommended, tuned.best_params_, reg)
    with config_context(enable_metadata_routing=False):  # the step's name says whom it is for
        model.fit(whole.X, whole.y, **extra)
    verdict = verdict_of(comparison, recommended, has_groups)
    code = code_of(recommended, model, prepare_code, names, sample_weight is not None)
    spent = time.perf_counter() - began
    return Audit(comparison, verdict, recommended, model, code, notes, spent)


def _drawn(
    source: Source, y: Any, groups: Any, weight: Any, task: str, seed: int, notes: list[str]
) -> tuple[Any, Any, Any, Any]:
    """Rows of a source in memory, with their target, groups and weights."""
    rows = drawn(source, "the audit is made", seed, task, y=y, groups=groups, sample_weight=weight)
    if not rows.is_whole:
        notes.append(
            f"A source of {rows.n_rows} rows: this is about {rows.numbers.size} of them, a uniform "
            f"sample (random_state={seed}), and so is the recommended model; fit it on the source."
        )
    return rows.frame(), rows.y, rows.groups, rows.sample_weight


def _read(
    X: Any, y: Any, labels: Any, sample_weight: Any, task: str, seed: int
) -> tuple[Task, Array, Any, str]:
    """The rows of weight, their target as its loss takes it, the loss, the preparation as code."""
    Columns.of(X)  # says why not
    n = X.shape[0]
    target, loss, classes = target_of(y, n, task)
    weight = np.ones(n) if sample_weight is None else check_sample_weight(sample_weight, n)
    if labels is not None:
        check_groups(labels, n)
        labels = np.asarray(labels)
    kept = np.flatnonzero(weight > 0)
    X, target = rows_of(X, kept), target[kept]
    given = np.asarray(y).reshape(-1)[kept] if classes is not None else target
    if classes is not None:
        _require_members(given)
    elif np.ptp(target) == 0:
        raise ValueError(f"y is {target[0]:g} on all rows: there is nothing to explain.")
    prepare, code = preparation(X, Columns.of(X)[0])
    groups = None if labels is None else labels[kept]
    found = Task(X, given, groups, weight[kept], classes is not None, prepare, seed)
    return found, target, loss, code


def _require_members(y: Array) -> None:
    """Every class has a row in every fold to fit, and in those within it."""
    found, counts = np.unique(y, return_counts=True)
    if counts.min() < LEAST_OF_CLASS:
        rare = shown(found.tolist()[counts.argmin()])
        raise ValueError(
            f"y holds {counts.min()} rows of the class {rare}, and every "
            f"class needs {LEAST_OF_CLASS}; leave such rows out or join classes, or give "
            "task='regression' if these are numbers."
        )


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
    codes = None
    if task.groups is not None:
        codes = np.unique(task.groups, return_inverse=True)[1].reshape(-1)
    design = columns.design(values)
    attainable = attained("auto", design, y, loss, task.weight, codes, task.seed)
    splits = [
        split
        for repeat in range(n_repeats)
        for split in folds(y, task.classifies, codes, task.seed + repeat)
    ]
    once = len(splits) // n_repeats
    found: list[dict[str, Any]] = []
    last, stopped = began, f"because its time was up (time_budget={budget:g} seconds)"
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
        stopped = "because it was interrupted"
    _tell_how_far(len(found), once, n_repeats, stopped, notes)
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
        np.concatenate([np.full(each["rows"].size, k) for k, each in enumerate(found)]),
        np.array([each["found"][rows] for each in found]),
        errors,
        names.reshape(-1),
    )
    return side_by_side(task.names, MEAN, judged, task.seed)


def _tell_how_far(done: int, once: int, n_repeats: int, why: str, notes: list[str]) -> None:
    """How often the rows were judged, and that it was to be more where it was."""
    if done < once:
        notes.append(
            f"The audit stopped early, after {done} of {once} folds, {why}: what it says is about "
            "part of the rows, and tentative. To judge all rows, give it more time_budget."
        )
        return
    passes, more = divmod(done, once)
    part = f" and {more} folds of the next one" * (more > 0)
    early = f"; {n_repeats} were wanted, and it stopped {why}" * (done < n_repeats * once)
    plural = "es" * (passes > 1)
    notes.append(f"Judged in {passes} pass{plural} of {once}-fold cross-validation{part}{early}.")


def _tell(k: int, once: int, spent: float) -> None:
    which = f"pass {k // once + 1}, fold {k % once + 1} of {once}"
    print(f"audit: {which}, {spent:.0f} s", flush=True)


def _recommended(found: Comparison, has_groups: bool) -> str:
    """The method to use."""
    table, first = found.table, found.models.index(MEAN)
    name = "worst_group_excess" if has_groups else "found_group_excess"
    cap = CAP * abs(table["mean_loss"][first])
    best = first
    for k, model in enumerate(found.models):
        helps = table[f"{name}_high"][k] < 0 and table["mean_loss_high"][k] <= cap
        if helps and model != INTERACTIONS and table[name][k] < table[name][best]:
            best = k
    return found.models[best]
