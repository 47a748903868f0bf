"""How many threads BLAS may have during a solve."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import cache
from typing import Any

from drago.loop.method import Method
from drago.problem import DROProblem

# Entries of X below which a second BLAS thread costs more than it gives, and below which BLAS
# wakes none.
_SMALL = 1 << 20
_TINY = 1 << 12
# Threads that matrices of more unknowns than this are worth: sixteen wait for each other.
_FEW, _FEW_UNKNOWNS = 4, 128


def blas_threads(problem: DROProblem, method: Method) -> Any:
    """One BLAS thread for small problems and methods with threads of their own; or the caller's."""
    if not problem.rows.is_on_host:  # on this side there are no more than matrices of the unknowns
        unknowns = problem.n_features * problem.n_outputs
        return at_most(1 if unknowns <= _FEW_UNKNOWNS else min(_FEW, os.cpu_count() or 1))
    entries = problem.n_samples * problem.n_features * problem.n_outputs
    if max(entries, problem.n_features**2) <= _TINY:
        return nullcontext()
    if not method.has_threads and (problem.is_sparse or entries > _SMALL):
        return nullcontext()
    return at_most(1)


def at_most(n_threads: int | None) -> Any:
    """No more BLAS threads than that; None leaves them as they are."""
    controller = None if n_threads is None else _controller()
    if controller is None:
        return nullcontext()
    return controller.limit(limits=n_threads, user_api="blas")


@cache
def _controller() -> Any:
    """None where there is no such package, which comes with scikit-learn."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()
