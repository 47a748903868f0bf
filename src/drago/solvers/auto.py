"""`solve`, and which solver it takes for which problem."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from drago._interrupts import interruptible
from drago._validation import check_integer, check_number, check_option, shown
from drago.bounds import curvature_cost, order
from drago.losses import Huber, Logistic, Squared, UserLoss
from drago.metric import make_metric
from drago.problem import DROProblem, check_problem
from drago.result import SolverResult
from drago.solvers.base import Loop, Method, Start, State
from drago.solvers.baselines import LSVRG, SGD, Prospect
from drago.solvers.blocks import SMALL
from drago.solvers.drago import Drago
from drago.solvers.full_batch import AGOG, GradientDescent
from drago.solvers.lbfgs import LBFGS
from drago.solvers.messages import narrated
from drago.solvers.newton import Newton
from drago.solvers.resume import Checkpoints
from drago.solvers.threads import at_most
from drago.solvers.trivial import TrivialModel
from drago.uncertainty import CVaR

_BY_NAME: dict[str, Any] = {
    settings.name: settings
    for settings in (Drago, LBFGS, Newton, SGD, LSVRG, Prospect, GradientDescent, AGOG)
}


# What runs on tensors.
_ON_DEVICES = (Drago.name, LBFGS.name)

# The rule of "auto", fitted on benchmarks/measurements/solvers.csv. Newton steps win where they are
# compiled and the unknowns few: on small data, and at kinks if the Hessian of the tail costs no
# more than so many passes. Where they are not, if the tail holds about as many rows as there are
# unknowns.
_FEW_UNKNOWNS = 250
_CHEAP_TAIL = 1.5
_THIN = (0.2, 2.0)
# Or in balls on tiny data with the logistic loss, whose curvature changes on the way; or on still
# less of it where the shift cost is this share of the objective at w = 0; or for several outputs
# with no more unknowns than this, and little l2_reg.
_TINY = 1 << 15
_KINKS = 0.01
_VERY_FEW_UNKNOWNS = 20
# A metric is of no use where its greatest and least curvature differ by no more than this; looked
# for on data where a look costs little.
_WELL_CONDITIONED = 5.0
_MANY_ROWS = 5000
_FEW_FEATURES = 100
# Nor with several outputs and fewer rows than this many times the unknowns, for little l2_reg.
_ROWS_PER_UNKNOWN = 10
_LITTLE = 0.1
_IN_METRIC = LBFGS(metric="auto", progressive=True, memory=40)


def choose(problem: DROProblem) -> tuple[Method, tuple[Method, ...], str]:
    """What "auto" takes for a problem, what goes on where that stalls, and why.

    1. In an `L2Ball`, Newton steps on small data (2^19 entries) with at most 250 unknowns, where
       they apply; otherwise DRAGO, which has them finish where they are affordable.
    2. With dense features and at most 250 unknowns, Newton steps, because the objective has a kink
       wherever a row enters the tail: for a `CVaR` with the chi2 divergence, where they are
       compiled, on small data (2^19 entries; 2^20 without a shift cost), and without a shift cost
       on larger ones too, if the loss is squared or Huber's and the Hessian of the tail costs no
       more than 1.5 passes; for any divergence if the tail of a `CVaR` holds 0.2 to 2 times as
       many rows as there are unknowns, or on tiny data (2^13 entries) if the shift cost is at most
       1% of the objective at w = 0; in balls with the logistic loss on tiny data (2^15 entries);
       with several outputs for at most 20 unknowns and l2_reg < 0.1.
    3. Plain L-BFGS where a metric is of no use: on well-conditioned features (one output, at most
       100 features; 5000 rows or more and the squared or Huber loss, or no shift cost), and with
       several outputs, fewer than 10 rows an unknown and l2_reg < 0.1.
    4. Otherwise L-BFGS in a metric, started on a part of the rows where there are many.
    """
    if not problem.constraint.has_bounds:
        where = f"because it stays in {problem.constraint!r}; "
        affordable = Newton.is_affordable(problem)
        if affordable and problem.n_entries <= SMALL and order(problem) <= _FEW_UNKNOWNS:
            return Newton(), (Drago(),), f"auto took newton, {where}"
        return Drago(), (Newton(),) if affordable else (), f"auto took drago, {where}"
    if problem.engine:
        where = "on a device" if problem.is_linear else "for a model that is not linear"
        return _IN_METRIC, (LBFGS(),), f"auto took lbfgs in a metric, {where}; "
    unknowns = order(problem)
    if _is_for_newton(problem):
        why = f"auto took newton, for {problem.n_samples} rows and {unknowns} unknowns; "
        return Newton(), (_IN_METRIC,), why
    # Another try would call a user's loss where it may not like it.
    users = isinstance(problem.loss, UserLoss)
    if _is_well_conditioned(problem):
        why = "auto took lbfgs, for well-conditioned features; "
        return LBFGS(), () if users else (_IN_METRIC,), why
    few = problem.n_samples < _ROWS_PER_UNKNOWN * problem.n_features * problem.n_outputs
    if problem.n_outputs > 1 and few and problem.mu < _LITTLE:
        why = f"auto took lbfgs, for {problem.n_samples} rows and {unknowns} unknowns; "
        return LBFGS(), () if users else (_IN_METRIC,), why
    others: tuple[Method, ...] = ()
    if not users:
        others = (Newton(), LBFGS()) if Newton.is_affordable(problem) else (LBFGS(),)
    return _IN_METRIC, others, "auto took lbfgs in a metric, the fastest on most problems; "


def _rows_in_tail(problem: DROProblem) -> float:
    """How many rows share the weight at least; infinite for a set without a tail."""
    if not isinstance(problem.uncertainty, CVaR):
        return math.inf
    return problem.n_samples * float(problem.uncertainty.tail_fraction)


def _is_for_newton(problem: DROProblem) -> bool:
    """Whether its steps are possible, and the fastest."""
    unknowns, rows = order(problem), _rows_in_tail(problem)
    if problem.is_sparse or unknowns > _FEW_UNKNOWNS:
        return False
    try:
        Newton().check(problem)
    except ValueError:
        return False
    if problem.n_outputs > 1:
        return unknowns <= _VERY_FEW_UNKNOWNS and problem.mu < _LITTLE
    if _THIN[0] * unknowns <= rows <= _THIN[1] * unknowns:
        return True
    ball = problem.uncertainty.own_divergence is not None
    if ball and isinstance(problem.loss, Logistic) and problem.n_entries <= _TINY:
        return True
    if not math.isfinite(rows):
        return False
    if not Newton.is_compiled(problem):
        kinks = problem.nu <= _KINKS * abs(problem.reference[0])
        return kinks and problem.n_entries <= _TINY // 4
    if problem.n_entries <= (SMALL if problem.nu > 0 else 2 * SMALL):
        return True
    # Logistic losses take many steps while the coefficients grow.
    kinks = problem.nu == 0 and isinstance(problem.loss, (Squared, Huber))
    return kinks and curvature_cost(problem, rows) <= _CHEAP_TAIL


def _is_well_conditioned(problem: DROProblem) -> bool:
    """Whether the features are, where that decides."""
    if problem.n_outputs > 1 or problem.n_features > _FEW_FEATURES:
        return False
    constant = isinstance(problem.loss, (Squared, Huber)) and problem.n_samples >= _MANY_ROWS
    corners = problem.nu == 0 and problem.uncertainty.own_divergence is None
    if not (constant or corners):
        return False
    curvature = make_metric(problem._replace(mu=0.0), "auto").eigenvalues
    return bool(curvature.max() <= _WELL_CONDITIONED * curvature.min())


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


@interruptible
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
    n_threads: int | None = None,
    verbose: int = 0,
    device: Any = None,
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
        ``(P(w) - P*) / (P_0 - P*)``, with ``P_0`` the objective at w = 0. For losses that are not
        declared convex, ``||grad P||`` relative to the start.
    max_iter : int, optional
    time_limit : float, optional
        Seconds, without the time of compilation (which counts on a device: solve twice).
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
    n_threads : int, optional
        Threads of the passes over arrays; by default as many as pay.
    verbose : int
        1 prints a line for each certificate.
    device : None or a device of torch, such as "cuda", "mps" or "cpu"
        None is the Numba engine, or for a problem made of tensors the device where they are. On a
        device there are the solvers "drago" and "lbfgs" (`drago.torch_engine`).

    Returns
    -------
    SolverResult
        Whatever the status, the best certified point. `KeyboardInterrupt` ends the solve and
        returns it too, with status ``interrupted``.
    """
    problem = _on_device(check_problem(problem), device)
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
        if others and problem.nu == 0:
            others = (*others, TrivialModel((_IN_METRIC, Newton(), LBFGS())))
    if problem.engine and method.name not in _ON_DEVICES:
        raise ValueError(
            f"on a device there are the solvers {' and '.join(map(repr, _ON_DEVICES))}, but "
            f"{method.name!r} was given: choose one of these, or solve a problem on arrays."
        )
    method.check(problem)
    if n_threads is not None:
        n_threads = check_integer("n_threads", n_threads, low=1)
        if hasattr(method, "n_threads"):
            method = replace(method, n_threads=n_threads)  # type: ignore[type-var]
    if check_integer("verbose", verbose, low=0):
        callback = narrated(callback)
    checkpoints = None
    if checkpoint is not None:
        if problem.engine:
            raise ValueError("a solve on a device cannot be resumed yet: give no checkpoint.")
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
    with at_most(n_threads):
        return loop.run(method)


