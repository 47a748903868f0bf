"""Candidates for a choice by cross-validation, and what they lose on the rows of a fold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import check_number, shown
from drago.estimators.baseline import out_of_fold_losses
from drago.estimators.choice import HeldOut, found_leaves
from drago.estimators.presets import as_set, own_baseline
from drago.problem import DROProblem
from drago.result import Status
from drago.solvers.solve import solve
from drago.terms.losses import Loss
from drago.terms.uncertainty import CVaR, Grouped, Simplex, UncertaintySet

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]

# Folds within the training rows of a fold, for what is attainable on them.
NESTED = 3


@dataclass(frozen=True)
class Candidate:
    """A set with its price, over plain or excess losses.

    A price in units of `drago.DROProblem`'s "auto" is `times` that.
    """

    uncertainty: UncertaintySet
    shift_cost: float | str = "auto"
    is_excess: bool = False
    times: float = 1.0

    def cost(self, problem: DROProblem) -> float:
        """The shift cost for a problem whose own is "auto"."""
        return self.times * problem.nu if isinstance(self.shift_cost, str) else self.shift_cost

    @property
    def is_mean_fit(self) -> bool:
        """Whether all rows count alike."""
        return self.uncertainty == CVaR(1.0)


MEAN_FIT = Candidate(CVaR(1.0))


def candidates_of(given: Any, has_groups: bool, has_baseline: bool) -> list[Candidate]:
    """What is tried: the mean fit, and what was given or goes without saying."""
    if isinstance(given, str) and given == "auto":
        found = [Candidate(as_set("mild")), Candidate(CVaR(0.9))]
        if has_baseline:
            found += [Candidate(CVaR(tail), is_excess=True) for tail in (0.5, 0.3, 0.1)]
        if has_groups:
            groups = Grouped(Simplex())
            found += [Candidate(groups), Candidate(groups, times=0.3)]
            if has_baseline:
                found += [Candidate(groups, is_excess=True, times=k) for k in (3.0, 1.0, 0.3)]
        return [MEAN_FIT, *found]
    if isinstance(given, (str, dict, UncertaintySet)) or not np.iterable(given):
        given = [given]
    found = [_candidate(each, has_baseline) for each in given]
    return [MEAN_FIT, *(each for each in found if not each.is_mean_fit)]


def _candidate(given: Any, has_baseline: bool) -> Candidate:
    """A candidate from a set, a name, or a dict of settings."""
    settings = dict(given) if isinstance(given, dict) else {"uncertainty": given}
    unknown = set(settings) - {"uncertainty", "shift_cost", "baseline"}
    if unknown or "uncertainty" not in settings:
        raise ValueError(
            "an entry of candidates must be a set, its name, or a dict with 'uncertainty' and, if "
            f"you like, 'shift_cost' and 'baseline', but {shown(given)} was given."
        )
    named = settings["uncertainty"]
    is_excess = settings.get("baseline", own_baseline(named)) is not None
    if is_excess and not has_baseline:
        raise ValueError(
            f"{shown(given)} among the candidates needs a baseline: give one to the estimator, "
            "baseline='auto' for example."
        )
    cost = settings.get("shift_cost", "auto")
    if not (isinstance(cost, str) and cost == "auto"):
        cost = check_number("the shift_cost of a candidate", cost, low=0)
    return Candidate(as_set(named), cost, is_excess)


@dataclass(frozen=True)
class Fold:
    """All candidates on the training rows of a fold, judged on its test rows."""

    X: Any
    y: Array
    weight: Vector
    judged_by: Vector
    groups: Array | None
    by: Array | None
    attainable: Vector
    loss: Loss
    candidates: list[Candidate]
    regs: list[float]
    baseline: Any
    finds_groups: bool
    seed: int
    settings: dict[str, Any]
    solving: dict[str, Any]

    def __call__(self, train: Array, test: Array) -> HeldOut:
        fitted = train[self.weight[train] > 0]
        self._require_classes(fitted)
        judged = test[self.judged_by[test] > 0]
        attainable = self._attainable(fitted) if self._subtracts() else None
        losses = []
        for each in self.candidates:
            problem, before = self._problem(each, fitted, attainable), None
            for reg in self.regs:
                result = solve(
                    problem._replace(nu=each.cost(problem), mu=reg),
                    warm_start=before,
                    **self.solving,
                )
                if result.status is Status.INTERRUPTED:
                    raise KeyboardInterrupt(result.message)
                before = result
                raw = self.X[judged] @ np.atleast_2d(result.coef).T + result.intercept
                raw = np.ascontiguousarray(raw, dtype=np.float64)
                losses.append(self.loss.evaluate(self.y[judged], raw)[0])
        labels = np.zeros(judged.size) if self.by is None else self.by[judged]
        if self.finds_groups:
            linear = out_of_fold_losses(
                "linear", self.X[fitted], self.y[fitted], self.loss,
                weight=self.weight[fitted], seed=self.seed, n_folds=NESTED,
            )  # fmt: skip
            assert attainable is not None
            leaves = found_leaves(
                self.X[fitted], linear - attainable, self.weight[fitted], self.seed
            )
            labels = leaves(self.X[judged])
        return HeldOut(np.array(losses), self.judged_by[judged], self.attainable[judged], labels)

    def _subtracts(self) -> bool:
        """Whether it matters what is attainable on the training rows."""
        return self.finds_groups or any(each.is_excess for each in self.candidates)

    def _require_classes(self, fitted: Array) -> None:
        """Raise where a class has no row to fit."""
        if self.loss.is_classification:
            lost = np.setdiff1d(self.y, self.y[fitted])
            if lost.size:
                raise self.lost(int(lost[0]))

    @staticmethod
    def lost(number: int) -> ValueError:
        """The error for a class without a training row."""
        return ValueError(
            f"the training rows of a fold hold no row of class number {number} of classes_: leave "
            "so rare a class out, use fewer folds, or a splitter that keeps every class in every "
            "fold."
        )

    def _attainable(self, rows: Array) -> Vector:
        """What is attainable on training rows, of which no other row may tell."""
        if self.baseline is None:
            return self.attainable[rows]
        return out_of_fold_losses(
            self.baseline, self.X[rows], self.y[rows], self.loss, weight=self.weight[rows],
            groups=None if self.groups is None else self.groups[rows], seed=self.seed,
            n_folds=NESTED,
        )  # fmt: skip

    def _problem(self, candidate: Candidate, rows: Array, attainable: Vector | None) -> DROProblem:
        """With the shift cost "auto"."""
        return DROProblem(
            self.X[rows],
            self.y[rows],
            loss=self.loss,
            uncertainty=candidate.uncertainty,
            sample_weight=self.weight[rows],
            groups=None if self.groups is None else self.groups[rows],
            baseline=attainable if candidate.is_excess else None,
            **self.settings,
        )

    def costs(self) -> list[float]:
        """The shift cost of each candidate for all rows."""
        everyone = np.flatnonzero(self.weight > 0)
        attainable = self.attainable[everyone]
        return [each.cost(self._problem(each, everyone, attainable)) for each in self.candidates]
