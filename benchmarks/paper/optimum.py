"""The optimal value that a figure is normalised by: certified, and checked by another solver."""

from __future__ import annotations

import sys
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from problems import Spec

import drago

# What the certificate has to show, relative to what w = 0 leaves to gain.
TOLERANCE = 1e-12
# Rows up to which an interior-point method is asked as well; classes cost it far more.
_MOST_ROWS = {"squared": 10_000, "multinomial": 300}
_TESTS = Path(__file__).parents[2] / "tests"


def optimum(spec: Spec) -> dict[str, Any]:
    """Solve to a certified 1e-12; where it is feasible, compare with cvxpy and Clarabel."""
    problem = spec.build()
    result, tried = _solve(problem)
    certificate = drago.certify(problem, result.coef, dual_weights=result.dual_weights)
    found: dict[str, Any] = {
        "value": result.primal,
        "reference": problem.reference[0],
        "rel_gap": min(result.rel_gap, certificate.rel_gap),
        "seconds": result.time,
        "solver": tried,
        "n": problem.n_samples,
        "d": problem.n_features * problem.n_outputs,
        "cvxpy": None,
        "cvxpy_seconds": None,
        "cvxpy_status": "not asked: too large",
    }
    if problem.n_samples > _MOST_ROWS[problem.loss.name]:
        return found
    if find_spec("cvxpy") is None:
        return found | {"cvxpy_status": "not asked: cvxpy is not installed"}
    began = time.perf_counter()
    try:
        value, status = _by_cvxpy(spec, problem)
    except RuntimeError as error:
        return found | {"cvxpy_status": f"failed: {error}"}
    seconds = time.perf_counter() - began
    return found | {"cvxpy": value, "cvxpy_seconds": seconds, "cvxpy_status": status}


def _solve(problem: drago.DROProblem) -> tuple[drago.SolverResult, str]:
    """By the first method that certifies it; by the best of them where none does."""
    best, name = None, ""
    for solver in ("auto", "newton", "lbfgs"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = drago.solve(problem, solver, tol=TOLERANCE, time_limit=60.0)
        if best is None or result.rel_gap < best.rel_gap:
            best, name = result, solver
        if best.rel_gap <= TOLERANCE:
            break
    assert best is not None
    return best, name


def _by_cvxpy(spec: Spec, problem: drago.DROProblem) -> tuple[float, str]:
    """The same from the tests' model of the problem, which shares no code with the library."""
    if str(_TESTS) not in sys.path:
        sys.path.append(str(_TESTS))
    import reference

    kind = {"cvar": "cvar", "chi2": "chi2_ball"}[spec.uncertainty]
    found = reference.solve_problem_detailed(
        np.asarray(problem.X),
        np.asarray(problem.y),
        problem.loss.name,
        (kind, spec.level),
        "chi2",
        problem.nu,
        problem.mu,
    )
    return float(found.value), str(found.status)
