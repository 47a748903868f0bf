"""Compilation ahead of a solve, so that its clocks leave it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from drago.certificate.certify import judge
from drago.loop.method import Method
from drago.metric import FEW, make_metric
from drago.problem import DROProblem
from drago.rows.memory import LARGE
from drago.terms.divergences import LONG

_COMPILED: set[tuple[Any, ...]] = set()


def compile_for(
    problem: DROProblem, method: Method, rehearse: Callable[[DROProblem], object]
) -> None:
    """Compile what a solve needs, once for each kind of problem and method.

    `rehearse` solves a problem of a few rows by the method, for as long as two iterations take.
    """
    if not problem.rows.has("compiled"):
        return
    picks_rows = not problem.is_sparse and problem.n_outputs == 1 and problem.n_entries >= LARGE
    key = (
        method.compile_key(problem),
        type(problem.loss),
        problem.uncertainty.kind,
        problem.divergence.name,
        problem.X.dtype.num,
        problem.X.indices.dtype.num if problem.is_sparse else None,
        problem.nu > 0,
        picks_rows,
        problem.n_samples > LONG,
        problem.n_features <= FEW,
        type(problem.constraint),
    )
    if key in _COMPILED:
        return
    few = problem.stand_in()
    rehearse(few)
    judge(few, few.evaluate(np.zeros((few.n_features, few.n_outputs)), np.zeros(few.n_outputs)))
    if hasattr(few.loss, "second"):  # for bounds from the curvature, which few rows do not need
        few.loss.second(few.y, np.zeros((few.n_samples, few.n_outputs)))
    if method.metric is not None and problem.n_features <= FEW and not problem.is_sparse:
        make_metric(few, "full")
    if picks_rows:
        from drago.kernels.rows import accumulate

        accumulate(few.X, np.arange(1), np.ones(few.n_samples), np.zeros(few.n_features))
    method.compile(problem)
    if problem.n_samples > LONG and problem.divergence.is_chi2:
        from drago.kernels.divergences import chi2

        chi2(np.ones(few.n_samples), few.p)
    _COMPILED.add(key)
