"""`solve`, and which solver it takes for which problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drago._validation import check_integer, check_number, check_option, shown
from drago.problem import DROProblem, check_problem
from drago.result import SolverResult
from drago.solvers.base import Loop, Method, State
from drago.solvers.drago import Drago
from drago.solvers.lbfgs import LBFGS

_BY_NAME: dict[str, Any] = {"drago": Drago, "lbfgs": LBFGS}


def as_method(solver: Any, problem: DROProblem) -> Method:
    """A method from a name or a settings object."""
    if isinstance(solver, str):
        name = check_option("solver", solver, ["auto", *_BY_NAME])
        return _BY_NAME["lbfgs" if name == "auto" else name]()
    if hasattr(solver, "run") and hasattr(solver, "check") and not isinstance(solver, type):
        return solver
    names = ", ".join(map(repr, ["auto", *_BY_NAME]))
    raise TypeError(
        f"solver must be one of {names} or a settings object such as LBFGS(memory=20), "
        f"but {shown(solver)} was given."
    )


def solve(
    problem: DROProblem,
    solver: Any = "auto",
    *,
    tol: float = 1e-4,
    max_iter: int | None = None,
    time_limit: float | None = None,
    random_state: int = 0,
    callback: Callable[[State], Any] | None = None,
) -> SolverResult:
    """Solve a problem to a certified relative gap.

    Parameters
    ----------
    problem : DROProblem
    solver : {"auto", "drago", "lbfgs"} or a settings object, `drago.Drago` or `drago.LBFGS`
        "auto" is "lbfgs".
    tol : float >= 0
        Certified relative gap at which to stop: an upper bound on
        ``(P(w) - P*) / (P_0 - P*)``, with ``P_0`` the objective at w = 0.
    max_iter : int, optional
    time_limit : float, optional
        Seconds, without the time of compilation.
    random_state : int
        Seed for the methods that draw; the same seed gives the same answer.
    callback : callable, optional
        Called with a `State` at each certificate; a true return value stops the solve.

    Returns
    -------
    SolverResult
        Whatever the status, the best certified point. `KeyboardInterrupt` ends the solve and
        returns it too, with status ``interrupted``.
    """
    check_problem(problem)
    tol = check_number("tol", tol, low=0)
    if max_iter is not None:
        max_iter = check_integer("max_iter", max_iter, low=1)
    if time_limit is not None:
        time_limit = check_number("time_limit", time_limit, low=0)
    if callback is not None and not callable(callback):
        raise TypeError(
            f"callback must be a function of one argument, but {shown(callback)} was given."
        )
    random_state = check_integer("random_state", random_state, low=0)
    method = as_method(solver, problem)
    method.check(problem)
    return Loop(problem, tol, max_iter, time_limit, callback, random_state).run(method)
