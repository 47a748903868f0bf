"""Candidates of a cross-validation on the folds of a source, which are by a hash of the row number.

Models are fitted on all training rows of a fold, which are a source of their own. They are judged
on the held-out rows of a sample in memory: of all rows where these fit.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import shown
from drago.estimators.candidates import NESTED, Candidate, Fold
from drago.estimators.choice import HeldOut
from drago.estimators.source_baseline import losses_on_source
from drago.problem import DROProblem
from drago.sources.numbers import Sample, folds_of
from drago.sources.source import Source
from drago.terms.losses import Loss

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]

# Candidates that a sample has to have room for, each with every l2_reg.
_CANDIDATES = 12


def folds_wanted(cv: Any) -> int:
    """How many folds a source gets: they are by a hash of the row number."""
    if cv is None:
        return 5
    if isinstance(cv, bool) or not isinstance(cv, numbers.Integral) or cv < 2:
        raise ValueError(
            f"cv must be None or a number of folds from 2 on for a source, whose folds are by a "
            f"hash of the row number, but {shown(cv)} was given."
        )
    return int(cv)


def sample_for(source: Source, loss: Loss, seed: int, n_regs: int) -> Sample:
    """Rows to judge by: as many as there is room for, with what each model loses on them."""
    labels = loss.is_classification
    rows = source.part(labels, None, "rows")
    size = source.rows_that_fit(rows.n_features + _CANDIDATES * n_regs)
    return rows._sample(size, seed, labels=labels)


@dataclass(frozen=True)
class SourceFold(Fold):
    """The same for a source: all other fields are about its sample.

    Parameters
    ----------
    source : Source
    sample : Sample
    n_folds : int
    labels : array or None
        The classes.
    subtracted : array or None
        What is attainable on all rows, where it is no column of the source.
    training : Source, optional
        What models are fitted on.
    """

    source: Source
    sample: Sample
    n_folds: int
    labels: Array | None
    subtracted: Vector | None = None
    training: Source | None = None

    def splits(self) -> list[tuple[Array, Array]]:
        """Training rows and test rows of the sample."""
        own = folds_of(self.sample.numbers, self.n_folds, self.seed)
        sizes = np.bincount(own, minlength=self.n_folds)
        if not sizes.all():
            raise ValueError(
                f"cv={self.n_folds} folds of {own.size} rows by a hash of their number leave fold "
                f"{int(sizes.argmin()) + 1} empty: use fewer folds, or arrays."
            )
        return [(np.flatnonzero(own != k), np.flatnonzero(own == k)) for k in range(self.n_folds)]

    def __call__(self, train: Array, test: Array) -> HeldOut:
        k = int(folds_of(self.sample.numbers[test[:1]], self.n_folds, self.seed)[0])
        classifies, n_folds, seed = self.loss.is_classification, self.n_folds, self.seed
        training = self.source.part(
            classifies,
            lambda rows: folds_of(rows, n_folds, seed) != k,
            f"the training rows of fold {k + 1} of {n_folds}",
        )
        try:
            return self._on(training, train, test)
        finally:
            training.release()

    def _on(self, training: Source, train: Array, test: Array) -> HeldOut:
        """What is held out by models of these training rows."""
        if self.labels is not None:
            known = training.scanned(True).classes
            assert known is not None
            lost = np.setdiff1d(np.arange(len(self.labels)), known)
            if lost.size:
                raise self.lost(int(lost[0]))
        subtracted = None
        excess = any(each.is_excess for each in self.candidates)
        if excess and self.baseline is not None and not self.sample.is_whole:
            subtracted, _ = losses_on_source(
                self.baseline, training, self.loss, seed=self.seed + 1, labels=self.labels,
                n_folds=NESTED,
            )  # fmt: skip
        return Fold.__call__(replace(self, training=training, subtracted=subtracted), train, test)

    def _subtracts(self) -> bool:
        # What is attainable on all rows is known where the sample is not all of them.
        return super()._subtracts() if self.sample.is_whole else self.finds_groups

    def _require_classes(self, fitted: Array) -> None:
        """All rows were looked at, not those of the sample alone."""

    def _problem(self, candidate: Candidate, rows: Array, attainable: Vector | None) -> DROProblem:
        source = self.source if self.training is None else self.training
        baseline: Any = 0.0
        if candidate.is_excess:
            baseline = None  # a column of the source
            if "baseline" not in source.names:
                baseline = attainable if self.sample.is_whole else self.subtracted
        return DROProblem(
            source,
            loss=self.loss,
            uncertainty=candidate.uncertainty,
            baseline=baseline,
            **self.settings,
        )