def as_start(warm_start: Any, problem: DROProblem) -> Start:
    """A start from a result, from coefficients, or from coefficients and an intercept."""
    q = None
    if isinstance(warm_start, SolverResult):
        coef, intercept = warm_start.coef, warm_start.intercept
        if tuple(warm_start.dual_weights.shape) == tuple(problem.p.shape):
            given = problem.from_user("dual_weights", warm_start.dual_weights)
            q = given if _are_weights(given, problem) else None
    elif isinstance(warm_start, tuple) and len(warm_start) == 2:
        coef, intercept = warm_start
    else:
        coef, intercept = warm_start, 0.0
    w, b = problem.to_internal(coef, intercept)
    return Start(problem.constraint.project(w), b, q)


def _are_weights(q: Any, problem: DROProblem) -> bool:
    """Whether weights of another problem may start this one."""
    if problem.uncertainty.is_users:
        return False
    if problem.divergence.name == "kl" and not q.min() > 0:
        return False  # a weight of 0 could never grow again
    return bool(problem.violation(q) <= 1e-9)


def _on_device(problem: DROProblem, device: Any) -> DROProblem:
    """The problem with its rows on a device, where one is given."""
    if device is None:
        return problem
    from drago.torch_engine.problem import TensorProblem

    return TensorProblem.of(problem, device)
