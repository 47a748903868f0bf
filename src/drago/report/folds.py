"""What robustness changes on rows that were not fitted on: a model's settings, more and less of it.

The mean model and models with the settings of the one that is reported are fitted on four fifths
of the rows and judged on the others, five times.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.utils import _safe_indexing

from drago.advice.table import METRICS, Comparison, Judged, metrics_of, side_by_side
from drago.estimators.baseline import folds, out_of_fold_losses
from drago.estimators.groups import without_columns
from drago.estimators.path import losses_on, robust_path
from drago.estimators.presets import own_baseline
from drago.report.facts import Facts
from drago.report.privacy import SMALLER, to_pool
from drago.sources.source import Source
from drago.terms.uncertainty import ESRM, Chi2Ball, CVaR, Extremile, KLBall

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

MEAN, OWN = "mean model", "robust model"
# Groups that are compared; smaller ones count as one.
MOST_GROUPS = 100
# Rows that models are fitted on at most, and at least.
MOST_ROWS = 20_000
LEAST_ROWS = 20
# Levels of the curve, relative to the model's own: the first ones are milder.
_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
_FITTED = "as fitted"
_LEVELS: tuple[tuple[Any, str], ...] = (
    (ESRM, "risk_aversion"),
    (Extremile, "n_draws"),
    (Chi2Ball, "radius"),
    (KLBall, "radius"),
)
# Seconds after which no fold is begun, and those for the models of one.
_BUDGET, _OF_FOLD = 60.0, 8.0
_SEED = 0


@dataclass(frozen=True)
class Refits:
    """Models fitted anew on folds of the rows, and judged on the others.

    Attributes
    ----------
    comparison : Comparison
        The mean model and the one with the settings of the reported model. An excess is a loss
        here: "tail_excess" is the mean loss of the worst tenth.
    curve : dict
        From the mean model on to the most robust one: "model" (its name), "mean_loss", "worst" (of
        the worst group, or of the worst tenth of the rows).
    varied : str
        By what the models of the curve differ.
    losses : array of shape (2, n)
        Of the mean model and of the other.
    weight : array of shape (n,)
    n_rows, n_folds : int
        Rows that were judged, and in how many folds.
    is_drawn : bool
        Whether the rows are part of those given.
    is_finished : bool
        Whether all fits reached their tolerance.
    """

    comparison: Comparison
    curve: dict[str, Any]
    varied: str
    losses: Matrix
    weight: Vector
    n_rows: int
    n_folds: int
    is_drawn: bool
    is_finished: bool


def refit(facts: Facts) -> Refits | str:
    """The models on folds; or why there are none, in a sentence."""
    X, y, groups, weight = _rows(facts)
    why_not = _too_few(facts, y)
    if why_not:
        return why_not
    model = facts.model
    target = model._encode(y)
    fitted_by = weight * model._weight_of_labels(y)
    codes = None if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    varied, wanted = levels_of(model)
    own = [name for name, _, _ in wanted].index(_FITTED)
    found: list[tuple[Array, Matrix]] = []
    began, finished = time.perf_counter(), True
    splits = folds(target, facts.classifies, codes, _SEED)
    for train, test in splits:
        if found and time.perf_counter() - began > _BUDGET:
            break
        here, there = _prepared(facts, X, y, train, test)
        subtracted = _subtracted(facts, here, target, fitted_by, codes, train)
        if isinstance(subtracted, str):
            return subtracted
        common: dict[str, Any] = {
            "loss": model.loss_,
            "l2_regs": [facts.l2_reg],
            "sample_weight": fitted_by[train],
            "fit_intercept": model.fit_intercept,
            "constraint": model.constraint,
            "random_state": _SEED,
            "n_threads": model._n_threads(),
        }
        with warnings.catch_warnings():  # a fit that ends early is said in the report
            warnings.simplefilter("ignore")
            mean = robust_path(
                here, target[train], uncertainty=CVaR(1.0), shift_costs=[1.0],
                time_limit=_OF_FOLD / 4, **common,
            )  # fmt: skip
            paths = [
                robust_path(
                    here, target[train], uncertainty=level, divergence=model.divergence_,
                    shift_costs=[cost], groups=None if codes is None else codes[train],
                    baseline=subtracted, time_limit=_OF_FOLD / len(wanted), **common,
                )
                for _, level, cost in wanted
            ]  # fmt: skip
        results = [path.results[0] for path in (mean, *paths)]
        finished = finished and all(str(each.status) == "optimal" for each in results)
        judged_by = [losses_on(each, there, target[test]) for each in (mean, *paths)]
        found.append((test, np.vstack(judged_by)))
    rows = np.concatenate([test for test, _ in found])
    losses = np.hstack([each for _, each in found])
    parts = np.concatenate([np.full(test.size, k) for k, (test, _) in enumerate(found)])
    pair = losses[[0, 1 + own]]
    labels = None
    if groups is not None and facts.has_groups:
        labels = _largest(groups[rows], weight[rows], facts.least)
    judged = Judged(
        pair, weight[rows], np.zeros(rows.size), labels, parts, None, np.full(2, np.nan),
        least=facts.least,
    )  # fmt: skip
    return Refits(
        comparison=side_by_side([MEAN, OWN], MEAN, judged, _SEED),
        curve=_curve([name for name, _, _ in wanted], losses, judged, facts.has_groups),
        varied=varied,
        losses=pair,
        weight=weight[rows],
        n_rows=rows.size,
        n_folds=len(found),
        is_drawn=rows.size < facts.n_rows,
        is_finished=finished,
    )


def _rows(facts: Facts) -> tuple[Any, Array, Array | None, Vector]:
    """The rows of weight, or so many of them; of a source, a sample of it."""
    X = facts.X
    if isinstance(X, Source):
        sample = X._sample(MOST_ROWS, _SEED, labels=facts.classifies)
        kept = sample.numbers
        positive = facts.weight[kept] > 0
        kept, X = kept[positive], sample.X[positive]
    else:
        kept = np.flatnonzero(facts.weight > 0)
        if kept.size > MOST_ROWS:
            drawn = np.random.default_rng(_SEED).choice(kept.size, MOST_ROWS, replace=False)
            kept = kept[np.sort(drawn)]
        X = X if kept.size == facts.y.shape[0] else _safe_indexing(X, kept)
    groups = None if facts.groups is None else facts.groups[kept]
    return X, facts.y[kept], groups, facts.weight[kept]


def _largest(groups: Array, weight: Vector, least: int) -> Array:
    """The labels of the largest groups; the others are one, as intervals of so many take long."""
    labels, codes, counts = np.unique(groups, return_inverse=True, return_counts=True)
    kept = ~to_pool(codes.reshape(-1), weight, least)
    if labels.size > MOST_GROUPS:
        kept[np.argsort(-counts, kind="stable")[MOST_GROUPS - 1 :]] = False
    if kept.all():
        return groups
    return np.where(kept[codes.reshape(-1)], groups.astype(str), SMALLER)


def _too_few(facts: Facts, y: Array) -> str:
    """Why no model can be fitted on folds of the rows."""
    if facts.is_mean_fit:
        return "The model is a mean model itself, so there is no other one to compare it with."
    if np.ndim(y) != 1:
        return "The target has several columns, so no mean model was fitted for comparison."
    if y.shape[0] < LEAST_ROWS:
        return (
            f"With {y.shape[0]} rows, of {LEAST_ROWS} that are needed, no mean model was fitted "
            "for comparison."
        )
    if facts.classifies:
        counts = {label: int((y == label).sum()) for label in facts.model.classes_.tolist()}
        rare = min(counts, key=lambda label: counts[label])
        if counts[rare] < 2:
            return (
                f"The class {rare!r} has fewer than 2 of these rows, so no mean model was fitted "
                "for comparison."
            )
    return ""


def levels_of(model: Any) -> tuple[str, list[tuple[str, Any, float]]]:
    """What to vary for a curve, and the models along it: a name, the set and the shift cost.

    The level of the set itself where it has one, because the shift cost moves some sets hardly at
    all; else the shift cost.
    """
    level, cost = model.uncertainty_, float(model.shift_cost_)
    if not level.needs_groups:
        if isinstance(level, CVaR):
            tail = float(level.tail_fraction)
            tails = [tail**0.25, tail**0.5, tail, tail**1.5]
            return "tail", [
                (_FITTED if t == tail else f"worst {100 * t:.2g}%", CVaR(t), cost) for t in tails
            ]
        for kind, name in _LEVELS:
            if isinstance(level, kind):
                least = 1.0 if kind is Extremile else 0.0
                above = float(getattr(level, name)) - least
                if above > 0:
                    words = name.replace("_", " ")
                    return words, [
                        (_FITTED if f == 1 else f"{words} × {f:g}", kind(least + f * above), cost)
                        for f in _FACTORS
                    ]
    if cost > 0:
        return "shift cost", [
            (_FITTED if f == 1 else f"cost × {float(f'{1 / f:.1g}'):g}", level, cost / f)
            for f in _FACTORS
        ]
    size = float(getattr(getattr(model, "result_", None), "primal", 1.0)) or 1.0
    costs = [abs(size), 0.3 * abs(size), 0.1 * abs(size)]
    return "shift cost", [*((f"cost {c:.2g}", level, c) for c in costs), (_FITTED, level, 0.0)]


def _prepared(facts: Facts, X: Any, y: Array, train: Array, test: Array) -> tuple[Any, Any]:
    """Features of the training and of the other rows, as the model takes them."""
    here, there = _safe_indexing(X, train), _safe_indexing(X, test)
    if facts.steps is not None:
        steps = clone(facts.steps)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            here, there = steps.fit_transform(here, y[train]), steps.transform(there)
    columns = facts.model.group_columns
    return _features(without_columns(here, columns)), _features(without_columns(there, columns))


def _features(X: Any) -> Any:
    return X if hasattr(X, "indptr") else np.ascontiguousarray(X, dtype=np.float64)


def _subtracted(
    facts: Facts,
    X: Any,
    target: Array,
    weight: Vector,
    codes: Array | None,
    train: Array,
) -> Any:
    """The baseline of the training rows; or why it is not known."""
    model = facts.model
    if getattr(model, "baseline_", None) is None:
        return None
    # Never that of the fit: it was estimated with the rows on which these models are judged.
    chosen = getattr(model, "best_params_", None)
    wanted = chosen["baseline"] if chosen else model.baseline or own_baseline(model.uncertainty)
    if wanted is None or wanted == "given to fit":
        return (
            "The model was fitted with a baseline of its own, which is not known for these rows, "
            "so no mean model was fitted for comparison."
        )
    return out_of_fold_losses(
        wanted, X, target[train], model.loss_, weight=weight[train],
        groups=None if codes is None else codes[train], seed=_SEED,
    )  # fmt: skip


def _curve(names: list[str], losses: Matrix, judged: Judged, has_groups: bool) -> dict[str, Any]:
    """Mean loss, and that of the worst group or tenth, along the levels."""
    found = metrics_of(replace(judged, losses=losses))(judged.weight[None, :], judged.least)[0]
    worst = "worst_group_loss" if has_groups else "tail_excess"
    return {
        "model": [MEAN, *names],
        "mean_loss": found[METRICS.index("mean_loss")],
        "worst": found[METRICS.index(worst)],
    }
