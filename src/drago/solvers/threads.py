"""How many threads BLAS may have during a solve."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

from drago.problem import DROProblem
from drago.solvers.protocol import Method

# Entries of X below which a second BLAS thread costs more than it gives.
_SMALL = 1 << 20


def blas_threads(problem: DROProblem, method: Method) -> Any:
    """One BLAS thread for small problems and methods with threads of their own; or the caller's."""
    if problem.engine:
        return nullcontext()
    entries = problem.n_samples * problem.n_features * problem.n_outputs
    if not hasattr(method, "n_threads") and (problem.is_sparse or entries > _SMALL):
        return nullcontext()
    return _controller().limit(limits=1, user_api="blas")


def at_most(n_threads: int | None) -> Any:
    """No more BLAS threads than that; None leaves them as they are."""
    if n_threads is None:
        return nullcontext()
    return _controller().limit(limits=n_threads, user_api="blas")


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
