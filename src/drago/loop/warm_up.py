"""Compilation ahead of a solve, so that its clocks leave it out."""

from __future__ import annotations

from typing import Any

import numpy as np

from drago.certificate.certify import judge
from drago.loop.protocol import Method
from drago.metric import FEW, make_metric
from drago.problem import DROProblem
from drago.rows.memory import LARGE
from drago.solvers.drago.blocks import SMALL, Blocks, has_kernels
from drago.solvers.drago.unsettled import LEAST_ROWS, Unsettled
from drago.terms.divergences import LONG

_COMPILED: set[tuple[Any, ...]] = set()


def compile_for(problem: DROProblem, method: Method) -> None:
    """Compile what a solve needs by solving a stand-in."""
    if not problem.rows.has("compiled"):
        return
    picks_rows = not problem.is_sparse and problem.n_outputs == 1 and problem.n_entries >= LARGE
    in_blocks = method.name == "drago" and problem.n_entries > SMALL and has_kernels(problem)
    has_lists = in_blocks and problem.n_samples >= LEAST_ROWS
    key = (
        type(method),
        type(problem.loss),
        problem.uncertainty.kind,
        problem.divergence.name,
        problem.X.dtype.num,
        problem.X.indices.dtype.num if problem.is_sparse else None,
        problem.nu > 0,
        picks_rows,
        in_blocks,
        has_lists,
        problem.n_samples > LONG,
        problem.n_features <= FEW,
        type(problem.constraint),
    )
    if key in _COMPILED:
        return
    from drago.loop.loop import Loop

    few = problem.stand_in()
    Loop(few, tol=0.0, max_iter=2, quiet=True).run(method)
    judge(few, few.evaluate(np.zeros((few.n_features, few.n_outputs)), np.zeros(few.n_outputs)))
    if hasattr(few.loss, "second"):  # for bounds from the curvature, which few rows do not need
        few.loss.second(few.y, np.zeros((few.n_samples, few.n_outputs)))
    if hasattr(method, "metric") and problem.n_features <= FEW and not problem.is_sparse:
        make_metric(few, "full")
    if picks_rows:
        from drago.kernels.rows import accumulate

        accumulate(few.X, np.arange(1), np.ones(few.n_samples), np.zeros(few.n_features))
    if method.name == "drago":
        _compile_vectors(few)
    if in_blocks:
        Blocks.compile(few)
    if has_lists:
        Unsettled.compile(few)
    if problem.n_samples > LONG and problem.divergence.name == "chi2":
        from drago.kernels.divergences import chi2

        chi2(np.ones(few.n_samples), few.p)
    _COMPILED.add(key)


def _compile_vectors(few: DROProblem) -> None:
    """What DRAGO does with vectors of several blocks, which a few rows are not cut into."""
    from drago.kernels.drago import proximal_argument_chi2, proximal_point, renew, scaled_change

    vectors = [np.ones(few.n_samples) for _ in range(3)]
    renew(*vectors)
    scaled_change(*vectors[:2], 1.0)
    points = [np.zeros((few.n_features, few.n_outputs)) for _ in range(4)]
    for basis in (np.empty((0, 0)), np.eye(few.n_features)):
        ones = np.ones(few.n_features)
        proximal_point(points[0], points[1], 1.0, 1.0, points[2], ones, basis, 1.0, 1.0, points[3])
    if few.divergence.name == "chi2":
        proximal_argument_chi2(vectors[0], 1.0, vectors[1], few.p, vectors[2])
