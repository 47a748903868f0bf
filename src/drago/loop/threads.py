"""How many threads BLAS may have during a solve."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

from drago.loop.method import Method
from drago.problem import DROProblem


@dataclass(frozen=True)
class _ThreadRule:
    """When more than one BLAS thread pays."""

    tiny: int = 1 << 12
    """Up to so many entries of X, BLAS wakes no second thread by itself."""
    small: int = 1 << 20
    """Up to so many entries, a second thread costs more than it gives."""
    few_unknowns: int = 128
    """The same where the rows are on a device: this side then has matrices of the unknowns alone,
    and up to so many of them a second thread does not pay."""
    most: int = 4
    """Threads for matrices of more unknowns: sixteen would wait for each other."""


_RULE = _ThreadRule()


def blas_threads(problem: DROProblem, method: Method) -> Any:
    """A context with one BLAS thread, or with the caller's where the problem is large.

    A method that has threads of its own gets one BLAS thread on large problems too, and so does one
    whose visits have: what is left to BLAS is then too small for a second one.
    """
    if not problem.rows.is_on_host:
        unknowns = problem.n_features * problem.n_outputs
        most = 1 if unknowns <= _RULE.few_unknowns else min(_RULE.most, os.cpu_count() or 1)
        return at_most(most)
    entries = problem.n_samples * problem.n_features * problem.n_outputs
    if max(entries, problem.n_features**2) <= _RULE.tiny:
        return nullcontext()
    own = method.has_threads or problem.rows.visits_once(problem.loss, problem.n_outputs)
    if not own and (problem.is_sparse or entries > _RULE.small):
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
    """What limits BLAS; None without threadpoolctl, which comes with scikit-learn.

    It knows the libraries alone that are there already. That of scipy is one of its own, which
    certificates load in any case.
    """
    try:
        import scipy.linalg.lapack  # noqa: F401
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()
