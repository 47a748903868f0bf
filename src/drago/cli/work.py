"""What the commands do, between reading and telling."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.base import is_classifier

from drago._validation import check_groups, shown
from drago.certificate.certificate import Certificate
from drago.certificate.certify import certify
from drago.cli import columns, tables
from drago.cli.columns import Plan
from drago.cli.out import Out
from drago.estimators import DROClassifier, DROClassifierCV, DRORegressor, DRORegressorCV
from drago.files import models
from drago.problem import DROProblem
from drago.sources.api import read_parquet
from drago.sources.source import Source
from drago.terms.uncertainty import CVaR

Array = npt.NDArray[Any]

SETS = (
    "mild", "worst_group", "excess_tail", "cvar", "extremile", "esrm", "chi2_ball", "kl_ball",
    "simplex",
)  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """Rows of a table, by what they are for."""

    X: pd.DataFrame
    y: Array
    groups: Array | None
    weights: Array | None
    dropped: int

    @classmethod
    def of(cls, frame: pd.DataFrame, plan: Plan) -> Rows:
        """Those with a target."""
        frame, dropped = columns.with_target(frame, plan)
        return cls(
            columns.features_of(frame, plan),
            columns.labels_or_numbers(frame[plan.target]),
            columns.groups_of(frame, plan),
            columns.weights_of(frame, plan),
            dropped,
        )

    def given(self) -> dict[str, Any]:
        """What a pipeline's fit gets beside X and y."""
        found = {"groups": self.groups, "sample_weight": self.weights}
        return {f"model__{name}": value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Settings:
    """What a fit is told."""

    uncertainty: str | None = None
    tail_fraction: float | None = None
    shift_cost: float | None = None
    l2_reg: float | None = None
    loss: str | None = None
    choose: bool = False
    tol: float = 1e-4
    time_limit: float | None = None
    seed: int = 0

    def check(self) -> None:
        """Raise for a set that does not exist, before rows are read."""
        if self.uncertainty is None or self.uncertainty in SETS:
            return
        near = get_close_matches(self.uncertainty, SETS, 1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(
            f"--uncertainty {self.uncertainty} does not exist{meant}; there are {', '.join(SETS)}."
        )

    def estimator(self, labels: bool, has_groups: bool) -> Any:
        """The model, not fitted."""
        if self.loss is not None and labels:
            raise ValueError("--loss is for regressions; classes have the logistic loss.")
        more: dict[str, Any] = {"loss": self.loss} if self.loss is not None else {}
        more |= {"tol": self.tol, "time_limit": self.time_limit, "random_state": self.seed}
        if self.choose:
            given = (self.uncertainty, self.tail_fraction, self.shift_cost, self.l2_reg)
            if any(value is not None for value in given):
                raise ValueError(
                    "--choose tries sets, shift costs and penalties by itself: leave out "
                    "--uncertainty, --tail-fraction, --shift-cost and --l2-reg."
                )
            return (DROClassifierCV if labels else DRORegressorCV)(**more)
        if self.tail_fraction is not None:
            if self.uncertainty not in (None, "cvar"):
                raise ValueError(
                    "--tail-fraction is the level of --uncertainty cvar, but "
                    f"{self.uncertainty} was given."
                )
            chosen: Any = CVaR(self.tail_fraction)
        else:
            chosen = self.uncertainty or ("worst_group" if has_groups else "mild")
        if chosen == "worst_group" and not has_groups:
            raise ValueError("--uncertainty worst_group needs --groups COLUMN.")
        if self.shift_cost is not None:
            more["shift_cost"] = self.shift_cost
        if self.l2_reg is not None:
            more["l2_reg"] = self.l2_reg
        return (DROClassifier if labels else DRORegressor)(chosen, **more)


def source_of(
    path: str, plan: Plan, memory_limit: str | None, fill: dict[str, Any], max_categories: int
) -> Source:
    """Rows of Parquet that are read in parts."""
    return read_parquet(
        path,
        plan.target,
        features=plan.features,
        groups=plan.groups or None,
        sample_weight=plan.weights,
        fill=fill or None,
        max_categories=max_categories,
        standardize=True,
        memory_limit=memory_limit,
    )


def saved(path: str) -> tuple[Any, Plan]:
    """A model of this command, and the plan of its columns."""
    if path.lower().endswith((*tables.CSV, *tables.PARQUET, *tables.FEATHER)):
        raise ValueError(
            f"{path} is not a drago model. Give the file that `drago fit --model` wrote first, "
            "then the data."
        )
    model, notes = models.read(path)
    if "plan" not in notes:
        raise ValueError(
            f"{path} was saved by drago.save and does not say which columns it takes: use it from "
            "Python, or fit it with `drago fit`."
        )
    return model, Plan.from_notes(notes["plan"])


def last_of(model: Any) -> Any:
    """The estimator at the end of a pipeline, or the model itself."""
    return model[-1] if hasattr(model, "steps") else model


class Unseen:
    """Rows with a word that the fit has not seen: how many, in which columns, the first word."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._first: dict[str, str] = {}

    def look(self, model: Any, X: pd.DataFrame, plan: Plan) -> None:
        """Count those of some rows."""
        for name, words in columns.unseen_words(model, X, plan).items():
            self._rows[name] = self._rows.get(name, 0) + len(words)
            self._first.setdefault(name, words.iloc[0])

    def tell(self, out: Out, model: Any, plan: Plan) -> None:
        """Say what becomes of them."""
        for name, count in self._rows.items():
            who = "1 row has a word" if count == 1 else f"{count} rows have a word"
            what = "the column adds nothing to their predictions"
            if columns.shares_rare_words(model, name, plan):
                what = "they are predicted as rows with one of the rarest words of the fit"
            out.note(
                f"column {name!r}: {who} that was not there in the fit, such as "
                f"{shown(self._first[name])}; {what}."
            )


def predictions(
    model: Any, frame: pd.DataFrame, plan: Plan, keep: list[str], unseen: Unseen
) -> pd.DataFrame:
    """Predictions for the rows of a frame, beside columns that are kept."""
    columns.require_columns(frame, keep)
    X = columns.features_of(frame, plan)
    unseen.look(model, X, plan)
    out = {name: frame[name].to_numpy() for name in keep}
    out["prediction"] = model.predict(X)
    if hasattr(model, "predict_proba"):
        shares = model.predict_proba(X)
        for k, label in enumerate(last_of(model).classes_.tolist()):
            out[f"probability={label}"] = shares[:, k]
    return pd.DataFrame(out)


def certificate_of(model: Any, rows: Rows) -> tuple[Certificate, DROProblem]:
    """How far a model is from the best one for some rows, prepared as for its fit."""
    last = last_of(model)
    X = model[:-1].transform(rows.X) if hasattr(model, "steps") else rows.X
    n = rows.y.size
    is_plain = rows.weights is None and not is_classifier(last)
    weight = np.ones(n) if rows.weights is None else rows.weights
    weight = weight * last._weight_of_labels(rows.y)
    target = last._encode(rows.y)
    groups = rows.groups if last.uncertainty_.needs_groups else None
    baseline = last.baseline_
    if baseline is not None and baseline.size != n:
        baseline = _baseline_again(last, X, target, None if is_plain else weight, rows.groups)
    problem = _problem_of(last, X, target, sample_weight=weight, groups=groups, baseline=baseline)
    return certify(problem, *_point(last)), problem


def _problem_of(model: Any, *rows: Any, **given: Any) -> DROProblem:
    """What a model was fitted to solve, on some rows."""
    return DROProblem(
        *rows,
        loss=model.loss_,
        uncertainty=model.uncertainty_,
        divergence=model.divergence_,
        shift_cost=model.shift_cost_,
        l2_reg=model._levels()["l2_reg"],
        fit_intercept=model.fit_intercept,
        constraint=model.constraint,
        **given,
    )


def _baseline_again(last: Any, X: Any, target: Array, weight: Any, groups: Any) -> Array:
    """What is attainable on the rows, estimated as in the fit: the same on the same rows."""
    if hasattr(last, "best_params_"):
        raise ValueError(
            "the model was chosen for the excess over a baseline, whose values for the training "
            "rows are not in the file: fit it with --include-weights, and certify it on the same "
            "rows."
        )
    codes = None if groups is None else check_groups(groups, target.size)
    return last._attainable(X, target, weight, codes, None)


def certificate_on(model: Any, source: Source) -> tuple[Certificate, DROProblem]:
    """The same for rows that are read in parts: those of the fit."""
    problem = _problem_of(model, source)
    coef, intercept = model.result_.coef, model.result_.intercept
    found = np.atleast_2d(source.original(coef, intercept)[0])
    if not np.allclose(found, np.atleast_2d(model.coef_), rtol=1e-6):
        raise ValueError(
            "the model was fitted on standardised rows of other files: certify it on the rows of "
            "its fit."
        )
    return certify(problem, coef, intercept), problem


def _point(last: Any) -> tuple[Any, Any]:
    """Coefficients and intercept as a problem takes them."""
    coef = np.asarray(last.coef_, dtype=np.float64)
    intercept = np.asarray(last.intercept_, dtype=np.float64)
    if coef.ndim == 2 and coef.shape[0] == 1:
        return coef[0], float(intercept.reshape(-1)[0])
    return coef, (float(intercept) if intercept.ndim == 0 else intercept)
