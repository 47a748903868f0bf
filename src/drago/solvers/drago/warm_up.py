"""What DRAGO compiles beside what a few rows, which are one block, run through."""

from __future__ import annotations

import numpy as np

from drago.problem import DROProblem
from drago.rows.tables.array_blocks import SMALL, ArrayBlocks, has_kernels
from drago.rows.tables.unsettled import LEAST_ROWS, Unsettled


def compiled_parts(problem: DROProblem) -> tuple[bool, bool]:
    """Whether visits to blocks are compiled, and dual steps on lists of rows."""
    is_large = problem.n_entries > SMALL
    in_blocks = is_large and has_kernels(problem.rows, problem.loss, problem.n_outputs)
    return in_blocks, in_blocks and problem.n_samples >= LEAST_ROWS


def compile_parts(problem: DROProblem) -> None:
    """Compile these, and what is done with the vectors of several blocks."""
    few = problem.stand_in()
    in_blocks, has_lists = compiled_parts(problem)
    _compile_vectors(few)
    if in_blocks:
        ArrayBlocks.compile(few.rows, few.loss)
    if has_lists:
        Unsettled.compile(few.divergence, few.dual_oracle())


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
    if few.divergence.is_chi2:
        proximal_argument_chi2(vectors[0], 1.0, vectors[1], few.p, vectors[2])
