"""`solve`, and which solver it takes for which problem."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from drago._validation import check_integer, check_number, check_option, shown
from drago.bounds import order
from drago.losses import UserLoss
from drago.metric import make_metric
from drago.problem import DROProblem, check_problem
from drago.result import SolverResult
from drago.solvers.base import Loop, Method, Start, State
from drago.solvers.baselines import LSVRG, SGD, Prospect
from drago.solvers.drago import Drago
from drago.solvers.full_batch import AGOG, GradientDescent
from drago.solvers.lbfgs import LBFGS
from drago.solvers.newton import Newton
from drago.solvers.resume import Checkpoints
from drago.uncertainty import CVaR, Simplex

_BY_NAME: dict[str, Any] = {
    settings.name: settings
    for settings in (Drago, LBFGS, Newton, SGD, LSVRG, Prospect, GradientDescent, AGOG)
}


# The rule of "auto", fitted on benchmarks/measurements/solvers.csv. Newton steps win where the
# tail holds fewer rows than so many times the unknowns, and these are few.
_THIN = 2.0
_FEW_UNKNOWNS = 250
# The metric's greatest and least curvature, where it is of no use.
_WELL_CONDITIONED = 5.0
_IN_METRIC = LBFGS(metric="auto", progressive=True, memory=40)


def choose(problem: DROProblem) -> tuple[Method, tuple[Method, ...], str]:
    """What "auto" takes for a problem, what goes on where that stalls, and why.

    - an `L2Ball`: DRAGO, which alone knows how to stay in one at a good pace;
    - one output, at most 250 unknowns, and a tail (of `CVaR` or `Simplex`) of fewer rows than twice
      the unknowns: Newton steps, for the objective has a kink wherever a row enters the tail;
    - no shift cost, a set with corners, and well-conditioned features: plain L-BFGS, for it goes
      through smoothed problems, and a metric gains nothing there;
    - everything else: L-BFGS in a metric, started on a part of the rows where there are many.
    """
    if problem.constraint.bounds((problem.n_features, problem.n_outputs)) is None:
        return Drago(), (), f"auto took drago, for it stays in {problem.constraint!r}; "
    unknowns = order(problem)
    if problem.n_outputs == 1 and unknowns <= _FEW_UNKNOWNS and _is_allowed(Newton(), problem):
        rows = _rows_in_tail(problem)
        if rows <= _THIN * unknowns:
            why = f"auto took newton, for a tail of {rows:.0f} rows and {unknowns} unknowns; "
            return Newton(), (_IN_METRIC,), why
    if problem.nu == 0 and problem.uncertainty.own_divergence is None:
        curvature = make_metric(problem, "auto").eigenvalues
        if curvature.max() <= _WELL_CONDITIONED * curvature.min():
            why = "auto took lbfgs, for a shift cost of 0 and well-conditioned features; "
            return LBFGS(), (_IN_METRIC,), why
    others: tuple[Method, ...] = ()
    if not isinstance(problem.loss, UserLoss):  # another try would call it where it may not like it
        others = (Newton(), LBFGS()) if Newton.is_affordable(problem) else (LBFGS(),)
    return _IN_METRIC, others, "auto took lbfgs in a metric, the fastest unless a tail is thin; "


def _is_allowed(method: Method, problem: DROProblem) -> bool:
    try:
        method.check(problem)
    except ValueError:
        return False
    return True


def _rows_in_tail(problem: DROProblem) -> float:
    """How many rows share the weight at least, where the set is a capped simplex."""
    if isinstance(problem.uncertainty, CVaR):
        return problem.n_samples * float(problem.uncertainty.tail_fraction)
    return 1.0 if isinstance(problem.uncertainty, Simplex) else np.inf


def as_method(solver: Any) -> Method:
    """A method from a name or a settings object."""
    if isinstance(solver, str):
        name = check_option("solver", solver, ["auto", *_BY_NAME])
        return _IN_METRIC if name == "auto" else _BY_NAME[name]()
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
    warm_start: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 30.0,
) -> SolverResult:
    """Solve a problem to a certified relative gap.

    Parameters
    ----------
    problem : DROProblem
    solver : str or a settings object, such as `drago.Drago()`
        "auto", "drago", "lbfgs", "newton", "gd", "agog", "sgd", "lsvrg" or "prospect". "auto" takes
        what was the fastest on a grid of problems, mostly L-BFGS in a metric (`choose`); the
        result's message says what and why.
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
    warm_start : SolverResult, array or (coef, intercept), optional
        Where to start: the answer to a similar problem. The weights of a `SolverResult` are used
        too, where they lie in the problem's set.
    checkpoint : str or path, optional
        A file to which the solve is saved as it goes on, and from which it is resumed when it is
        there: bit for bit, whatever ended it. Only `Drago` can be resumed, and only its own
        iterations are saved: a start on a part of the rows and a finish are done again.
    checkpoint_every : float
        Seconds between two savings, at least.

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
    others: tuple[Method, ...] = ()
    why = ""
    method = as_method(solver)
    if isinstance(solver, str) and solver == "auto":
        method, others, why = choose(problem)
    method.check(problem)
    checkpoints = None
    if checkpoint is not None:
        if not hasattr(method, "resume"):
            raise ValueError(
                f"solver {method.name!r} cannot be resumed: give solver='drago' or no checkpoint."
            )
        every = check_number("checkpoint_every", checkpoint_every, low=0)
        checkpoints = Checkpoints(checkpoint, every)
    start = None if warm_start is None else as_start(warm_start, problem)
    loop = Loop(
        problem,
        tol,
        max_iter,
        time_limit,
        callback,
        random_state,
        start,
        checkpoints,
        others,
        why,
    )
    return loop.run(method)


def as_start(warm_start: Any, problem: DROProblem) -> Start:
    """A start from a result, from coefficients, or from coefficients and an intercept."""
    q = None
    if isinstance(warm_start, SolverResult):
        coef, intercept = warm_start.coef, warm_start.intercept
        if _are_weights(warm_start.dual_weights, problem):
            q = warm_start.dual_weights
    elif isinstance(warm_start, tuple) and len(warm_start) == 2:
        coef, intercept = warm_start
    else:
        coef, intercept = warm_start, 0.0
    w, b = problem.to_internal(coef, intercept)
    return Start(problem.constraint.project(w), b, q)


def _are_weights(q: Any, problem: DROProblem) -> bool:
    """Whether weights of another problem may start this one."""
    if q.shape != problem.p.shape or problem.uncertainty.is_users:
        return False
    if problem.divergence.name == "kl" and not q.min() > 0:
        return False  # a weight of 0 could never grow again
    return bool(problem.uncertainty.violation(q, problem.p, problem.groups) <= 1e-9)
